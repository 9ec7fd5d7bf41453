"""What one node stores is known on the others."""

from __future__ import annotations

import asyncio
import json

from mainspring.bus import AccessList, Schedule, TopicConfig
from mainspring.bus.results import NewEvent
from tests.support.bus import BEGINNING
from tests.support.shared_bus import Town, in_town, settle


@in_town
async def test_a_topic_made_on_one_node_is_there_on_the_other(town: Town) -> None:
    first, second = town.nodes
    await town.create("orders", partitions=3)
    assert second.bus.topics.get("orders").config.partitions == 3
    await second.bus.put_topic(TopicConfig(topic="orders", partitions=4))
    assert first.bus.topics.get("orders").config.partitions == 4
    await first.bus.publish("implied", b"1")
    await settle()
    assert second.bus.topics.get("implied").config.partitions == 1


@in_town
async def test_settings_chosen_on_one_node_are_not_undone_by_a_publisher_on_another(town: Town) -> None:
    first, second = town.nodes
    second.engine.cut_off = True  # it has not heard of the topic yet
    await first.bus.put_topic(TopicConfig(topic="t", partitions=5))
    publishing = asyncio.ensure_future(second.bus.publish("t", b"1"))
    second.engine.cut_off = False
    await publishing
    await settle()
    assert [node.bus.topics.get("t").config.partitions for node in town.nodes] == [5, 5]


@in_town
async def test_followers_are_woken_by_events_of_other_nodes(town: Town) -> None:
    first, second = town.nodes
    await town.create("t")
    seen: list[int] = []

    async def follow() -> None:
        async for events in second.bus.follow("t"):
            seen.extend(json.loads(event.payload) for event in events)

    following = asyncio.ensure_future(follow())
    await settle()
    for n in range(3):
        await first.bus.publish("t", b"%d" % n)
        await settle()
    assert seen == [0, 1, 2]
    following.cancel()


@in_town
async def test_schemas_registered_on_one_node_are_checked_on_the_other(town: Town) -> None:
    first, second = town.nodes
    await first.bus.register_schema("t", {"type": "integer"})
    await settle()
    assert second.bus.schemas.get("t").version == 1
    again, new = await second.bus.register_schema("t", {"type": "integer"})
    assert (again.version, new) == (1, False)
    await second.bus.register_schema("t", {"type": ["integer", "string"]})
    await settle()
    assert first.bus.schemas.get("t").version == 2


@in_town(nodes=3)
async def test_a_schedule_fires_once_for_each_due_time_whoever_has_the_role(town: Town) -> None:
    _first, second, third = town.nodes
    payload = json.dumps({"tick": True}).encode()
    await second.bus.put_schedule(Schedule(name="s", topic="ticks", payload=payload, every=1_000))
    await settle(5.5)
    assert [schedule.name for schedule in third.bus.schedules.all()] == ["s"]
    assert len(await third.bus.read("ticks", 0, 1, 100)) == 5
    holder = next(node for node in town.nodes if node.cluster.role("schedules").held)
    holder.kill()
    await settle(20)
    alive = next(node for node in town.nodes if node.alive)
    fired = [event.ts for event in await alive.bus.read("ticks", 0, 1, 100)]
    assert len({ts // 1_000 for ts in fired}) == len(fired)
    assert fired[-1] >= town.clock.wall_ms() - 1_100
    assert len(fired) >= 18  # a few are missed while the role changes hands, and made up once


@in_town(nodes=3)
async def test_delayed_events_become_due_once_also_when_answers_are_lost(town: Town) -> None:
    _first, _second, third = town.nodes
    for n in range(20):
        node = town.nodes[n % 3]
        await node.bus.publish("t", b"%d" % n, delay_ms=1_000 + n * 100)
    holder = next(node for node in town.nodes if node.cluster.role("schedules").held)
    await settle(1.25)
    holder.engine.lose_answers = True
    await settle(0.5)
    holder.engine.lose_answers = False
    await settle(20)
    events = await third.bus.read("t", 0, 1, 100)
    assert sorted(json.loads(event.payload) for event in events) == list(range(20))


@in_town
async def test_events_whose_answer_was_lost_are_seen_all_the_same(town: Town) -> None:
    first, _second = town.nodes
    await town.create("t")
    peer = first.connect()
    await peer.subscribe("t", "g", BEGINNING)
    first.engine.lose_answers = True
    publishing = asyncio.ensure_future(first.bus.publish_batch("t", [NewEvent(b"1"), NewEvent(b"2")]))
    await settle(0.01)
    first.engine.lose_answers = False
    assert publishing.exception() is not None
    await settle(1.5)
    assert await peer.offsets() == [1, 2]


@in_town
async def test_access_lists_changed_on_one_node_end_subscriptions_on_the_other(town: Town) -> None:
    first, second = town.nodes
    await town.create("t")
    peer = second.connect("eve")
    await peer.subscribe("t", "g", BEGINNING)
    await first.bus.put_topic(TopicConfig(topic="t", subscribe_acl=AccessList(deny=("eve",))))
    await settle(0.1)
    assert [frame["type"] for frame in peer.got] == ["ERROR"]
    await first.bus.publish("t", b"1")
    await settle(0.1)
    assert len(peer.got) == 1
    assert first.bus.groups.infos("t")[0].members == 0


@in_town(nodes=3)
async def test_one_node_at_a_time_keeps_house(town: Town) -> None:
    await town.create("t", retentionCount=5)
    for n in range(20):
        await town.nodes[n % 3].bus.publish("t", b"%d" % n)
    holder = next(node for node in town.nodes if node.cluster.role("housekeeping").held)
    holder.kill()
    await settle(town.settings.retention_interval_ms / 1000 * 2 + 20)
    alive = next(node for node in town.nodes if node.alive)
    assert [event.offset for event in await alive.bus.read("t", 0, 1, 100)] == [16, 17, 18, 19, 20]
