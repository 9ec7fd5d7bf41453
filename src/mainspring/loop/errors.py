"""What can go wrong with the loop itself, as opposed to inside a turn."""

from __future__ import annotations

from mainspring.errors import MainspringError


class ClockError(MainspringError, ValueError):
    """A clock was asked to go backwards, or to a time that is not a number."""

    code = "bad_time"


class DuplicateTimer(MainspringError, ValueError):
    """A timer with this id is already pending."""

    code = "duplicate_timer"


class LoopLimit(MainspringError, RuntimeError):
    """The loop was still busy after the number of turns its caller allowed."""

    code = "loop_limit"


class LoopStalled(MainspringError, RuntimeError):
    """The loop waits for something that can no longer happen."""

    code = "loop_stalled"


class LoopBusy(MainspringError, RuntimeError):
    """The loop was driven from inside one of its own turns, or attached to two hosts."""

    code = "loop_busy"
