"""A real aiohttp server with the real bus behind it, and a client that speaks plain HTTP to it."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uuid_utils
import uvicorn
from aiohttp import web
from starlette.applications import Starlette
from starlette.routing import Mount
from yarl import URL

from mainspring.bus import Bus
from mainspring.log import Engine, Log, MemoryEngine
from mainspring.loop import Loop, MonotonicClock
from mainspring.server import AsgiFace, NodeParts, http
from mainspring.settings import Settings


@dataclass
class Reply:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> dict[str, Any]:
        """The error document; its promises are checked wherever one is looked at."""
        assert self.headers["Content-Type"].startswith("application/problem+json"), self
        document: dict[str, Any] = self.json
        assert document["status"] == self.status
        assert document["type"].endswith(document["code"])
        assert all(isinstance(document[name], str) and document[name] for name in ("title", "detail", "message"))
        return document


@dataclass
class Site:
    """One served node: its bus, and requests to it."""

    bus: Bus
    port: int
    session: aiohttp.ClientSession
    runner: web.AppRunner
    log: Log
    clock: MonotonicClock = field(default_factory=MonotonicClock)
    prefix: str = ""  # where it is mounted in another web application

    def url(self, path: str) -> URL:
        return URL(f"http://127.0.0.1:{self.port}{self.prefix}{path}", encoded=True)

    async def request(self, method: str, path: str, **options: Any) -> Reply:
        async with self.session.request(method, self.url(path), allow_redirects=False, **options) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any = None, *, type: str = "application/json", **options: Any) -> Reply:
        data = body if isinstance(body, (bytes, str)) else json.dumps(body)
        headers = {"Content-Type": type, **options.pop("headers", {})}
        return await self.request("POST", path, data=data, headers=headers, **options)

    async def publish(self, topic: str, *payloads: Any, **fields: Any) -> None:
        for payload in payloads:
            await self.bus.publish(topic, json.dumps(payload).encode(), **fields)

    async def events(self, topic: str, **query: Any) -> list[dict[str, Any]]:
        """Everything stored in the topic."""
        answer = await self.get(f"/topics/{topic}/events", headers={"Accept": "application/x-ndjson"})
        assert answer.status == 200, answer
        return [json.loads(line) for line in answer.body.splitlines()]

    async def nothing_stored(self, topic: str) -> bool:
        answer = await self.get(f"/topics/{topic}/offsets")
        return answer.status == 404 or all(p["tail"] == 0 for p in answer.json["partitions"])


@asynccontextmanager
async def serve(
    engine: Engine | None = None,
    *,
    settings: Settings | None = None,
    origins: tuple[str, ...] = (),
    besides: Callable[[web.Application, Bus], None] | None = None,
    mounted: bool = False,
    **options: Any,
) -> AsyncIterator[Site]:
    """A node's HTTP face on a free port, or `mounted` below a path of an application that uvicorn serves.

    `besides` adds other routes; `options` go to `Face`.
    """
    async with AsyncExitStack() as stack:
        clock = MonotonicClock()
        loop = Loop(clock)
        loop.attach()
        stack.callback(loop.detach)
        log = Log(engine or MemoryEngine())
        await log.open()
        stack.push_async_callback(log.close)
        bus = Bus(
            log,
            clock,
            loop,
            settings=settings or Settings(),
            new_id=lambda: str(uuid_utils.uuid7()),
            random=random.Random(7).random,
        )
        await bus.start()
        stack.push_async_callback(bus.stop)
        app = web.Application()
        if besides is not None:
            besides(app, bus)
        http.add_routes(app, http.Face(NodeParts(bus), **options), allowed_origins=origins)
        runner = web.AppRunner(app, shutdown_timeout=5, auto_decompress=False)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        port, prefix = runner.addresses[0][1], ""
        if mounted:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ms-")))
            await web.UnixSite(runner, str(folder / "node.sock")).start()
            prefix = "/below/here"
            port = await stack.enter_async_context(mounted_at(prefix, folder / "node.sock"))
        yield Site(bus, port, session, runner, log, prefix=prefix)


@asynccontextmanager
async def mounted_at(prefix: str, path: Path) -> AsyncIterator[int]:
    """The ASGI application of the node at this socket, below a path of a Starlette application; gives its port."""

    async def find_socket() -> Path:
        return path

    face = AsgiFace(find_socket)
    async with uvicorn_serving(Starlette(routes=[Mount(prefix, face)])) as port:
        yield port
    await face.close()


@asynccontextmanager
async def uvicorn_serving(application: Any, **options: Any) -> AsyncIterator[int]:
    """A real uvicorn in this event loop; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1, **options)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started and not serving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving
