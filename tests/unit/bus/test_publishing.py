"""Publishing: batches, ids, expectations, delays, rates."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mainspring.bus import NewEvent, RateLimited, Unavailable
from tests.support.bus import BEGINNING, LATEST, FailingEngine, World, in_virtual_time, settle


@in_virtual_time
async def test_a_batch_is_stored_in_its_order_with_one_answer(world: World) -> None:
    await world.create("t", partitions=3)
    peer = world.connect()
    events = [{"payload": n, "key": f"k{n}", "headers": {"n": str(n)}} for n in range(10)]
    answer = await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": events, "corr": 1})
    assert answer["type"] == "PUBLISHED_BATCH"
    assert len(answer["offsets"]) == 10
    assert answer["corr"] == 1
    for n, (partition, offset) in enumerate(answer["offsets"]):
        (event,) = await world.log.read("t", partition, offset, 1)
        assert json.loads(event.payload) == n


@in_virtual_time
async def test_one_bad_event_refuses_the_whole_batch(world: World) -> None:
    peer = world.connect()
    events: list[dict[str, Any]] = [{"payload": 1}, {"payload": 2, "delay_ms": -1}]
    assert (await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": events}))["code"] == "bad_frame"
    assert await world.stored("t") == []


@in_virtual_time
async def test_keyless_events_are_spread_and_an_empty_key_is_a_key(world: World) -> None:
    await world.create("t", partitions=8)
    peer = world.connect()
    assert len({(await peer.publish("t"))["partition"] for _ in range(40)}) > 4
    assert {(await peer.publish("t", key=""))["partition"] for _ in range(10)} == {0}


@in_virtual_time
async def test_payload_bytes_are_delivered_as_they_came(world: World) -> None:
    peer = world.connect()
    raw: list[bytes] = []
    session = world.bus.open_session(None, raw.append)
    session.receive(b'{"type":"SUBSCRIBE","topic":"t","group":"g"}')
    payload = b'{"z" : 1.0,  "a":[1e300, 0.10, "\\u00e9", 12345678901234567890123]}'
    peer.send(b'{"type":"PUBLISH","topic":"t","payload":' + payload + b"}")
    await settle()
    assert raw[-1].endswith(b'"payload":' + payload + b"}}")


@in_virtual_time
async def test_the_same_id_gives_the_first_offset_also_after_a_crash(world: World) -> None:
    await world.create("t", partitions=4)
    peer = world.connect()
    first = await peer.publish("t", "x", id="order-17")
    again = await peer.publish("t", "x", id="order-17")
    place = (first["partition"], first["offset"])
    assert (again["partition"], again["offset"], again["duplicate"]) == (*place, True)
    assert (await peer.publish("u", "x", id="order-17")).get("duplicate") is None  # another topic
    await world.kill()
    later = await world.connect().publish("t", "x", id="order-17")
    assert (later["partition"], later["offset"]) == place
    assert sum([len(await world.stored("t", partition)) for partition in range(4)]) == 1


@in_virtual_time(dedupe_window_ms=5_000, retention_interval_ms=1_000)
async def test_an_id_is_forgotten_after_its_window(world: World) -> None:
    peer = world.connect()
    await peer.publish("t", 1, id="a")
    await settle(7)
    assert (await peer.publish("t", 1, id="a"))["offset"] == 2


@in_virtual_time
async def test_expect_lets_one_of_two_writers_through(world: World) -> None:
    one, two = world.connect(), world.connect()
    assert (await one.publish("t", 1, expect=0))["offset"] == 1
    refused = await two.ask({"type": "PUBLISH", "topic": "t", "payload": 1, "expect": 0})
    assert (refused["type"], refused["code"]) == ("ERROR", "bad_offset")
    assert (await two.publish("t", 2, expect=1))["offset"] == 2
    assert await world.stored("t") == [1, 2]


@in_virtual_time
async def test_a_refused_expectation_leaves_its_neighbours_alone(world: World) -> None:
    peer = world.connect()
    for n, expect in enumerate([None, 7, None, 2, None]):
        frame: dict[str, Any] = {"type": "PUBLISH", "topic": "t", "payload": n, "corr": n}
        peer.send(frame if expect is None else {**frame, "expect": expect})
    await settle()
    assert [(f["corr"], f.get("offset", f.get("code"))) for f in peer.got] == [
        (0, 1), (1, "bad_offset"), (2, 2), (3, 3), (4, 4)
    ]  # fmt: skip
    assert await world.stored("t") == [0, 2, 3, 4]


@in_virtual_time
async def test_a_delayed_event_comes_when_it_is_due_and_holds_up_nobody(world: World) -> None:
    peer, writer = world.connect(), world.connect()
    await peer.subscribe("t", "g", LATEST)
    due = world.clock.wall_ms() + 5_000
    answer = await writer.publish("t", "later", key="k", delay_ms=5_000)
    assert (answer["offset"], answer["not_before"]) == (0, due)
    await writer.publish("t", "now")
    assert (await peer.message())["envelope"]["payload"] == "now"
    await settle(4.9)
    assert await peer.messages() == []
    await settle(0.2)
    message = await peer.message()
    assert (message["offset"], message["envelope"]["payload"], message["envelope"]["key"]) == (2, "later", "k")
    assert message["envelope"]["id"] == answer["id"]
    assert message["envelope"]["ts"] >= due


@in_virtual_time
async def test_a_crash_neither_loses_nor_doubles_delayed_events(world: World) -> None:
    writer = world.connect()
    for n in range(20):
        await writer.publish("t", n, not_before=world.clock.wall_ms() + 1_000 + n)
    await world.kill()
    await settle(0.5)
    assert await world.stored("t") == []
    await settle(0.8)
    await world.kill()
    await settle(10)
    await world.kill()
    await settle(10)
    assert sorted(await world.stored("t")) == list(range(20))


@in_virtual_time
async def test_a_time_in_the_past_is_now(world: World) -> None:
    assert (await world.connect().publish("t", 1, not_before=5))["offset"] == 1


@in_virtual_time
async def test_a_batch_may_hold_delayed_events(world: World) -> None:
    peer = world.connect()
    events = [{"payload": "a"}, {"payload": "b", "delay_ms": 1_000}, {"payload": "c"}]
    answer = await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": events})
    assert answer["offsets"] == [[0, 1], [0, 0], [0, 2]]
    await settle(2)
    assert await world.stored("t") == ["a", "c", "b"]


@in_virtual_time(connection_rate=10, connection_burst=20)
async def test_a_connection_has_a_rate(world: World) -> None:
    peer, other = world.connect(), world.connect()
    publish = {"type": "PUBLISH", "topic": "t", "payload": 1}
    kinds = [(await peer.ask(publish))["type"] for _ in range(25)]
    assert kinds.count("PUBLISHED") == 20
    assert (await peer.ask(publish))["code"] == "rate_limited"
    assert (await other.publish("t", 1))["type"] == "PUBLISHED"
    await settle(1)
    assert (await peer.publish("t", 1))["type"] == "PUBLISHED"


@in_virtual_time
async def test_a_topic_has_a_rate_for_everybody(world: World) -> None:
    await world.create("t", ratePerSecond=5)
    for _ in range(5):
        await world.bus.publish("t", b"1")
    with pytest.raises(RateLimited) as refused:
        await world.bus.publish("t", b"1")
    assert "ms" in refused.value.remedy
    await settle(1)
    await world.bus.publish("t", b"1")
    assert await world.stored("t") == [1] * 6


@in_virtual_time
async def test_a_full_disk_is_an_answer_and_everything_goes_on_afterwards(world: World) -> None:
    engine = FailingEngine()
    full = World(world.clock, engine, max_attempts=1)
    await full.start()
    peer = full.connect()
    await peer.publish("t", 1)
    await peer.subscribe("t", "g", BEGINNING)
    await peer.message()
    engine.full = True
    error = await peer.ask({"type": "PUBLISH", "topic": "t", "payload": 2})
    assert (error["code"], "full" in error["message"]) == ("unavailable", True)
    assert "may or may not be stored" in error["message"]
    assert "with the same id" in error["message"]
    with pytest.raises(Unavailable):
        await full.bus.publish("t", b"3")
    assert (await peer.ask({"type": "SUBSCRIBE", "topic": "t", "group": "new"}))["code"] == "unavailable"
    peer.nack("t", "g", 1)  # its dead letter cannot be written now
    await settle(3)
    assert len(await full.bus.read("t", 0, 1, 10)) == 1
    engine.full = False
    assert (await peer.publish("t", 4))["offset"] == 2
    await settle(5)
    assert await full.stored("t.DLQ") == [1]
    peer.got.clear()
    assert await full.committed("t", "g") == 1
    await full.stop()


@in_virtual_time
async def test_a_subscription_goes_on_when_its_change_could_not_be_stored(world: World) -> None:
    engine = FailingEngine()
    full = World(world.clock, engine)
    await full.start()
    peer = full.connect()
    await peer.publish("t", 1)
    await peer.subscribe("t", "g", BEGINNING)
    assert await peer.offsets() == [1]
    engine.full = True
    again = {"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": {"kind": "offset", "value": 2}}
    assert (await peer.ask(again))["code"] == "unavailable"
    engine.full = False
    await peer.publish("t", 2)
    assert await peer.offsets() == [2]
    await full.stop()


@in_virtual_time
async def test_python_callers_publish_and_read_too(world: World) -> None:
    placed = await world.bus.publish_batch("t", [NewEvent(b'"a"', key="k"), NewEvent(b'"b"', headers={"h": "v"})])
    assert [(p.partition, p.offset) for p in placed] == [(0, 1), (0, 2)]
    assert [e.offset for e in await world.bus.read("t", 0, 0, 10)] == [1, 2]
    assert await world.bus.offset_at("t", 0, world.clock.wall_ms() + 1) == 3
    seen: list[int] = []

    async def watch() -> None:
        async for events in world.bus.follow("t", after={0: 1}):
            seen.extend(event.offset for event in events)

    task = asyncio.create_task(watch())
    await settle()
    await world.bus.publish("t", b"3")
    await settle()
    assert seen == [2, 3]
    task.cancel()


@in_virtual_time
async def test_many_publishers_in_one_slice_share_a_commit(world: World) -> None:
    peers = [world.connect() for _ in range(50)]
    before = world.log.commits
    for peer in peers:
        peer.send({"type": "PUBLISH", "topic": "t", "payload": 1})
    await settle()
    assert all(peer.got[0]["type"] == "PUBLISHED" for peer in peers)
    assert world.log.commits - before <= 2


@in_virtual_time
async def test_an_event_expires_for_groups_and_stays_for_readers(world: World) -> None:
    peer = world.connect()
    await peer.publish("t", 1, ttl_ms=1_000)
    await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 2, "ttl_ms": 5_000}, {"payload": 3}]})
    await settle(2)
    await peer.subscribe("t", "g", {"kind": "offset", "value": 0}, max_inflight=1)
    message = await peer.message()
    assert message["envelope"]["payload"] == 2
    peer.nack("t", "g", 2, delay_ms=10_000)
    await settle(20)
    assert [m["envelope"]["payload"] for m in await peer.messages()] == [3]
    peer.ack("t", "g", 3)
    assert await world.committed("t", "g") == 3
    assert await world.stored("t") == [1, 2, 3]
    assert world.bus.stats().expired == 2


@in_virtual_time
async def test_a_letter_of_an_event_that_expires_waits_and_goes_back_without_its_limit(world: World) -> None:
    await world.create("t", maxAttempts=1)
    peer = world.connect()
    await peer.subscribe("t", "g", {"kind": "offset", "value": 0})
    await world.connect().publish("t", 1, ttl_ms=1_000)
    await peer.message()
    peer.nack("t", "g", 1)
    await settle(60)
    await peer.subscribe("t.DLQ", "people", {"kind": "offset", "value": 0})
    assert (await peer.message())["topic"] == "t.DLQ"
    await world.bus.dead_letters.redrive("t")
    assert (await peer.message())["offset"] == 1


@pytest.mark.parametrize("option", ["ttl", "ttl_msec", "delayMs", "priority"])
@in_virtual_time
async def test_an_option_that_does_not_exist_is_refused_by_its_name(world: World, option: str) -> None:
    peer = world.connect()
    for frame in (
        {"type": "PUBLISH", "topic": "t", "payload": 1, option: 1},
        {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1, option: 1}]},
        {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1}], option: 1},
    ):
        answer = await peer.ask(frame)
        assert (answer["type"], answer["code"]) == ("ERROR", "bad_frame")
        assert f"`{option}`" in answer["message"]
    assert world.bus.topics.configs() == []
