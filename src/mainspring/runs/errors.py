"""What can go wrong with a run, each with the remedy. Texts name effects and runs, never payloads.

First what every run can meet, then what only durable runs can.
"""

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
    """A handler's coroutine was cancelled although the run was not cancelled."""

    code = "handler_gave_up"


class EffectTimeout(RunError):
    """A handler did not answer in the time its registration allows."""

    code = "effect_timeout"


class ChildTimedOut(RunError):
    """A child did not end within its time and was cancelled."""

    code = "timed_out"


class NoHostLoop(RunError):
    """Something needs a running asyncio loop and there is none."""

    code = "no_host_loop"


class NotIdle(RunError):
    """The runtime was still busy after the given number of ticks."""

    code = "not_idle"


class UnobservedFailure(RunError):
    """A child failed, its outcome was never looked at, and so its owner fails."""

    code = "unobserved_failure"


class GroupClosed(RunError):
    """A task was spawned in a group that is not open, or by a run that is over."""

    code = "group_closed"


class UnknownProgram(RunError, TypeError):
    """A run names a program that is not registered here. A TypeError like everything else that is no program."""

    code = "unknown_program"


class RunCancelled(RunError):
    """Raised to one who awaits a cancelled run. An ordinary error: it does not cancel the one who waits."""

    code = "run_cancelled"

    def __init__(self, run_id: str, reason: Any = None) -> None:
        super().__init__(
            f"run {run_id} was cancelled", remedy="use outcome() to tell endings apart without an exception"
        )
        self.run_id = run_id
        self.reason = reason


# -- durable runs


class Unserialisable(RunError):
    """A value of a durable run cannot be written down. The message names the path of the value."""

    code = "unserialisable"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}", remedy="durable runs keep JSON values; convert it, or declare its type")
        self.path = path


class BadRunId(RunError):
    """An id that cannot name a durable run."""

    code = "bad_run_id"


class UnknownRun(RunError):
    """No durable run has this id."""

    code = "unknown_run"


class RunConflict(RunError):
    """The id belongs to another run, or to a run of another program."""

    code = "run_conflict"


class NotFinished(RunError):
    """Only a finished run can be retried."""

    code = "not_finished"


class ReplayMismatch(RunError):
    """The program no longer does what its journal says. The journal is kept: repair the program and retry the run."""

    code = "replay_mismatch"


class StoredFailure(RunError):
    """The error of a run that failed in another process, or before a restart; `error_type` is its class then."""

    code = "run_failed"

    def __init__(self, error_type: str, message: str, code: str = "") -> None:
        super().__init__(f"{error_type}: {message}", code=code or None)
        self.error_type = error_type


class TakenOver(RunError):
    """Another node has taken this one's place; what it was about to write was not stored."""

    code = "taken_over"
