"""A node that may die behind any commit, or have any commit refused: is what belongs together stored together?

A `Story` is a program, what its clients do, and what must hold of the log: `check` at any moment, `check_end` when
everything has come to rest. `tell` executes it. With the fault "ends", nothing behind the n-th commit is stored: the
node says what it says for a while longer, is killed, and another one boots from what is there. With "refuses", the n-th
commit fails as on a full disk, and the same node goes on.

Every batch is a commit of its own here. A node gathers the batches of a slice in one commit, and so two batches that
should have been one are mostly stored together all the same; here they never are.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from mainspring import App, Fail
from mainspring.bus.groups.position import decode_position, record_key
from mainspring.errors import MainspringError
from mainspring.log import (
    Batch,
    Durability,
    Engine,
    LogUnavailable,
    MemoryEngine,
    Result,
    SqliteEngine,
    StoredEvent,
)
from mainspring.log.contract import ReadThrough
from mainspring.loop import VirtualClock, run_virtual
from mainspring.message import counted_ids
from mainspring.node import Core
from mainspring.node.core import BootFailure
from mainspring.settings import Settings
from mainspring.testing import seeds

Fault = Literal["", "ends", "refuses"]

START_MS: Final = 1_767_225_600_000
AFTERLIFE_S: Final = 1  # how long a node whose commits are stored no more goes on to say things
MOST_TRIES: Final = 50
_DAY_MS: Final = 86_400_000


class FaultyEngine(ReadThrough):
    """One life's handle of an engine, with a fault at the commit of number `at`. It counts batches as commits.

    `ended`: nothing is stored or answered any more. `over`: commits fail, so that the node can be taken apart.
    """

    def __init__(self, engine: Engine, fault: Fault = "", at: int = 0) -> None:
        super().__init__(engine)
        self.name = engine.name
        self.commits = 0
        self.ended = asyncio.Event()
        self.over = asyncio.Event()
        self._engine = engine
        self._fault, self._at = fault, at

    async def open(self) -> None:
        await self._engine.open()

    async def close(self) -> None:
        """It is closed when the life is over, however that ended."""

    async def durability(self) -> Durability:
        return await self._engine.durability()

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        return [await self._commit(batch) for batch in batches]

    async def _commit(self, batch: Batch) -> Result:
        if self.ended.is_set():
            await self.over.wait()
            return LogUnavailable("the world has ended")
        self.commits += 1
        if self._fault == "refuses" and self.commits == self._at:
            return LogUnavailable("there is no room on the disk", remedy="make room")
        (result,) = await self._engine.commit([batch])
        if self._fault == "ends" and self.commits == self._at:
            self.ended.set()
        return result

    async def forget_dedupe(self, now: int) -> int:
        return 0 if self.ended.is_set() else await self._engine.forget_dedupe(now)


class Stored:
    """What the log holds."""

    def __init__(self, events: dict[str, list[StoredEvent]], records: dict[str, dict[str, bytes]]) -> None:
        self._events = events
        self._records = records

    def events(self, topic: str) -> list[StoredEvent]:
        return self._events.get(topic, [])

    def payloads(self, topic: str) -> list[Any]:
        return [msgspec.json.decode(event.payload) for event in self.events(topic)]

    def records(self, space: str, prefix: str = "") -> dict[str, Any]:
        """Those that are JSON, decoded."""
        found = self._records.get(space, {})
        return {key: msgspec.json.decode(value) for key, value in found.items() if key.startswith(prefix)}

    def raw_records(self, space: str) -> dict[str, bytes]:
        return self._records.get(space, {})

    def open_events(self, topic: str, group: str) -> set[int]:
        """Offsets that the group was given, and has not settled."""
        value = self._records.get("groups", {}).get(record_key(topic, group, 0))
        return set() if value is None else set(decode_position(value).fields().events())

    def settled(self, topic: str, group: str) -> set[int]:
        """Offsets that the group has settled."""
        value = self._records.get("groups", {}).get(record_key(topic, group, 0))
        if value is None:
            return set()
        return set(range(1, decode_position(value).cursor)) - self.open_events(topic, group)


async def _read(engine: Engine) -> Stored:
    await engine.open()
    events: dict[str, list[StoredEvent]] = {}
    for topic in await engine.topics():
        for bounds in await engine.bounds(topic):
            events.setdefault(topic, []).extend(await engine.read(topic, bounds.partition, 1, 10_000))
    records = {space: {each.key: each.value async for each in engine.scan(space)} for space in await engine.spaces()}
    await engine.close()
    return Stored(events, records)


class Story:
    """What happens, and what must be true of it. Override `app`, `play`, `check` and `check_end`."""

    rest_s = 30.0  # virtual time until everything has come to rest

    def __init__(self) -> None:
        self.acknowledged: dict[str, Any] = {}
        self.tries: Counter[str] = Counter()
        self.begin_ms = START_MS

    def app(self) -> App:
        """The program; each life gets it anew."""
        raise NotImplementedError

    async def play(self, node: Core) -> None:
        """What clients do. A client that did not hear of its request's outcome before the node died asks again."""
        raise NotImplementedError

    def check(self, stored: Stored) -> None:
        """At any moment: what was acknowledged is there, and what belongs together is there together."""
        raise NotImplementedError

    def check_end(self, stored: Stored) -> None:
        """When everything has come to rest: all of it happened, and once."""
        raise NotImplementedError

    async def step(self, name: str, ask: Callable[[], Awaitable[Any]]) -> None:
        """Ask until it is acknowledged."""
        while name not in self.acknowledged:
            self.tries[name] += 1
            assert self.tries[name] < MOST_TRIES, f"{name} is refused again and again"
            try:
                self.acknowledged[name] = await ask()
            except (MainspringError, Fail):
                await asyncio.sleep(0.1)

    def was_sent_once(self, name: str) -> bool:
        return self.tries[name] == 1


