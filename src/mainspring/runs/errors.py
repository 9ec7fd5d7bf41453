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


class HandlerDied(RunError):
    """The process ended too often while a handler was at work."""

    code = "handler_died"


class ChildTimedOut(RunError, TimeoutError):
    """A child did not end within its time and was cancelled."""

    code = "timed_out"


class WaitTimedOut(RunError, TimeoutError):
    """The signal or event that a program waited for did not come in time."""

    code = "wait_timed_out"


class NeverAwaited(RunError):
    """A program made an effect with `perform(...)` and did not await it, so it was not performed."""

    code = "never_awaited"


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


# -- errors of which only the text is kept


class UnknownQuestion(RunError):
    """The run's program declares no query or update of this name."""

    code = "unknown_question"


class NotExecuted(RunError):
    """The run is over, blocked, waits for its program, or is executed by another `node`: it cannot be asked here."""

    code = "not_executed"

    def __init__(self, message: str, *, remedy: str = "", node: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.node = node


class FailedByHand(RunError):
    """An operator let the run fail."""

    code = "failed_by_hand"


class StoredFailure(RunError):
    """An error that was raised elsewhere, or earlier: `type` is the name of its class, `message` its text."""

    code = "run_failed"

    def __init__(self, type: str, message: str, code: str = "") -> None:
        super().__init__(message, code=code or None)
        self.type = type

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


class EffectFailed(StoredFailure):
    """Raised at `await perform(...)`: the handler of the effect failed, after all its attempts.

    `effect` is the name of the effect or step, `type` the class of the handler's error and `message` its text. It is in
    the journal: a program that is executed again meets the same failure.
    """

    code = "effect_failed"

    def __init__(self, effect: str, type: str, message: str, code: str = "") -> None:
        super().__init__(type, message, code)
        self.effect = effect

    def __str__(self) -> str:
        return f"{self.effect} failed: {self.type}: {self.message}"


class EffectTimeout(EffectFailed, TimeoutError):
    """A handler did not answer in the time it has."""

    code = "effect_timeout"

    def __init__(self, effect: str, message: str) -> None:
        super().__init__(effect, "EffectTimeout", message)

    def __str__(self) -> str:
        return self.message


class ChildFailed(StoredFailure):
    """Raised where a program waits for a child that failed, and inside a group one of whose children failed."""

    code = "child_failed"

    def __init__(self, type: str, message: str, code: str = "", run_id: str = "") -> None:
        super().__init__(type, message, code)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"child{self.run_id and ' ' + self.run_id} failed: {self.type}: {self.message}"


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
    """The program no longer does what its journal says: the run is blocked until code that fits is back."""

    code = "replay_mismatch"


class TakenOver(RunError):
    """Another node has taken this one's place; what it was about to write was not stored."""

    code = "taken_over"
