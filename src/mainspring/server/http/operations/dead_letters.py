"""Dead letters over HTTP: which there are, why they died, sending them back and dropping them.

Dead letters of a topic are addressed by that topic and their offset in `<topic>.DLQ`. They are as private as the topic
itself: who may not subscribe to it sees none of them; sending back and dropping also need the right to publish.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mainspring.bus import BadFrame, DeadLetter, DeadLetterFilter, Forbidden, Published
from mainspring.server.http.call import Call, decode_body
from mainspring.server.http.table import (
    NATURAL,
    POSITIVE,
    Operations,
    Parameter,
    Schema,
    described,
    gives,
    missing,
    takes,
)

SUFFIX: Final = ".DLQ"
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000  # a page is held in memory as a whole

operation: Final = Operations("dead letters")


class DeadLetterTopic(msgspec.Struct, frozen=True, rename="camel"):
    """A topic with dead letters: how many there are now, and the first and last offset they have or had."""

    topic: str
    dead_letter_topic: str
    head: int
    tail: int
    count: int


_TOPICS: Final = "Topics that have, or had, dead letters."
DeadLetterTopics: type = described("DeadLetterTopics", _TOPICS, topics=list[DeadLetterTopic])


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Dead letters of one topic, and the offset to go on with; it is left out behind the last one."""

    letters: list[DeadLetter]
    next: int | msgspec.UnsetType = msgspec.UNSET


class RedriveBody(DeadLetterFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to send back. `toAll`: to every group of the topic, not only to the one that gave up."""

    to_all: bool = msgspec.field(default=False, name="toAll")


class RedriveReport(msgspec.Struct, frozen=True):
    """How many dead letters were sent back, and where each is in its topic."""

    topic: str
    count: int
    events: list[Published]


class DropBody(DeadLetterFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to drop. All of the topic only with `all`, so that an empty body drops nothing."""

    all: bool = False


_ALL: Final[Schema] = {"required": ["all"], "properties": {"all": {"const": True}}}
_SOME: Final[Schema] = {"if": missing("offsets", "group", "key", "reason", "before", "limit"), "then": _ALL}
DropReport: type = described("DropReport", "How many dead letters were dropped.", topic=str, count=int)


@operation("GET /dlq", gives("The topics, by name.", DeadLetterTopics))
async def list_dead_letter_topics(call: Call) -> dict[str, list[DeadLetterTopic]]:
    """Topics that have dead letters.

    Only those that the caller may read.
    """
    found: list[DeadLetterTopic] = []
    for config in call.bus.topics.configs():
        topic = config.topic.removesuffix(SUFFIX)
        if topic == config.topic or not await _may_read(call, topic):
            continue
        first, *_ = await call.bus.groups.offsets(config.topic)  # letters stand in one line
        if first.tail:
            letters = await call.bus.dead_letters.count(topic)
            found.append(DeadLetterTopic(topic, config.topic, first.head, first.tail, letters))
    return {"topics": found}


async def _may_read(call: Call, topic: str) -> bool:
    try:
        await _check_read(call, topic)
    except Forbidden:
        return False
    return True


async def _check_read(call: Call, topic: str) -> None:
    await call.bus.access.check_letters(topic, call.caller)


@operation(
    "GET /dlq/{topic}",
    "The dead letters.",
    parameters=(
        Parameter("offset", "Begin at this offset of the dead-letter topic.", NATURAL),
        Parameter("limit", "At most so many.", {**POSITIVE, "maximum": MAX_LIMIT}),
        Parameter("group", "Only those this group gave up on."),
        Parameter("key", "Only those with this key."),
        Parameter("reason", "Only those whose reason contains this text."),
    ),
    errors=(404,),
)
async def list_dead_letters(call: Call) -> DeadLetterPage:
    """Dead letters of one topic, oldest first.

    Only those that fit the filters.
    """
    await _check_read(call, call.topic)
    call.bus.topics.get(call.topic)  # raises UnknownTopic
    limit = call.integer("limit", least=1, most=MAX_LIMIT) or DEFAULT_LIMIT
    query = call.request.query
    wanted = DeadLetterFilter(
        group=query.get("group"), key=query.get("key"), reason=query.get("reason"), limit=limit + 1
    )
    offset = call.integer("offset") or 0
    found = [letter async for letter in call.bus.dead_letters.matching(call.topic, wanted, offset=offset)]
    return DeadLetterPage(found[:limit], found[limit].offset if len(found) > limit else msgspec.UNSET)


@operation("GET /dlq/{topic}/{offset}", "The dead letter.", errors=(404,))
async def show_dead_letter(call: Call) -> DeadLetter:
    """One dead letter."""
    await _check_read(call, call.topic)
    return await call.bus.dead_letters.get(call.topic, call.path_integer("offset"))


@operation(
    "POST /dlq/{topic}/redrive",
    "Where they went.",
    body=takes(RedriveBody),
    body_required=False,
    errors=(404, 409, 429, 503),
)
async def redrive(call: Call) -> RedriveReport:
    """Send dead letters back to the group that gave up on them.

    With `toAll` each is published anew, and every group of the topic gets it. Each is moved in one step: never lost,
    never in both places.
    """
    body = await _change(call)
    wanted = decode_body(RedriveBody, body) if body.strip() else RedriveBody()
    sent = await call.bus.dead_letters.redrive(call.topic, wanted, to_all=wanted.to_all)
    return RedriveReport(call.topic, len(sent), sent)


@operation(
    "POST /dlq/{topic}/drop",
    gives("How many were dropped.", DropReport),
    body=takes(DropBody, rule=_SOME),
    errors=(404, 429, 503),
)
async def drop(call: Call) -> dict[str, Any]:
    """Drop dead letters: nobody gets them any more."""
    wanted = decode_body(DropBody, await _change(call))
    if wanted == DropBody():
        raise BadFrame("which dead letters?", remedy='give offsets or a filter, or {"all": true} for all of the topic')
    count = await call.bus.drop_dead_letters(call.topic, wanted, agent=call.caller)
    return {"topic": call.topic, "count": count}


async def _change(call: Call) -> bytes:
    """The body of a request that changes dead letters, if the caller may."""
    call.require_json()
    await _check_read(call, call.topic)
    await call.check("publish")
    return await call.body()
