"""`PostgresEngine`: the log in a schema of a PostgreSQL database, shared by any number of nodes.

A commit is one transaction. It takes the log's advisory lock, reads what other nodes committed since this node looked
last (one small row for each of their commits), decides the batches in memory, writes the events in chunks, the records,
and one row that says what changed. The server gives everybody the lock in the order of asking, so no node starves and
no plan is made in vain.

A node keeps no copy: what it knows is where each partition ends, and versions of records that it asked for before. All
reads go to the server, except those of events that this node has just written.

When a connection breaks during COMMIT, the next transaction tells: the old one is over when the lock is to be had, and
its row is there or will never be. Only when the server stays away is a commit in doubt.

The reasons are in docs/decisions/postgresql-engine.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import uuid_utils

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    ABSENT,
    OUTGOING,
    Batch,
    Bounds,
    Durability,
    EngineSetup,
    FormatError,
    InDoubt,
    Inspection,
    LogGone,
    LogUnavailable,
    Mark,
    MissedTooMuch,
    Outline,
    Place,
    Record,
    Remove,
    Restorable,
    Result,
    StoredEvent,
    Watched,
    are_well_formed,
    event_bytes,
    log_gone,
    lookups_for,
)
from mainspring.log.engines.history import LogTrace, keep_aside
from mainspring.log.engines.postgres import tables
from mainspring.log.engines.postgres.connection import (
    DEFAULT_SCHEMA,
    DRIVER_ERRORS,
    PostgresAddress,
    PostgresConnections,
    ask_durability,
    may_pass,
    parse_address,
    translated,
)
from mainspring.log.engines.postgres.plan import CommitPlan, KnownState, Partition
from mainspring.log.engines.postgres.reader import (
    OUTGOING_PAGE,
    PAGE,
    PostgresReader,
    RecordRequests,
    mark_of,
    record_of,
)
from mainspring.log.engines.postgres.recent import RECENT_BYTES, RecentEvents
from mainspring.log.engines.postgres.tables import (
    OUTGOING_VERSION,
    CommitEffects,
    chunk_events,
    chunk_rows,
    outgoing_key,
)
from mainspring.loop import BackgroundTasks, Clock, MonotonicClock
from mainspring.retries import Backoff

T = TypeVar("T")

_AGAIN: Final = Backoff(first_ms=10, longest_ms=500)
_LISTENING_MS: Final = 1_000  # between looks while the server notifies
_TIDY_MS: Final = 15_000
_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_AT_ONCE: Final = 1_000  # rows of commits read or deleted, and marks deleted, in one step

_logger = logging.getLogger(__name__)

Plan = Callable[[Any], Awaitable[tuple[CommitPlan, T]]]


class PostgresEngine(Watched):
    """The log at an address `postgresql://...`. Several engines, in any number of processes, may have it open at once.

    `recent_bytes` is how much of the events written last is kept in memory for readers. `step` is for tests: it gets
    the name of each write before it is sent.
    """

    name = "postgresql"

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        clock: Clock | None = None,
        step: Callable[[str], object] = lambda _: None,
        recent_bytes: int = RECENT_BYTES,
        new_id: Callable[[], str] = lambda: str(uuid_utils.uuid7()),
    ) -> None:
        super().__init__()
        self.address: PostgresAddress = parse_address(url, schema)
        self._clock = clock or MonotonicClock()
        self._step = step
        self._new_id = new_id
        self._recent = RecentEvents(recent_bytes)
        self.aside: Path | None = None  # beside it a log file is made of what only this node has seen
        self.trace: LogTrace | None = None
        self._connections: PostgresConnections | None = None
        self._tasks = BackgroundTasks(_logger, "the PostgreSQL engine")
        self._committing = asyncio.Lock()
        self._keeping = asyncio.Lock()
        self._wake = asyncio.Event()
        self._fault: MainspringError | None = None  # why this engine is of no use any more
        self._on_failure: list[Callable[[MainspringError], object]] = []
        self._on_outgoing: list[Callable[[], object]] = []
        self._last_own = ""  # token of the last own commit that was seen in the log
        self._tries = 0
        self._sql = _Statements(self.address)
        self._reader = PostgresReader(self.address.schema)
        self._gets = RecordRequests(self._reader, self._tasks)

    @property
    def reconnects(self) -> int:
        """How often the server was found again since the log was opened."""
        return 0 if self._connections is None else self._connections.reconnects

    # -- opening and closing

    async def open(self) -> None:
        if self._connections is not None:
            return
        connections = PostgresConnections(self.address, self._clock)
        try:
            await self._start(connections)
        except DRIVER_ERRORS as error:
            await self._stop(connections)
            raise translated(error, self.address.shown) from error
        except BaseException:
            await self._stop(connections)
            raise

    async def _start(self, connections: PostgresConnections) -> None:
        await connections.probe()
        self._fault = None
        self._node = self._new_id()
        async with connections.reader() as connection:
            await _make_unless_gone(connection, self.address, self.trace, begin_anew=False)
            if self.trace is not None:
                with suppress(OSError):  # a program that only visits may have no directory to write to
                    self.trace.remember(self.address.schema, self.address.shown)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                (newest,) = await connection.fetch(self._sql.newest)
                tails = await self._reader.tails(connection)
        self._known = KnownState(newest["number"], newest["token"], newest["version"], tails)
        self._recent.clear()
        self._connections = connections
        self._tasks.start(self._keep(self._follow), "follow")
        self._tasks.start(self._keep(self._tidy), "tidy")

    async def close(self) -> None:
        async with self._committing:
            connections = self._connections
            if connections is not None:
                await self._stop(connections)

    async def _stop(self, connections: PostgresConnections) -> None:
        self._connections = None
        await self._tasks.cancel(repeat_s=0.1)
        await connections.close()
        self._watchers.clear()
        self._on_failure.clear()
        self._on_outgoing.clear()

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the engine; what ends it ends the engine."""
        try:
            await work()
        except MainspringError as error:
            await self._note(error)
        except Exception as error:
            self._fail(LogUnavailable(f"the engine failed: {type(error).__name__}: {error}", remedy="start again"))
            context = {"message": "a task of the log's engine failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _note(self, error: MainspringError) -> None:
        """After some errors nothing that this engine knows can be trusted."""
        if isinstance(error, LogGone):
            async with self._keeping:  # whoever finds it out second waits, too, before the engine may be closed
                await self._keep_recent()
        if isinstance(error, MissedTooMuch | FormatError | LogGone):
            self._fail(error)

    def _fail(self, error: MainspringError) -> None:
        if self._fault is None:
            self._fault = error
            for callback in self._on_failure:
                callback(error)

    def on_outgoing(self, callback: Callable[[], object]) -> None:
        """Call when something may be new in the space `OUTGOING`: when a program notifies, and now and then."""
        self._on_outgoing.append(callback)

    def _outgoing_notified(self, *_: object) -> None:
        for callback in self._on_outgoing:
            callback()

    def on_failure(self, callback: Callable[[MainspringError], object]) -> None:
        """Call with the reason when this node can follow the log no further; at once if that is so already."""
        self._on_failure.append(callback)
        if self._fault is not None:
            callback(self._fault)

    def _open(self) -> PostgresConnections:
        """The connections. Raises when the log is not open, or of no use any more."""
        if self._connections is None:
            raise LogUnavailable(f"the log at {self.address.shown} is not open", remedy="open it first")
        if self._fault is not None:
            raise self._fault
        return self._connections

    async def durability(self) -> Durability:
        found, _ = await self._open().read(ask_durability)
        return found

    async def time_ms(self) -> int:
        """The server's time of day."""
        return int(await self._open().read(lambda ask: ask.fetchval(_NOW)))

    # -- what other nodes do

    async def _follow(self) -> None:
        """Learn of other nodes' commits, until cancelled. The server's notice says when to look, and nothing more."""
        connections = self._open()
        pauses = _AGAIN.series()
        connection: Any = None
        while True:
            try:
                if connection is None or connection.is_closed():
                    connection = await connections.connect()
                    if not connections.pooled:
                        await connection.add_listener(self.address.channel, self._notified)
                        await connection.add_listener(self.address.outgoing_channel, self._outgoing_notified)
                self._wake.clear()
                async with connections.whole(connection):
                    await self._catch_up(connection)
                pauses.succeeded()
            except DRIVER_ERRORS as error:
                if not may_pass(error):
                    raise translated(error, self.address.shown) from error
                connections.discard(connection)
                connection = None
                await asyncio.sleep(pauses.failed() / 1000)
                continue
            pause = self.address.poll_ms if connections.pooled else _LISTENING_MS
            try:
                async with asyncio.timeout(pause / 1000):
                    await self._wake.wait()
            except TimeoutError:
                self._outgoing_notified()  # a notice can be lost with its connection

    def _notified(self, _connection: object, _pid: int, _channel: str, text: object) -> None:
        number, _, node = str(text).partition(" ")
        if node != self._node and (not number.isdigit() or int(number) > self._known.number):
            self._wake.set()

    async def _catch_up(self, connection: Any) -> None:
        """Take in all commits that are new. Raises `MissedTooMuch`, or `LogGone` when acknowledged ones are lost."""
        known = self._known
        while True:
            asked, token = known.number, known.token
            rows = await connection.fetch(self._sql.news, asked)
            there = rows[0]["token"] if rows and rows[0]["number"] == asked else None
            if there != token:
                raise await self._lost_track(connection, asked, token, there)
            for row in rows:
                if row["number"] == known.number + 1:
                    effects = tables.decode_effects(row["body"])
                    if effects is None:
                        await tables.find_version(connection, self.address.schema)  # raises where a newer node wrote it
                        _logger.error("commit %d was written by no node and is passed over", row["number"])
                        effects = []
                    self._absorb(row["number"], row["token"], row["version"], effects)
            if len(rows) < _AT_ONCE:
                return

    async def _lost_track(self, connection: Any, number: int, ours: str, theirs: str | None) -> MainspringError:
        oldest = await connection.fetchval(self._sql.oldest)
        if oldest is not None and oldest > number:
            return MissedTooMuch(
                "this node was away for longer than the log keeps news for it",
                remedy="start it again; to bridge longer absences raise keep_ms in the address",
            )
        return LogGone(
            f"the server has another history than this node has seen: commit {number} is {theirs or 'gone'} there, and "
            f"{ours} here. A standby that had not received everything was promoted, or a backup was restored",
            remedy="start the node again; acknowledged commits may be lost (use synchronous standbys); `mainspring "
            "engine compare` shows what only a log that was kept aside holds, and `engine recover` publishes it again",
        )

    async def _keep_recent(self) -> None:
        """Make a log file of the newest events that this node has written: they may be nowhere else."""
        held = self._recent.held()
        if not held or self.aside is None or self._fault is not None:
            return
        path, self.aside = self.aside, None  # once
        try:
            kept = await keep_aside(path, held)
        except (MainspringError, OSError) as failure:
            _logger.error("what only this node has seen could not be kept: %s", failure)
        else:
            _logger.error("the newest events that this node has written are kept in %s", kept)

    def _absorb(self, number: int, token: str, version: int, effects: Sequence[CommitEffects]) -> None:
        """Take in one commit, and tell who watches."""
        own = token.startswith(f"{self._node}:")
        if own:
            self._last_own = token
        self._known.absorb(number, token, version, effects, own=own)
        for each in effects:
            if each.removed:
                self._recent.forget(each.removed)
            self._report(each.change(own))

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        results: list[Result] = []
        async with self._committing:
            for group in _groups(batches):
                try:
                    results += await self._commit(group)
                except MainspringError as error:
                    await self._note(error)
                    if not results:
                        raise
                    return results + [error] * (len(batches) - len(results))
        return results

    async def _commit(self, group: Sequence[Batch]) -> list[Result]:
        """Of batches that are stored together."""
        return await self._transaction(self._plan_of(group))

    def _plan_of(self, group: Sequence[Batch]) -> Plan[list[Result]]:
        places, marked = lookups_for(group)

        async def decide(connection: Any) -> tuple[CommitPlan, list[Result]]:
            await self._learn_versions(connection, places)
            marks = await self._reader.marks(connection, marked) if marked else {}
            removals = await self._removals(connection, group)
            plan = CommitPlan(self._known, marks, {place: _sizes(chunks) for place, chunks in removals.items()})
            results = [plan.add(batch) for batch in group]
            await self._rewrite(connection, plan, removals)
            return plan, results

        return decide

    # -- a program's own statements and a commit of the log, together

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        """A transaction for a program. What it did is rolled back unless `commit` was called and went well."""
        connections = self._open()
        try:
            connection = await connections.lend()
        except DRIVER_ERRORS as error:
            raise translated(error, self.address.shown) from error
        try:
            begun = connection.transaction(isolation="read_committed")
            await begun.start()
            await connection.execute(connections.patient)
            yield PostgresTransaction(self, connection, begun)
        finally:
            connections.take_back(connection)

    async def commit_on(self, connection: Any, begun: Any, batch: Batch) -> Result:
        """`PostgresTransaction.commit`."""
        attempt = _Attempt(begun)
        async with self._committing:
            connections = self._open()
            try:
                await connection.execute(connections.lock)
                (result,) = await self._decide_and_store(connection, attempt, self._plan_of([batch]))
            except DRIVER_ERRORS as error:
                if not attempt.token:
                    raise translated(error, self.address.shown) from error
                (result,) = await self._transaction(_not_stored, attempt)
        return result

    async def restore(self, items: Sequence[Restorable]) -> None:
        async def decide(_: Any) -> tuple[CommitPlan, None]:
            plan = CommitPlan(self._known, {}, {})
            plan.restore(items)
            return plan, None

        async with self._committing:
            await self._transaction(decide)

    async def forget_dedupe(self, now: int) -> int:
        total = 0
        while count := await self._open().read(lambda ask: ask.fetchval(self._sql.forget_marks, now)):
            total += count
        return total

    async def _transaction(self, decide: Plan[T], attempt: _Attempt | None = None) -> T:
        """Decide under the lock, and store. Tried again until it is done, or for certain not done, or time is up."""
        connections = self._open()
        deadline = connections.deadline_ms()
        pauses = _AGAIN.series()
        attempt = attempt or _Attempt()
        while True:
            try:
                left = deadline - self._clock.now_ms()
                async with asyncio.timeout(max(left, 1) / 1000):
                    return await self._attempt(connections, attempt, decide)
            except DRIVER_ERRORS as error:
                connections.drop_writer()
                if not may_pass(error) or self._clock.now_ms() >= deadline:
                    raise self._given_up(error, attempt) from error
            except BaseException:
                connections.drop_writer()
                raise
            await asyncio.sleep(pauses.failed() / 1000)

    async def _attempt(self, connections: PostgresConnections, attempt: _Attempt, decide: Plan[T]) -> T:
        connection = await connections.writer()
        await connection.execute(connections.begin)
        return await self._decide_and_store(connection, attempt, decide)

    async def _decide_and_store(self, connection: Any, attempt: _Attempt, decide: Plan[T]) -> T:
        """In a transaction that has the lock; ends it."""
        await self._catch_up(connection)
        if attempt.token and self._last_own == attempt.token:
            # The last try was stored. What is stored after it says that this is as safe as an answer would have been.
            await connection.execute(self._sql.settle)
            await attempt.end(connection, "COMMIT")
            results: T = attempt.results
            return results
        attempt.token = ""
        self._known.forget_oldest()
        plan, results = await decide(connection)
        effects = plan.finish()
        if not effects and not plan.new_marks:
            await attempt.end(connection, "ROLLBACK")
            return results
        self._tries += 1
        number, token = self._known.number + 1, f"{self._node}:{self._tries}"
        await self._store(connection, plan, effects, number, token)
        attempt.token, attempt.results = token, results
        self._step("commit")
        await attempt.end(connection, "COMMIT")
        if self._known.number < number:
            self._absorb(number, token, plan.version, effects)
        for place, draft in plan.drafts.items():
            self._recent.keep(place, draft.events, draft.tail)
        return results

    def _given_up(self, error: BaseException, attempt: _Attempt) -> MainspringError:
        unavailable = translated(error, self.address.shown)
        if not attempt.token:
            return unavailable
        return InDoubt(
            f"the answer of PostgreSQL at {self.address.shown} was lost: {unavailable.message}",
            remedy="look whether it happened before trying again",
        )

    async def _learn_versions(self, connection: Any, places: dict[Place, None]) -> None:
        known = self._known.versions
        new = [place for place in places if place not in known]
        if not new:
            return
        found = await self._reader.versions(connection, new)
        outgoing = [key for space, key in new if space == OUTGOING]
        if outgoing:
            numbers = [int(key) for key in outgoing if key.isascii() and key.isdigit()]
            for row in await connection.fetch(self._sql.find_outgoing, numbers):
                found[OUTGOING, outgoing_key(row["id"])] = OUTGOING_VERSION
        for place in new:
            known[place] = found.get(place, ABSENT)

    async def _removals(self, connection: Any, group: Sequence[Batch]) -> dict[Partition, list[_StoredChunk]]:
        """Of partitions that the group removes from, the chunks that may be hit."""
        found: dict[Partition, list[_StoredChunk]] = {}
        for batch in group:
            for operation in batch.operations:
                if type(operation) is Remove:
                    place = (operation.topic, operation.partition)
                    if place in self._known.tails and are_well_formed(operation.topic):
                        chunks = found.setdefault(place, [])
                        held = {chunk.last for chunk in chunks}
                        chunks += [
                            chunk for chunk in await self._hit_by(connection, operation) if chunk.last not in held
                        ]
        return found

    async def _hit_by(self, connection: Any, remove: Remove) -> list[_StoredChunk]:
        below = max(0, min(remove.below, (1 << 63) - 1))
        offsets = [offset for offset in remove.offsets if 0 < offset < 1 << 63]
        rows = await connection.fetch(self._sql.hit_by, remove.topic.encode(), remove.partition, below, offsets)
        chunks: list[_StoredChunk] = []
        for row in rows:
            events = chunk_events(remove.topic, remove.partition, row["first"], row["body"])
            chunks.append(_StoredChunk(row["last"], row["first"], row["events"], row["bytes"], events))
        return chunks

    async def _rewrite(self, connection: Any, plan: CommitPlan, removals: dict[Partition, list[_StoredChunk]]) -> None:
        """Write the chunks of which something is removed without it."""
        for place, chunks in removals.items():
            draft = plan.drafts.get(place)
            if draft is None or not draft.gone:
                continue
            hit = [chunk for chunk in chunks if any(offset in draft.gone for offset in chunk.sizes())]
            topic, partition = place
            self._step("remove")
            await connection.execute(self._sql.delete_chunks, topic.encode(), partition, [chunk.last for chunk in hit])
            for chunk in hit:
                left = [
                    (e.offset, event_bytes(e), (e.id, e.ts, e.payload, e.key, e.headers))
                    for e in chunk.events or ()
                    if e.offset not in draft.gone
                ]
                for row in chunk_rows(topic, partition, left):
                    await connection.execute(self._sql.insert_chunk, *row)

    async def _store(
        self, connection: Any, plan: CommitPlan, effects: list[CommitEffects], number: int, token: str
    ) -> None:
        """Write the plan; several statements, and no commit yet."""
        puts: dict[Place, tuple[int, bytes]] = {}
        deletes: dict[Place, None] = {}
        for each in effects:
            for record in each.records:
                place = (record.space, record.key)
                if record.value is None:
                    puts.pop(place, None)
                    deletes[place] = None
                else:
                    deletes.pop(place, None)
                    puts[place] = (record.version, record.value)
        if deletes:
            self._step("deletes")
            await connection.execute(self._sql.delete_records, *_columns(list(deletes)))
            if moved := [int(key) for space, key in deletes if space == OUTGOING]:
                await connection.execute(self._sql.delete_outgoing, moved)
        if puts:
            spaces, keys = _columns(list(puts))
            values = [value for _, value in puts.values()]
            crcs = [tables.record_crc(*each) for each in zip(spaces, keys, values, strict=True)]
            versions = [version for version, _ in puts.values()]
            self._step("records")
            await connection.execute(self._sql.put_records, spaces, keys, versions, values, crcs)
        if plan.new_marks:
            topics, texts = _columns(list(plan.new_marks))
            marks = list(plan.new_marks.values())
            self._step("marks")
            await connection.execute(
                self._sql.put_marks,
                topics,
                texts,
                [mark.partition for mark in marks],
                [mark.offset for mark in marks],
                [mark.until for mark in marks],
            )
        chunks: list[tables.ChunkRow] = []
        parts: list[tuple[bytes, int, int, int, int]] = []
        for (topic, partition), draft in plan.drafts.items():
            if draft.events or draft.gone or draft.tail != self._known.tails.get((topic, partition), 0):
                chunks += chunk_rows(topic, partition, draft.events)
                count = len(draft.events) - len(draft.gone)
                size = sum([event[1] for event in draft.events]) - sum(draft.gone.values())
                parts.append((topic.encode(), partition, draft.tail, count, size))
        self._step("events")
        body = tables.encode_effects(effects)
        news = (number, token, plan.version, body, self.address.channel, f"{number} {self._node}")
        await connection.execute(self._sql.store, *news, *_turned(chunks, 8), *_turned(parts, 5))

    # -- housekeeping

    async def _tidy(self) -> None:
        """Delete old news, in steps, until cancelled. The newest row stays for ever: it says where the log stands."""
        while True:
            await asyncio.sleep(min(_TIDY_MS, max(250, self.address.keep_ms // 4)) / 1000)
            with suppress(LogUnavailable):
                while await self._open().read(lambda ask: ask.fetchval(self._sql.tidy)) == _AT_ONCE:
                    pass

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        connections = self._open()
        if limit <= 0 or not are_well_formed(topic):
            return []
        if (found := self._recent.read((topic, partition), start, limit, max_bytes)) is not None:
            return found
        return await connections.read(
            lambda ask: self._reader.events(ask, topic, partition, start, limit, max(max_bytes, 1))
        )

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        if limit <= 0 or not are_well_formed(topic):
            return []
        return await self._open().read(lambda ask: self._reader.outline(ask, topic, partition, start, limit))

    async def topics(self) -> list[str]:
        return await self._open().read(self._reader.topics)

    async def bounds(self, topic: str) -> list[Bounds]:
        if not are_well_formed(topic):
            return []
        return await self._open().read(lambda ask: self._reader.bounds(ask, topic))

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        connections = self._open()
        tail = self._known.tails.get((topic, partition), 0)
        found = await connections.read(lambda ask: self._reader.offset_at(ask, topic, partition, ts))
        return tail + 1 if found is None else found

    async def get(self, space: str, key: str) -> Record | None:
        if not are_well_formed(space, key):
            return None
        return await self._gets.get((space, key), self._open())

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        if not are_well_formed(space, prefix, after):
            return
        if space == OUTGOING:
            async for record in self._outgoing(after):
                yield record
            return
        last = after.encode()
        while True:
            rows = await self._open().read(lambda ask, last=last: self._reader.page(ask, space, prefix, last))  # type: ignore[misc]
            for row in rows:
                found = record_of(space, row)
                if found is not None:
                    yield found
            if len(rows) < PAGE:
                return
            last = rows[-1]["key"]

    async def _outgoing(self, after: str) -> AsyncIterator[Record]:
        number = int(after or 0)
        while True:
            rows = await self._open().read(lambda ask, last=number: ask.fetch(self._sql.outgoing_page, last))  # type: ignore[misc]
            for row in rows:
                yield Record(outgoing_key(row["id"]), row["body"], OUTGOING_VERSION)
            if len(rows) < OUTGOING_PAGE:
                return
            number = rows[-1]["id"]

    async def spaces(self) -> list[str]:
        return await self._open().read(self._reader.spaces)

    async def marks(self) -> AsyncIterator[Mark]:
        last = (b"", b"")
        while True:
            rows = await self._open().read(lambda ask, last=last: self._reader.mark_page(ask, last))  # type: ignore[misc]
            for row in rows:
                mark = mark_of(row)
                if mark is not None:
                    yield mark
            if len(rows) < PAGE:
                return
            last = (rows[-1]["topic"], rows[-1]["dedupe"])


class _Attempt:
    """A commit that is tried until its outcome is known. `token`: of a try whose answer is missing.

    `begun` is the driver's own transaction, when a program's statements belong to the first try.
    """

    def __init__(self, begun: Any = None) -> None:
        self.token = ""
        self.results: Any = None
        self._begun = begun

    async def end(self, connection: Any, how: Literal["COMMIT", "ROLLBACK"]) -> None:
        begun, self._begun = self._begun, None
        if begun is None:
            await connection.execute(how)
        elif how == "COMMIT":
            await begun.commit()
        else:
            await begun.rollback()


async def _not_stored(_: Any) -> tuple[CommitPlan, list[Result]]:
    raise LogUnavailable("the connection was lost before the commit; nothing was stored", remedy="try again")


class PostgresTransaction:
    """One transaction of a program and the log; see `EngineTransaction`."""

    def __init__(self, engine: PostgresEngine, connection: Any, begun: Any) -> None:
        self.connection: Any = connection
        self._engine = engine
        self._begun = begun

    async def commit(self, batch: Batch) -> Result:
        return await self._engine.commit_on(self.connection, self._begun, batch)


class _StoredChunk:
    """A chunk that may lose events. One whose bytes are damaged counts as holding none: only its row can go."""

    def __init__(self, last: int, first: int, count: int, size: int, events: list[StoredEvent] | None) -> None:
        self.last = last
        self.events = events
        self._damaged = {last: size} | dict.fromkeys(range(last - count + 1, last), 0) if events is None else {}

    def sizes(self) -> dict[int, int]:
        return self._damaged or {event.offset: event_bytes(event) for event in self.events or ()}


def _sizes(chunks: list[_StoredChunk]) -> dict[int, int]:
    found: dict[int, int] = {}
    for chunk in chunks:
        found |= chunk.sizes()
    return found


def _groups(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Batches that are stored together: those that remove events go alone, because they hold up the others."""
    found: list[list[Batch]] = []
    joins = False
    for batch in batches:
        alone = any(type(operation) is Remove for operation in batch.operations)
        if joins and not alone:
            found[-1].append(batch)
        else:
            found.append([batch])
        joins = not alone
    return found


def _columns(places: Sequence[Place]) -> tuple[list[bytes], list[bytes]]:
    return [first.encode() for first, _ in places], [second.encode() for _, second in places]


def _turned(rows: Sequence[Sequence[Any]], columns: int) -> list[list[Any]]:
    """Rows as columns, for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(columns)]


class _Statements:
    """The statements that write, and those that follow."""

    def __init__(self, address: PostgresAddress) -> None:
        s = address.schema
        self.newest = f"SELECT number, token, version FROM {s}.commits ORDER BY number DESC LIMIT 1"
        self.oldest = f"SELECT min(number) FROM {s}.commits"
        self.news = (
            f"SELECT number, token, version, body FROM {s}.commits WHERE number >= $1 ORDER BY number LIMIT {_AT_ONCE}"
        )
        self.settle = f"UPDATE {s}.meta SET value = value + 1 WHERE name = 'settled'"
        self.tidy = (
            f"WITH old AS (SELECT number FROM {s}.commits WHERE at < now() - interval '{address.keep_ms} milliseconds' "
            f"AND number < (SELECT max(number) FROM {s}.commits) ORDER BY number LIMIT {_AT_ONCE} "
            f"FOR UPDATE SKIP LOCKED), gone AS (DELETE FROM {s}.commits c USING old WHERE c.number = old.number "
            "RETURNING 1) SELECT count(*) FROM gone"
        )
        self.forget_marks = (
            f"WITH old AS (SELECT topic, dedupe FROM {s}.marks WHERE until < $1 LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED"
            f"), gone AS (DELETE FROM {s}.marks m USING old WHERE m.topic = old.topic AND m.dedupe = old.dedupe "
            "RETURNING 1) SELECT count(*) FROM gone"
        )
        self.hit_by = (
            f"SELECT last, first, events, bytes, body FROM {s}.chunks c WHERE topic = $1 AND partition = $2 AND "
            "(first < $3 OR EXISTS (SELECT FROM unnest($4::bigint[]) o WHERE o BETWEEN c.first AND c.last)) "
            "ORDER BY last"
        )
        self.delete_chunks = f"DELETE FROM {s}.chunks WHERE topic = $1 AND partition = $2 AND last = ANY($3::bigint[])"
        chunk = f"INSERT INTO {s}.chunks (topic, partition, last, first, events, bytes, newest, body)"
        self.insert_chunk = f"{chunk} VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
        self.find_outgoing = f"SELECT id FROM {s}.outgoing WHERE id = ANY($1::bigint[])"
        self.outgoing_page = f"SELECT id, body FROM {s}.outgoing WHERE id > $1 ORDER BY id LIMIT {OUTGOING_PAGE}"
        self.delete_outgoing = f"DELETE FROM {s}.outgoing WHERE id = ANY($1::bigint[])"
        self.delete_records = (
            f"DELETE FROM {s}.records r USING unnest($1::bytea[], $2::bytea[]) AS w (space, key) "
            "WHERE r.space = w.space AND r.key = w.key"
        )
        self.put_records = (
            f"INSERT INTO {s}.records (space, key, version, value, crc) "
            "SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[]) "
            "ON CONFLICT (space, key) DO UPDATE SET version = excluded.version, value = excluded.value, "
            "crc = excluded.crc"
        )
        self.put_marks = (
            f"INSERT INTO {s}.marks (topic, dedupe, partition, place, until) "
            "SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::integer[], $4::bigint[], $5::bigint[]) "
            "ON CONFLICT (topic, dedupe) DO UPDATE SET partition = excluded.partition, place = excluded.place, "
            "until = excluded.until"
        )
        self.store = (
            f"WITH c AS (INSERT INTO {s}.commits (number, token, version, body) VALUES ($1, $2, $3, $4)), "
            f"k AS ({chunk} SELECT * FROM unnest($7::bytea[], $8::integer[], $9::bigint[], $10::bigint[], "
            "$11::integer[], $12::bigint[], $13::bigint[], $14::bytea[])), "
            f"p AS (INSERT INTO {s}.partitions AS p (topic, partition, tail, events, bytes) "
            "SELECT * FROM unnest($15::bytea[], $16::integer[], $17::bigint[], $18::bigint[], $19::bigint[]) "
            "ON CONFLICT (topic, partition) DO UPDATE SET tail = excluded.tail, events = p.events + excluded.events, "
            "bytes = p.bytes + excluded.bytes) SELECT pg_notify($5, $6)"
        )


def open_engine(url: str, setup: EngineSetup) -> PostgresEngine:
    engine = PostgresEngine(url, clock=setup.clock, new_id=setup.new_id)
    engine.aside = Path(setup.data_dir) / f"postgresql-{engine.address.schema}.sqlite3"
    engine.trace = _trace(engine.address, setup)
    return engine


def _trace(address: PostgresAddress, setup: EngineSetup) -> LogTrace:
    """Of this database alone: a data directory may be used with another one next."""
    place = sha256(address.shown.encode()).hexdigest()[:8]
    return LogTrace(Path(setup.data_dir) / f"postgresql-{address.schema}-{place}.log-id")


async def _make_unless_gone(
    connection: Any, address: PostgresAddress, trace: LogTrace | None, *, begin_anew: bool
) -> list[str]:
    """Make what is missing, but no empty log where one was, unless that is wanted; what was made, in words."""
    if trace is not None and trace.exists and not await tables.find_version(connection, address.schema):
        if not begin_anew:
            raise log_gone(f"there is no log at {address.shown}, and this node was part of one there")
        trace.forget()
    return await tables.migrate(connection, address.schema, address.lock)


async def init(url: str, setup: EngineSetup) -> list[str]:
    """Make the schema and its tables, or bring them to this version; what was done, in words."""
    address = parse_address(url)
    async with _visit(address) as connection:
        return await _make_unless_gone(connection, address, _trace(address, setup), begin_anew=setup.begin_anew)


async def inspect(url: str, setup: EngineSetup) -> Inspection:
    """What is there; nothing is made."""
    address = parse_address(url)
    async with _visit(address) as connection:
        version = await tables.find_version(connection, address.schema)
        durability, replicas = await ask_durability(connection)
    return Inspection(
        place=address.shown,
        log=version > 0,
        knows=tables.VERSION,
        format=version or None,
        missing=() if version >= tables.VERSION else (f"the tables of version {tables.VERSION} in {address.schema}",),
        replicas=replicas,
        durability=durability,
        loss_window_s=0 if durability.durable else None,
        gone=not version and _trace(address, setup).exists,
    )


@asynccontextmanager
async def _visit(address: PostgresAddress) -> AsyncIterator[Any]:
    connections = PostgresConnections(address, MonotonicClock())
    try:
        await connections.probe()
        async with connections.reader() as connection, connections.whole(connection):
            yield connection
    except DRIVER_ERRORS as error:
        raise translated(error, address.shown) from error
    finally:
        await connections.close()
