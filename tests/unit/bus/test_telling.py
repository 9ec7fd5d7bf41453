"""What the bus tells: audit, metrics, dead letters and how to send them back."""

from __future__ import annotations

import pytest

from mainspring.bus import Start
from tests.support.bus import BEGINNING, LATEST, World, in_virtual_time, settle


async def audit(world: World) -> list[dict[str, object]]:
    return [record for record in await world.stored("system.bus.audit") if isinstance(record, dict)]


@in_virtual_time
async def test_the_audit_tells_of_every_kind_of_decision(world: World) -> None:
    await world.create("t", maxAttempts=2)
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    await peer.publish_many("t", 3)
    peer.ack("t", "g", 2)
    for _ in range(2):
        peer.nack("t", "g", 3)
        await settle(0.3)
    await world.bus.groups.seek("t", "g", Start("latest"))
    records = await audit(world)
    assert {record["action"] for record in records} == {"publish", "ack", "redelivery", "dlq", "seek"}
    assert {record["topic"] for record in records if record["topic"] != "t.DLQ"} == {"t"}
    assert sum(record["count"] for record in records if record["action"] == "publish") == 3  # type: ignore[misc]
    assert sum(record["count"] for record in records if record["action"] == "ack") == 2  # type: ignore[misc]


@in_virtual_time
async def test_nothing_is_audited_about_the_system_and_idle_is_silent(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("system.bus.audit", "w", BEGINNING)
    await peer.subscribe("system.mine", "g", BEGINNING)
    await peer.publish("system.mine", 1)
    peer.ack("system.mine", "g", 1)
    await settle(60)
    assert await audit(world) == []


@in_virtual_time
async def test_many_decisions_become_one_record(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING, max_inflight=1_000)
    await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1}] * 500})
    peer.ack("t", "g", 500)
    assert {(r["action"], r["count"]) for r in await audit(world)} == {("publish", 500), ("ack", 500)}


@in_virtual_time
async def test_the_audit_names_the_last_offset_of_each_partition(world: World) -> None:
    await world.create("t", partitions=8)
    events = [{"payload": n, "key": key} for n, key in enumerate(["duck-1", "a", "user:42", "a", "a"])]
    answer = await world.connect().ask({"type": "PUBLISH_BATCH", "topic": "t", "events": events})
    assert answer["offsets"] == [[3, 1], [1, 1], [3, 2], [1, 2], [1, 3]]
    told = {(r["action"], r["partition"], r["offset"], r["count"]) for r in await audit(world)}
    assert told == {("publish", 3, 2, 2), ("publish", 1, 3, 3)}


@pytest.mark.parametrize("watched", [False, True])
@in_virtual_time
async def test_an_event_is_counted_when_it_is_stored_and_once(world: World, watched: bool) -> None:
    peer = world.connect()
    if watched:
        await peer.subscribe("t", "g", BEGINNING)
    for _ in range(3):
        await world.connect().publish("t", 1, id="one")
    await world.connect().publish("t", 2, delay_ms=5_000)
    await settle(0.2)
    assert world.bus.stats().by_topic["t"].published == 1
    assert [(r["offset"], r["count"]) for r in await audit(world) if r["action"] == "publish"] == [(1, 1)]
    await settle(6)
    assert world.bus.stats().by_topic["t"].published == 2
    assert [(r["offset"], r["count"]) for r in await audit(world) if r["action"] == "publish"] == [(1, 1), (2, 1)]


@in_virtual_time
async def test_auditing_can_be_off_for_a_topic(world: World) -> None:
    await world.create("quiet", audit=False)
    await world.connect().publish("quiet", 1)
    await world.connect().publish("t", 1)
    assert {record["topic"] for record in await audit(world)} == {"t"}


@in_virtual_time(audit=False)
async def test_auditing_can_be_off_for_the_node(world: World) -> None:
    await world.connect().publish("t", 1)
    assert await audit(world) == []


@in_virtual_time(metrics_interval_ms=1_000)
async def test_metrics_tick_with_the_numbers(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("system.metrics", "w", LATEST)
    await world.connect().publish("t", 1)
    await settle(3.5)
    ticks = [m["envelope"]["payload"] for m in await peer.messages()]
    assert len(ticks) == 3
    assert all(isinstance(tick["published"], int) for tick in ticks)
    assert ticks[0]["byTopic"]["t"] == {"pub": 1, "del": 0}


@in_virtual_time
async def test_a_last_delivery_under_way_in_a_crash_is_dead_after_it(world: World) -> None:
    await world.create("t", maxAttempts=1)
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    await world.connect().publish("t", "x")
    await peer.message()
    await settle(0.1)
    await world.kill()
    await settle(0.1)
    assert await world.stored("t.DLQ") == ["x"]
    assert await world.committed("t", "g") == 1


@in_virtual_time
async def test_topics_without_the_nodes_own_are_empty_at_first(world: World) -> None:
    assert world.bus.topics.configs() == []
    await world.connect().subscribe("t.DLQ", "w")
    assert [config.topic for config in world.bus.topics.configs()] == ["t.DLQ"]
