"""Reading stored events over HTTP: page by page, never more than one page in memory.

A request says where to begin (an offset, a moment, or a cursor from the answer before) and how much it wants. The end
is fixed when the request arrives: events published meanwhile are for the next request, so every answer ends. What is
sent is read in pages and written as it comes; a slow reader makes its own answer slow and holds one page.

Order holds within a partition. Without `partition`, the partitions follow each other. Every event is told as the
envelope a subscriber would get, its payload's bytes untouched. (NDJSON is the one exception: a line break between the
tokens of a payload becomes a space there, because it would end the line.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import UnknownEvent, Who
from mainspring.bus.protocol import envelope
from mainspring.log import StoredEvent
from mainspring.server.http import accept
from mainspring.server.http.cursor import BadCursor, Cursor
from mainspring.server.http.documents import cloudevents
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.problem import bad_query, cut_short
from mainspring.server.http.query import integer, moment_ms, path_integer
from mainspring.server.http.table import JSON, NDJSON, Answer, Content, Operation, Parameter

PAGE_EVENTS: Final = 256
DEFAULT_LIMIT: Final = 100  # of a JSON answer, which most readers hold in memory as a whole
_FORMS: Final = (JSON, NDJSON, cloudevents.BATCHED)


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stored event. `key` and `headers` are left out where there are none. (The bus joins its bytes by itself.)"""

    id: str
    ts: int
    topic: str
    partition: int
    offset: int
    payload: msgspec.Raw
    key: str | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class EventPage(msgspec.Struct, frozen=True):
    """Events, and the cursor that goes on behind them."""

    events: list[Envelope]
    cursor: str


def one_line(event: StoredEvent) -> bytes:
    """The event as one line of NDJSON. In JSON text, a bare line break can only stand between tokens."""
    return envelope(event).replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


@dataclass(slots=True)
class Range:
    """What a request asks for: the partitions with their ends, where to go on in each, how many, until when."""

    topic: str
    tails: dict[int, int]
    cursor: Cursor
    limit: int | None
    to_ms: int | None
    agent: Who

    def includes(self, event: StoredEvent) -> bool:
        return self.to_ms is None or event.ts < self.to_ms


async def read_events(face: Face, request: web.Request) -> web.StreamResponse:
    """Stored events in the form the client accepts."""
    form = accept.choose(request, _FORMS)
    wanted = await _range(face, request, DEFAULT_LIMIT if form != NDJSON else None)
    pages = _pages(face, wanted)
    first: list[StoredEvent] = await anext(
        pages, []
    )  # read before the answer begins, so that a refusal still has its status
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: form, hdrs.CACHE_CONTROL: "no-store"})
    await response.prepare(request)
    if request.method == hdrs.METH_HEAD:
        return response
    try:
        if form == NDJSON:
            await _write_pages(face, response, first, pages, one_line)
        elif form == JSON:
            await response.write(b'{"events":[')
            await _write_pages(face, response, first, pages, envelope, b",")
            await response.write(b'],"cursor":"%s"}' % str(wanted.cursor).encode())
        else:
            await response.write(b"[")
            await _write_pages(face, response, first, pages, cloudevents.to_structured, b",")
            await response.write(b"]")
        await response.write_eof()
    except Exception as error:
        return cut_short(request, response, error)
    return response


async def _write_pages(
    face: Face,
    response: web.StreamResponse,
    first: list[StoredEvent],
    pages: AsyncIterator[list[StoredEvent]],
    encode: Callable[[StoredEvent], bytes],
    between: bytes = b"",
) -> None:
    page, lead = first, b""
    while page:
        async with asyncio.timeout(face.stalled_reader_ms / 1000):
            await response.write(lead + between.join(encode(event) for event in page))
        lead = between
        page = await anext(pages, [])


async def read_event(face: Face, request: web.Request) -> web.StreamResponse:
    """The event at one place; 404 when nothing is there (any more)."""
    form = accept.choose(request, (JSON, cloudevents.STRUCTURED))
    topic = request.match_info["topic"]
    partition, offset = path_integer(request, "partition"), path_integer(request, "offset")
    agent = await face.identify(request)
    config = face.bus.topics.get(topic).config
    found = await face.bus.read(topic, partition, offset, 1, agent=agent) if partition < config.partitions else []
    if not found or found[0].offset != offset:
        raise UnknownEvent(
            f"There is no event at offset {offset} of partition {partition}.",
            remedy=f"GET /topics/{topic}/offsets says where the partition begins and ends.",
        )
    text = envelope(found[0]) if form == JSON else cloudevents.to_structured(found[0])
    return json_response(text, content_type=form)


