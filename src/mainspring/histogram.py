"""A histogram that costs a search and two additions: what a hot path can afford, without a lock.

The bounds are those of Prometheus' cumulative buckets; the buckets themselves are counted apart and summed up when
somebody looks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

# From a turn in memory to a request that somebody notices; each about three times the one before.
SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COUNTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)


class Histogram:
    """Counts observations by size. Used from one thread."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, int]]:
        """Upper bound and how many were at most that, as Prometheus wants them; the last bound is +Inf."""
        names = [*(repr(bound) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
