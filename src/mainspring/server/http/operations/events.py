"""Events over HTTP: publishing them, reading stored ones, and following a topic.

**Publishing** takes one event, a batch of lines, or CloudEvents in any of their three shapes. What a request is follows
from its headers: CloudEvents by their media types or by `ce-` headers, a batch by NDJSON, and otherwise one JSON object
with the members of a PUBLISH frame. A request is stored entirely or not at all: everything is checked before anything
is published, and a batch is one commit. The answer comes after the commit. A payload is handed on as the bytes that
arrived; the bus looks whether every consumer can read it.

**Reading** goes page by page, never more than one page in memory. A request says where to begin (an offset, a moment,
or a cursor from the answer before) and how much it wants. The end is fixed when the request arrives: events published
meanwhile are for the next request, so every answer ends. What is sent is read in pages and written as it comes; a slow
reader makes its own answer slow and holds one page. Order holds within a partition. Without `partition`, the partitions
follow each other. Every event is sent as the envelope a subscriber would get, its payload's bytes untouched. (NDJSON is
the one exception: a line break between the tokens of a payload becomes a space there, because it would end the line.)

**Following** is server-sent events that a browser's EventSource understands and resumes. The id of each message is a
cursor over all partitions, so a reader that comes back with `Last-Event-ID` misses nothing and sees nothing twice,
whichever partition its last event came from. The first message holds only an id: a reader that loses its connection
before any event arrives still comes back to the place where it began. Nothing is queued for a reader. The next events
are read from the log when the ones before are on their way, so a reader that stops reading holds one page and one
coroutine; after `stalled_reader_ms` it is cut off, and can resume. No group is created and nothing is acknowledged: who
needs that subscribes over the WebSocket.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import EventId, NewEvent, Published, UnknownEvent, Who, envelope
from mainspring.errors import MainspringError
from mainspring.log import StoredEvent
from mainspring.server.http.documents import cloudevents
from mainspring.server.http.documents.cloudevents import CloudEvent
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.problem import HttpProblem, bad_query, cut_short
from mainspring.server.http.request import (
    MAX_INTEGER,
    accepted_type,
    body_decoder,
    integer,
    media_type,
    moment_ms,
    path_integer,
    read_body,
    unsupported,
)
from mainspring.server.http.table import (
    EVENT_STREAM,
    JSON,
    NATURAL,
    NDJSON,
    POSITIVE,
    BodyContent,
    Operation,
    Parameter,
    gives,
    tagged,
    takes,
)
from mainspring.telemetry import tracing

CHECKED_AT_ONCE: Final = 256  # events of a batch before others have their turn
_NDJSON_TYPES: Final = (NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines")
_KNOWN_TYPES: Final = (JSON, NDJSON, cloudevents.STRUCTURED, cloudevents.BATCHED)

Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
PAGE_EVENTS: Final = 256
DEFAULT_LIMIT: Final = 100  # of a JSON answer, which most readers hold in memory as a whole
_FORMS: Final = (JSON, NDJSON, cloudevents.BATCHED)
RECONNECT_MS: Final = 1_000  # soon enough to feel live, late enough not to storm a node that restarts
_LAST_EVENT_ID: Final = "Last-Event-ID"
SSE_HEARTBEAT: Final = b":\n\n"  # a comment: keeps proxies from giving up, and finds readers that are gone
_CURSOR: Final = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*\Z", re.ASCII)


# --- publishing ---


class EventBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event to be published. `id` makes publishing it again harmless; `expect` is the partition's last offset."""

    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    id: EventId | None = None
    delay_ms: Natural | None = None
    not_before: Natural | None = None
    expect: Natural | None = None


class PublishedBatch(msgspec.Struct, frozen=True):
    """Where the events of a batch went: [partition, offset] of each, and their ids, in the order they were sent."""

    topic: str
    count: int
    offsets: list[tuple[int, int]]
    ids: list[str]


_EVENT: Final = body_decoder(EventBody)


