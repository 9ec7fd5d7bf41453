"""Names the run that does not give the loop back.

A step is ordinary Python: a program that computes for seconds, or for ever, stops everything else on its loop, and
nothing on that loop can say so. So a thread looks from outside. It compares what it sees now with what it saw one
interval ago; the scheduler does nothing for it. Each such step is reported once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from mainspring.runs.scheduler import Scheduler

logger = logging.getLogger("mainspring.runs")

SlowStep = Callable[[str, str, int], object]  # run id, program, milliseconds at least


def warn(run_id: str, program: str, ms: int) -> None:
    logger.warning(
        "run %s (%s) has not suspended for %d ms; nothing else runs: perform effects, or compute in a handler",
        run_id,
        program,
        ms,
    )


class Watchdog:
    """Watches one scheduler until `stop`, or until the scheduler is gone."""

    def __init__(self, scheduler: Scheduler, slow_step_ms: int, report: SlowStep = warn) -> None:
        self._scheduler = ref(scheduler)
        self._interval_ms = max(1, slow_step_ms)
        self._report = report
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mainspring-runs-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        seen: tuple[str, int] | None = None
        reported = False
        while not self._stopped.wait(self._interval_ms / 1000):
            scheduler = self._scheduler()
            if scheduler is None:
                return
            run = scheduler.current
            now = None if run is None else (run.id, run.steps)
            if run is None or now != seen:
                seen, reported = now, False
            elif not reported:
                reported = True
                self._report(run.id, run.program, self._interval_ms)
            del scheduler, run
