"""Stopping in order: the first SIGTERM or Ctrl-C asks for it, the second ends the process at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TypeVar

T = TypeVar("T")


def stop_signals(logger: logging.Logger) -> asyncio.Event:
    """Set when it is time to stop."""
    stopping = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        logger.info("%s: stopping; once more ends at once", number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stopping


async def unless_stopped(stopping: asyncio.Event, work: asyncio.Future[T]) -> T | None:
    """What the work gives; None when it was time to stop first, and the work is cancelled."""
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((work, told), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
    told.cancel()
    try:
        return work.result()
    except asyncio.CancelledError:
        return None
