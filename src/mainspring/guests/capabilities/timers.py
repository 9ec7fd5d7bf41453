"""The timers of one loop: a table of ids over a timer wheel that counts in nanoseconds."""

from __future__ import annotations

from typing import NamedTuple, cast

from mainspring.guests.protocol.operations import MAX_U64
from mainspring.loop import TimerEntry, TimerWheel


class Due(NamedTuple):
    """A timer whose deadline has come."""

    id: int
    deadline: int


class Timers:
    """One-shot and repeating timers of a guest, delivered by exact deadline, equal ones in the order they were armed.

    A repeating timer keeps to its grid: the next deadline is the first multiple of the interval, counted from the first
    deadline, that is still to come. Ticks missed while nobody polled are one event, so a pause never becomes a burst.
    """

    def __init__(self) -> None:
        self._wheel = TimerWheel()
        self._intervals: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._intervals)

    def __contains__(self, ident: int) -> bool:
        return ident in self._intervals

    def arm(self, ident: int, deadline: int, interval: int) -> None:
        """Arms a timer; one with the same id is replaced."""
        if ident in self._intervals:
            self._wheel.cancel(ident)
        self._intervals[ident] = interval
        self._schedule(ident, deadline)

    def cancel(self, ident: int) -> bool:
        """Whether there was such a timer."""
        if self._intervals.pop(ident, None) is None:
            return False
        self._wheel.cancel(ident)
        return True

    def next_deadline(self) -> int | None:
        return self._wheel.next_deadline()

    def has_due(self, now: int) -> bool:
        return self._wheel.has_ready(now)

    def take(self, most: int, now: int) -> list[Due]:
        """Up to `most` due timers, which are no longer armed: `settle` them when the answer is complete."""
        due: list[Due] = []
        while len(due) < most and (entry := self._wheel.pop_ready(now)) is not None:
            due.append(Due(cast(int, entry.id), entry.deadline))
        return due

    def settle(self, delivered: list[Due], now: int) -> None:
        """Forgets delivered one-shot timers, arms repeating ones again: once per answer, however short the interval."""
        for ident, deadline in delivered:
            interval = self._intervals[ident]
            if interval:
                missed = (now - deadline) // interval
                self._schedule(ident, deadline + (missed + 1) * interval)
            else:
                del self._intervals[ident]

    def _schedule(self, ident: int, deadline: int) -> None:
        self._wheel.schedule(TimerEntry(ident, min(deadline, MAX_U64), None, "guest"))
