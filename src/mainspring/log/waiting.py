"""Waiting for a thread under virtual time.

A test's clock jumps when its event loop has nothing to do. A commit that another thread is making durable is something
to do, but the loop cannot see it; so the clock is pinned until the answer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mainspring.loop import VirtualClock, VirtualEventLoop


def clock_to_pin(loop: asyncio.AbstractEventLoop) -> VirtualClock | None:
    """The clock that must stand still while a thread works for this loop; None under real time."""
    return loop.clock if isinstance(loop, VirtualEventLoop) else None


@contextmanager
def time_stands_still(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    clock = clock_to_pin(loop)
    if clock is None:
        yield
        return
    clock.pin()
    try:
        yield
    finally:
        clock.unpin()
