"""What every engine promises, and what every engine needs to keep that promise in the same way.

The log holds two things. **Events** are rows in (topic, partition) with an offset; they are appended, read in order and
removed by retention or compaction, never changed. **Records** are everything else that must survive (topic settings,
group positions, attempts, schedules, run and beat journals, memory): a value under (space, key), with a version that
grows with every write, so that a writer can say "only if nobody was here before me".

There is one write path. A caller collects what it decided in a `Batch`; the batch happens entirely or not at all.
`Engine.commit` takes many batches and makes them durable together (group commit): one batch may be refused (an
expectation did not hold) while its neighbours stand. When `commit` returns, what it reports is on stable storage.

Offsets are given by the engine, start at 1 in each partition, only grow and are never used twice, also not after the
events were removed. Readers see an event only after it is durable, and never see offset n before n-1 is decided.

Versions grow with every write of any record and are never given twice, also not after a record was deleted and written
again: a guard on an old version can never hold by accident. They are not counted from 1 per record; compare them, do
not compute with them.

Operations of one batch act in their order, and a batch sees the effects of the batches before it in the same commit. A
`dedupe` is compared with the marks of the whole topic (a second try may have been routed to another partition) before
`expect` is looked at. The time of an `Append` is its own `ts`: an engine never asks a clock.

Nothing damaged is ever handed out. `read` and `outline` give what lies before a damaged event; when the damaged event
is the first one they would give, they raise `DamagedEvent`, and the caller may go on at `error.offset + 1`. `get` and
`scan` raise `DamagedRecord`; a scan goes on with `after=error.key`.

Leases shared by several nodes need no methods of their own: a lease is a record, taken and renewed with
`Put(expect=version)`, and its version is the epoch. A batch that must not happen after the lease was lost carries a
`Guard` on that record.

Operations and what moves between engines (`Restorable`) also travel between nodes, as tagged arrays: their fields keep
their order for ever, and a new one is added at the end, with a default.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec
import uuid_utils

from mainspring.errors import MainspringError, MissingExtra
from mainspring.loop import Clock

# What other packages import from `mainspring.log`. The rest is for engines.
__all__ = [
    "ABSENT",
    "ANY_VERSION",
    "OUTGOING",
    "Append",
    "AppendMany",
    "Appended",
    "Batch",
    "Bounds",
    "Change",
    "DamagedEvent",
    "DamagedRecord",
    "Delete",
    "DirectEngine",
    "Durability",
    "Engine",
    "EngineFactory",
    "EngineSetup",
    "EngineTransaction",
    "FallibleEngine",
    "FormatError",
    "Guard",
    "InDoubt",
    "Inspection",
    "KeptRecord",
    "KeptTail",
    "LogAccess",
    "LogDamaged",
    "LogExists",
    "LogGone",
    "LogLocked",
    "LogMissing",
    "LogUnavailable",
    "Mark",
    "MissedTooMuch",
    "Operation",
    "Outline",
    "Prepared",
    "Progress",
    "Put",
    "ReadThrough",
    "Receipt",
    "Record",
    "Refused",
    "Remove",
    "Restorable",
    "Result",
    "Room",
    "RoomyEngine",
    "SharedEngine",
    "StoredEvent",
    "TimedEngine",
    "TransactionalEngine",
    "Unmarked",
    "add_prepared",
    "change_of",
]

K = TypeVar("K")
V = TypeVar("V")

ANY_VERSION: Final = -1
ABSENT: Final = 0  # the version of a record that does not exist


class Append(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="a"):
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


_TEXT: Final[frozenset[type]] = frozenset({str})
_TEXT_OR_NONE: Final[frozenset[type]] = frozenset({str, type(None)})
_BYTES: Final[frozenset[type]] = frozenset({bytes})
_BYTES_OR_NONE: Final[frozenset[type]] = frozenset({bytes, type(None)})


def _check_column(column: Sequence[object], types: frozenset[type]) -> None:
    found = set(map(type, column))
    if not found <= types:
        raise TypeError(f"a column holds {', '.join(sorted(each.__name__ for each in found - types))}")
    if str in types:
        joined = "".join(filter(None, column))  # type: ignore[arg-type]
        if not joined.isascii():
            joined.encode()


class AppendMany(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="n"):
    """Events to be stored behind each other in one partition, as columns: all have one time.

    It does what as many `Append` would do, for a fraction of the work. Only engines with `takes_many = True` get it.
    Columns have one entry for each event, at least one; `keys` and `headers` are None where no event has any. `dedupe`
    stands for all of them: while it is remembered, nothing is stored and the receipt has the offset of the first event
    that was. It must not be used for a different number of events.
    """

    topic: str
    partition: int
    ts: int
    ids: list[str]
    payloads: list[bytes]
    keys: list[str | None] | None = None
    headers: list[bytes | None] | None = None
    dedupe: str | None = None
    dedupe_until: int = 0

    def check(self) -> None:
        """Raise TypeError or UnicodeEncodeError for what cannot be stored."""
        columns = (self.payloads, self.keys, self.headers)
        if not self.ids or any(column is not None and len(column) != len(self.ids) for column in columns):
            raise TypeError("the columns of `AppendMany` have no event, or not the same number of them")
        _check_column(self.ids, _TEXT)
        _check_column(self.payloads, _BYTES)
        if self.keys is not None:
            _check_column(self.keys, _TEXT_OR_NONE)
        if self.headers is not None:
            _check_column(self.headers, _BYTES_OR_NONE)

    def each(self) -> list[Append]:
        """The same, event by event."""
        nothing: list[None] = [None] * len(self.ids)
        columns = zip(self.ids, self.payloads, self.keys or nothing, self.headers or nothing, strict=True)
        topic, partition, ts = self.topic, self.partition, self.ts
        return [Append(topic, partition, id, ts, payload, key, headers) for id, payload, key, headers in columns]

    def first(self) -> Append:
        """The first one, with what all of them have."""
        return Append(
            self.topic,
            self.partition,
            self.ids[0],
            self.ts,
            self.payloads[0],
            self.keys[0] if self.keys else None,
            self.headers[0] if self.headers else None,
            self.dedupe,
            self.dedupe_until,
        )


class Put(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="p"):
    """Write one record. `expect` is the version it must have now (`ABSENT`, a version, or `ANY_VERSION`).

    Space and key have at least one character.
    """

    space: str
    key: str
    value: bytes
    expect: int = ANY_VERSION


class Delete(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="d"):
    """Delete a record. With `expect` the batch is refused unless the record has that version."""

    space: str
    key: str
    expect: int = ANY_VERSION


class Guard(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="g"):
    """Refuse the batch unless the record has this version; writes nothing."""

    space: str
    key: str
    version: int


class Unmarked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="u"):
    """Refuse the batch (`seen_before`) while this `dedupe` is remembered at `ts`; `actual` is then its event's offset.

    Only engines with `takes_many = True` get it.
    """

    topic: str
    dedupe: str
    ts: int


class Remove(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="r"):
    """Remove events: all below `below`, and exactly `offsets` (compaction). Their offsets are never given again.

    Offsets that hold nothing, now or ever, are passed over. A remove of very many events holds up every writer behind
    it: `Log.trim` removes in steps.
    """

    topic: str
    partition: int
    below: int = 0
    offsets: tuple[int, ...] = ()


Operation = Append | AppendMany | Put | Delete | Guard | Remove | Unmarked


class Batch(msgspec.Struct):
    """What belongs together: all of it is stored, or nothing."""

    operations: list[Operation] = msgspec.field(default_factory=list)
    more: int = 0  # events, beyond one for each operation

    def size(self) -> int:
        """How many operations it is, where each event counts as one."""
        return len(self.operations) + self.more

    def append(self, event: Append) -> None:
        """Append an event to its partition."""
        self.operations.append(event)

    def append_many(self, events: AppendMany) -> None:
        """Append events to their partition."""
        self.operations.append(events)
        self.more += len(events.ids) - 1

    def put(self, space: str, key: str, value: bytes, *, expect: int = ANY_VERSION) -> None:
        """Write a record; with `expect`, only over that version (ABSENT: only where there is none)."""
        self.operations.append(Put(space, key, value, expect))

    def delete(self, space: str, key: str, *, expect: int = ANY_VERSION) -> None:
        """Delete a record; with `expect`, only that version of it."""
        self.operations.append(Delete(space, key, expect))

    def guard(self, space: str, key: str, version: int) -> None:
        """Refuse the whole batch unless the record has this version now."""
        self.operations.append(Guard(space, key, version))

    def remove(self, topic: str, partition: int, *, below: int = 0, offsets: tuple[int, ...] = ()) -> None:
        """Remove the events of a partition below an offset, and those at `offsets`."""
        self.operations.append(Remove(topic, partition, below, offsets))


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a committed batch got.

    `offsets` has one entry per `Append`, in order: (partition, offset, duplicate). A duplicate is an event whose
    `dedupe` was seen before; partition and offset are the first one's and nothing was stored. An `AppendMany` has one
    entry, too, with the offset of its first event; the others follow, also where it is a duplicate. `versions` has one
    entry per `Put`, in order.
    """

    offsets: tuple[tuple[int, int, bool], ...] = ()
    versions: tuple[int, ...] = ()


