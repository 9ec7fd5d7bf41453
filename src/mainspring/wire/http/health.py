"""How the node is doing: its numbers, whether it lives, whether it takes requests, and what it can be asked."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import Stats
from mainspring.cluster import Alone, NodeView
from mainspring.wire.health import readiness, stuck_ms
from mainspring.wire.http.face import Face, json_response
from mainspring.wire.http.problem import problem_response
from mainspring.wire.http.table import JSON, Answer, Content, Operation
from mainspring.wire.observed import Observed


class Health(msgspec.Struct, frozen=True):
    """The process answers and its loop turns."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """The node takes requests."""

    status: Literal["ready"] = "ready"


async def show_stats(face: Face, _: web.Request) -> web.StreamResponse:
    """Counters since the node started, and gauges of now."""
    return json_response(face.bus.stats())


async def show_health(face: Face, _: web.Request) -> web.StreamResponse:
    """Ok while the loop turns: a node that only cannot write now should not be restarted. 503 when it is stuck."""
    waited_ms = stuck_ms(face.observed)
    if not waited_ms:
        return json_response(Health())
    return problem_response(503, "stuck", f"The loop has not turned for {waited_ms} ms.", "Restart the node.")


async def show_readiness(face: Face, _: web.Request) -> web.StreamResponse:
    """200 while requests are taken, else 503 with the reason."""
    found = readiness(face.observed)
    if found.ready:
        return json_response(Ready())
    return problem_response(503, "unavailable", f"The node takes no requests: {found.reason}.", "Try again later.")


class EngineView(msgspec.Struct, frozen=True):
    """Where the log is kept. `durable` and `statement` say what an acknowledgement means; null while nobody can say."""

    name: str
    shared: bool
    durable: bool | None = None
    statement: str | None = None


class Nodes(msgspec.Struct, frozen=True):
    """Everybody on this node's log, by name, and the engine that holds it. A bus that is served alone has no engine."""

    nodes: list[NodeView]
    engine: EngineView | None = None


async def show_nodes(face: Face, _: web.Request) -> web.StreamResponse:
    """Who is on this node's log, as this node sees it."""
    cluster = face.kernel.cluster if face.kernel is not None else Alone()
    return json_response(Nodes(cluster.nodes(), await _engine(face.observed)))


async def _engine(observed: Observed) -> EngineView | None:
    log = observed.log
    if log is None:
        return None
    found = await observed.promise.of(log)
    if found is None:
        return EngineView(log.engine.name, log.shared)
    return EngineView(log.engine.name, log.shared, found.durable, found.statement)


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
        "/nodes",
        "showNodes",
        "The nodes that share this node's log",
        show_nodes,
        (Answer(200, "The nodes, this one too.", (Content(JSON, Nodes),)),),
        "node",
    ),
    Operation(
        "GET",
        "/healthz",
        "showHealth",
        "Whether the process answers and its loop turns",
        show_health,
        (Answer(200, "It does.", (Content(JSON, Health),)),),
        "node",
        errors=(503,),
        needs_token=False,
    ),
    Operation(
        "GET",
        "/readyz",
        "showReadiness",
        "Whether the node takes requests",
        show_readiness,
        (Answer(200, "It does.", (Content(JSON, Ready),)),),
        "node",
        errors=(503,),
        needs_token=False,
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
