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
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import uuid_utils
from pymongo.errors import PyMongoError

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    ABSENT,
    Batch,
    Bounds,
    Durability,
    EngineSetup,
    FormatError,
    Inspection,
    KeptTail,
    LogUnavailable,
    Mark,
    MissedTooMuch,
    Outline,
    Place,
    Receipt,
    Record,
    Remove,
    Restorable,
    Result,
    Room,
    StoredEvent,
    Watched,
    event_bytes,
    log_gone,
    lookups_for,
    outline_of,
)
from mainspring.log.engines.history import CommitMark, LogTrace, OtherHistory, keep_aside
from mainspring.log.engines.mongo import documents
from mainspring.log.engines.mongo.applier import Applier, JournalTrimmer, Placing
from mainspring.log.engines.mongo.connection import (
    DEFAULT_DATABASE,
    MongoAddress,
    Patience,
    connect,
    database_of,
    describe,
    members_of,
    parse_address,
    translated,
)
from mainspring.log.engines.mongo.documents import PAGE, Body, JournalEntry, MongoReader, record_of
from mainspring.log.engines.mongo.journal import Journal, JournalFollower
from mainspring.log.engines.mongo.plan import (
    RECENT_BYTES,
    EntryPlan,
    MongoLogState,
    MongoPartition,
    Partition,
    Present,
    groups_of,
)
from mainspring.log.log_clock import LogClock
from mainspring.loop import BackgroundTasks, Clock, MonotonicClock

T = TypeVar("T")

_RIVALRY: Final = 8  # entries after which another node's last one is forgotten
_MOST_POLITE_MS: Final = 20

_logger = logging.getLogger(__name__)


