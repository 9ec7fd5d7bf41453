"""What the kernel counts of its requests: how they ended and how long they took, by their type.

Only types somebody handles have a row, so the table cannot grow with what clients send. What was refused before it
reached an actor is counted by the kind of the refusal.
"""

from __future__ import annotations

from typing import Final

from mainspring.kernel import errors as faults
from mainspring.telemetry.histogram import Histogram, nanoseconds

_OUTCOMES: Final = {
    faults.TIMEOUT: "timeout",
    faults.ACTOR_CRASH: "fault",
    faults.ACTOR_FAULT: "fault",
    faults.UNHEALTHY: "fault",
    faults.SHUTTING_DOWN: "shutdown",
}


class Tally:
    """Of one contract. `errors` are the outcomes that were no reply, by name; all others were replies."""

    __slots__ = ("errors", "ns")

    def __init__(self) -> None:
        self.ns: Histogram = nanoseconds()
        self.errors: dict[str, int] = {}

    def failed(self, error: str) -> None:
        """A request ended with an error of this type."""
        name = _OUTCOMES.get(error, "refused")
        self.errors[name] = self.errors.get(name, 0) + 1

    def outcomes(self) -> dict[str, int]:
        """How many requests ended how: reply, refused, timeout, fault or shutdown."""
        return {"reply": self.ns.count - sum(self.errors.values()), **self.errors}