async def publish(face: Face, request: web.Request) -> web.StreamResponse:
    """Publish one event, a batch of lines, or CloudEvents (also in binary mode, by `ce-` headers).

    Answers when what the body holds is durable.
    """
    topic = request.match_info["topic"]
    body_type = _body_type(request)
    if body_type in _NDJSON_TYPES:
        events = await _lines(face, await read_body(request, face.max_body_bytes))
        return await _publish_batch(face, request, topic, events)
    if body_type == cloudevents.BATCHED:
        events = await _cloudevents(face, await read_body(request, face.max_body_bytes))
        return await _publish_batch(face, request, topic, events)
    body = await read_body(request, face.max_event_bytes)
    if body_type == cloudevents.STRUCTURED:
        return await _publish_cloudevent(face, request, topic, cloudevents.from_structured(body))
    if body_type == "":
        given = request.headers.get(hdrs.CONTENT_TYPE)
        return await _publish_cloudevent(
            face, request, topic, cloudevents.from_binary(request.headers.items(), given, body)
        )
    return await _publish_one(face, request, topic, _EVENT.decode(body))


def _body_type(request: web.Request) -> str:
    """The media type that says how to read the body; the empty text for the binary mode of CloudEvents."""
    if request.headers.get(hdrs.CONTENT_TYPE, "").lower().startswith("application/cloudevents"):
        kind = media_type(request)
    elif cloudevents.is_binary_mode(request.headers):
        return ""
    else:
        kind = media_type(request)
    if kind not in (*_KNOWN_TYPES, *_NDJSON_TYPES):
        raise unsupported(kind, _KNOWN_TYPES)
    return kind


async def _publish_one(face: Face, request: web.Request, topic: str, event: EventBody) -> web.Response:
    published = await face.bus.publish(
        topic,
        bytes(event.payload),
        key=event.key,
        headers=tracing.passed_on(request.headers, event.headers),
        id=event.id,
        delay_ms=event.delay_ms or 0,
        not_before=event.not_before or 0,
        expect=event.expect,
        agent=await face.publisher(request, event.headers),
    )
    return _created(published)


async def _publish_cloudevent(face: Face, request: web.Request, topic: str, event: CloudEvent) -> web.Response:
    published = await face.bus.publish(
        topic,
        event.payload,
        key=event.key,
        headers=tracing.passed_on(request.headers, event.headers),
        id=event.publish_id,
        agent=await face.identify(request),
    )
    return _created(published)


def _created(published: Published) -> web.Response:
    """201 also when the same publish id was seen before: who asks again wants the first answer, not another one."""
    headers: dict[str, str] = {}
    if published.offset:
        place = f"{published.partition}/{published.offset}"
        headers[hdrs.LOCATION] = f"/topics/{quote(published.topic, safe='')}/events/{place}"
    return json_response(published, status=201, headers=headers)


async def _publish_batch(face: Face, request: web.Request, topic: str, events: list[NewEvent]) -> web.Response:
    if not events:
        raise HttpProblem("bad_frame", "The batch holds no event.", "Send at least one.")
    claimed = {event.headers.get("agent_id") if event.headers else None for event in events}
    named = claimed.pop() if len(claimed) == 1 else None  # a batch has one publisher
    agent = await face.publisher(request, None if named is None else {"agent_id": named})
    published = await face.bus.publish_batch(topic, events, agent=agent)
    batch = PublishedBatch(
        topic,
        len(published),
        [(each.partition, each.offset) for each in published],
        [each.id for each in published],
    )
    return json_response(batch, status=201)


async def _lines(face: Face, body: bytes) -> list[NewEvent]:
    """One event per line; empty lines are nothing. An error says which line it is."""
    events: list[NewEvent] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        text = line.strip(b" \t\r")
        if not text:
            continue
        try:
            events.append(_new_event(_EVENT.decode(text)))
        except MainspringError as error:
            error.message = f"Line {number}: {error.message}"
            raise
        await _let_others_run(face, len(events))
    return events


async def _cloudevents(face: Face, body: bytes) -> list[NewEvent]:
    events: list[NewEvent] = []
    for event in cloudevents.from_batch(body):
        events.append(NewEvent(event.payload, event.key, event.headers, event.publish_id))
        await _let_others_run(face, len(events))
    return events


