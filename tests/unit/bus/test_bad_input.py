"""Whatever a client sends: one ERROR with a code, nothing stored, and everybody goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.bus.errors import BadFrame
from mainspring.bus.names import check_name, is_name
from mainspring.bus.protocol import TYPES, Rejected, decode
from tests.support.bus import BEGINNING, World, in_virtual_time, settle

LONE = '"\\ud83d"'
DEEP = '{"type":"PUBLISH","topic":"t","payload":' + "[" * 100_000 + "]" * 100_000 + "}"
CASES = {
    "not json": ("not json", "bad_json"),
    "nothing": ("", "bad_json"),
    "half an object": ('{"type":"PUBLISH"', "bad_json"),
    "bytes that are no text": (b'{"type":"PUBLISH","topic":"t","payload":"\xff"}', "bad_json"),
    "a byte order mark": ('\ufeff{"type":"PUBLISH","topic":"t","payload":1}', "bad_json"),
    "NaN": ('{"type":"PUBLISH","topic":"t","payload":NaN}', "bad_json"),
    "infinity": ('{"type":"PUBLISH","topic":"t","payload":[-Infinity]}', "bad_json"),
    "an array": ("[]", "bad_frame"),
    "a string": ('"x"', "bad_frame"),
    "null": ("null", "bad_frame"),
    "no type": ("{}", "bad_frame"),
    "a number as type": ('{"type":7}', "bad_frame"),
    "unknown type": ('{"type":"NOPE"}', "unknown_type"),
    "a server's type": ('{"type":"MESSAGE"}', "unknown_type"),
    "publish without topic": ('{"type":"PUBLISH","payload":1}', "bad_frame"),
    "publish without payload": ('{"type":"PUBLISH","topic":"t"}', "bad_frame"),
    "empty topic": ('{"type":"PUBLISH","topic":"","payload":1}', "bad_frame"),
    "space in topic": ('{"type":"PUBLISH","topic":"a b","payload":1}', "bad_frame"),
    "topic with the separator": ('{"type":"PUBLISH","topic":"a|b","payload":1}', "bad_frame"),
    "numeric key": ('{"type":"PUBLISH","topic":"t","key":7,"payload":1}', "bad_frame"),
    "lone surrogate as key": (f'{{"type":"PUBLISH","topic":"t","key":{LONE},"payload":1}}', "bad_frame"),
    "lone surrogate in payload": (f'{{"type":"PUBLISH","topic":"t","payload":[{LONE}]}}', "bad_frame"),
    "lone surrogate as topic": (f'{{"type":"PUBLISH","topic":{LONE},"payload":1}}', "bad_frame"),
    "number in headers": ('{"type":"PUBLISH","topic":"t","headers":{"x":1},"payload":1}', "bad_frame"),
    "headers as list": ('{"type":"PUBLISH","topic":"t","headers":[],"payload":1}', "bad_frame"),
    "nested too deeply": (DEEP, "bad_frame"),
    "empty id": ('{"type":"PUBLISH","topic":"t","id":"","payload":1}', "bad_frame"),
    "negative delay": ('{"type":"PUBLISH","topic":"t","delay_ms":-1,"payload":1}', "bad_frame"),
    "a delay of a century": ('{"type":"PUBLISH","topic":"t","delay_ms":3153600000000,"payload":1}', "bad_frame"),
    "empty batch": ('{"type":"PUBLISH_BATCH","topic":"t","events":[]}', "bad_frame"),
    "one bad event in a batch": (
        '{"type":"PUBLISH_BATCH","topic":"t","events":[{"payload":1},{"key":2,"payload":2}]}',
        "bad_frame",
    ),
    "subscribe without group": ('{"type":"SUBSCRIBE","topic":"t"}', "bad_frame"),
    "group with a space": ('{"type":"SUBSCRIBE","topic":"t","group":"a b"}', "bad_frame"),
    "unknown start": ('{"type":"SUBSCRIBE","topic":"t","group":"g","from":{"kind":"first"}}', "bad_frame"),
    "negative start": ('{"type":"SUBSCRIBE","topic":"t","group":"g","from":{"kind":"offset","value":-1}}', "bad_frame"),
    "a time without value": ('{"type":"SUBSCRIBE","topic":"t","group":"g","from":{"kind":"timestamp"}}', "bad_frame"),
    "unknown ack mode": ('{"type":"SUBSCRIBE","topic":"t","group":"g","ack":"some"}', "bad_frame"),
    "filter of one": ('{"type":"SUBSCRIBE","topic":"t","group":"g","filter":{"header":["x"]}}', "bad_frame"),
    "ack without offset": ('{"type":"ACK","topic":"t","partition":0,"group":"g"}', "bad_frame"),
    "ack of true": ('{"type":"ACK","topic":"t","partition":0,"group":"g","offset":true}', "bad_frame"),
    "ack not held": ('{"type":"ACK","topic":"t","partition":0,"group":"other","offset":1}', "not_subscribed"),
    "nack not held": ('{"type":"NACK","topic":"t","partition":0,"group":"other","offset":1}', "not_subscribed"),
    "extend not held": ('{"type":"EXTEND","topic":"t","partition":0,"group":"o","offset":1,"ms":9}', "not_subscribed"),
    "unsubscribe not held": ('{"type":"UNSUBSCRIBE","topic":"t","group":"other"}', "not_subscribed"),
    "ack of 0": ('{"type":"ACK","topic":"held","partition":0,"group":"g","offset":0}', "bad_offset"),
    "ack of tomorrow": ('{"type":"ACK","topic":"held","partition":0,"group":"g","offset":99}', "bad_offset"),
    "ack of no partition": ('{"type":"ACK","topic":"held","partition":9,"group":"g","offset":1}', "bad_offset"),
    "nack of tomorrow": ('{"type":"NACK","topic":"held","partition":0,"group":"g","offset":99}', "bad_offset"),
    "a huge offset": (f'{{"type":"ACK","topic":"held","partition":0,"group":"g","offset":{10**30}}}', "bad_frame"),
    "negative credits": ('{"type":"FLOW","credits":-1}', "bad_frame"),
    "both every and cron": (
        '{"type":"SCHEDULE","name":"s","topic":"t","payload":1,"every":1000,"cron":"* * * * *"}',
        "bad_frame",
    ),
    "a cron line that never matches": (
        '{"type":"SCHEDULE","name":"s","topic":"t","payload":1,"cron":"0 0 31 2 *"}',
        "bad_frame",
    ),
    "an unknown schedule": ('{"type":"UNSCHEDULE","name":"s"}', "unknown_schedule"),
    "too large": (json.dumps({"type": "PUBLISH", "topic": "t", "payload": "x" * (1 << 20)}), "too_large"),
}


@pytest.mark.parametrize("case", CASES)
@in_virtual_time
async def test_bad_frames_get_one_error_and_harm_nobody(world: World, case: str) -> None:
    text, code = CASES[case]
    peer, other = world.connect(), world.connect()
    await peer.subscribe("held", "g", BEGINNING)
    error = await peer.ask(text)
    assert (error["type"], error["code"]) == ("ERROR", code)
    assert error["message"]
    assert peer.got == []
    assert (await peer.publish("t", "good"))["offset"] == 1
    assert (await other.publish("t", "good"))["offset"] == 2


@in_virtual_time
async def test_corr_is_echoed_in_every_answer_whatever_it_is(world: World) -> None:
    peer = world.connect()
    for corr in ("one", 2, {"a": [None]}, [], 1.5, True):
        for frame in (
            {"type": "PUBLISH", "topic": "t", "payload": 1},
            {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1}]},
            {"type": "SUBSCRIBE", "topic": "u", "group": "g"},
            {"type": "UNSUBSCRIBE", "topic": "u", "group": "g"},
            {"type": "PUBLISH", "payload": 1},
            {"type": "NOPE"},
            {"type": "ACK", "topic": "x", "partition": 0, "group": "g", "offset": 1},
        ):
            assert (await peer.ask({**frame, "corr": corr}))["corr"] == corr
    assert "corr" not in await peer.ask({"type": "PUBLISH", "topic": "t", "payload": 1, "corr": None})


@in_virtual_time
async def test_errors_keep_their_place_among_the_answers(world: World) -> None:
    peer = world.connect()
    for n in range(6):
        peer.send({"type": "PUBLISH", "topic": "t", "payload": n, "corr": n} if n % 2 else {"type": "NOPE", "corr": n})
    await settle()
    assert [frame["corr"] for frame in peer.got] == [0, 1, 2, 3, 4, 5]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = "type topic payload key headers group from max_inflight filter ack offset partition credits events corr ms"
FIELDS = st.sampled_from(list(NAMES.split(" ")))


def code_of(data: bytes) -> str:
    """What becomes of the text: the frame's type, or the code of the error."""
    try:
        return str(type(decode(data)).__struct_config__.tag)
    except Rejected as rejected:
        return rejected.error.code


