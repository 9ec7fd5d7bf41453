"""A kernel to try things on: under virtual time, with or without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import json
import random
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Union

from mainspring import App, RestartPolicy
from mainspring.bus import Bus
from mainspring.kernel import Capability, Kernel
from mainspring.log import Log, open_engine
from mainspring.loop import VirtualClock, run_virtual
from mainspring.message import Message
from mainspring.server import Connections
from mainspring.server.ndjson import NdjsonServer
from mainspring.server.ndjson_port import NdjsonPort, listen_address
from mainspring.settings import Settings

START_MS = 1_000_000
WALL_MS = 1_767_910_000_000
_numbers = itertools.count(1)


def virtual(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test under virtual time; its first argument is the clock."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        clock = VirtualClock(START_MS, WALL_MS)
        run_virtual(test(clock, *args, **kwargs), clock=clock)

    del run.__wrapped__  # pytest must not see the clock as a fixture
    import inspect

    parameters = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@asynccontextmanager
async def booted(app: App, clock: VirtualClock, **options: Any) -> AsyncIterator[Kernel]:
    """A running kernel with the built-in capabilities and the app's."""
    kernel = app.kernel(clock=clock, **options)
    await kernel.start()
    try:
        yield kernel
    finally:
        await kernel.stop()


def message(kind: str, type: str, data: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "type": type,
        "data": data,
        "metadata": {"id": f"m{next(_numbers)}", "timestamp": WALL_MS, **metadata},
    }


def command(type: str, data: Any, **metadata: Any) -> dict[str, Any]:
    return message("command", type, data, **metadata)


def query(type: str, data: Any, **metadata: Any) -> dict[str, Any]:
    return message("query", type, data, **metadata)


def ping(payload: Any = None, **metadata: Any) -> dict[str, Any]:
    return query("Syscall.Ping", {"payload": payload}, **metadata)


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class Client:
    """One connection to the kernel's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.inbox: list[dict[str, Any]] = []
        self.raw: list[bytes] = []

    def send(self, *messages: Any) -> None:
        self.send_raw(b"".join(encoded(each) for each in messages))

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> dict[str, Any]:
        """The next line, whatever it is."""
        if self.inbox:
            return self.inbox.pop(0)
        raw = await self.reader.readline()
        if not raw:
            raise EOFError("the server closed the connection")
        self.raw.append(raw)
        assert raw.endswith(b"\n")
        assert len(raw) <= 16384
        found: dict[str, Any] = json.loads(raw)
        return found

    async def answer(self, request: dict[str, Any] | str) -> dict[str, Any]:
        """The first line caused by this request; others wait in the inbox."""
        ident = request if isinstance(request, str) else request["metadata"]["id"]
        passed: list[dict[str, Any]] = []
        while True:
            line = await self.line()
            if line["metadata"].get("causation") == ident:
                self.inbox = passed + self.inbox
                return line
            passed.append(line)

    async def call(self, request: dict[str, Any]) -> dict[str, Any]:
        self.send(request)
        return await self.answer(request)

    async def fence(self) -> list[dict[str, Any]]:
        """What arrived before the answer to a ping: everything sent earlier has had its turn by then."""
        await self.call(ping("fence"))
        others, self.inbox = self.inbox, []
        return others

    async def to_end(self) -> list[dict[str, Any]]:
        lines = []
        try:
            while True:
                lines.append(await self.line())
        except EOFError:
            return lines

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Site:
    """A kernel behind its socket, or behind its port."""

    def __init__(self, kernel: Kernel, server: NdjsonServer | NdjsonPort) -> None:
        self.kernel, self.server = kernel, server
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        if isinstance(self.server, NdjsonServer):
            client = Client(*await asyncio.open_unix_connection(str(self.server.path), limit=1 << 20))
        else:
            client = Client(*await asyncio.open_connection(*listen_address(self.server.address[6:]), limit=1 << 20))
        self._clients.append(client)
        return client

    @contextlib.contextmanager
    def raw_socket(self) -> Iterator[socket.socket]:
        """A connection without a reader; it does not block."""
        if isinstance(self.server, NdjsonServer):
            family, place = socket.AF_UNIX, str(self.server.path)
        else:
            family, place = socket.AF_INET, listen_address(self.server.address[6:])
        with socket.socket(family, socket.SOCK_STREAM) as raw:
            raw.connect(place)
            raw.setblocking(False)
            yield raw

    async def close_clients(self) -> None:
        for client in self._clients:
            client.writer.close()


FACE = contextvars.ContextVar("FACE", default="unix")


@asynccontextmanager
async def served(app: App, clock: VirtualClock, **options: Any) -> AsyncIterator[Site]:
    """A running kernel with a socket, or a port (FACE); socket paths are short, so it gets a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ms-") as folder:
        async with booted(app, clock, **options) as kernel:
            server: NdjsonServer | NdjsonPort = NdjsonServer(kernel, Path(folder) / "run" / "k.sock")
            if FACE.get() == "tcp":
                settings = Settings(engine="memory")
                log = Log(open_engine("memory", folder, clock))
                bus = Bus(log, clock, kernel.loop, settings=settings, new_id=kernel.ids, random=random.random)
                server = NdjsonPort(kernel, bus, ("127.0.0.1", 0), Connections(settings))
            await server.start()
            site = Site(kernel, server)
            try:
                yield site
            finally:
                await site.close_clients()
                await server.stop()