async def _let_others_run(face: Face, count: int) -> None:
    """Between the events of a batch: it has a bound, and others have their turn while it is checked."""
    if count > face.max_batch_events:
        raise HttpProblem(
            "too_large", f"The batch holds more than {face.max_batch_events} events.", "Send it in several requests."
        )
    if count % CHECKED_AT_ONCE == 0:
        await asyncio.sleep(0)


def _new_event(event: EventBody) -> NewEvent:
    if event.expect is not None:
        raise HttpProblem("bad_frame", "expect cannot be given in a batch.", "Publish it alone.")
    return NewEvent(
        bytes(event.payload), event.key, event.headers, event.id, event.delay_ms or 0, event.not_before or 0
    )


# --- reading ---


class BadCursor(MainspringError):
    """The text is not a cursor this node gave out."""

    code = "bad_cursor"


class Cursor:
    """How far a reader got in every partition of a topic, as one short text. Changes as its reader goes on.

    Streams resume with one id, pages of events with one `cursor`; both are this text: `0:12,1:7` says that offset 12 of
    partition 0 and offset 7 of partition 1 were the last ones seen. A partition that is not named was not begun, so a
    partition added after the reader left is read from its first event. The text is stable and made of digits, colons
    and commas, so that it passes through headers, addresses and shells without escaping.
    """

    __slots__ = ("_seen",)

    def __init__(self, seen: dict[int, int] | None = None) -> None:
        self._seen = dict(seen or {})

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor a reader brings back. The empty text is the beginning of everything."""
        if not text:
            return cls()
        if not _CURSOR.match(text):
            raise BadCursor(
                "This is not a cursor.", remedy="Send back, unchanged, the id or cursor of the last answer, or none."
            )
        pairs = [part.split(":") for part in text.split(",")]
        seen = {int(partition): int(offset) for partition, offset in pairs}
        if len(seen) < len(pairs):
            raise BadCursor("A partition is named twice in the cursor.", remedy="Send back the cursor unchanged.")
        return cls(seen)

    def next_offset(self, partition: int) -> int:
        """Where to go on reading."""
        return self._seen.get(partition, 0) + 1

    def advance(self, partition: int, offset: int) -> None:
        self._seen[partition] = offset

    @property
    def seen(self) -> dict[int, int]:
        """A copy: partition to the last offset seen in it."""
        return dict(self._seen)

    def __str__(self) -> str:
        return ",".join(f"{partition}:{offset}" for partition, offset in sorted(self._seen.items()))


class StoredEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stored event. `key` and `headers` are left out where there are none. (The bus joins its bytes by itself.)"""

    id: str
    ts: int
    topic: str
    partition: int
    offset: int
    payload: msgspec.Raw
    key: str | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class StoredEventPage(msgspec.Struct, frozen=True):
    """Events, and the cursor that goes on behind them."""

    events: list[StoredEnvelope]
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
    """Stored events by offset, time or cursor; as JSON, NDJSON or CloudEvents."""
    form = accepted_type(request, _FORMS)
    wanted = await _range(face, request, DEFAULT_LIMIT if form != NDJSON else None)
    pages = _pages(face, wanted)
    # Read before the answer begins, so that a refusal still has its status.
    first: list[StoredEvent] = await anext(pages, [])
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
    """The event at one offset; as JSON or as a CloudEvent.

    404 when nothing is there (any more).
    """
    form = accepted_type(request, (JSON, cloudevents.STRUCTURED))
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
    await face.bus.access.check(topic, "subscribe", agent)
    partition, limit = integer(request, "partition"), integer(request, "limit", least=1)
    if partition is not None and partition >= count:
        raise bad_query(f"The topic has the partitions 0 to {count - 1}.", "Ask for one of them, or for all.")
    chosen = range(count) if partition is None else (partition,)
    tails = {each.partition: each.tail for each in await face.bus.groups.offsets(topic) if each.partition in chosen}
    cursor = await _begin_reading(face, request, topic, tails)
    return Range(topic, tails, cursor, limit or default_limit, moment_ms(request, "to"), agent)


