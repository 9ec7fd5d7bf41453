"""What the kernel counts of its requests: how they ended and how long they took, by their type.

Only types somebody handles have a row, so the table cannot grow with what clients send. What was refused before it
reached an actor is counted by the kind of the refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.histogram import Histogram
from mainspring.kernel import faults
from mainspring.message import Message

if TYPE_CHECKING:
    from mainspring.kernel.pending import Mail

NS_PER_S: Final = 1e9
OUTCOMES: Final = {
    faults.TIMEOUT: "timeout",
    faults.ACTOR_CRASH: "fault",
    faults.ACTOR_FAULT: "fault",
    faults.UNHEALTHY: "fault",
    faults.SHUTTING_DOWN: "shutdown",
}


class Tally:
    """Of one type of request. `errors` are the outcomes that were no reply, by name."""

    __slots__ = ("errors", "kind", "replies", "seconds")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.replies = 0
        self.errors: dict[str, int] = {}
        self.seconds = Histogram()


class Tallies:
    """By type; and the refusals of what was never dispatched, by the type of the error."""

    __slots__ = ("by_type", "refused")

    def __init__(self) -> None:
        self.by_type: dict[str, Tally] = {}
        self.refused: dict[str, int] = {}

    def count(self, outcome: Message, mail: Mail, now_ns: int) -> None:
        """A request has its outcome."""
        request = mail.message
        tally = self.by_type.get(request.type)
        if tally is None:
            tally = self.by_type[request.type] = Tally(request.kind)
        if outcome.kind == "reply":
            tally.replies += 1
        else:
            name = OUTCOMES.get(outcome.type, "refused")
            tally.errors[name] = tally.errors.get(name, 0) + 1
        tally.seconds.observe((now_ns - mail.began_ns) / NS_PER_S)
