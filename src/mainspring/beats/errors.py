"""What beats refuse, each with the stable code a program can compare."""

from __future__ import annotations

from mainspring.errors import MainspringError


class InvalidPath(MainspringError, code="invalid_path"):
    """A path is malformed, reserved, or has a wildcard where only literal paths stand."""


class InvalidImpulse(MainspringError, code="invalid_impulse"):
    """A signal names neither what nor where, or a beat that is not a number."""


class InvalidValue(MainspringError, code="invalid_value"):
    """A value that JSON cannot hold exactly."""


class InvalidRegistration(MainspringError, code="invalid_registration"):
    """An enzyme's name, match policy, dependencies or function do not fit."""


class RegistrationConflict(MainspringError, code="registration_conflict"):
    """The same name and query were registered before with another match policy or other dependencies."""


class PastBeat(MainspringError, code="past_beat"):
    """A signal for a beat that has begun or is over."""


class UnknownBeat(MainspringError, code="unknown_beat"):
    """A beat that has not happened yet, or whose details are past their retention."""


class BeatRunning(MainspringError, code="beat_running"):
    """The operation needs a heartbeat at rest, and a beat is under way."""


class RunningLoop(MainspringError, code="running_loop"):
    """`beat()` met an async enzyme while an asyncio loop runs in this thread. The beat was rolled back."""


class StageClosed(MainspringError, code="stage_closed"):
    """A stage was used after its enzyme had ended."""


class LineBusy(MainspringError, code="line_busy"):
    """Another process has written this line of beats since it was opened here."""


class NotLeading(MainspringError, code="not_leading"):
    """Another node runs the beats of this line."""


class LineExists(MainspringError, code="line_exists"):
    """A fork may not replace a line: history is never rewritten."""


class MissingEnzyme(MainspringError, code="missing_enzyme"):
    """A recorded beat called an enzyme this program does not have."""


class DamagedJournal(MainspringError, code="damaged_journal"):
    """The journal of a beat does not fit its digest."""

    def __init__(self, beat: int, message: str) -> None:
        super().__init__(
            f"beat {beat}: {message}",
            remedy=f"beats before {beat} are readable; fork from beat {beat - 1} or restore the log from a backup",
        )
        self.beat = beat


class NotOpen(MainspringError, code="not_open"):
    """The heartbeat's log was not read yet, or needs a loop."""