async def _begin_reading(face: Face, request: web.Request, topic: str, tails: dict[int, int]) -> Cursor:
    """Where to begin in each partition, from the one way of saying it that the request uses."""
    given = [name for name in ("offset", "from", "cursor") if name in request.query]
    if len(given) > 1:
        raise bad_query(f"{' and '.join(given)} both say where to begin.", "Give one of them.")
    if given == ["cursor"]:
        return _cursor_within(request.query["cursor"], tails)
    if given == ["from"]:
        from_ms = moment_ms(request, "from") or 0
        return Cursor({each: await face.bus.offset_at(topic, each, from_ms) - 1 for each in tails})
    offset = integer(request, "offset") or 0
    if offset > 1 and len(tails) > 1:
        raise bad_query("An offset belongs to one partition.", "Give the partition too, or use a cursor.")
    return Cursor(dict.fromkeys(tails, max(0, offset - 1)))


def _cursor_within(text: str, tails: dict[int, int]) -> Cursor:
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


# --- following ---


async def stream_events(face: Face, request: web.Request) -> web.StreamResponse:
    """Events as they are published, as server-sent events."""
    topic = request.match_info["topic"]
    agent = await face.identify(request)
    face.bus.topics.get(topic)  # raises UnknownTopic
    await face.bus.access.check(topic, "subscribe", agent)
    cursor = await _begin_stream(face, request, topic)
    response = web.StreamResponse(
        headers={
            hdrs.CONTENT_TYPE: EVENT_STREAM,
            hdrs.CACHE_CONTROL: "no-store",
            "X-Accel-Buffering": "no",  # tells a well-known proxy not to hold messages back
        }
    )
    await response.prepare(request)
    if request.method == hdrs.METH_HEAD:
        return response
    batches = face.bus.follow(topic, after=cursor.seen, agent=agent)
    try:
        await _write(face, response, b"retry: %d\n\n" % RECONNECT_MS + b"id: %b\n\n" % str(cursor).encode())
        await _relay(face, response, batches, cursor)
        await response.write_eof()
    except Exception as error:
        return cut_short(request, response, error)
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
    return response


async def _begin_stream(face: Face, request: web.Request, topic: str) -> Cursor:
    """Where the reader goes on; what it brings back from an earlier connection wins over what its address says."""
    tails = {each.partition: each.tail for each in await face.bus.groups.offsets(topic)}
    brought = request.headers.get(_LAST_EVENT_ID) or request.query.get("cursor")
    if brought:
        return _cursor_within(brought, tails)
    start = request.query.get("from", "latest")
    if start == "latest":
        return Cursor(tails)
    if start == "beginning":
        return Cursor(dict.fromkeys(tails, 0))
    from_ms = moment_ms(request, "from") or 0
    return Cursor({each: await face.bus.offset_at(topic, each, from_ms) - 1 for each in tails})


async def _relay(
    face: Face, response: web.StreamResponse, batches: AsyncIterator[list[StoredEvent]], cursor: Cursor
) -> None:
    """Pass on what comes until the bus or the node stops; say something whenever nothing came for a while."""
    coming = asyncio.ensure_future(_next(batches))
    closing = asyncio.ensure_future(face.closing.wait())
    try:
        while True:
            done, _ = await asyncio.wait(
                {coming, closing}, timeout=face.heartbeat_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            if coming in done:
                batch = coming.result()
                if batch is None:
                    return
                await _write(face, response, _messages(batch, cursor))
                coming = asyncio.ensure_future(_next(batches))
            elif closing in done:
                return
            else:
                await _write(face, response, SSE_HEARTBEAT)
    finally:
        coming.cancel()
        closing.cancel()
        await asyncio.gather(coming, closing, return_exceptions=True)


async def _next(batches: AsyncIterator[list[StoredEvent]]) -> list[StoredEvent] | None:
    return await anext(batches, None)


def _messages(batch: list[StoredEvent], cursor: Cursor) -> bytes:
    messages: list[bytes] = []
    for event in batch:
        cursor.advance(event.partition, event.offset)
        messages.append(sse_message(envelope(event), id=str(cursor)))
    return b"".join(messages)


async def _write(face: Face, response: web.StreamResponse, text: bytes) -> None:
    """Write, and wait until the reader has taken most of it."""
    async with asyncio.timeout(face.stalled_reader_ms / 1000):
        await response.write(text)


def sse_message(data: bytes, id: str) -> bytes:
    """One message; readers send `id` back when they reconnect.

    A message is a few `field: value` lines and an empty line. A value cannot hold a line break, but JSON text may
    (between its tokens), so such data is spread over several `data:` lines; the reader joins them with a line feed,
    which means the same to a JSON parser. The id must hold no NUL and no line break; cursors never do.
    """
    parts = [b"id: " + id.encode()]
    if b"\n" in data or b"\r" in data:
        parts.extend(b"data: " + line for line in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))
    else:
        parts.append(b"data: " + data)
    return b"\n".join(parts) + b"\n\n"