class Prepared(msgspec.Struct, frozen=True):
    """Events that are published by storing `operations` in a batch of someone else's (`add_prepared`).

    Once that batch is durable, `stored` is called with a receipt of their own appends, in the log's callback.
    """

    operations: Sequence[Operation]
    stored: Callable[[Receipt], object]


def add_prepared(batch: Batch, prepared: Iterable[Prepared]) -> Callable[[Receipt], None]:
    """Put prepared events into a batch; call the function this gives with the batch's receipt once it is durable."""
    parts: list[tuple[Prepared, int, int]] = []
    end = _count_appends(batch.operations)
    for each in prepared:
        batch.operations.extend(each.operations)
        start, end = end, end + _count_appends(each.operations)
        parts.append((each, start, end))

    def stored(receipt: Receipt) -> None:
        for each, start, end in parts:
            each.stored(Receipt(offsets=receipt.offsets[start:end]))

    return stored


def _count_appends(operations: Iterable[Operation]) -> int:
    return sum(isinstance(operation, Append | AppendMany) for operation in operations)


class StoredEvent(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="e"):
    """An event as the log has it. `ts` is epoch ms; payload and headers are the bytes of JSON texts."""

    topic: str
    partition: int
    offset: int
    id: str
    ts: int
    payload: bytes
    key: str | None = None
    headers: bytes | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A value under a key of a space. Versions grow with every write, over all records, and never repeat."""

    key: str
    value: bytes
    version: int


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """Of one partition: the first readable offset and the last one given. Empty: head = tail + 1.

    `events` and `bytes` are what the partition holds now; an event's bytes are those of its payload, headers, key and
    id.
    """

    partition: int
    head: int
    tail: int
    events: int = 0
    bytes: int = 0


class Outline(msgspec.Struct, frozen=True, gc=False):
    """What retention and compaction need to know of an event. `tombstone`: its payload is JSON `null`."""

    offset: int
    key: str | None
    ts: int
    bytes: int
    tombstone: bool


class KeptTail(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="t"):
    """The last offset given in a partition, also when the events up to it are gone."""

    topic: str
    partition: int
    tail: int


class KeptRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="k"):
    """A record with its space, as it travels between engines."""

    space: str
    key: str
    value: bytes
    version: int


class Mark(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="m"):
    """A remembered `dedupe` of a topic, and where its event went."""

    topic: str
    dedupe: str
    partition: int
    offset: int
    until: int


Restorable = StoredEvent | KeptTail | KeptRecord | Mark


class Refused(MainspringError):
    """An expectation of the batch did not hold; nothing of it was stored.

    `actual` is what was found instead: the partition's last offset, or the record's version.
    """

    code = "conflict"

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None, actual: int | None = None) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.actual = actual


class LogUnavailable(MainspringError):
    """The engine cannot write now (disk full, I/O error, server away). Nothing of the batch was stored; try again."""

    code = "log_unavailable"


class InDoubt(LogUnavailable):
    """The server went away before it answered: the batch may have been stored, or may still be.

    Only engines on other machines raise it: one with a file of its own sees to it that nothing was stored. A caller
    that tries again must make a second storing harmless: a `dedupe`, or the version a record had before.
    """

    code = "in_doubt"


class MissedTooMuch(LogUnavailable):
    """This node was away for longer than the engine keeps changes for it. What it knows is outdated; start it again."""

    code = "missed_too_much"


class LogGone(LogUnavailable):
    """The log's files were removed or replaced while it was open. Nothing can be written until it is opened again."""

    code = "log_gone"


