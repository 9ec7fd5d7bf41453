"""Who asks for a record gets it, however many ask at the same moment: no request is forgotten between two exchanges."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from mainspring.log import LogUnavailable, Record
from mainspring.log.engines.postgres.reader import RecordRequests
from mainspring.loop import BackgroundTasks


class _Server:
    """The connections and the reader of an engine; it `answers` when it is told to."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked: list[list[str]] = []

    async def read(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(None)

    async def records(self, _: Any, places: Sequence[tuple[str, str]]) -> list[Record | None]:
        self.asked.append([key for _, key in places])
        await self.answers.wait()
        return [Record(key, b"", 1) for _, key in places]


class _Records:
    def __init__(self) -> None:
        self.server = _Server()
        self.tasks = BackgroundTasks(logging.getLogger(__name__), "a test")
        self._requests = RecordRequests(cast("Any", self.server), self.tasks)

    async def get(self, *keys: str) -> list[str]:
        """One after the other."""
        found = [await self._requests.get(("space", key), cast("Any", self.server)) for key in keys]
        return [record.key for record in found if record is not None]

    async def asked(self, *keys: str) -> asyncio.Task[list[str]]:
        """The same in a task, when the server has been asked for the first of them."""
        getting, before = asyncio.create_task(self.get(*keys)), len(self.server.asked)
        while len(self.server.asked) == before:  # noqa: ASYNC110 (a turn is what it takes)
            await asyncio.sleep(0)
        return getting


async def test_what_is_asked_for_while_all_exchanges_end_is_answered() -> None:
    records = _Records()
    first, second = await records.asked("a", "b", "c"), await records.asked("d")
    records.server.answers.set()
    async with asyncio.timeout(10):
        assert await first == ["a", "b", "c"]
        assert await second == ["d"]


async def test_closing_tells_all_who_wait_and_an_engine_that_is_opened_again_answers() -> None:
    records = _Records()
    waiting = [await records.asked("a"), await records.asked("b"), asyncio.create_task(records.get("c"))]
    await asyncio.sleep(0)
    await records.tasks.cancel()
    assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [LogUnavailable] * 3
    records.server.answers.set()
    assert await records.get("d") == ["d"]
