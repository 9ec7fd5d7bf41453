"""Counts HTTP requests by method, route and status.

A route is the pattern that matched, never the path that was asked for, and methods are those of HTTP; so what clients
send cannot make the table grow.
"""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from mainspring.server.http.problem import Handler
from mainspring.server.observed import Requests

NO_ROUTE: Final = "(none)"
GONE: Final = 499  # the peer left before it had its answer


def counting(requests: Requests) -> Middleware:
    """The outermost middleware. An answer that goes on for ever is counted when it ends."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = GONE
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            method = request.method if request.method in hdrs.METH_ALL else "(other)"
            resource = request.match_info.route.resource
            requests[method, NO_ROUTE if resource is None else resource.canonical, status] += 1

    return count