class Telling:
    """One story, with at most one fault, on one log."""

    def __init__(self, story: Story, engine: Callable[[], Engine], folder: Path) -> None:
        self._story = story
        self._engine = engine
        self._folder = folder
        self._lives = 0
        self._now_ms = START_MS

    def live(self, fault: Fault = "", at: int = 0) -> int:
        """One life of the node; how many commits it made."""
        self._lives += 1
        clock = VirtualClock(self._now_ms, wall_ms=self._now_ms)
        engine = self._engine()
        handle = FaultyEngine(engine, fault, at)
        try:
            run_virtual(self._life(self._core(clock, handle), handle), clock=clock)
        finally:
            run_virtual(engine.close())
            self._now_ms = clock.wall_ms()
        return handle.commits

    def live_in_spite_of(self, at: int) -> None:
        """A life in which one commit is refused; a node that cannot boot because of that is started again."""
        try:
            self.live("refuses", at)
        except BootFailure:
            self.live()

    def stored(self) -> Stored:
        return run_virtual(_read(self._engine()))

    def _core(self, clock: VirtualClock, engine: FaultyEngine) -> Core:
        source = random.Random(self._lives)
        settings = Settings(
            engine="memory",
            data=str(self._folder),
            audit=False,
            metrics_interval_ms=0,
            retention_interval_ms=_DAY_MS,
            runs_recovery_ms=_DAY_MS,
            slow_enzyme_ms=0,
        )
        return Core(
            settings,
            self._story.app(),
            clock=clock,
            engine=engine,
            source=source,
            new_id=seeds.Ids(source, clock.wall_ms),
            message_ids=counted_ids(f"m{self._lives}"),
        )

    async def _life(self, core: Core, engine: FaultyEngine) -> None:
        lived = asyncio.ensure_future(self._act(core))
        ended = asyncio.ensure_future(engine.ended.wait())
        await asyncio.wait((lived, ended), return_when=asyncio.FIRST_COMPLETED)
        if engine.ended.is_set():
            await asyncio.sleep(AFTERLIFE_S)
        engine.ended.set()  # nothing is stored while the node is taken apart
        engine.over.set()
        failed = lived.done()
        lived.cancel()
        await asyncio.wait((lived,))
        if self._booted:
            await core.drain()
        if failed:
            lived.result()

    async def _act(self, core: Core) -> None:
        self._booted = False
        await core.boot()
        self._booted = True
        await self._story.play(core)
        await asyncio.sleep(self._story.rest_s)


def tell(make: Callable[[], Story], kind: str, folder: Path, fault: Fault = "", at: int = 0) -> int:
    """Execute a story and check it; how many commits its first life made."""
    story, memory = make(), MemoryEngine()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log.sqlite3"
    telling = Telling(story, (lambda: memory) if kind == "memory" else (lambda: SqliteEngine(path)), folder)
    try:
        commits = 0
        if fault == "refuses":
            telling.live_in_spite_of(at)
        else:
            commits = telling.live(fault, at)
        story.check(telling.stored())
        if fault == "ends":
            telling.live()
            story.check(telling.stored())
        story.check_end(telling.stored())
    except Exception as error:
        what = {"": "nothing happens", "ends": f"the world ends behind commit {at}", "refuses": f"commit {at} fails"}
        error.add_note(f"{type(story).__name__} on {kind}: {what[fault]}")
        raise
    return commits
