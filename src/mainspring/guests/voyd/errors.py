"""What can go wrong with a guest."""

from __future__ import annotations

from mainspring.runs import RunError


class GuestRefused(RunError):
    """A module that does not fit the protocol; nothing of it was run."""

    code = "guest_refused"


class GuestProtocolError(RunError):
    """Host and guest do not understand each other: a bad status, frame or value. Fails the run."""

    code = "guest_protocol"


class GuestTrap(RunError):
    """The guest stopped itself; `panic` is what it said, if it said anything."""

    code = "guest_trap"

    def __init__(self, message: str, panic: str = "") -> None:
        super().__init__(f"{message}: {panic}" if panic else message)
        self.panic = panic


class GuestFailure(RunError):
    """The guest reported a failure as its completion."""

    code = "guest_failure"
