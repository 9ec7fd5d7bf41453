"""The node's HTTP side, as far as a client needs it: topics, groups, dead letters, and reading without a group.

aiohttp is imported when the first request is made; a program that only publishes and subscribes never pays for it.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from mainspring.client.errors import CannotConnect, NodeRefused
from mainspring.client.frames import EventEnvelope, decode_envelope, encode

if TYPE_CHECKING:
    import aiohttp

LINE_BYTES: Final = 64 << 20
PAGE: Final = 1_000


class _Page(msgspec.Struct):
    events: list[EventEnvelope]
    cursor: str = ""


_decode_page: Final = msgspec.json.Decoder(_Page).decode


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

    def use(self, url: str) -> None:
        """Ask the node at this address from now on."""
        parts = urlsplit(url)
        scheme = "https" if parts.scheme in ("wss", "https") else "http"
        self._base = f"{scheme}://{parts.netloc}"
        self._query = f"?{parts.query}" if parts.query else ""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, params: dict[str, str] | None = None) -> Any:
        """One request; the decoded answer. Raises NodeRefused with the node's code, or CannotConnect."""
        return msgspec.json.decode(await self._fetch(method, path, body, params) or b"null")

    async def _fetch(self, method: str, path: str, body: Any, params: dict[str, str] | None) -> bytes:
        import aiohttp

        try:
            async with self._open().request(
                method,
                self._base + path,
                params={**self._claims(), **(params or {})},
                data=None if body is None else encode(body),
                headers={"Content-Type": "application/json"} if body is not None else None,
                ssl=True if self._ssl is None else self._ssl,
            ) as response:
                data = await response.read()
                if response.status >= 400:
                    raise problem(response.status, data)
                return data
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CannotConnect(f"the node does not answer: {error}", remedy="is it running?") from error

    async def read(
        self, topic: str, *, params: dict[str, str], partition: int | None = None
    ) -> AsyncIterator[list[EventEnvelope]]:
        """Stored events, page by page, up to what is stored now."""
        path = f"/topics/{quote(topic, safe='')}/events"
        asked = {**params, "limit": str(PAGE)}
        if partition is not None:
            asked["partition"] = str(partition)
        while True:
            page = _decode_page(await self._fetch("GET", path, None, asked))
            if page.events:
                yield page.events
            if len(page.events) < PAGE:
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
        try:
            async with self._open().get(
                f"{self._base}/topics/{quote(topic, safe='')}/stream",
                params={**self._claims(), **params},
                timeout=timeout,
                ssl=True if self._ssl is None else self._ssl,
            ) as response:
                if response.status >= 400:
                    raise problem(response.status, await response.read())
                cursor = ""
                data: list[bytes] = []
                async for line in response.content:
                    text = line.rstrip(b"\r\n")
                    if text.startswith(b"id: "):
                        cursor = text[4:].decode()
                    elif text.startswith(b"data: "):
                        data.append(text[6:])
                    elif not text and (data or cursor):
                        yield cursor, decode_envelope(b"\n".join(data)) if data else None
                        data = []
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise CannotConnect(f"the stream of {topic!r} ended: {error}") from error

    def _claims(self) -> dict[str, str]:
        """What the WebSocket's address says about who is asking."""
        from urllib.parse import parse_qsl

        return {name: value for name, value in parse_qsl(self._query[1:]) if name == "agent_id"}

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._unix_socket) if self._unix_socket else None,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=30, sock_connect=10),
                read_bufsize=1 << 20,
                max_line_size=LINE_BYTES,
            )
        return self._session


def problem(status: int, data: bytes) -> NodeRefused:
    """The node's problem report as an exception."""
    try:
        told = msgspec.json.decode(data)
    except msgspec.DecodeError:
        told = {}
    if not isinstance(told, dict):
        told = {}
    message = str(told.get("message") or told.get("detail") or f"the node answered {status}")
    return NodeRefused(message, remedy=str(told.get("remedy") or ""), code=str(told.get("code") or f"http_{status}"))
