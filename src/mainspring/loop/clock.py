"""Clocks: where time comes from.

Everything that schedules asks a clock that was passed in; no other module reads the machine's time. Scheduling uses
the monotonic side (`now_ns`, `now_ms`), which starts anywhere and never goes back. The wall side is the time of day for
people and for records; it may jump when someone sets the machine's clock, so nothing is scheduled by it.

`VirtualClock` stands still until it is moved. What drives a program under virtual time (`Loop.advance`,
`Loop.run_until_quiescent`, `VirtualEventLoop`) moves it to exactly the next deadline, and only when nothing is left to
do at the present instant. It counts whole nanoseconds, so a thousand small steps add up to exactly one big one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mainspring.loop.errors import ClockError
from mainspring.loop.futures_and_tasks import wake

if TYPE_CHECKING:
    from mainspring.loop.loop import Loop

NS_PER_MS = 1_000_000
LONGEST_MS = 10_000 * 366 * 86_400_000  # ten thousand years


@runtime_checkable
class Clock(Protocol):
    """What the rest of Mainspring may rely on from any clock."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds; only differences mean anything."""
        ...

    def now_ms(self) -> int:
        """Monotonic milliseconds, cut (not rounded) from `now_ns`."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; for people, never for scheduling."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 in UTC, cut from `wall_ns`."""
        ...


class MonotonicClock:
    """The machine's clocks."""

    __slots__ = ()

    # The C function itself, not a method around it: the loop reads this clock once per turn.
    now_ns: Callable[[], int] = staticmethod(time.monotonic_ns)
    wall_ns: Callable[[], int] = staticmethod(time.time_ns)

    def now_ms(self) -> int:
        return time.monotonic_ns() // NS_PER_MS

    def wall_ms(self) -> int:
        return time.time_ns() // NS_PER_MS


class VirtualClock:
    """A clock that moves only when told.

    `start_ms` is the monotonic start, `wall_ms` the time of day at that instant (the start when not given). Fractions
    are cut and a negative start counts as 0. The wall clock moves along with the monotonic one; `shift_wall` moves it
    alone, as an administrator setting the time would.
    """

    __slots__ = ("_listeners", "_now_ns", "_pins", "_wall_offset_ns")

    def __init__(self, start_ms: float = 0, wall_ms: float | None = None) -> None:
        start = max(0, _whole(start_ms, "start_ms"))
        wall = start if wall_ms is None else _whole(wall_ms, "wall_ms")
        self._now_ns = start * NS_PER_MS
        self._wall_offset_ns = (wall - start) * NS_PER_MS
        self._listeners: list[Callable[[], object]] = []
        self._pins = 0

    def now_ns(self) -> int:
        return self._now_ns

    def now_ms(self) -> int:
        return self._now_ns // NS_PER_MS

    def wall_ns(self) -> int:
        return self._now_ns + self._wall_offset_ns

    def wall_ms(self) -> int:
        return self.wall_ns() // NS_PER_MS

    def advance(self, ms: float) -> None:
        """Move forward by `ms`; fractions count down to the nanosecond. Nothing runs: drivers do that."""
        self.move_to_ns(self._now_ns + _nanoseconds(ms))

    def move_to(self, ms: float) -> None:
        """Move forward to the monotonic instant `ms`."""
        self.move_to_ns(_nanoseconds(ms))

    def move_to_ns(self, ns: int) -> None:
        """Move forward to the monotonic instant `ns`; going back is refused."""
        if ns < self._now_ns:
            raise ClockError(
                f"a virtual clock at {self._now_ns} ns cannot go back to {ns} ns",
                remedy="make a new clock for a new test",
            )
        if ns == self._now_ns:
            return
        self._now_ns = ns
        for listener in tuple(self._listeners):
            listener()

    def shift_wall(self, ms: float) -> None:
        """Move the time of day alone, forwards or backwards; deadlines do not notice."""
        self._wall_offset_ns += _nanoseconds(ms)

    def on_move(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after every move; returns the function that ends it."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    @property
    def pinned(self) -> bool:
        """True while someone does real work that virtual time must wait for."""
        return self._pins > 0

    def pin(self) -> None:
        """Keep drivers from jumping ahead while real work (a thread, a disk) is under way; `unpin` ends it."""
        self._pins += 1

    def unpin(self) -> None:
        """Undo one `pin`."""
        self._pins -= 1


async def pause(loop: Loop, ms: float, *, ref: bool = True) -> None:
    """Wait on a loop's clock. When the wait is cancelled, so is its timer. `ref`: the loop is not idle meanwhile."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = loop.schedule(ms, wake, waiter, ref=ref)
    try:
        await waiter
    finally:
        loop.cancel(timer)


def span_ns(ms: float) -> int:
    """A delay in nanoseconds: rounded up, so that it is never cut short; a negative one counts as 0.

    Every delay is at most `LONGEST_MS`: numbers of any size are delays, and none is too large for the arithmetic.
    """
    if isinstance(ms, float) and not math.isfinite(ms):
        raise ClockError(f"a delay must be a finite number of milliseconds, not {ms}", remedy="give a number")
    return math.ceil(min(max(ms, 0), LONGEST_MS) * NS_PER_MS)


def _whole(value: float, name: str) -> int:
    if not math.isfinite(value):
        raise ClockError(f"{name} must be a finite number, not {value}", remedy="give milliseconds")
    return int(value)


def _nanoseconds(ms: float) -> int:
    if isinstance(ms, int):
        return ms * NS_PER_MS
    if not math.isfinite(ms):
        raise ClockError(f"a time must be a finite number of milliseconds, not {ms}", remedy="give milliseconds")
    return round(ms * NS_PER_MS)
