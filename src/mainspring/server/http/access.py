"""Who may talk to the node over HTTP, before any topic is looked at.

Two questions are answered here, for WebSocket handshakes as for plain requests. *Which page is asking?* A browser
lets any web page send requests to this machine, and tells the page's origin. Only the node's own pages and the
origins in the settings are let in; a foreign origin or `null` gets 403 whatever the method. Programs send no origin
and are not affected.

A page can also reach the node under a name of its own by making that name point to this machine (DNS rebinding); its
requests then look like the node's own. So while the node is open (no tokens), the name in `Host` must be an address,
a name of this machine, or one of the allowed origins' names: an address cannot be rebound.

*Who is asking?* One function says it. Without tokens it believes `?agent_id=` or `X-Agent-Id`: that is for finding
one's way on a single machine, not for keeping anyone out. A node with tokens passes its own function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from mainspring.bus import Caller, Who
from mainspring.server.http.problem import Handler, HttpProblem

Identify = Callable[[web.Request], Awaitable[Who]]

_LOCAL_NAMES: Final = frozenset({"localhost", "ip6-localhost"})
_EXPOSED_HEADERS: Final = "Allow, Location, Retry-After"
_PREFLIGHT_AGE_S: Final = "600"


async def claimed_agent(request: web.Request) -> Caller:
    """The identity a request claims while no tokens are configured; the query wins over the header."""
    agent = request.query.get("agent_id") or request.headers.get("X-Agent-Id")
    if agent is not None and not agent.isprintable():
        raise HttpProblem(
            "The agent id is not printable text.", status=400, code="bad_query", remedy="Send plain text."
        )
    return Caller(agent or None)


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
                _check_host(request.host, self._allowed_hosts)
            origin = request.headers.get(hdrs.ORIGIN)
            if origin is None:
                return await handler(request)
            if not self._is_allowed(origin):
                if not _is_own(origin, request.host):
                    raise _foreign(origin)
            elif request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
                return _preflight(request)
            return await handler(request)

        return check

    async def tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`: a page of an allowed origin may read the answer."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and self._is_allowed(origin):
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


def _check_host(host: str, allowed_hosts: frozenset[str]) -> None:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if name in _LOCAL_NAMES or name.endswith(".localhost") or name in allowed_hosts or _is_address(name):
        return
    raise HttpProblem(
        f"This node does not answer to the name {name!r}.",
        status=403,
        code="forbidden",
        remedy="Use its address, or add the page's origin to MAINSPRING_ALLOWED_ORIGINS.",
    )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _foreign(origin: str) -> HttpProblem:
    return HttpProblem(
        f"Pages of {origin[:200]!r} may not use this node.",
        status=403,
        code="forbidden",
        remedy="Add the origin to MAINSPRING_ALLOWED_ORIGINS if it should.",
    )
