"""What can go wrong with a run, each with the remedy. Texts name effects and runs, never payloads."""

from __future__ import annotations

from typing import Any

from mainspring.errors import MainspringError


class RunError(MainspringError):
    """Base of everything the runs raise on purpose."""

    code = "run_error"


class UnhandledEffect(RunError):
    """No handler is registered for an effect that a program performed."""

    code = "unhandled_effect"


class WrongAnswer(RunError):
    """A handler answered with the wrong kind, or with something that is no answer."""

    code = "wrong_answer"


class AlreadyAnswered(RunError):
    """An effect was answered a second time; the first answer stands."""

    code = "already_answered"


class NotAnEffect(RunError):
    """A program suspended on something that is neither an effect nor a group."""

    code = "not_an_effect"


class HandlerGaveUp(RunError):
    """A handler's coroutine was cancelled although nobody cancelled the run."""

    code = "handler_gave_up"


class EffectTimeout(RunError):
    """A handler did not answer in the time its registration allows."""

    code = "effect_timeout"


class TimedOut(RunError):
    """A child did not end within its time and was cancelled."""

    code = "timed_out"


class NoHostLoop(RunError):
    """Something needs a running asyncio loop and there is none."""

    code = "no_host_loop"


class NotIdle(RunError):
    """The runtime was still busy after the given number of ticks."""

    code = "not_idle"


class UnobservedFailure(RunError):
    """A child failed, nobody looked at its outcome, and so its owner fails."""

    code = "unobserved_failure"


class GroupClosed(RunError):
    """A task was spawned in a group that is not open, or by a run that is over."""

    code = "group_closed"


class TakenOver(RunError):
    """Another node has taken this one's place; what it was about to write was not stored."""

    code = "taken_over"


class RunCancelled(RunError):
    """Raised to one who awaits a cancelled run. An ordinary error: it does not cancel the one who waits."""

    code = "run_cancelled"

    def __init__(self, run_id: str, reason: Any = None) -> None:
        super().__init__(
            f"run {run_id} was cancelled", remedy="use outcome() to tell endings apart without an exception"
        )
        self.run_id = run_id
        self.reason = reason
