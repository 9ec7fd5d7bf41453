"""The node's numbers: as JSON for people and programs, and in Prometheus' text format.

Numbers of a topic and its groups are for those who may read it. Totals count everything: they name nobody.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import Stats
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.sight import readable_topics
from mainspring.server.http.table import JSON, Answer, Content, Operation


async def show_stats(face: Face, request: web.Request) -> web.StreamResponse:
    """Counters since the node started, and gauges of now."""
    stats = face.bus.stats()
    visible = await readable_topics(face.bus, await face.identify(request), stats.by_topic)
    shown = {topic: count for topic, count in stats.by_topic.items() if topic in visible}
    return json_response(msgspec.structs.replace(stats, by_topic=shown))


async def show_metrics(face: Face, request: web.Request) -> web.StreamResponse:
    """The numbers for Prometheus."""
    from mainspring.server.metrics import exposition

    counted = {*face.bus.stats().by_topic, *(group.topic for group in face.bus.groups.infos())}
    visible = await readable_topics(face.bus, await face.identify(request), counted)
    text, content_type = exposition(face.observed, request.headers.get(hdrs.ACCEPT, ""), visible)
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