class LogLocked(MainspringError):
    """Another process owns this log."""

    code = "log_locked"


class LogAccess(MainspringError):
    """The server is there and does not let this node in."""

    code = "log_access"


class LogMissing(MainspringError):
    """There is no log, or no export, where one was looked for."""

    code = "no_log"


def log_gone(what: str) -> LogMissing:
    """What to raise instead of beginning an empty log where one was."""
    return LogMissing(
        f"{what}; nothing was made in its place",
        remedy="check the address; restore the log from a backup, or make one of what a node has kept "
        "(`mainspring engine recover`); `mainspring engine init --begin-anew` begins an empty log",
    )


class LogExists(MainspringError):
    """Something is already where a new log, export or backup should go. It was left alone."""

    code = "exists"


class FormatError(MainspringError):
    """The stored format is unknown to this version, or what is stored is not a log."""

    code = "log_format"


class LogDamaged(FormatError):
    """The log's files do not belong together, or hide commits that were acknowledged. They were left as they are."""

    code = "log_damaged"


class DamagedEvent(MainspringError):
    """A stored event's checksum does not fit its bytes. It is reported and never served.

    `remains` is what lies there, as far as it can be read; none of it is certain.
    """

    code = "damaged_event"

    def __init__(self, topic: str, partition: int, offset: int, remains: StoredEvent | None = None) -> None:
        super().__init__(
            f"the event at offset {offset} of {topic!r} partition {partition} is damaged",
            remedy="run `mainspring log check` for the extent; restore from a backup, or go on behind it",
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.remains = remains


class DamagedRecord(MainspringError):
    """A stored record's checksum does not fit its bytes. It is reported and never served."""

    code = "damaged_record"

    def __init__(self, space: str, key: str, version: int = 0) -> None:
        super().__init__(
            f"the record {key!r} in {space!r} is damaged",
            remedy="run `mainspring log check` for the extent; restore from a backup, or write the record again",
        )
        self.space = space
        self.key = key
        self.version = version  # under which it can be written over, as far as that can be told


Result = Receipt | MainspringError


class Durability(msgspec.Struct, frozen=True):
    """What an acknowledgement of the engine means. `durable`: it survives the loss of power of every machine.

    `known`: the servers said so. Otherwise one of them could not be asked, and the worst is assumed.
    """

    durable: bool
    statement: str
    known: bool = True


class Engine(Protocol):
    """One place where the log rests. Methods may be called from one asyncio loop only; `commit` calls may overlap."""

    name: str

    async def open(self) -> None:
        """Open or create; checks the format's version and what boot can check quickly."""

    async def close(self) -> None:
        """Finish what was accepted, then release everything. Idempotent."""

    async def durability(self) -> Durability:
        """What an acknowledgement means, as the engine and its server are configured now."""
        ...

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        """Make the batches durable, in order. One result per batch: its receipt, or why it was refused."""

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        """Durable events from offset `start` on, ascending; holes are skipped. At least one if there is one."""

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        """Like `read`, without the payloads."""

    async def topics(self) -> list[str]:
        """Those that ever held an event, ascending."""

    async def bounds(self, topic: str) -> list[Bounds]:
        """Of each partition that ever held an event, ascending."""

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        """The lowest offset whose event has `ts` or later; tail + 1 when there is none."""

    async def get(self, space: str, key: str) -> Record | None:
        """The record, or None. Raises DamagedRecord when its bytes are not what was written."""
        ...

    def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        """Records whose key starts with `prefix` and is greater than `after`, ascending by code point.

        Each record is as it was when the scan came by: a long scan is not one moment in time.
        """

    async def spaces(self) -> list[str]:
        """Those that hold a record, ascending."""

    def marks(self) -> AsyncIterator[Mark]:
        """The dedupe marks, by topic and text."""

    async def forget_dedupe(self, now: int) -> int:
        """Drop dedupe marks whose time is up (`until` before `now`); how many."""

    async def restore(self, items: Sequence[Restorable]) -> None:
        """Store what another engine gave out, with its offsets and versions. For moving into a fresh engine only.

        Offsets of a partition must ascend; a `KeptTail` comes after its partition's events. Durable when it returns.
        """


@runtime_checkable
class DirectEngine(Protocol):
    """An engine that takes a commit without a coroutine: one task less for each commit.

    `done` is called once, in any thread, with what `commit` would have returned. It must be quick and must not raise.
    """

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        """Commit, and call `done` with the results; see the class."""
        ...


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Events that are readable now: offsets `first` to `last` of one partition."""

    topic: str
    partition: int
    first: int
    last: int


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one committed batch changed, or several of one commit that only append. `own`: they were this node's.

    A record that was deleted has the version `ABSENT` and no value.
    """

    own: bool
    appended: tuple[Appended, ...] = ()
    records: tuple[KeptRecord, ...] = ()
    removed: tuple[Remove, ...] = ()


@runtime_checkable
class SharedEngine(Protocol):
    """An engine that several nodes have open at the same time, and that reports to each what all of them commit."""

    def watch(self, seen: Callable[[Change], None]) -> None:
        """Call `seen` in the loop's thread for every batch committed from now on, by any node, in the log's order.

        What it reports is readable here. The change of an own batch is reported before its `commit` returns.
        """


OUTGOING: Final = "outgoing"  # the space of what programs stored in transactions of their own


@runtime_checkable
class TransactionalEngine(Protocol):
    """An engine in a database in which programs have tables of their own, so that both can be one transaction.

    What a program stored in its own transaction is found in the space `OUTGOING`, under keys in the order of storing;
    a batch that deletes it there and appends its event moves it into the log, once.
    """

    def on_outgoing(self, callback: Callable[[], object]) -> None:
        """Call when something may be new in the space `OUTGOING`."""

    def transaction(self) -> AbstractAsyncContextManager[EngineTransaction]:
        """A transaction in which a program writes its rows, and which ends with a commit of the log."""
        ...


class EngineTransaction(Protocol):
    """One transaction of a program and the log."""

    connection: Any  # of the engine's driver, inside the transaction

    async def commit(self, batch: Batch) -> Result:
        """Store the batch and what was done on the connection together, or neither.

        Gives `Refused` when the batch's expectations do not hold. Raises what the driver raises for the program's own
        statements, `LogUnavailable` when nothing was stored, and `InDoubt` when that is not known.
        """
        ...


@runtime_checkable
class FallibleEngine(Protocol):
    """An engine that may come to a point from which it cannot go on: the node has to be started again."""

    def on_failure(self, callback: Callable[[MainspringError], object]) -> None:
        """Call with the reason when it has come to that; at once if it has already."""


@runtime_checkable
class TimedEngine(Protocol):
    """An engine whose servers say what time it is. Nodes go by that one clock: their own need not agree."""

    async def time_ms(self) -> int:
        """Epoch ms, by the clock of the servers now. Raises `LogUnavailable`."""
        ...


class Room(msgspec.Struct, frozen=True, gc=False):
    """Room where the log is, in bytes: of the file system or the servers, and what the log takes there.

    `reusable` is what the log takes and does not use: it is written to before `free` is.
    """

    total: int
    free: int
    size: int
    reusable: int = 0


@runtime_checkable
class RoomyEngine(Protocol):
    """An engine that knows how much room there is for the log."""

    async def room(self) -> Room | None:
        """How much there is now; None where its servers do not say. Raises `LogUnavailable`."""
        ...


# -- finding, opening and preparing an engine


class EngineSetup(msgspec.Struct, frozen=True):
    """What an engine gets beside its address. Fields may be added."""

    data_dir: Path  # for what an engine keeps on this machine
    clock: Clock | None = None  # for engines that wait for servers; the embedded ones never ask what time it is
    database: str = "mainspring"  # for engines that keep the log in one, unless the address names it
    begin_anew: bool = False  # of `init`: make an empty log also where one was and is gone
    new_id: Callable[[], str] = lambda: str(uuid_utils.uuid7())  # for engines that tell nodes or logs apart


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What is at an engine's address.

    `log`: whether there is one. `missing`: what `mainspring engine init` would make. `format`: the version of what is
    stored, `knows` the newest this program reads. `replicas`: how many servers keep a copy, if the engine can tell;
    `wanted_replicas`: how many the address asks for, if it does. `durability`: what an acknowledgement means, if that
    is certain before there is a log. `loss_window_s`: how many seconds of acknowledged commits a loss of power
    everywhere may take; None when that is not known, or when all of them may be lost. `gone`: there is no log, and
    something that is left shows that there was one.
    """

    place: str
    log: bool
    knows: int
    format: int | None = None
    missing: tuple[str, ...] = ()
    replicas: int | None = None
    wanted_replicas: int | None = None
    durability: Durability | None = None
    loss_window_s: float | None = None
    gone: bool = False


class EngineFactory(Protocol):
    """One kind of engine, before any engine of it exists. Packages offer theirs as an entry point (see `registry`).

    Importing it must work without the driver that the engine needs: `open`, `inspect` and `init` import that, and raise
    `MissingExtra` when it is not installed.
    """

    package: str  # the distribution that holds the driver, as `pip` knows it; empty if none is needed
    install: str  # the command that installs it

    def open(self, address: str, setup: EngineSetup) -> Engine:
        """The engine at this address, ready for its `open`. Raises `SettingError` for an address that cannot be one."""
        ...

    async def inspect(self, address: str, setup: EngineSetup) -> Inspection:
        """Look, without making or changing anything there. Raises what the engine's `open` would raise."""
        ...

    async def init(self, address: str, setup: EngineSetup) -> list[str]:
        """Make what the log needs; what was made, in words. Harmless when it is all there, and beside running nodes."""
        ...


class PluginFactory:
    """An engine whose driver may not be installed.

    `home` names the module that offers `open_engine`, `inspect` and `init`, with the parameters of `EngineFactory`. It
    is imported when it is needed, after `driver`.
    """

    def __init__(self, scheme: str, *, driver: str, package: str, install: str, home: str) -> None:
        self.package = package
        self.install = install
        self._scheme, self._driver, self._home = scheme, driver, home

    def open(self, address: str, setup: EngineSetup) -> Engine:
        engine: Engine = self._module().open_engine(address, setup)
        return engine

    async def inspect(self, address: str, setup: EngineSetup) -> Inspection:
        found: Inspection = await self._module().inspect(address, setup)
        return found

    async def init(self, address: str, setup: EngineSetup) -> list[str]:
        made: list[str] = await self._module().init(address, setup)
        return made

    def _module(self) -> Any:
        try:
            import_module(self._driver)
        except ImportError:
            raise MissingExtra(
                f"the engine {self._scheme}:// needs the package {self.package}", remedy=self.install
            ) from None
        return import_module(self._home)


# -- helpers for writing an engine: every engine must answer alike


MAX_PARTITION = (1 << 31) - 1
MAX_INT = (1 << 63) - 1
MIN_INT = -MAX_INT


def event_bytes(event: Append | StoredEvent) -> int:
    """The bytes of payload, headers, key and id: what retention by size counts."""
    id, key, headers = event.id, event.key, event.headers
    size = len(event.payload) + (len(id) if id.isascii() else len(id.encode()))
    if key is not None:
        size += len(key) if key.isascii() else len(key.encode())
    if headers is not None:
        size += len(headers)
    return size


def is_tombstone(payload: bytes) -> bool:
    """A tombstone's payload is JSON `null`; JSON allows white space around it."""
    return len(payload) < 64 and payload.strip(b" \t\r\n") == b"null"


def outline_of(event: StoredEvent) -> Outline:
    return Outline(event.offset, event.key, event.ts, event_bytes(event), is_tombstone(event.payload))


def within_bytes(events: Iterable[StoredEvent], max_bytes: int) -> list[StoredEvent]:
    """The first of the events, as many as fit; at least one if there is one."""
    found: list[StoredEvent] = []
    for event in events:
        max_bytes -= event_bytes(event)
        if max_bytes < 0 and found:
            break
        found.append(event)
    return found


def groups(sizes: Iterable[int], most: int) -> Iterator[range]:
    """Indexes of what goes together: in order, as many each time as `most` allows, at least one."""
    start = total = end = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            yield range(start, index)
            start, total = index, 0
        total += size
        end = index + 1
    if end:
        yield range(start, end)


def end_of_prefix(prefix: str) -> str | None:
    """The lowest text, by code point, above every text that starts with `prefix`; None when there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)


def tail_conflict(event: Append, actual: int) -> Refused:
    return Refused(
        f"{event.topic!r} partition {event.partition} ends at offset {actual}, not {event.expect}",
        remedy="read what was published meanwhile and decide again",
        actual=actual,
    )


def version_conflict(space: str, key: str, expect: int, actual: int) -> Refused:
    if actual == ABSENT:
        found = "does not exist"
    elif expect == ABSENT:
        found = f"already exists (version {actual})"
    else:
        found = f"is at version {actual}, not {expect}"
    return Refused(
        f"the record {key!r} in {space!r} {found}", remedy="read the record again and decide again", actual=actual
    )


def seen_before(unmarked: Unmarked, offset: int) -> Refused:
    return Refused(f"{unmarked.dedupe!r} was stored before, at offset {offset}", code="seen_before", actual=offset)


def bad_text() -> Refused:
    return Refused("a text holds a lone surrogate", remedy="send well-formed Unicode", code="bad_text")


def not_storable(event: Append) -> Refused | None:
    """Why an event can never be stored, whatever the state of the log; None when it can."""
    try:
        for text in (event.topic, event.id, event.key, event.dedupe):
            if text is not None:
                text.encode()
    except UnicodeEncodeError:
        return bad_text()
    if not 0 <= event.partition <= MAX_PARTITION:
        return Refused(f"partition {event.partition} is out of range", remedy="use 0 or more", code="bad_partition")
    for time in (event.ts, event.dedupe_until):
        if not MIN_INT <= time <= MAX_INT:
            return Refused(f"the time {time} is out of range", remedy="use epoch milliseconds", code="bad_time")
    return None


def are_well_formed(*texts: str) -> bool:
    """Whether these are Unicode that can be stored, and so be looked up."""
    try:
        for text in texts:
            text.encode()
    except (UnicodeEncodeError, AttributeError):
        return False
    return True


Place = tuple[str, str]  # (space, key) of a record, or (topic, dedupe) of a mark


def lookups_for(batches: Iterable[Batch], *, of_marks: bool = True) -> tuple[dict[Place, None], dict[Place, None]]:
    """What must be known before the batches can be decided: records whose version matters, and marks that may exist.

    Texts that no engine can hold are left out; deciding refuses them. Without `of_marks`, only those of `Unmarked`.
    """
    versions: dict[Place, None] = {}
    marks: dict[Place, None] = {}
    for batch in batches:
        for operation in batch.operations:
            if type(operation) is Append or type(operation) is AppendMany or type(operation) is Unmarked:
                if not of_marks and type(operation) is not Unmarked:
                    continue
                if operation.dedupe is not None and are_well_formed(operation.topic, operation.dedupe):
                    marks[operation.topic, operation.dedupe] = None
            elif isinstance(operation, Guard | Put | Delete):
                matters = isinstance(operation, Guard) or operation.expect != ANY_VERSION
                if matters and are_well_formed(operation.space, operation.key):
                    versions[operation.space, operation.key] = None
    return versions, marks


class BatchPlanner:
    """Decides batches one after the other, each entirely or not at all: its operations act in their order.

    An engine says how its state changes. Whatever it changes goes with a step of `_undo` that takes it back: when an
    operation is refused, what the batch did before it is undone, last step first.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def _append(self, event: Append) -> tuple[int, int, bool]:
        """Give the event an offset: what a receipt says of it. Raises `Refused`."""
        raise NotImplementedError

    def _append_many(self, events: AppendMany) -> tuple[int, int, bool]:
        """Give them offsets that follow each other: what a receipt says of the first. Raises `Refused`."""
        events.check()
        first = self._append(events.first())
        if not first[2]:
            for event in events.each()[1:]:
                self._append(event)
        return first

    def _unmarked(self, unmarked: Unmarked) -> None:
        """Raises `Refused`, as `seen_before` makes it."""
        raise NotImplementedError

    def _remove(self, remove: Remove) -> None:
        raise NotImplementedError

    def _version_of(self, space: str, key: str) -> int:
        """Of the record as it is now, after the operations before."""
        raise NotImplementedError

    def _write(self, space: str, key: str, value: bytes | None) -> int:
        """Write the record, or delete it (None); gives its version. Raises `UnicodeEncodeError`."""
        raise NotImplementedError

    def _decide(self, batch: Batch) -> Result:
        """The batch's receipt, or why nothing of it happens."""
        offsets: list[tuple[int, int, bool]] = []
        versions: list[int] = []
        self._undo.clear()
        try:
            for operation in batch.operations:
                if type(operation) is Append:
                    offsets.append(self._append(operation))
                elif type(operation) is AppendMany:
                    offsets.append(self._append_many(operation))
                elif type(operation) is Put:
                    versions.append(self._put(operation))
                elif type(operation) is Delete:
                    self._delete(operation)
                elif type(operation) is Guard:
                    self._check_version(operation.space, operation.key, operation.version)
                elif type(operation) is Remove:
                    self._remove(operation)
                elif type(operation) is Unmarked:
                    self._unmarked(operation)
                else:
                    raise Refused(f"{type(operation).__name__} is not an operation of the log", code="bad_operation")
        except (Refused, UnicodeEncodeError, TypeError, AttributeError) as error:
            self._take_back()
            if isinstance(error, Refused):
                return error
            if isinstance(error, UnicodeEncodeError):
                return bad_text()
            return Refused(f"an operation holds a value of the wrong type: {error}", code="bad_operation")
        return Receipt(tuple(offsets), tuple(versions))

    def _take_back(self) -> None:
        for step in reversed(self._undo):
            step()

    def _put(self, put: Put) -> int:
        if not put.space or not put.key:
            raise Refused("a record needs a space and a key", remedy="give both at least one character")
        if put.value is None:
            raise TypeError("a record's value is None")  # which is how `_write` deletes
        self._check_version(put.space, put.key, put.expect)
        return self._write(put.space, put.key, put.value)

    def _delete(self, delete: Delete) -> None:
        delete.space.encode()
        delete.key.encode()
        self._check_version(delete.space, delete.key, delete.expect)
        self._write(delete.space, delete.key, None)

    def _check_version(self, space: str, key: str, expect: int) -> None:
        if expect != ANY_VERSION and (actual := self._version_of(space, key)) != expect:
            raise version_conflict(space, key, expect, actual)

    def _set(self, held: dict[K, V], place: K, value: V) -> None:
        """Set an entry of a dictionary, and note how to take that back."""
        before = {place: held[place]} if place in held else None
        held[place] = value

        def restore() -> None:
            if before is None:
                del held[place]
            else:
                held.update(before)

        self._undo.append(restore)


def change_of(batch: Batch, receipt: Receipt, *, own: bool) -> Change:
    """What the batch changed. Events that follow each other in a partition are one `Appended`."""
    appended: list[Appended] = []
    records: list[KeptRecord] = []
    removed: list[Remove] = []
    offsets, versions = iter(receipt.offsets), iter(receipt.versions)
    for operation in batch.operations:
        if isinstance(operation, Append):
            partition, offset, duplicate = next(offsets)
            if not duplicate:
                extend_appended(appended, operation.topic, partition, offset)
        elif isinstance(operation, Put):
            records.append(KeptRecord(operation.space, operation.key, operation.value, next(versions)))
        elif isinstance(operation, Delete):
            records.append(KeptRecord(operation.space, operation.key, b"", ABSENT))
        elif isinstance(operation, Remove):
            removed.append(operation)
    return Change(own, tuple(appended), tuple(records), tuple(removed))


def extend_appended(appended: list[Appended], topic: str, partition: int, offset: int) -> None:
    last = appended[-1] if appended else None
    if last is not None and (last.topic, last.partition, last.last + 1) == (topic, partition, offset):
        appended[-1] = Appended(topic, partition, last.first, offset)
    else:
        appended.append(Appended(topic, partition, offset, offset))


class Watched:
    """An engine that reports what is committed (`SharedEngine`)."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[Change], None]] = []

    def watch(self, seen: Callable[[Change], None]) -> None:
        self._watchers.append(seen)

    def _report(self, change: Change) -> None:
        """A watcher that fails is reported to the loop; the others learn of the change all the same."""
        for seen in self._watchers:
            try:
                seen(change)
            except Exception as error:
                context = {"message": f"a watcher of the log failed: {seen!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


class ReadThrough:
    """The reading methods of an engine, answered by another one."""

    def __init__(self, source: Engine) -> None:
        self._source = source

    def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> Coroutine[Any, Any, list[StoredEvent]]:
        return self._source.read(topic, partition, start, limit, max_bytes)

    def outline(self, topic: str, partition: int, start: int, limit: int) -> Coroutine[Any, Any, list[Outline]]:
        return self._source.outline(topic, partition, start, limit)

    def topics(self) -> Coroutine[Any, Any, list[str]]:
        return self._source.topics()

    def bounds(self, topic: str) -> Coroutine[Any, Any, list[Bounds]]:
        return self._source.bounds(topic)

    def offset_at(self, topic: str, partition: int, ts: int) -> Coroutine[Any, Any, int]:
        return self._source.offset_at(topic, partition, ts)

    def get(self, space: str, key: str) -> Coroutine[Any, Any, Record | None]:
        return self._source.get(space, key)

    def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        return self._source.scan(space, prefix, after)

    def spaces(self) -> Coroutine[Any, Any, list[str]]:
        return self._source.spaces()

    def marks(self) -> AsyncIterator[Mark]:
        return self._source.marks()


class Progress(Protocol):
    """Called now and then with what is being done, how much of it is done, and of how many (0 when not known)."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def silent(what: str, done: int, total: int) -> None:
    """Reports no progress."""