# --- the operations ---

_CLOUDEVENT_SCHEMA: Final = {
    "type": "object",
    "description": "A CloudEvent 1.0 in the JSON format.",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1},
        "type": {"type": "string", "minLength": 1},
        "subject": {"type": "string", "minLength": 1},
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": {"type": "string"},
        "dataschema": {"type": "string"},
        "partitionkey": {"type": "string", "minLength": 1, "description": "Becomes the event's key."},
        "data": {"description": "Becomes the event's payload."},
        "data_base64": {"type": "string", "contentEncoding": "base64"},
    },
}

RANGE_PARAMETERS: Final = (
    Parameter("partition", "Only this partition; without it all, one after the other.", NATURAL),
    Parameter("offset", "Begin at this offset; 0 and 1 are the beginning. Belongs to one partition.", NATURAL),
    Parameter("from", "Begin at this moment: epoch milliseconds or RFC 3339."),
    Parameter("to", "End before this moment: epoch milliseconds or RFC 3339."),
    Parameter("cursor", "Go on behind the answer that gave this cursor."),
    Parameter(
        "limit",
        f"At most so many events. {DEFAULT_LIMIT} for JSON and CloudEvents; NDJSON has no limit of its own.",
        POSITIVE,
    ),
)

OPERATIONS: Final = tagged(
    "events",
    Operation(
        "POST /topics/{topic}/events",
        publish,
        gives(
            "Stored durably: where it went, also when the same id was published before.",
            (Published, PublishedBatch),
            status=201,
        ),
        body=takes(
            EventBody,
            BodyContent(
                NDJSON, {"type": "string", "description": "One such object per line. All of them are stored, or none."}
            ),
            BodyContent(cloudevents.STRUCTURED, _CLOUDEVENT_SCHEMA),
            BodyContent(cloudevents.BATCHED, {"type": "array", "items": _CLOUDEVENT_SCHEMA}),
        ),
        errors=(400, 409, 413, 415, 422, 429, 503),
    ),
    Operation(
        "GET /topics/{topic}/events",
        read_events,
        gives(
            "The events.",
            BodyContent(JSON, StoredEventPage),
            BodyContent(NDJSON, {"type": "string", "description": "One envelope per line."}),
            BodyContent(cloudevents.BATCHED, {"type": "array", "items": {"type": "object"}}),
        ),
        parameters=RANGE_PARAMETERS,
        errors=(400, 404, 406),
    ),
    Operation(
        "GET /topics/{topic}/events/{partition}/{offset}",
        read_event,
        gives("The event.", BodyContent(JSON, StoredEnvelope), BodyContent(cloudevents.STRUCTURED, {"type": "object"})),
        errors=(400, 404, 406),
    ),
    Operation(
        "GET /topics/{topic}/stream",
        stream_events,
        gives(
            "An endless stream. The id of each message is a cursor; its data is an envelope.",
            BodyContent(EVENT_STREAM, {"type": "string"}),
        ),
        parameters=(
            Parameter("from", "Where to begin: `latest` (default), `beginning`, epoch milliseconds or RFC 3339."),
            Parameter("cursor", "Go on behind this cursor."),
            Parameter(
                _LAST_EVENT_ID,
                "Go on behind this cursor; browsers send it by themselves, and it wins.",
                place="header",
            ),
        ),
        errors=(400, 404),
        lasts=True,
    ),
)
