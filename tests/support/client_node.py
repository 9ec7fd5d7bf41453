"""A real node for tests of clients: it can be killed and started again at the same address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.serving import Serving


class Node(Serving):
    """A node in a process of its own."""

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def restart(self) -> None:
        """Start again on the same port, with the same data."""
        if "--port" in self.command[-2:]:
            del self.command[-2:]
        self.command += ["--port", str(self.port)]
        self.launch()
        assert self.boot.get("type") == "Sys.BootComplete", f"{self.boot}\n{self.errors()}"


async def eventually(condition: Callable[[], Awaitable[bool]], patience_s: float = 60.0) -> None:
    """Wait until something holds that another process brings about."""
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.02)
