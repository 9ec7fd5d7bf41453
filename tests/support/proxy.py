"""A TCP proxy to put between a node and a server, to break what lies between them without touching either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Proxy:
    """Forwards to `127.0.0.1:port` until told otherwise."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut = False
        self._answers_pass = asyncio.Event()
        self._answers_pass.set()
        self.port = 0
        self.on_answer: Callable[[bytes], object] = lambda _: None  # gets what the server says

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        """Break every connection and accept none."""
        self._cut = True
        for pair in list(self._pairs):
            for writer in pair:
                writer.transport.abort()
        self._pairs.clear()

    def mend(self) -> None:
        self._cut = False
        self._answers_pass.set()

    def hold_answers(self) -> None:
        """What clients send still arrives; what the server says stays here."""
        self._answers_pass.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, there_writer)
        self._pairs.add(pair)
        loop = asyncio.get_running_loop()
        for work in (
            self._forward(reader, there_writer, None),
            self._forward(there_reader, writer, self._answers_pass),
        ):
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if gate is not None:
                    await gate.wait()
                    self.on_answer(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
