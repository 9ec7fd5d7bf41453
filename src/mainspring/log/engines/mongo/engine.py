"""`MongoEngine`: the log in a MongoDB database, shared by any number of nodes.

A commit is planned from what this node knows, and stored by one insert into the journal; that insert is the whole
decision. What the entry says is then put in place in the collections that readers (and other tools) look at. Reads of
what is not in place yet are answered from memory or wait; they never show half of a commit that this node knows of.

The reasons are in docs/decisions/mongodb-engine.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any

from bson import ObjectId
from pymongo.errors import PyMongoError

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Batch,
    Bounds,
    Change,
    Durability,
    FormatError,
    Inspection,
    LogUnavailable,
    Mark,
    MissedTooMuch,
    Outline,
    Record,
    Restorable,
    Result,
    StoredEvent,
    outline_of,
)
from mainspring.log.engines.mongo import schema
from mainspring.log.engines.mongo.applier import Applier, JournalTrimmer, Placing
from mainspring.log.engines.mongo.committer import Committer, groups_of
from mainspring.log.engines.mongo.connection import (
    DEFAULT_DATABASE,
    MongoAddress,
    Patience,
    connect,
    database_of,
    describe,
    parse_address,
    translated,
)
from mainspring.log.engines.mongo.documents import record_of
from mainspring.log.engines.mongo.journal import Journal, JournalEntry, JournalFollower, PartitionStanding
from mainspring.log.engines.mongo.plan import RECENT_BYTES, MongoLogState, MongoPartition
from mainspring.log.engines.mongo.reader import PAGE, MongoReader
from mainspring.loop import BackgroundTasks, Clock, MonotonicClock

_logger = logging.getLogger(__name__)


def _ignore(_: str) -> None:
    pass


class MongoEngine:
    """The log at an address `mongodb://...`. Several engines, in any number of processes, may have it open at once.

    `recent_bytes` is how much of the newest events is kept in memory for readers. `step` is for tests: it gets the
    name of each write before it is sent.
    """

    name = "mongodb"

    def __init__(
        self,
        url: str,
        *,
        database: str = DEFAULT_DATABASE,
        clock: Clock | None = None,
        step: Callable[[str], object] = _ignore,
        recent_bytes: int = RECENT_BYTES,
    ) -> None:
        self.address: MongoAddress = parse_address(url, database)
        self._clock = clock or MonotonicClock()
        self._patience = Patience(self.address, self._clock)
        self._step = step
        self._recent_bytes = recent_bytes
        self._watchers: list[Callable[[Change], None]] = []
        self._client: Any = None
        self._database: Any = None
        self._tasks = BackgroundTasks(_logger, "the MongoDB engine")
        self._fault: MainspringError | None = None  # why this engine is of no use any more
        self._committing = asyncio.Lock()
        self._looking = asyncio.Lock()

    @property
    def reconnects(self) -> int:
        """How often the server was found again since the log was opened."""
        return 0 if self._client is None else self._follower.reconnects

    @property
    def losses(self) -> int:
        """How often a commit found its place in the journal taken and was planned again."""
        return 0 if self._client is None else self._committer.losses

    # -- opening and closing

    async def open(self) -> None:
        if self._client is not None:
            return
        self._node = str(ObjectId())
        client = connect(self.address)
        try:
            await self._start(client, database_of(client, self.address))
        except PyMongoError as error:
            await self._stop(client)
            raise translated(error, self.address.shown) from error
        except BaseException:
            await self._stop(client)
            raise

    async def _start(self, client: Any, database: Any) -> None:
        if not await schema.check_format(database):
            await schema.create(database)
        self._fault = None
        self._database = database
        self._reader = MongoReader(database)
        self._journal = Journal(database, self._node, self.address.shown, self._clock, self._step)
        position, version = max(await self._journal.applied(), await self._journal.floor())
        self._log_state = MongoLogState(position, version, await self._reader.standings(), self._recent_bytes)
        applier = Applier(database, self._step)
        self._placing = Placing(
            self._node, self._log_state, self._journal, applier, self._clock, self.address.takeover_ms
        )
        self._committer = Committer(
            self._log_state, self._journal, self._placing, self._reader, self, self._patience, self._clock
        )
        self._follower = JournalFollower(database, self._clock, self.address.poll_ms, self.look)
        while await self.look():
            pass
        self.tidying: JournalTrimmer = JournalTrimmer(
            self._log_state, self._journal, applier, self._clock, self.address.keep_ms
        )
        works = (self._follower.poll, self._follower.listen, self._placing.run, self.tidying.run)
        for work in works:
            self._tasks.start(self._keep(work), work.__name__)
        self._client = client

    async def close(self) -> None:
        if self._client is None:
            return
        async with self._committing:
            client = self._client
            if client is not None:
                with suppress(MainspringError):
                    await self._all_in_place()
                self._watchers.clear()
                await self._stop(client)

    async def _stop(self, client: Any) -> None:
        self._client = None
        await self._tasks.cancel(repeat_s=0.1)  # a cancellation that comes with an answer can be lost in the driver
        await client.close()

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the engine; what ends it ends the engine."""
        try:
            await work()
        except MainspringError as error:
            self._note(error)
        except Exception as error:
            self._fault = LogUnavailable(f"the engine failed: {type(error).__name__}: {error}", remedy="start again")
            context = {"message": "a task of the log's engine failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _note(self, error: MainspringError) -> None:
        """After some errors nothing that this engine knows can be trusted."""
        if isinstance(error, MissedTooMuch | FormatError):
            self._fault = error

    def _check(self) -> None:
        if self._client is None:
            raise LogUnavailable(f"the log at {self.address.shown} is not open", remedy="open it first")
        if self._fault is not None:
            raise self._fault

    # -- what other nodes do

    def watch(self, seen: Callable[[Change], None]) -> None:
        self._watchers.append(seen)

    async def durability(self) -> Durability:
        self._check()
        hello = await self._patience(lambda: self._client.admin.command("hello"))
        return describe(hello, self._client.write_concern.document)

    async def look(self) -> bool:
        """Take in what is new in the journal; whether there was something."""
        position = self._log_state.position
        async with self._looking:
            if self._log_state.position == position:
                for entry in await self._journal.after(position):
                    self.absorb(entry)
        return self._log_state.position != position

    def absorb(self, entry: JournalEntry) -> None:
        """Take in one entry of the journal, and tell who watches."""
        if entry.number != self._log_state.position + 1:
            return  # it came another way meanwhile
        self._log_state.absorb(entry)
        self._placing.add(entry)
        own = entry.node == self._node
        if own:
            self._follower.note_activity()
        else:
            self._committer.rival_at = entry.number
        for effects in entry.body.batches:
            change = effects.change(own)
            for seen in self._watchers:
                try:
                    seen(change)
                except Exception as error:
                    context = {"message": f"a watcher of the log failed: {seen!r}", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        results: list[Result] = []
        async with self._committing:
            for group in groups_of(batches):
                try:
                    self._check()
                    results += await self._committer.commit(group)
                except MainspringError as error:
                    self._note(error)
                    if not results:
                        raise
                    return results + [error] * (len(batches) - len(results))
        return results

    async def restore(self, items: Sequence[Restorable]) -> None:
        async with self._committing:
            self._check()
            await self._committer.restore(items)

    async def forget_dedupe(self, now: int) -> int:
        self._check()
        await self._all_in_place()
        self._log_state.forget_marks(now)
        marks = self._database[schema.MARKS]
        result = await self._patience(lambda: marks.delete_many({"until": {"$lt": now}}))
        return int(result.deleted_count)

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        self._check()
        found = self._log_state.recent(topic, partition, start, limit, max_bytes)
        if found is not None:
            return found
        at = await self._in_place(self._log_state.partitions[topic, partition])
        return await self._patience(lambda: self._reader.events(start, limit, max_bytes, at))

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        self._check()
        state = self._log_state.partitions.get((topic, partition))
        if state is None or limit <= 0:
            return []
        if (held := state.held(start)) is not None:
            return [outline_of(event) for event in islice(held, limit)]
        at = await self._in_place(state)
        return await self._patience(lambda: self._reader.outline(start, limit, at))

    async def topics(self) -> list[str]:
        self._check()
        return sorted({topic for topic, _ in self._log_state.partitions})

    async def bounds(self, topic: str) -> list[Bounds]:
        self._check()
        partitions = sorted(partition for name, partition in self._log_state.partitions if name == topic)
        return [await self._bounds(topic, partition) for partition in partitions]

    async def _bounds(self, topic: str, partition: int) -> Bounds:
        state = self._log_state.partitions[topic, partition]
        if (head := state.head()) is not None:
            now = state.standing
            return Bounds(partition, head, now.tail, now.events, now.bytes)
        at = await self._in_place(state)
        return await self._patience(lambda: self._reader.bounds(at))

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        self._check()
        state = self._log_state.partitions.get((topic, partition))
        if state is None:
            return 1
        if (held := state.held(1)) is not None:
            return next((event.offset for event in held if event.ts >= ts), state.standing.tail + 1)
        at = await self._in_place(state)
        return await self._patience(lambda: self._reader.offset_at(ts, at))

    async def get(self, space: str, key: str) -> Record | None:
        self._check()
        if (held := self._log_state.pending.get((space, key))) is not None:
            written = held[1]
            return None if written.value is None else Record(key, written.value, written.version)
        return await self._patience(lambda: self._reader.record(space, key))

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        self._check()
        while True:
            await self._all_in_place()
            page = await self._patience(lambda last=after: self._reader.page(space, prefix, last))  # type: ignore[misc]
            for document in page:
                yield record_of(document)
            if len(page) < PAGE:
                return
            after = page[-1]["key"]

    async def spaces(self) -> list[str]:
        self._check()
        await self._all_in_place()
        return await self._patience(self._reader.spaces)

    async def marks(self) -> AsyncIterator[Mark]:
        self._check()
        last: Mark | None = None
        await self._all_in_place()
        while True:
            page = await self._patience(lambda after=last: self._reader.mark_page(after))  # type: ignore[misc]
            for mark in page:
                yield mark
            if len(page) < PAGE:
                return
            last = page[-1]

    def _in_place(self, state: MongoPartition) -> Awaitable[PartitionStanding]:
        return self._placing.standing(state, self._patience.ms)

    async def _all_in_place(self) -> None:
        await self._placing.reached(self._log_state.position, self._patience.ms)


async def init(url: str, *, database: str = DEFAULT_DATABASE) -> list[str]:
    """Make the collections and indexes that are missing; what was done, in words. Harmless beside running nodes."""
    address = parse_address(url, database)
    async with _client(address) as (_, opened):
        await schema.check_format(opened)
        return await schema.create(opened)


async def inspect_database(url: str, *, database: str = DEFAULT_DATABASE) -> Inspection:
    """What is there; nothing is made."""
    address = parse_address(url, database)
    async with _client(address) as (client, opened):
        there = await schema.check_format(opened)
        missing = tuple(await schema.missing(opened))
        hello: Mapping[str, Any] = await client.admin.command("hello")
    durability = describe(hello, client.write_concern.document)
    return Inspection(
        place=address.shown,
        log=there,
        knows=schema.FORMAT,
        format=schema.FORMAT if there else None,
        missing=missing,
        replicas=_members(hello),
        durability=durability,
        loss_window_s=0 if durability.durable else None,
    )


def _members(hello: Mapping[str, Any]) -> int | None:
    """How many servers hold the data; a router of shards does not tell."""
    if hello.get("msg") == "isdbgrid":
        return None
    return len(hello.get("hosts", ())) + len(hello.get("passives", ())) or 1


@asynccontextmanager
async def _client(address: MongoAddress) -> AsyncIterator[tuple[Any, Any]]:
    """A client and the log's database, for a visit."""
    client = connect(address)
    try:
        yield client, database_of(client, address)
    except PyMongoError as error:
        raise translated(error, address.shown) from error
    finally:
        await client.close()
