"""What a token is shown: numbers and groups of topics it may read, names of those it has any right on, no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from mainspring import App
from tests.support.access import ALICE, BOB, LINES, ROOT, Reply, Served, make_token, served

WRITER, WRITER_TOKEN = make_token("writer", "publish:payroll")
READER, READER_TOKEN = make_token("reader", "subscribe:**")
TOKENS = (*LINES, WRITER_TOKEN.line(), READER_TOKEN.line())
SECRET = "payroll"
NUMBERS = ("/stats", "/metrics", "/groups")
NAMES = ("/topics", "/asyncapi.json", "/schemas", "/schedules", "/dlq")


async def fill(node: Served, token: str | None) -> None:
    """Two topics with everything a topic can have: events, a group that lags, a dead letter, a schema, a schedule."""
    for topic in ("orders", SECRET):
        await node.post(f"/schemas/{topic}", {"schema": {"type": "integer", "title": f"of {topic}"}}, token)
        await node.post("/topics", {"topic": topic, "maxAttempts": 1}, token)
        for number in range(3):
            assert (await node.post(f"/topics/{topic}/events", {"payload": number}, token)).status == 201
        schedule = {"name": f"often-{topic}", "topic": topic, "payload": 1, "every": 3_600_000}
        assert (await node.post("/schedules", schedule, token)).status == 201
        async with node.socket(token) as socket:
            await socket.subscribe(topic, f"readers-of-{topic}", max_inflight=1)
            first = await socket.next()
            place = {name: first[name] for name in ("topic", "partition", "group", "offset")}
            await socket.socket.send_json({"type": "NACK", **place, "reason": "no"})
            assert (await socket.next())["offset"] == 2


@pytest.fixture
async def node() -> AsyncIterator[Served]:
    async with served(tokens=TOKENS) as running:
        await fill(running, ROOT)
        yield running


def names(answer: Reply) -> bool:
    assert answer.status == 200, answer
    return SECRET.encode() in answer.body


@pytest.mark.parametrize("path", [*NUMBERS, *NAMES, "/openapi.json", "/node", "/nodes", "/messages"])
async def test_a_topic_without_any_right_is_named_nowhere(node: Served, path: str) -> None:
    for token in (BOB, ALICE):
        assert not names(await node.get(path, token)), path


@pytest.mark.parametrize("path", [*NUMBERS, *NAMES])
async def test_full_rights_see_everything(node: Served, path: str) -> None:
    for token in (ROOT, READER):
        answer = await node.get(path, token)
        assert names(answer), path
        assert b"orders" in answer.body, path


@pytest.mark.parametrize("path", [*NUMBERS, *NAMES])
async def test_without_tokens_everything_is_seen_as_ever(path: str) -> None:
    async with served() as node:
        await fill(node, None)
        assert names(await node.get(path))


async def test_what_is_ones_own_is_told_in_full(node: Served) -> None:
    stats = (await node.get("/stats", BOB)).json
    full = (await node.get("/stats", ROOT)).json
    assert stats["byTopic"] == {name: count for name, count in full["byTopic"].items() if name.startswith("orders")}
    assert stats["byTopic"]["orders"]["pub"] == 3
    assert stats["published"] == full["published"] > 3, "totals name nobody"
    text = (await node.get("/metrics", BOB)).body.decode()
    assert 'mainspring_events_published_total{topic="orders"} 3.0' in text
    [group] = (await node.get("/groups", BOB)).json["groups"]
    assert (group["topic"], group["group"]) == ("orders", "readers-of-orders")
    assert f'mainspring_group_lag_events{{group="readers-of-orders",topic="orders"}} {group["lag"]}.0' in text


async def test_who_may_only_publish_knows_the_name_and_no_numbers(node: Served) -> None:
    for path in NUMBERS:
        assert not names(await node.get(path, WRITER)), path
    shown = [each["topic"] for each in (await node.get("/topics", WRITER)).json["topics"]]
    assert shown == [SECRET, f"{SECRET}.DLQ"]
    assert [each["topic"] for each in (await node.get("/schemas", WRITER)).json["schemas"]] == [SECRET]
    [place] = (await node.get(f"/topics/{SECRET}/offsets", WRITER)).json["partitions"]
    assert (place["tail"], place["groups"]) == (3, {})
    for path in (f"/groups?topic={SECRET}", f"/groups/{SECRET}/readers-of-{SECRET}"):
        assert (await node.get(path, WRITER)).status == 403, path


@pytest.mark.parametrize("path", [*NUMBERS, *NAMES])
async def test_lists_hide_what_scopes_would_show(node: Served, path: str) -> None:
    lists = {"publishACL": ["root"], "subscribeACL": {"deny": ["reader"]}}
    assert (await node.post("/topics", {"topic": SECRET, **lists}, ROOT)).status == 200
    assert not names(await node.get(path, READER))
    assert names(await node.get(path, ROOT))


@pytest.mark.parametrize("waits", [False, True])
async def test_the_programs_checker_is_asked_too(waits: bool) -> None:
    def decide(topic: str, _action: str, who: Mapping[str, Any]) -> bool:
        return topic != SECRET or who["agent"] == "root"

    async def decide_later(topic: str, action: str, who: Mapping[str, Any]) -> bool:
        await asyncio.sleep(0)
        return decide(topic, action, who)

    async with served(App("shop", checker=decide_later if waits else decide), tokens=TOKENS) as node:
        await fill(node, ROOT)
        for path in (*NUMBERS, *NAMES):
            assert not names(await node.get(path, READER)), path
            assert names(await node.get(path, ROOT)), path


async def test_a_topic_that_is_not_there_looks_like_one_that_is_hidden(node: Served) -> None:
    for topic in (SECRET, "nothing"):
        for path in (f"/topics/{topic}", f"/groups/{topic}/g", f"/groups/{topic}/g/leases", f"/topics/{topic}/offsets"):
            assert (await node.get(path, BOB)).status == 403, path
