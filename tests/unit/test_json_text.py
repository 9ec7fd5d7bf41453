"""What is decided about a JSON text is what the rule says, told slowly and plainly."""

from __future__ import annotations

import json
from math import isinf
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.bus.errors import BadFrame, BadJson, BusError, bad_text
from mainspring.json_text import MAX_DEPTH, JsonRefused, StrictDecoder, check_json, nesting, read_value

LEVELS = 5  # for the model: small documents reach it


def is_readable(text: str, levels: int) -> bool:
    """The rule itself, slowly."""
    numbers: list[str] = []
    value = json.loads(text, parse_float=numbers.append, parse_int=numbers.append)
    return depth_of(value) <= levels and not any(isinf(float(number)) for number in numbers)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, (dict, list)) else 0


def found_readable(text: str, levels: int) -> bool:
    try:
        check_json(text.encode(), levels=levels)
    except JsonRefused as refused:
        if refused.code != "bad_frame":
            raise
        return False
    return True


digits = st.one_of(st.text("0123456789", min_size=1, max_size=5), st.integers(190, 330).map("7".__mul__))
whole = digits.map(lambda text: text.lstrip("0") or "0")
exponents = st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), digits)
numbers = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    whole,
    st.one_of(st.just(""), digits.map(".{}".format)),
    st.one_of(st.just(""), exponents),
)
texts = st.text('ex0123456789+-.,:[]{}"\\ \n\u00e9', max_size=12).map(json.dumps)
spaces = st.sampled_from(["", " ", "\n", "\t \r"])


def arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.builds(lambda items, space: "[" + f",{space}".join(items) + "]", st.lists(inner, max_size=4), spaces)
    pairs = st.builds(lambda name, space, item: f"{name}:{space}{item}", texts, spaces, inner)
    objects = st.lists(pairs, max_size=4).map(lambda members: "{" + ",".join(members) + "}")
    return st.one_of(lists, objects)


documents = st.recursive(st.one_of(numbers, texts, st.sampled_from(["true", "null"])), arrays, max_leaves=30)


@pytest.mark.slow
@given(documents)
@settings(max_examples=400, deadline=None)
@example("1e999")
@example("[" * (LEVELS + 1) + "]" * (LEVELS + 1))
@example('["]",' * 6 + "1" + "]" * 6)
@example('"' + "[" * 50 + '"')
@example('["\\\\",[' + "[" * 5 + "]" * 5 + "]]")
@example("9" * 210 + "e99")
@example("1" + "0" * 308)
@example("1" + "0" * 309)
@example("0." + "0" * 400 + "1e700")
@example('{"a":"0e000", "b":-1.5e309}')
@example(" \n-1.5e309")
@example("[" + ",".join(['"0e0000"'] * 70) + ",1e999]")
def test_the_decision_is_the_one_of_the_rule(text: str) -> None:
    assert found_readable(text, LEVELS) == is_readable(text, LEVELS)


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1])
def test_the_depth_has_an_exact_bound(levels: int) -> None:
    for opening, closing in ("[]", ('{"a": ', "}"), ('["[",', "]")):
        inner = "1"
        text = opening * levels + inner + closing * levels
        assert found_readable(text, MAX_DEPTH) == (levels == MAX_DEPTH)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"", BadJson),
        (b"NaN", BadJson),
        (b"1 2", BadJson),
        (b"1\x00", BadJson),
        (b"\xef\xbb\xbf1", BadJson),
        (b'"\xff"', BadJson),
        (b'"\xed\xa0\xbd"', BadJson),
        (b'"\\ud83d"', BadFrame),
        (b'{"\\udc00":1}', BadFrame),
        (b"[" * 100_000, BadFrame),
        (b"[" * 10_000 + b"]" * 10_000, BadFrame),
    ],
)
def test_what_is_no_json_is_told_from_what_nobody_should_send(text: bytes, kind: type[BusError]) -> None:
    with pytest.raises(JsonRefused) as refused:
        check_json(text)
    assert type(bad_text(refused.value)) is kind
    assert bad_text(refused.value).remedy


class Order(msgspec.Struct, forbid_unknown_fields=True):
    sku: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


ORDERS = StrictDecoder(Order, "the body", "see the manual")


def test_an_object_is_read_into_its_type_and_what_it_carries_stays_as_it_came() -> None:
    found = ORDERS.decode(b'{"sku": "a", "payload": {"sku": 1, "sku": 2}}')
    assert (found.sku, bytes(found.payload)) == ("a", b'{"sku": 1, "sku": 2}')


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b" \n", "bad_json", "the body is empty"),
        (b'{"sku": "\xff"}', "bad_json", "the body is not UTF-8: byte 9"),
        (b'{"sku": ', "bad_json", "the body is not JSON"),
        (b'{"sku": NaN}', "bad_json", "the body is not JSON"),
        (b'{"sku": 1}', "bad_frame", "Expected `str`, got `int` - at `$.sku`."),
        (b'{"sku": "a", "more": 1}', "bad_frame", "unknown field `more`"),
        (b'{"sku": "a", "sku": "b"}', "bad_frame", "the member 'sku' is given twice"),
        (b'{"sku": "a", "\\u0073ku": "b"}', "bad_frame", "the member 'sku' is given twice"),
        (b'{"sku": "\\ud83d"}', "bad_frame", "half a character"),
    ],
)
def test_every_way_of_being_wrong_is_named(text: bytes, code: str, says: str) -> None:
    with pytest.raises(JsonRefused) as refused:
        ORDERS.decode(text)
    assert refused.value.code == code
    assert says in refused.value.message
    assert refused.value.remedy


def test_a_value_keeps_all_digits_of_its_integers() -> None:
    assert read_value("[123456789012345678901234567890, 1.5]", "DATA") == [123456789012345678901234567890, 1.5]
    for text in ("NaN", '"\ud83d"', "1e999", ""):
        with pytest.raises(JsonRefused):
            read_value(text, "DATA")


@given(st.binary(max_size=60))
def test_the_nesting_of_what_is_no_json_is_never_more_than_its_brackets(text: bytes) -> None:
    assert nesting(text) <= text.count(b"[") + text.count(b"{")
