"""Names the run that does not give the loop back.

A step is ordinary Python: a program that computes for seconds, or for ever, stops everything else on its loop, and
nothing on that loop can say so. So a thread looks from outside. It compares what it sees now with what it saw one
interval ago; the scheduler does nothing for it, except waking it when it fell asleep because nothing happened: an idle
process is left alone. Each such step is reported once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from mainspring.runs.scheduler import Scheduler

logger: logging.Logger = logging.getLogger("mainspring.runs")

SlowStep = Callable[[str, str, int], object]  # run id, program, milliseconds at least


def warn(run_id: str, program: str, ms: int) -> None:
    logger.warning(
        "run %s (%s) has not suspended for %d ms; nothing else runs: perform effects, or compute in a handler",
        run_id,
        program,
        ms,
    )


class Watchdog:
    """Watches one scheduler until `stop`, or until the scheduler is gone. Sleeps while the scheduler does."""

    def __init__(self, scheduler: Scheduler, slow_step_ms: int, report: SlowStep = warn) -> None:
        self.asleep: bool = False
        self._interval_s = max(1, slow_step_ms) / 1000
        self._report = report
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._scheduler = ref(scheduler, lambda _: self._end())
        self._thread = threading.Thread(target=self._watch, name="mainspring-runs-watchdog", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """The scheduler ticks again; called by it when it finds the watchdog asleep."""
        self._wake.set()

    def stop(self) -> None:
        self._end()
        self._thread.join()

    def _end(self) -> None:
        self._stopped.set()
        self._wake.set()

    def _watch(self) -> None:
        seen: tuple[int, str, int] | None = None
        reported = False
        while not self._stopped.wait(self._interval_s):
            now = self._look()
            if now is None or now != seen:
                seen, reported = now, False
            elif now[1] and not reported:
                reported = True
                self._tell(now[1])
            elif not now[1]:
                self._sleep(now)

    def _look(self) -> tuple[int, str, int] | None:
        """The tick, the run that has the turn, and its step; None when the scheduler is gone."""
        scheduler = self._scheduler()
        if scheduler is None:
            return None
        run = scheduler.current
        return (scheduler.ticks, "", 0) if run is None else (scheduler.ticks, run.id, run.steps)

    def _tell(self, run_id: str) -> None:
        scheduler = self._scheduler()
        run = None if scheduler is None else scheduler.current
        if run is not None and run.id == run_id:
            self._report(run.id, run.program, int(self._interval_s * 1000))

    def _sleep(self, seen: tuple[int, str, int]) -> None:
        """Nothing happened for an interval. Looking once more after saying so leaves no gap for a tick to slip by."""
        self._wake.clear()
        self.asleep = True
        if self._look() == seen and not self._stopped.is_set():
            self._wake.wait()
        self.asleep = False
