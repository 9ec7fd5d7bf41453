"""The end of each partition, in memory: the newest offset, and the newest events for groups that keep up.

A group that is at most a few hundred events behind is served from here and never touches storage; that is the normal
case. The events are kept with their envelope already joined, so that ten groups share one piece of work. Nothing is
kept for topics without consumers, and the whole is bounded (`TailBudget`) however long the backlog is: what is not here
is read from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.protocol import EXPIRES, envelope_head, join_envelope, json_text
from mainspring.log import Append, StoredEvent

KEPT_EVENTS: Final = 8_192  # of one partition: several windows of a fast group
KEPT_BYTES: Final = 4 << 20  # of one partition
UNKNOWN: Final = -1
_EXPIRES: Final = json_text(EXPIRES)

_headers = msgspec.json.Decoder(dict[str, str]).decode


class ReadyEvent(msgspec.Struct, frozen=True, gc=False, eq=False):
    """An event in the form in which it is delivered."""

    offset: int
    ts: int
    key: str | None
    headers: bytes | None
    envelope: bytes

    def header(self, name: str) -> str | None:
        return None if self.headers is None else _headers(self.headers).get(name)

    def expires(self) -> int:
        """When: epoch ms; 0: never."""
        text = self.header(EXPIRES) or ""
        return int(text) if text.isascii() and text.isdigit() else 0


class PartitionTail:
    """One partition's end. `offset` is the last durable offset, UNKNOWN until the log was asked."""

    __slots__ = (
        "budget",
        "bytes",
        "events",
        "expiring",
        "first",
        "head",
        "kept_from",
        "offset",
        "partition",
        "topic",
        "upcast",
    )

    def __init__(self, topic: str, partition: int, budget: TailBudget) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.offset: int = UNKNOWN
        self.kept_from: int = 1  # the first offset that still exists, when that was last looked at
        self.head: bytes = envelope_head(topic, partition)
        self.events: list[ReadyEvent] = []  # consecutive, the last one at `offset`
        self.first: int = 0  # offset of events[0]
        self.bytes: int = 0
        self.budget: TailBudget = budget
        self.expiring: bool = False  # some event that is not handled yet may expire
        self.upcast: Callable[[StoredEvent], StoredEvent] | None = None

    def ready(self, event: StoredEvent) -> ReadyEvent:
        if event.headers is not None and _EXPIRES in event.headers:
            self.expiring = not self.topic.endswith(DEAD_LETTERS)  # a letter waits for whoever looks at it
        if self.upcast is not None:
            event = self.upcast(event)
        return ReadyEvent(
            event.offset, event.ts, event.key, event.headers, join_envelope(event, self.head, event.offset)
        )

    def advance(self, offset: int) -> None:
        """An event that no group waits for became durable."""
        self.offset = offset
        if self.events:
            self.forget()

    def extend(self, first: int, events: Sequence[Append]) -> None:
        """Events became durable, at offsets from `first` on, and someone may want them now."""
        if self.offset != first - 1 or not self.events:
            self.forget()
            self.first = first
        self.offset = first + len(events) - 1
        if self.upcast is None:
            head = self.head
            ready = [
                ReadyEvent(offset, event.ts, event.key, event.headers, join_envelope(event, head, offset))
                for offset, event in enumerate(events, first)
            ]
        else:
            ready = [self.ready(_stored(offset, event)) for offset, event in enumerate(events, first)]
        self.events += ready
        grown = sum([len(event.envelope) for event in ready])
        self.bytes += grown
        self.budget.grew(self, grown)
        while len(self.events) > KEPT_EVENTS or self.bytes > KEPT_BYTES:
            self._drop_older_half()

    def get(self, offset: int) -> ReadyEvent | None:
        at = offset - self.first
        return self.events[at] if 0 <= at < len(self.events) else None

    def forget(self) -> None:
        self.budget.shrank(self, self.bytes)
        self.events.clear()
        self.bytes = 0

    def _drop_older_half(self) -> None:
        dropped = self.events[: (len(self.events) + 1) // 2]
        del self.events[: len(dropped)]
        self.first += len(dropped)
        size = sum(len(event.envelope) for event in dropped)
        self.bytes -= size
        self.budget.shrank(self, size)


class SharedPartitionTail(PartitionTail):
    """The end of a partition that other nodes append to as well.

    The newest offset comes with the log's feed of changes, sometimes before this node learns that its own events below
    it are stored. So `offset` only grows, and the events kept here may end before it.
    """

    __slots__ = ()

    def advance(self, offset: int) -> None:
        self.offset = max(self.offset, offset)

    def extend(self, first: int, events: Sequence[Append]) -> None:
        if self.first + len(self.events) != first:
            self.forget()
            self.first = first
        newest = self.offset
        self.offset = first - 1
        super().extend(first, events)
        self.offset = max(newest, self.offset)


def _stored(offset: int, event: Append) -> StoredEvent:
    return StoredEvent(
        event.topic, event.partition, offset, event.id, event.ts, event.payload, event.key, event.headers
    )


class TailBudget:
    """Bounds what all tails keep together; the tail that has grown longest ago gives way first."""

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self._most = most_bytes
        self._used = 0
        self._tails: dict[PartitionTail, None] = {}

    def grew(self, tail: PartitionTail, size: int) -> None:
        self._used += size
        if tail not in self._tails:
            self._tails[tail] = None
        while self._used > self._most and len(self._tails) > 1:
            oldest = next(iter(self._tails))
            del self._tails[oldest]
            if oldest is tail:
                self._tails[tail] = None
            else:
                oldest.forget()

    def shrank(self, tail: PartitionTail, size: int) -> None:
        self._used -= size
        if size and size == tail.bytes:
            self._tails.pop(tail, None)
