"""Topics are created, grown and looked at; names may hold anything the bus allows."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from tests.support.http_site import Site

NAMES = [
    "plain",
    "🦆",
    "a/b",
    "a/b/events",
    "a/offsets",
    "with:colon",
    "with.dots",
    "ключ",
    "東京",
    "a/../b",
    "..",
    "-_",
    "e\u0301",
]


async def test_a_topic_is_created_then_the_same_then_grown(site: Site) -> None:
    created = await site.post("/topics", {"topic": "t", "partitions": 2, "maxAttempts": 7})
    assert created.status == 201
    assert created.json == {"topic": "t", "partitions": 2, "maxAttempts": 7}
    assert (await site.post("/topics", {"topic": "t", "partitions": 2})).status == 200
    grown = await site.post("/topics", {"topic": "t", "partitions": 4})
    assert (grown.status, grown.json["partitions"]) == (200, 4)
    assert (await site.get("/topics/t")).json["partitions"] == 4


async def test_a_change_leaves_alone_what_it_does_not_mention(site: Site) -> None:
    made = {"topic": "t", "partitions": 4, "maxAttempts": 7, "publishACL": {"allow": ["alice"], "deny": ["bob"]}}
    alice = {"X-Agent-Id": "alice"}
    assert (await site.post("/topics", made)).status == 201
    changed = await site.post("/topics", {"topic": "t", "retentionMs": 1_000}, headers=alice)
    assert (changed.status, changed.json) == (200, {**made, "retentionMs": 1_000})
    assert (await site.post("/topics/t/events", {"payload": 1}, headers={"X-Agent-Id": "bob"})).status == 403
    back = await site.post("/topics", {"topic": "t", "maxAttempts": None, "publishACL": None}, headers=alice)
    assert back.json == {"topic": "t", "partitions": 4, "retentionMs": 1_000}


async def test_partitions_never_shrink(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "partitions": 4})
    refused = await site.post("/topics", {"topic": "t", "partitions": 3})
    assert (refused.status, refused.problem["code"]) == (409, "conflict")
    assert refused.problem["remedy"]
    assert (await site.get("/topics/t")).json["partitions"] == 4


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        "",
        "[]",
        "{}",
        "null",
        '{"topic":"t","partitions":0}',
        '{"topic":"t","partitions":-1}',
        '{"topic":"t","partitions":1.5}',
        '{"topic":"t","partitions":"a"}',
        '{"topic":"t","partitions":true}',
        '{"topic":"t","partitions":1000000}',
        '{"topic":"t","partitions":NaN}',
        '{"topic":7}',
        '{"topic":""}',
        '{"topic":"two words"}',
        '{"topic":"\\ud83d"}',
        '{"topic":"line\\nbreak"}',
        '{"topic":"t","topic":"u"}',
        '{"topic":"t","t\\u006fpic":"u"}',
        '{"topic":"t","nobodyKnows":1}',
        '{"topic":"t","publishACL":"alice"}',
        '{"topic":"t","publishACL":[1]}',
        '{"topic":"t","retentionMs":-1}',
        b'{"topic":"\xff"}',
        '{"topic":"%s"}' % ("x" * 256),
        '{"topic":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
async def test_nonsense_is_refused_and_creates_nothing(site: Site, body: str | bytes) -> None:
    refused = await site.post("/topics", body)
    assert (refused.status, refused.problem["status"]) == (400, 400)
    assert not [t for t in (await site.get("/topics")).json["topics"] if not t["topic"].startswith("system.")]


async def test_a_body_of_another_type_is_refused(site: Site) -> None:
    refused = await site.post("/topics", {"topic": "t"}, type="application/x-www-form-urlencoded")
    assert (refused.status, refused.problem["code"]) == (415, "unsupported_media_type")
    refused = await site.post("/topics", {"topic": "t"}, type="application/json; charset=latin-1")
    assert refused.status == 415


async def test_no_body_at_all_is_said_so_whatever_its_type(site: Site) -> None:
    for path in ("/topics", "/topics/t/events"):
        refused = await site.post(path, "", type="application/octet-stream")
        assert (refused.status, refused.problem["code"]) == (400, "bad_json")


@pytest.mark.parametrize("name", NAMES)
async def test_any_name_works_percent_encoded(site: Site, name: str) -> None:
    assert (await site.post("/topics", {"topic": name})).status == 201
    path = f"/topics/{quote(name, safe='')}"
    assert (await site.get(path)).json["topic"] == name
    assert (await site.post(f"{path}/events", {"payload": name})).json["topic"] == name
    assert (await site.get(f"{path}/offsets")).json["partitions"][0]["tail"] == 1
    assert (await site.get(f"{path}/events")).json["events"][0]["payload"] == name
    assert (await site.get(f"{path}/events/0/1")).json["topic"] == name


async def test_plain_slashes_are_understood_where_nothing_is_ambiguous(site: Site) -> None:
    await site.post("/topics/a/b/events", {"payload": 1})
    assert (await site.get("/topics/a/b/offsets")).json["topic"] == "a/b"
    assert (await site.get("/topics/a/b")).json["topic"] == "a/b"


@pytest.mark.parametrize("name", ["two words", "a%", "a\x00b", "x?y", "q#r", "\u2003", "x" * 256, "a|b"])
async def test_a_name_the_bus_does_not_allow_is_refused(site: Site, name: str) -> None:
    refused = await site.post(f"/topics/{quote(name, safe='')}/events", {"payload": 1})
    assert refused.status == 400
    assert refused.problem["remedy"]


@pytest.mark.parametrize("path", ["", "/offsets", "/events", "/events/0/1"])
async def test_an_unknown_topic_is_404(site: Site, path: str) -> None:
    missing = await site.get(f"/topics/nobody{path}")
    assert (missing.status, missing.problem["code"]) == (404, "unknown_topic")


async def test_topics_are_listed_also_when_only_published_to(site: Site) -> None:
    await site.post("/topics", {"topic": "made", "partitions": 3})
    await site.publish("implied", 1)
    listed = {t["topic"]: t["partitions"] for t in (await site.get("/topics")).json["topics"]}
    assert (listed["made"], listed["implied"]) == (3, 1)
    assert [t["topic"] for t in (await site.get("/topics?prefix=ma")).json["topics"]] == ["made"]


async def test_offsets_of_an_empty_topic_begin_behind_its_tail(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "partitions": 2})
    await site.publish("t", 1, key="a")
    partitions = (await site.get("/topics/t/offsets")).json["partitions"]
    assert [p["partition"] for p in partitions] == [0, 1]
    assert sorted((p["head"], p["tail"]) for p in partitions) == [(1, 0), (1, 1)]
    assert all(p["groups"] == {} for p in partitions)


async def test_access_lists_hold_over_http(site: Site) -> None:
    config = {"topic": "secret", "publishACL": ["alice"], "subscribeACL": {"allow": ["alice", "bob"], "deny": ["bob"]}}
    assert (await site.post("/topics", config)).status == 201
    alice, bob = {"X-Agent-Id": "alice"}, {"X-Agent-Id": "bob"}
    assert (await site.post("/topics/secret/events", {"payload": 1}, headers=alice)).status == 201
    assert (await site.post("/topics/secret/events?agent_id=alice", {"payload": 2})).status == 201
    for headers in (bob, {}):
        assert (await site.post("/topics/secret/events", {"payload": 3}, headers=headers)).status == 403
        for path in ("events", "events/0/1", "stream"):
            assert (await site.get(f"/topics/secret/{path}", headers=headers)).status == 403
    assert [e["payload"] for e in (await site.get("/topics/secret/events", headers=alice)).json["events"]] == [1, 2]


async def test_the_query_names_the_agent_before_the_header_does(site: Site) -> None:
    await site.post("/topics", {"topic": "secret", "publishACL": ["alice"]})
    refused = await site.post("/topics/secret/events?agent_id=bob", {"payload": 1}, headers={"X-Agent-Id": "alice"})
    assert refused.status == 403


async def test_an_event_names_its_agent_when_the_request_does_not(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "publishACL": ["alice"]})
    event = {"payload": 1, "headers": {"agent_id": "alice"}}
    assert (await site.post("/topics/t/events", event)).status == 201
    assert (await site.post("/topics/t/events?agent_id=bob", event)).status == 403
    lines = json.dumps(event) + "\n" + json.dumps(event)
    assert (await site.post("/topics/t/events", lines, type="application/x-ndjson")).status == 201
    mixed = json.dumps(event) + "\n" + json.dumps({"payload": 2})
    assert (await site.post("/topics/t/events", mixed, type="application/x-ndjson")).status == 403


async def test_who_may_not_use_a_topic_may_not_open_it_to_everybody(site: Site) -> None:
    await site.post("/topics", {"topic": "read", "subscribeACL": ["alice"]})
    await site.post("/topics", {"topic": "write", "publishACL": ["alice"]})
    for topic in ("read", "write"):
        assert (await site.post("/topics?agent_id=bob", {"topic": topic})).status == 403
        assert (await site.post("/topics?agent_id=alice", {"topic": topic})).status == 200


async def test_the_bus_topics_cannot_be_written_by_clients(site: Site) -> None:
    refused = await site.post("/topics/system.bus.audit/events", {"payload": 1})
    assert (refused.status, refused.problem["code"]) == (403, "forbidden")
    assert (await site.post("/topics", {"topic": "system.bus.audit", "partitions": 2})).status == 403
