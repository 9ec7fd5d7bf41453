"""The node from inside, read-only: its loop, its kernel, and what a group has under way.

`GET /node` is one answer for everything a person looks at first. It says the numbers and names of this moment; payloads
are in none of it. It also says what the caller may do, so that a page can tell before it is refused.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final, Literal

import msgspec
from aiohttp import web

from mainspring.bus import Caller, Forbidden, UnknownGroup, Who
from mainspring.bus.leases import LeaseView, leases
from mainspring.kernel import Kernel
from mainspring.kernel.looking import ActorView, FaultView, RequestView, actors, faults, open_requests
from mainspring.loop import Counters
from mainspring.wire.health import readiness
from mainspring.wire.http.face import Face, SlowTurnSeen, json_response
from mainspring.wire.http.messages import may_command
from mainspring.wire.http.query import integer
from mainspring.wire.http.table import JSON, Answer, Content, Operation, Parameter

SHOWN_REQUESTS: Final = 200
DEFAULT_LEASES: Final = 200
MAX_LEASES: Final = 1_000


class Asking(msgspec.Struct, frozen=True):
    """Who asks, as far as the node knows, and whether commands would be taken."""

    agent: str | None
    proven: bool
    admin: bool
    scopes: list[str]


class LoopView(msgspec.Struct, frozen=True):
    """The loop's counters: counts since the start; depths, ages and pending numbers of now."""

    turns: int
    slices: int
    failed_turns: int
    slow_turns: int
    system_depth: int
    user_depth: int
    completions_waiting: int
    oldest_waiting_ms: int
    timers_pending: int
    longest_turn_ns: int
    longest_turn: str
    holds: int


class KernelView(msgspec.Struct, frozen=True):
    """The kernel: what it counted, what keeps it busy, its actors, the oldest open requests, the latest faults."""

    counters: dict[str, int]
    liveness: dict[str, int]
    actors: list[ActorView]
    requests: list[RequestView]
    faults: list[FaultView]


class NodeView(msgspec.Struct, frozen=True):
    """One node. `reason` says why it is not ready. `loop` and `kernel` are null where the face serves a bus alone."""

    version: str
    started: int
    now: int
    ready: bool
    reason: str
    you: Asking
    loop: LoopView | None
    kernel: KernelView | None
    slow_turns: list[SlowTurnSeen] = msgspec.field(name="slowTurns")


class Leases(msgspec.Struct, frozen=True):
    """What the members of a group hold or must get again, by partition and offset."""

    topic: str
    group: str
    members: int
    leases: list[LeaseView]


class Rights(msgspec.Struct, frozen=True):
    """What the caller may do with a topic. The texts say why not, and are empty where it may."""

    topic: str
    publish: bool
    subscribe: bool
    publish_refusal: str = msgspec.field(name="publishRefusal")
    subscribe_refusal: str = msgspec.field(name="subscribeRefusal")


def _asking(who: Who) -> Asking:
    if not isinstance(who, Caller):
        return Asking(who, False, True, [])
    return Asking(who.agent, who.is_proven, may_command(who), list(who.scopes.names) if who.scopes else [])


def _loop(counters: Counters) -> LoopView:
    return LoopView(**{name: getattr(counters, name) for name in LoopView.__struct_fields__})


def _kernel(kernel: Kernel) -> KernelView:
    return KernelView(
        dict(kernel.exchange.counters),
        kernel.liveness(),
        actors(kernel),
        open_requests(kernel, SHOWN_REQUESTS),
        faults(kernel),
    )


async def show_node(face: Face, request: web.Request) -> web.StreamResponse:
    """What the node is doing now."""
    who = await face.identify(request)
    kernel, ready = face.kernel, readiness(face.observed)
    shown = NodeView(
        version("mainspring"),
        face.started_ms,
        face.bus.clock.wall_ms(),
        ready.ready,
        ready.reason,
        _asking(who),
        None if kernel is None else _loop(kernel.loop.counters()),
        None if kernel is None else _kernel(kernel),
        list(reversed(face.slow_turns)),
    )
    return json_response(shown)


async def show_leases(face: Face, request: web.Request) -> web.StreamResponse:
    """Events a group was given and has not settled."""
    topic, name = request.match_info["topic"], request.match_info["group"]
    face.bus.topic(topic)
    await face.bus.check_access(await face.identify(request), "subscribe", topic)
    group = face.bus.topic_table.get(topic).groups.get(name)
    if group is None:
        raise UnknownGroup(f"the topic has no group {name!r}", remedy="GET /groups lists the groups there are")
    limit = integer(request, "limit", least=1, most=MAX_LEASES) or DEFAULT_LEASES
    members = face.bus.group_table.info(group).members  # on all nodes
    return json_response(Leases(topic, name, members, leases(group, face.bus.clock, limit)))


async def show_rights(face: Face, request: web.Request) -> web.StreamResponse:
    """Whether the caller may publish to a topic and read it."""
    topic = request.match_info["topic"]
    who = await face.identify(request)
    publish = await _refusal(face, who, "publish", topic)
    subscribe = await _refusal(face, who, "subscribe", topic)
    return json_response(Rights(topic, not publish, not subscribe, publish, subscribe))


async def _refusal(face: Face, who: Who, action: Literal["publish", "subscribe"], topic: str) -> str:
    try:
        await face.bus.check_access(who, action, topic)
    except Forbidden as refused:
        return f"{refused.message}: {refused.remedy}" if refused.remedy else refused.message
    return ""


OPERATIONS: Final = (
    Operation(
        "GET",
        "/topics/{topic}/rights",
        "showRights",
        "What the caller may do with a topic",
        show_rights,
        (Answer(200, "The rights.", (Content(JSON, Rights),)),),
        "topics",
    ),
    Operation(
        "GET",
        "/node",
        "showNode",
        "What the node is doing now: loop, kernel, actors, open requests, faults",
        show_node,
        (Answer(200, "The node.", (Content(JSON, NodeView),)),),
        "node",
    ),
    Operation(
        "GET",
        "/groups/{topic}/{group}/leases",
        "listLeases",
        "What the members of a group hold or must get again",
        show_leases,
        (Answer(200, "The events, by partition and offset.", (Content(JSON, Leases),)),),
        "groups",
        parameters=(
            Parameter(
                "limit",
                f"At most so many of each partition; {DEFAULT_LEASES} by default.",
                {"type": "integer", "minimum": 1},
            ),
        ),
        errors=(400, 404),
    ),
)
