"""Handlers may have slow work done in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from mainspring import App


async def test_an_event_emitted_from_a_thread_is_heard_while_the_handler_still_waits() -> None:
    """Nothing else wakes the kernel here: the event itself must."""
    app, heard = App("threads"), threading.Event()

    @app.command("Slow.Work")
    async def work(data: dict, ctx: Any) -> bool:
        def slowly() -> bool:
            time.sleep(0.05)  # the kernel sleeps by then
            ctx.emit("Work.Progressed", {"percent": 50})
            return heard.wait(20)

        return await asyncio.to_thread(slowly)

    @app.on("Work.Progressed")
    async def progressed(data: dict, ctx: Any) -> None:
        heard.set()

    kernel = app.kernel()
    await kernel.start()
    try:
        assert await kernel.ask("command", "Slow.Work", {}) is True
    finally:
        await kernel.stop()
