"""The HTTP face of a node: one table of operations, put on an aiohttp application.

The application is the node's; the WebSocket and the dashboard live on it too. `add_routes` adds what is in the table
and nothing else. HEAD is given for every GET, OPTIONS for every path, both made here so that no handler has to think
of them. Three middlewares are for the whole application: counting, errors as problem documents, and the check of
origins, which a WebSocket handshake needs as much as a POST.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import Bus
from mainspring.kernel import Kernel
from mainspring.server.http.access import Identify, OriginCheck, claimed_agent
from mainspring.server.http.count import counting
from mainspring.server.http.documents.openapi import build_document
from mainspring.server.http.face import Face
from mainspring.server.http.operations import dead_letters as deadletters
from mainspring.server.http.operations import (
    groups,
    health,
    messages,
    node,
    numbers,
    publish,
    read,
    schedules,
    schemas,
    stream,
    topics,
)
from mainspring.server.http.problem import problems
from mainspring.server.http.query import check_names
from mainspring.server.http.table import JSON, PATH_PARAMETERS, Answer, Content, Operation
from mainspring.server.http.tokens import while_valid
from mainspring.server.observed import Observed
from mainspring.telemetry import tracing


async def _show_openapi(_face: Face, _: web.Request) -> web.StreamResponse:
    return web.Response(body=openapi_text(), content_type=JSON)


OPERATIONS: Final = (
    *topics.OPERATIONS,
    *publish.OPERATIONS,
    *read.OPERATIONS,
    *stream.OPERATIONS,
    *groups.OPERATIONS,
    *deadletters.OPERATIONS,
    *schedules.OPERATIONS,
    *schemas.OPERATIONS,
    *messages.OPERATIONS,
    *node.OPERATIONS,
    *numbers.OPERATIONS,
    *health.OPERATIONS,
    Operation(
        "GET",
        "/openapi.json",
        "showOpenapi",
        "This document",
        _show_openapi,
        (Answer(200, "OpenAPI 3.1.", (Content(JSON, {"type": "object"}),)),),
        "node",
    ),
)


def openapi_document() -> dict[str, Any]:
    """What GET /openapi.json answers, as plain data."""
    return build_document(OPERATIONS, version("mainspring"))


def openapi_text() -> bytes:
    """What GET /openapi.json answers."""
    return msgspec.json.encode(openapi_document())


def add_routes(
    app: web.Application,
    bus: Bus,
    *,
    allowed_origins: Iterable[str] = (),
    kernel: Kernel | None = None,
    observed: Observed | None = None,
    check_host: bool = True,
    identify: Identify = claimed_agent,
    max_body_bytes: int = 16 << 20,
    max_batch_events: int = 10_000,
    heartbeat_ms: int = 15_000,
    stalled_reader_ms: int = 60_000,
) -> Face:
    """Put every operation on the application, with the middlewares that all of its routes need.

    `kernel` is asked by POST /messages and shown by GET /node. `observed` is what GET /node, the metrics and the health
    checks read; without it that is the bus and the kernel.
    `identify` says who sent a request; a node with tokens passes its own, and `check_host=False`. Streams end when the
    application shuts down, so that it does not wait for readers that never leave.
    """
    observed = observed or Observed(bus, kernel=kernel)
    face = Face(
        bus,
        observed,
        identify,
        max_body_bytes=max_body_bytes,
        max_batch_events=max_batch_events,
        heartbeat_ms=heartbeat_ms,
        stalled_reader_ms=stalled_reader_ms,
        kernel=kernel,
        started_ms=bus.clock.wall_ms(),
    )
    by_path: dict[str, list[Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, []).append(operation)
    # A topic's name may match across slashes, so longer paths must be tried before shorter ones.
    for path, operations in sorted(by_path.items(), key=lambda item: -item[0].count("/")):
        _add_path(app, face, path, operations)

    async def end_streams(_: web.Application) -> None:
        face.closing.set()

    origins = OriginCheck(allowed_origins, check_host=check_host)
    app.middlewares.insert(0, counting(observed.requests))
    app.middlewares.insert(1, problems)
    app.middlewares.insert(2, origins.middleware())
    app.on_shutdown.append(end_streams)
    app.on_response_prepare.append(origins.tell)
    return face


def _add_path(app: web.Application, face: Face, path: str, operations: list[Operation]) -> None:
    resource = app.router.add_resource(_route_pattern(path))
    methods = {operation.method for operation in operations}
    if hdrs.METH_GET in methods:
        methods.add(hdrs.METH_HEAD)
    for operation in operations:
        handler = _handler(face, operation)
        resource.add_route(operation.method, handler)
        if operation.method == hdrs.METH_GET:
            resource.add_route(hdrs.METH_HEAD, handler)
    allowed = ", ".join(sorted({*methods, hdrs.METH_OPTIONS}))

    async def tell_methods(_: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={hdrs.ALLOW: allowed})

    resource.add_route(hdrs.METH_OPTIONS, tell_methods)


def _handler(face: Face, operation: Operation) -> Any:
    """The operation as aiohttp calls it. Operations with query parameters refuse the ones they do not know."""
    known = [parameter.name for parameter in operation.parameters if parameter.place == "query"]

    async def handle(request: web.Request) -> web.StreamResponse:
        if tracing.recorder is None:
            return await answer(request)
        with tracing.recorder.incoming(request.headers):
            return await answer(request)

    async def answer(request: web.Request) -> web.StreamResponse:
        if known:
            check_names(request, known)
        if not operation.needs_token:
            return await operation.handler(face, request)
        caller = await face.identify(request)
        if not operation.lasts:
            return await operation.handler(face, request)

        async def end() -> None:
            if request.transport is not None:
                request.transport.abort()

        async with while_valid(caller, face.bus.clock, end):
            return await operation.handler(face, request)

    return handle


def _route_pattern(path: str) -> str:
    """The path with each parameter's pattern filled in. Only below /topics may a topic's slashes be plain."""
    pattern = re.sub(r"\{(\w+)\}", lambda match: f"{{{match[1]}:{PATH_PARAMETERS[match[1]].pattern}}}", path)
    return pattern.replace("{topic:[^/]+}", "{topic:.+}") if path.startswith("/topics/") else pattern