@pytest.mark.slow
@given(st.binary() | st.dictionaries(FIELDS, JSON).map(lambda d: json.dumps(d).encode()) | st.text().map(str.encode))
@settings(max_examples=300, deadline=None)
def test_decoding_never_fails_in_another_way(data: bytes) -> None:
    assert code_of(data) in {"bad_json", "bad_frame", "unknown_type", *TYPES}


@pytest.mark.slow
@given(st.sampled_from(sorted(TYPES)), st.dictionaries(FIELDS, JSON))
@settings(max_examples=300, deadline=None)
def test_a_known_type_with_any_fields_is_a_frame_or_rejected(kind: str, fields: dict[str, Any]) -> None:
    assert code_of(json.dumps({**fields, "type": kind}).encode()) in {"bad_json", "bad_frame", kind}


GOOD = ["a", "a.b_c-d:e/f", "Ünïcode", "日本語", "हिन्दी", "🦆-7", "👩‍👩‍👧", "x" * 255, "0", ".", "system.bus.audit"]
BAD = ["", " ", "a b", "a\n", "a|b", "a\0", "x" * 256, "ä" * 128, "\ud83d", "a\u2003b", "a\u202eb", "a*", "a>b", "%"]


@pytest.mark.parametrize("name", GOOD)
def test_names_are_letters_digits_and_a_few_signs_and_what_else_can_be_seen(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_the_rest_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(BadFrame) as refused:
        check_name("topic", name)
    assert refused.value.remedy
    json.dumps(refused.value.message).encode()
