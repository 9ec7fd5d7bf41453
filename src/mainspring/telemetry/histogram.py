"""A histogram that costs one addition for the bucket and one for the sum: what a hot path can afford, without a lock.

What is observed is a whole number (nanoseconds, events), and its bucket is the number of its binary digits: no search,
no comparison. So the bounds double from one to the next, which is as fine as a quantile of a latency needs to be.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

_DIGITS: Final = 65  # of whatever fits 64 bits; what is larger counts as that


class Histogram:
    """Counts whole numbers by size. Used from one thread.

    A hot path does in place what `observe` does. `scale` turns what is observed into what people read (nanoseconds into
    seconds); shown are the bounds between `first` and `last` binary digits.
    """

    __slots__ = ("counts", "first", "last", "scale", "total")

    def __init__(self, *, scale: float = 1, first: int = 0, last: int = 13) -> None:
        self.counts: list[int] = [0] * _DIGITS
        self.total: int = 0
        self.scale: float = scale
        self.first: int = first
        self.last: int = last

    def observe(self, number: int) -> None:
        self.counts[number.bit_length()] += 1
        self.total += number

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def sum(self) -> float:
        return self.total * self.scale

    def buckets(self) -> list[tuple[str, int]]:
        """Upper bounds and how many were at most that, as Prometheus wants them; the last bound is +Inf."""
        upto = list(accumulate(self.counts))
        shown = [(_bound(digits, self.scale), upto[digits]) for digits in range(self.first, self.last + 1)]
        return [*shown, ("+Inf", upto[-1])]


def nanoseconds() -> Histogram:
    """Of durations in nanoseconds, shown in seconds: from 65 microseconds to 17 seconds."""
    return Histogram(scale=1e-9, first=16, last=34)


def numbers() -> Histogram:
    """Of how many: 1, 3, 7 and so on to 4095."""
    return Histogram(first=1, last=12)


def _bound(digits: int, scale: float) -> str:
    largest = (1 << digits) - 1 if scale == 1 else (1 << digits)
    return f"{largest * scale:.9g}"
