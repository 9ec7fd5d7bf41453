"""Deadlines: how long somebody is waited for, by a process that may have been stopped meanwhile.

A process that was stopped (SIGSTOP, a paused machine), or whose loop's thread was blocked, finds afterwards that
deadlines have passed while it could not look. What it waited for may have arrived long before and lie in a socket's
buffer. So a deadline that is noticed late decides nothing yet: first the event loop goes round a number of times, which
reads what has arrived and lets those who are interested react. Only then it is judged.

How late counts as late is little, because a stall may end right behind a deadline; and going round costs next to
nothing when nothing has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

LATE_MS: Final = 2  # timers of an idle process come up to a millisecond late
ROUNDS: Final = 64  # a round reads up to 256 KiB of each socket, and a frame needs two or three to be handled


def after_reading(aio: asyncio.AbstractEventLoop, call: Callable[[], object], rounds: int = ROUNDS) -> None:
    """Call `call` when the event loop has read what had arrived before."""
    if rounds:
        aio.call_soon(after_reading, aio, call, rounds - 1)
    else:
        call()


class LateCalls:
    """Calls that wait until an event loop has read what had arrived. When that event loop ends, they are released."""

    def __init__(self) -> None:
        self._waiting: dict[Callable[[], None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def after_reading(self, aio: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        """Call `call` when the event loop has read what had arrived before, or when `release` comes first."""

        def read() -> None:
            if read in self._waiting:
                del self._waiting[read]
                call()

        self._waiting[read] = None
        after_reading(aio, read)

    def release(self) -> None:
        """Make them now: nobody reads any more."""
        for read in list(self._waiting):
            read()


def call_at_deadline(delay_s: float, call: Callable[[], object]) -> Callable[[], None]:
    """Call `call` after so many seconds on the running event loop; gives the function that prevents it."""
    aio = asyncio.get_running_loop()
    due, over = aio.time() + delay_s, False

    def judge() -> None:
        if not over:
            call()

    def ring() -> None:
        if (aio.time() - due) * 1000 < LATE_MS:
            judge()
        else:
            after_reading(aio, judge)

    def cancel() -> None:
        nonlocal over
        over = True
        timer.cancel()

    timer = aio.call_later(delay_s, ring)
    return cancel


@asynccontextmanager
async def time_limit(delay_s: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Like `asyncio.timeout`, for what may have arrived while this process was stopped or its loop was blocked."""
    aio = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        cancel = None if delay_s is None else call_at_deadline(delay_s, lambda: limit.reschedule(aio.time() - 1))
        try:
            yield limit
        finally:
            if cancel is not None:
                cancel()
