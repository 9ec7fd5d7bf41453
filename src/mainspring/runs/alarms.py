"""Timers of the scheduler: calls to be made in the first tick at or after their time.

Delays are cut to whole milliseconds; negative and NaN mean at once, which is the next tick. Calls leave by deadline,
equal deadlines in the order in which they were set. What is due is taken out before the first call is made: a call that
sets the next timer for this very moment waits for the next tick like everybody else, and cannot keep a tick for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from mainspring.loop import Clock, TimerEntry, TimerWheel

logger: logging.Logger = logging.getLogger("mainspring.runs")

LONGEST_MS: Final = 10**15  # thirty thousand years: an endless wait is one that nobody sees the end of


def whole_ms(ms: float) -> int:
    """A delay in whole milliseconds: fractions are cut, negative and NaN are 0, an endless one is `LONGEST_MS`."""
    if isinstance(ms, int) and 0 <= ms <= LONGEST_MS:
        return ms  # the usual case
    return int(min(ms, LONGEST_MS)) if ms > 0 else 0


class Alarms:
    """The pending timers of one scheduler."""

    __slots__ = ("_clock", "_due", "_set", "_wheel")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = TimerWheel()
        self._due: dict[Hashable, Callable[[], object]] = {}  # taken out of the wheel, not made yet
        self._set = 0

    def set(self, delay_ms: float, call: Callable[[], object]) -> tuple[int, int]:
        """Have `call` made after the delay; the timer's id and its deadline."""
        deadline = self._clock.now_ms() + whole_ms(delay_ms)
        self._set += 1
        self._wheel.schedule(TimerEntry(self._set, deadline, call, "run"))
        return self._set, deadline

    def forget(self, timer: int) -> bool:
        """False when it was made or forgotten before."""
        return self._due.pop(timer, None) is not None or self._wheel.cancel(timer)

    def __contains__(self, timer: int) -> bool:
        return timer in self._due or timer in self._wheel

    def any_due(self) -> bool:
        return bool(self._due) or (len(self._wheel) > 0 and self._wheel.has_ready(self._clock.now_ms()))

    def next_deadline(self) -> int | None:
        return self._wheel.next_deadline()

    def ring(self) -> None:
        """Make every call that is due. What one of them raises is logged and stops no other."""
        if len(self._wheel):
            now = self._clock.now_ms()
            while (entry := self._wheel.pop_ready(now)) is not None:
                self._due[entry.id] = entry.message
        for timer in list(self._due):
            call = self._due.pop(timer, None)
            if call is None:
                continue  # one that rang before it has had it forgotten
            try:
                call()
            except Exception:
                logger.exception("a timer of the runs failed")
