"""Groups over HTTP: where they stand, what their members hold, moving them, forgetting them.

A group belongs to a topic, so its address names both. Moving or forgetting one changes what its members get;
everybody who may subscribe to the topic may do it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web

from mainspring.bus import GroupInfo, Start, UnknownGroup
from mainspring.bus.groups import LeaseView
from mainspring.server.http.access import readable_topics
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.request import MAX_INTEGER, body_decoder, integer, read_json
from mainspring.server.http.table import POSITIVE, Operation, Parameter, gives, tagged, takes

DEFAULT_LEASES: Final = 200
MAX_LEASES: Final = 1_000


class GroupPartition(msgspec.Struct, frozen=True):
    """Where a group stands in one partition."""

    partition: int
    lastCommitted: int
    lag: int
    inflight: int


class GroupStatus(msgspec.Struct, frozen=True):
    """A group of a topic: how many connections it has now, and where it stands."""

    topic: str
    group: str
    members: int
    lag: int
    inflight: int
    partitions: list[GroupPartition]


class GroupListing(msgspec.Struct, frozen=True):
    """Groups by topic and name."""

    groups: list[GroupStatus]


class GroupLeases(msgspec.Struct, frozen=True):
    """What the members of a group hold or must get again, by partition and offset."""

    topic: str
    group: str
    members: int
    leases: list[LeaseView]


class SeekBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the group shall go on: `latest`, at an `offset`, or at a `timestamp` (epoch ms) given as `value`."""

    kind: Literal["latest", "offset", "timestamp"]
    value: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] | None = None


_SEEK: Final = body_decoder(SeekBody)


def _status(info: GroupInfo) -> GroupStatus:
    partitions = [
        GroupPartition(number, offsets.last_committed, offsets.lag, offsets.inflight)
        for number, offsets in sorted(info.partitions.items())
    ]
    return GroupStatus(
        info.topic,
        info.group,
        info.members,
        sum(each.lag for each in partitions),
        sum(each.inflight for each in partitions),
        partitions,
    )


async def list_groups(face: Face, request: web.Request) -> web.StreamResponse:
    """Groups, of one topic or of all."""
    caller, topic = await face.identify(request), request.query.get("topic")
    if topic is not None:
        await face.check_readable(request, topic)
    groups = face.bus.groups.infos(topic)
    visible = await readable_topics(face.bus, caller, {info.topic for info in groups})
    found = [info for info in groups if info.topic in visible]
    return json_response(
        GroupListing(sorted((_status(info) for info in found), key=lambda each: (each.topic, each.group)))
    )


async def show_group(face: Face, request: web.Request) -> web.StreamResponse:
    """Where one group stands."""
    topic, group = request.match_info["topic"], request.match_info["group"]
    await face.check_readable(request, topic)
    for info in face.bus.groups.infos(topic):
        if info.group == group:
            return json_response(_status(info))
    raise UnknownGroup(f"the topic has no group {group!r}", remedy="GET /groups lists the groups there are")


async def list_leases(face: Face, request: web.Request) -> web.StreamResponse:
    """What the members of a group hold or must get again."""
    topic, name = request.match_info["topic"], request.match_info["group"]
    await face.bus.access.check(topic, "subscribe", await face.identify(request))
    group = face.bus.topics.get(topic).groups.get(name)
    if group is None:
        raise UnknownGroup(f"the topic has no group {name!r}", remedy="GET /groups lists the groups there are")
    limit = integer(request, "limit", least=1, most=MAX_LEASES) or DEFAULT_LEASES
    members = face.bus.groups.info(group).members  # on all nodes
    return json_response(GroupLeases(topic, name, members, group.leases(face.bus.clock, limit)))


async def seek_group(face: Face, request: web.Request) -> web.StreamResponse:
    """Move a group to another place.

    What its members hold is given back.
    """
    topic, group = request.match_info["topic"], request.match_info["group"]
    agent = await face.identify(request)
    await face.bus.access.check(topic, "subscribe", agent, group)
    wanted = await read_json(request, face.max_body_bytes, _SEEK)
    start = Start(wanted.kind, wanted.value).checked()
    return json_response(_status(await face.bus.groups.seek(topic, group, start, partition=wanted.partition)))


async def delete_group(face: Face, request: web.Request) -> web.StreamResponse:
    """Forget a group that has no members."""
    topic, group = request.match_info["topic"], request.match_info["group"]
    await face.bus.access.check(topic, "subscribe", await face.identify(request), group)
    await face.bus.groups.delete(topic, group)
    return web.Response(status=204)


OPERATIONS: Final = tagged(
    "groups",
    Operation(
        "GET /groups",
        list_groups,
        gives("The groups, by topic and name.", GroupListing),
        parameters=(Parameter("topic", "Only groups of this topic."),),
        errors=(400, 404),
    ),
    Operation("GET /groups/{topic}/{group}", show_group, gives("The group.", GroupStatus), errors=(404,)),
    Operation(
        "POST /groups/{topic}/{group}/seek",
        seek_group,
        gives("Where the group stands now.", GroupStatus),
        body=takes(SeekBody),
        errors=(400, 404, 409, 413, 415, 503),
    ),
    Operation("DELETE /groups/{topic}/{group}", delete_group, gives("Forgotten.", status=204), errors=(404, 409, 503)),
    Operation(
        "GET /groups/{topic}/{group}/leases",
        list_leases,
        gives("The events, by partition and offset.", GroupLeases),
        parameters=(Parameter("limit", f"At most so many of each partition; {DEFAULT_LEASES} by default.", POSITIVE),),
        errors=(400, 404),
    ),
)
