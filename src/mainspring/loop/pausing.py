"""Waiting on a loop's clock."""

from __future__ import annotations

import asyncio

from mainspring.loop.futures_and_tasks import wake
from mainspring.loop.loop import Loop


async def pause(loop: Loop, ms: float, *, ref: bool = True) -> None:
    """Wait; the timer goes when the wait is given up. `ref`: the loop is not idle meanwhile."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = loop.schedule(ms, wake, waiter, ref=ref)
    try:
        await waiter
    finally:
        loop.cancel(timer)
