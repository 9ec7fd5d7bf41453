"""CloudEvents become events and come back unchanged, whatever mode they arrived in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.bus import NewEvent
from mainspring.errors import MainspringError
from mainspring.log import StoredEvent
from mainspring.server.http.documents import cloudevents
from tests.support.http_site import Site

REQUIRED = {"specversion": "1.0", "id": "a-1", "source": "/shop", "type": "order.placed"}


def stored(event: NewEvent, **fields: Any) -> StoredEvent:
    """The event as the log would give it back."""
    return StoredEvent(
        **{
            "topic": "orders",
            "partition": 2,
            "offset": 7,
            "id": "0192",
            "ts": 1_700_000_000_123,
            "payload": event.payload,
            "key": event.key,
            "headers": msgspec.json.encode(event.headers),
            **fields,
        }
    )


def back(event: NewEvent) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(cloudevents.to_structured(stored(event)))
    assert (members.pop("mainspringtopic"), members.pop("mainspringpartition"), members.pop("mainspringoffset")) == (
        "orders",
        2,
        7,
    )
    return members


def refused(call: Any, *args: Any) -> str:
    with pytest.raises(MainspringError) as caught:
        call(*args)
    assert caught.value.code in ("bad_cloudevent", "bad_json", "bad_frame")
    return caught.value.message


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@given(
    data=json_values,
    id=texts,
    source=texts,
    type=texts,
    key=st.none() | texts,
    extensions=st.dictionaries(st.from_regex(r"x[a-z0-9]{1,8}", fullmatch=True), texts, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_a_structured_event_comes_back_as_it_was(data, id, source, type, key, extensions):
    sent = {"specversion": "1.0", "id": id, "source": source, "type": type, "data": data, **extensions}
    if key is not None:
        sent["partitionkey"] = key
    event = cloudevents.from_structured(json.dumps(sent).encode())
    assert event.key == key
    assert back(event) == sent


@given(id=texts, subject=texts)
@settings(max_examples=60, deadline=None)
def test_binary_mode_headers_carry_any_text_percent_encoded(id, subject):
    from urllib.parse import quote

    headers = [("ce-specversion", "1.0"), ("CE-ID", quote(id, safe="")), ("ce-source", "/s"), ("ce-type", "t")]
    event = cloudevents.from_binary([*headers, ("ce-subject", quote(subject, safe=""))], "application/json", b"{}")
    assert (event.headers["ce-id"], event.headers["ce-subject"]) == (id, subject)
    assert back(event)["subject"] == subject


def test_the_payload_is_the_data_byte_for_byte():
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data": {"b" : 1.50, "a":"\\u00e9"} }'
    event = cloudevents.from_structured(body)
    assert event.payload == b'{"b" : 1.50, "a":"\\u00e9"}'
    assert b'{"b" : 1.50, "a":"\\u00e9"}' in cloudevents.to_structured(stored(event))


def test_attributes_become_headers_and_the_partition_key_the_key():
    event = cloudevents.from_structured(
        json.dumps({**REQUIRED, "partitionkey": "k", "sampled": True, "rank": 3, "gone": None, "data": 1}).encode()
    )
    assert event.key == "k"
    assert event.headers == {
        "ce-specversion": "1.0",
        "ce-id": "a-1",
        "ce-source": "/shop",
        "ce-type": "order.placed",
        "ce-sampled": "true",
        "ce-rank": "3",
    }


def test_absent_data_is_a_null_payload():
    assert cloudevents.from_structured(json.dumps(REQUIRED).encode()).payload == b"null"
    headers = [(f"ce-{name}", value) for name, value in REQUIRED.items()]
    assert cloudevents.from_binary(headers, None, b"").payload == b"null"


def test_bytes_travel_as_base64_and_text_as_text():
    headers = [(f"ce-{name}", value) for name, value in REQUIRED.items()]
    image = cloudevents.from_binary(headers, "image/png", b"\x89PNG\xff")
    assert back(image)["data_base64"] == "iVBOR/8="
    assert back(image)["datacontenttype"] == "image/png"
    assert "data" not in back(image)
    note = cloudevents.from_binary(headers, "text/plain; charset=utf-8", "grüße".encode())
    assert json.loads(note.payload) == "grüße"
    encoded = cloudevents.from_structured(json.dumps({**REQUIRED, "data_base64": "AQI="}).encode())
    assert back(encoded)["data_base64"] == "AQI="


def test_a_quoted_header_value_is_read_as_the_text_inside():
    headers = [("ce-specversion", "1.0"), ("ce-id", '"a \\"b\\""'), ("ce-source", "/s"), ("ce-type", "t")]
    assert cloudevents.from_binary(headers, None, b"1").headers["ce-id"] == 'a "b"'


def test_an_ordinary_event_is_given_the_required_attributes():
    event = StoredEvent("a/b", 0, 3, "0192-id", 1_700_000_000_123, b'{"n":1}', "k", b'{"trace":"t1","x-odd":"no"}')
    assert json.loads(cloudevents.to_structured(event)) == {
        "specversion": "1.0",
        "id": "0192-id",
        "source": "/topics/a%2Fb",
        "type": "a/b",
        "time": "2023-11-14T22:13:20.123Z",
        "datacontenttype": "application/json",
        "trace": "t1",
        "partitionkey": "k",
        "mainspringtopic": "a/b",
        "mainspringpartition": 0,
        "mainspringoffset": 3,
        "data": {"n": 1},
    }


def test_a_copy_into_another_topic_does_not_keep_the_old_place():
    first = cloudevents.from_structured(json.dumps({**REQUIRED, "data": 1}).encode())
    again = cloudevents.from_structured(cloudevents.to_structured(stored(first)))
    assert again == first


def test_the_same_source_and_id_give_the_same_publish_id():
    one = cloudevents.from_structured(json.dumps({**REQUIRED, "data": 1}).encode())
    same = cloudevents.from_structured(json.dumps({**REQUIRED, "type": "other", "data": 2}).encode())
    other = cloudevents.from_structured(json.dumps({**REQUIRED, "id": "a-2"}).encode())
    assert one.id == same.id != other.id


def test_a_batch_names_the_event_that_is_wrong():
    body = json.dumps([REQUIRED, {**REQUIRED, "specversion": "0.3"}]).encode()
    assert refused(lambda: list(cloudevents.from_batch(body))).startswith("Event 2 of the batch: specversion '0.3'")


@pytest.mark.parametrize(
    "change",
    [
        *({name: None} for name in REQUIRED),
        *({name: ""} for name in (*REQUIRED, "subject", "partitionkey")),
        {"specversion": "2.0"},
        {"Upper": "x"},
        {"with-dash": "x"},
        {"ext": {"an": "object"}},
        {"ext": 1.5},
        {"ext": 2**31},
        {"time": "yesterday"},
        {"time": "2026-13-01T00:00:00Z"},
        {"time": "2026-01-01"},
        {"data": 1, "data_base64": "AQ=="},
        {"data_base64": "%%%"},
        {"data_base64": 5},
    ],
    ids=json.dumps,
)
def test_a_wrong_attribute_is_refused(change):
    members = {name: value for name, value in {**REQUIRED, **change}.items() if value is not None}
    refused(cloudevents.from_structured, json.dumps(members).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"\xff",
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":NaN}',
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"\\ud83d"}',
        b'{"specversion":"1.0","id":"1","id":"2","source":"/s","type":"t"}',
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":' + b"[" * 100_000,
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1,"ext":1e999}',
    ],
)
def test_a_body_that_is_no_cloudevent_is_refused(body):
    refused(cloudevents.from_structured, body)


def test_a_header_given_twice_or_not_utf8_is_refused():
    headers = [(f"ce-{name}", value) for name, value in REQUIRED.items()]
    refused(cloudevents.from_binary, [*headers, ("ce-id", "again")], None, b"1")
    refused(cloudevents.from_binary, [*headers, ("ce-subject", "%FF")], None, b"1")
    refused(cloudevents.from_binary, [*headers, ("ce-with-dash", "x")], None, b"1")
    refused(cloudevents.from_binary, headers, "application/json", b"not json")


async def test_an_empty_batch_is_published_as_nothing(site: Site) -> None:
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    answer = await site.request("POST", "/topics/t/events", data=b"[]", headers=headers)
    assert (answer.status, answer.json["count"]) == (201, 0)
