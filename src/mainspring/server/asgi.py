"""The node's HTTP, WebSocket and dashboard as an ASGI application, to be mounted in somebody else's: `app.asgi`.

Each request goes on to the node through its private socket, and the answer comes back as it is. So the routes exist
once, whatever serves them; and it works in every worker of a web server, of which only one is the node. It costs one
more hop than the node's own port, which stays the faster way in: docs/how-to/use-with-fastapi.md says by how much.

Who asks is asked for a token as on the port: the request says that it comes from outside (`OUTSIDE`), and from where.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from mainspring.errors import MainspringError
from mainspring.server.http.access import OUTSIDE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# About one connection, so not passed on; the handshake of a WebSocket is made anew.
_OF_THE_CONNECTION: Final = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade "
    b"sec-websocket-key sec-websocket-version sec-websocket-extensions sec-websocket-protocol".split()
)
_NO_HEADERS_OF_ITS_OWN: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
LIMIT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10)


class AsgiFace:
    """The application. `find_socket` gives the path of the node's private socket, wherever the node is now."""

    def __init__(self, find_socket: Callable[[], Awaitable[Path]]) -> None:
        self._find_socket = find_socket
        self._sessions: dict[Path, aiohttp.ClientSession] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = self._websocket if scope["type"] == "websocket" else self._http
        try:
            await serve(scope, receive, send)
        except (aiohttp.ClientError, OSError, MainspringError) as error:
            problem = {"code": "unavailable", "message": f"The node does not answer: {error}", "status": 503}
            await _refuse(scope, send, 503, [(b"content-type", b"application/problem+json")], problem)

    async def close(self) -> None:
        """End what is under way."""
        for session in self._sessions.values():
            await session.close()

    async def _session(self) -> aiohttp.ClientSession:
        path = await self._find_socket()
        if path not in self._sessions:
            self._sessions[path] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(path), limit=0),
                auto_decompress=False,
                skip_auto_headers=_NO_HEADERS_OF_ITS_OWN,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=LIMIT,
            )
        return self._sessions[path]

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        session, body = await self._session(), _Body(receive)
        headers = _passed_on(scope)
        has_body = "Content-Length" in headers or any(name == b"transfer-encoding" for name, _ in scope["headers"])
        request = session.request(
            scope["method"],
            _url(scope),
            headers=headers,
            data=body.chunks() if has_body else None,
            allow_redirects=False,
        )
        async with request as response:
            prefix = scope.get("root_path", "")
            await send(
                {"type": "http.response.start", "status": response.status, "headers": _answered(response, prefix)}
            )
            relaying = asyncio.create_task(_relay(response, send))
            leaving = asyncio.create_task(body.left(has_body))
            try:
                await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                if not relaying.done():  # the one who asked is gone; a stream would go on for ever
                    relaying.cancel()
                await asyncio.wait({relaying, leaving})
            if not relaying.cancelled():
                relaying.result()

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        session = await self._session()
        try:
            node = await session.ws_connect(
                _url(scope), headers=_passed_on(scope), protocols=scope.get("subprotocols", ()), max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            problem = {"code": "refused", "message": error.message, "status": error.status}
            await _refuse(scope, send, error.status, _pairs((error.headers or {}).items()), problem)
            return
        async with node:
            await send({"type": "websocket.accept", "subprotocol": node.protocol})
            ways = {asyncio.create_task(_to_node(receive, node)), asyncio.create_task(_from_node(node, send))}
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)


class _Body:
    """What the request brings, as far as anybody reads it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read = False

    async def chunks(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the one who asked is gone")
            more = message.get("more_body", False)
            yield message.get("body", b"")
        self._read = True

    async def left(self, has_body: bool) -> None:
        """Wait until the one who asked is gone. While the body is being read, that one says it."""
        if has_body and not self._read:
            await asyncio.get_running_loop().create_future()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _relay(response: aiohttp.ClientResponse, send: Send) -> None:
    async for chunk in response.content.iter_any():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _to_node(receive: Receive, node: aiohttp.ClientWebSocketResponse) -> None:
    while True:
        message = await receive()
        if message["type"] != "websocket.receive":
            await node.close(code=message.get("code") or 1000)
            return
        with suppress(ConnectionResetError):  # the other way says how it ended
            if (text := message.get("text")) is not None:
                await node.send_str(text)
            else:
                await node.send_bytes(message["bytes"])


async def _from_node(node: aiohttp.ClientWebSocketResponse, send: Send) -> None:
    while True:
        message = await node.receive()
        if message.type is aiohttp.WSMsgType.TEXT:
            await send({"type": "websocket.send", "text": message.data})
        elif message.type is aiohttp.WSMsgType.BINARY:
            await send({"type": "websocket.send", "bytes": message.data})
        else:
            reason = message.extra if isinstance(message.extra, str) else ""
            code = node.close_code if node.close_code not in (None, 1005, 1006) else 1001
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return


async def _refuse(scope: Scope, send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], problem: Any) -> None:
    """An answer in place of the node's. A server that cannot answer a handshake in words refuses it."""
    body, kind = msgspec.json.encode(problem), scope["type"]
    if kind == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": problem["message"][:100]})
            return
        kind = "websocket.http"
    left_out = (b"content-length", b"transfer-encoding", b"connection")
    kept = [(name, value) for name, value in headers if name.lower() not in left_out]
    with suppress(RuntimeError):  # it had begun already
        await send({"type": f"{kind}.response.start", "status": status, "headers": kept})
        await send({"type": f"{kind}.response.body", "body": body})


def _url(scope: Scope) -> URL:
    """The path below where the application is mounted, as it was sent."""
    prefix = quote(scope.get("root_path", ""), safe="/%").encode()
    raw = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
    path = raw.removeprefix(prefix).decode("ascii")
    query = scope.get("query_string", b"").decode("ascii")
    return URL.build(
        scheme="http",
        host="127.0.0.1",
        path=path if path.startswith("/") else f"/{path}",
        query_string=query,
        encoded=True,
    )


def _passed_on(scope: Scope) -> CIMultiDict[str]:
    headers = CIMultiDict(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name.lower() not in _OF_THE_CONNECTION
    )
    client = scope.get("client")
    headers[OUTSIDE] = str(client[0]) if client else "unknown"
    return headers


def _answered(response: aiohttp.ClientResponse, prefix: str) -> list[tuple[bytes, bytes]]:
    """Addresses of the node lie below the prefix here."""
    found = [(name, value) for name, value in _pairs(response.headers.items()) if name not in _OF_THE_CONNECTION]
    root = quote(prefix, safe="/%").encode()
    return [(name, root + value if name == b"location" and value[:1] == b"/" else value) for name, value in found]


def _pairs(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
