"""Dead letters over HTTP: which there are, why they died, and sending them again.

Dead letters of a topic are addressed by that topic and their offset in `<topic>.DLQ`. They are as private as the topic
itself: who may not subscribe to it sees none of them, and sending one again also needs the right to publish.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from aiohttp import web

from mainspring.bus import DeadLetter, Forbidden, Published, UnknownEvent, Who
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.request import (
    MAX_INTEGER,
    body_decoder,
    integer,
    path_integer,
    read_body,
    require_json,
)
from mainspring.server.http.table import NATURAL, POSITIVE, Operation, Parameter, gives, tagged, takes

SUFFIX: Final = ".DLQ"
PAGE: Final = 256
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000  # a page is held in memory as a whole

Offset = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]


class DeadLetterTopic(msgspec.Struct, frozen=True, rename="camel"):
    """A topic with dead letters. `atMost` counts offsets, also of letters that were sent again since."""

    topic: str
    dead_letter_topic: str
    head: int
    tail: int
    at_most: int


class DeadLetterTopics(msgspec.Struct, frozen=True):
    """Topics that have, or had, dead letters."""

    topics: list[DeadLetterTopic]


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Dead letters of one topic, and the offset to go on with; it is left out behind the last one."""

    letters: list[DeadLetter]
    next: int | msgspec.UnsetType = msgspec.UNSET


class RedriveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters to send again: those at `offsets`, or all, as far as every other member given fits."""

    offsets: Annotated[list[Offset], msgspec.Meta(min_length=1)] | None = None
    group: str | None = None
    key: str | None = None
    reason: str | None = None
    before: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)] | None = None


class RedriveReport(msgspec.Struct, frozen=True):
    """Where the dead letters went."""

    topic: str
    count: int
    published: list[Published]


_REDRIVE: Final = body_decoder(RedriveBody)


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
        found.extend(
            DeadLetterTopic(topic, config.topic, place.head, place.tail, place.tail - place.head + 1)
            for place in await face.bus.groups.offsets(config.topic)
            if place.tail
        )
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
    wanted = RedriveBody(
        group=request.query.get("group"), key=request.query.get("key"), reason=request.query.get("reason")
    )
    found: list[DeadLetter] = []
    async for letter in _matching(face, topic, wanted, integer(request, "offset") or 0):
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
    """Send dead letters to their topic again.

    Each is moved in one step: never lost, never in both topics.
    """
    topic = request.match_info["topic"]
    require_json(request)
    agent = await face.identify(request)
    await _check_read(face, agent, topic)
    await face.bus.access.check(topic, "publish", agent)
    body = await read_body(request, face.max_body_bytes)
    wanted = _REDRIVE.decode(body) if body.strip() else RedriveBody()
    face.bus.topics.get(topic)  # raises UnknownTopic
    published: list[Published] = []
    for offset in [letter.offset async for letter in _limited(face, topic, wanted)]:
        try:
            published += await face.bus.dead_letters.redrive(topic, [offset])
        except UnknownEvent:
            continue  # someone else was faster with this one
    return json_response(RedriveReport(topic, len(published), published))


async def _limited(face: Face, topic: str, wanted: RedriveBody) -> AsyncIterator[DeadLetter]:
    """What is there now and fits, up to the limit; fixed before anything moves, so that nothing is sent twice."""
    count = 0
    async for letter in _matching(face, topic, wanted, 0):
        if wanted.limit is not None and count >= wanted.limit:
            return
        count += 1
        yield letter


async def _matching(face: Face, topic: str, wanted: RedriveBody, offset: int) -> AsyncIterator[DeadLetter]:
    """The dead letters from `offset` on that fit, read a page at a time."""
    chosen = None if wanted.offsets is None else frozenset(wanted.offsets)
    while page := await face.bus.dead_letters.page(topic, offset=offset, limit=PAGE):
        for letter in page:
            if (chosen is None or letter.offset in chosen) and _fits(letter, wanted):
                yield letter
        offset = page[-1].offset + 1


def _fits(letter: DeadLetter, wanted: RedriveBody) -> bool:
    return (
        (wanted.group is None or letter.group == wanted.group)
        and (wanted.key is None or letter.key == wanted.key)
        and (wanted.reason is None or wanted.reason in letter.reason)
        and (wanted.before is None or letter.ts < wanted.before)
    )


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
        errors=(400, 404, 413, 415, 429, 503),
    ),
)
