"""Topics, groups and schedules under attack by tokens that have some right, but not this one.

What NATS users expect of permissions: a refused request changes nothing and tells nothing, also not whether what it
names is there; a right that is taken away ends what was begun with it. What Kafka users expect of groups: their names
have rights of their own, so a reader of a topic cannot take, move or delete the work of others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mainspring import App
from tests.support.access import Reply, Served, make_token, served

NONE, NONE_TOKEN = make_token("mallory", "publish:nowhere")
SUB, SUB_TOKEN = make_token("sub", "subscribe:orders.*")
BILLING, BILLING_TOKEN = make_token("billing", "subscribe:orders.*")
OPS, OPS_TOKEN = make_token("ops", "subscribe:orders.*", "group:billing")
PUB, PUB_TOKEN = make_token("pub", "publish:orders.**")
ROOT, ROOT_TOKEN = make_token("root", "admin")
TOKENS = tuple(each.line() for each in (NONE_TOKEN, SUB_TOKEN, BILLING_TOKEN, OPS_TOKEN, PUB_TOKEN, ROOT_TOKEN))
SCHEDULE = {"name": "often", "topic": "orders.often", "payload": 1, "every": 100}


@pytest.fixture
async def node() -> AsyncIterator[Served]:
    async with served(tokens=TOKENS) as running:
        await running.post("/topics/orders.paid/events", {"payload": 1}, PUB)
        await running.post("/topics/payroll/events", {"payload": 1}, ROOT)
        yield running


async def innocent(node: Served) -> None:
    answer = await node.post("/topics/orders.innocent/events", {"payload": 1}, PUB)
    assert answer.status == 201, answer


async def until(condition: Any) -> None:
    for _ in range(1_500):
        if await condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("what must come did not come")


# --- refused requests leave nothing behind


async def test_refused_subscriptions_use_up_no_topics(node: Served) -> None:
    topics = len(node.node.bus.topics.all())
    async with node.socket(NONE) as socket:
        for number in range(2_000):
            frame = {"type": "SUBSCRIBE", "topic": f"invented.{number}", "group": "g"}
            await socket.socket.send_json(frame)
        for _ in range(2_000):
            assert (await socket.next())["code"] == "forbidden"
        for kind in ("PUBLISH", "SCHEDULE"):
            more = {"name": "s", "every": 1000} if kind == "SCHEDULE" else {}
            assert (await socket.ask({"type": kind, "topic": "invented", "payload": 1, **more}))["code"] == "forbidden"
    schedule = {"name": "s", "topic": "invented.s", "payload": 1, "every": 1000}
    assert (await node.post("/schedules", schedule, PUB)).status == 403
    assert len(node.node.bus.topics.all()) == topics
    await innocent(node)


async def test_requests_refused_for_another_reason_use_up_no_topics_either(node: Served) -> None:
    topics = len(node.node.bus.topics.all())
    for number in range(20):
        body = {"payload": 1, "expect": 5, "delay_ms": 10}
        assert (await node.post(f"/topics/orders.{number}/events", body, PUB)).status == 400
    assert (await node.post("/schedules", {**SCHEDULE, "topic": "orders.bad", "every": None}, PUB)).status == 400
    assert len(node.node.bus.topics.all()) == topics
    await innocent(node)


@pytest.mark.parametrize(
    ("path", "token"),
    [
        ("/topics/payroll/events", NONE),
        ("/topics", PUB),
        ("/schemas/orders.paid", PUB),
        ("/schemas/payroll/check", NONE),
        ("/dlq/payroll/redrive", NONE),
        ("/groups/payroll/g/seek", NONE),
        ("/schedules", SUB),
    ],
)
async def test_rights_are_asked_before_the_body_is_read(node: Served, path: str, token: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await node.request("POST", path, token, data=b"this is no JSON", headers=headers)
    assert (answer.status, answer.json["code"]) == (403, "forbidden")
    await innocent(node)


# --- what one may not see


def told(answer: Reply) -> tuple[int, str]:
    return answer.status, answer.json["code"]


@pytest.mark.parametrize(
    "path",
    [
        "/topics/{}",
        "/topics/{}/events",
        "/topics/{}/events/0/1",
        "/topics/{}/stream",
        "/topics/{}/offsets",
        "/groups/{}/g",
        "/groups/{}/g/leases",
        "/groups/{}/g/members",
        "/groups?topic={}",
        "/schemas/{}",
        "/schemas/{}/1",
        "/dlq/{}",
        "/dlq/{}/1",
    ],
)
async def test_whether_a_topic_is_there_is_not_told(node: Served, path: str) -> None:
    answers = [await node.get(path.format(topic), SUB) for topic in ("payroll", "no-such-topic")]
    assert [told(answer) for answer in answers] == [(403, "forbidden")] * 2
    assert answers[0].body.replace(b"payroll", b"X") == answers[1].body.replace(b"no-such-topic", b"X")


async def test_whether_a_schedule_is_there_is_not_told(node: Served) -> None:
    assert (await node.post("/schedules", {**SCHEDULE, "topic": "payroll", "every": 60_000}, ROOT)).status == 201
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")):
        answers = [await node.request(method, f"/schedules/{name}{path}", PUB) for name in ("often", "never")]
        assert [told(answer) for answer in answers] == [(403, "forbidden")] * 2
        assert b"payroll" not in answers[0].body
        assert answers[0].body.replace(b"often", b"X") == answers[1].body.replace(b"never", b"X")
    async with node.socket(PUB) as socket:
        for name in ("often", "never"):
            assert (await socket.ask({"type": "UNSCHEDULE", "name": name}))["code"] == "forbidden"
    assert (await node.get("/schedules/never", ROOT)).status == 404


# --- groups


async def test_a_group_of_somebody_else_is_neither_joined_nor_moved_nor_deleted(node: Served) -> None:
    group = "/groups/orders.paid/billing"
    seek = {"kind": "latest"}
    async with node.socket(BILLING) as socket:
        assert (await socket.subscribe("orders.paid", "billing"))["type"] == "OK"
        assert (await socket.next())["type"] == "MESSAGE"
        (seen,) = (await node.get(f"{group}/members", SUB)).json["members"]
        (known,) = (await node.get(f"{group}/members", ROOT)).json["members"]
        assert (seen["agent"], seen["address"]) == ("billing", ""), "where it is, only an admin is told"
        assert known == {**seen, "address": "127.0.0.1"}
        async with node.socket(SUB) as thief:
            assert (await thief.subscribe("orders.paid", "billing"))["code"] == "forbidden"
            assert (await thief.subscribe("orders.paid", "mine"))["type"] == "OK", "a group of its own needs no scope"
        assert (await node.post(f"{group}/seek", seek, SUB)).status == 403
    assert (await node.request("DELETE", group, SUB)).status == 403
    async with node.socket(OPS) as socket:
        assert (await socket.subscribe("orders.paid", "billing"))["type"] == "OK", "the scope group:billing allows it"
    assert (await node.post(f"{group}/seek", seek, BILLING)).status == 200, "it is its own"
    assert (await node.post(f"{group}/seek", seek, OPS)).status == 200
    await until(lambda: is_gone(node, group, BILLING))
    async with node.socket(SUB) as socket:
        assert (await socket.subscribe("orders.paid", "billing"))["type"] == "OK", "deleted, it is nobody's"


async def is_gone(node: Served, group: str, token: str) -> bool:
    """Delete it, once the node has noticed that its members left."""
    return (await node.request("DELETE", group, token)).status == 204


async def test_the_work_of_the_program_is_not_taken_from_it(tmp_path: Path) -> None:
    app = App("shop")
    got: list[Any] = []

    @app.consumer("orders.paid", group="billing")
    async def bill(event: Any) -> None:
        got.append(event.payload)

    async with served(app, tokens=TOKENS) as node:
        async with node.socket(SUB) as socket:
            assert (await socket.subscribe("orders.paid", "billing"))["code"] == "forbidden"
        assert (await node.post("/groups/orders.paid/billing/seek", {"kind": "latest"}, SUB)).status == 403
        await node.post("/topics/orders.paid/events", {"payload": 7}, PUB)

        async def came() -> bool:
            return got == [7]

        await until(came)


async def test_whose_a_group_is_outlives_the_node(tmp_path: Path) -> None:
    for visit in (1, 2):
        async with served(tokens=TOKENS, engine="sqlite", data=str(tmp_path)) as node:
            async with node.socket(BILLING) as socket:
                assert (await socket.subscribe("orders.paid", "billing"))["type"] == "OK", visit
            async with node.socket(SUB) as socket:
                assert (await socket.subscribe("orders.paid", "billing"))["code"] == "forbidden", visit


async def test_a_list_of_the_topic_gives_a_group_to_those_it_names(node: Served) -> None:
    lists = {"topic": "orders.paid", "groupACL": {"billing": ["billing", "sub"]}}
    assert (await node.post("/topics", lists, ROOT)).status == 200
    async with node.socket(BILLING) as socket, node.socket(SUB) as other, node.socket(OPS) as third:
        assert (await socket.subscribe("orders.paid", "billing"))["type"] == "OK"
        assert (await other.subscribe("orders.paid", "billing"))["type"] == "OK"
        assert (await third.subscribe("orders.paid", "billing"))["code"] == "forbidden"


# --- rights that are taken away


async def test_a_list_that_changes_ends_streams_and_subscriptions(node: Served) -> None:
    async with node.socket(SUB) as socket:
        assert (await socket.subscribe("orders.paid"))["type"] == "OK"
        assert (await socket.next())["type"] == "MESSAGE"
        stream = await open_stream(node, "orders.paid", SUB)
        other = await open_stream(node, "orders.paid", BILLING)
        lists = {"topic": "orders.paid", "subscribeACL": {"deny": ["sub"]}}
        assert (await node.post("/topics", lists, ROOT)).status == 200
        assert (await socket.next())["code"] == "forbidden"
        await ends(stream)
        await node.post("/topics/orders.paid/events", {"payload": "still for billing"}, ROOT)
        async with asyncio.timeout(30):
            while b"still for billing" not in await other.content.readany():
                pass
        other.close()


async def open_stream(node: Served, topic: str, token: str) -> aiohttp.ClientResponse:
    headers = {"Authorization": f"Bearer {token}"}
    answer = await node.session.get(f"{node.url}/topics/{topic}/stream", headers=headers)
    assert answer.status == 200
    await answer.content.readany()
    return answer


async def ends(stream: aiohttp.ClientResponse) -> None:
    async with asyncio.timeout(30):
        try:
            while await stream.content.readany():
                pass
        except aiohttp.ClientError:
            return


async def count(node: Served, topic: str = "orders.often") -> int:
    answer = await node.get(f"/topics/{topic}/offsets", ROOT)
    return sum(each["tail"] for each in answer.json["partitions"]) if answer.status == 200 else 0


async def fires(node: Served) -> bool:
    return await count(node) > 2


async def is_paused(node: Served) -> bool:
    return bool((await node.get("/schedules/often", ROOT)).json.get("paused"))


async def test_a_schedule_of_a_denied_agent_pauses(node: Served) -> None:
    assert (await node.post("/schedules", SCHEDULE, PUB)).status == 201
    await until(lambda: fires(node))
    lists = {"topic": "orders.often", "publishACL": {"deny": ["pub"]}}
    assert (await node.post("/topics", lists, ROOT)).status == 200
    await until(lambda: is_paused(node))
    stored = await count(node)
    assert (await node.post("/schedules/often/resume", {}, PUB)).status == 403
    shown = (await node.get("/schedules/often", ROOT)).json
    assert shown["owner"] == "pub"
    assert shown["last"]["result"] == "skipped"
    assert await count(node) == stored
    assert (await node.post("/schedules/often/resume", {}, ROOT)).status == 200, "in the name of who resumes it"
    await until(lambda: fires_as(node, "root"))


async def fires_as(node: Served, agent: str) -> bool:
    headers = {"Accept": "application/x-ndjson"}
    lines = (await node.get("/topics/orders.often/events", ROOT, headers=headers)).body.splitlines()
    return bool(json.loads(lines[-1])["headers"]["agent_id"] == agent)


async def test_a_schedule_ends_with_the_token_of_its_owner_also_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("\n".join(TOKENS))
    settings = {"tokens_file": str(file), "engine": "sqlite", "data": str(tmp_path / "data")}
    async with served(**settings) as node:
        assert (await node.post("/schedules", SCHEDULE, PUB)).status == 201
        await until(lambda: fires(node))
        file.write_text("\n".join(line for line in TOKENS if not line.startswith("pub ")))
        await until(lambda: is_paused(node))
        stored = await count(node)
    async with served(**settings) as node:
        assert await is_paused(node)
        assert await count(node) == stored
        assert (await node.post("/topics/orders.x/events", {"payload": 1}, PUB)).status == 401
        await node.post("/topics/orders.x/events", {"payload": 1}, ROOT)
