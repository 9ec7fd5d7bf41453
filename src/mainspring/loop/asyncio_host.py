"""The host: an asyncio event loop that runs the slices of a Mainspring loop.

Between two slices the host serves its sockets and tasks. With nothing to do the host sleeps in its own selector until
the next deadline or arrival: there is exactly one timer at the host, the earliest, and no polling.

Timers of the host may come a little early (uvloop counts in whole milliseconds) and the loop then sleeps again for the
rest, never less than a millisecond, so it neither fires early nor spins.

Slices run in the context (of `contextvars`) in which the loop was attached. Without that a slice would run in the name
of the message that happened to wake the loop, and what other messages cause in it would be attributed to that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from mainspring.loop.clock import NS_PER_MS, Clock, VirtualClock
from mainspring.loop.virtual_time import VirtualEventLoop

_T = TypeVar("_T")

LONGEST_SLEEP_S = 24 * 3600  # event loops limit a timer's length; waking once a day costs nothing


class EventLoopHost:
    """One attachment of a loop to an asyncio event loop."""

    def __init__(self, aio: asyncio.AbstractEventLoop, clock: Clock, on_slice: Callable[[], object]) -> None:
        self.aio: asyncio.AbstractEventLoop = aio
        self._clock = clock
        self._on_slice = on_slice
        self._context = copy_context()
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.armed_ms: int | None = None
        self._left = False
        self._stop_listening: Callable[[], None] | None = None
        self.shares_time: bool = isinstance(aio, VirtualEventLoop) and aio.clock is clock
        if isinstance(clock, VirtualClock) and not self.shares_time:
            # Time moves only by hand here; each move is an arrival.
            self._stop_listening = clock.on_move(self.next_slice)

    @property
    def moved_by_hand(self) -> bool:
        """Whether the clock's time passes only when a test says so."""
        return self._stop_listening is not None

    def next_slice(self) -> None:
        """Have one slice run as soon as the host gets to it; never, when the host has ended."""
        if self._next is None and not self.aio.is_closed():
            self._next = self.aio.call_soon(self._run, context=self._context)

    def next_slice_threadsafe(self) -> None:
        """The same from any thread."""
        try:
            self.aio.call_soon_threadsafe(self._arrived, context=self._context)
        except RuntimeError:
            if not self.aio.is_closed():
                raise
            # The host ended meanwhile. What arrived stays with the loop, for its next driver.

    def sleep_until(self, deadline_ms: int | None) -> None:
        """Have a slice run when this deadline is due; None: there is none.

        A timer that is armed for an earlier instant stays: waking once too often, after half a minute say, is cheaper
        than arming anew for every timeout that was cancelled. Virtual time would show it, so there it is exact.
        """
        if self._timer is not None:
            armed_ms = self.armed_ms or 0
            if deadline_ms == armed_ms or (not self.shares_time and (deadline_ms is None or deadline_ms > armed_ms)):
                return
            self._timer.cancel()
            self._timer = None
        self.armed_ms = deadline_ms
        if deadline_ms is None or self._stop_listening is not None:
            return
        self._timer = self.aio.call_later(self._delay_s(deadline_ms), self._due, context=self._context)

    def _delay_s(self, deadline_ms: int) -> float:
        delay_ns = deadline_ms * NS_PER_MS - self._clock.now_ns()
        if self.shares_time:
            return max(delay_ns, 0) / 1e9
        delay_ms = -(-delay_ns // NS_PER_MS)
        return min(max(delay_ms, 1) / 1000, LONGEST_SLEEP_S)

    def leave(self) -> None:
        self._left = True  # a call from another thread may still be on its way
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stop_listening is not None:
            self._stop_listening()

    def _run(self) -> None:
        self._next = None
        self._on_slice()

    def _due(self) -> None:
        self._timer = self.armed_ms = None
        self._arrived()

    def _arrived(self) -> None:
        if self._next is None and not self._left:
            self._on_slice()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Like `asyncio.run`, on the fastest event loop that is installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
