"""Topics over HTTP: create, grow, list, look at, and what a caller may do with one."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from aiohttp import web

from mainspring.bus import Forbidden, PartitionOffsets, TopicConfig, Who, encode_topic
from mainspring.json_text import check_text, refuse_duplicates
from mainspring.server.http.access import known_topics, readable_topics
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.request import read_body, require_json
from mainspring.server.http.table import Operation, Parameter, gives, tagged, takes

_MEMBERS: Final = tuple(member.encode_name for member in msgspec.structs.fields(TopicConfig))


class TopicListing(msgspec.Struct, frozen=True):
    """Every topic, by name."""

    topics: list[TopicConfig]


class TopicOffsets(msgspec.Struct, frozen=True):
    """Where each partition of the topic begins and ends, and how far each group has come."""

    topic: str
    partitions: list[PartitionOffsets]


class Rights(msgspec.Struct, frozen=True):
    """What the caller may do with a topic. The texts say why not, and are empty where it may."""

    topic: str
    publish: bool
    subscribe: bool
    publish_refusal: str = msgspec.field(name="publishRefusal")
    subscribe_refusal: str = msgspec.field(name="subscribeRefusal")


async def put_topic(face: Face, request: web.Request) -> web.StreamResponse:
    """Create a topic, or change its settings.

    201 for a new topic, 200 for a change (what is not mentioned stays); both answer with the settings.
    """
    require_json(request)
    agent = await face.identify(request)
    body = await read_body(request, face.max_body_bytes)
    check_text(body, "the body")
    refuse_duplicates(body, _MEMBERS, "the body")
    config = face.bus.topics.settings_after(body)
    # who may not read it may not open it to others either
    await face.bus.access.check(config.topic, "subscribe", agent)
    change = await face.bus.put_topic(config, agent=agent)
    return json_response(encode_topic(change.config), status=201 if change.created else 200)


async def list_topics(face: Face, request: web.Request) -> web.StreamResponse:
    """Every topic with its settings, also those that were only published to."""
    prefix = request.query.get("prefix", "")
    caller = await face.identify(request)
    found = [config for config in face.bus.topics.configs() if config.topic.startswith(prefix)]
    visible = await known_topics(face.bus, caller, (config.topic for config in found))
    shown: list[Any] = [msgspec.Raw(encode_topic(config)) for config in found if config.topic in visible]
    return json_response({"topics": shown})


async def show_topic(face: Face, request: web.Request) -> web.StreamResponse:
    """The settings of one topic."""
    return json_response(encode_topic(await face.visible_topic(request, request.match_info["topic"])))


async def show_offsets(face: Face, request: web.Request) -> web.StreamResponse:
    """Where each partition begins and ends, and where each group stands.

    Groups are for those who may read the topic.
    """
    topic = request.match_info["topic"]
    await face.visible_topic(request, topic)
    places = await face.bus.groups.offsets(topic)
    if not await readable_topics(face.bus, await face.identify(request), (topic,)):
        places = [msgspec.structs.replace(place, groups={}) for place in places]
    return json_response(TopicOffsets(topic, places))


async def show_rights(face: Face, request: web.Request) -> web.StreamResponse:
    """What the caller may do with a topic."""
    topic = request.match_info["topic"]
    who = await face.identify(request)
    publish = await _refusal(face, who, "publish", topic)
    subscribe = await _refusal(face, who, "subscribe", topic)
    return json_response(Rights(topic, not publish, not subscribe, publish, subscribe))


async def _refusal(face: Face, who: Who, action: Literal["publish", "subscribe"], topic: str) -> str:
    try:
        await face.bus.access.check(topic, action, who)
    except Forbidden as refused:
        return f"{refused.message}: {refused.remedy}" if refused.remedy else refused.message
    return ""


OPERATIONS: Final = tagged(
    "topics",
    Operation(
        "POST /topics",
        put_topic,
        gives("The topic is new; its settings.", TopicConfig, status=201)
        + gives("The topic was there; its settings now.", TopicConfig),
        body=takes(TopicConfig),
        errors=(400, 409, 413, 415, 503),
    ),
    Operation(
        "GET /topics",
        list_topics,
        gives("The topics, by name.", TopicListing),
        parameters=(Parameter("prefix", "Only topics whose name begins with this."),),
        errors=(400,),
    ),
    Operation("GET /topics/{topic}", show_topic, gives("Its settings.", TopicConfig), errors=(404,)),
    Operation(
        "GET /topics/{topic}/offsets", show_offsets, gives("The partitions, ascending.", TopicOffsets), errors=(404,)
    ),
    Operation("GET /topics/{topic}/rights", show_rights, gives("The rights.", Rights)),
)
