"""Dead letters over HTTP: which there are, why they died, sending them back and dropping them.

Dead letters of a topic are addressed by that topic and their offset in `<topic>.DLQ`. They are as private as the topic
itself: who may not subscribe to it sees none of them; sending back and dropping also need the right to publish.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from mainspring.bus import BadFrame, DeadLetter, DeadLetterFilter, Forbidden, Published, Who
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.request import (
    body_decoder,
    integer,
    path_integer,
    read_body,
    require_json,
)
from mainspring.server.http.table import NATURAL, POSITIVE, Operation, Parameter, gives, tagged, takes

SUFFIX: Final = ".DLQ"
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000  # a page is held in memory as a whole


class DeadLetterTopic(msgspec.Struct, frozen=True, rename="camel"):
    """A topic with dead letters: how many there are now, and the first and last offset they have or had."""

    topic: str
    dead_letter_topic: str
    head: int
    tail: int
    count: int


class DeadLetterTopics(msgspec.Struct, frozen=True):
    """Topics that have, or had, dead letters."""

    topics: list[DeadLetterTopic]


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


class DropReport(msgspec.Struct, frozen=True):
    """How many dead letters were dropped."""

    topic: str
    count: int


_REDRIVE: Final = body_decoder(RedriveBody)
_DROP: Final = body_decoder(DropBody)


async def list_dead_letter_topics(face: Face, request: web.Request) -> web.StreamResponse:
    """Topics that have dead letters.

    Only those that the caller may read.
    """
    agent = await face.identify(request)
    found: list[DeadLetterTopic] = []
    for config in face.bus.topics.configs():
        topic = config.topic.removesuffix(SUFFIX)
        if topic == config.topic or not await _may_read(face, agent, topic):
            continue
        first, *_ = await face.bus.groups.offsets(config.topic)  # letters stand in one line
        if first.tail:
            letters = await face.bus.dead_letters.count(topic)
            found.append(DeadLetterTopic(topic, config.topic, first.head, first.tail, letters))
    return json_response(DeadLetterTopics(found))


async def _may_read(face: Face, agent: Who, topic: str) -> bool:
    try:
        await _check_read(face, agent, topic)
    except Forbidden:
        return False
    return True


async def _check_read(face: Face, agent: Who, topic: str) -> None:
    await face.bus.access.check(topic, "subscribe", agent)
    await face.bus.access.check(topic + SUFFIX, "subscribe", agent)


async def list_dead_letters(face: Face, request: web.Request) -> web.StreamResponse:
    """Dead letters of one topic, oldest first.

    Only those that fit the filters.
    """
    topic = request.match_info["topic"]
    await _check_read(face, await face.identify(request), topic)
    face.bus.topics.get(topic)  # raises UnknownTopic
    limit = integer(request, "limit", least=1, most=MAX_LIMIT) or DEFAULT_LIMIT
    wanted = DeadLetterFilter(
        group=request.query.get("group"), key=request.query.get("key"), reason=request.query.get("reason")
    )
    found: list[DeadLetter] = []
    async for letter in face.bus.dead_letters.matching(topic, wanted, offset=integer(request, "offset") or 0):
        if len(found) == limit:
            return json_response(DeadLetterPage(found, letter.offset))
        found.append(letter)
    return json_response(DeadLetterPage(found))


async def show_dead_letter(face: Face, request: web.Request) -> web.StreamResponse:
    """One dead letter."""
    topic = request.match_info["topic"]
    await _check_read(face, await face.identify(request), topic)
    return json_response(await face.bus.dead_letters.get(topic, path_integer(request, "offset")))


async def redrive(face: Face, request: web.Request) -> web.StreamResponse:
    """Send dead letters back to the group that gave up on them.

    With `toAll` each is published anew, and every group of the topic gets it. Each is moved in one step: never lost,
    never in both places.
    """
    topic, body = await _may_change(face, request)
    wanted = _REDRIVE.decode(body) if body.strip() else RedriveBody()
    sent = await face.bus.dead_letters.redrive(topic, wanted, to_all=wanted.to_all)
    return json_response(RedriveReport(topic, len(sent), sent))


async def drop(face: Face, request: web.Request) -> web.StreamResponse:
    """Drop dead letters: nobody gets them any more."""
    topic, body = await _may_change(face, request)
    wanted = _DROP.decode(body)
    if wanted == DropBody():
        raise BadFrame("which dead letters?", remedy='give offsets or a filter, or {"all": true} for all of the topic')
    return json_response(DropReport(topic, await face.bus.dead_letters.drop(topic, wanted)))


async def _may_change(face: Face, request: web.Request) -> tuple[str, bytes]:
    """The topic and the body of a request that changes dead letters."""
    topic = request.match_info["topic"]
    require_json(request)
    agent = await face.identify(request)
    await _check_read(face, agent, topic)
    await face.bus.access.check(topic, "publish", agent)
    return topic, await read_body(request, face.max_body_bytes)


OPERATIONS: Final = tagged(
    "dead letters",
    Operation("GET /dlq", list_dead_letter_topics, gives("The topics, by name.", DeadLetterTopics)),
    Operation(
        "GET /dlq/{topic}",
        list_dead_letters,
        gives("The dead letters.", DeadLetterPage),
        parameters=(
            Parameter("offset", "Begin at this offset of the dead-letter topic.", NATURAL),
            Parameter("limit", "At most so many.", {**POSITIVE, "maximum": MAX_LIMIT}),
            Parameter("group", "Only those this group gave up on."),
            Parameter("key", "Only those with this key."),
            Parameter("reason", "Only those whose reason contains this text."),
        ),
        errors=(400, 404),
    ),
    Operation("GET /dlq/{topic}/{offset}", show_dead_letter, gives("The dead letter.", DeadLetter), errors=(400, 404)),
    Operation(
        "POST /dlq/{topic}/redrive",
        redrive,
        gives("Where they went.", RedriveReport),
        body=takes(RedriveBody),
        body_required=False,
        errors=(400, 404, 409, 413, 415, 429, 503),
    ),
    Operation(
        "POST /dlq/{topic}/drop",
        drop,
        gives("How many were dropped.", DropReport),
        body=takes(DropBody),
        errors=(400, 404, 413, 415, 429, 503),
    ),
)
