"""Topics over HTTP: create, grow, list, look at, and what a caller may do with one."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from aiohttp import web

from mainspring.bus import Forbidden, Name, PartitionOffsets, TopicConfig, check_name, encode_topic
from mainspring.json_text import check_text, refuse_duplicates
from mainspring.server.http.call import Call, json_response
from mainspring.server.http.table import Operations, Parameter, described, gives, takes

_MEMBERS: Final = tuple(member.encode_name for member in msgspec.structs.fields(TopicConfig))

operation: Final = Operations("topics")


TopicListing: type = described("TopicListing", "Every topic, by name.", topics=list[TopicConfig])


_OFFSETS: Final = "Where each partition of the topic begins and ends, and how far each group has come."
TopicOffsets: type = described("TopicOffsets", _OFFSETS, topic=str, partitions=list[PartitionOffsets])


class Rights(msgspec.Struct, frozen=True):
    """What the caller may do with a topic. The texts say why not, and are empty where it may."""

    topic: str
    publish: bool
    subscribe: bool
    publish_refusal: str = msgspec.field(name="publishRefusal")
    subscribe_refusal: str = msgspec.field(name="subscribeRefusal")


TopicBody: type = msgspec.defstruct(
    "TopicBody",
    [("topic", Name)]
    + [(each.encode_name, each.type | None, None) for each in msgspec.structs.fields(TopicConfig)[1:]],
    namespace={"__doc__": "Settings of a topic. What is left out stays as it is; null is the default."},
    forbid_unknown_fields=True,
)


@operation(
    "POST /topics",
    gives("The topic is new; its settings.", TopicConfig, status=201),
    gives("The topic was there; its settings now.", TopicConfig),
    body=takes(TopicBody),
    errors=(409, 503),
)
async def put_topic(call: Call) -> web.Response:
    """Create a topic, or change its settings.

    201 for a new topic, 200 for a change (what is not mentioned stays); both answer with the settings.
    """
    call.bus.access.check_admin(call.caller, "change topics")
    call.require_json()
    body = await call.body()
    check_text(body, "the body")
    refuse_duplicates(body, _MEMBERS, "the body")
    config = call.bus.topics.settings_after(body)
    await call.check("subscribe", config.topic)  # who may not read it may not open it to others either
    change = await call.bus.put_topic(config, agent=call.caller)
    return json_response(encode_topic(change.config), status=201 if change.created else 200)


@operation(
    "GET /topics",
    gives("The topics, by name.", TopicListing),
    parameters=(Parameter("prefix", "Only topics whose name begins with this."),),
)
async def list_topics(call: Call) -> dict[str, list[msgspec.Raw]]:
    """Every topic with its settings, also those that were only published to."""
    prefix = call.request.query.get("prefix", "")
    found = [config for config in call.bus.topics.configs() if config.topic.startswith(prefix)]
    visible = await call.visible(config.topic for config in found)
    return {"topics": [msgspec.Raw(encode_topic(config)) for config in found if config.topic in visible]}


@operation("GET /topics/{topic}", gives("Its settings.", TopicConfig), errors=(404,))
async def show_topic(call: Call) -> bytes:
    """The settings of one topic."""
    return encode_topic(await call.visible_topic())


@operation("DELETE /topics/{topic}", gives("Deleted.", status=204), errors=(404, 409, 503))
async def delete_topic(call: Call) -> web.Response:
    """Delete a topic with its groups, schedules, delayed events, schemas and dead letters.

    Refused while a group of it has members. Its offsets are never used again.
    """
    await call.bus.delete_topic(call.topic, agent=call.caller)
    return web.Response(status=204)


PurgedTopic: type = described("PurgedTopic", "How many events were removed.", topic=str, removed=int)


@operation("POST /topics/{topic}/purge", gives("How many events were removed.", PurgedTopic), errors=(404, 409, 503))
async def purge_topic(call: Call) -> dict[str, Any]:
    """Remove every event that is stored in a topic now; its settings and groups stay."""
    return {"topic": call.topic, "removed": await call.bus.purge_topic(call.topic, agent=call.caller)}


@operation("GET /topics/{topic}/offsets", gives("The partitions, ascending.", TopicOffsets), errors=(404,))
async def show_offsets(call: Call) -> dict[str, Any]:
    """Where each partition begins and ends, and where each group stands.

    Groups are for those who may read the topic.
    """
    await call.visible_topic()
    places = await call.bus.groups.offsets(call.topic)
    if not await call.readable([call.topic]):
        places = [msgspec.structs.replace(place, groups={}) for place in places]
    return {"topic": call.topic, "partitions": places}


@operation("GET /topics/{topic}/rights", "The rights.")
async def show_rights(call: Call) -> Rights:
    """What the caller may do with a topic."""
    check_name("topic", call.topic)
    publish, subscribe = await _refusal(call, "publish"), await _refusal(call, "subscribe")
    return Rights(call.topic, not publish, not subscribe, publish, subscribe)


async def _refusal(call: Call, action: Literal["publish", "subscribe"]) -> str:
    try:
        await call.check(action)
    except Forbidden as refused:
        return f"{refused.message}: {refused.remedy}" if refused.remedy else refused.message
    return ""
