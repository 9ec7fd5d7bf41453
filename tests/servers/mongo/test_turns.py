"""Whichever engine a commit goes through, the log answers as if there were one: three engines in turns, and a model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hypothesis import given, settings

from mainspring.log import ABSENT, Batch, Bounds, Guard, Mark, Record, Result, StoredEvent
from mainspring.log.engines.mongo import MongoEngine
from tests.support.log_model import Comparison, steps
from tests.support.mongo_server import new_database


class Turns:
    """Three engines that look like one. They are never given time to hear of each other."""

    name = "turns"

    def __init__(self, address: str) -> None:
        memory = (0, 300, 1 << 20)  # from "asks the server for everything" to "has it all"
        self._engines = [MongoEngine(f"{address}?poll_ms=60000", recent_bytes=recent) for recent in memory]
        self._turn = itertools.cycle(self._engines)

    async def open(self) -> None:
        for engine in self._engines:
            await engine.open()

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines))

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        return await next(self._turn).commit(batches)

    async def _reader(self) -> MongoEngine:
        engine = next(self._turn)
        await engine.commit([Batch([Guard("nobody", "wrote this", ABSENT)])])  # knows everything now
        return engine

    async def read(self, topic: str, partition: int, start: int, limit: int) -> list[StoredEvent]:
        return await (await self._reader()).read(topic, partition, start, limit)

    async def topics(self) -> list[str]:
        return await (await self._reader()).topics()

    async def bounds(self, topic: str) -> list[Bounds]:
        return await (await self._reader()).bounds(topic)

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        return await (await self._reader()).offset_at(topic, partition, ts)

    async def spaces(self) -> list[str]:
        return await (await self._reader()).spaces()

    async def scan(self, space: str) -> AsyncIterator[Record]:
        async for record in (await self._reader()).scan(space):
            yield record

    async def marks(self) -> AsyncIterator[Mark]:
        async for mark in (await self._reader()).marks():
            yield mark


@settings(max_examples=12)
@given(plan=steps)
def test_three_engines_in_turns_behave_like_the_model(plan: list[list[Batch] | str]) -> None:
    async def run(address: str) -> None:
        engines: Any = Turns(address)
        comparison = Comparison(engines)
        await engines.open()
        for step in plan:
            if isinstance(step, str):
                await engines.close()
                comparison.engine = engines = Turns(address)
                await engines.open()
            else:
                await comparison.commit(step)
        await comparison.check()
        await engines.close()

    asyncio.run(run(new_database()))
