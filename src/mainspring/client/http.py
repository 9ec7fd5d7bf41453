"""The node's HTTP side, as far as a client needs it: topics, groups, dead letters, and reading without a group.

aiohttp is imported when the first request is made; a program that only publishes and subscribes never pays for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl as ssl_module
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from mainspring.client.errors import CannotConnect, NodeRefused
from mainspring.client.frames import EventEnvelope, claims_of, decode_envelope, encode, split_address
from mainspring.client.publishing import RETRY, TRY_AGAIN
from mainspring.errors import Fail, fail_from
from mainspring.loop import time_limit

if TYPE_CHECKING:
    import aiohttp

logger: logging.Logger = logging.getLogger("mainspring.client")

LINE_BYTES: Final = 64 << 20
PAGE: Final = 1_000
LIMIT_S: Final = 30.0  # a request that takes longer is given up
PROBES: Final = 3  # that a kernel sends before it takes the other machine for gone


class _Damaged(msgspec.Struct):
    message: str


class _Page(msgspec.Struct):
    events: list[EventEnvelope]
    cursor: str = ""
    damaged: list[_Damaged] = []


_decode_page: Final = msgspec.json.Decoder(_Page).decode
_decode_damaged: Final = msgspec.json.Decoder(_Damaged).decode


class NodeHttp:
    """Requests to one node. `url` is the WebSocket's; both are on one port."""

    def __init__(
        self,
        url: str,
        token: str | None,
        ssl: ssl_module.SSLContext | None = None,
        *,
        unix_socket: str = "",
        ping_s: float = 15.0,
    ) -> None:
        self.use(url)
        self._unix_socket = unix_socket
        self._ping_s = ping_s
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._ssl = ssl
        self._session: aiohttp.ClientSession | None = None
        self._answers: dict[aiohttp.ClientResponse, None] = {}  # that are being read

    def use(self, url: str) -> None:
        """Ask the node at this address from now on."""
        address = split_address(url)
        self._base = f"{'https' if address.scheme == 'wss' else 'http'}://{address.netloc}{address.path.rstrip('/')}"
        self._claims = claims_of(address)

    async def close(self) -> None:
        """End every request that is under way; the next one opens a new connection."""
        from aiohttp import ClientConnectionError

        session, self._session = self._session, None
        for answer in list(self._answers):
            # Who reads it is told; the end of the session alone would leave them waiting for ever. With an error of its
            # own: aiohttp has one for all answers, and what it is raised through it would keep as long as the process.
            answer.content.set_exception(ClientConnectionError("the connection was closed"))
        if session is not None:
            await session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: dict[str, str] | None = None,
        *,
        limit_s: float | None = LIMIT_S,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """One request; the decoded answer. Raises NodeRefused with the node's code, or CannotConnect.

        What the node cannot do now it is asked again, for `limit_s`. That is None where the node says how long it may
        take; then it is asked once.
        """
        return msgspec.json.decode(await self._fetch(method, path, body, params, limit_s, headers) or b"null")

    async def _fetch(
        self,
        method: str,
        path: str,
        body: Any,
        params: dict[str, str] | None,
        limit_s: float | None = LIMIT_S,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        now, pauses = asyncio.get_running_loop().time, RETRY.series()
        give_up = now() + (limit_s or 0)
        while True:
            try:
                return await self._fetch_once(method, path, body, params, limit_s, headers)
            except NodeRefused as error:
                pause_s = max(pauses.failed(), error.retry_after_ms) / 1000
                if error.code not in TRY_AGAIN or now() + pause_s > give_up:
                    raise
                await asyncio.sleep(pause_s)

    async def _fetch_once(
        self,
        method: str,
        path: str,
        body: Any,
        params: dict[str, str] | None,
        limit_s: float | None,
        headers: dict[str, str] | None,
    ) -> bytes:
        from aiohttp import ClientTimeout

        data = None if body is None else encode(body)
        headers = headers if body is None else {"Content-Type": "application/json", **(headers or {})}
        timeout, trouble = ClientTimeout(total=None, sock_connect=10), "the node does not answer"
        asking = self._request(method, path, params or {}, trouble, data=data, headers=headers, timeout=timeout)
        try:
            async with time_limit(limit_s), asking as response:
                return await response.read()
        except TimeoutError:
            raise CannotConnect(f"{trouble} within {limit_s:g} s", remedy="is it running?") from None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, params: dict[str, str], trouble: str, **settings: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        url, asked = self._base + path, {**self._claims, **params}
        ssl = True if self._ssl is None else self._ssl
        try:
            async with self._open().request(method, url, params=asked, ssl=ssl, **settings) as response:
                self._answers[response] = None
                try:
                    if response.status >= 400:
                        raise problem(response.status, await response.read())
                    yield response
                finally:
                    del self._answers[response]
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise CannotConnect(f"{trouble}: {error}", remedy="is it running?") from error

    async def read(self, topic: str, *, params: dict[str, str]) -> AsyncIterator[list[EventEnvelope]]:
        """Stored events, page by page, up to what is stored now."""
        path = f"/topics/{quote(topic, safe='')}/events"
        asked = {**params, "limit": str(PAGE)}
        while True:
            page = _decode_page(await self._fetch("GET", path, None, asked))
            for damaged in page.damaged:
                logger.error("%s", damaged.message)
            if page.events:
                yield page.events
            if len(page.events) + len(page.damaged) < PAGE:
                return
            asked = {name: value for name, value in asked.items() if name not in ("from", "offset")}
            asked["cursor"] = page.cursor

    async def last_cursor(self, topic: str) -> str:
        """The cursor behind everything that is stored now."""
        found = await self.call("GET", f"/topics/{quote(topic, safe='')}/offsets")
        return ",".join(f"{each['partition']}:{each['tail']}" for each in found["partitions"])

    async def follow(self, topic: str, params: dict[str, str]) -> AsyncIterator[tuple[str, EventEnvelope | None]]:
        """Events as they come, each with the cursor behind it; first only a cursor. Ends when the connection does."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=3 * self._ping_s)
        path, trouble = f"/topics/{quote(topic, safe='')}/stream", f"the stream of {topic!r} ended"
        async with self._request("GET", path, params, trouble, timeout=timeout) as response:
            cursor, kind = "", b""
            data: list[bytes] = []
            async for line in response.content:
                text = line.rstrip(b"\r\n")
                if text.startswith(b"id: "):
                    cursor = text[4:].decode()
                elif text.startswith(b"data: "):
                    data.append(text[6:])
                elif text.startswith(b"event: "):
                    kind = text[7:]
                elif not text and (data or cursor):
                    if kind == b"damaged":
                        logger.error("%s", _decode_damaged(b"".join(data)).message)
                        data = []
                    yield cursor, decode_envelope(b"\n".join(data)) if data else None
                    kind, data = b"", []

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            made = partial(watched_socket, ping_s=self._ping_s)
            tcp, unix = aiohttp.TCPConnector, aiohttp.UnixConnector
            self._session = aiohttp.ClientSession(
                connector=unix(self._unix_socket) if self._unix_socket else tcp(socket_factory=made),
                headers=self._headers,
                read_bufsize=1 << 20,
                max_line_size=LINE_BYTES,
            )
        return self._session


def watched_socket(address: tuple[int, int, int, str, tuple[Any, ...]], ping_s: float) -> socket.socket:
    """A socket whose connection ends when the other machine says nothing for twice `ping_s`.

    The WebSocket's pings say nothing about this connection. Where it is gone and nobody says so, a request would wait
    as long as its own limit allows, and one without a limit for ever. So the kernel looks, in a connection that is
    silent and in one where what was sent is not confirmed. What a system does not know is left out.
    """
    family, type, protocol, *_ = address
    made, ping = socket.socket(family, type, protocol), min(max(1, round(ping_s)), 32_767)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": ping,
        "TCP_KEEPALIVE": ping,  # the same, as macOS calls it
        "TCP_KEEPINTVL": max(1, ping // PROBES),
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": 2_000 * ping,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def problem(status: int, data: bytes) -> NodeRefused | Fail:
    """The node's problem report as an exception: `Fail` if it holds the error that answers a message."""
    try:
        told = msgspec.json.decode(data)
    except msgspec.DecodeError:
        told = {}
    if not isinstance(told, dict):
        told = {}
    error = told.get("error")
    if isinstance(error, dict):
        return fail_from(error.get("data"), str(error.get("type")))
    message = str(told.get("message") or told.get("detail") or f"the node answered {status}")
    code, wait_ms = str(told.get("code") or f"http_{status}"), told.get("retry_after_ms")
    refused = NodeRefused(message, remedy=str(told.get("remedy") or ""), code=code)
    refused.retry_after_ms = wait_ms if isinstance(wait_ms, int) else 0
    return refused
