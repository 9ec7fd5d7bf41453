"""The verbs of a client against a real node in another process."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict

import msgspec
import pytest

from mainspring.client import (
    AlreadySubscribed,
    BadArgument,
    BadPayload,
    Client,
    EventTooLarge,
    New,
    NodeRefused,
    NotEncodable,
    TimedOut,
    connect,
)
from mainspring.errors import Fail
from tests.support.client_node import Node, eventually


@dataclass
class Order:
    sku: int
    note: str = ""


class Line(TypedDict):
    sku: int


class Part(msgspec.Struct):
    sku: int


@pytest.fixture
async def bus(node: Node) -> Client:
    async with connect(node.url) as client:
        yield client


async def test_publish_gives_the_offset_and_the_event_arrives_as_it_was_sent(bus: Client, name: str) -> None:
    place = await bus.publish(name, {"sku": 1}, key="c-17", headers={"ct": "json"})
    assert place == 1
    assert (place.topic, place.partition, place.offset) == (name, 0, 1)
    async for event in bus.subscribe(name, group="g"):
        assert (event.payload, event.key, dict(event.headers)) == ({"sku": 1}, "c-17", {"ct": "json"})
        assert (event.id, event.offset, event.attempt, event.topic, event.group) == (place.id, 1, 1, name, "g")
        assert await event.ack()
        break


async def test_ids_are_uuids_of_version_7(bus: Client, name: str) -> None:
    place = await bus.publish(name, None)
    assert place.id[14] == "7"


async def test_events_published_at_once_keep_their_order(bus: Client, name: str) -> None:
    places = await asyncio.gather(*(bus.publish(name, n) for n in range(500)))
    assert [int(place) for place in places] == list(range(1, 501))
    assert [event.payload async for event in bus.replay(name)] == list(range(500))


async def test_the_same_id_is_stored_once(bus: Client, name: str) -> None:
    first = await bus.publish(name, "a", id="order-1")
    again = await bus.publish(name, "a", id="order-1")
    assert (first, again) == (1, 1)
    assert await bus.publish(name, "b") == 2


async def test_an_expectation_that_does_not_hold_is_refused(bus: Client, name: str) -> None:
    assert await bus.publish(name, 1, expect=0) == 1
    with pytest.raises(NodeRefused) as refused:
        await bus.publish(name, 2, expect=0)
    assert refused.value.code == "bad_offset"
    assert await bus.publish(name, 2, expect=1) == 2


async def test_a_delayed_event_comes_later_and_has_no_offset_yet(bus: Client, name: str) -> None:
    async with bus.subscribe(name, group="g") as events:
        assert await bus.publish(name, "late", delay=0.3) == 0
        await bus.publish(name, "soon")
        assert [(await events.get(60)).payload for _ in range(2)] == ["soon", "late"]


async def test_many_events_are_published_with_progress(bus: Client, name: str) -> None:
    seen: list[tuple[int, int | None]] = []
    payloads = [New(n, key=str(n % 3)) for n in range(5_000)]
    assert await bus.publish_many(name, payloads, progress=lambda done, of: seen.append((done, of))) == 5_000
    assert seen[-1] == (5_000, 5_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    stored = [event async for event in bus.replay(name)]
    assert [event.payload for event in stored] == list(range(5_000))
    assert len({event.id for event in stored}) == 5_000


async def test_a_stream_of_events_is_published_as_it_comes(bus: Client, name: str) -> None:
    async def numbers():
        for n in range(10):
            await asyncio.sleep(0)
            yield n

    assert await bus.publish_many(name, numbers()) == 10


async def test_one_bad_event_of_many_ends_publishing_and_names_the_reason(bus: Client, name: str) -> None:
    with pytest.raises(NotEncodable):
        await bus.publish_many(name, [1, object(), 3])


@pytest.mark.parametrize("payload", [object(), {"a": "\ud83d"}, {1, 2, object()}], ids=["object", "half", "set"])
async def test_what_json_cannot_say_is_refused_before_it_is_sent(bus: Client, name: str, payload: object) -> None:
    with pytest.raises(NotEncodable):
        await bus.publish(name, payload)


async def test_keys_and_headers_must_be_text(bus: Client, name: str) -> None:
    with pytest.raises(BadArgument, match="key"):
        await bus.publish(name, 1, key=7)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="headers"):
        await bus.publish(name, 1, headers={"a": 1})  # type: ignore[dict-item]


async def test_an_event_over_the_clients_limit_is_refused_here(bus: Client, name: str) -> None:
    with pytest.raises(EventTooLarge):
        await bus.publish(name, "x" * (1 << 20))


async def test_an_event_over_the_nodes_limit_fails_alone(node: Node, name: str) -> None:
    async with connect(node.url, max_event_bytes=4 << 20) as bus:
        large = asyncio.create_task(bus.publish(name, "x" * (2 << 20)))
        small = asyncio.create_task(bus.publish(name, "y"))
        with pytest.raises(NodeRefused) as refused:
            await large
        assert refused.value.code == "too_large"
        assert await small == 1


async def test_a_name_the_node_does_not_take_is_refused(bus: Client) -> None:
    with pytest.raises(NodeRefused) as refused:
        await bus.publish("no spaces", 1)
    assert refused.value.code == "bad_frame"


async def test_a_refused_subscription_raises_where_it_is_iterated(bus: Client) -> None:
    with pytest.raises(NodeRefused):
        async for _ in bus.subscribe("no spaces", group="g"):
            pass
    with pytest.raises(NodeRefused) as refused:
        async with bus.subscribe("t", group="no spaces"):
            pass
    assert refused.value.code == "bad_frame"


async def test_a_forbidden_topic_is_forbidden_for_both(node: Node, name: str) -> None:
    async with connect(node.url) as boss:
        await boss.put_topic(name, publishACL=["alice"], subscribeACL=["alice"])
    async with connect(f"{node.url}/?agent_id=bob") as bob:
        with pytest.raises(NodeRefused) as refused:
            await bob.publish(name, 1)
        assert refused.value.code == "forbidden"
        with pytest.raises(NodeRefused):
            await anext(bob.subscribe(name, group="g"))
    async with connect(f"{node.url}/?agent_id=alice") as alice:
        assert await alice.publish(name, 1) == 1


async def test_a_refused_event_comes_again_after_its_delay_with_its_attempt(bus: Client, name: str) -> None:
    await bus.publish(name, "x")
    async with bus.subscribe(name, group="g") as events:
        first = await events.get(60)
        started = time.monotonic()
        await first.nack(delay=0.3, reason="not yet")
        second = await events.get(60)
        assert time.monotonic() - started >= 0.29
        assert (second.id, second.attempt) == (first.id, 2)
        assert await second.ack()
        assert not await second.ack()


async def test_an_extended_lease_keeps_the_event(bus: Client, name: str) -> None:
    await bus.put_topic(name, ackTimeoutMs=2_000)
    await bus.publish(name, "x")
    async with bus.subscribe(name, group="g") as events:
        event = await events.get(60)
        await event.extend(60)
        with pytest.raises(TimedOut):
            await events.get(3)
        await event.ack()


@pytest.mark.parametrize(("kind", "expected"), [(Order, Order(3)), (Line, {"sku": 3}), (Part, Part(3))])
async def test_payloads_are_decoded_into_a_type(bus: Client, name: str, kind: type, expected: object) -> None:
    await bus.publish(name, expected if kind is not Line else {"sku": 3})
    async with bus.subscribe(name, group="g", type=kind) as events:
        event = await events.get(60)
        assert event.payload == expected
        assert json.loads(event.raw_payload)["sku"] == 3


async def test_a_payload_that_does_not_fit_says_where(bus: Client, name: str) -> None:
    await bus.publish(name, {"sku": "seven"})
    async with bus.subscribe(name, group="g", type=Order) as events:
        event = await events.get(60)
        with pytest.raises(BadPayload, match=r"\$\.sku"):
            _ = event.payload


async def test_the_start_of_a_new_group(bus: Client, name: str) -> None:
    for n in range(1, 4):
        await bus.publish(name, n)
    await asyncio.sleep(0.05)
    between = datetime.now(UTC)
    await asyncio.sleep(0.05)
    await bus.publish(name, 4)

    async def first(group: str, start: object) -> int:
        async with bus.subscribe(name, group=group, from_=start) as events:
            return (await events.get(60)).payload

    assert await first("a", None) == 1
    assert await first("b", "beginning") == 1
    assert await first("c", 3) == 3
    assert await first("d", between) == 4
    assert await first("e", timedelta(hours=1)) == 1
    async with bus.subscribe(name, group="f", from_="latest") as events:
        await bus.publish(name, 5)
        assert (await events.get(60)).payload == 5


@pytest.mark.parametrize("start", ["tomorrow", -1, True, 1.5, datetime(2024, 1, 1)])  # noqa: DTZ001
async def test_a_start_that_means_nothing_is_refused(bus: Client, name: str, start: object) -> None:
    with pytest.raises(BadArgument):
        bus.subscribe(name, group="g", from_=start)  # type: ignore[arg-type]


async def test_a_group_can_be_moved_while_it_is_consumed(bus: Client, name: str) -> None:
    for n in range(1, 6):
        await bus.publish(name, n)
    async with bus.subscribe(name, group="g", max_inflight=2) as events:
        for n in range(1, 6):
            event = await events.get(60)
            assert event.payload == n
            await event.ack()
        await events.seek("beginning")
        old = await events.get(60)
        assert old.payload == 1
        await events.seek(4)
        assert not await old.ack()
        assert (await events.get(60)).payload == 4
        await events.seek("latest")
        await bus.publish(name, 6)
        assert (await events.get(60)).payload == 6


async def test_two_subscriptions_of_one_client_are_told_apart(bus: Client, name: str) -> None:
    async with bus.subscribe(name, group="a") as a, bus.subscribe(name, group="b") as b:
        with pytest.raises(AlreadySubscribed):
            bus.subscribe(name, group="a")
        await bus.publish(name, "x")
        assert (await a.get(60)).group == "a"
        assert (await b.get(60)).group == "b"


async def test_leaving_the_loop_gives_back_what_was_not_acknowledged(bus: Client, node: Node, name: str) -> None:
    for n in range(3):
        await bus.publish(name, n)
    async for event in bus.subscribe(name, group="g"):
        await event.ack()
        break
    async with connect(node.url) as other, other.subscribe(name, group="g") as events:
        assert [(await events.get(60)).payload for _ in range(2)] == [1, 2]


async def test_acknowledging_up_to_an_event_settles_those_before(bus: Client, name: str) -> None:
    for n in range(10):
        await bus.publish(name, n)
    async with bus.subscribe(name, group="g", ack="upto") as events:
        found = [await events.get(60) for _ in range(10)]
        await found[6].ack()

        async def three_are_left() -> bool:
            return await bus.lag(name, "g") == 3

        await eventually(three_are_left)


async def test_filters_and_windows_are_the_nodes(bus: Client, name: str) -> None:
    for n in range(6):
        await bus.publish(name, n, key="a" if n % 2 else "b")
    async with bus.subscribe(name, group="g", key="a", max_inflight=1) as events:
        event = await events.get(60)
        assert event.payload == 1
        with pytest.raises(TimedOut):
            await events.get(0.2)
        await event.ack()
        assert (await events.get(60)).payload == 3


async def test_replay_reads_between_two_moments_without_a_group(bus: Client, name: str) -> None:
    await bus.publish(name, {"sku": 1})
    await asyncio.sleep(0.05)
    middle = datetime.now(UTC)
    await asyncio.sleep(0.05)
    await bus.publish(name, {"sku": 2})
    assert [event.payload.sku async for event in bus.replay(name, since=middle, type=Order)] == [2]
    assert [event.payload.sku async for event in bus.replay(name, until=middle, type=Order)] == [1]
    assert [event.offset async for event in bus.replay(name)] == [1, 2]


async def test_following_a_topic_sees_what_comes(bus: Client, name: str) -> None:
    await bus.publish(name, 1)
    seen = []

    async def follow() -> None:
        async for event in bus.follow(name, since="beginning"):
            seen.append(event.payload)
            if len(seen) == 2:
                return

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.1)
    await bus.publish(name, 2)
    await asyncio.wait_for(following, 60)
    assert seen == [1, 2]


async def test_dead_letters_are_looked_at_sent_back_and_dropped(bus: Client, name: str) -> None:
    await bus.put_topic(name, maxAttempts=1)
    for n in range(4):
        await bus.publish(name, n, key=f"k-{n}")
    async with bus.subscribe(name, group="mailer") as events:
        for _ in range(4):
            await (await events.get(60)).nack(reason="no address")

        async def dead() -> bool:
            return len([letter async for letter in bus.dead_letters(name)]) == 4

        await eventually(dead)
        (letter,) = [letter async for letter in bus.dead_letters(name, key="k-2", reason="address")]
        assert (letter.group, letter.attempts, letter.payload, letter.original_offset) == ("mailer", 1, 2, 3)
        assert await bus.redrive(name, offsets=[letter.offset]) == 1
        again = await events.get(60)
        assert (again.id, again.attempt, again.headers["x-redriven"]) == (letter.original_id, 1, f"{name}.DLQ/0/3")
        assert await again.ack()
    assert await bus.redrive(name, to_all=True, before=timedelta(0), limit=1) == 1
    assert await bus.drop_dead_letters(name, group="mailer", limit=1) == 1
    with pytest.raises(NodeRefused, match="which dead letters"):
        await bus.drop_dead_letters(name)
    assert await bus.drop_dead_letters(name, all=True) == 1
    assert [letter async for letter in bus.dead_letters(name)] == []


async def test_schedules_publish_by_themselves_until_they_are_removed(bus: Client, name: str) -> None:
    async with bus.subscribe(name, group="g") as events:
        assert await bus.schedule(f"{name}/tick", name, {"tick": 1}, every=0.1) > 0
        assert (await events.get(60)).payload == {"tick": 1}
        await bus.pause_schedule(f"{name}/tick")
        (known,) = [each for each in await bus.schedules() if each["name"] == f"{name}/tick"]
        assert known["paused"]
        assert await bus.run_schedule(f"{name}/tick") > 0
        assert await bus.resume_schedule(f"{name}/tick") > 0
        await bus.unschedule(f"{name}/tick")
        with pytest.raises(NodeRefused) as refused:
            await bus.unschedule(f"{name}/tick")
        assert refused.value.code == "unknown_schedule"


async def test_a_number_that_is_no_number_becomes_null_as_json_has_none(bus: Client, name: str) -> None:
    await bus.publish(name, {"x": math.nan})
    assert [event.payload async for event in bus.replay(name)] == [{"x": None}]


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:7070", "ws://", "", "ws://a:99999", "ws://a:b", "ws://[::1", "ws://a:0"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadArgument):
        connect(url)


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS_URL", "http://10.0.0.1:1234")
    assert connect().url == "ws://10.0.0.1:1234"
    monkeypatch.delenv("BUS_URL")
    assert connect().url == "ws://127.0.0.1:7070"


class Stored(msgspec.Struct):
    value: int


async def test_commands_and_queries_are_answered_by_the_program(bus: Client, name: str) -> None:
    await bus.command("Memory.Set", {"key": f"/{name}", "value": 7})
    assert (await bus.query("Memory.Get", {"key": f"/{name}"}))["value"] == 7
    assert await bus.query("Memory.Get", {"key": f"/{name}"}, reply=Stored) == Stored(7)


async def test_a_message_nobody_serves_is_refused_with_its_code(bus: Client) -> None:
    with pytest.raises(Fail) as refused:
        await bus.command("Nobody.Serves", timeout=60)
    assert (refused.value.code, refused.value.type) == (404, "Sys.RoutingError")
