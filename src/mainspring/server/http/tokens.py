"""Who is asking, on a node with tokens: reads the token of a request and says whose it is.

A token comes in `Authorization: Bearer`. A page in a browser cannot set that header for a WebSocket, so it offers the
subprotocols `mainspring` and `mainspring.token.<token>`; the node answers with the first and never repeats the second.
`?token=` works where neither does (a WebSocket from a shell, an EventSource); addresses end up in histories and in logs
of proxies, so it is the last choice.

Whatever is wrong with a token, the answer is the same 401. A token is never repeated, in no answer and no log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from aiohttp import hdrs, web

from mainspring.bus import Caller, Who
from mainspring.bus.access.tokens import TokenSource
from mainspring.loop import Clock
from mainspring.server.http.problem import HttpProblem

SUBPROTOCOL: Final = "mainspring"
TOKEN_PROTOCOL: Final = "mainspring.token."
SID_DIGITS: Final = 12  # of a random id: enough to tell connections apart, and every event carries it
MAX_TOKEN: Final = 512  # characters; ours have 46
FURTHEST_S: Final = 86_400.0  # one sleep; clocks are set, so the rest is counted again then

_CALLER: Final = web.RequestKey("caller", Caller)


class TokenDoor:
    """Gives the Caller of a request, or refuses it with 401."""

    def __init__(self, source: TokenSource, clock: Clock, new_id: Callable[[], str]) -> None:
        self._source = source
        self._clock = clock
        self._new_id = new_id

    async def identify(self, request: web.Request) -> Caller:
        """Who sent the request; the same Caller however often it is asked."""
        if _CALLER in request:
            return request[_CALLER]
        text = _presented(request)
        if text is None:
            raise _unauthorized("This node wants a token.", 'Bearer realm="mainspring"')
        token = self._source.book.find(text, self._clock.wall_ms()) if len(text) <= MAX_TOKEN else None
        if token is None:
            raise _unauthorized(
                "The token is not known here, or has expired.", 'Bearer realm="mainspring", error="invalid_token"'
            )
        sid = self._new_id().replace("-", "")[-SID_DIGITS:]
        caller = Caller(token.agent, sid=sid, scopes=token.scopes, expires_ms=token.expires_ms, revoked=token.revoked)
        request[_CALLER] = caller
        return caller


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
            f"A token is offered without the subprotocol {SUBPROTOCOL!r}.",
            status=400,
            code="bad_frame",
            remedy=f"Offer both, {SUBPROTOCOL!r} first.",
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


def _unauthorized(message: str, challenge: str) -> HttpProblem:
    return HttpProblem(
        message,
        status=401,
        code="unauthorized",
        remedy="Send a valid one as `Authorization: Bearer ...`; `mainspring token new` makes one.",
        headers={hdrs.WWW_AUTHENTICATE: challenge},
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
