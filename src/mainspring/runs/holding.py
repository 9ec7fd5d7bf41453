"""What an effect holds while it is unanswered: timers, tasks, a place in a queue. All of it goes when it is over.

An effect is over when it is answered, when it failed, and when its run ended; nothing of it may come back later. What
cannot be let go is logged: neither the answer nor the ending waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mainspring.runs.run import Run

logger: logging.Logger = logging.getLogger("mainspring.runs")


_MANY: Final = 8  # things held by one effect, after which timers that rang are no longer counted among them


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
        if isinstance(release, int):
            run._scheduler.alarms.forget(release)
            continue
        try:
            release()
        except Exception:
            logger.exception("something that run %s held could not be released", run.id)


def hold_timer(run: Run[Any], delay_ms: float, call: Callable[[], object]) -> int:
    """A timer that goes with the effect; what it raises is raised by the effect's handler."""
    scheduler = run._scheduler
    timer = scheduler.timer(delay_ms, partial(_ring, run, call))
    if run._done:
        scheduler.alarms.forget(timer)
    elif run._releases is None:
        run._releases = [timer]
    else:
        if len(run._releases) >= _MANY:
            pending = scheduler.alarms
            run._releases = [each for each in run._releases if not isinstance(each, int) or each in pending]
        run._releases.append(timer)
    return timer


def _ring(run: Run[Any], call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        if run._asked is None:
            raise  # it has answered, or there was nothing to answer
        run._scheduler.answered(run, run._steps, run._asked, None, error)
