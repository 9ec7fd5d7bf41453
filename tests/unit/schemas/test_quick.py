"""The quick yes: whatever it takes, the schema takes; and plain schemas have one."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.bus.schemas.validator import SchemaValidator, quick_type
from tests.support.schemas import schemas, values


def takes(kind: Any, value: Any) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.slow
@settings(max_examples=600, suppress_health_check=list(HealthCheck))
@given(schemas, st.lists(values, min_size=1, max_size=8))
def test_a_quick_yes_is_always_right(schema: Any, samples: list[Any]) -> None:
    kind = quick_type(schema)
    if kind is not None:
        validator = jsonschema_rs.validator_for(schema)
        for value in samples:
            assert not takes(kind, value) or validator.is_valid(value), (schema, value)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(schemas, values)
def test_the_verdict_is_the_schemas_own_either_way(schema: Any, value: Any) -> None:
    fault = SchemaValidator(schema).fault(msgspec.json.encode(value))
    assert (fault is None) is jsonschema_rs.validator_for(schema).is_valid(value)


PLAIN: dict[str, Any] = {
    "type": "object",
    "required": ["id", "class"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 3},
        "class": {"enum": ["a", "b"]},
        "n": {"type": "integer", "minimum": 0, "exclusiveMaximum": 10},
        "x": {"type": "number", "maximum": 1.5},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}, "maxItems": 2},
    },
    "$defs": {"Tag": {"type": "object", "required": ["name"], "properties": {"name": {"const": "t"}}}},
}


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"n": 0, "x": 1, "ok": False, "tags": [{"name": "t", "more": 1}]}, True),
        ({"n": 10}, False),
        ({"n": 1.0}, True),
        ({"n": True}, False),
        ({"n": 2**70}, False),
        ({"x": 1.6}, False),
        ({"x": 10**40}, False),
        ({"id": ""}, False),
        ({"id": "\u6771\u4eac\u90fd"}, True),
        ({"class": "c"}, False),
        ({"tags": [{"name": "u"}]}, False),
        ({"tags": [{"name": "t"}] * 3}, False),
        ({"more": 1}, False),
        ({"id": None}, False),
    ],
)
def test_a_plain_schema_has_a_quick_type_that_agrees(change: dict[str, Any], fits: bool) -> None:
    value = {"id": "abc", "class": "a", **change}
    assert quick_type(PLAIN) is not None
    assert (SchemaValidator(PLAIN).fault(msgspec.json.encode(value)) is None) is fits


def test_schemas_that_refer_to_themselves_or_grow_by_doubling_are_left_to_the_validator() -> None:
    node = {"type": "object", "properties": {"l": {"$ref": "#/$defs/N"}, "r": {"$ref": "#/$defs/N"}}}
    assert quick_type({"$ref": "#/$defs/N", "$defs": {"N": node}}) is None
    assert quick_type({"$ref": "#"}) is None
    levels = {
        f"L{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/L{n + 1}"} for side in "ab"}}
        for n in range(14)
    }
    levels["L14"] = {"type": "boolean"}
    assert quick_type({"$ref": "#/$defs/L0", "$defs": levels}) is not None


def test_patterns_and_formats_have_no_quick_type() -> None:
    for schema in ({"type": "string", "pattern": "^a"}, {"type": "string", "format": "date-time"}, True, {}):
        assert quick_type(schema) is None
