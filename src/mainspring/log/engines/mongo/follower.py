"""Hearing of what other nodes commit.

Where the server has change streams, one on the journal says when to look; it is a wake-up and nothing more, so that
losing it costs time and never an entry. Where it has none, and beside it, the next number of the journal is looked for
again and again, with pauses that grow while nothing happens, and that are never shorter than the answer took: who asks
a slow server more often makes it slower. An own commit counts as a look: it would have found its number taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pymongo.errors import OperationFailure, PyMongoError

from mainspring.log.engines.mongo.schema import COMMITS
from mainspring.loop import Clock

_SHORTEST_MS: Final = 10
_WITH_STREAM_MS: Final = 1_000  # between looks while a change stream would say
_LOST_MS: Final = 500  # between tries while the server is away


class Follower:
    """Calls `look`, which tells whether there was news. Errors of the server are waited out; others end it."""

    def __init__(self, database: Any, clock: Clock, poll_ms: int, look: Callable[[], Awaitable[bool]]) -> None:
        self._commits = database[COMMITS]
        self._clock = clock
        self._poll_ms = poll_ms
        self._look = look
        self._wake = asyncio.Event()
        self._heard = False
        self._streaming = False
        self.reconnects: int = 0

    def heard(self) -> None:
        """There was news from elsewhere: no need to look for a while, and more may come soon."""
        self._heard = True
        self._wake.set()

    async def poll(self) -> None:
        pause, lost = _SHORTEST_MS, False
        while True:
            asked_ms = self._clock.now_ms()
            try:
                if await self._look():
                    pause = _SHORTEST_MS // 2  # more may come soon
                self.reconnects += lost
                lost = False
            except PyMongoError:
                pause, lost = _LOST_MS, True
            await self._rest(max(pause, self._clock.now_ms() - asked_ms))
            pause = min(max(pause, 1) * 2, _WITH_STREAM_MS if self._streaming else self._poll_ms)

    async def _rest(self, pause_ms: int) -> None:
        """Wait for a wake-up or the end of the pause; what was heard begins the pause anew."""
        while True:
            self._wake.clear()
            self._heard = False
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                return
            if not self._heard:
                return

    async def listen(self) -> None:
        """Let a change stream say when to look; returns where there is none."""
        while True:
            try:
                async with await self._commits.watch([{"$match": {"operationType": "insert"}}]) as stream:
                    self._streaming = True
                    async for _ in stream:
                        self._wake.set()
            except OperationFailure as error:
                if not error.has_error_label("ResumableChangeStreamError"):
                    return  # this server has none
            except PyMongoError:
                pass
            finally:
                self._streaming = False
            await asyncio.sleep(_LOST_MS / 1000)