async def _range(face: Face, request: web.Request, default_limit: int | None) -> Range:
    topic = request.match_info["topic"]
    agent = await face.identify(request)
    count = face.bus.topics.get(topic).config.partitions
    await face.bus.check_access(agent, "subscribe", topic)
    partition, limit = integer(request, "partition"), integer(request, "limit", least=1)
    if partition is not None and partition >= count:
        raise bad_query(f"The topic has the partitions 0 to {count - 1}.", "Ask for one of them, or for all.")
    chosen = range(count) if partition is None else (partition,)
    tails = {each.partition: each.tail for each in await face.bus.offsets(topic) if each.partition in chosen}
    cursor = await _begin(face, request, topic, tails)
    return Range(topic, tails, cursor, limit or default_limit, moment_ms(request, "to"), agent)


async def _begin(face: Face, request: web.Request, topic: str, tails: dict[int, int]) -> Cursor:
    """Where to begin in each partition, from the one way of saying it that the request uses."""
    given = [name for name in ("offset", "from", "cursor") if name in request.query]
    if len(given) > 1:
        raise bad_query(f"{' and '.join(given)} both say where to begin.", "Give one of them.")
    if given == ["cursor"]:
        return cursor_within(request.query["cursor"], tails)
    if given == ["from"]:
        from_ms = moment_ms(request, "from") or 0
        return Cursor({each: await face.bus.offset_at(topic, each, from_ms) - 1 for each in tails})
    offset = integer(request, "offset") or 0
    if offset > 1 and len(tails) > 1:
        raise bad_query("An offset belongs to one partition.", "Give the partition too, or use a cursor.")
    return Cursor(dict.fromkeys(tails, max(0, offset - 1)))


def cursor_within(text: str, tails: dict[int, int]) -> Cursor:
    """The cursor a reader brings back, with every partition in `tails` named."""
    brought = Cursor.parse(text)
    for partition, tail in tails.items():
        if brought.next_offset(partition) > tail + 1:
            raise BadCursor(
                f"The cursor lies behind the end of partition {partition}, which is at {tail}.",
                remedy="It belongs to another topic, or to a log that was replaced; begin anew without it.",
            )
    return Cursor({partition: brought.next_offset(partition) - 1 for partition in tails})


async def _pages(face: Face, wanted: Range) -> AsyncIterator[list[StoredEvent]]:
    """The events of the range, a page at a time; moves the cursor along. No page is empty."""
    left = wanted.limit
    for partition, tail in sorted(wanted.tails.items()):
        while left != 0 and (start := wanted.cursor.next_offset(partition)) <= tail:
            size = PAGE_EVENTS if left is None else min(left, PAGE_EVENTS)
            page = await face.bus.read(wanted.topic, partition, start, size, agent=wanted.agent)
            page = [event for event in page if event.offset <= tail]
            if not page:
                wanted.cursor.advance(partition, tail)
                break
            kept = list(takewhile(wanted.includes, page))
            wanted.cursor.advance(partition, kept[-1].offset if kept else start - 1)
            if kept:
                left = None if left is None else left - len(kept)
                yield kept
            if len(kept) < len(page):
                break


_INTEGER: Final = {"type": "integer", "minimum": 0}

RANGE_PARAMETERS: Final = (
    Parameter("partition", "Only this partition; without it all, one after the other.", _INTEGER),
    Parameter("offset", "Begin at this offset; 0 and 1 are the beginning. Belongs to one partition.", _INTEGER),
    Parameter("from", "Begin at this moment: epoch milliseconds or RFC 3339."),
    Parameter("to", "End before this moment: epoch milliseconds or RFC 3339."),
    Parameter("cursor", "Go on behind the answer that gave this cursor."),
    Parameter(
        "limit",
        f"At most so many events. {DEFAULT_LIMIT} for JSON and CloudEvents; NDJSON has no limit of its own.",
        {"type": "integer", "minimum": 1},
    ),
)

OPERATIONS: Final = (
    Operation(
        "GET",
        "/topics/{topic}/events",
        "readEvents",
        "Stored events by offset, time or cursor; as JSON, NDJSON or CloudEvents",
        read_events,
        (
            Answer(
                200,
                "The events.",
                (
                    Content(JSON, EventPage),
                    Content(NDJSON, {"type": "string", "description": "One envelope per line."}),
                    Content(cloudevents.BATCHED, {"type": "array", "items": {"type": "object"}}),
                ),
            ),
        ),
        "events",
        parameters=RANGE_PARAMETERS,
        errors=(400, 404, 406),
    ),
    Operation(
        "GET",
        "/topics/{topic}/events/{partition}/{offset}",
        "readEvent",
        "The event at one offset; as JSON or as a CloudEvent",
        read_event,
        (Answer(200, "The event.", (Content(JSON, Envelope), Content(cloudevents.STRUCTURED, {"type": "object"}))),),
        "events",
        errors=(400, 404, 406),
    ),
)