class MongoEngine(Watched):
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
        step: Callable[[str], object] = lambda _: None,
        recent_bytes: int = RECENT_BYTES,
        new_id: Callable[[], str] = lambda: str(uuid_utils.uuid7()),
    ) -> None:
        super().__init__()
        self.address: MongoAddress = parse_address(url, database)
        self._clock = LogClock(clock or MonotonicClock())
        self._patience = Patience(self.address, self._clock)
        self._step = step
        self._recent_bytes = recent_bytes
        self._new_id = new_id
        self.aside: Path | None = None  # beside it a log file is made of what only this node has seen
        self.trace: LogTrace | None = None
        self._client: Any = None
        self._database: Any = None
        self._tasks = BackgroundTasks(_logger, "the MongoDB engine")
        self._fault: MainspringError | None = None  # why this engine is of no use any more
        self._ending: asyncio.Task[None] | None = None
        self._on_failure: list[Callable[[MainspringError], object]] = []
        self._on_connection: Callable[[], object] = lambda: None
        self._committing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self.losses: int = 0  # plans that found their place in the journal taken, and were made again
        self._rival_at = -_RIVALRY  # the last entry of another node
        self._append_ms = 0  # how long the last own entry took
        self._appended_at_ms = 0

    @property
    def reconnects(self) -> int:
        """How often the server was found again since the log was opened."""
        return 0 if self._client is None else self._follower.reconnects

    # -- opening and closing

    async def open(self) -> None:
        if self._client is not None:
            return
        self._node = self._new_id()
        client = connect(self.address, lambda: self._on_connection())
        try:
            await self._start(client, database_of(client, self.address))
        except PyMongoError as error:
            await self._stop(client)
            raise translated(error, self.address.shown) from error
        except BaseException:
            await self._stop(client)
            raise

    async def _start(self, client: Any, database: Any) -> None:
        if not await documents.check_format(database):
            await _make_unless_gone(database, self.address, self.trace, begin_anew=False)
        identity = await documents.identity_of(database, self._new_id)
        if self.trace is not None:
            self.trace.remember(identity, self.address.shown)
        self._fault = None
        self._database = database
        self._reader = MongoReader(database)
        self._journal = Journal(database, identity, self._node, self.address.shown, self._clock, self._step)
        position, version = max(await self._journal.reached("applied"), await self._journal.reached("floor"))
        self._journal.history.last = await self._journal.mark_at(position) or CommitMark(position)
        self._on_connection = self._journal.history.note_link
        self._log_state = MongoLogState(position, version, await self._reader.standings(), self._recent_bytes)
        applier = Applier(database, self._step)
        self._placing = Placing(self._journal, self._log_state, applier, self.address)
        self._follower = JournalFollower(self._journal, self.address.poll_ms, self._look)
        self.losses, self._rival_at = 0, -_RIVALRY
        while await self._look():
            pass
        self.tidying: JournalTrimmer = JournalTrimmer(self._journal, self._log_state, applier, self.address.keep_ms)
        works = (self._follower.poll, self._follower.listen, self._placing.run, self.tidying.run)
        for work in works:
            self._tasks.start(self._keep(work), work.__name__)
        self._client = client
        await self._clock.ask(self)

    async def close(self) -> None:
        if self._client is None:
            return
        async with self._committing:
            client = self._client
            if client is not None:
                with suppress(MainspringError):
                    await self._placing.reached()
                self._watchers.clear()
                await self._stop(client)

    async def _stop(self, client: Any) -> None:
        self._client = None
        self._on_failure.clear()
        if self._ending is not None:
            await self._ending  # what only this node has seen is being kept
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
        if isinstance(error, MissedTooMuch | FormatError) and self._fault is None:
            self._fault = error
            self._ending = asyncio.create_task(self._end(error), name="end of the MongoDB engine")

    async def _end(self, error: MainspringError) -> None:
        _logger.error("the log cannot be followed any further: %s", error)
        if isinstance(error, OtherHistory) and self.aside is not None:
            held = (
                (state.recent, KeptTail(*place, state.standing.tail))
                for place, state in self._log_state.partitions.items()
                if state.recent
            )
            try:
                kept = await keep_aside(self.aside, held)
            except (MainspringError, OSError) as failure:
                _logger.error("what only this node has seen could not be kept: %s", failure)
            else:
                _logger.error("the newest events that this node has seen are kept in %s", kept)
        for callback in self._on_failure:
            callback(error)

    def on_failure(self, callback: Callable[[MainspringError], object]) -> None:
        """Call with the reason when this node can follow the log no further; at once if that is so already."""
        self._on_failure.append(callback)
        if self._fault is not None and (self._ending is None or self._ending.done()):
            callback(self._fault)

    def _check(self) -> None:
        if self._client is None:
            raise LogUnavailable(f"the log at {self.address.shown} is not open", remedy="open it first")
        if self._fault is not None:
            raise self._fault

    # -- what other nodes do

    async def durability(self) -> Durability:
        self._check()
        hello = await self._patience(lambda: self._client.admin.command("hello"))
        return describe(hello, self._client.write_concern.document)

    async def room(self) -> Room | None:
        """Of the file system of the server that is asked; None where it does not say."""
        self._check()
        found = await self._patience(lambda: self._database.command("dbStats", freeStorage=1))
        if not found.get("fsTotalSize"):
            return None
        total = round(found["fsTotalSize"])
        return Room(
            total=total,
            free=total - round(found["fsUsedSize"]),
            size=round(found["storageSize"] + found.get("indexSize", 0)),
            reusable=round(found.get("freeStorageSize", 0) + found.get("indexFreeStorageSize", 0)),
        )

    async def time_ms(self) -> int:
        if self._client is None:
            raise LogUnavailable(f"the log at {self.address.shown} is not open", remedy="open it first")
        hello = await self._patience(lambda: self._client.admin.command("hello"))
        time: datetime = hello["localTime"]
        return round(time.replace(tzinfo=UTC).timestamp() * 1000)

    async def _look(self) -> bool:
        """Take in what is new in the journal; whether there was something."""
        position = self._log_state.position
        async with self._looking:
            if self._log_state.position == position:
                await self._journal.history.compare()
                for entry in await self._journal.after(position):
                    await self._check_history(entry)
                    self._absorb(entry)
        return self._log_state.position != position

    async def _check_history(self, entry: JournalEntry) -> None:
        """Its writer must have seen what this node has seen. Whose history is that of the server?"""
        history = self._journal.history
        if entry.number == history.last.number + 1 and not history.last.is_followed_by(entry.before):
            await history.compare_now()
            raise OtherHistory(
                f"two histories: entry {entry.mark} of the journal was written by a node that had seen another entry "
                f"{history.last.number} than {history.last}, which the server has",
                remedy="stop all nodes; keep the documents of `commits` from that entry on and remove them there; then "
                "start the nodes again",
            )

    def _absorb(self, entry: JournalEntry) -> None:
        """Take in one entry of the journal, and tell who watches."""
        if entry.number != self._log_state.position + 1:
            return  # it came another way meanwhile
        self._log_state.absorb(entry)
        self._journal.history.last = entry.mark
        self._placing.add(entry)
        own = entry.node == self._node
        if own:
            self._follower.note_activity()
        else:
            self._rival_at = entry.number
        for effects in entry.body.batches:
            self._report(effects.change(own))

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        results: list[Result] = []
        async with self._committing:
            for group in groups_of(batches):
                try:
                    self._check()
                    results += await self._commit(group)
                except MainspringError as error:
                    self._note(error)
                    if not results:
                        raise
                    return results + [error] * (len(batches) - len(results))
        return results

    async def _commit(self, group: Sequence[Batch]) -> list[Result]:
        """Of batches that fit into one entry."""

        def planned(present: Present) -> tuple[Body | None, list[Result]]:
            plan = EntryPlan(self._log_state, present)
            results = [plan.add(batch) for batch in group]
            return plan.body(), results

        if not any(batch.operations for batch in group):
            return [Receipt() for _ in group]
        return await self._decide(group, planned)

    async def restore(self, items: Sequence[Restorable]) -> None:
        async with self._committing:
            self._check()
            await self._decide((), lambda present: (EntryPlan(self._log_state, present).restore(items), None))

    async def forget_dedupe(self, now: int) -> int:
        self._check()
        await self._placing.reached()
        self._log_state.forget_marks(now)
        marks = self._database[documents.MARKS]
        result = await self._patience(lambda: marks.delete_many({"until": {"$lt": now}}))
        return int(result.deleted_count)

    # -- deciding: plan, try to store the plan as the journal's next entry, plan again when another node was faster
    #
    # What a plan needs to know and this node does not is asked of the server first. The answers stay right while other
    # nodes go on committing, because this node follows the journal: an entry that changes what was asked brings the new
    # value with it. So a commit never has to ask twice only because others are busy.

    async def _decide(self, group: Sequence[Batch], plan: Callable[[Present], tuple[Body | None, T]]) -> T:
        deadline = self._patience.deadline_ms()
        await self._be_polite()
        while True:
            await self._placing.room()
            present = await self._ask(group)
            position = self._log_state.position
            body, results = plan(present)
            if body is None:
                # Nothing to store, so nothing proves that this node knows the newest: ask.
                if not await self._patience(self._look):
                    return results
                continue
            entry = await self._append(position + 1, body, deadline)
            if entry is not None:
                self._absorb(entry)
                return results
            self.losses += 1
            await self._catch_up(position, deadline)

    async def _append(self, number: int, body: Body, deadline: int) -> JournalEntry | None:
        start = self._clock.now_ms()
        try:
            return await self._journal.append(number, body, deadline)
        finally:
            self._appended_at_ms = self._clock.now_ms()
            self._append_ms = self._appended_at_ms - start

    async def _be_polite(self) -> None:
        """Who has just stored an entry, with others after the same places, lets them go first.

        They must read that entry before they can plan theirs; without a pause the last winner would win again.
        """
        if self._log_state.position - self._rival_at < _RIVALRY:
            since = self._clock.now_ms() - self._appended_at_ms
            pause = min(self._append_ms, _MOST_POLITE_MS) - since
            if pause > 0:
                await asyncio.sleep(pause / 1000)

    async def _catch_up(self, position: int, deadline: int) -> None:
        """Wait until this node knows what took the place behind `position`."""
        while self._log_state.position == position:
            if not await self._patience(self._look) and self._log_state.position == position:
                if self._clock.now_ms() >= deadline:
                    raise LogUnavailable("the server does not show what another node committed", remedy="try again")
                await asyncio.sleep(0.002)

    async def _ask(self, group: Sequence[Batch]) -> Present:
        """Know what the batches depend on; of partitions to remove from, the events that may be hit."""
        known = self._log_state
        places, marked = lookups_for(group)
        removals: dict[Partition, list[Remove]] = {}
        for batch in group:
            for operation in batch.operations:
                if isinstance(operation, Remove):
                    removals.setdefault((operation.topic, operation.partition), []).append(operation)
        present: Present | None = None if removals else {}
        while True:
            new_places = [place for place in places if place not in known.versions]
            new_marks = [place for place in marked if place not in known.marks]
            if new_places or new_marks:
                await self._learn(new_places, new_marks)
                present = None if removals else {}
            elif present is None:
                present = await self._present(removals)
            else:
                return present

    async def _learn(self, places: list[Place], marked: list[Place]) -> None:
        """Ask for versions and marks; in vain when what is known was shortened meanwhile."""
        known = self._log_state
        forgotten = known.forgotten
        versions = await self._patience(lambda: self._reader.versions(places))
        marks = await self._patience(lambda: self._reader.marks(marked))
        if known.forgotten == forgotten:
            for place in places:
                known.versions.setdefault(place, versions.get(place, ABSENT))
            for place in marked:
                known.marks.setdefault(place, marks.get(place))

    async def _present(self, removals: dict[Partition, list[Remove]]) -> Present | None:
        """None when a partition was changed meanwhile in a way that must be asked for again."""
        asked: list[tuple[Partition, MongoPartition, int, int]] = []
        present: Present = {}
        for place, removes in removals.items():
            state = self._log_state.partitions.get(place)
            if state is None:
                continue
            asked.append((place, state, state.standing.tail, state.removals))
            present[place] = await self._hit_by(state, removes)
        for place in removals:
            if place in self._log_state.partitions and place not in present:
                return None
            present.setdefault(place, {})
        for place, state, tail, count in asked:
            newer = state.held(tail + 1)
            if state.removals != count or newer is None:
                return None
            present[place] |= {event.offset: event_bytes(event) for event in newer}
        return present

    async def _hit_by(self, state: MongoPartition, removes: Sequence[Remove]) -> dict[int, int]:
        if (held := state.held(1)) is not None:
            return {event.offset: event_bytes(event) for event in held}
        at = await self._placing.standing(state)
        return await self._patience(lambda: self._reader.hit_by(removes, at))

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        self._check()
        found = self._log_state.recent(topic, partition, start, limit, max_bytes)
        if found is not None:
            return found
        at = await self._placing.standing(self._log_state.partitions[topic, partition])
        return await self._patience(lambda: self._reader.events(start, limit, max_bytes, at))

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        self._check()
        state = self._log_state.partitions.get((topic, partition))
        if state is None or limit <= 0:
            return []
        if (held := state.held(start)) is not None:
            return [outline_of(event) for event in islice(held, limit)]
        at = await self._placing.standing(state)
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
        at = await self._placing.standing(state)
        return await self._patience(lambda: self._reader.bounds(at))

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        self._check()
        state = self._log_state.partitions.get((topic, partition))
        if state is None:
            return 1
        if (held := state.held(1)) is not None:
            return next((event.offset for event in held if event.ts >= ts), state.standing.tail + 1)
        at = await self._placing.standing(state)
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
            await self._placing.reached(self._log_state.changed(space))
            page = await self._patience(lambda last=after: self._reader.page(space, prefix, last))  # type: ignore[misc]
            for document in page:
                yield record_of(document)
            if len(page) < PAGE:
                return
            after = page[-1]["key"]

    async def spaces(self) -> list[str]:
        self._check()
        await self._placing.reached()
        return await self._patience(self._reader.spaces)

    async def marks(self) -> AsyncIterator[Mark]:
        self._check()
        last: Mark | None = None
        await self._placing.reached()
        while True:
            page = await self._patience(lambda after=last: self._reader.mark_page(after))  # type: ignore[misc]
            for mark in page:
                yield mark
            if len(page) < PAGE:
                return
            last = page[-1]


