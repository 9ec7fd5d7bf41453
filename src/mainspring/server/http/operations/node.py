"""The node from inside, read-only: what it is doing, its numbers, the nodes beside it, and whether it lives.

`GET /node` is one answer for everything a person looks at first. It says the numbers and names of this moment; payloads
are in none of it. It also says what the caller may do, so that a page can tell before it is refused. Actors, requests,
faults, what blocked the loop and the other nodes are for those who may do everything: they tell of all parts at once.

`GET /stats` and `GET /metrics` are the counters, as JSON and in Prometheus' text format. Numbers of a topic and its
groups are for those who may read it. Totals count everything: they name nobody.

`GET /healthz` and `GET /readyz` are answered to anybody, for those who restart and route.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final, Literal

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import Caller, Stats, Who
from mainspring.cluster import Alone, NodeView
from mainspring.kernel import ActorView, FaultView, Inspector, Kernel, RequestView
from mainspring.loop import Blocked, Counters
from mainspring.server.health import NodeParts, readiness, stuck_ms
from mainspring.server.http.call import Call
from mainspring.server.http.problem import problem_response
from mainspring.server.http.table import BodyContent, Operations, gives

SHOWN_REQUESTS: Final = 200

operation: Final[Operations] = Operations("node")


class CallerView(msgspec.Struct, frozen=True):
    """Who asks, as far as the node knows, and whether it may do everything."""

    agent: str | None
    proven: bool
    admin: bool
    scopes: list[str]


class KernelView(msgspec.Struct, frozen=True):
    """The kernel: what it counted, what keeps it busy, its actors, the oldest open requests, the latest faults."""

    counters: dict[str, int]
    liveness: dict[str, int]
    actors: list[ActorView]
    requests: list[RequestView]
    faults: list[FaultView]


class BlockedView(msgspec.Struct, frozen=True):
    """Work that kept everything else on the node waiting, and when that was noticed (epoch ms).

    `where` is the line of the program it was at.
    """

    at: int
    kind: str
    name: str
    ms: float
    limit_ms: float = msgspec.field(name="limitMs")
    where: str = ""
    stack: str = ""


class NodeDetails(msgspec.Struct, frozen=True):
    """One node. `reason` says why it is not ready. `loop` and `kernel` are null where the face serves a bus alone.

    `kernel` is null and `slowTurns` empty for a token without the scope `admin`.
    """

    version: str
    started: int
    now: int
    ready: bool
    reason: str
    you: CallerView
    loop: Counters | None
    kernel: KernelView | None
    slow_turns: list[BlockedView] = msgspec.field(name="slowTurns")


class EngineView(msgspec.Struct, frozen=True):
    """Where the log is kept. `durable` and `statement` say what an acknowledgement means; null if unknown."""

    name: str
    shared: bool
    durable: bool | None = None
    statement: str | None = None


class Nodes(msgspec.Struct, frozen=True):
    """Everybody on this node's log, by name, and the engine that holds it. A bus that is served alone has no engine."""

    nodes: list[NodeView]
    engine: EngineView | None = None


def _caller(who: Who) -> CallerView:
    if not isinstance(who, Caller):
        return CallerView(who, False, True, [])
    return CallerView(who.agent, who.is_proven, not who.is_limited, list(who.scopes.names) if who.scopes else [])


def _kernel(kernel: Kernel) -> KernelView:
    inside = Inspector(kernel)
    requests = inside.open_requests(SHOWN_REQUESTS)
    return KernelView(dict(kernel.counters), kernel.liveness(), inside.actors(), requests, inside.faults())


def _blocked(node: NodeParts) -> list[BlockedView]:
    """What blocked the loop lately, the latest first."""

    def view(each: Blocked) -> BlockedView:
        return BlockedView(each.at_ms, each.kind, each.name, each.duration_ms, each.limit_ms, each.where, each.stack)

    return [] if node.watchdog is None else [view(each) for each in reversed(node.watchdog.blocked)]


@operation("GET /node", "The node.")
async def show_node(call: Call) -> NodeDetails:
    """What the node is doing now: loop, kernel, actors, open requests, faults."""
    kernel, node = call.kernel, call.face.node
    ready = readiness(node)
    return NodeDetails(
        version("mainspring"),
        node.started_ms,
        call.bus.clock.wall_ms(),
        ready.ready,
        ready.reason,
        _caller(call.caller),
        None if kernel is None else kernel.loop.counters(),
        None if kernel is None or call.is_limited else _kernel(kernel),
        [] if call.is_limited else _blocked(node),
    )


@operation("GET /nodes", "The nodes, this one too.")
async def show_nodes(call: Call) -> Nodes:
    """The nodes that share this node's log.

    As this node sees it. A token without the scope `admin` is shown none.
    """
    if call.is_limited:
        return Nodes([])
    cluster = call.kernel.cluster if call.kernel is not None else Alone()
    return Nodes(cluster.nodes(), _engine(call.face.node))


def _engine(node: NodeParts) -> EngineView | None:
    if node.log is None:
        return None
    found = node.durability()
    known = (found.durable, found.statement) if found is not None else ()
    return EngineView(node.log.engine.name, node.log.shared, *known)


@operation("GET /stats", "The numbers.")
async def show_stats(call: Call) -> Stats:
    """Counters since the node started, and gauges of now."""
    stats = call.bus.stats()
    disk = stats.disk
    largest = [] if isinstance(disk, msgspec.UnsetType) else [each.topic for each in disk.largest if each.topic]
    visible = await call.readable({*stats.by_topic, *largest})
    shown = {topic: count for topic, count in stats.by_topic.items() if topic in visible}
    return msgspec.structs.replace(stats, by_topic=shown, disk=disk and disk.without_others(visible))


@operation("GET /metrics", gives("The numbers.", BodyContent("text/plain", {"type": "string"})))
async def show_metrics(call: Call) -> web.Response:
    """The numbers in Prometheus' text format."""
    from mainspring.server.metrics import exposition

    visible = await call.readable({*call.bus.stats().by_topic, *(group.topic for group in call.bus.groups.infos())})
    accept, named = call.request.headers.get(hdrs.ACCEPT, ""), call.visible_messages
    text, content_type = exposition(call.face.node, accept, visible, named)
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type})


class Health(msgspec.Struct, frozen=True):
    """The process answers and its loop turns."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node takes requests. `disk`: `low` when room is short, `full` when publishes are refused for it."""

    status: Literal["ready"]
    disk: Literal["ok", "low", "full"] = "ok"


@operation("GET /healthz", gives("It does.", Health), errors=(503,), needs_token=False)
async def show_health(call: Call) -> Health | web.Response:
    """Whether the process answers and its loop turns.

    A node that only cannot write now should not be restarted. 503 when its loop is stuck.
    """
    waited_ms = stuck_ms(call.face.node)
    if not waited_ms:
        return Health()
    return problem_response(503, "stuck", f"The loop has not turned for {waited_ms} ms.", "Restart the node.")


@operation("GET /readyz", gives("It does.", Ready), errors=(503,), needs_token=False)
async def show_readiness(call: Call) -> Ready | web.Response:
    """Whether the node takes requests.

    503 with the reason while it does not. A node without room for new events is ready: it delivers, and takes
    acknowledgements and deletions.
    """
    found = readiness(call.face.node)
    if found.ready:
        disk = call.bus.disk.state
        return Ready("ready", "ok" if disk is None else disk.state)
    return problem_response(503, "unavailable", f"The node is not ready: {found.reason}.", "Try again later.")
