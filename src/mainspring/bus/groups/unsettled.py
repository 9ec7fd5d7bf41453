"""Events of a group that nobody has settled, as records hold them.

Most of them were delivered once or never, and follow each other: those are stored as ranges, so that a large window
costs no more than a small one. The rest say how often they were delivered, whether they were refused, until when they
must wait, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

Range = tuple[int, int]
Retried = tuple[int, int, bool, int, str]


class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """What is known of one event. `due`: epoch ms before which it must not be delivered; 0: at once."""

    deliveries: int = 0
    refused: bool = False
    due: int = 0
    reason: str = ""


class Holding(Protocol):
    """A record that holds unsettled events."""

    @property
    def fresh(self) -> tuple[Range, ...]: ...
    @property
    def open(self) -> tuple[Range, ...]: ...
    @property
    def retried(self) -> tuple[Retried, ...]: ...


class Packed(msgspec.Struct, frozen=True):
    """The three fields of a record: ranges never delivered, ranges delivered once, and all others."""

    fresh: tuple[Range, ...] = ()
    open: tuple[Range, ...] = ()
    retried: tuple[Retried, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fresh or self.open or self.retried)


_FRESH, _ONCE = Unsettled(), Unsettled(1)


def pack(events: Mapping[int, Unsettled]) -> Packed:
    fresh: list[int] = []
    once: list[int] = []
    retried: list[Retried] = []
    for offset in sorted(events):
        event = events[offset]
        if event == _FRESH:
            fresh.append(offset)
        elif event == _ONCE:
            once.append(offset)
        else:
            retried.append((offset, event.deliveries, event.refused, event.due, event.reason))
    return Packed(ranges(fresh), ranges(once), tuple(retried))


def unpack(record: Holding) -> dict[int, Unsettled]:
    """By ascending offset."""
    events = {offset: _FRESH for first, last in record.fresh for offset in range(first, last + 1)}
    events.update({offset: _ONCE for first, last in record.open for offset in range(first, last + 1)})
    for offset, deliveries, refused, due, reason in record.retried:
        events[offset] = Unsettled(deliveries, refused, due, reason)
    return dict(sorted(events.items()))


def lowest(record: Holding) -> int | None:
    """The lowest offset it holds."""
    firsts = [each[0][0] for each in (record.fresh, record.open, record.retried) if each]
    return min(firsts) if firsts else None


def ranges(offsets: Iterable[int]) -> tuple[Range, ...]:
    """Ascending offsets as ranges."""
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return tuple(found)
