"""Events that this node has just written, kept for the readers that ask for them next.

A publisher's node often delivers too, and would ask the server for what it sent a moment ago. Only the end of a
partition is kept, as long as nobody else wrote behind it, and no more than a bound of bytes altogether.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from mainspring.log.contract import KeptTail, StoredEvent, within_bytes
from mainspring.log.engines.postgres.plan import Partition
from mainspring.log.engines.postgres.tables import DraftEvent

RECENT_BYTES: Final = 8 << 20
_OVERHEAD: Final = 300  # bytes that an event takes beside its own


class _Kept:
    """Events of commits that follow each other; `first` is the lowest offset covered, `tail` the highest."""

    __slots__ = ("bytes", "events", "first", "tail")

    def __init__(self, first: int) -> None:
        self.first = first
        self.tail = first - 1
        self.events: list[DraftEvent] = []
        self.bytes = 0


class RecentEvents:
    """`most` bytes of them; whole partitions go first that were written longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._kept: OrderedDict[Partition, _Kept] = OrderedDict()

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def keep(self, place: Partition, events: Sequence[DraftEvent], tail: int) -> None:
        """The newest of a partition, up to its tail; none when it changed in another way."""
        if not events or events[-1][0] != tail or tail - events[0][0] + 1 != len(events):
            self._drop(place)
            return
        kept = self._kept.get(place)
        if kept is None or kept.tail + 1 != events[0][0]:
            self._drop(place)
            kept = self._kept[place] = _Kept(events[0][0])
        size = sum([event[1] for event in events]) + _OVERHEAD * len(events)
        if kept.bytes + size > self._most // 2:
            self._drop(place)
            kept = self._kept[place] = _Kept(events[0][0])
        kept.events.extend(events)
        kept.tail = tail
        kept.bytes += size
        self._bytes += size
        self._kept.move_to_end(place)
        while self._bytes > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: Partition) -> None:
        kept = self._kept.pop(place, None)
        if kept is not None:
            self._bytes -= kept.bytes

    def forget(self, removed: Iterable[tuple[str, int, int, tuple[int, ...]]]) -> None:
        """Events of these partitions were removed."""
        for topic, partition, _, _ in removed:
            self._drop((topic, partition))

    def held(self) -> list[tuple[list[StoredEvent], KeptTail]]:
        """All of them, by partition, and where it ends."""
        return [
            (
                [StoredEvent(topic, partition, offset, *event) for offset, _, event in kept.events],
                KeptTail(topic, partition, kept.tail),
            )
            for (topic, partition), kept in self._kept.items()
        ]

    def read(self, place: Partition, start: int, limit: int, max_bytes: int) -> list[StoredEvent] | None:
        """The answer, when all of it is here; None when the server must be asked."""
        kept = self._kept.get(place)
        if kept is None or start < kept.first or start > kept.tail:
            return None
        at = start - kept.first
        topic, partition = place
        return within_bytes(
            [StoredEvent(topic, partition, offset, *event) for offset, _, event in kept.events[at : at + limit]],
            max_bytes,
        )
