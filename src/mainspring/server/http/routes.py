"""The HTTP face of a node: one table of operations, put on an aiohttp application.

The application is the node's; the WebSocket and the dashboard live on it too. `add_routes` adds what is in the table
and nothing else. HEAD is given for every GET, OPTIONS for every path, both made here so that no handler has to think
of them. Three middlewares are for the whole application: counting, errors as problem documents, and the check of
origins, which a WebSocket handshake needs as much as a POST.

Requests are counted by method, route and status. A route is the pattern that matched, never the path that was asked
for, and methods are those of HTTP; so what clients send cannot make the table grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from mainspring.bus import Caller, Forbidden
from mainspring.server.health import Requests
from mainspring.server.http.access import OriginCheck, while_valid
from mainspring.server.http.call import Call, Face, json_response
from mainspring.server.http.documents.openapi import build_document
from mainspring.server.http.operations import (
    dead_letters,
    events,
    groups,
    messages,
    node,
    schedules,
    schemas,
    status,
    tasks,
    topics,
)
from mainspring.server.http.problem import Handler, HttpProblem, problems
from mainspring.server.http.table import PATH_PARAMETERS, Operation, gives
from mainspring.telemetry import tracing

NO_ROUTE: Final = "(none)"
_ELSEWHERE: Final = ("cross-site", "same-site")  # what a browser says of a page that is not this node's
CLIENT_LEFT: Final = 499  # before it had its answer


@node.operation("GET /openapi.json", gives("OpenAPI 3.1.", {"type": "object"}))
async def show_openapi(_: Call) -> bytes:
    """This document."""
    return openapi_text()


_MODULES: Final = (topics, events, groups, dead_letters, schedules, tasks, schemas, messages, node, status)
OPERATIONS: Final = tuple(operation for module in _MODULES for operation in module.operation)


def openapi_document() -> dict[str, Any]:
    """What GET /openapi.json answers, as plain data."""
    return build_document(OPERATIONS, version("mainspring"))


def openapi_text() -> bytes:
    """What GET /openapi.json answers."""
    return msgspec.json.encode(openapi_document())


def add_routes(
    app: web.Application, face: Face, *, allowed_origins: Iterable[str] = (), check_host: bool = True
) -> None:
    """Put every operation on the application, with the middlewares that all of its routes need.

    A node with tokens passes `check_host=False`. Streams end when the application shuts down, so that it does not wait
    for readers that never leave.
    """
    by_path: dict[str, list[Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, []).append(operation)
    # A topic's name may match across slashes, so longer paths must be tried before shorter ones.
    for path, operations in sorted(by_path.items(), key=lambda item: -item[0].count("/")):
        _add_path(app, face, path, operations)

    async def end_streams(_: web.Application) -> None:
        face.closing.set()

    origins = OriginCheck(allowed_origins, check_host=check_host)
    app.middlewares.insert(0, _counting(face.node.requests))
    app.middlewares.insert(1, problems)
    app.middlewares.insert(2, origins.middleware())
    app.on_shutdown.append(end_streams)
    app.on_response_prepare.append(origins.add_headers)


def _counting(requests: Requests) -> Middleware:
    """The outermost middleware. An answer that goes on for ever is counted when it ends."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = CLIENT_LEFT
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            method = request.method if request.method in hdrs.METH_ALL else "(other)"
            resource = request.match_info.route.resource
            requests[method, NO_ROUTE if resource is None else resource.canonical, status] += 1

    return count


def _add_path(app: web.Application, face: Face, path: str, operations: list[Operation]) -> None:
    resource = app.router.add_resource(_route_pattern(path))
    methods = [hdrs.METH_OPTIONS]
    for operation in operations:
        handler = _handler(face, operation)
        for method in ("GET", "HEAD") if operation.method == "GET" else (operation.method,):
            resource.add_route(method, handler)
            methods.append(method)
    allowed = ", ".join(sorted(methods))

    async def list_methods(_: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={hdrs.ALLOW: allowed})

    resource.add_route(hdrs.METH_OPTIONS, list_methods)


def _handler(face: Face, operation: Operation) -> Any:
    """The operation as aiohttp calls it. Operations with query parameters refuse the ones they do not know."""
    known = [parameter.name for parameter in operation.parameters if parameter.place == "query"]
    below = _paths_below(operation.path)

    async def handle(request: web.Request) -> web.StreamResponse:
        if tracing.recorder is None:
            return await answer(request)
        with tracing.recorder.incoming(request.headers):
            return await answer(request)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Sec-Fetch-Mode") == "no-cors" and request.headers.get("Sec-Fetch-Site") in _ELSEWHERE:
            raise HttpProblem("forbidden", "Pages of other sites may not include this.", "Ask with fetch, or a client.")
        for pattern, methods in below:
            if pattern.search(request.rel_url.raw_path):
                raise web.HTTPMethodNotAllowed(request.method, methods)
        call = Call(face, request, None)
        if known:
            call.check_names(known)
        if operation.needs_token:
            call.caller = await face.identify(request)
            if isinstance(call.caller, Caller):
                call.bus.quotas.assign(call.caller, request.remote or "")
        try:
            with call.quota.holding("streams" if operation.lasts else "requests"):
                result = await carry_out(call, request)
        except Forbidden as error:
            call.bus.audit.refused("right_refused", call.caller, f"{request.method} {request.path}", error.message)
            raise
        return result if isinstance(result, web.StreamResponse) else json_response(result)

    async def carry_out(call: Call, request: web.Request) -> Any:
        if not operation.lasts:
            return await operation.handler(call)
        async with while_valid(call.caller, call.bus.clock, lambda: _abort(request)):
            return await operation.handler(call)

    return handle


def _paths_below(path: str) -> list[tuple[re.Pattern[str], set[str]]]:
    """The paths that go on behind this one, which ends with a topic, and their methods.

    With a method that such a path does not know, a request would be about a topic that has slashes in its name.
    """
    found: dict[str, set[str]] = {}
    for each in OPERATIONS if path.endswith("/{topic}") and path.startswith("/topics/") else ():
        if each.path.startswith(f"{path}/"):
            found.setdefault(each.path, set()).update({"GET", "HEAD"} if each.method == "GET" else {each.method})
    return [(re.compile(re.sub(r"\{\w+:(.*?)\}", r"\1", _route_pattern(each)) + "$"), found[each]) for each in found]


async def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _route_pattern(path: str) -> str:
    """The path with each parameter's pattern filled in. Only below /topics may a topic's slashes be plain."""
    pattern = re.sub(r"\{(\w+)\}", lambda match: f"{{{match[1]}:{PATH_PARAMETERS[match[1]].pattern}}}", path)
    return pattern.replace("{topic:[^/]+}", "{topic:[\\s\\S]+}") if path.startswith("/topics/") else pattern
