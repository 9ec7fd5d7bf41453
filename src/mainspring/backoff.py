"""How long to wait before trying again: twice as long after each failure, up to a limit.

The first pause is `first_ms` itself. Where many may fail at the same moment (the clients of a node that restarts), each
pause is shortened at random by up to half, so that they do not all come back in the same instant.

Nothing here reads a clock or sleeps: callers wait in their own way, and pass in their own source of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

JITTER = 0.5  # the largest part of a pause that chance takes away
_MOST_DOUBLINGS = 40  # a millisecond becomes 35 years; larger shifts would only make large numbers


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `first_ms` to `longest_ms`. A first pause of 0 means no pauses at all."""

    first_ms: int
    longest_ms: int

    def delay_ms(self, attempt: int, random: Callable[[], float] | None = None) -> int:
        """How long to wait after attempt number `attempt` (the first is 1) has failed.

        `random` gives numbers from 0 up to 1 and shortens the pause; without it the pause is exact.
        """
        full_ms = min(self.first_ms << min(attempt - 1, _MOST_DOUBLINGS), self.longest_ms)
        return full_ms if random is None else round(full_ms * (1 - JITTER * random()))

    def series(self, random: Callable[[], float] | None = None) -> BackoffSeries:
        """The pauses one after the other, for a loop that tries until it succeeds."""
        return BackoffSeries(self, random)


class BackoffSeries:
    """Counts the failures of one thing that is tried again and again."""

    __slots__ = ("_backoff", "_random", "failures")

    def __init__(self, backoff: Backoff, random: Callable[[], float] | None = None) -> None:
        self._backoff = backoff
        self._random = random
        self.failures: int = 0
        """How many failures there were since the last success."""

    def failed(self) -> int:
        """Count one more failure; how many ms to wait now."""
        self.failures += 1
        return self._backoff.delay_ms(self.failures, self._random)

    def succeeded(self) -> None:
        """The next failure counts as the first."""
        self.failures = 0
