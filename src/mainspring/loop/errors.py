"""What can go wrong with the loop itself, as opposed to inside a turn."""

from __future__ import annotations

from mainspring.errors import MainspringError


class ClockError(MainspringError, ValueError, code="bad_time"):
    """A clock was asked to go backwards, or to a time that is not a number."""


class DuplicateTimer(MainspringError, ValueError, code="duplicate_timer"):
    """A timer with this id is already pending."""


class LoopLimit(MainspringError, RuntimeError, code="loop_limit"):
    """The loop was still busy after the number of turns its caller allowed."""


class LoopStalled(MainspringError, RuntimeError, code="loop_stalled"):
    """The loop waits for something that can no longer happen."""


class LoopBusy(MainspringError, RuntimeError, code="loop_busy"):
    """The loop was driven from inside one of its own turns, or attached to two hosts."""
