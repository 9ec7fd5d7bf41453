"""Groups over HTTP: where they stand, who is in them, what members hold, moving them, deleting them.

A group belongs to a topic, so its address names both. Moving or deleting one changes what its members get: on a node
with tokens it needs, besides the right to subscribe, that the group is the caller's own, or a right on it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web

from mainspring.bus import Caller, GroupInfo, Start, UnknownGroup
from mainspring.bus.groups import LeaseView, MemberView
from mainspring.server.http.call import MAX_INTEGER, Call
from mainspring.server.http.table import NAME, POSITIVE, Operations, Parameter, Schema, described, given, gives, takes
from mainspring.status import group_key

DEFAULT_LEASES: Final = 200
MAX_LEASES: Final = 1_000

operation: Final = Operations("groups")


class GroupPartition(msgspec.Struct, frozen=True):
    """Where a group stands in one partition."""

    partition: int
    lastCommitted: int
    lag: int
    inflight: int


class GroupStatus(msgspec.Struct, frozen=True):
    """A group of a topic: how many connections it has now, and where it stands.

    `ttlMs`: it goes when it had no member for so long; 0: it stays. `oldest` is when the oldest event was stored that
    it has not settled (epoch ms), `rate` how many it settled per second lately; absent where that is not known. In a
    list, both are as of the last measurement.
    """

    topic: str
    group: str
    members: int
    lag: int
    inflight: int
    partitions: list[GroupPartition]
    ttlMs: int = 0
    oldest: int | msgspec.UnsetType = msgspec.UNSET
    rate: float | msgspec.UnsetType = msgspec.UNSET


GroupListing: type = described("GroupListing", "Groups by topic and name.", groups=list[GroupStatus])
_LEASES: Final = "What the members of a group hold or must get again, by partition and offset."
GroupLeases: type = described("GroupLeases", _LEASES, topic=str, group=str, members=int, leases=list[LeaseView])
_MEMBERS: Final = "Who is in a group, on all nodes."
GroupMembers: type = described("GroupMembers", _MEMBERS, topic=str, group=str, members=list[MemberView])


class SeekBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the group shall go on: `latest`, at an `offset`, or at a `timestamp` (epoch ms) given as `value`."""

    kind: Literal["latest", "offset", "timestamp"]
    value: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] | None = None


_WITH_VALUE: Final[Schema] = {
    "if": {"properties": {"kind": {"enum": ["offset", "timestamp"]}}},
    "then": given("value"),
}


def _status(info: GroupInfo, oldest: int | None = None, rate: float | None = None) -> GroupStatus:
    partitions = [
        GroupPartition(number, offsets.last_committed, offsets.lag, offsets.inflight)
        for number, offsets in sorted(info.partitions.items())
    ]
    lag, inflight = sum(each.lag for each in partitions), sum(each.inflight for each in partitions)
    since = msgspec.UNSET if oldest is None or not lag else oldest
    measured = msgspec.UNSET if rate is None else rate
    return GroupStatus(info.topic, info.group, info.members, lag, inflight, partitions, info.ttl_ms, since, measured)


def _measured(call: Call, info: GroupInfo) -> tuple[int | None, float | None]:
    """What the node's history knows of a group: since when its oldest event waits, and its rate."""
    history, desk = call.face.node.history, call.face.node.attention
    key, last = group_key(info.topic, info.group), None if history is None else history.last
    rate = None if last is None else last.groups.get(key, (0, 0.0, 0))[1]
    return None if desk is None else desk.oldest_of_groups.get(key), rate


@operation(
    "GET /groups",
    gives("The groups, by topic and name.", GroupListing),
    parameters=(Parameter("topic", "Only groups of this topic.", NAME),),
    errors=(404,),
)
async def list_groups(call: Call) -> dict[str, list[GroupStatus]]:
    """Groups, of one topic or of all."""
    topic = call.request.query.get("topic")
    if topic is not None:
        await call.check_readable(topic)
    groups = call.bus.groups.infos(topic)
    visible = await call.readable({info.topic for info in groups})
    shown = [_status(info, *_measured(call, info)) for info in groups if info.topic in visible]
    return {"groups": sorted(shown, key=lambda each: (each.topic, each.group))}


@operation("GET /groups/{topic}/{group}", "The group.", errors=(404,))
async def show_group(call: Call) -> GroupStatus:
    """Where one group stands."""
    group = call.request.match_info["group"]
    await call.check_readable(call.topic)
    for info in call.bus.groups.infos(call.topic):
        if info.group == group:
            return _status(info, await call.bus.groups.oldest_unsettled(info), _measured(call, info)[1])
    raise _unknown(group)


def _unknown(group: str) -> UnknownGroup:
    return UnknownGroup(f"the topic has no group {group!r}", remedy="`mainspring groups list` shows them")


@operation(
    "POST /groups/{topic}/{group}/seek",
    "Where the group stands now.",
    body=takes(SeekBody, rule=_WITH_VALUE),
    errors=(404, 409, 503),
)
async def seek_group(call: Call) -> GroupStatus:
    """Move a group to another place.

    What its members hold is given back.
    """
    group = call.request.match_info["group"]
    await call.bus.access.check_group(call.topic, call.caller, group)
    wanted = await call.json(SeekBody)
    start = Start(wanted.kind, wanted.value).checked()
    moved = await call.bus.groups.seek(call.topic, group, start, partition=wanted.partition)
    call.audit("changed", f"position of the group {group}", topic=call.topic)
    return _status(moved)


@operation("DELETE /groups/{topic}/{group}", gives("Deleted.", status=204), errors=(404, 409, 503))
async def delete_group(call: Call) -> web.Response:
    """Delete a group that has no members: where it stood is forgotten."""
    group = call.request.match_info["group"]
    await call.bus.access.check_group(call.topic, call.caller, group)
    await call.bus.delete_group(call.topic, group, agent=call.caller)
    return web.Response(status=204)


@operation(
    "GET /groups/{topic}/{group}/leases",
    gives("The events, by partition and offset.", GroupLeases),
    parameters=(
        Parameter(
            "limit",
            f"At most so many of each partition; {DEFAULT_LEASES} by default.",
            {**POSITIVE, "maximum": MAX_LEASES},
        ),
    ),
    errors=(404,),
)
async def list_leases(call: Call) -> dict[str, Any]:
    """What the members of a group hold or must get again."""
    name = call.request.match_info["group"]
    await call.check("subscribe")
    group = call.bus.topics.get(call.topic).groups.get(name)
    if group is None:
        raise _unknown(name)
    limit = call.integer("limit", least=1, most=MAX_LEASES) or DEFAULT_LEASES
    members = call.bus.groups.info(group).members  # on all nodes
    leases = group.leases(call.bus.clock, limit)
    return {"topic": call.topic, "group": name, "members": members, "leases": leases}


@operation(
    "GET /groups/{topic}/{group}/members", gives("The members, those of this node first.", GroupMembers), errors=(404,)
)
async def list_members(call: Call) -> dict[str, Any]:
    """Who is in a group: since when, and how many events each holds.

    The addresses of their machines are told to those who may do everything.
    """
    name = call.request.match_info["group"]
    await call.check("subscribe")
    members = call.bus.groups.members(call.topic, name)
    if isinstance(call.caller, Caller) and call.caller.is_limited:
        members = [msgspec.structs.replace(each, address="") for each in members]
    return {"topic": call.topic, "group": name, "members": members}
