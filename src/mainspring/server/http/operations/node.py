"""The node from inside, read-only: its loop, its kernel, and the nodes beside it.

`GET /node` is one answer for everything a person looks at first. It says the numbers and names of this moment; payloads
are in none of it. It also says what the caller may do, so that a page can tell before it is refused.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import msgspec
from aiohttp import web

from mainspring.bus import Caller, Who
from mainspring.cluster import Alone, NodeView
from mainspring.kernel import ActorView, FaultView, Inspector, Kernel, RequestView
from mainspring.loop import Blocked, Counters
from mainspring.server.health import readiness
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.operations.messages import may_command
from mainspring.server.http.table import JSON, Answer, Content, Operation
from mainspring.server.observed import Observed

SHOWN_REQUESTS: Final = 200


class Asking(msgspec.Struct, frozen=True):
    """Who asks, as far as the node knows, and whether commands would be taken."""

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

    `where` is the line of the program it was at. Only callers who may send commands see `where` and `stack`.
    """

    at: int
    kind: str
    name: str
    ms: float
    limit_ms: float = msgspec.field(name="limitMs")
    where: str = ""
    stack: str = ""


class NodeInside(msgspec.Struct, frozen=True):
    """One node. `reason` says why it is not ready. `loop` and `kernel` are null where the face serves a bus alone."""

    version: str
    started: int
    now: int
    ready: bool
    reason: str
    you: Asking
    loop: Counters | None
    kernel: KernelView | None
    slow_turns: list[BlockedView] = msgspec.field(name="slowTurns")


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


def _asking(who: Who) -> Asking:
    if not isinstance(who, Caller):
        return Asking(who, False, True, [])
    return Asking(who.agent, who.is_proven, may_command(who), list(who.scopes.names) if who.scopes else [])


def _kernel(kernel: Kernel) -> KernelView:
    inside = Inspector(kernel)
    return KernelView(
        dict(kernel.counters),
        kernel.liveness(),
        inside.actors(),
        inside.open_requests(SHOWN_REQUESTS),
        inside.faults(),
    )


def _blocked(observed: Observed, *, with_code: bool) -> list[BlockedView]:
    """What blocked the loop lately, the latest first. Paths and lines of a program are not for every reader."""

    def view(each: Blocked) -> BlockedView:
        where, stack = (each.where, each.stack) if with_code else ("", "")
        return BlockedView(each.at_ms, each.kind, each.name, each.duration_ms, each.limit_ms, where, stack)

    return [] if observed.watchdog is None else [view(each) for each in reversed(observed.watchdog.blocked)]


async def show_node(face: Face, request: web.Request) -> web.StreamResponse:
    """What the node is doing now."""
    who = await face.identify(request)
    kernel, ready = face.kernel, readiness(face.observed)
    shown = NodeInside(
        version("mainspring"),
        face.started_ms,
        face.bus.clock.wall_ms(),
        ready.ready,
        ready.reason,
        _asking(who),
        None if kernel is None else kernel.loop.counters(),
        None if kernel is None else _kernel(kernel),
        _blocked(face.observed, with_code=may_command(who)),
    )
    return json_response(shown)


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


OPERATIONS: Final = (
    Operation(
        "GET",
        "/node",
        "showNode",
        "What the node is doing now: loop, kernel, actors, open requests, faults",
        show_node,
        (Answer(200, "The node.", (Content(JSON, NodeInside),)),),
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
)
