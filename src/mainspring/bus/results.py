"""What callers of the bus get: plain, frozen data that HTTP encodes as it is.

Field names on the wire are the protocol's (`lastCommitted`, `byTopic`), so the structs rename where Python's differ.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Final, Literal

import msgspec

from mainspring.telemetry import KeptError

_SAFE: Final = 2**53  # what every JSON reader can hold exactly
Offset = Annotated[int, msgspec.Meta(ge=1, le=_SAFE)]


class Published(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where an event went. `offset` is 0 for a delayed event: it gets its place when it is due, at `not_before`."""

    topic: str
    partition: int
    offset: int
    id: str
    ts: int
    duplicate: bool = False
    not_before: int = 0


class NewEvent(msgspec.Struct, frozen=True, gc=False):
    """An event to be published. `payload` is JSON text; `headers` a mapping of text to text."""

    payload: bytes
    key: str | None = None
    headers: dict[str, str] | None = None
    id: str | None = None
    delay_ms: int = 0
    not_before: int = 0
    ttl_ms: int = 0  # from when it is stored; 0: it does not expire


class GroupOffsets(msgspec.Struct, frozen=True, gc=False):
    """A group in one partition. `last_committed` is durable."""

    last_committed: int = msgspec.field(name="lastCommitted")
    lag: int
    inflight: int


class PartitionOffsets(msgspec.Struct, frozen=True, gc=False):
    """Of one partition: the first and the last offset, and where each group stands."""

    partition: int
    head: int
    tail: int
    groups: dict[str, GroupOffsets]


class GroupInfo(msgspec.Struct, frozen=True, gc=False):
    """A group of a topic: how many connections it has now, and where it stands in each partition."""

    topic: str
    group: str
    members: int
    partitions: dict[int, GroupOffsets]
    ttl_ms: int = msgspec.field(default=0, name="ttlMs")  # it goes after so long without members; 0: it stays


class TopicCount(msgspec.Struct, frozen=True, gc=False, rename={"published": "pub", "delivered": "del"}):
    published: int
    delivered: int


class Growing(msgspec.Struct, frozen=True):
    """Something that takes room. `topic` is empty for what is no event: runs, journals, positions, memory."""

    topic: str
    bytes: int


class DiskState(msgspec.Struct, frozen=True):
    """Room where the log is, in bytes. `low`: the node warns; `full`: publishes are refused.

    `free` is what can still be written, `size` what the log takes, `largest` what takes the most, while room is short.
    """

    state: Literal["ok", "low", "full"]
    free: int
    total: int
    size: int
    largest: list[Growing] = []

    def without_others(self, topics: Container[str]) -> DiskState:
        """For who may know only of these topics."""
        shown = [each for each in self.largest if not each.topic or each.topic in topics]
        return msgspec.structs.replace(self, largest=shown)


class Stats(msgspec.Struct, frozen=True, gc=False):
    """Counters since the node started, and gauges of now. `refused` counts requests over a quota, by the quota;
    it is absent where there were none. `disk` is the room for the log; absent where the engine does not know.
    """

    published: int
    delivered: int
    acks: int
    nacks: int
    redeliveries: int
    dlq: int
    expired: int
    damaged: int
    inflight: int
    connections: int
    by_topic: dict[str, TopicCount] = msgspec.field(name="byTopic")
    refused: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    disk: DiskState | msgspec.UnsetType = msgspec.UNSET


class DeadLetter(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel", omit_defaults=True):
    """One event of `<topic>.DLQ`: where it is there, where it came from, which group gave up on it and why.

    `failure` is the error of the last attempt, where an exception was the reason.
    """

    topic: str
    partition: int
    offset: int
    id: str
    ts: int
    original_topic: str
    original_partition: int
    original_offset: int
    original_id: str = ""
    original_ts: int = 0
    group: str
    attempts: int
    reason: str
    failure: KeptError | None = None
    headers: dict[str, str]
    payload: msgspec.Raw
    key: str | None = None


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters of a topic: those at `offsets`, or all, as far as every other member given fits.

    `reason` is text that the reason contains; `before` is epoch ms; `limit` is how many at most, oldest first.
    """

    offsets: Annotated[list[Offset], msgspec.Meta(min_length=1)] | None = None
    group: str | None = None
    key: str | None = None
    reason: str | None = None
    before: Annotated[int, msgspec.Meta(ge=0, le=_SAFE)] | None = None
    limit: Offset | None = None

    def fits(self, letter: DeadLetter) -> bool:
        """Whether the letter is what the members other than `offsets` and `limit` ask for."""
        return (
            (self.group is None or letter.group == self.group)
            and (self.key is None or letter.key == self.key)
            and (self.reason is None or self.reason in letter.reason)
            and (self.before is None or letter.ts < self.before)
        )


class ReadyState(msgspec.Struct, frozen=True, gc=False):
    """Whether the node takes requests, and if not, why."""

    ready: bool
    reason: str = ""
