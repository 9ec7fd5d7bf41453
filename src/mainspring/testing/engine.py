"""A log that outlives its node: what a crash leaves behind.

Each life of a simulated node gets its own handle of the one engine. When the node is killed its handle dies: whatever
the old life still tries to write is never stored and never answered, as if the process were gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.log import Batch, MemoryEngine, Result


class MortalEngine:
    """One life's handle of an engine; reads pass through."""

    name = "memory"

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self.alive = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """The engine stays: another life may follow."""

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        if not self.alive:
            await asyncio.get_running_loop().create_future()
        return await self._engine.commit(batches)

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        if self.alive:
            self._engine.submit(batches, done)
