"""Whether data of one schema can be read with another: told with the place and the reason, and never wrongly yes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.bus.schemas.compatibility import differences
from mainspring.bus.schemas.validator import schema_of
from tests.support.schemas import schemas, values


def obj(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}

READABLE = {
    "the same": (obj(["a"], a=STRING), obj(["a"], a=STRING)),
    "an optional property more": (obj(a=STRING), obj(a=STRING, b=INTEGER)),
    "a property less": (obj(a=STRING, b=INTEGER), obj(a=STRING)),
    "required no longer": (obj(["a"], a=STRING), obj(a=STRING)),
    "integer read as number": (obj(a=INTEGER), obj(a=NUMBER)),
    "one value more in an enum": ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    "an enum read as text": ({"enum": ["a", "b"]}, STRING),
    "values that fit the pattern": ({"enum": ["ab", "ac"]}, {"type": "string", "pattern": "^a", "maxLength": 2}),
    "mixed values read by alternatives": ({"enum": ["a", 1]}, {"anyOf": [STRING, INTEGER]}),
    "wider bounds": ({"type": "integer", "minimum": 1}, {"type": "integer", "exclusiveMinimum": 0}),
    "null allowed now": (STRING, {"type": ["string", "null"]}),
    "null allowed by alternatives": (STRING, {"anyOf": [STRING, {"type": "null"}]}),
    "two types, two alternatives": ({"type": ["string", "null"]}, {"anyOf": [STRING, {"type": "null"}]}),
    "alternatives, two types": ({"anyOf": [STRING, {"type": "null"}]}, {"type": ["null", "string"]}),
    "anything": ({"type": "object"}, {}),
    "a reference": ({"$ref": "#/$defs/X", "$defs": {"X": obj(["a"], a=STRING)}}, obj(["a"], a=STRING)),
    "items": ({"type": "array", "items": INTEGER, "minItems": 2}, {"type": "array", "items": NUMBER}),
    "titles differ": ({"type": "string", "title": "A"}, {"type": "string", "title": "B", "description": "x"}),
    "parts that belong together": ({"allOf": [obj(["a"], a=STRING), obj(["b"], b=STRING)]}, obj(["a", "b"])),
    "multiples": ({"type": "integer", "multipleOf": 6}, {"type": "integer", "multipleOf": 3}),
    "whole numbers": (INTEGER, {"type": "number", "multipleOf": 1}),
}


@pytest.mark.parametrize("name", READABLE)
def test_what_can_be_read_has_no_differences(name: str) -> None:
    writer, reader = READABLE[name]
    assert differences(writer, reader) == []


UNREADABLE = {
    "a new required property": (obj(a=STRING), obj(["b"], a=STRING, b=STRING), "/b", "requires"),
    "another type": (obj(a=STRING), obj(a=INTEGER), "/a", "takes only integer"),
    "number read as integer": (NUMBER, INTEGER, "", "number"),
    "a value less in an enum": ({"enum": ["a", "b"]}, {"enum": ["a"]}, "", '"b"'),
    "text read as enum": (STRING, {"enum": ["a"]}, "", "takes only"),
    "closed": (obj(a=STRING, b=STRING), {**obj(a=STRING), "additionalProperties": False}, "/b", "declares"),
    "deep": (
        obj(a=obj(b={"type": "array", "items": STRING})),
        obj(a=obj(b={"type": "array", "items": INTEGER})),
        "/a/b/*",
        "",
    ),
    "tighter": ({"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 1}, "", "minimum"),
    "tighter by equality": ({"type": "number", "minimum": 0}, {"type": "number", "exclusiveMinimum": 0}, "", "minimum"),
    "shorter": (STRING, {"type": "string", "maxLength": 5}, "", "maxLength"),
    "another pattern": ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, "", "pattern"),
    "null no longer": ({"type": ["string", "null"]}, STRING, "", "null"),
    "fewer alternatives": ({"anyOf": [STRING, INTEGER]}, {"anyOf": [STRING, {"type": "null"}]}, "", "alternatives"),
    "more items": ({"type": "array"}, {"type": "array", "maxItems": 3}, "", "maxItems"),
    "unique": ({"type": "array"}, {"type": "array", "uniqueItems": True}, "", "twice"),
    "what cannot be told": (STRING, {"type": "string", "not": {"const": "x"}}, "", "cannot be told"),
    "overlapping, only one": (STRING, {"oneOf": [STRING, {"type": "string", "maxLength": 3}]}, "", "exactly one"),
    "a name with a slash": (obj(**{"a/b": STRING}), obj(**{"a/b": INTEGER}), "/a~1b", ""),
    "closed within a part": (
        obj(a=STRING, b=STRING),
        {"allOf": [{"properties": {"a": STRING}, "additionalProperties": False}, {"properties": {"b": STRING}}]},
        "/b",
        "declares",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_named_with_place_and_reason(name: str) -> None:
    writer, reader, path, reason = UNREADABLE[name]
    found = differences(writer, reader)
    assert [each for each in found if each.path == path and reason in each.reason], found


def test_recursive_schemas_are_compared_to_the_end() -> None:
    tree = {
        "$defs": {"Node": {**obj(["v"], v=INTEGER), "properties": {"v": INTEGER, "next": {"$ref": "#/$defs/Node"}}}},
        "$ref": "#/$defs/Node",
    }
    wider = msgspec.json.decode(msgspec.json.encode(tree).replace(b'"integer"', b'"number"'))
    assert differences(tree, tree) == []
    assert differences(tree, wider) == []
    assert [each.path for each in differences(wider, tree)] == ["/v", "/next/v"]
    assert differences({"$ref": "#"}, STRING) != []


def test_many_alternatives_within_alternatives_do_not_blow_up() -> None:
    def nested(kind: str, depth: int) -> Any:
        inner = {"type": kind} if depth == 0 else nested(kind, depth - 1)
        return {
            "anyOf": [obj([str(depth)], **{str(depth): inner}), {"type": "array", "items": inner}, {"type": "null"}]
        }

    assert differences(nested("integer", 12), nested("number", 12)) == []
    assert differences(nested("number", 12), nested("integer", 12)) != []


@dataclass
class Before:
    sku: int
    note: str = ""


@dataclass
class After:
    sku: float
    note: str = ""
    lines: list[Before] | None = None
    state: Literal["new", "old"] = "new"


def test_python_types_are_compared_by_their_schemas() -> None:
    before, after = schema_of(Before), schema_of(After)
    assert differences(before, after) == []
    assert [each.path for each in differences(after, before)] == ["/sku"]


# -- never wrongly yes: whatever the writer allows, a reader without differences accepts


def undeclared(schema: Any, value: Any) -> bool:
    """Whether an object of the value holds a member its own schema says nothing about."""
    if isinstance(schema, bool):
        return False
    parts = [part for word in ("anyOf", "oneOf", "allOf") for part in schema.get(word, ())]
    if parts:
        return any(undeclared(part, value) for part in parts)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        return any(name not in known or undeclared(known[name], each) for name, each in value.items())
    if isinstance(value, list):
        return any(undeclared(schema.get("items", {}), each) for each in value)
    return False


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(schemas, schemas, st.lists(values, min_size=1, max_size=12))
def test_no_difference_means_that_everything_written_can_be_read(writer: Any, reader: Any, samples: list[Any]) -> None:
    if differences(writer, reader):
        return
    writes, reads = jsonschema_rs.validator_for(writer), jsonschema_rs.validator_for(reader)
    for value in samples:
        if writes.is_valid(value) and not undeclared(writer, value):
            assert reads.is_valid(value), (writer, reader, value)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(schemas)
def test_every_schema_reads_itself(schema: Any) -> None:
    assert differences(schema, schema) == []
