"""What happens when a run has its outcome: the program is closed, and everyone who wants to know is told.

Neither may stop the other or anything else: whatever a cleanup, a sink, a listener or a program raises here is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from mainspring.errors import MainspringError
from mainspring.runs.context import run_cleanup
from mainspring.runs.outcome import Failed, Outcome
from mainspring.runs.run import Run, release_waiters

logger: logging.Logger = logging.getLogger("mainspring.runs")

CLOSE_ATTEMPTS: Final = 16  # how often a program that swallows its closing is closed again

Listener = Callable[[Run[Any], Outcome[Any]], object]


class FailureSink(Protocol):
    def __call__(self, error: BaseException, run_id: str, /) -> object: ...


def tell_everyone(run: Run[Any], sink: FailureSink | None, listeners: Iterable[Listener]) -> None:
    """Cleanups, the failure sink, listeners, those who wait, and the family, in this order."""
    outcome = run._outcome
    assert outcome is not None
    closers, run._closers = run._closers, None
    for cleanup in closers or ():
        run_cleanup(cleanup, run.id)
    if isinstance(outcome, Failed):
        _report(outcome.error, run.id, sink)
    for listener in listeners:
        try:
            listener(run, outcome)
        except Exception:
            logger.exception("a listener for outcomes failed on run %s", run.id)
    tell_waiting(run, outcome)


def tell_waiting(run: Run[Any], outcome: Outcome[Any]) -> None:
    """Those who await the run, and its family."""
    if run._waiters:
        release_waiters(run)
    if run._family is not None:
        run._family.child_ended(run, outcome)


def _report(error: BaseException, run_id: str, sink: FailureSink | None) -> None:
    if sink is None:
        own = isinstance(error, MainspringError)  # says what to do; of any other error one wants to know where it was
        logger.error("run %s failed: %s: %s", run_id, type(error).__name__, error, exc_info=None if own else error)
        return
    try:
        sink(error, run_id)
    except Exception:
        logger.exception("the failure sink failed on run %s", run_id)


def close_program(run: Run[Any]) -> None:
    """Close the program, so that its finally blocks run; a program in the middle of its step is closed after it."""
    close = run._close
    if close is None:
        return
    run._send = run._close = None
    for _ in range(CLOSE_ATTEMPTS):
        try:
            close()
        except (ValueError, RuntimeError) as error:
            if "already executing" in str(error):  # the step closes it when it comes back
                run._close = close
                return
            if "ignored GeneratorExit" not in str(error):
                logger.exception("run %s raised while it was closed", run.id)
                return
        except BaseException:
            logger.exception("run %s raised while it was closed", run.id)
            return
        else:
            return
    logger.error("run %s (%s) swallows its closing; it was left behind", run.id, run.program)
