"""Stored events are read by offset, time and cursor, in three forms, without holding them all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from mainspring.server.http.operations.events import StoredEnvelope
from tests.support.http_site import Site

NDJSON = {"Accept": "application/x-ndjson"}


def payloads(events: list[dict[str, Any]]) -> list[Any]:
    return [event["payload"] for event in events]


async def test_pages_by_offset(each_engine: Site) -> None:
    site = each_engine
    await site.publish("t", *range(1, 11))
    page = (await site.get("/topics/t/events?partition=0&offset=4&limit=3")).json
    assert [event["offset"] for event in page["events"]] == [4, 5, 6]
    assert payloads(page["events"]) == [4, 5, 6]
    assert payloads((await site.get("/topics/t/events?offset=9&limit=100")).json["events"]) == [9, 10]
    assert (await site.get("/topics/t/events?offset=11")).json["events"] == []
    assert payloads((await site.get("/topics/t/events?offset=0&limit=1")).json["events"]) == [1]


async def test_the_default_limit_of_json_is_a_hundred_and_ndjson_has_none(site: Site) -> None:
    await site.bus.publish_batch("t", [_event(n) for n in range(700)])
    assert len((await site.get("/topics/t/events")).json["events"]) == 100
    assert payloads(await site.events("t")) == list(range(700))
    assert len((await site.get("/topics/t/events?limit=650")).json["events"]) == 650
    limited = await site.get("/topics/t/events?limit=300", headers=NDJSON)
    assert len(limited.body.splitlines()) == 300


async def test_a_cursor_goes_on_where_the_answer_ended_over_all_partitions(each_engine: Site) -> None:
    site = each_engine
    await site.post("/topics", {"topic": "t", "partitions": 3})
    for n in range(30):
        await site.publish("t", n, key=f"k{n}")
    seen: list[Any] = []
    cursor = ""
    while True:
        page = (await site.get(f"/topics/t/events?limit=7&cursor={cursor}")).json
        seen += payloads(page["events"])
        cursor = page["cursor"]
        if not page["events"]:
            break
    assert sorted(seen) == list(range(30))
    await site.publish("t", "later", key="k0")
    assert payloads((await site.get(f"/topics/t/events?cursor={cursor}")).json["events"]) == ["later"]


async def test_a_partition_added_since_the_cursor_is_read_from_its_beginning(site: Site) -> None:
    await site.publish("t", 1)
    cursor = (await site.get("/topics/t/events")).json["cursor"]
    await site.post("/topics", {"topic": "t", "partitions": 8})
    for n in range(20):
        await site.publish("t", n, key=f"k{n}")
    rest = (await site.get(f"/topics/t/events?cursor={cursor}")).json["events"]
    assert sorted(payloads(rest)) == list(range(20))


async def test_a_range_of_time(each_engine: Site) -> None:
    site = each_engine
    await site.publish("t", 1, 2)
    await asyncio.sleep(0.005)
    await site.publish("t", 3)
    middle = (await site.events("t"))[2]["ts"]
    await asyncio.sleep(0.005)
    await site.publish("t", 4)
    assert payloads((await site.get(f"/topics/t/events?from={middle}")).json["events"]) == [3, 4]
    assert payloads((await site.get(f"/topics/t/events?to={middle}")).json["events"]) == [1, 2]
    only = await site.get(f"/topics/t/events?from={middle}&to={middle + 1}", headers=NDJSON)
    assert [json.loads(line)["payload"] for line in only.body.splitlines()] == [3]
    assert (await site.get("/topics/t/events?from=2999-01-01T00:00:00Z")).json["events"] == []
    assert len((await site.get("/topics/t/events?from=2001-01-01T00:00:00.5%2B02:00")).json["events"]) == 4


@pytest.mark.parametrize(
    "query",
    [
        "partition=1",
        "partition=-1",
        "partition=a",
        "partition=",
        "partition=1.0",
        "partition=%D9%A1",
        "offset=-1",
        "offset=x",
        "offset=99999999999999999999",
        "limit=0",
        "limit=-5",
        "limit=many",
        "from=yesterday",
        "to=2026-13-01T00:00:00Z",
        "from=1&offset=1",
        "cursor=0:1&offset=1",
        "cursor=nonsense",
        "cursor=0:1,0:2",
        "cursor=0:5",
        "cursor=0:-1",
        "ofset=1",
        "offset=1&offset=2",
    ],
)
async def test_a_bad_query_is_400_with_a_remedy(site: Site, query: str) -> None:
    await site.publish("t", 1)
    refused = await site.get(f"/topics/t/events?{query}")
    assert refused.status == 400
    assert refused.problem["code"] in ("bad_query", "bad_cursor")
    assert refused.problem["remedy"]


async def test_an_offset_without_a_partition_needs_a_topic_with_one(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "partitions": 2})
    assert (await site.get("/topics/t/events?offset=2")).status == 400
    assert (await site.get("/topics/t/events?offset=2&partition=1")).status == 200


async def test_a_line_break_inside_a_payload_does_not_break_a_line(site: Site) -> None:
    await site.bus.publish("t", b'{"a":\n[1,\r\n2],"b":"x\\ny"}')
    answer = await site.get("/topics/t/events", headers=NDJSON)
    (line,) = answer.body.splitlines()
    assert json.loads(line)["payload"] == {"a": [1, 2], "b": "x\ny"}
    assert b'{"a":\n[1,\r\n2],"b":"x\\ny"}' in (await site.get("/topics/t/events")).body


async def test_every_form_holds_what_it_promises(site: Site) -> None:
    await site.publish("t", {"n": 1}, key="k", headers={"h": "v"})
    await site.publish("t", None)
    for path in ("/topics/t/events/0/1", "/topics/t/events/0/2"):
        event = msgspec.json.decode((await site.get(path)).body, type=StoredEnvelope)
        assert event.topic == "t"
    second = (await site.get("/topics/t/events/0/2")).json
    assert "key" not in second
    assert "headers" not in second
    assert second["payload"] is None


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/html, application/x-ndjson;q=0.5", "application/x-ndjson"),
        ("application/json;q=0.1, application/x-ndjson;q=0.9", "application/x-ndjson"),
        ("*/*;q=0.1, application/cloudevents-batch+json", "application/cloudevents-batch+json"),
        ("application/json;q=0, */*", "application/x-ndjson"),
    ],
)
async def test_the_form_follows_the_accept_header(site: Site, accept: str, given: str) -> None:
    await site.publish("t", 1)
    answer = await site.get("/topics/t/events", headers={"Accept": accept})
    assert answer.headers["Content-Type"].split(";")[0] == given


async def test_a_form_nobody_can_give_is_406(site: Site) -> None:
    await site.publish("t", 1)
    for path in ("/topics/t/events", "/topics/t/events/0/1"):
        refused = await site.get(path, headers={"Accept": "image/png"})
        assert (refused.status, refused.problem["code"]) == (406, "not_acceptable")


@pytest.mark.parametrize("place", ["0/2", "0/0", "1/1"])
async def test_no_event_at_a_place_is_404(site: Site, place: str) -> None:
    await site.publish("t", 1)
    missing = await site.get(f"/topics/t/events/{place}")
    assert (missing.status, missing.problem["code"]) == (404, "unknown_event")


async def test_a_slow_reader_of_many_events_holds_one_page(site: Site) -> None:
    """Thirty megabytes are asked for and nothing is read: the node reads no more than the connection takes."""
    page = [_event("x" * 10_000) for _ in range(300)]
    for _ in range(10):
        await site.bus.publish_batch("t", page)
    reads = 0
    read = site.bus.read

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*args, **options)

    site.bus.read = counted  # type: ignore[method-assign]
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1024)
    writer.write(b"GET /topics/t/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/x-ndjson\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    for _ in range(20):  # other requests are answered meanwhile, and the slow one gets no further
        assert (await site.get("/healthz")).status == 200
        await asyncio.sleep(0.01)
    held = reads
    assert held < 12
    writer.transport.abort()
    assert (await site.get("/topics/t/events?limit=1")).status == 200


def _event(payload: Any) -> Any:
    from mainspring.bus import NewEvent

    return NewEvent(json.dumps(payload).encode())
