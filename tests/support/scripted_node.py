"""A node that does what a test says: keeps events by id, answers or does not, goes away and comes back.

It runs on the event loop of the test, so that an hour without it passes in an instant of virtual time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from mainspring.loop import VirtualClock
from mainspring.loop.virtual_time import VirtualEventLoop

T = TypeVar("T")


def virtually(main: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run under a clock that jumps over idle time."""
    clock = VirtualClock(wall_ms=1_700_000_000_000)
    with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
        return runner.run(main(clock))


class ScriptedNode:
    """`frames` is everything it was told, with the number of the connection; `stored` what it keeps."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, dict[str, Any]]] = []
        self.stored: dict[str, list[str]] = {}
        self.handshakes: list[int] = []
        self.status = 0  # answer handshakes with this instead
        self.mute = False  # store, but say nothing
        self.refusals: list[str] = []  # codes for the next publishes
        self.refused: dict[str, list[str]] = {}  # codes for the next frames of a type, or requests to a path
        self.connections = 0
        self.port = 0
        self.headers: list[dict[str, str]] = []
        self.sockets: set[web.WebSocketResponse] = set()
        self._runner: web.AppRunner | None = None
        self._met: dict[int, asyncio.Event] = {}

    async def met(self, number: int) -> None:
        """Wait until connection `number` was made and has said what it has to say."""
        await self._met.setdefault(number, asyncio.Event()).wait()
        await asyncio.sleep(0.1)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/", self._handle)
        app.router.add_get("/schedules", self._schedules)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def vanish(self) -> None:
        """As kill -9 would: no goodbye, nobody listens."""
        for socket in list(self.sockets):
            transport = socket._req.transport if socket._req is not None else None
            if isinstance(transport, asyncio.Transport):
                transport.abort()
        assert self._runner is not None
        await self._runner.cleanup()
        self.sockets.clear()

    def told(self, type: str) -> list[dict[str, Any]]:
        return [frame for _, frame in self.frames if frame["type"] == type]

    async def deliver(self, topic: str, group: str, *offsets: int, partition: int = 0) -> None:
        messages = [
            {
                "partition": partition,
                "offset": offset,
                "attempt": 1,
                "envelope": {"id": f"e{offset}", "ts": 1, "topic": topic, "payload": offset},
            }
            for offset in offsets
        ]
        for socket in self.sockets:
            await socket.send_str(
                json.dumps({"type": "MESSAGES", "topic": topic, "group": group, "messages": messages})
            )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.handshakes.append(self.connections)
        self.headers.append(dict(request.headers))
        if self.status:
            return web.Response(status=self.status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connections += 1
        self.sockets.add(socket)
        number = self.connections
        self._met.setdefault(number, asyncio.Event()).set()
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                frame = json.loads(message.data)
                self.frames.append((number, frame))
                answer = self._answer(frame)
                if answer is not None and not self.mute:
                    await socket.send_str(json.dumps(answer))
        self.sockets.discard(socket)
        return socket

    async def _schedules(self, request: web.Request) -> web.Response:
        for code in self.refused.get(request.path, [])[:1]:
            del self.refused[request.path][0]
            return web.json_response({"code": code, "detail": "no"}, status=503)
        return web.json_response({"schedules": []})

    async def say(self, frame: dict[str, Any]) -> None:
        """A frame that nobody asked for, to every connection."""
        for socket in self.sockets:
            await socket.send_str(json.dumps(frame))

    def _answer(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        corr = frame.get("corr")
        if frame["type"] == "PUBLISH_BATCH":
            if self.refusals:
                return {"type": "ERROR", "code": self.refusals.pop(0), "message": "no", "corr": corr}
            stored = self.stored.setdefault(frame["topic"], [])
            stored += [event["id"] for event in frame["events"] if event["id"] not in stored]
            places = [[0, stored.index(event["id"]) + 1] for event in frame["events"]]
            return {"type": "PUBLISHED_BATCH", "topic": frame["topic"], "offsets": places, "corr": corr}
        if frame["type"] in ("ACK", "NACK", "EXTEND"):
            return None
        if self.refused.get(frame["type"]):
            code = self.refused[frame["type"]].pop(0)
            return {"type": "ERROR", "code": code, "message": "no", "in_reply_to": frame["type"], "corr": corr}
        return {"type": "OK", "in_reply_to": frame["type"], "corr": corr}
