"""The connections of the ports: how many there are, from where, and for how long one may keep the node waiting.

A connection costs a descriptor before it has said a word, so strangers are limited here, before any token is looked at.
A connection that has sent no complete request after `header_timeout_ms` is closed; between two requests it may rest for
`keep_alive_ms`. When there are as many connections as there may be, the one that has waited longest without a request
makes room for the new one: who only holds connections open keeps nobody out. Those of one address are counted too; this
machine's own address is not, because a proxy may stand there for everybody.

Some descriptors are never given to connections of the port, so that the log and the node's other sockets always have
theirs. When they run short, the log says so.

A WebSocket frame that does not end holds memory, so what arrived of unfinished frames is counted over all connections,
and one that takes longer than `body_timeout_ms` ends its connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from aiohttp import web, web_app
from aiohttp.typedefs import Middleware

from mainspring.settings import Settings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger: logging.Logger = logging.getLogger("mainspring.server")

RESERVE: Final = 64  # descriptors that connections of the port never get
SAY_AGAIN_S: Final = 60.0  # between two warnings that descriptors run short
LOOK_S: Final = 2.0  # between two looks at unfinished frames
MOST_UNFINISHED: Final = 64 << 20  # bytes of unfinished frames of all connections
SMALL: Final = 1_024  # a peer that only answers pings sends less between two looks


def _answer(status: HTTPStatus, message: str, remedy: str) -> bytes:
    """A whole response with its problem document: there is no web server yet that could write one."""
    code = "limit_reached"
    problem = {"type": f"urn:mainspring:problem:{code}", "title": status.phrase, "status": status.value, "code": code}
    body = json.dumps({**problem, "message": message, "detail": f"{message.rstrip('.')}: {remedy}", "remedy": remedy})
    headers = f"Content-Type: application/problem+json\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{headers}Connection: close\r\n\r\n{body}".encode()


_FULL: Final = _answer(HTTPStatus.SERVICE_UNAVAILABLE, "The node has all the connections it may.", "Try again later.")
_TOO_MANY: Final = _answer(
    HTTPStatus.TOO_MANY_REQUESTS, "This address has all the connections it may.", "Use one for many requests."
)


class Connection(asyncio.Protocol):
    """One connection, between its transport and what serves it."""

    def __init__(self, connections: Connections, inner: Any, refusal: bytes | None = None) -> None:
        """`refusal` is written to one that there is no room for, in place of an HTTP response."""
        self._connections = connections
        self._inner = inner
        self._refusal = refusal
        self._timer: asyncio.TimerHandle | None = None
        self.transport: Any = None
        self.source: str = ""  # the address it counts for; empty: none
        self.is_websocket = False
        self.is_held = False  # the node itself does not read on: what arrives is not the peer's delay
        self.unfinished: int = 0  # bytes since the last complete frame
        self.begun_s: float = 0.0  # when the first of them arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.source = source_of(transport)
        refusal = self._connections.admit(self)
        if refusal is not None:
            self._inner = None
            self.transport.write(self._refusal or refusal)
            self.transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(self._connections.header_s, self._is_late)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self.is_websocket:
            self._connections.count(self, len(data))
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        if self._inner is None:
            return None
        stays_open: bool | None = self._inner.eof_received()
        return stays_open

    def connection_lost(self, error: Exception | None) -> None:
        self.asked()
        if self._inner is not None:
            self._connections.left(self)
            self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def asked(self) -> None:
        """A request is complete, so its sender is no stranger who only holds a connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def took_frame(self) -> None:
        """A frame is complete."""
        if self.unfinished:
            self._connections.unfinished -= self.unfinished
            self.unfinished = 0

    def _is_late(self) -> None:
        self._timer = None
        self._connections.closed["silent"] += 1
        self.transport.abort()


