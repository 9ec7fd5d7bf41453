"""How often a task is tried, and how long it waits in between.

The policy travels with the task, in a header, so that a task keeps the promise it was enqueued with, whichever worker
gets it and whatever that worker's program says meanwhile. How often it was tried is counted by the node and survives
every restart. Waiting is done by the node, too: a worker that stops loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mainspring.client.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Retry:
    """After attempt k a task waits `first * factor**(k-1)` seconds, at most `longest`, shortened at random by up to
    `jitter` of it. After `attempts` deliveries it is a dead letter.
    """

    attempts: int = 5
    first: float = 1.0
    factor: float = 2.0
    longest: float = 600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first < 0 or self.factor < 1 or self.longest < 0 or not 0 <= self.jitter <= 1:
            raise BadArgument(
                f"{self} makes no sense", remedy="attempts >= 1, first and longest >= 0, factor >= 1, jitter 0 to 1"
            )

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Seconds to wait after this attempt failed."""
        full = min(self.first * self.factor ** min(attempt - 1, 64), self.longest)
        return full * (1 - self.jitter * random())

    def header(self) -> str:
        """As it travels with a task."""
        return f"{self.attempts} {self.first:g} {self.factor:g} {self.longest:g} {self.jitter:g}"

    @classmethod
    def from_header(cls, text: str | None, default: Retry) -> Retry:
        """The policy of a task; a header that makes no sense counts as none."""
        if not text:
            return default
        try:
            attempts, first, factor, longest, jitter = text.split(" ")
            return cls(int(attempts), float(first), float(factor), float(longest), float(jitter))
        except (ValueError, BadArgument):
            return default


NEVER = Retry(attempts=1)
