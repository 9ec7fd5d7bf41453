"""A network that can be taken away: every connection to a server goes through here, and can be cut or frozen.

`cut` ends what is open and refuses what comes. `freeze` keeps everything open and lets nothing through in either
direction, which is what a lost network looks like to both sides.
"""

from __future__ import annotations

import asyncio
import contextlib


class Proxy:
    """In front of one server, for one node. Listens on a port of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:  # a round may fail before all networks are there
            self._server.close()
        self.cut()

    def cut(self) -> None:
        self._refusing = True
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        self._flowing.clear()

    def heal(self) -> None:
        """The network is back. Connections that were frozen are ended: their peers have given them up long ago."""
        if not self._flowing.is_set():
            for writer in list(self._writers):
                writer.transport.abort()
        self._refusing = False
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await self._flowing.wait()
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(back)
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        finally:
            for end in (writer, back):
                end.transport.abort()
                self._writers.discard(end)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
