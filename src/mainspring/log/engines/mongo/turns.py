"""Which node puts an entry in place, and when it is there.

It is the turn of the node that stored the first entry not yet in place. It takes that one and all behind it that it
knows, its own or not, and then says how far the journal is `applied`; everybody else waits for that. When it does not
move for a while the node whose turn it is is dead or stopped, and whoever notices first does its work; the work can be
done twice. So one node at a time puts entries in place as long as nothing goes wrong, in large steps when many write,
and a commit need not wait for it: it is decided when it is in the journal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pymongo.errors import PyMongoError

from mainspring.log.contract import LogUnavailable
from mainspring.log.engines.mongo.applier import Applier, first_run
from mainspring.log.engines.mongo.effects import Entry
from mainspring.log.engines.mongo.journal import Journal
from mainspring.log.engines.mongo.known_state import Ledger
from mainspring.loop import Clock

_MOST_WAITING: Final = 64  # entries; a commit waits for the oldest of them when there are more
_SHORTEST_MS: Final = 4
_LONGEST_MS: Final = 50
_NOBODY_WAITS_MS: Final = 250
_LOST_MS: Final = 500
_STUCK: Final = 3  # times the usual patience is enough, also with one that shows signs of life


class Placing:
    """The entries between the journal and the collections."""

    def __init__(
        self, node: str, ledger: Ledger, journal: Journal, applier: Applier, clock: Clock, takeover_ms: int
    ) -> None:
        self._node = node
        self._ledger = ledger
        self._journal = journal
        self._applier = applier
        self._clock = clock
        self._takeover_ms = takeover_ms * (8 + int(node[-1], 16) % 8) // 8  # not all nodes in the same moment
        self._waiting: deque[Entry] = deque()
        self._more = asyncio.Event()
        self._urged = asyncio.Event()
        self._moved: set[asyncio.Event] = set()
        self._since_ms: int = clock.now_ms()  # since when the one whose turn it is gives no sign of life
        self._stuck_since_ms: int = self._since_ms  # and since when nothing moves, whatever the reason
        self.taken_over: int = 0  # entries of other nodes that this one put in place

    def add(self, entry: Entry) -> None:
        if not self._waiting:
            self._begin_waiting()
        elif self._waiting[0].node == entry.node:
            self._since_ms = self._clock.now_ms()
        self._waiting.append(entry)
        self._more.set()

    async def run(self) -> None:
        pause = _SHORTEST_MS
        while True:
            if not self._waiting:
                self._more.clear()
                await self._more.wait()
                pause = _SHORTEST_MS
            asked_ms = self._clock.now_ms()
            try:
                if await self._advance():
                    pause = _SHORTEST_MS
                    continue
                longest = _LONGEST_MS if self._is_awaited() else _NOBODY_WAITS_MS
            except PyMongoError:
                longest = _LOST_MS
                self._begin_waiting()  # the one whose turn it is may have the same trouble
            await self._rest(max(pause, self._clock.now_ms() - asked_ms))  # a slow server is not asked more often
            pause = min(2 * pause, longest)

    async def _rest(self, pause_ms: int) -> None:
        """A pause that ends early when somebody begins to wait."""
        self._urged.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._urged.wait()

    def _is_awaited(self) -> bool:
        return bool(self._moved) or any(entry.node == self._node for entry in self._waiting)

    async def _advance(self) -> bool:
        """Bring the first ones in place, or see that they are; whether there was progress."""
        own = self._waiting[0].node == self._node
        if own and self._silent_ms() < self._takeover_ms // 2:
            await self._apply(first_run(self._waiting))
            return True
        asked_ms = self._clock.now_ms()
        applied, _ = await self._journal.applied()
        if applied >= self._waiting[0].number:
            self._settle(applied)
            return True
        if self._clock.now_ms() - asked_ms > self._takeover_ms // 4:
            self._since_ms = self._clock.now_ms()  # the server is slow, for everybody
        stuck = self._clock.now_ms() - self._stuck_since_ms >= _STUCK * self._takeover_ms
        if not own and not stuck and self._silent_ms() < self._takeover_ms:
            return False
        self.taken_over += not own
        await self._apply(first_run(self._waiting))
        return True

    def _begin_waiting(self) -> None:
        self._since_ms = self._stuck_since_ms = self._clock.now_ms()

    def _silent_ms(self) -> int:
        return self._clock.now_ms() - self._since_ms

    async def _apply(self, run: list[Entry]) -> None:
        await self._applier.apply(run)
        applied, _ = await self._journal.applied()
        if applied < run[-1].number:
            await self._journal.set_applied(run[-1].number, run[-1].body.version)
        else:
            await self._apply_again(run[0].number)
        self._settle(max(applied, run[-1].number))

    async def _apply_again(self, first: int) -> None:
        """Another node did the same work, and has perhaps gone further.

        Where the server compares and writes in one step nothing can have gone wrong. Where it does not, something newer
        may have been overwritten in between; putting everything since then in place once more mends that.
        """
        position = first - 1
        while position < self._ledger.position and (entries := await self._journal.after(position)):
            run = first_run(entries)
            await self._applier.apply(run)
            position = run[-1].number

    def _settle(self, applied: int) -> None:
        while self._waiting and self._waiting[0].number <= applied:
            self._ledger.settle(self._waiting.popleft())
        self._begin_waiting()
        for moved in self._moved:
            moved.set()

    # -- waiting for it

    async def room(self, patience_ms: int) -> None:
        """Wait until not too much is waiting."""
        if len(self._waiting) > _MOST_WAITING:
            await self.reached(self._waiting[-_MOST_WAITING].number, patience_ms)

    async def reached(self, number: int, patience_ms: int) -> None:
        """Wait until the entry of this number is in place. Raises `LogUnavailable`."""
        await self._until(lambda: self._ledger.applied >= number, patience_ms)

    async def _until(self, done: Callable[[], bool], patience_ms: int) -> None:
        if done():
            return
        moved = asyncio.Event()
        self._moved.add(moved)
        self._urged.set()
        try:
            async with asyncio.timeout((patience_ms + self._takeover_ms) / 1000):
                while not done():
                    moved.clear()
                    await moved.wait()
        except TimeoutError:
            raise LogUnavailable(
                "what was committed last cannot be read yet: the server is away or slow", remedy="try again"
            ) from None
        finally:
            self._moved.discard(moved)
