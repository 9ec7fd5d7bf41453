"""`MongoEngine`: the log in a MongoDB database, shared by any number of nodes.

A commit is planned from what this node knows, and stored by one insert into the journal; that insert is the whole
decision. What the entry says is then put in place in the collections that readers (and other tools) look at. Reads of
what is not in place yet are answered from memory or wait; they never show half of a commit that this node knows of.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from bson import ObjectId
from pymongo.errors import PyMongoError

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Batch,
    Bounds,
    Change,
    Durability,
    LogUnavailable,
    Mark,
    Outline,
    Receipt,
    Record,
    Remove,
    Restorable,
    Result,
    StoredEvent,
)
from mainspring.log.mongo import schema
from mainspring.log.mongo.address import DEFAULT_DATABASE, Address, parse_address
from mainspring.log.mongo.applying import Applier
from mainspring.log.mongo.connecting import connect, database_of
from mainspring.log.mongo.documents import record_of
from mainspring.log.mongo.durability import describe
from mainspring.log.mongo.effects import Body, Entry
from mainspring.log.mongo.faults import may_pass, translated
from mainspring.log.mongo.following import Follower
from mainspring.log.mongo.journal import Journal, Missed
from mainspring.log.mongo.ledger import Ledger, Slot
from mainspring.log.mongo.placing import Placing
from mainspring.log.mongo.planning import MOST_BYTES, Plan, Present, Questions, restoring, size_of
from mainspring.log.mongo.reading import Reader
from mainspring.log.mongo.tidying import Tidying
from mainspring.loop import Clock, MonotonicClock

T = TypeVar("T")

_AGAIN_MS: Final = 100
_RIVALRY: Final = 8  # entries after which another node's last one is forgotten
_MOST_POLITE_MS: Final = 20


def _ignore(_: str) -> None:
    pass


class MongoEngine:
    """The log at an address `mongodb://...`. Several engines, in any number of processes, may have it open at once.

    `step` is for tests: it is told the name of each write before it is sent.
    """

    name = "mongodb"

    def __init__(
        self,
        url: str,
        *,
        database: str = DEFAULT_DATABASE,
        clock: Clock | None = None,
        step: Callable[[str], object] = _ignore,
    ) -> None:
        self.address: Address = parse_address(url, database)
        self.losses: int = 0  # commits that found their place taken and were planned again
        self._clock = clock or MonotonicClock()
        self._step = step
        self._watchers: list[Callable[[Change], None]] = []
        self._client: Any = None
        self._database: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._fault: MainspringError | None = None  # why this engine is of no use any more
        self._committing = asyncio.Lock()
        self._looking = asyncio.Lock()
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
        self._client, self._database = client, database
        self._reader = Reader(database)
        self._journal = Journal(database, self._node, self.address.shown, self._clock, self._step)
        position, version = max(await self._journal.applied(), await self._journal.floor())
        self._ledger = Ledger(position, version, await self._reader.standings())
        applier = Applier(database, self._step)
        self._placing = Placing(self._node, self._ledger, self._journal, applier, self._clock, self.address.takeover_ms)
        while await self._look():
            pass
        self._follower = Follower(database, self.address.poll_ms, self._look)
        self.tidying: Tidying = Tidying(self._ledger, self._journal, applier, self._clock, self.address.keep_ms)
        works = (self._follower.poll, self._follower.listen, self._placing.run, self.tidying.run)
        self._tasks = [asyncio.create_task(self._keep(work)) for work in works]

    async def close(self) -> None:
        if self._client is None:
            return
        async with self._committing:
            client = self._client
            if client is not None:
                with suppress(MainspringError):
                    await self._placing.reached(self._ledger.position, self.address.patience_ms)
                await self._stop(client)

    async def _stop(self, client: Any) -> None:
        self._client = None
        tasks, self._tasks = self._tasks, []
        while left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.1)  # again: a cancel that comes with an answer can be lost in the driver
        self._watchers.clear()
        await client.close()

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the engine; what ends it ends the engine."""
        try:
            await work()
        except MainspringError as error:
            self._fault = error
        except Exception as error:
            self._fault = LogUnavailable(f"the engine failed: {type(error).__name__}: {error}", remedy="start again")
            context = {"message": "a task of the log's engine failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

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
        hello = await self._patiently(lambda: self._client.admin.command("hello"))
        return describe(hello, self._client.write_concern.document)

    async def _look(self) -> bool:
        """Take in what is new in the journal; whether there was something."""
        position = self._ledger.position
        async with self._looking:
            if self._ledger.position == position:
                for entry in await self._journal.after(position):
                    self._absorb(entry)
        return self._ledger.position != position

    def _absorb(self, entry: Entry) -> None:
        if entry.number != self._ledger.position + 1:
            return  # it came another way meanwhile
        self._ledger.absorb(entry)
        self._placing.add(entry)
        own = entry.node == self._node
        if not own:
            self._rival_at = entry.number
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
            self._check()
            for group in _groups(batches):
                try:
                    results += await self._commit(group)
                except LogUnavailable as error:
                    results += [error] * (len(batches) - len(results))
                    break
        return results

    async def _commit(self, group: Sequence[Batch]) -> list[Result]:
        def planned(present: Present) -> tuple[Body | None, list[Result]]:
            plan = Plan(self._ledger, present)
            results = [plan.add(batch) for batch in group]
            return plan.body(), results

        if not any(batch.operations for batch in group):
            return [Receipt() for _ in group]
        return await self._decide(group, planned)

    async def restore(self, items: Sequence[Restorable]) -> None:
        async with self._committing:
            self._check()
            await self._decide((), lambda _: (restoring(self._ledger, items), None))

    async def _decide(self, group: Sequence[Batch], plan: Callable[[Present], tuple[Body | None, T]]) -> T:
        """Plan until the plan's place in the journal is free."""
        deadline = self._clock.now_ms() + self.address.patience_ms
        await self._be_polite()
        while True:
            self._check()
            await self._placing.room(self.address.patience_ms)
            position = self._ledger.position
            present = await self._ask(group)
            if self._ledger.position != position:
                continue
            body, results = plan(present)
            if body is None:
                # Nothing to store, so nothing proves that this node knows the newest: ask.
                if not await self._patiently(self._look):
                    return results
                continue
            entry = await self._append(position + 1, body, deadline)
            if entry is not None:
                self._absorb(entry)
                self._follower.heard()
                return results
            self.losses += 1
            await self._catch_up(position, deadline)

    async def _append(self, number: int, body: Body, deadline: int) -> Entry | None:
        start = self._clock.now_ms()
        try:
            return await self._journal.append(number, body, deadline)
        except Missed as error:
            self._fault = error
            raise
        finally:
            self._appended_at_ms = self._clock.now_ms()
            self._append_ms = self._appended_at_ms - start

    async def _be_polite(self) -> None:
        """Who has just stored an entry, with others after the same places, lets them go first.

        They must read that entry before they can plan theirs; without a pause the last winner would win again.
        """
        if self._ledger.position - self._rival_at < _RIVALRY:
            since = self._clock.now_ms() - self._appended_at_ms
            pause = min(self._append_ms, _MOST_POLITE_MS) - since
            if pause > 0:
                await asyncio.sleep(pause / 1000)

    async def _catch_up(self, position: int, deadline: int) -> None:
        """Wait until this node knows what took the place behind `position`."""
        while self._ledger.position == position:
            if not await self._patiently(self._look) and self._ledger.position == position:
                if self._clock.now_ms() >= deadline:
                    raise LogUnavailable(
                        f"MongoDB at {self.address.shown} does not show what another node committed", remedy="try again"
                    )
                await asyncio.sleep(0.002)

    async def _ask(self, group: Sequence[Batch]) -> Present:
        """Ask the server for what the batches depend on and this node does not know."""
        questions = Questions(self._ledger, group)
        if not questions:
            return {}
        position = self._ledger.position
        if questions.records or questions.marks:
            versions = await self._patiently(lambda: self._reader.versions(questions.records))
            marks = await self._patiently(lambda: self._reader.marks(questions.marks))
            if self._ledger.position == position:
                self._ledger.versions |= {place: versions.get(place, 0) for place in questions.records}
                self._ledger.marks |= {place: marks.get(place) for place in questions.marks}
        return {place: await self._hit_by(place, removals) for place, removals in questions.removals.items()}

    async def _hit_by(self, place: tuple[str, int], removals: Sequence[Remove]) -> dict[int, int]:
        slot = self._ledger.slots.get(place)
        if slot is None:
            return {}
        await self._settled(slot, 1)
        return await self._patiently(lambda: self._reader.hit_by(*place, removals, slot))

    async def forget_dedupe(self, now: int) -> int:
        self._check()
        await self._in_place(self._ledger.position)
        self._ledger.forget_marks(now)
        marks = self._database[schema.MARKS]
        result = await self._patiently(lambda: marks.delete_many({"until": {"$lt": now}}))
        return int(result.deleted_count)

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        self._check()
        found = self._ledger.recent(topic, partition, start, limit, max_bytes)
        if found is not None:
            return found
        slot = self._ledger.slots[topic, partition]
        await self._in_place(slot.commit)
        return await self._patiently(lambda: self._reader.events(topic, partition, start, limit, max_bytes, slot))

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        self._check()
        slot = self._ledger.slots.get((topic, partition))
        if slot is None or limit <= 0:
            return []
        await self._settled(slot, start)
        return await self._patiently(lambda: self._reader.outline(topic, partition, start, limit, slot))

    async def topics(self) -> list[str]:
        self._check()
        return sorted({topic for topic, _ in self._ledger.slots})

    async def bounds(self, topic: str) -> list[Bounds]:
        self._check()
        held = sorted((partition, slot) for (name, partition), slot in self._ledger.slots.items() if name == topic)
        found = []
        for partition, slot in held:
            await self._settled(slot, 1)
            found.append(await self._patiently(lambda p=partition, s=slot: self._reader.bounds(topic, p, s)))  # type: ignore[misc]
        return found

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        self._check()
        slot = self._ledger.slots.get((topic, partition))
        if slot is None:
            return 1
        await self._settled(slot, 1)
        return await self._patiently(lambda: self._reader.offset_at(topic, partition, ts, slot))

    async def get(self, space: str, key: str) -> Record | None:
        self._check()
        if (held := self._ledger.pending.get((space, key))) is not None:
            written = held[1]
            return None if written.value is None else Record(key, written.value, written.version)
        return await self._patiently(lambda: self._reader.record(space, key))

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        self._check()
        while True:
            await self._in_place(self._ledger.position)
            page = await self._patiently(lambda last=after: self._reader.page(space, prefix, last))  # type: ignore[misc]
            for document in page:
                yield record_of(document)
            if not page:
                return
            after = page[-1]["key"]

    async def spaces(self) -> list[str]:
        self._check()
        await self._in_place(self._ledger.position)
        return await self._patiently(self._reader.spaces)

    async def marks(self) -> AsyncIterator[Mark]:
        self._check()
        last: Mark | None = None
        await self._in_place(self._ledger.position)
        while page := await self._patiently(lambda after=last: self._reader.mark_page(after)):  # type: ignore[misc]
            for mark in page:
                yield mark
            last = page[-1]

    async def _settled(self, slot: Slot, start: int) -> None:
        """Wait until the collections know the partition as it is known here, unless they will not be asked."""
        if slot.held(start) is None:
            await self._in_place(slot.commit)

    async def _in_place(self, number: int) -> None:
        await self._placing.reached(number, self.address.patience_ms)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try again while the server is away, for as long as the address says."""
        deadline = self._clock.now_ms() + self.address.patience_ms
        while True:
            try:
                return await work()
            except PyMongoError as error:
                if not may_pass(error) or self._clock.now_ms() >= deadline:
                    raise translated(error, self.address.shown) from error
            await asyncio.sleep(_AGAIN_MS / 1000)


async def init(url: str, *, database: str = DEFAULT_DATABASE) -> list[str]:
    """Make the collections and indexes that are missing; what was done, in words. Harmless beside running nodes."""
    address = parse_address(url, database)
    client = connect(address)
    try:
        opened = database_of(client, address)
        await schema.check_format(opened)
        done = await schema.create(opened)
        return done or [f"everything is there already in {address.shown}"]
    except PyMongoError as error:
        raise translated(error, address.shown) from error
    finally:
        await client.close()


def _groups(batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Batches that go into one entry each time: in order, and not larger than a document may be."""
    groups: list[Sequence[Batch]] = []
    first = size = 0
    for at, batch in enumerate(batches):
        more = size_of(batch)
        if size and size + more > MOST_BYTES:
            groups.append(batches[first:at])
            first, size = at, 0
        size += more
    groups.append(batches[first:])
    return groups
