"""`mainspring mcp --http`: the same over streamable HTTP, for clients that do not start the server themselves.

One address, `/mcp`. A request is posted; its answer is JSON, or an event stream where the client asked for progress.
`initialize` begins a session, named by a header, so that two clients with the same ids do not meet.

It listens on loopback only, because who reaches it may do what its own token may. Pages of other origins are refused,
and so are names that somebody else's DNS could have pointed here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import typer
from aiohttp import web

from mainspring.cli.program.mcp import MAX_LINE_BYTES, VERSIONS, Server
from mainspring.cli.support.output import CommandFailed

SESSION: Final = "Mcp-Session-Id"
VERSION: Final = "MCP-Protocol-Version"
_MOST_SESSIONS: Final = 1_000
_LOCAL_NAMES: Final = ("localhost",)
_END: Final = object()  # nothing more is sent


class McpSessions:
    """The sessions of all clients. `make` gives the server of a new one."""

    def __init__(self, make: Callable[[], Server]) -> None:
        self._make = make
        self._sessions: OrderedDict[str, Server] = OrderedDict()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_LINE_BYTES)
        app.router.add_post("/mcp", self._post)
        app.router.add_delete("/mcp", self._delete)
        return app  # a GET is answered with 405: this server sends nothing by itself

    async def _post(self, request: web.Request) -> web.StreamResponse:
        refused = _refused(request)
        if refused is not None:
            return refused
        body = await request.read()
        beginning = _begins(body)
        name = secrets.token_urlsafe(24) if beginning else request.headers.get(SESSION, "")
        if beginning:
            self._sessions[name] = self._make()
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        server = self._sessions.get(name)
        if server is None:
            why = "there is no such session" if name else f"the header {SESSION} is missing"
            return _problem(404 if name else 400, f"{why}; begin with initialize")
        answer = await _answered(server, body, request)
        if beginning:
            answer.headers[SESSION] = name
        return answer

    async def _delete(self, request: web.Request) -> web.Response:
        refused = _refused(request)
        if refused is not None:
            return refused
        found = self._sessions.pop(request.headers.get(SESSION, ""), None)
        return web.Response(status=404 if found is None else 204)


async def _answered(server: Server, body: bytes, request: web.Request) -> web.StreamResponse:
    """Everything the server sends about these requests: as JSON, or as a stream where there is more than one answer."""
    loop = asyncio.get_running_loop()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    ending = server.take(body, lambda answer: loop.call_soon_threadsafe(sent.put_nowait, answer))
    if ending is None:
        loop.call_soon(sent.put_nowait, _END)
    else:
        ending.add_done_callback(lambda _: loop.call_soon_threadsafe(sent.put_nowait, _END))
    if not _wants_progress(body) or "text/event-stream" not in request.headers.get("Accept", ""):
        while isinstance(answer := await sent.get(), dict) and "method" in answer:
            continue
        return web.Response(status=202) if answer is _END else web.json_response(answer)
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await stream.prepare(request)
    while (answer := await sent.get()) is not _END:
        await stream.write(b"event: message\ndata: " + json.dumps(answer).encode() + b"\n\n")
    return stream


def _read(body: bytes) -> list[Any]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return [None]  # is answered with a parse error
    return given if isinstance(given, list) else [given]


def _begins(body: bytes) -> bool:
    return any(isinstance(each, dict) and each.get("method") == "initialize" for each in _read(body))


def _wants_progress(body: bytes) -> bool:
    return b'"progressToken"' in body


def _refused(request: web.Request) -> web.Response | None:
    """Why a request is not taken: from a page of another origin, by a foreign name, or of an unknown version."""
    origin = request.headers.get("Origin")
    if origin is not None and not is_local(urlsplit(origin).hostname or ""):
        return _problem(403, "pages of other origins may not connect")
    if not is_local(urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""):
        return _problem(403, "this name is not the machine's own")
    asked = request.headers.get(VERSION)
    if asked is not None and asked not in VERSIONS:
        return _problem(400, f"{VERSION} is one of {', '.join(VERSIONS)}")
    return None


def _problem(status: int, text: str) -> web.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": text}}
    return web.json_response(error, status=status)


def is_local(host: str) -> bool:
    """Whether this name or address is the machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL_NAMES


def serve_http(make: Callable[[], Server], address: str) -> None:
    """Serve until interrupted."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if port is None or not is_local(host):
        raise CommandFailed(
            f"{address!r} is not a loopback address with a port",
            remedy="write 127.0.0.1:7071; who is elsewhere connects through ssh or a proxy that asks who they are",
        )
    typer.echo(f"serving at http://{address}/mcp", err=True)
    web.run_app(McpSessions(make).app(), host=host, port=port, print=None, handle_signals=True)
