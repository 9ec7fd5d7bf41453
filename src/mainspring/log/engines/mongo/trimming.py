"""Deleting what nobody needs any more: old entries of the journal, and what deleted records and events left behind.

What is old is decided by each node with its own monotonic clock, from when it had come how far in the journal; clocks
of different nodes are not compared. Nodes that never live long enough for that would leave everything behind, so what
deletes left behind also goes after a day by the wall clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from pymongo.errors import PyMongoError

from mainspring.log.engines.mongo.applier import Applier
from mainspring.log.engines.mongo.journal import Journal
from mainspring.log.engines.mongo.known_state import Ledger
from mainspring.loop import Clock

_PAUSE_MS: Final = 30_000
_SHORTEST_PAUSE_MS: Final = 250
_STONES_MS: Final = 3_600_000  # longer than a broken connection can hold back a write
_DAY_MS: Final = 86_400_000


class Tidying:
    """`keep_ms` is how long entries stay for nodes that fell behind."""

    def __init__(self, ledger: Ledger, journal: Journal, applier: Applier, clock: Clock, keep_ms: int) -> None:
        self._ledger = ledger
        self._journal = journal
        self._applier = applier
        self._clock = clock
        self._keep_ms = keep_ms
        self._ages: deque[tuple[int, int, int]] = deque()  # monotonic ms, and the position and version of that time

    async def run(self) -> None:
        """Raises `Missed` when other nodes deleted what this one has not seen."""
        while True:
            await self.round()
            await asyncio.sleep(min(_PAUSE_MS, max(_SHORTEST_PAUSE_MS, self._keep_ms // 4)) / 1000)

    async def round(self) -> None:
        now = self._clock.now_ms()
        self._ages.append((now, self._ledger.applied, self._ledger.version))
        try:
            await self._journal.check_position(self._ledger.position)
            if (known := self._reached_by(now - self._keep_ms)) is not None:
                await self._journal.purge(*known)
            stones = self._reached_by(now - _STONES_MS)
            await self._applier.tidy(stones[0] if stones else 0, self._clock.wall_ms() - _DAY_MS)
        except PyMongoError:
            return  # the next round does it
        while len(self._ages) > 1 and self._ages[1][0] <= now - max(_STONES_MS, self._keep_ms):
            self._ages.popleft()

    def _reached_by(self, then_ms: int) -> tuple[int, int] | None:
        found = None
        for seen_ms, position, version in self._ages:
            if seen_ms <= then_ms and position:
                found = (position, version)
        return found
