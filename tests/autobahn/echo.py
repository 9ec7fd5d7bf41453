"""Both WebSocket implementations with an echo in the place of what uses them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from mainspring.bus import Caller
from mainspring.client.websocket import Socket
from mainspring.loop import MonotonicClock
from mainspring.server import add_websocket
from mainspring.server.http import HttpRunner
from mainspring.settings import Settings

LARGE = 32 << 20


class EchoSocket(Socket):
    """The client's connection; it sends back what arrives, binary messages too."""

    def __init__(self, echoes: bool = True) -> None:
        super().__init__(os.urandom)
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.seen: list[bytes] = []
        self.on_texts = self.echo if echoes else self.seen.extend
        self.on_lost = self.ended.set_result

    def echo(self, texts: list[bytes]) -> None:
        self.seen += texts
        self.send(texts)

    def take_binary(self, data: bytes) -> None:
        self.write(0x2, (data,))


async def echo_as_client(port: int, target: str = "/", *, echoes: bool = True) -> EchoSocket:
    """Connect to this machine and send back what arrives, until the peer ends it."""
    loop = asyncio.get_running_loop()
    _, socket = await loop.create_connection(lambda: EchoSocket(echoes), "127.0.0.1", port)
    await socket.shake_hands(f"127.0.0.1:{port}", target, ())
    await socket.ended
    return socket


class EchoSession:
    """What the node's face takes for a session of the bus."""

    congested = False

    def __init__(self, _: Caller, send: Callable[[bytes], None]) -> None:
        self._send = send

    def receive(self, data: bytes) -> None:
        self._send(data)

    def refuse(self, error: Exception) -> None:
        """The answers of the bus are no part of the cases."""

    async def relieved(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


@asynccontextmanager
async def echo_as_node() -> AsyncIterator[int]:
    """The node's face on a port of this machine; gives the port."""
    quota = SimpleNamespace(assign=lambda *_: None)
    bus: Any = SimpleNamespace(quotas=quota, open_session=EchoSession, clock=MonotonicClock())

    async def anybody(_: web.Request) -> Caller:
        return Caller()

    app = web.Application()
    add_websocket(app, bus, Settings(max_frame_bytes=LARGE, send_buffer_bytes=LARGE), anybody)
    runner = HttpRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