# --- a Worker-shaped actor that can be told to break every rule -------------------------------------------------


class Worker:
    """Outputs are wire-shaped dicts; `handler(worker, message)` runs in a callback of its own."""

    def __init__(self, handler: Callable[[Worker, Any], None]) -> None:
        self.handler = handler
        self.onmessage: Any = None
        self.onerror: Any = None
        self.listeners: dict[str, list[Any]] = {"message": [], "error": []}
        self.terminated = False
        self.posted: list[Any] = []

    def post_message(self, message: Any) -> None:
        self.posted.append(message)
        asyncio.get_running_loop().call_soon(self.handler, self, message)

    def terminate(self) -> None:
        self.terminated = True

    def add_event_listener(self, type: str, callback: Any) -> None:
        self.listeners[type].append(callback)

    def remove_event_listener(self, type: str, callback: Any) -> None:
        self.listeners[type].remove(callback)

    def say(self, output: Any) -> None:
        self._fire("message", SimpleNamespace(data=output))

    def fail(self, error: Exception) -> None:
        self._fire("error", SimpleNamespace(error=error, message=str(error)))

    def _fire(self, type: str, event: Any) -> None:
        for callback in list(self.listeners[type]):
            callback(event)


def said(cause: Message, kind: str, type: str, data: Any, **overrides: Any) -> dict[str, Any]:
    """A wire-shaped output caused by a message; None removes a metadata member."""
    metadata = {
        "id": f"w{next(_numbers)}",
        "timestamp": WALL_MS,
        "causation": cause.metadata.id,
        "correlation": cause.metadata.correlation,
        **overrides,
    }
    kept = {name: value for name, value in metadata.items() if value is not None}
    return {"kind": kind, "type": type, "data": data, "metadata": kept}


def shape(kind: str, *types: str, data: Any = dict) -> Any:
    """The schema of a message: literal kind and types."""
    label = "".join(each for each in kind + types[0] if each.isalnum())
    return make_dataclass(label, [("kind", Literal[kind]), ("type", Literal[types]), ("data", data)])


def low_level(name: str, handler: Any, spawned: list[Worker], **changes: Any) -> Capability:
    def spawn() -> Worker:
        spawned.append(Worker(handler))
        return spawned[-1]

    settings: dict[str, Any] = {
        "id": name,
        "description": "does what mode says",
        "inbound": Union[shape("command", f"{name}.Do"), shape("query", f"{name}.Ask")],  # noqa: UP007
        "outbound": Union[  # noqa: UP007
            shape("reply", f"{name}.Do"),
            shape("reply", f"{name}.Ask", data=int),
            shape("event", f"{name}.Said"),
            shape("command", "Note.Take"),
        ],
        "spawn": spawn,
        "restart": POLICY,
    }
    return Capability(**{**settings, **changes})


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
with contextlib.suppress(ImportError):
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


POLICY = RestartPolicy(max_restarts=3, window_ms=60_000, backoff_ms=1_000)
