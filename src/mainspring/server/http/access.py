"""Who may talk to the node over HTTP, and who is asking. For WebSocket handshakes too.

*Which page is asking?* A browser lets any web page send requests to this machine, and tells the page's origin. Only the
node's own pages and the origins in the settings are let in (`OriginCheck`); a foreign origin or `null` gets 403
whatever the method. Programs send no origin and are not affected.

A page can also reach the node under a name of its own by making that name point to this machine (DNS rebinding); its
requests then look like the node's own. So while the node is open (no tokens), the name in `Host` must be an address,
a name of this machine, or one of the allowed origins' names: an address cannot be rebound. And what a proxy passes on
for somebody on another machine (`X-Forwarded-For`, `X-Real-IP`, `Forwarded`) is refused.

*Who is asking?* One function says it. Without tokens it is `claimed_agent`, which believes `?agent_id=` or
`X-Agent-Id`: that is for finding one's way on a single machine, not for keeping anyone out.

On a node with tokens it is `TokenAuthenticator`. A token comes in `Authorization: Bearer`. A page in a browser cannot
set that header for a WebSocket, so it offers the subprotocols `mainspring` and `mainspring.token.<token>`; the node
answers with the first and never repeats the second. `?token=` works where neither does (a WebSocket from a shell, an
EventSource); addresses end up in histories and in logs of proxies, so it is the last choice. Whatever is wrong with a
token, the answer is the same 401. A token is never repeated, in no answer and no log. Who sends no token may show a
certificate instead, where the node has an authority for those of clients: TLS has checked it, a line says whose it is.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from mainspring.bus import Audit, Caller, Who
from mainspring.bus.access import Token, TokenSource, certificate_names
from mainspring.loop import Clock
from mainspring.server.http.problem import Handler, HttpProblem

Identify = Callable[[web.Request], Awaitable[Who]]

_LOCAL_NAMES: Final = frozenset({"localhost", "ip6-localhost"})
SERVER: Final = "mainspring"
_EXPOSED_HEADERS: Final = "Allow, Location, Retry-After"
_PREFLIGHT_AGE_S: Final = "600"

SUBPROTOCOL: Final = "mainspring"
TOKEN_PROTOCOL: Final = "mainspring.token."
SID_DIGITS: Final = 12  # of a random id: enough to tell connections apart, and every event carries it
OUTSIDE: Final = "X-Mainspring-Outside"  # the address of who asks through a web server of the node's program
MAX_TOKEN: Final = 512  # characters; ours have 46
FURTHEST_S: Final = 86_400.0  # one sleep; clocks are set, so the rest is counted again then

_FORWARDED: Final = ("X-Forwarded-For", "X-Real-IP", hdrs.FORWARDED)
_FOR: Final = re.compile(r'for=("[^"]*"|[^;,\s]*)', re.IGNORECASE)
_NO_TOKENS: Final = "This node has no tokens, so it answers only to its own machine."
_MAKE_TOKEN: Final = "Make one with `mainspring token new` and put its line into MAINSPRING_TOKENS."

_CALLER: Final = web.RequestKey("caller", Caller)


# --- which page is asking ---


class OriginCheck:
    """Lets in programs, the node's own pages, and pages of `allowed_origins`.

    `check_host=False` is for a node that asks for tokens: a rebound page has none.
    """

    def __init__(self, allowed_origins: Iterable[str] = (), *, check_host: bool = True) -> None:
        self._allowed = frozenset(origin.strip().rstrip("/").lower() for origin in allowed_origins if origin.strip())
        self._allowed_hosts = frozenset(urlsplit(origin).hostname or "" for origin in self._allowed)
        self._check_host = check_host

    def middleware(self) -> Middleware:
        """For the whole application, so that WebSocket handshakes are checked too."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._check_host:
                _check_host(request.host, self._allowed_hosts, is_mounted=OUTSIDE in request.headers)
                _check_forwarded(request)
            origin = request.headers.get(hdrs.ORIGIN)
            if origin is None:
                return await handler(request)
            if not self._is_allowed(origin):
                if not _is_own(origin, request.host):
                    text = f"Pages of {origin[:200]!r} may not use this node."
                    raise HttpProblem("forbidden", text, "Add the origin to MAINSPRING_ALLOWED_ORIGINS if it should.")
            elif request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
                return _preflight(request)
            return await handler(request)

        return check

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`: a page of an allowed origin may read the answer, and no other may use it.

        An answer that says nothing else is for its reader alone: no cache keeps it, no page includes it.
        """
        headers = response.headers
        headers[hdrs.SERVER] = SERVER  # without the versions of what is used
        headers.setdefault("X-Content-Type-Options", "nosniff")
        headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
        origin = request.headers.get(hdrs.ORIGIN)
        is_allowed = origin is not None and self._is_allowed(origin)
        headers.setdefault("Cross-Origin-Resource-Policy", "cross-origin" if is_allowed else "same-origin")
        if origin is not None and is_allowed:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED_HEADERS
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)

    def _is_allowed(self, origin: str) -> bool:
        return origin.lower() in self._allowed


def _preflight(request: web.Request) -> web.Response:
    """The browser's question before a request it considers unusual."""
    return web.Response(
        status=204,
        headers={
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, HEAD, POST, DELETE",
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""),
            hdrs.ACCESS_CONTROL_MAX_AGE: _PREFLIGHT_AGE_S,
        },
    )


def _is_own(origin: str, host: str) -> bool:
    """Whether a page with this origin was served under the name and port of this very request."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _check_host(host: str, allowed_hosts: frozenset[str], *, is_mounted: bool) -> None:
    """Where it is mounted in a web application, names without a dot are let in: tests use them, and no DNS has them."""
    name = ""
    with suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or ""
    if name in _LOCAL_NAMES or name.endswith(".localhost") or name in allowed_hosts or (is_mounted and "." not in name):
        return
    with suppress(ValueError):
        ip_address(name)
        return
    raise HttpProblem(
        "forbidden",
        f"This node does not answer to the name {name!r}.",
        "Use its address, or add the page's origin to MAINSPRING_ALLOWED_ORIGINS.",
    )


def _check_forwarded(request: web.Request) -> None:
    """A proxy on this machine may let in the whole world, which it names in its headers."""
    for name in _FORWARDED:
        for value in request.headers.getall(name, ()):
            said = _FOR.findall(value) if name == hdrs.FORWARDED else value.split(",")
            if not all(map(_is_here, said)):
                raise HttpProblem("forbidden", _NO_TOKENS, _MAKE_TOKEN)


def _is_here(said: str) -> bool:
    """Of an address as proxies write it, with or without port and brackets."""
    text = said.strip().strip('"')
    with suppress(ValueError):
        return ip_address(text).is_loopback
    with suppress(ValueError):
        return ip_address(urlsplit(f"//{text}").hostname or "").is_loopback
    return False


# --- who is asking ---


def outside_middleware(*, needs_token: bool) -> Middleware:
    """For requests that come through a web server of the node's program: they are from where that server says.

    Without tokens everybody whom it serves might do everything, so only this machine is let in, as on the port.
    """

    @web.middleware
    async def note_address(request: web.Request, handler: Handler) -> web.StreamResponse:
        address = request.headers.get(OUTSIDE)
        if address is None or not _is_unix(request):
            return await handler(request)
        if not needs_token and not _may_be_here(address):
            raise HttpProblem("forbidden", _NO_TOKENS, _MAKE_TOKEN)
        return await handler(request.clone(remote=address))

    return note_address


def _is_unix(request: web.Request) -> bool:
    connection = None if request.transport is None else request.transport.get_extra_info("socket")
    return connection is not None and connection.family == socket.AF_UNIX


def _may_be_here(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return True  # no network: a unix socket, or a test


async def claimed_agent(request: web.Request) -> Caller:
    """The identity a request claims while no tokens are configured; the query wins over the header."""
    agent = request.query.get("agent_id") or request.headers.get("X-Agent-Id")
    if agent is not None and not agent.isprintable():
        raise HttpProblem("bad_query", "The agent id is not printable text.", "Send plain text.")
    return Caller(agent or None, address=request.remote or "")


def trusting_own_user(identify: Identify) -> Identify:
    """Ask nobody for a token who comes through a unix socket: it is a process of the node's own user and program.

    Unless it speaks for somebody else (`OUTSIDE`), as a web server does in which the node's pages are mounted.
    """

    async def who(request: web.Request) -> Who:
        if OUTSIDE not in request.headers and _is_unix(request):
            return Caller(None)
        return await identify(request)

    return who


class TokenAuthenticator:
    """Gives the Caller of a request, or refuses it with 401."""

    def __init__(self, source: TokenSource, clock: Clock, new_id: Callable[[], str], audit: Audit) -> None:
        self._audit = audit
        self._source = source
        self._clock = clock
        self._new_id = new_id

    async def identify(self, request: web.Request) -> Caller:
        """Who sent the request; the same Caller however often it is asked."""
        if _CALLER in request:
            return request[_CALLER]
        text, address = _presented(request), request.remote or ""
        caller = self.find(text, request.transport, address)
        if caller is None:
            refusal = self._refusal(request, text)
            self.note_refusal(f"{request.method} {request.path}", refusal.message, address)
            raise refusal
        request[_CALLER] = caller
        return caller

    def find(self, text: str | None, transport: asyncio.BaseTransport | None, address: str) -> Caller | None:
        """Who has this token, or without one the certificate that was shown on the transport."""
        now, ends_ms = self._clock.wall_ms(), 0
        if text is not None:
            token = self._source.book.find(text, now) if len(text) <= MAX_TOKEN else None
        else:
            token, ends_ms = self._by_certificate(transport, now)
        if token is None:
            return None
        return Caller(
            token.agent,
            sid=self._new_id().replace("-", "")[-SID_DIGITS:],
            scopes=token.scopes,
            expires_ms=min(filter(None, (token.expires_ms, ends_ms)), default=0),
            address=address,
            revoked=token.revoked,
        )

    def note_refusal(self, about: str, reason: str, address: str) -> None:
        """Somebody was not let in: the audit tells."""
        self._audit.refused("login_refused", None, about, reason, address=address)

    def _by_certificate(self, transport: asyncio.BaseTransport | None, now: int) -> tuple[Token | None, int]:
        """The line for the certificate that the client showed, and when the certificate ends."""
        peer = None if transport is None else transport.get_extra_info("peercert")
        if not peer:
            return None, 0
        ends_ms = int(ssl.cert_time_to_seconds(peer["notAfter"])) * 1000
        return self._source.book.find_certificate(certificate_names(peer), now) if ends_ms > now else None, ends_ms

    def _refusal(self, request: web.Request, text: str | None) -> HttpProblem:
        has_certificate = request.transport is not None and bool(request.transport.get_extra_info("peercert"))
        if text is None and not has_certificate:
            return _unauthorized("This node wants a token.")
        if text is None:
            return _unauthorized("No line of the node's tokens is for this certificate, or it has expired.")
        return _unauthorized("The token is not known here, or has expired.", ', error="invalid_token"')


def offered(request: web.Request) -> list[str]:
    """The subprotocols a WebSocket handshake offers."""
    given = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, [])
    return [each.strip() for line in given for each in line.split(",") if each.strip()]


def chosen_protocol(request: web.Request) -> tuple[str, ...]:
    """The subprotocol to answer a handshake with, if any.

    A token among others the node does not speak is refused, before the handshake complains of them by name in the log.
    """
    protocols = offered(request)
    if SUBPROTOCOL in protocols:
        return (SUBPROTOCOL,)
    if any(protocol.startswith(TOKEN_PROTOCOL) for protocol in protocols):
        raise HttpProblem(
            "bad_frame",
            f"A token is offered without the subprotocol {SUBPROTOCOL!r}.",
            f"Offer both, {SUBPROTOCOL!r} first.",
        )
    return ()


def _presented(request: web.Request) -> str | None:
    """The token of the request. Given in two ways, the header counts."""
    header = request.headers.get(hdrs.AUTHORIZATION)
    if header is not None:
        scheme, _, text = header.partition(" ")
        return text.strip() if scheme.lower() == "bearer" and text.strip() else None
    for protocol in offered(request):
        if protocol.startswith(TOKEN_PROTOCOL):
            return protocol.removeprefix(TOKEN_PROTOCOL)
    if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
        return request.query.get("token")
    return None


def _unauthorized(message: str, challenge: str = "") -> HttpProblem:
    return HttpProblem(
        "unauthorized",
        message,
        "Send a valid one as `Authorization: Bearer ...`; `mainspring token new` makes one.",
        headers={hdrs.WWW_AUTHENTICATE: 'Bearer realm="mainspring"' + challenge},
    )


@asynccontextmanager
async def while_valid(caller: Who, clock: Clock, end: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call `end` when the caller's token expires or is taken away within this block: what lasts must not outlast it."""
    if not isinstance(caller, Caller) or caller.revoked is None:
        yield
        return
    revoked = caller.revoked

    async def watch() -> None:
        while not revoked.is_set():
            left_s = (caller.expires_ms - clock.wall_ms()) / 1000 if caller.expires_ms else FURTHEST_S
            if left_s <= 0:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(revoked.wait(), min(left_s, FURTHEST_S))
        ending.set()
        await end()

    ending = asyncio.Event()
    task = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    finally:
        if not ending.is_set():
            task.cancel()
        await asyncio.wait([task])
