"""How the node does, for the people who run it: what needs one of them, and figures of the last minutes to days.

Who may not read a topic is not told of its dead letters, groups and figures; runs are told of by their program.
Capabilities, messages that reached nobody and nodes that are away are for those who may do everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from mainspring.bus import Caller, Forbidden, UnknownGroup
from mainspring.server.http.call import Call
from mainspring.server.http.problem import bad_query
from mainspring.server.http.table import Operations, Parameter
from mainspring.status import FIGURES, RANGES, Attention, AttentionDesk, HistoryRow, RefusedOutgoing, group_key

operation: Final[Operations] = Operations("status")

_RANGE: Final = Parameter(
    "range", "How far back: 15m by default.", {"type": "string", "enum": list(RANGES), "default": RANGES[0]}
)


class HistoryView(msgspec.Struct, frozen=True):
    """Figures over time. Each point has its time `t` (epoch ms) and the figures; where the node was away there is none.

    `stepMs` is the time between two points. Rates are per second, the mean of their step; everything else is the
    highest of its step.
    """

    range: str
    step_ms: int = msgspec.field(name="stepMs")
    now: int
    points: list[dict[str, float]]


class RefusedOutgoingList(msgspec.Struct, frozen=True):
    """The first thousand."""

    refused: list[RefusedOutgoing]


@operation("GET /attention", "What needs a person, the most urgent kind first.")
async def show_attention(call: Call) -> Attention:
    """What failed and will not mend itself.

    Failed and blocked runs, dead letters, capabilities that gave up, groups that are behind, schedules that failed,
    nodes that are away. Each count goes down when somebody deals with it.
    """
    desk = call.face.node.attention or AttentionDesk(clock=call.bus.clock, bus=call.bus)
    return await desk.report(call.caller)


@operation("GET /outgoing", "What was refused, oldest first.")
async def show_refused_outgoing(call: Call) -> RefusedOutgoingList:
    """What programs published in their own transactions (PostgreSQL) and the node refused.

    For those who may do everything. `Bus.RetryOutgoing` and `Bus.DropOutgoing` deal with them.
    """
    if isinstance(call.caller, Caller) and call.caller.is_limited:
        raise Forbidden("this token may not see what transactions published", remedy="use one with the scope admin")
    desk = call.face.node.attention
    return RefusedOutgoingList([] if desk is None or desk.refused is None else await desk.refused.page(limit=1_000))


@operation("GET /history", "The figures.", parameters=(_RANGE,))
async def show_history(call: Call) -> HistoryView:
    """Figures of the node over time.

    Events published and delivered per second (without the node's own), acknowledgements, dead letters, runs that began
    and that failed, turns of the loop; how far all groups were behind, and how many events were in flight.
    """
    return _view(call, lambda row: dict(zip(FIGURES, row.figures, strict=True)))


@operation("GET /topics/{topic}/history", "The figures.", parameters=(_RANGE,), errors=(404,))
async def show_topic_history(call: Call) -> HistoryView:
    """Events of a topic per second over time, published and delivered.

    Of very many topics only the busiest are known.
    """
    await call.check_readable(call.topic)
    call.bus.topics.get(call.topic)

    def pick(row: HistoryRow) -> dict[str, float]:
        published, delivered = row.topics.get(call.topic, (0.0, 0.0))
        return {"published": published, "delivered": delivered}

    return _view(call, pick)


@operation("GET /groups/{topic}/{group}/history", "The figures.", parameters=(_RANGE,), errors=(404,))
async def show_group_history(call: Call) -> HistoryView:
    """How a group stood over time.

    Its lag, how many events it settled per second, and how long its oldest event had waited (`oldestMs`). Of very many
    groups only those that are furthest behind are known.
    """
    group = call.request.match_info["group"]
    await call.check_readable(call.topic)
    if group not in call.bus.topics.get(call.topic).groups:
        raise UnknownGroup(f"the topic has no group {group!r}", remedy="GET /groups lists the groups there are")
    key = group_key(call.topic, group)

    def pick(row: HistoryRow) -> dict[str, float]:
        lag, rate, oldest = row.groups.get(key, (0, 0.0, 0))
        return {"lag": lag, "rate": rate, "oldestMs": oldest}

    return _view(call, pick)


def _view(call: Call, pick: Callable[[HistoryRow], dict[str, float]]) -> HistoryView:
    history, now = call.face.node.history, call.bus.clock.wall_ms()
    name: Any = call.request.query.get("range", RANGES[0])
    if name not in RANGES:
        raise bad_query(f"There is no range {name[:20]!r}.", f"Known are: {', '.join(RANGES)}.")
    if history is None:
        return HistoryView(name, 0, now, [])
    points = [{"t": row.t, **pick(row)} for row in history.rows(name, now)]
    return HistoryView(name, history.range(name).step_ms, now, points)
