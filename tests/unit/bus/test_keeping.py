"""What a topic keeps: retention by time, number and size; compaction by key."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.bus.topics.compaction import Compaction
from mainspring.cluster import Alone
from tests.support.bus import BEGINNING, World, in_virtual_time, settle


async def offsets(world: World, topic: str = "t") -> list[int]:
    return [event.offset for event in await world.log.read(topic, 0, 1, 10_000)]


@in_virtual_time(retention_interval_ms=1_000)
async def test_old_events_go_and_offsets_go_on(world: World) -> None:
    await world.create("t", retentionMs=10_000)
    peer = world.connect()
    await peer.publish_many("t", 3)
    await settle(6)
    await peer.publish_many("t", 2)
    await settle(6)
    assert await offsets(world) == [4, 5]
    await settle(60)
    assert await offsets(world) == []
    (info,) = await world.bus.groups.offsets("t")
    assert (info.head, info.tail) == (6, 5)
    assert (await peer.publish("t", 1))["offset"] == 6


@in_virtual_time(retention_interval_ms=1_000)
async def test_only_so_many_events_stay(world: World) -> None:
    await world.create("t", retentionCount=4)
    await world.connect().publish_many("t", 10)
    await settle(2)
    assert await offsets(world) == [7, 8, 9, 10]


@in_virtual_time(retention_interval_ms=1_000)
async def test_only_so_many_bytes_stay(world: World) -> None:
    await world.create("t", retentionBytes=2_000)
    peer = world.connect()
    for _ in range(20):
        await peer.publish("t", "x" * 400)
    await settle(2)
    (bounds,) = await world.log.bounds("t")
    assert 0 < bounds.bytes <= 2_000
    assert await offsets(world) == list(range(21 - bounds.events, 21))


@in_virtual_time(retention_interval_ms=1_000)
async def test_the_lag_counts_only_events_that_exist(world: World) -> None:
    await world.create("t", retentionCount=4)
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING, max_inflight=1)
    await peer.publish_many("t", 10)
    await settle(2)
    (info,) = world.bus.groups.infos("t")
    (offsets,) = await world.bus.groups.offsets("t")
    assert (info.partitions[0].lag, offsets.groups["g"].lag) == (4, 4)
    await world.kill()
    (info,) = world.bus.groups.infos("t")
    assert info.partitions[0].lag == 4


@in_virtual_time(retention_interval_ms=1_000)
async def test_a_group_goes_on_behind_what_is_gone(world: World) -> None:
    await world.create("t", retentionCount=2)
    peer = world.connect()
    await peer.publish_many("t", 10)
    await peer.subscribe("t", "g", BEGINNING, max_inflight=3)
    assert await peer.offsets() == [1, 2, 3]
    await settle(2)
    peer.nack("t", "g", 1)  # gone by now: settled, not delivered again
    peer.ack("t", "g", 3)
    assert await peer.offsets() == [9, 10]
    peer.ack("t", "g", 10)
    assert await world.committed("t", "g") == 10


@in_virtual_time(retention_interval_ms=60_000)
async def test_the_nodes_own_topics_are_bounded(world: World) -> None:
    await world.connect().publish_many("t", 3)
    await settle(1)
    await world.connect().publish("system.metrics", 1)
    assert {
        c.topic: (c.retention_ms > 0, c.retention_count > 0) for c in world.bus.topics.configs() if c.topic != "t"
    } == {
        "system.bus.audit": (True, True),
        "system.metrics": (True, True),
    }


@in_virtual_time(retention_interval_ms=1_000)
async def test_compaction_keeps_the_newest_event_of_each_key(world: World) -> None:
    await world.create("t", compact=True, tombstoneMs=10_000)
    peer = world.connect()
    for key, value in [("a", 1), ("b", 1), ("a", 2), (None, 0), ("b", None), ("a", 3), (None, 0)]:
        await peer.publish("t", value, key=key)
    await settle(3)
    assert await offsets(world) == [4, 5, 6, 7]
    await settle(12)  # the tombstone of b had its time
    assert await offsets(world) == [4, 6, 7]
    await peer.publish("t", 4, key="a")
    await settle(3)
    assert await offsets(world) == [4, 7, 8]
    await peer.subscribe("t", "g", BEGINNING)
    assert await peer.offsets() == [4, 7, 8]
    peer.ack("t", "g", 8)
    assert await world.committed("t", "g") == 8


EVENTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from([1, None])), max_size=25)


@given(st.lists(EVENTS, min_size=1, max_size=3), st.lists(st.integers(0, 3), max_size=6))
@settings(max_examples=60, deadline=None)
def test_compaction_is_right_wherever_a_crash_interrupts_it(rounds: list[Any], crashes: list[int]) -> None:
    @in_virtual_time
    async def story(world: World) -> None:
        await world.create("t", compact=True)
        topic = world.bus.topics.open("t")
        written: list[tuple[int, str | None, Any]] = []
        stops = iter(crashes)
        for events in rounds:
            for key, value in events:
                offset = (await world.connect().publish("t", value, key=key))["offset"]
                written.append((offset, key, value))
            commits = 0
            stop = next(stops, None)
            commit = world.log.commit

            async def dying(batch: Any) -> Any:
                nonlocal commits
                commits += 1
                if commits == stop:  # noqa: B023
                    raise ConnectionAbortedError
                return await commit(batch)  # noqa: B023

            world.log.commit = dying  # type: ignore[method-assign]
            try:
                await Compaction(world.log, world.clock, Alone().role("housekeeping")).round(topic)
            except ConnectionAbortedError:
                await Compaction(world.log, world.clock, Alone().role("housekeeping")).round(topic)
            world.log.commit = commit  # type: ignore[method-assign]
        newest = {key: offset for offset, key, _ in written}
        kept = [offset for offset, key, _ in written if key is None or newest[key] == offset]
        assert await offsets(world) == kept

    story()


@in_virtual_time(retention_interval_ms=1_000, group_expiry_ms=60_000)
async def test_a_group_that_nobody_uses_is_deleted_and_one_with_a_member_is_not(world: World) -> None:
    reader, gone = world.connect(), world.connect()
    await reader.subscribe("t", "kept")
    await gone.subscribe("t", "left")
    await reader.publish("t", 1)
    gone.session.close()
    await settle(50)
    assert {info.group for info in world.bus.groups.infos("t")} == {"kept", "left"}
    await settle(90)
    assert {info.group for info in world.bus.groups.infos("t")} == {"kept"}
