"""Schemas over HTTP: which there are, what they say, registering the next, and asking before one does.

A version is addressed by its topic and number. Registering changes what others may publish, so on a node with tokens it
needs the scope `admin`; looking needs any right on the topic.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version as package_version
from typing import Annotated, Any, Final, TypeVar

import msgspec
from aiohttp import web

from mainspring.bus import (
    SCHEMA_HEADER,
    Compatibility,
    SchemaCheck,
    SchemaMismatch,
    SchemaVersion,
    UnknownSchema,
    check_name,
)
from mainspring.json_text import check_json
from mainspring.server.http.access import claimed_agent
from mainspring.server.http.call import MAX_INTEGER, Call, decode_body, json_response
from mainspring.server.http.documents.asyncapi import asyncapi_document, topics_of
from mainspring.server.http.problem import HttpProblem
from mainspring.server.http.table import Operations, Schema, described, gives, takes

T = TypeVar("T")

operation: Final = Operations("schemas")


class SchemaSummary(msgspec.Struct, frozen=True):
    """A topic with a schema: its latest version, and what the next must keep to."""

    topic: str
    latest: int
    compatibility: Compatibility


SchemaListing: type = described("SchemaListing", "Topics with a schema, by name.", schemas=list[SchemaSummary])


_VERSIONS: Final = "Every version of one topic's schema, ascending."
SchemaVersions: type = described("SchemaVersions", _VERSIONS, topic=str, versions=list[SchemaVersion])


class RegisterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON Schema to become the topic's next version. Without `compatibility` the topic keeps what it has."""

    schema: dict[str, Any] | bool
    compatibility: Compatibility | None = None


class CheckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either a `schema` that might become the next version, or a `payload` that might be published."""

    schema: dict[str, Any] | bool | msgspec.UnsetType = msgspec.UNSET
    compatibility: Compatibility | None = None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)] | None = None


_EITHER: Final[Schema] = {
    "if": {"required": ["schema"]},
    "then": {"not": {"required": ["payload"]}},
    "else": {"required": ["payload"]},
}


class PayloadCheck(msgspec.Struct, frozen=True):
    """Whether a payload fits; if not, where (a JSON Pointer) and why."""

    fits: bool
    version: int
    path: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET


@operation("GET /asyncapi.json", gives("AsyncAPI 3.0.", {"type": "object"}))
async def show_asyncapi(call: Call) -> dict[str, Any]:
    """Topics, their messages and schemas, as AsyncAPI 3.

    Only topics that the caller may know of.
    """
    return await asyncio.to_thread(  # there may be many topics
        asyncapi_document,
        call.bus,
        await call.visible(topics_of(call.bus)),
        call.request.host,
        package_version("mainspring"),
        secure=call.request.secure,
        has_tokens=call.face.identify is not claimed_agent,
    )


@operation("GET /schemas", gives("The topics, by name.", SchemaListing))
async def list_schemas(call: Call) -> dict[str, list[SchemaSummary]]:
    """Topics that have a schema.

    Only those that the caller may know of.
    """
    registered = call.bus.schemas.all()
    visible = await call.visible(each.topic for each in registered)
    found = [(each.topic, each.latest) for each in registered if each.topic in visible]
    return {"schemas": [SchemaSummary(topic, latest.version, latest.compatibility) for topic, latest in found]}


@operation("GET /schemas/{topic}", gives("The versions, ascending.", SchemaVersions), errors=(404,))
async def show_schemas(call: Call) -> dict[str, Any]:
    """Every version of a topic's schema."""
    await call.check_visible(call.topic)
    known = call.bus.schemas.of(call.topic)
    if known is None:
        text = f"topic {call.topic!r} has no schema"
        raise UnknownSchema(text, remedy="POST one here; without, any payload is taken")
    return {"topic": call.topic, "versions": known.versions}


@operation(
    "POST /schemas/{topic}",
    gives("A new version.", SchemaVersion, status=201),
    gives("The version that has this schema already.", SchemaVersion),
    body=takes(RegisterBody),
    errors=(409, 422, 503),
)
async def register_schema(call: Call) -> web.Response:
    """Register the next version of a topic's schema.

    201 for a new version, 200 for one that was there; both answer with it.
    """
    call.bus.access.check_admin(call.caller, "register schemas")
    await call.check("publish")
    given = await _body(call, RegisterBody)
    registered, is_new = await call.bus.register_schema(
        call.topic, given.schema, compatibility=given.compatibility, agent=call.caller
    )
    return json_response(registered, status=201 if is_new else 200)


@operation("GET /schemas/{topic}/{version}", "The version.", errors=(404,))
async def show_schema(call: Call) -> SchemaVersion:
    """One version of a topic's schema."""
    await call.check_visible(call.topic)
    return call.bus.schemas.get(call.topic, call.path_integer("version"))


@operation(
    "POST /schemas/{topic}/check",
    gives("What would happen.", (SchemaCheck, PayloadCheck)),
    body=takes(CheckBody, rule=_EITHER),
    errors=(404, 422, 503),
)
async def check_schema(call: Call) -> SchemaCheck | PayloadCheck:
    """Ask whether a schema could be registered, or a payload published.

    Nothing changes.
    """
    check_name("topic", call.topic)
    await call.check_visible(call.topic)
    given = await _body(call, CheckBody)
    if (given.schema is msgspec.UNSET) == (given.payload is msgspec.UNSET):
        raise HttpProblem("bad_frame", "Either a schema or a payload is checked.", "Give exactly one of them.")
    if not isinstance(given.payload, msgspec.UnsetType):
        return _check_payload(call, bytes(given.payload), given.version)
    assert not isinstance(given.schema, msgspec.UnsetType)
    return await call.bus.schemas.check(call.topic, given.schema, given.compatibility)


def _check_payload(call: Call, payload: bytes, version: int | None) -> PayloadCheck:
    checked = call.bus.schemas.get(call.topic, version)
    known = call.bus.schemas.of(call.topic)
    assert known is not None  # `get` found a version of it
    try:
        known.check(payload, {SCHEMA_HEADER: str(checked.version)})
    except SchemaMismatch as error:
        return PayloadCheck(False, checked.version, error.details["path"], error.message)
    return PayloadCheck(True, checked.version)


async def _body(call: Call, type: type[T]) -> T:
    call.require_json()
    body = await call.body(call.max_event_bytes)
    given = decode_body(type, body)
    check_json(body, "the body")  # a schema is as deep as it likes to be only within bounds
    return given
