"""A whole node in this process, with tokens where a test wants them, and clients that present them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from mainspring.app import App
from mainspring.bus.access.tokens import Token, new_token
from mainspring.node import Node
from mainspring.settings import Settings


def make_token(agent: str, *scopes: str, number: int = 0, expires_ms: int = 0) -> tuple[str, Token]:
    """A token with a secret that is the same in every run."""
    secret = (agent.encode() + bytes([number])).ljust(32, b"\x07")
    return new_token(agent, scopes, secret, expires_ms)


ALICE, ALICE_TOKEN = make_token("alice", "publish:orders.**", "subscribe:orders.**")
BOB, BOB_TOKEN = make_token("bob", "subscribe:orders")
ROOT, ROOT_TOKEN = make_token("root", "admin")
LINES = tuple(token.line() for token in (ALICE_TOKEN, BOB_TOKEN, ROOT_TOKEN))


@dataclass
class Reply:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Socket:
    """A WebSocket that asks and waits."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def ask(self, frame: dict[str, Any]) -> dict[str, Any]:
        await self.socket.send_json(frame)
        return await self.next()

    async def next(self) -> dict[str, Any]:
        answer: dict[str, Any] = await self.socket.receive_json(timeout=20)
        return answer

    async def publish(self, topic: str, payload: Any = 1, **fields: Any) -> dict[str, Any]:
        return await self.ask({"type": "PUBLISH", "topic": topic, "payload": payload, **fields})

    async def subscribe(self, topic: str, group: str = "g", **fields: Any) -> dict[str, Any]:
        start = {"kind": "offset", "value": 0}
        return await self.ask({"type": "SUBSCRIBE", "topic": topic, "group": group, "from": start, **fields})


@dataclass
class Served:
    node: Node
    url: str
    session: aiohttp.ClientSession

    async def request(self, method: str, path: str, token: str | None = None, **options: Any) -> Reply:
        headers = {**options.pop("headers", {})}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.request(method, self.url + path, headers=headers, **options) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, token: str | None = None, **options: Any) -> Reply:
        return await self.request("GET", path, token, **options)

    async def post(self, path: str, body: Any, token: str | None = None, **options: Any) -> Reply:
        return await self.request("POST", path, token, json=body, **options)

    @asynccontextmanager
    async def socket(self, token: str | None = None, query: str = "", **options: Any) -> AsyncIterator[Socket]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.session.ws_connect(f"{self.url}/{query}", headers=headers, **options) as socket:
            yield Socket(socket)


@asynccontextmanager
async def served(app: App | None = None, *, ssl: Any = None, **settings: Any) -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory(prefix="ms-") as folder:
        chosen = Settings(
            **{
                "port": 0,
                "engine": "memory",
                "data": folder,
                "kernel_socket": str(Path(folder) / "k.sock"),
                "loop_socket": str(Path(folder) / "l.sock"),
                "uvloop": False,
                **settings,
            }
        )
        node = Node(chosen, app)
        boot = await node.boot()
        try:
            url = next(one for one in boot.data["adapters"] if one.startswith("http"))
            url = url.replace("0.0.0.0", "127.0.0.1")
            connector = aiohttp.TCPConnector(ssl=ssl) if ssl is not None else None
            async with aiohttp.ClientSession(connector=connector) as session:
                yield Served(node, url, session)
        finally:
            await node.drain()
