"""asyncio under virtual time.

A program made of tasks, sleeps and timeouts can be tested without waiting: `VirtualEventLoop` is an asyncio event loop
whose time is a `VirtualClock`. asyncio asks its selector to wait only when no callback is ready. So the selector is the
one place that knows that nothing is left to do at this instant, however many `await`s lie between a test and its
sleep; there, instead of waiting, the clock jumps to the next deadline, exactly.

Real work is not hurried: sockets are looked at before every jump, and while something runs in an executor, or anyone
else has pinned the clock, the loop waits for it in real time and virtual time stands still. A commit that a thread of
ours makes durable is such work that the loop cannot see; `clock_to_pin` and `time_stands_still` are for that.

The reasons are in docs/decisions/virtual-time.md.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mainspring.loop.clock import VirtualClock
from mainspring.loop.futures_and_tasks import wake

_T = TypeVar("_T")
_Ready = list[tuple[selectors.SelectorKey, int]]
_Select = Callable[[float | None], _Ready]


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop that jumps over idle time.

    `clock` may be shared with a `Loop` attached to it: both then live in the same time. `io_grace_s` is how long, in
    real seconds, sockets get before a jump; give a little when another process takes part in the test.
    """

    def __init__(self, clock: VirtualClock | None = None, *, io_grace_s: float = 0.0) -> None:
        self.clock: VirtualClock = VirtualClock() if clock is None else clock
        # Counting from here keeps the floats of asyncio small, and so exact, wherever the clock started.
        self._origin_ns = self.clock.now_ns()
        self._io_grace_s = io_grace_s
        self._idle: list[asyncio.Future[None]] = []
        super().__init__(_JumpingSelector(self._wait))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return (self.clock.now_ns() - self._origin_ns) / 1e9

    def idle(self) -> asyncio.Future[None]:
        """Done as soon as nothing is left to do at this instant, before time moves on."""
        waiter: asyncio.Future[None] = self.create_future()
        self._idle.append(waiter)
        return waiter

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """As asyncio's; virtual time stands still until the function has returned."""
        future = super().run_in_executor(executor, func, *args)
        self.clock.pin()
        future.add_done_callback(lambda _: self.clock.unpin())
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        self.clock.pin()  # newer Pythons bound this wait by a timer, which must not be jumped to
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self.clock.unpin()

    def _wait(self, select: _Select, timeout_s: float | None) -> _Ready:
        if timeout_s is not None and timeout_s <= 0:
            if not self._ready and not self._stopping:  # type: ignore[attr-defined]
                self._pass_instant()
            return select(0)
        events = select(self._io_grace_s)
        if events:
            return events
        if self._idle and not self.clock.pinned:
            waiting, self._idle = self._idle, []
            for waiter in waiting:
                wake(waiter)
            return []
        if timeout_s is None or self.clock.pinned:
            return select(None)
        due_ns = self._origin_ns + round((self.time() + timeout_s) * 1e9)
        self.clock.move_to_ns(max(due_ns, self.clock.now_ns() + 1))
        return []

    def _pass_instant(self) -> None:
        """A timer is due and asyncio does not see it: after some months its floats are coarser than its resolution.

        It wants the time to be past the deadline then, so it goes on by the few nanoseconds that make a difference.
        """
        now = self.time()
        while self.time() == now:
            self.clock.move_to_ns(self.clock.now_ns() + 1)


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that lets its event loop decide how to wait."""

    def __init__(self, wait: Callable[[_Select, float | None], _Ready]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> _Ready:
        return self._wait(super().select, timeout)


def run_virtual(main: Coroutine[Any, Any, _T], *, clock: VirtualClock | None = None) -> _T:
    """Like `asyncio.run`, under virtual time: sleeps cost nothing and last exactly as long as they say."""
    with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
        return runner.run(main)


def clock_to_pin(loop: asyncio.AbstractEventLoop) -> VirtualClock | None:
    """The clock that must stand still while a thread works for this event loop; None under real time."""
    return loop.clock if isinstance(loop, VirtualEventLoop) else None


@contextmanager
def time_stands_still(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep virtual time from moving while a thread works for this event loop."""
    clock = clock_to_pin(loop)
    if clock is None:
        yield
        return
    clock.pin()
    try:
        yield
    finally:
        clock.unpin()
