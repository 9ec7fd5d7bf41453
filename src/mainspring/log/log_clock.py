"""`LogClock`: the time of day of a log that several nodes share.

Ids are remembered, events kept, schedules called and outcomes forgotten by times that one node writes and another one
judges. If each went by its own machine's clock, a machine that is eleven minutes ahead would store an id a second time.
So all of them go by the clock of the servers that hold the log: a node asks them for the time, and counts on from there
with its own monotonic clock, which nobody sets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mainspring.errors import MainspringError
from mainspring.log.contract import TimedEngine
from mainspring.loop import Clock, Loop, pause

logger: logging.Logger = logging.getLogger("mainspring.log")

_TRIES: Final = 3  # the one that was answered fastest counts
_AGAIN_MS: Final = 30_000
_EXACT_MS: Final = 20  # smaller differences are those of the way, and of clocks that are kept right slowly
_JUMP_MS: Final = 1_000
_NS_PER_MS: Final = 1_000_000


class LogClock:
    """The monotonic side is that of `clock`; so is the time of day, until the engine was asked for it."""

    def __init__(self, clock: Clock) -> None:
        self.now_ns: Callable[[], int] = clock.now_ns
        self.now_ms: Callable[[], int] = clock.now_ms
        self._ahead_ns = clock.wall_ns() - clock.now_ns()
        self._asked = False

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC, by the servers' clock."""
        return self.now_ns() + self._ahead_ns

    def wall_ms(self) -> int:
        """Milliseconds since 1970 in UTC, cut from `wall_ns`."""
        return (self.now_ns() + self._ahead_ns) // _NS_PER_MS

    async def ask(self, engine: TimedEngine) -> None:
        """Go by the time of the engine's servers. Raises `LogUnavailable`."""
        answers: list[tuple[int, int]] = []
        for _ in range(_TRIES):
            began = self.now_ns()
            time_ns = await engine.time_ms() * _NS_PER_MS
            took = self.now_ns() - began
            answers.append((took, time_ns - began - took // 2))
        took, ahead_ns = min(answers)
        self._believe(ahead_ns, took // 2 // _NS_PER_MS)

    def _believe(self, ahead_ns: int, uncertain_ms: int) -> None:
        wrong_ms = (ahead_ns - self._ahead_ns) // _NS_PER_MS
        if self._asked and abs(wrong_ms) <= _EXACT_MS + uncertain_ms:
            return
        if abs(wrong_ms) > _JUMP_MS + uncertain_ms:
            whose = "the log's servers set their clocks" if self._asked else "this machine's clock is wrong, or theirs"
            logger.warning("%s: nodes go by the time of the servers, a difference of %d ms", whose, wrong_ms)
        self._ahead_ns, self._asked = ahead_ns, True

    async def follow(self, engine: TimedEngine, loop: Loop) -> None:
        """Ask again and again, until cancelled."""
        while True:
            await pause(loop, _AGAIN_MS, ref=False)
            with suppress(MainspringError):
                await self.ask(engine)
