"""What beats refuse, each with the stable code a program can compare."""

from __future__ import annotations

from mainspring.errors import MainspringError


class InvalidPath(MainspringError):
    """A path is malformed, reserved, or has a wildcard where only literal paths stand."""

    code = "invalid_path"


class InvalidImpulse(MainspringError):
    """A signal names neither what nor where, or a beat that is not a number."""

    code = "invalid_impulse"


class InvalidValue(MainspringError):
    """A value that JSON cannot hold exactly."""

    code = "invalid_value"


class InvalidRegistration(MainspringError):
    """An enzyme's name, match policy, dependencies or function do not fit."""

    code = "invalid_registration"


class RegistrationConflict(MainspringError):
    """The same name and query were registered before with another match policy or other dependencies."""

    code = "registration_conflict"


class PastBeat(MainspringError):
    """A signal for a beat that has begun or is over."""

    code = "past_beat"


class UnknownBeat(MainspringError):
    """A beat that has not happened yet, or whose details are past their retention."""

    code = "unknown_beat"


class BeatRunning(MainspringError):
    """The operation needs a heartbeat at rest, and a beat is under way."""

    code = "beat_running"


class RunningLoop(MainspringError):
    """`beat()` met an async enzyme while an asyncio loop runs in this thread. The beat was rolled back."""

    code = "running_loop"


class StageClosed(MainspringError):
    """A stage was used after its enzyme had ended."""

    code = "stage_closed"


class LineBusy(MainspringError):
    """Another process has written this line of beats since it was opened here."""

    code = "line_busy"


class NotLeading(MainspringError):
    """Another node runs the beats of this line."""

    code = "not_leading"


class LineExists(MainspringError):
    """A fork may not replace a line: history is never rewritten."""

    code = "line_exists"


class MissingEnzyme(MainspringError):
    """A recorded beat called an enzyme this program does not have."""

    code = "missing_enzyme"


class DamagedJournal(MainspringError):
    """The journal of a beat does not fit its digest."""

    code = "damaged_journal"

    def __init__(self, beat: int, message: str) -> None:
        super().__init__(
            f"beat {beat}: {message}",
            remedy=f"beats before {beat} are readable; fork from beat {beat - 1} or restore the log from a backup",
        )
        self.beat = beat


class NotOpen(MainspringError):
    """The heartbeat's log was not read yet, or needs a loop."""

    code = "not_open"
