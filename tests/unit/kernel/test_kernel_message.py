"""What is a message and what is not: the only door from bytes, and its refusals."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.message import (
    Message,
    Metadata,
    NotAMessage,
    NotEncodable,
    NotJson,
    counted_ids,
    encode_data,
    encode_line,
    is_type,
    parse,
)
from tests.support.kernel import encoded, message, ping


def refused(value: Any) -> NotAMessage:
    with pytest.raises(NotAMessage) as caught:
        parse(value if isinstance(value, bytes) else encoded(value)[:-1])
    assert caught.value.message.startswith("Schema validation failed: ")
    return caught.value


@pytest.mark.parametrize("kind", ["banana", "Query", "", None, 5, ["query"]])
def test_a_kind_outside_the_five_is_refused(kind: Any) -> None:
    """Checklist 145."""
    refused({**ping(), "kind": kind})


def test_the_five_kinds_are_accepted() -> None:
    """Checklist 145."""
    for kind in ("command", "query", "event"):
        assert parse(encoded(message(kind, "A.B", None))).kind == kind
    for kind in ("reply", "error"):
        assert parse(encoded(message(kind, "A.B", None, causation="x"))).kind == kind


@pytest.mark.parametrize(
    "type",
    [
        "memory.get",
        "MemoryGet",
        "Memory.get",
        "A.B.C",
        "Memory.",
        ".Get",
        "Memory.Get\n",
        "Memory. Get",
        "Mémory.Get",
        "Memory.Get_All",
        "Memory.Gét",
        "",
        "Memory..Get",
        "1A.B",
        5,
        None,
    ],
)
def test_a_type_that_is_not_two_pascal_case_segments_is_refused(type: Any) -> None:
    """Checklist 146."""
    refused({**ping(), "type": type})
    if isinstance(type, str):
        assert not is_type(type)


def test_types_of_two_segments_are_accepted() -> None:
    """Checklist 146."""
    for type in ("A.B", "Memory.Get", "X1.Y2z"):
        assert parse(encoded(message("query", type, 1))).type == type


@pytest.mark.parametrize("name", ["data", "metadata", "kind", "type"])
def test_a_missing_member_is_refused(name: str) -> None:
    """Checklist 147."""
    refused({key: value for key, value in ping().items() if key != name})


def test_data_may_be_null_and_unknown_members_are_ignored() -> None:
    """Checklist 147."""
    found = parse(encoded({**message("event", "A.B", None, trace="x"), "more": 1}))
    assert found.data is None
    assert encode_line(found).count(b"more") == 0


@pytest.mark.parametrize("timestamp", [-1, 1.5, -1.0, True, "1", None, [], {}])
def test_a_timestamp_is_a_whole_number_from_0(timestamp: Any) -> None:
    """Checklist 148, 71."""
    refused(ping(timestamp=timestamp))


def test_a_whole_timestamp_may_be_written_with_a_point_or_an_exponent() -> None:
    for written, meant in ((b"1.0", 1), (b"1.767910000000e12", 1_767_910_000_000), (b"0.0", 0)):
        line = b'{"kind":"query","type":"A.B","data":1,"metadata":{"id":"x","timestamp":' + written + b"}}"
        stamp = parse(line).metadata.timestamp
        assert (stamp, type(stamp)) == (meant, int)


@pytest.mark.parametrize("timeout", [0, -1, "1", True])
def test_a_timeout_that_is_refused_says_what_is_taken(timeout: Any) -> None:
    with pytest.raises(NotAMessage, match=r"a number of ms greater than 0 at .*metadata.timeout"):
        parse(encoded(ping(timeout=timeout)))


@pytest.mark.parametrize("member", [{"correlation": ""}, {"correlation": 5}, {"correlation": None}, {"causation": 5}])
def test_correlation_is_a_text_with_something_in_it(member: dict[str, Any]) -> None:
    """Checklist 148."""
    refused(ping(**member))


@pytest.mark.parametrize("ident", [5, None, True, ["x"]])
def test_an_id_is_a_text(ident: Any) -> None:
    """Checklist 70: every message has an id."""
    error = refused(ping(id=ident))
    assert error.id is None


@pytest.mark.parametrize("timeout", [0, -5, "100", True, [], None])
def test_a_timeout_is_a_positive_number(timeout: Any) -> None:
    """Checklist 31: what overrides the default must make sense."""
    refused(ping(timeout=timeout))


def test_a_null_causation_is_absent() -> None:
    found = parse(encoded(ping(causation=None)))
    assert found.metadata.causation is None
    assert b"causation" not in encode_line(found)


@pytest.mark.parametrize("kind", ["reply", "error"])
def test_a_reply_and_an_error_need_a_causation(kind: str) -> None:
    """Checklist 149."""
    refused(message(kind, "A.B", {}))


def test_the_id_of_a_broken_message_is_read_when_it_can_be() -> None:
    """Checklist 153."""
    assert refused({**ping(id="here"), "kind": "banana"}).id == "here"
    assert refused([1]).id is None
    assert refused({**ping(), "metadata": []}).id is None


BROKEN = [
    b"{",
    b"nonsense",
    b'{"kind":"query",}',
    b'{"a":1}{"a":2}',
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":01}',
    b'{"a":"\x01"}',
    b'{"a":"\xff"}',
    b'{"a":"\xc3"}',
    b'\xef\xbb\xbf{"a":1}',
    b'{"a":"\\ud800"}',
    b"\x00",
    "{}".encode("utf-16"),
    b"[" * 8000 + b"]" * 8000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
]


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
def test_what_is_not_json_is_said_to_be_not_json(line: bytes) -> None:
    """Checklist 152."""
    with pytest.raises(NotJson) as caught:
        parse(line)
    assert caught.value.message.startswith("Invalid JSON: ")


def nested(depth: int, text: bytes = b"1") -> bytes:
    return encoded(message("event", "A.B", 4711)).replace(b"4711", b'[{"a":' * depth + text + b"}]" * depth)


def test_what_arrives_can_be_decoded_and_encoded_again_however_deep_the_stack_is() -> None:
    """Checklist 152: the limit is fixed, not left to where the interpreter gives up."""
    brackets = b'"' + b"[{" * 3000 + b'\\" ]"'
    found = parse(nested(254, brackets))

    def deeper(levels: int) -> msgspec.Raw:
        return deeper(levels - 1) if levels else encode_data(found.data)

    assert bytes(deeper(200)) == bytes(found.raw)
    with pytest.raises(NotJson, match="too deeply"):
        parse(nested(256))


def test_broken_utf8_in_a_member_nobody_asked_for_is_still_broken() -> None:
    """Checklist 152."""
    line = encoded({**ping(), "extra": "PLACE"}).replace(b"PLACE", b"\xff")
    with pytest.raises(NotJson):
        parse(line)


def test_refusals_name_the_place_and_never_the_content() -> None:
    """Checklist 157."""
    secret = "hunter2secret"
    wrong: list[Any] = [
        {**ping(), "kind": secret},
        {**ping(), "type": secret},
        ping(timestamp=secret),
        ping(correlation=[secret]),
        {secret: 1},
        secret,
    ]
    for value in wrong:
        assert secret not in str(refused(value))
    with pytest.raises(NotJson) as caught:
        parse(b'{"a": ' + secret.encode())
    assert secret not in str(caught.value)


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé\U0001f600"), inner, max_size=4),
    max_leaves=12,
)


def exact(value: Any) -> Any:
    """A value in which true, 1 and 1.0 differ."""
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    return (type(value).__name__, repr(value))


@given(json_values)
def test_data_keeps_every_value_and_its_type(value: Any) -> None:
    """Checklist 110, 160: what comes in is what goes out."""
    line = encoded(message("event", "A.B", value))
    found = parse(line[:-1])
    assert exact(found.data) == exact(value)
    assert exact(json.loads(encode_line(found))["data"]) == exact(value)
    assert exact(json.loads(bytes(encode_data(value)))) == exact(value)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_message_or_an_orderly_refusal(line: bytes) -> None:
    """Checklist 140."""
    try:
        parse(line)
        told = "Invalid JSON: "
    except (NotJson, NotAMessage) as error:
        told = error.message
    assert told.startswith(("Invalid JSON: ", "Schema validation failed: "))


@dataclass
class Holder:
    number: float


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, {"a": [1, -math.inf]}, "\ud800", object(), Holder(math.nan), (None, math.nan)],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    """Checklist 89: an output that is no JSON is no message."""
    with pytest.raises(NotEncodable):
        encode_data(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotEncodable):
        encode_data(loop)


def test_data_is_a_new_copy_each_time() -> None:
    """Checklist 10."""
    found = parse(encoded(message("event", "A.B", {"n": [1]})))
    found.data["n"].append(2)
    assert found.data == {"n": [1]}
    with pytest.raises(AttributeError):
        found.kind = "reply"  # type: ignore[misc]


def test_absent_members_stay_absent_and_are_never_null() -> None:
    """Checklist 75."""
    line = encode_line(Message("event", "A.B", msgspec.Raw(b"1"), Metadata("x", 1)))
    assert line == b'{"kind":"event","type":"A.B","data":1,"metadata":{"id":"x","timestamp":1}}'


def test_ids_never_repeat() -> None:
    """Checklist 72."""
    one, other = counted_ids(), counted_ids()
    made = [make() for _ in range(20_000) for make in (one, other)]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5000])
@pytest.mark.parametrize("member", [b'"timeout"', b'"timestamp"'])
def test_a_number_no_computer_can_hold_is_a_wrong_value_and_hides_no_id(member: bytes, number: bytes) -> None:
    """Checklist 153: it is JSON, so it is 422, with the causation that could be read."""
    line = b'{"kind":"query","type":"Syscall.Ping","data":1,"metadata":{"id":"m1","timestamp":1,' + member
    with pytest.raises(NotAMessage, match="Schema validation failed") as raised:
        parse(line + b":" + number + b"}}")
    assert (raised.value.id, raised.value.type) == ("m1", "Syscall.Ping")
