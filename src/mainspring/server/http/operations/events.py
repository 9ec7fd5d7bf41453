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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import (
    Entry,
    EventId,
    Forbidden,
    NewEvent,
    Published,
    UnknownEvent,
    UnknownTopic,
    envelope,
    sha256_headers,
)
from mainspring.bus.access import Pattern, is_pattern
from mainspring.errors import MainspringError
from mainspring.log import DamagedEvent, StoredEvent
from mainspring.server.http.call import JSON, MAX_INTEGER, Call, decode_body, json_response, unsupported
from mainspring.server.http.documents import cloudevents
from mainspring.server.http.problem import HttpProblem, bad_query, cut_short
from mainspring.server.http.table import (
    EVENT_STREAM,
    NATURAL,
    NDJSON,
    POSITIVE,
    BodyContent,
    Operations,
    Parameter,
    described,
    gives,
    takes,
)
from mainspring.telemetry import tracing

CHECKED_AT_ONCE: Final = 256  # events of a batch before others have their turn
_NDJSON_TYPES: Final = (NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines")
_KNOWN_TYPES: Final = (JSON, NDJSON, cloudevents.STRUCTURED, cloudevents.BATCHED)

Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")]
PAGE_EVENTS: Final = 256
DEFAULT_LIMIT: Final = 100  # of a JSON answer, which most readers hold in memory as a whole
RECONNECT_MS: Final = 1_000  # soon enough to feel live, late enough not to storm a node that restarts
_LAST_EVENT_ID: Final = "Last-Event-ID"
SSE_HEARTBEAT: Final = b":\n\n"  # a comment: keeps proxies from giving up, and finds readers that are gone
_CURSOR: Final = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*\Z", re.ASCII)

operation: Final = Operations("events")

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


# --- publishing ---


class EventBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event to be published. `id` makes publishing it again harmless; `expect` is the partition's last offset.

    When `ttl_ms` have passed since it was stored, groups that have not handled it do not get it any more.
    `payload_sha256` is compared with the payload (as JSON with sorted keys and no spaces) and given to consumers.
    """

    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    id: EventId | None = None
    delay_ms: Natural | None = None
    not_before: Natural | None = None
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)] | None = None
    expect: Natural | None = None
    payload_sha256: Sha256 | None = None

    def event(self) -> NewEvent:
        """What the bus is given."""
        payload, delay_ms, not_before = bytes(self.payload), self.delay_ms or 0, self.not_before or 0
        headers = self.headers
        if self.payload_sha256 is not None:
            headers = sha256_headers(payload, headers, self.payload_sha256)
        return NewEvent(payload, self.key, headers, self.id, delay_ms, not_before, self.ttl_ms or 0)


_BATCH: Final = (
    "Where the events of a batch went: [partition, offset] of each, and their ids, in the order they were sent."
)
PublishedBatch: type = described(
    "PublishedBatch", _BATCH, topic=str, count=int, offsets=list[tuple[int, int]], ids=list[str]
)


@operation(
    "POST /topics/{topic}/events",
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
    errors=(409, 422, 429, 503),
)
async def publish(call: Call) -> web.Response:
    """Publish one event, a batch of lines, or CloudEvents (also in binary mode, by `ce-` headers).

    Answers when what the body holds is durable.
    """
    await call.check_publisher()
    body_type, headers, expect = _body_type(call), call.request.headers, None
    if body_type in _NDJSON_TYPES:
        return await _publish_batch(call, _lines(await call.body()))
    if body_type == cloudevents.BATCHED:
        return await _publish_batch(call, cloudevents.from_batch(await call.body()), may_be_empty=True)
    body = await call.body(call.max_event_bytes)
    if body_type == cloudevents.STRUCTURED:
        event = cloudevents.from_structured(body)
    elif body_type == "":
        event = cloudevents.from_binary(headers.items(), headers.get(hdrs.CONTENT_TYPE), body)
    else:
        given = decode_body(EventBody, body)
        event, expect = given.event(), given.expect
    call.quota.spend(1, 0)
    published = await call.bus.publish(
        call.topic,
        event.payload,
        key=event.key,
        headers=tracing.passed_on(headers, event.headers),
        id=event.id,
        delay_ms=event.delay_ms,
        not_before=event.not_before,
        ttl=event.ttl_ms / 1000,
        expect=expect,
        agent=call.publisher(event.headers),
    )
    # 201 also when the same publish id was seen before: who asks again wants the first answer, not another one.
    place = f"/topics/{quote(published.topic, safe='')}/events/{published.partition}/{published.offset}"
    return json_response(published, status=201, headers={hdrs.LOCATION: place} if published.offset else {})


def _body_type(call: Call) -> str:
    """The media type that says how to read the body; the empty text for the binary mode of CloudEvents."""
    headers = call.request.headers
    named = headers.get(hdrs.CONTENT_TYPE, "").lower().startswith("application/cloudevents")
    if not named and cloudevents.is_binary_mode(headers):
        return ""
    kind = call.media_type()
    if kind not in (*_KNOWN_TYPES, *_NDJSON_TYPES):
        raise unsupported(kind, _KNOWN_TYPES)
    return kind


async def _publish_batch(call: Call, given: Iterable[NewEvent], *, may_be_empty: bool = False) -> web.Response:
    """Publish them all; others have their turn while the events are read and checked."""
    events: list[NewEvent] = []
    for event in given:
        events.append(event)
        if len(events) > call.face.max_batch_events:
            text = f"The batch holds more than {call.face.max_batch_events} events."
            raise HttpProblem("too_large", text, "Send it in several requests.")
        if len(events) % CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)
    if not events and may_be_empty:  # a batch of CloudEvents may hold none
        return json_response({"topic": call.topic, "count": 0, "offsets": [], "ids": []}, status=201)
    if not events:
        raise HttpProblem("bad_frame", "The batch holds no event.", "Send at least one.")
    call.quota.spend(len(events), 0)
    claimed = {event.headers.get("agent_id") if event.headers else None for event in events}
    named = claimed.pop() if len(claimed) == 1 else None  # a batch has one publisher
    agent = call.publisher(None if named is None else {"agent_id": named})
    published = await call.bus.publish_batch(call.topic, events, agent=agent)
    offsets, ids = [(each.partition, each.offset) for each in published], [each.id for each in published]
    return json_response({"topic": call.topic, "count": len(ids), "offsets": offsets, "ids": ids}, status=201)


def _lines(body: bytes) -> Iterator[NewEvent]:
    """One event per line; empty lines are nothing. An error says which line it is."""
    for number, line in enumerate(body.split(b"\n"), 1):
        text = line.strip(b" \t\r")
        if not text:
            continue
        try:
            given = decode_body(EventBody, text)
            if given.expect is not None:
                raise HttpProblem("bad_frame", "expect cannot be given in a batch.", "Publish it alone.")
        except MainspringError as error:
            error.message = f"Line {number}: {error.message}"
            raise
        yield given.event()


# --- reading ---


class BadCursor(MainspringError):
    """The text is not a cursor this node gave out."""

    code = "bad_cursor"


def parse_cursor(text: str) -> dict[int, int]:
    """How far a reader got: the last offset seen in each partition. The empty text is the beginning of everything.

    Streams resume with one id, pages of events with one `cursor`; both are this text: `0:12,1:7` says that offset 12 of
    partition 0 and offset 7 of partition 1 were the last ones seen. A partition that is not named was not begun, so a
    partition added after the reader left is read from its first event. The text is stable and made of digits, colons
    and commas, so that it passes through headers, addresses and shells without escaping.
    """
    if not text:
        return {}
    if not _CURSOR.match(text):
        remedy = "Send back, unchanged, the id or cursor of the last answer, or none."
        raise BadCursor("This is not a cursor.", remedy=remedy)
    pairs = [part.split(":") for part in text.split(",")]
    seen = {int(partition): int(offset) for partition, offset in pairs}
    if len(seen) < len(pairs):
        raise BadCursor("A partition is named twice in the cursor.", remedy="Send back the cursor unchanged.")
    return seen


def cursor_text(seen: dict[int, int]) -> bytes:
    """What `parse_cursor` reads."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(seen.items())).encode()


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


class DamagedPlace(msgspec.Struct, frozen=True):
    """Where a stored event is damaged: it cannot be read any more."""

    topic: str
    partition: int
    offset: int
    code: str
    message: str


def _damaged(entry: DamagedEvent) -> bytes:
    return msgspec.json.encode(DamagedPlace(entry.topic, entry.partition, entry.offset, entry.code, entry.message))


def one_line(entry: Entry) -> bytes:
    """The event as one line of NDJSON. In JSON text, a bare line break can only stand between tokens."""
    if isinstance(entry, DamagedEvent):
        return b'{"damaged":' + _damaged(entry) + b"}\n"
    return envelope(entry).replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


class StoredEventPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Events, and the cursor that goes on behind them. `damaged` says which events among them cannot be read."""

    events: list[StoredEnvelope]
    cursor: str
    damaged: list[DamagedPlace] = []


def _sound(entry: Entry) -> StoredEvent:
    if isinstance(entry, DamagedEvent):
        raise entry
    return entry


_ENCODINGS: Final[dict[str, tuple[Callable[[Any], bytes], bytes, bytes, bytes]]] = {
    # how an event is written, and what stands before the first one, between two, and behind the last one
    JSON: (envelope, b'{"events":[', b",", b"]"),
    NDJSON: (one_line, b"", b"", b""),
    cloudevents.BATCHED: (cloudevents.to_structured, b"[", b",", b"]"),
}


@dataclass(slots=True)
class Range:
    """What a request asks for: the partitions with their ends, the last offset seen in each, how many, until when."""

    tails: dict[int, int]
    seen: dict[int, int]
    limit: int | None
    to_ms: int | None

    def includes(self, entry: Entry) -> bool:
        return self.to_ms is None or isinstance(entry, DamagedEvent) or entry.ts < self.to_ms


@operation(
    "GET /topics/{topic}/events",
    gives(
        "The events.",
        BodyContent(JSON, StoredEventPage),
        BodyContent(NDJSON, {"type": "string", "description": "One envelope per line."}),
        BodyContent(cloudevents.BATCHED, {"type": "array", "items": {"type": "object"}}),
    ),
    parameters=(
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
    ),
    errors=(404, 406),
)
async def read_events(call: Call) -> web.StreamResponse:
    """Stored events by offset, time or cursor; as JSON, NDJSON or CloudEvents."""
    form = call.accepted_type(tuple(_ENCODINGS))
    wanted = await _range(call, DEFAULT_LIMIT if form != NDJSON else None)
    pages = _pages(call, wanted)
    # Read before the answer begins, so that a refusal still has its status.
    page: list[Entry] = await anext(pages, [])
    if page and form == cloudevents.BATCHED:  # has no place to name a damaged event in
        _sound(page[0])
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: form, hdrs.CACHE_CONTROL: "no-store"})
    await response.prepare(call.request)
    if call.request.method == hdrs.METH_HEAD:
        return response
    encode, begin, between, end = _ENCODINGS[form]
    damaged: list[bytes] = []
    begun = False
    try:
        while page:
            while form != NDJSON and page and isinstance(page[0], DamagedEvent):  # they come first in a page
                if form == JSON:
                    damaged.append(_damaged(page[0]))
                    del page[0]
                else:
                    raise page[0]
            if page:
                await _write(call, response, begin + between.join(encode(entry) for entry in page))
                begin, begun = between, True
            page = await anext(pages, [])
        if not begun:
            end = begin + end
        if damaged:
            end += b',"damaged":[' + b",".join(damaged) + b"]"
        if form == JSON:
            end += b',"cursor":"%b"}' % cursor_text(wanted.seen)
        await response.write_eof(end)
    except Exception as error:
        return cut_short(call.request, response, error)
    return response


@operation(
    "GET /topics/{topic}/events/{partition}/{offset}",
    gives("The event.", BodyContent(JSON, StoredEnvelope), BodyContent(cloudevents.STRUCTURED, {"type": "object"})),
    errors=(404, 406),
)
async def read_event(call: Call) -> web.Response:
    """The event at one offset; as JSON or as a CloudEvent.

    404 when nothing is there (any more), 500 with the code `damaged_event` when its bytes are not what was stored.
    """
    form = call.accepted_type((JSON, cloudevents.STRUCTURED))
    topic, partition, offset = call.topic, call.path_integer("partition"), call.path_integer("offset")
    await call.check("subscribe")
    count = call.bus.topics.get(topic).config.partitions
    found = await call.bus.entries(topic, partition, offset, 1, agent=call.caller) if partition < count else []
    if not found or found[0].offset != offset:
        raise UnknownEvent(
            f"There is no event at offset {offset} of partition {partition}.",
            remedy=f"`mainspring topics show {topic}` says where each partition begins and ends.",
        )
    event = _sound(found[0])
    text = envelope(event) if form == JSON else cloudevents.to_structured(event)
    return json_response(text, content_type=form)


async def _range(call: Call, default_limit: int | None) -> Range:
    await call.check("subscribe")
    count = call.bus.topics.get(call.topic).config.partitions
    partition, limit = call.integer("partition"), call.integer("limit", least=1)
    if partition is not None and partition >= count:
        raise bad_query(f"The topic has the partitions 0 to {count - 1}.", "Ask for one of them, or for all.")
    tails = await _tails(call, call.topic)
    if partition is not None:
        tails = {partition: tails[partition]}
    seen = await _begin_reading(call, tails)
    return Range(tails, seen, limit or default_limit, call.moment_ms("to"))


async def _tails(call: Call, topic: str) -> dict[int, int]:
    return {each.partition: each.tail for each in await call.bus.groups.offsets(topic)}


async def _begin_reading(call: Call, tails: dict[int, int]) -> dict[int, int]:
    """Where to begin in each partition, from the one way of saying it that the request uses."""
    given = [name for name in ("offset", "from", "cursor") if name in call.request.query]
    if len(given) > 1:
        raise bad_query(f"{' and '.join(given)} both say where to begin.", "Give one of them.")
    if given == ["cursor"]:
        return _cursor_within(call.request.query["cursor"], tails)
    if given == ["from"]:
        return await _seen_at_moment(call, call.topic, tails)
    offset = call.integer("offset") or 0
    if offset > 1 and len(tails) > 1:
        raise bad_query("An offset belongs to one partition.", "Give the partition too, or use a cursor.")
    return dict.fromkeys(tails, max(0, offset - 1))


def _cursor_within(text: str, tails: dict[int, int]) -> dict[int, int]:
    """The cursor a reader brings back, with every partition in `tails` named."""
    brought = parse_cursor(text)
    for partition, tail in tails.items():
        if brought.get(partition, 0) > tail:
            raise BadCursor(
                f"The cursor lies behind the end of partition {partition}, which is at {tail}.",
                remedy="It belongs to another topic, or to a log that was replaced; begin anew without it.",
            )
    return {partition: brought.get(partition, 0) for partition in tails}


async def _seen_at_moment(call: Call, topic: str, tails: dict[int, int]) -> dict[int, int]:
    from_ms = call.moment_ms("from") or 0
    return {each: await call.bus.offset_at(topic, each, from_ms) - 1 for each in tails}


async def _pages(call: Call, wanted: Range) -> AsyncIterator[list[Entry]]:
    """The events of the range, a page at a time; moves the cursor along. No page is empty."""
    left = wanted.limit
    for partition, tail in sorted(wanted.tails.items()):
        while left != 0 and (start := wanted.seen[partition] + 1) <= max(tail, 1):  # an empty one may be damaged
            size = PAGE_EVENTS if left is None else min(left, PAGE_EVENTS)
            page = await call.bus.entries(call.topic, partition, start, size, agent=call.caller)
            page = [event for event in page if event.offset <= tail]
            if not page:
                wanted.seen[partition] = tail
                break
            kept = list(takewhile(wanted.includes, page))
            if kept:
                wanted.seen[partition] = kept[-1].offset
                left = None if left is None else left - len(kept)
                yield kept
            if len(kept) < len(page):
                break


# --- following ---


@operation(
    "GET /topics/{topic}/stream",
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
    lasts=True,
)
async def stream_events(call: Call) -> web.StreamResponse:
    """Events as they are published, as server-sent events.

    A topic that is not there yet is waited for. The topic may be a pattern, `orders.*`: then it is of every topic whose
    name fits and that the caller may read, and topics that appear later join by themselves.
    """
    place = await (_begin_pattern(call) if is_pattern(call.topic) else _begin_stream(call))
    response = web.StreamResponse(
        headers={
            hdrs.CONTENT_TYPE: EVENT_STREAM,
            hdrs.CACHE_CONTROL: "no-store",
            "X-Accel-Buffering": "no",  # tells a well-known proxy not to hold messages back
        }
    )
    await response.prepare(call.request)
    if call.request.method == hdrs.METH_HEAD:
        return response
    batches = place.follow(call)
    try:
        await _write(call, response, b"retry: %d\n\nid: %b\n\n" % (RECONNECT_MS, place.cursor()))
        await _relay(call, response, batches, place)
        await response.write_eof()
    except Exception as error:
        return cut_short(call.request, response, error)
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
    return response


class _TopicPlace:
    """How far a stream of one topic has come."""

    def __init__(self, seen: dict[int, int]) -> None:
        self._seen = seen

    def follow(self, call: Call) -> AsyncIterator[list[Entry]]:
        return call.bus.follow_entries(call.topic, after=dict(self._seen), agent=call.caller)

    def note(self, event: Entry) -> None:
        self._seen[event.partition] = event.offset

    def cursor(self) -> bytes:
        return cursor_text(self._seen)


class _FutureTopicPlace(_TopicPlace):
    """The same for a topic that is not there yet: a browser that got an error would never come back."""

    def follow(self, call: Call) -> AsyncIterator[list[Entry]]:
        return call.bus.follow_pattern(call.topic, {call.topic: dict(self._seen)}, agent=call.caller)


class _PatternPlace:
    """How far a stream of a pattern has come: the cursor of each topic, `orders.eu=0:12;orders.us=0:7`."""

    def __init__(self, seen: dict[str, dict[int, int]]) -> None:
        self._seen = seen

    def follow(self, call: Call) -> AsyncIterator[list[Entry]]:
        after = {topic: dict(seen) for topic, seen in self._seen.items()}
        return call.bus.follow_pattern(call.topic, after, agent=call.caller)

    def note(self, event: Entry) -> None:
        self._seen.setdefault(event.topic, {})[event.partition] = event.offset

    def cursor(self) -> bytes:
        return b";".join(b"%b=%b" % (quote(topic).encode(), cursor_text(seen)) for topic, seen in self._seen.items())


async def _begin_stream(call: Call) -> _TopicPlace:
    """Where the reader goes on; what it brings back from an earlier connection wins over what its address says."""
    await call.check("subscribe")
    brought = _brought(call)
    try:
        call.bus.topics.get(call.topic)
    except UnknownTopic:
        return _FutureTopicPlace(parse_cursor(brought) if brought else {})
    tails = await _tails(call, call.topic)
    return _TopicPlace(_cursor_within(brought, tails) if brought else await _start_of(call, call.topic, tails))


async def _begin_pattern(call: Call) -> _PatternPlace:
    pattern = Pattern(call.topic)
    if brought := _brought(call):
        pairs = [each.partition("=") for each in brought.split(";")]
        return _PatternPlace({unquote(topic): parse_cursor(cursor) for topic, _, cursor in pairs})
    places: dict[str, dict[int, int]] = {}
    for topic in call.bus.topics.all():
        if topic.exists and pattern.covers_topic(topic.name):
            with suppress(Forbidden):
                await call.check("subscribe", topic.name)
                places[topic.name] = await _start_of(call, topic.name, await _tails(call, topic.name))
    return _PatternPlace(places)


def _brought(call: Call) -> str | None:
    return call.request.headers.get(_LAST_EVENT_ID) or call.request.query.get("cursor")


async def _start_of(call: Call, topic: str, tails: dict[int, int]) -> dict[int, int]:
    start = call.request.query.get("from", "latest")
    if start == "latest":
        return tails
    return dict.fromkeys(tails, 0) if start == "beginning" else await _seen_at_moment(call, topic, tails)


async def _relay(
    call: Call,
    response: web.StreamResponse,
    batches: AsyncIterator[list[Entry]],
    place: _TopicPlace | _PatternPlace,
) -> None:
    """Pass on what comes until the bus or the node stops; say something whenever nothing came for a while."""
    coming = asyncio.ensure_future(anext(batches, None))
    closing = asyncio.ensure_future(call.face.closing.wait())
    try:
        while True:
            done, _ = await asyncio.wait(
                {coming, closing}, timeout=call.face.heartbeat_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            if coming in done:
                batch = coming.result()
                if batch is None:
                    return
                await _write(call, response, _messages(batch, place))
                coming = asyncio.ensure_future(anext(batches, None))
            elif closing in done:
                return
            else:
                await _write(call, response, SSE_HEARTBEAT)
    finally:
        coming.cancel()
        closing.cancel()
        await asyncio.gather(coming, closing, return_exceptions=True)


def _messages(batch: list[Entry], place: _TopicPlace | _PatternPlace) -> bytes:
    messages: list[bytes] = []
    for entry in batch:
        place.note(entry)
        if isinstance(entry, DamagedEvent):
            messages.append(b"event: damaged\n" + sse_message(_damaged(entry), place.cursor()))
        else:
            messages.append(sse_message(envelope(entry), place.cursor()))
    return b"".join(messages)


async def _write(call: Call, response: web.StreamResponse, text: bytes) -> None:
    """Write, and wait until the reader has taken most of it."""
    async with asyncio.timeout(call.face.stalled_reader_ms / 1000):
        await response.write(text)


def sse_message(data: bytes, id: bytes) -> bytes:
    """One message; readers send `id` back when they reconnect.

    A message is a few `field: value` lines and an empty line. A value cannot hold a line break, but JSON text may
    (between its tokens), so such data is spread over several `data:` lines; the reader joins them with a line feed,
    which means the same to a JSON parser. The id must hold no NUL and no line break; cursors never do.
    """
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"id: " + id + b"\ndata: " + b"\ndata: ".join(lines) + b"\n\n"
