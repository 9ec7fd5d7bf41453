"""The node's numbers: as JSON for people and programs, and in Prometheus' text format."""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web

from mainspring.bus import Stats
from mainspring.wire.http.face import Face, json_response
from mainspring.wire.http.table import JSON, Answer, Content, Operation


async def show_stats(face: Face, _: web.Request) -> web.StreamResponse:
    """Counters since the node started, and gauges of now."""
    return json_response(face.bus.stats())


async def show_metrics(face: Face, request: web.Request) -> web.StreamResponse:
    """The numbers for Prometheus."""
    from mainspring.wire.metrics import exposition

    text, content_type = exposition(face.observed, request.headers.get(hdrs.ACCEPT, ""))
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type})


OPERATIONS: Final = (
    Operation(
        "GET",
        "/stats",
        "showStats",
        "Counters since the node started, and gauges of now",
        show_stats,
        (Answer(200, "The numbers.", (Content(JSON, Stats),)),),
        "node",
    ),
    Operation(
        "GET",
        "/metrics",
        "showMetrics",
        "The numbers in Prometheus' text format",
        show_metrics,
        (Answer(200, "The numbers.", (Content("text/plain", {"type": "string"}),)),),
        "node",
    ),
)
