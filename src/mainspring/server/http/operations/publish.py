"""Publishing over HTTP: one event, a batch of lines, or CloudEvents in any of their three shapes.

What a request is follows from its headers: CloudEvents by their media types or by `ce-` headers, a batch by NDJSON, and
otherwise one JSON object with the members of a PUBLISH frame. A request is stored entirely or not at all: everything is
checked before anything is published, and a batch is one commit. The answer comes after the commit.

A payload is handed on as the bytes that arrived; the bus looks whether every consumer can read it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from aiohttp import hdrs, web

from mainspring.bus import NewEvent, Published
from mainspring.bus.protocol import EventId
from mainspring.errors import MainspringError
from mainspring.server.http.body import media_type, read_body, unsupported
from mainspring.server.http.documents import cloudevents
from mainspring.server.http.documents.cloudevents import CloudEvent
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.problem import HttpProblem
from mainspring.server.http.query import MAX_INTEGER
from mainspring.server.http.strict_json import decode, refuse_duplicates
from mainspring.server.http.table import JSON, NDJSON, Answer, Content, Operation
from mainspring.telemetry import tracing

CHECKED_AT_ONCE: Final = 256  # events of a batch before others have their turn
_NDJSON_TYPES: Final = (NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines")
_KNOWN_TYPES: Final = (JSON, NDJSON, cloudevents.STRUCTURED, cloudevents.BATCHED)

Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]


class EventBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event to be published. `id` makes publishing it again harmless; `expect` is the partition's last offset."""

    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    id: EventId | None = None
    delay_ms: Natural | None = None
    not_before: Natural | None = None
    expect: Natural | None = None


class PublishedEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the event went. A delayed event has offset 0 until it is due, at `not_before`."""

    topic: str
    partition: int
    offset: int
    id: str
    ts: int
    duplicate: bool = False
    not_before: int = 0


class PublishedBatch(msgspec.Struct, frozen=True):
    """Where the events of a batch went: [partition, offset] of each, and their ids, in the order they were sent."""

    topic: str
    count: int
    offsets: list[tuple[int, int]]
    ids: list[str]


_MEMBERS: Final = EventBody.__struct_encode_fields__
_DECODER: Final = msgspec.json.Decoder(EventBody)


async def publish(face: Face, request: web.Request) -> web.StreamResponse:
    """Store what the body holds; 201 when it is durable."""
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
    return await _publish_one(face, request, topic, _event(body))


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
    return _answer(published)


async def _publish_cloudevent(face: Face, request: web.Request, topic: str, event: CloudEvent) -> web.Response:
    published = await face.bus.publish(
        topic,
        event.payload,
        key=event.key,
        headers=tracing.passed_on(request.headers, event.headers),
        id=event.publish_id,
        agent=await face.identify(request),
    )
    return _answer(published)


def told(published: Published) -> PublishedEvent:
    """Where an event went, as HTTP says it."""
    return PublishedEvent(
        published.topic,
        published.partition,
        published.offset,
        published.id,
        published.ts,
        published.duplicate,
        published.not_before,
    )


def _answer(published: Published) -> web.Response:
    """201 also when the same publish id was seen before: who asks again wants the first answer, not another one."""
    headers: dict[str, str] = {}
    if published.offset:
        place = f"{published.partition}/{published.offset}"
        headers[hdrs.LOCATION] = f"/topics/{quote(published.topic, safe='')}/events/{place}"
    return json_response(told(published), status=201, headers=headers)


async def _publish_batch(face: Face, request: web.Request, topic: str, events: list[NewEvent]) -> web.Response:
    if not events:
        raise HttpProblem("The batch holds no event.", status=400, code="bad_frame", remedy="Send at least one.")
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


def _event(text: bytes) -> EventBody:
    event = decode(text, _DECODER)
    refuse_duplicates(text, _MEMBERS)
    return event


async def _lines(face: Face, body: bytes) -> list[NewEvent]:
    """One event per line; empty lines are nothing. An error says which line it is."""
    events: list[NewEvent] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        text = line.strip(b" \t\r")
        if not text:
            continue
        try:
            events.append(_of_line(_event(text)))
        except MainspringError as error:
            error.message = f"Line {number}: {error.message}"
            raise
        await _make_way(face, len(events))
    return events


async def _cloudevents(face: Face, body: bytes) -> list[NewEvent]:
    events: list[NewEvent] = []
    for event in cloudevents.from_batch(body):
        events.append(NewEvent(event.payload, event.key, event.headers, event.publish_id))
        await _make_way(face, len(events))
    return events


async def _make_way(face: Face, count: int) -> None:
    """Between the events of a batch: it has a bound, and others have their turn while it is checked."""
    if count > face.max_batch_events:
        raise HttpProblem(
            f"The batch holds more than {face.max_batch_events} events.",
            status=413,
            code="too_large",
            remedy="Send it in several requests.",
        )
    if count % CHECKED_AT_ONCE == 0:
        await asyncio.sleep(0)


def _of_line(event: EventBody) -> NewEvent:
    if event.expect is not None:
        raise HttpProblem(
            "expect cannot be given in a batch.", status=400, code="bad_frame", remedy="Publish it alone."
        )
    return NewEvent(
        bytes(event.payload), event.key, event.headers, event.id, event.delay_ms or 0, event.not_before or 0
    )


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

OPERATIONS: Final = (
    Operation(
        "POST",
        "/topics/{topic}/events",
        "publish",
        "Publish one event, a batch of lines, or CloudEvents (also in binary mode, by `ce-` headers)",
        publish,
        (
            Answer(
                201,
                "Stored durably: where it went, also when the same id was published before.",
                (Content(JSON, (PublishedEvent, PublishedBatch)),),
            ),
        ),
        "events",
        body=(
            Content(JSON, EventBody),
            Content(
                NDJSON, {"type": "string", "description": "One such object per line. All of them are stored, or none."}
            ),
            Content(cloudevents.STRUCTURED, _CLOUDEVENT_SCHEMA),
            Content(cloudevents.BATCHED, {"type": "array", "items": _CLOUDEVENT_SCHEMA}),
        ),
        errors=(400, 409, 413, 415, 422, 429, 503),
    ),
)
