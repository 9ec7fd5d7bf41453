"""A loop socket served by a thread of the test's own process, on either event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mainspring.guests.socket import LoopSocketServer
from mainspring.loop import MonotonicClock
from tests.support.guests import Answer, answers

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
with contextlib.suppress(ImportError):
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop
LIMIT_S = 60  # for something that has to come


class Served:
    """A running loop socket."""

    def __init__(self, server: LoopSocketServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.path = server.path

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function on the server's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(LIMIT_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(LIMIT_S)

    def eventually(self, check: Callable[[], bool]) -> bool:
        """Whether it becomes true; asked on the server's loop, between its turns."""
        for _ in range(3000):
            if self.call(check):
                return True
            threading.Event().wait(0.005)
        return False

    def connect(self) -> Visitor:
        return Visitor(self.path)


@contextlib.contextmanager
def serving(factory: LoopFactory = asyncio.new_event_loop, **options: Any) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="loop-") as folder:  # short: the path of a socket has little room
        loop = factory()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        served = Served(LoopSocketServer(Path(folder) / "l", clock=MonotonicClock(), **options), loop)
        try:
            asyncio.run_coroutine_threadsafe(served.server.start(), loop).result(LIMIT_S)
            yield served
            served.stop()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(LIMIT_S)
            loop.close()


class Visitor:
    """A guest that speaks bytes."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(str(path))
        self._received = b""

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes, *things: Any) -> None:
        if things:
            sent = socket.send_fds(self.sock, [data], [thing.fileno() for thing in things])
            data = data[sent:]
        self.sock.sendall(data)

    def receive(self) -> Answer:
        while len(self._received) < 24 or len(self._received) < 24 + struct.unpack_from("<I", self._received, 20)[0]:
            part = self.sock.recv(65536)
            assert part, f"the connection ended after {self._received!r}"
            self._received += part
        size = 24 + struct.unpack_from("<I", self._received, 20)[0]
        (answer,) = answers(self._received[:size])
        self._received = self._received[size:]
        return answer

    def ask(self, data: bytes, *things: Any) -> Answer:
        self.send(data, *things)
        return self.receive()

    def rest(self) -> list[Answer]:
        """Everything up to the end of the connection, which must be an orderly one."""
        while part := self.sock.recv(65536):
            self._received += part
        return answers(self._received)

    def silent(self) -> bool:
        """Nothing has come so far."""
        self.sock.setblocking(False)
        try:
            return not self._received and not self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.sock.settimeout(LIMIT_S)