class Connections:
    """Every connection of the port. `closed` counts those the node ended or refused, by the reason."""

    def __init__(self, settings: Settings) -> None:
        self.header_s: float = settings.header_timeout_ms / 1000
        self.keep_alive_s: float = settings.keep_alive_ms / 1000
        self.unfinished: int = 0  # bytes of unfinished frames
        self.closed: Counter[str] = Counter()
        self._frame_s = settings.body_timeout_ms / 1000
        self._of_one_address = settings.max_address_connections or sys.maxsize
        self._most, self._descriptors = _most_connections(settings)
        self._open: dict[Any, Connection] = {}  # by transport
        self._silent: dict[Connection, None] = {}  # that have not sent a request, oldest first
        self._resting: dict[Connection, None] = {}  # between two requests
        self._websockets: set[Connection] = set()
        self._sources: Counter[str] = Counter()
        self._said_s = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    # -- coming and going

    def admit(self, connection: Connection) -> bytes | None:
        """Take a new connection; gives what to answer where there is no room for it."""
        source = connection.source
        if source and self._sources[source] >= self._of_one_address:
            self.closed["address"] += 1
            return _TOO_MANY
        if len(self._open) >= self._most * 9 // 10:
            self._say_short()
        if len(self._open) >= self._most and not self._make_room():
            self.closed["full"] += 1
            return _FULL
        self._open[connection.transport] = connection
        self._silent[connection] = None
        if source:
            self._sources[source] += 1
        return None

    def left(self, connection: Connection) -> None:
        """The connection is gone."""
        if self._open.pop(connection.transport, None) is None:
            return
        connection.took_frame()
        self._silent.pop(connection, None)
        self._resting.pop(connection, None)
        self._websockets.discard(connection)
        if connection.source:
            self._sources[connection.source] -= 1
            if not self._sources[connection.source]:
                del self._sources[connection.source]

    def _make_room(self) -> bool:
        """End the connection that has waited longest without a request."""
        for waiting in (self._silent, self._resting):
            for connection in waiting:
                self.closed["crowded"] += 1
                self.left(connection)
                connection.transport.abort()
                return True
        return False

    def _say_short(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said_s >= SAY_AGAIN_S:
            self._said_s = now
            logger.warning(
                "%d of %d possible connections are open; the process may have %d descriptors (ulimit -n)",
                len(self._open),
                self._most,
                self._descriptors,
            )

    def middleware(self) -> Middleware:
        """Tells connections with a request from those without; for the whole application, and the outermost."""

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self._open.get(request.transport)
            if connection is None:
                return await handler(request)
            connection.asked()
            self._silent.pop(connection, None)
            self._resting.pop(connection, None)
            try:
                return await handler(request)
            finally:
                if connection.transport in self._open:
                    self._resting[connection] = None

        return note

    def speaks_lines(self, transport: Any) -> None:
        """The peer of this transport is let in, and stays as long as it wants."""
        connection = self._open.get(transport)
        if connection is not None:
            connection.asked()
            self._silent.pop(connection, None)

    # -- frames that do not end

    def upgraded(self, transport: Any) -> Connection:
        """The connection of this transport, which speaks WebSocket from now on."""
        connection = self._open.get(transport)
        if connection is None:  # nobody counts here
            return Connection(self, None)
        connection.is_websocket = True
        self._websockets.add(connection)
        return connection

    def count(self, connection: Connection, size: int) -> None:
        """So many bytes arrived, and no complete frame yet."""
        if not connection.unfinished:
            connection.begun_s = asyncio.get_running_loop().time()
        connection.unfinished += size
        self.unfinished += size
        if self.unfinished > MOST_UNFINISHED:
            self._end_unfinished(max(self._websockets, key=lambda each: each.unfinished))

    async def watch(self) -> None:
        """End connections whose frame takes too long. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = asyncio.get_running_loop().time()
            for connection in list(self._websockets):
                if connection.unfinished <= SMALL or connection.is_held:
                    connection.took_frame()
                elif now - connection.begun_s > self._frame_s:
                    self._end_unfinished(connection)

    def _end_unfinished(self, connection: Connection) -> None:
        self.closed["unfinished"] += 1
        self.left(connection)
        connection.transport.abort()


class GuardedRunner(web.AppRunner):
    """Runs an application whose connections are counted."""

    def __init__(self, app: web.Application, connections: Connections, **options: Any) -> None:
        super().__init__(app, **options)
        self._connections = connections

    @property
    def server(self) -> Any:
        """What makes the protocol of a new connection."""
        inner, connections = super().server, self._connections
        return None if inner is None else lambda: Connection(connections, inner())

    async def cleanup(self) -> None:
        """End it, and let go of what belongs to it."""
        await super().cleanup()
        forget_applications()


def forget_applications() -> None:
    """Let go of the applications that have ended, and so of their nodes: aiohttp's cache of handlers keeps them.

    Those that run fill the cache again.
    """
    cached = getattr(web_app, "_cached_build_middleware", None)
    if cached is not None:
        cached.cache_clear()


def source_of(transport: asyncio.BaseTransport) -> str:
    """The address that a connection counts for; empty for this machine and for unix sockets.

    A network of IPv6 counts as one: whoever has an address has all of its network.
    """
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return ""
    try:
        address = ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return "" if address.is_loopback else f"{IPv6Address(int(address) >> 64 << 64)}/64"
        address = address.ipv4_mapped
    return "" if address.is_loopback else str(address)


def _most_connections(settings: Settings) -> tuple[int, int]:
    """How many connections there may be, and how many descriptors the process may have."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = settings.max_connections + settings.max_plain_connections
    if descriptors == resource.RLIM_INFINITY:
        return wanted, descriptors
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    return max(8, min(wanted, descriptors - used - max(RESERVE, descriptors // 8))), descriptors
