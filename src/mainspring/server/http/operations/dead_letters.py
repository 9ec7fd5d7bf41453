"""Dead letters over HTTP: which there are, why they died, and sending them again.

Dead letters of a topic are addressed by that topic and their offset in `<topic>.DLQ`. They are as private as the topic
itself: who may not subscribe to it sees none of them, and sending one again also needs the right to publish.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec

from mainspring.bus import DeadLetter, Forbidden, Published, UnknownEvent
from mainspring.server.http.call import MAX_INTEGER, Call, decode_body
from mainspring.server.http.table import NATURAL, POSITIVE, Operations, Parameter, described, gives, takes

SUFFIX: Final = ".DLQ"
PAGE: Final = 256
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000  # a page is held in memory as a whole

Offset = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]

operation: Final = Operations("dead letters")


class DeadLetterTopic(msgspec.Struct, frozen=True, rename="camel"):
    """A topic with dead letters. `atMost` counts offsets, also of letters that were sent again since."""

    topic: str
    dead_letter_topic: str
    head: int
    tail: int
    at_most: int


DeadLetterTopics: type = described(
    "DeadLetterTopics", "Topics that have, or had, dead letters.", topics=list[DeadLetterTopic]
)


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
        found.extend(
            DeadLetterTopic(topic, config.topic, place.head, place.tail, place.tail - place.head + 1)
            for place in await call.bus.groups.offsets(config.topic)
            if place.tail
        )
    return {"topics": found}


async def _may_read(call: Call, topic: str) -> bool:
    try:
        await _check_read(call, topic)
    except Forbidden:
        return False
    return True


async def _check_read(call: Call, topic: str) -> None:
    await call.check("subscribe", topic)
    await call.check("subscribe", topic + SUFFIX)


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
    wanted = RedriveBody(group=query.get("group"), key=query.get("key"), reason=query.get("reason"), limit=limit + 1)
    found = [letter async for letter in _matching(call, wanted, call.integer("offset") or 0)]
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
    errors=(404, 429, 503),
)
async def redrive(call: Call) -> RedriveReport:
    """Send dead letters to their topic again.

    Each is moved in one step: never lost, never in both topics.
    """
    call.require_json()
    await _check_read(call, call.topic)
    await call.check("publish")
    body = await call.body()
    wanted = decode_body(RedriveBody, body) if body.strip() else RedriveBody()
    call.bus.topics.get(call.topic)  # raises UnknownTopic
    published: list[Published] = []
    # fixed before anything moves, so that nothing is sent twice
    for letter in [letter async for letter in _matching(call, wanted)]:
        try:
            published += await call.bus.dead_letters.redrive(call.topic, [letter.offset])
        except UnknownEvent:
            continue  # someone else was faster with this one
    return RedriveReport(call.topic, len(published), published)


async def _matching(call: Call, wanted: RedriveBody, offset: int = 0) -> AsyncIterator[DeadLetter]:
    """The dead letters from `offset` on that fit, up to the limit, read a page at a time."""
    count, chosen = 0, None if wanted.offsets is None else frozenset(wanted.offsets)
    while page := await call.bus.dead_letters.page(call.topic, offset=offset, limit=PAGE):
        for letter in page:
            if (chosen is None or letter.offset in chosen) and _fits(letter, wanted):
                if count == wanted.limit:
                    return
                count += 1
                yield letter
        offset = page[-1].offset + 1


def _fits(letter: DeadLetter, wanted: RedriveBody) -> bool:
    return (
        (wanted.group is None or letter.group == wanted.group)
        and (wanted.key is None or letter.key == wanted.key)
        and (wanted.reason is None or wanted.reason in letter.reason)
        and (wanted.before is None or letter.ts < wanted.before)
    )
