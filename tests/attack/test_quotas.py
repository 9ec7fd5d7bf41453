"""One caller cannot use up what others need: a quota is answered with 429 or `rate_limited`, and a time to wait.

A user of NATS accounts or of a cloud API expects this: counted by who one is, told when to come back, others served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from mainspring.client import connect
from tests.support.access import Served, make_token, served
from tests.support.client_node import eventually

WORKER, WORKER_TOKEN = make_token("worker", "publish:**", "subscribe:**")
OTHER, OTHER_TOKEN = make_token("other", "publish:**", "subscribe:**")
ADMIN, ADMIN_TOKEN = make_token("root", "admin")
TOKENS = tuple(token.line() for token in (WORKER_TOKEN, OTHER_TOKEN, ADMIN_TOKEN))


@asynccontextmanager
async def node(**settings: Any) -> AsyncIterator[Served]:
    async with served(tokens=TOKENS, **settings) as here:
        yield here


def is_refusal(answer: dict[str, Any]) -> bool:
    if answer.get("code") != "rate_limited":
        return False
    assert answer["retry_after_ms"] > 0
    return True


async def test_one_token_does_not_hold_all_connections() -> None:
    async with node(max_connections=10) as here, AsyncExitStack() as held:
        refused: list[tuple[int, int]] = []
        for _ in range(10):
            try:
                await held.enter_async_context(here.socket(WORKER))
            except aiohttp.WSServerHandshakeError as error:
                refused.append((error.status, int((error.headers or {})["Retry-After"])))
        assert refused == [(429, 1)] * 5
        for token in (OTHER, ADMIN):
            async with here.socket(token) as socket:
                assert (await socket.publish("t"))["type"] == "PUBLISHED"
    async with node(quota_connections=1) as here:
        for _ in range(3):  # given back when it ends
            async with here.socket(WORKER) as socket:
                assert (await socket.publish("t"))["type"] == "PUBLISHED"

            async def left() -> bool:
                return here.node.bus.stats().connections == 0

            await eventually(left)


async def test_subscriptions_and_groups_of_all_connections_together() -> None:
    async with (
        node(quota_subscriptions=3, quota_groups=4) as here,
        here.socket(WORKER) as one,
        here.socket(WORKER) as two,
    ):
        for number in range(3):
            assert (await (one, two)[number % 2].subscribe("t", f"g{number}"))["type"] == "OK"
        assert is_refusal(await two.subscribe("t", "more"))
        assert (await one.subscribe("t", "g0"))["type"] == "OK"  # the same one again
        async with here.socket(OTHER) as other:
            assert (await other.subscribe("t", "theirs"))["type"] == "OK"
        for number in range(2):
            await two.ask({"type": "UNSUBSCRIBE", "topic": "t", "group": "g1"})
            answer = await two.subscribe("t", "g1" if number else "fourth")
            assert answer["type"] == "OK" or is_refusal(answer)
        assert is_refusal(await one.ask({"type": "SUBSCRIBE", "topic": "t", "group": "fifth"}))


async def test_groups_of_a_topic_with_many_partitions_have_a_bound() -> None:
    async with node(max_positions=200) as here, here.socket(ADMIN) as socket:
        await here.post("/topics", {"topic": "wide", "partitions": 64}, ADMIN)
        told = [(await socket.subscribe("wide", f"g{number}")).get("code") for number in range(5)]
        assert told == [None, None, None, "limit_reached", "limit_reached"]


async def test_one_token_leaves_room_for_the_groups_of_others() -> None:
    async with node(max_positions=300) as here, here.socket(WORKER) as socket, here.socket(OTHER) as other:
        for topic in ("wide", "wider"):
            await here.post("/topics", {"topic": topic, "partitions": 64}, ADMIN)
        for number in range(20):
            topic = ("wide", "wider")[number % 2]
            answer = await socket.subscribe(topic, f"g{number}")
            assert answer["type"] == "OK" if number < 2 else is_refusal(answer)
        assert "raise max_positions" in answer["message"]
        for number in range(2):
            assert (await other.subscribe("wide", f"o{number}"))["type"] == "OK"
        await socket.ask({"type": "UNSUBSCRIBE", "topic": "wide", "group": "g0"})

        async def deleted() -> bool:
            return (await here.request("DELETE", "/groups/wide/g0", WORKER)).status == 204

        await eventually(deleted)
        assert (await socket.subscribe("wider", "again"))["type"] == "OK", "given back when it is deleted"


async def test_topics_made_by_one_token() -> None:
    async with node(quota_topics=3) as here, here.socket(WORKER) as socket:
        for number in range(3):
            assert (await socket.publish(f"t{number}"))["type"] == "PUBLISHED"
        assert is_refusal(await socket.publish("t3"))
        assert is_refusal(await socket.subscribe("t4"))
        over_http = await here.post("/topics/t5/events", {"payload": 1}, WORKER)
        assert (over_http.status, over_http.json["code"]) == (429, "rate_limited")
        assert int(over_http.headers["Retry-After"]) >= 1
        assert (await socket.publish("t0"))["type"] == "PUBLISHED"
        assert (await here.post("/topics/t5/events", {"payload": 1}, OTHER)).status == 201


async def test_one_token_leaves_room_for_the_topics_of_others() -> None:
    async with node(max_topics=40) as here, here.socket(WORKER) as socket:
        told = [await socket.publish(f"t{number}") for number in range(30)]
        assert [answer["type"] for answer in told[:20]] == ["PUBLISHED"] * 20
        assert all(is_refusal(answer) for answer in told[20:])
        assert "raise max_topics" in told[-1]["message"]
        assert (await here.post("/topics/other/events", {"payload": 1}, OTHER)).status == 201


async def test_schedules_count_by_number_and_size() -> None:
    async with node(quota_schedules=10) as here:
        body = {"name": "s", "topic": "t", "payload": 1, "every": 60_000}
        for _ in range(20):  # the same name is one schedule
            assert (await here.post("/schedules", body, WORKER)).status == 201
        large = {**body, "name": "large", "payload": "x" * 600_000}
        assert (await here.post("/schedules", large, WORKER)).status == 429
        assert (await here.post("/schedules", large, OTHER)).status == 201
        for number in range(9):
            assert (await here.post("/schedules", {**body, "name": f"s{number}"}, WORKER)).status == 201
        assert (await here.post("/schedules", {**body, "name": "last"}, WORKER)).status == 429
        assert (await here.request("DELETE", "/schedules/s0", WORKER)).status == 204
        assert (await here.post("/schedules", {**body, "name": "last"}, WORKER)).status == 201


async def test_streams_and_open_requests() -> None:
    async with node(quota_streams=2) as here, AsyncExitStack() as held:
        await here.post("/topics/t/events", {"payload": 1}, WORKER)
        address, headers = f"{here.url}/topics/t/stream", {"Authorization": f"Bearer {WORKER}"}
        for _ in range(2):
            answer = await held.enter_async_context(here.session.get(address, headers=headers))
            assert answer.status == 200
        assert (await here.get("/topics/t/stream", WORKER)).status == 429
        assert (await here.get("/topics/t/events", WORKER)).status == 200


async def test_publishing_faster_than_the_quota_is_refused_and_the_client_waits() -> None:
    async with node(quota_events_per_second=1) as here, here.socket(WORKER) as socket:
        batch = {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1}] * 1_000}
        assert (await socket.ask(batch))["type"] == "PUBLISHED_BATCH"  # overdraws
        assert is_refusal(await socket.publish("t"))
        lines, headers = b'{"payload":1}\n' * 5, {"Content-Type": "application/x-ndjson"}
        refused = await here.request("POST", "/topics/t/events", WORKER, data=lines, headers=headers)
        assert refused.status == 429
        async with here.socket(OTHER) as other:
            assert (await other.publish("t"))["type"] == "PUBLISHED"
    async with (
        node(quota_events_per_second=50) as here,
        connect(here.url.replace("http", "ws"), token=WORKER) as bus,
    ):
        places = await asyncio.gather(*(bus.publish("mine", number) for number in range(120)))
        assert sorted(places) == list(range(1, 121))


async def test_bytes_count_too() -> None:
    async with node(quota_bytes_per_second=100) as here, here.socket(WORKER) as socket:
        assert (await socket.publish("t", "x" * 50_000))["type"] == "PUBLISHED"  # overdraws
        assert is_refusal(await socket.publish("t"))
        assert (await here.post("/topics/t/events", {"payload": 1}, WORKER)).status == 429
        assert (await here.post("/topics/t/events", {"payload": 1}, ADMIN)).status == 201


async def test_refusals_are_counted_and_the_log_says_once_who_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async with node(quota_topics=1) as here, here.socket(WORKER) as socket:
        for number in range(4):
            await socket.publish(f"t{number}")
        said = [each.getMessage() for each in caplog.records if each.name == "mainspring.bus.quotas"]
        told = "agent 'worker' has 1 topics made, and may have 1; use fewer, or raise quota_topics"
        assert said == [f"requests are refused: {told}"]
        assert (await here.get("/stats", ADMIN)).json["refused"] == {"topics": 3}
        metrics = (await here.get("/metrics", ADMIN)).body
        assert b'mainspring_quota_refusals_total{quota="topics"} 3.0' in metrics


async def test_without_tokens_everybody_at_an_address_is_one_caller() -> None:
    async with (
        served(quota_topics=2) as here,
        here.socket(query="?agent_id=a") as one,
        here.socket(query="?agent_id=b") as two,
    ):
        assert (await one.publish("t0"))["type"] == "PUBLISHED"
        assert (await two.publish("t1"))["type"] == "PUBLISHED"
        assert is_refusal(await one.publish("t2", headers={"agent_id": "c"}))


# -- refused requests leave nothing behind


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "SUBSCRIBE", "group": "g"},
        {"type": "PUBLISH", "payload": 1},
        {"type": "SCHEDULE", "name": "s", "payload": 1, "every": 60_000},
    ],
)
async def test_what_is_forbidden_makes_no_topic(frame: dict[str, Any]) -> None:
    nobody, token = make_token("nobody", "publish:nowhere")
    async with served(tokens=(token.line(), ADMIN_TOKEN.line()), max_topics=30) as here, here.socket(nobody) as socket:
        for number in range(200):
            assert (await socket.ask({**frame, "topic": f"t{number}"}))["code"] == "forbidden"
        assert (await here.post("/topics/new/events", {"payload": 1}, ADMIN)).status == 201
        assert (await here.post("/topics", {"topic": "other"}, ADMIN)).status == 201


async def test_what_does_not_fit_makes_no_topic_either() -> None:
    async with served(max_topics=30) as here, here.socket() as socket:
        for number in range(100):
            assert (await socket.publish(f"t{number}", 1, key="k" * 5_000))["code"] == "too_large"
            schedule = {"type": "SCHEDULE", "name": "s", "topic": f"s{number}", "payload": 1, "every": 10}
            assert (await socket.ask(schedule))["code"] == "bad_frame"
        assert (await socket.publish("new"))["type"] == "PUBLISHED"
