"""Publishing over HTTP stores everything or nothing, and keeps the payload's bytes."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from mainspring.settings import Settings
from tests.support.http_site import Site, serve

CE = {"specversion": "1.0", "id": "a-1", "source": "/shop", "type": "order.placed"}
NDJSON = "application/x-ndjson"


async def raw_payload(site: Site, topic: str, offset: int = 1) -> bytes:
    (event,) = await site.bus.read(topic, 0, offset, 1)
    return event.payload


async def test_one_event_is_stored_and_told_where(each_engine: Site) -> None:
    site = each_engine
    sent = {"key": "k", "headers": {"h": "v"}, "payload": {"a": [1]}}
    answer = await site.post("/topics/t/events", sent)
    assert answer.status == 201
    assert (answer.json["topic"], answer.json["partition"], answer.json["offset"]) == ("t", 0, 1)
    (event,) = await site.events("t")
    assert event["id"] == answer.json["id"]
    assert (event["key"], event["headers"], event["payload"]) == ("k", {"h": "v"}, {"a": [1]})
    assert (await site.get(answer.headers["Location"])).json == event


@pytest.mark.parametrize(
    "payload",
    [
        b'{"b" : 1.50, "a":"\\u00e9"}',
        b"1e3",
        b"-0.0",
        b'"\\u0000"',
        b"12345678901234567890123",
        b'{"a":1,"a":2}',
        b"null",
    ],
)
async def test_payload_bytes_are_kept_as_they_came(each_engine: Site, payload: bytes) -> None:
    answer = await each_engine.post("/topics/t/events", b'{ "payload" : ' + payload + b" }")
    assert answer.status == 201
    assert await raw_payload(each_engine, "t") == payload
    read = await each_engine.get("/topics/t/events")
    assert b'"payload":' + payload + b"}" in read.body


async def test_a_body_without_a_type_is_json_and_gzip_is_understood(site: Site) -> None:
    body = gzip.compress(b'{"payload":"small"}')
    answer = await site.post("/topics/t/events", body, headers={"Content-Encoding": "gzip"})
    assert answer.status == 201
    answer = await site.request("POST", "/topics/t/events", data=b'{"payload":1}', skip_auto_headers=["Content-Type"])
    assert answer.status == 201


HOSTILE = {
    "empty": b"",
    "blank": b"  \n",
    "not json": b"not json",
    "array": b"[]",
    "text": b'"x"',
    "null": b"null",
    "no payload": b'{"key":"k"}',
    "numeric key": b'{"payload":1,"key":7}',
    "boolean key": b'{"payload":1,"key":true}',
    "NaN": b'{"payload":NaN}',
    "Infinity": b'{"payload":[-Infinity]}',
    "number out of range": b'{"payload":1e999}',
    "lone surrogate payload": b'{"payload":"\\ud83d"}',
    "lone surrogate inside": b'{"payload":{"a":["\\udc00"]}}',
    "lone surrogate key": b'{"payload":1,"key":"\\ud83d"}',
    "lone surrogate header": b'{"payload":1,"headers":{"a":"\\ud83d"}}',
    "payload twice": b'{"payload":1,"payload":2}',
    "key twice, once escaped": b'{"payload":1,"key":"a","k\\u0065y":"b"}',
    "unknown member": b'{"payload":1,"topic":"other"}',
    "number header": b'{"payload":1,"headers":{"a":1}}',
    "null header": b'{"payload":1,"headers":{"a":null}}',
    "headers as list": b'{"payload":1,"headers":[]}',
    "invalid UTF-8": b'{"payload":"\xff"}',
    "encoded surrogate": b'{"payload":"\xed\xa0\xbd"}',
    "trailing text": b'{"payload":1} x',
    "two objects": b'{"payload":1}{"payload":2}',
    "byte order mark": b'\xef\xbb\xbf{"payload":1}',
    "cut off": b'{"payload":',
    "deep": b'{"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "rather deep": b'{"payload":' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
    "deep and open": b"[" * 100_000,
    "negative delay": b'{"payload":1,"delay_ms":-1}',
    "fractional delay": b'{"payload":1,"delay_ms":1.5}',
    "boolean delay": b'{"payload":1,"delay_ms":true}',
    "expect as text": b'{"payload":1,"expect":"0"}',
    "empty id": b'{"payload":1,"id":""}',
    "long id": b'{"payload":1,"id":"%s"}' % (b"x" * 300),
    "control character": b'{"payload":"a\x01"}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_body_is_a_clear_400_and_stores_nothing(site: Site, body: bytes) -> None:
    refused = await site.post("/topics/t/events", body)
    assert refused.status == 400
    assert refused.problem["code"] in ("bad_json", "bad_frame")
    assert await site.nothing_stored("t")
    assert (await site.post("/topics/t/events", {"payload": 1})).json["offset"] == 1


@pytest.mark.parametrize(("inner", "outer"), [("[", "]"), ('{"a":', "}")])
async def test_nesting_has_an_exact_bound(site: Site, inner: str, outer: str) -> None:
    for levels, status in ((128, 201), (129, 400)):
        payload = inner * (levels - 1) + "[]" + outer * (levels - 1)
        assert (await site.post("/topics/t/events", f'{{"payload":{payload}}}')).status == status


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "application/xml", "nonsense"],
)
async def test_a_body_of_another_type_is_415(site: Site, kind: str) -> None:
    refused = await site.post("/topics/t/events", b'{"payload":1}', type=kind)
    assert (refused.status, refused.problem["code"]) == (415, "unsupported_media_type")
    assert NDJSON in refused.headers["Accept-Post"]
    assert await site.nothing_stored("t")


async def test_an_unknown_encoding_is_415_and_a_broken_one_400(site: Site) -> None:
    refused = await site.post("/topics/t/events", b"x", headers={"Content-Encoding": "rot13"})
    assert refused.status == 415
    broken = await site.post("/topics/t/events", b"not gzip at all", headers={"Content-Encoding": "gzip"})
    assert broken.status == 400
    assert await site.nothing_stored("t")


async def test_a_large_body_is_413_however_it_arrives() -> None:
    async with serve(max_body_bytes=10_000) as site:
        large = json.dumps({"payload": "x" * 20_000}).encode()

        async def pieces() -> Any:
            for start in range(0, len(large), 1000):
                yield large[start : start + 1000]

        for body in (large, pieces()):
            refused = await site.request(
                "POST", "/topics/t/events", data=body, headers={"Content-Type": "application/json"}
            )
            assert (refused.status, refused.problem["code"]) == (413, "too_large")
        bomb = await site.post("/topics/t/events", gzip.compress(large), headers={"Content-Encoding": "gzip"})
        assert bomb.status == 413
        assert await site.nothing_stored("t")


async def test_an_event_over_the_nodes_limit_is_413_alone_and_in_a_batch() -> None:
    async with serve(settings=Settings(max_frame_bytes=2_000)) as site:
        large = json.dumps({"payload": "x" * 3_000}).encode()
        assert (await site.post("/topics/t/events", large)).problem["code"] == "too_large"
        refused = await site.post("/topics/t/events", b'{"payload":1}\n' + large, type=NDJSON)
        assert refused.status == 413
        assert await site.nothing_stored("t")


# --- batches


async def test_lines_become_events_in_order(each_engine: Site) -> None:
    site = each_engine
    lines = b'{"payload":1}\n\n{"payload":2,"key":"k"}\r\n  {"payload":{"a" : 3},"headers":{"h":"v"}}'
    answer = await site.post("/topics/t/events", lines, type=NDJSON)
    assert answer.status == 201
    assert (answer.json["count"], answer.json["offsets"]) == (3, [[0, 1], [0, 2], [0, 3]])
    events = await site.events("t")
    assert [event["payload"] for event in events] == [1, 2, {"a": 3}]
    assert [event["id"] for event in events] == answer.json["ids"]


@pytest.mark.parametrize(
    "bad", [b"not json", b'{"key":"k"}', b'{"payload":NaN}', b'{"payload":"\xff"}', b'{"payload":1,"expect":0}']
)
async def test_one_bad_line_refuses_them_all_and_is_named(each_engine: Site, bad: bytes) -> None:
    refused = await each_engine.post("/topics/t/events", b'{"payload":1}\n' + bad + b'\n{"payload":3}', type=NDJSON)
    assert refused.status == 400
    assert refused.problem["message"].startswith("Line 2: ")
    assert await each_engine.nothing_stored("t")


async def test_a_batch_of_nothing_is_refused(site: Site) -> None:
    for body in (b"", b"\n\n"):
        refused = await site.post("/topics/t/events", body, type=NDJSON)
        assert refused.status == 400


async def test_a_batch_of_too_many_events_is_413_and_stores_nothing() -> None:
    async with serve(max_batch_events=10) as site:
        assert (await site.post("/topics/t/events", b'{"payload":1}\n' * 10, type=NDJSON)).status == 201
        lines = await site.post("/topics/u/events", b'{"payload":1}\n' * 11, type=NDJSON)
        assert (lines.status, lines.problem["code"]) == (413, "too_large")
        many = [{**CE, "id": str(n)} for n in range(11)]
        refused = await site.post("/topics/u/events", many, type="application/cloudevents-batch+json")
        assert refused.status == 413
        assert await site.nothing_stored("u")


# --- idempotence, expectations, delay


async def test_the_same_id_gives_the_first_place_again(each_engine: Site) -> None:
    site = each_engine
    first = await site.post("/topics/t/events", {"payload": 1, "id": "order-7"})
    again = await site.post("/topics/t/events", {"payload": 1, "id": "order-7"})
    assert (first.status, again.status) == (201, 201)
    assert (again.json["offset"], again.json.get("duplicate")) == (1, True)
    assert len(await site.events("t")) == 1


async def test_expect_lets_one_of_two_writers_through(each_engine: Site) -> None:
    site = each_engine
    assert (await site.post("/topics/t/events", {"payload": 1, "expect": 0})).status == 201
    late = await site.post("/topics/t/events", {"payload": 2, "expect": 0})
    assert late.status == 409
    assert [event["payload"] for event in await site.events("t")] == [1]
    assert (await site.post("/topics/t/events", {"payload": 2, "expect": 1})).status == 201


# --- CloudEvents


async def test_a_structured_cloudevent_is_stored_and_read_back(each_engine: Site) -> None:
    site = each_engine
    sent = {**CE, "time": "2026-01-31T12:00:00Z", "partitionkey": "k", "myext": "x", "data": {"n": 1}}
    answer = await site.post("/topics/t/events", sent, type="application/cloudevents+json; charset=utf-8")
    assert answer.status == 201
    (event,) = await site.events("t")
    assert (event["key"], event["payload"]) == ("k", {"n": 1})
    assert event["headers"]["ce-type"] == "order.placed"
    one = await site.get("/topics/t/events/0/1", headers={"Accept": "application/cloudevents+json"})
    assert one.headers["Content-Type"].startswith("application/cloudevents+json")
    assert sent.items() <= one.json.items()
    many = await site.get("/topics/t/events", headers={"Accept": "application/cloudevents-batch+json"})
    assert many.json == [one.json]


async def test_a_binary_cloudevent_is_stored_and_read_back(site: Site) -> None:
    headers = {f"ce-{name}": value for name, value in CE.items()} | {"ce-subject": "gr%C3%BC%C3%9Fe"}
    answer = await site.post("/topics/t/events", b'{"n" : 1}', headers=headers)
    assert answer.status == 201
    assert await raw_payload(site, "t") == b'{"n" : 1}'
    one = await site.get("/topics/t/events/0/1", headers={"Accept": "application/cloudevents+json"})
    assert one.json["subject"] == "grüße"
    assert one.json["datacontenttype"] == "application/json"
    assert one.json["data"] == {"n": 1}
    picture = await site.post("/topics/t/events", b"\x89PNG", type="image/png", headers={**headers, "ce-id": "a-2"})
    assert picture.status == 201
    one = await site.get("/topics/t/events/0/2", headers={"Accept": "application/cloudevents+json"})
    assert one.json["data_base64"] == "iVBORw=="


async def test_a_batch_of_cloudevents_is_all_or_nothing(each_engine: Site) -> None:
    site = each_engine
    kind = "application/cloudevents-batch+json"
    bad = await site.post("/topics/t/events", [CE, {**CE, "id": ""}], type=kind)
    assert (bad.status, bad.problem["code"]) == (400, "bad_cloudevent")
    assert bad.problem["message"].startswith("Event 2 of the batch")
    assert await site.nothing_stored("t")
    good = await site.post("/topics/t/events", [{**CE, "id": str(n), "data": n} for n in range(3)], type=kind)
    assert (good.status, good.json["offsets"]) == (201, [[0, 1], [0, 2], [0, 3]])


async def test_a_cloudevent_sent_twice_is_stored_once(each_engine: Site) -> None:
    for _ in range(2):
        answer = await each_engine.post("/topics/t/events", {**CE, "data": 1}, type="application/cloudevents+json")
        assert (answer.status, answer.json["offset"]) == (201, 1)
    assert len(await each_engine.events("t")) == 1


@pytest.mark.parametrize("missing", CE)
async def test_a_cloudevent_without_a_required_attribute_is_refused(site: Site, missing: str) -> None:
    rest = {name: value for name, value in CE.items() if name != missing}
    structured = await site.post("/topics/t/events", rest, type="application/cloudevents+json")
    headers = {f"ce-{name}": value for name, value in rest.items()}
    binary = await site.post("/topics/t/events", b"1", headers=headers)
    assert (structured.problem["code"], binary.problem["code"]) == ("bad_cloudevent", "bad_cloudevent")
    assert missing in binary.problem["message"]
    assert await site.nothing_stored("t")


async def test_a_cloudevent_format_nobody_knows_is_415(site: Site) -> None:
    refused = await site.post("/topics/t/events", b"<x/>", type="application/cloudevents+xml")
    assert refused.status == 415


async def test_a_whole_number_with_a_fraction_of_zeros_is_an_integer_and_payloads_stay_as_they_are(site: Site) -> None:
    body = b'{"ttl_ms": 5000.0, "payload": {"n": 1.0, "t": "2.0"}, "key": "3.0"}'
    assert (await site.post("/topics/t/events", body)).status == 201
    assert await raw_payload(site, "t") == b'{"n": 1.0, "t": "2.0"}'
    (event,) = await site.events("t")
    assert event["key"] == "3.0"
    assert (await site.post("/dlq/t/redrive", {"before": 1316.0})).status == 200
    assert (await site.post("/topics", {"topic": "t", "retentionMs": 9.0})).json["retentionMs"] == 9
    for wrong in ({"before": 1.5}, {"before": "1.0"}, {"offsets": [1.0, "2"]}):
        assert (await site.post("/dlq/t/redrive", wrong)).json["code"] == "bad_frame"