def open_engine(url: str, setup: EngineSetup) -> MongoEngine:
    engine = MongoEngine(url, database=setup.database, clock=setup.clock, new_id=setup.new_id)
    engine.aside = Path(setup.data_dir) / f"mongodb-{engine.address.database}.sqlite3"
    engine.trace = _trace(engine.address, setup)
    return engine


def _trace(address: MongoAddress, setup: EngineSetup) -> LogTrace:
    return LogTrace(Path(setup.data_dir) / f"mongodb-{address.database}.log-id")


async def _make_unless_gone(
    database: Any, address: MongoAddress, trace: LogTrace | None, *, begin_anew: bool
) -> list[str]:
    """Make what is missing, but no empty log where one was, unless that is wanted; what was made, in words."""
    if not await documents.check_format(database) and trace is not None and trace.exists:
        if not begin_anew:
            raise log_gone(f"there is no log at {address.shown}, and this node was part of one there")
        trace.forget()
    return await documents.create(database)


async def init(url: str, setup: EngineSetup) -> list[str]:
    """Make the collections and indexes that are missing; what was done, in words. Harmless beside running nodes."""
    address = parse_address(url, setup.database)
    async with _client(address) as (_, opened):
        return await _make_unless_gone(opened, address, _trace(address, setup), begin_anew=setup.begin_anew)


async def inspect(url: str, setup: EngineSetup) -> Inspection:
    """What is there; nothing is made."""
    address = parse_address(url, setup.database)
    async with _client(address) as (client, opened):
        there = await documents.check_format(opened)
        missing = tuple(await documents.missing(opened))
        hello: Mapping[str, Any] = await client.admin.command("hello")
    durability = describe(hello, client.write_concern.document)
    return Inspection(
        place=address.shown,
        log=there,
        knows=documents.FORMAT,
        format=documents.FORMAT if there else None,
        missing=missing,
        replicas=members_of(hello),
        durability=durability,
        loss_window_s=0 if durability.durable else None,
        gone=not there and _trace(address, setup).exists,
    )


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
