"""A real aiohttp server with the real bus behind it, and a client that speaks plain HTTP to it."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uuid_utils
from aiohttp import web
from yarl import URL

from mainspring.bus import Bus
from mainspring.log import Engine, Log, MemoryEngine
from mainspring.loop import Loop, MonotonicClock
from mainspring.server import NodeParts, http
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

    def url(self, path: str) -> URL:
        return URL(f"http://127.0.0.1:{self.port}{path}", encoded=True)

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
    **options: Any,
) -> AsyncIterator[Site]:
    """A node's HTTP face on a free port. `besides` adds other routes; `options` go to `Face`."""
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
        yield Site(bus, runner.addresses[0][1], session, runner, log)
