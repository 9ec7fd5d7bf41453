"""What every engine promises: the contract that memory, SQLite, MongoDB and JetStream all keep.

The log holds two things. **Events** are rows in (topic, partition) with an offset; they are appended, read in order and
removed by retention or compaction, never changed. **Records** are everything else that must survive (topic settings,
group positions, attempts, schedules, run and beat journals, memory): a value under (space, key), with a version that
grows with every write, so that a writer can say "only if nobody was here before me".

There is one write path. A caller collects what it decided in a `Batch`; the batch happens entirely or not at all.
`Engine.commit` takes many batches and makes them durable together (group commit): one batch may be refused (an
expectation did not hold) while its neighbours stand. When `commit` returns, what it reports is on stable storage.

Offsets are given by the engine, start at 1 in each partition, only grow and are never used twice, also not after the
events were removed. Readers see an event only after it is durable, and never see offset n before n-1 is decided.

Leases shared by several nodes need no methods of their own: a lease is a record, taken and renewed with
`Put(expect=version)`, and its version is the epoch. A batch that must not happen after the lease was lost carries a
`Guard` on that record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from mainspring.errors import MainspringError

ANY_VERSION: Final = -1
ABSENT: Final = 0  # the version of a record that does not exist


class Append(msgspec.Struct, frozen=True, gc=False):
    """One event to be stored. `payload` and `headers` are JSON text, kept byte for byte as they arrived."""

    topic: str
    partition: int
    id: str
    ts: int  # epoch ms
    payload: bytes
    key: str | None = None
    headers: bytes | None = None  # a JSON object of strings
    dedupe: str | None = None  # the same text within the dedupe window gives the first offset again
    dedupe_until: int = 0  # epoch ms until which `dedupe` is remembered
    expect: int | None = None  # refuse the batch unless this is the partition's last offset


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write one record. `expect` is the version it must have now (`ABSENT`, a version, or `ANY_VERSION`)."""

    space: str
    key: str
    value: bytes
    expect: int = ANY_VERSION


class Delete(msgspec.Struct, frozen=True, gc=False):
    space: str
    key: str
    expect: int = ANY_VERSION


class Guard(msgspec.Struct, frozen=True, gc=False):
    """Refuse the batch unless the record has this version; writes nothing."""

    space: str
    key: str
    version: int


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Remove events: all below `below`, or exactly `offsets` (compaction). Their offsets are never given again."""

    topic: str
    partition: int
    below: int = 0
    offsets: tuple[int, ...] = ()


Operation = Append | Put | Delete | Guard | Remove


class Batch(msgspec.Struct):
    """What belongs together: all of it is stored, or nothing."""

    operations: list[Operation] = msgspec.field(default_factory=list)

    def append(self, event: Append) -> None:
        self.operations.append(event)

    def put(self, space: str, key: str, value: bytes, *, expect: int = ANY_VERSION) -> None:
        self.operations.append(Put(space, key, value, expect))

    def delete(self, space: str, key: str, *, expect: int = ANY_VERSION) -> None:
        self.operations.append(Delete(space, key, expect))

    def guard(self, space: str, key: str, version: int) -> None:
        self.operations.append(Guard(space, key, version))


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a committed batch got.

    `offsets` has one entry per `Append`, in order: (partition, offset, duplicate). A duplicate is an event whose
    `dedupe` was seen before; the offset is the first one's and nothing was stored. `versions` has one entry per `Put`.
    """

    offsets: tuple[tuple[int, int, bool], ...] = ()
    versions: tuple[int, ...] = ()


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int
    id: str
    ts: int
    payload: bytes
    key: str | None = None
    headers: bytes | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    key: str
    value: bytes
    version: int


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """Of one partition: the first readable offset and the last one given. Empty: head = tail + 1."""

    partition: int
    head: int
    tail: int


class Refused(MainspringError):
    """An expectation of the batch did not hold; nothing of it was stored."""

    code = "conflict"


class LogUnavailable(MainspringError):
    """The engine cannot write now (disk full, I/O error, server away). Nothing of the batch was stored; try again."""

    code = "log_unavailable"


class DamagedEvent(MainspringError):
    """A stored event's checksum does not fit its bytes. It is reported and never served."""

    code = "damaged"


class Engine(Protocol):
    """One place where the log rests. Methods may be called from one asyncio loop only; `commit` calls may overlap."""

    name: str

    async def open(self) -> None:
        """Open or create; checks the format's version and what boot can check quickly."""

    async def close(self) -> None:
        """Finish what was accepted, then let go. Idempotent."""

    async def commit(self, batches: Sequence[Batch]) -> list[Receipt | MainspringError]:
        """Make the batches durable, in order. One result per batch: its receipt, or why it was refused."""

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        """Durable events from offset `start` on, ascending; holes are skipped. At least one if there is one."""

    async def bounds(self, topic: str) -> list[Bounds]:
        """Of each partition that ever held an event."""

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        """The lowest offset whose event has `ts` or later; tail + 1 when there is none."""

    async def get(self, space: str, key: str) -> Record | None: ...

    def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        """Records whose key starts with `prefix` and is greater than `after`, ascending by code point."""

    async def forget_dedupe(self, now: int) -> int:
        """Drop dedupe marks whose time is up; how many."""
