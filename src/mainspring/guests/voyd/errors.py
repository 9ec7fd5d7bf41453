"""What can go wrong with a guest."""

from __future__ import annotations

from mainspring.runs import RunError


class GuestRefused(RunError, code="guest_refused"):
    """A module that does not fit the protocol; nothing of it was run."""


class GuestProtocolError(RunError, code="guest_protocol"):
    """Host and guest do not understand each other: a bad status, frame or value. Fails the run."""


class GuestTrap(RunError, code="guest_trap"):
    """The guest stopped itself; `panic` is what it said, if it said anything."""

    def __init__(self, message: str, panic: str = "") -> None:
        super().__init__(f"{message}: {panic}" if panic else message)
        self.panic = panic


class GuestFailure(RunError, code="guest_failure"):
    """The guest reported a failure as its completion."""
