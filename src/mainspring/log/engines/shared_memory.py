"""Several nodes on one log, all in this process: what tests of many nodes run on when no server is the point.

Each engine behaves like one on its own machine. It can be cut off (commits fail, news wait) and joined again, and it
can be made to lose the answer of a commit that was stored, which is what networks do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from mainspring.log.contract import (
    Batch,
    Bounds,
    Change,
    Durability,
    InDoubt,
    LogUnavailable,
    Mark,
    Outline,
    Receipt,
    Record,
    Restorable,
    Result,
    StoredEvent,
)
from mainspring.log.engines.changes import change_of
from mainspring.log.engines.memory import MemoryEngine


class SharedMemory:
    """The one log; `engine()` gives each node its own door to it."""

    def __init__(self) -> None:
        self.state: MemoryEngine = MemoryEngine()
        self.engines: list[SharedMemoryEngine] = []

    def engine(self) -> SharedMemoryEngine:
        """Another engine on the same state, as another node would have it."""
        engine = SharedMemoryEngine(self)
        self.engines.append(engine)
        return engine


class SharedMemoryEngine:
    """One node's engine."""

    name = "shared memory"

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._state = shared.state
        self._watchers: list[Callable[[Change], None]] = []
        self._news: deque[Change] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.cut_off: bool = False
        self.lose_answers = False  # store what comes, and answer that it is in doubt

    async def open(self) -> None:
        if self.cut_off:
            raise LogUnavailable("the log cannot be reached")
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        self._loop = None
        self._watchers.clear()
        self._news.clear()

    def watch(self, seen: Callable[[Change], None]) -> None:
        self._watchers.append(seen)

    async def durability(self) -> Durability:
        return Durability(durable=False, statement="memory of this process: nothing survives it")

    def join_again(self) -> None:
        """End a cut; what was committed meanwhile is reported now."""
        self.cut_off = False
        self._tell()

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        if self.cut_off:
            raise LogUnavailable("the log cannot be reached", remedy="try again")
        results = await self._state.commit(batches)
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, Receipt):
                for engine in self._shared.engines:
                    engine.hear(change_of(batch, result, own=engine is self))
        self._tell()
        if self.lose_answers:
            return [InDoubt("the answer was lost") for _ in batches]
        return results

    def hear(self, change: Change) -> None:
        """News of a commit, in the log's order; reported in a later turn of this node's loop."""
        if self._loop is not None:
            self._news.append(change)
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        while self._news and not self.cut_off:
            change = self._news.popleft()
            for seen in self._watchers:
                seen(change)

    async def forget_dedupe(self, now: int) -> int:
        return await self._state.forget_dedupe(now)

    async def restore(self, items: Sequence[Restorable]) -> None:
        await self._state.restore(items)

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        return await self._state.read(topic, partition, start, limit, max_bytes)

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        return await self._state.outline(topic, partition, start, limit)

    async def topics(self) -> list[str]:
        return await self._state.topics()

    async def bounds(self, topic: str) -> list[Bounds]:
        return await self._state.bounds(topic)

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        return await self._state.offset_at(topic, partition, ts)

    async def get(self, space: str, key: str) -> Record | None:
        return await self._state.get(space, key)

    def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        return self._state.scan(space, prefix, after)

    async def spaces(self) -> list[str]:
        return await self._state.spaces()

    def marks(self) -> AsyncIterator[Mark]:
        return self._state.marks()
