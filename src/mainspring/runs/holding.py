"""What an effect holds while it is unanswered: timers, tasks, a place in a queue. All of it goes when it is over.

An effect is over when it is answered, when it failed, and when its run ended; nothing of it may come back later. What
cannot be let go is logged: neither the answer nor the ending waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainspring.runs.run import Run

if TYPE_CHECKING:
    from mainspring.runs.scheduler import Scheduler

logger: logging.Logger = logging.getLogger("mainspring.runs")


def hold(run: Run[Any], release: Callable[[], object]) -> None:
    """Call `release` when the effect is over; at once when the run is."""
    if run._done:
        release()
    elif run._releases is None:
        run._releases = [release]
    else:
        run._releases.append(release)


def let_go(run: Run[Any]) -> None:
    """The effect is over."""
    releases, run._releases = run._releases, None
    for release in releases or ():
        try:
            release()
        except Exception:
            logger.exception("something that run %s held could not be released", run.id)


def hold_timer(scheduler: Scheduler, run: Run[Any], delay_ms: float, call: Callable[[], object]) -> int:
    """A timer that goes with the effect; what it raises is raised by the effect's handler."""
    handled, step = run._asked, run._steps

    def ring() -> None:
        if run._releases is not None and forget in run._releases:
            run._releases.remove(forget)  # a handler that sets one timer after the other holds one at a time
        try:
            call()
        except Exception as error:
            if handled is None or run._asked is not handled or run._steps != step:
                raise
            scheduler.answered(run, step, handled, None, error)

    timer = scheduler.timer(delay_ms, ring)

    def forget() -> None:
        scheduler.alarms.forget(timer)

    hold(run, forget)
    return timer
