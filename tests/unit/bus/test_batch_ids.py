"""A batch that is sent again with its id is stored once, as a whole, whatever became of node and topic meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.loop import VirtualClock, VirtualEventLoop
from tests.support.bus import WALL_MS, Peer, World, in_virtual_time, settle

WINDOW_MS = 5_000
Places = list[list[int]]


def frame(batch_id: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "PUBLISH_BATCH", "batch_id": batch_id, "topic": "t", "events": events}


def some(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"e{n}", "payload": n, **more} for n in range(first, first + count)]


async def publish(peer: Peer, batch_id: str, events: list[dict[str, Any]]) -> Places:
    answer = await peer.ask(frame(batch_id, events))
    assert answer["type"] == "PUBLISHED_BATCH", answer
    places: Places = answer["offsets"]
    return places


@in_virtual_time
@pytest.mark.parametrize("more", [{}, {"headers": {"h": "v"}}, {"key": "k"}], ids=["plain", "headers", "keys"])
async def test_it_is_stored_once_and_answered_as_before(world: World, more: dict[str, Any]) -> None:
    await world.connect().publish("t", "first")
    batch = some(0, 3, **more)
    assert await publish(world.connect(), "b", batch) == [[0, 2], [0, 3], [0, 4]]
    assert await publish(world.connect(), "b", batch) == [[0, 2], [0, 3], [0, 4]]
    await world.kill()
    assert await publish(world.connect(), "b", batch) == [[0, 2], [0, 3], [0, 4]]
    assert await world.stored("t") == ["first", 0, 1, 2]
    assert [event.id for event in await world.log.read("t", 0, 2, 10)] == ["e0", "e1", "e2"]
    assert len([mark async for mark in world.log.marks()]) == 1
    assert world.bus.counters.published == 0  # since the restart


@in_virtual_time
async def test_the_same_id_with_another_number_of_events_is_another_batch(world: World) -> None:
    peer = world.connect()
    assert await publish(peer, "b", some(0, 2)) == [[0, 1], [0, 2]]
    assert await publish(peer, "b", some(0, 3)) == [[0, 3], [0, 4], [0, 5]]


@in_virtual_time
async def test_a_schema_that_came_meanwhile_does_not_store_it_again(world: World) -> None:
    peer = world.connect()
    await publish(peer, "b", some(0, 2))
    await world.bus.register_schema("t", {"type": "integer"})
    assert await publish(peer, "b", some(0, 2)) == [[0, 1], [0, 2]]
    assert await publish(peer, "c", some(2, 2)) == [[0, 3], [0, 4]]
    assert await publish(peer, "c", some(2, 2)) == [[0, 3], [0, 4]]
    assert await world.stored("t") == [0, 1, 2, 3]


@in_virtual_time
async def test_partitions_that_came_meanwhile_do_not_store_it_again(world: World) -> None:
    peer = world.connect()
    await publish(peer, "b", some(0, 3))
    await world.create("t", partitions=4)
    assert await publish(peer, "b", some(0, 3)) == [[0, 1], [0, 2], [0, 3]]
    places = await publish(peer, "c", some(3, 8))
    await world.kill()
    assert await publish(world.connect(), "c", some(3, 8)) == places
    assert sum([len(await world.stored("t", partition)) for partition in range(4)]) == 11


@in_virtual_time
async def test_events_without_ids_get_theirs_from_the_batch(world: World) -> None:
    await world.create("t", partitions=3)
    events = [{"payload": n} for n in range(6)]
    places = await publish(world.connect(), "b", events)
    assert await publish(world.connect(), "b", events) == places


@in_virtual_time
async def test_delayed_events_and_ids_that_are_none_are_refused(world: World) -> None:
    peer = world.connect()
    refused = await peer.ask(frame("b", some(0, 2, delay_ms=1_000)))
    assert (refused["code"], "batch_id" in refused["message"]) == ("bad_frame", True)
    assert (await peer.ask(frame("b" * 201, some(0, 2))))["code"] == "bad_frame"
    assert (await peer.ask(frame("", some(0, 2))))["code"] == "bad_frame"
    assert await world.stored("t") == []


@given(st.data())
def test_whatever_happens_it_is_stored_once_while_it_is_remembered(data: st.DataObject) -> None:
    """The model remembers for each batch where its events are and until when that is known."""
    clock = VirtualClock(1_000, wall_ms=WALL_MS)
    known: dict[int, tuple[list[dict[str, Any]], Places, int]] = {}
    stored: dict[tuple[int, int], str] = {}

    async def send(world: World, number: int, events: list[dict[str, Any]]) -> None:
        _, before, until = known.get(number, (events, [], -1))
        now = world.clock.wall_ms()
        places = await publish(world.connect(), f"b{number}", events)
        if now <= until:
            assert places == before
            return
        for (partition, offset), event in zip(places, events, strict=True):
            assert (partition, offset) not in stored
            stored[partition, offset] = event["id"]
        known[number] = (events, places, now + WINDOW_MS)

    async def story() -> None:
        world = World(clock, dedupe_window_ms=WINDOW_MS, retention_interval_ms=1_000)
        await world.start()
        partitions = 1
        for _ in range(data.draw(st.integers(3, 20))):
            steps = ["new", "new", "again", "again", "kill", "wait", "wait long", "grow", "single"]
            step = data.draw(st.sampled_from(steps))
            if step == "new":
                more = data.draw(st.sampled_from([{}, {"key": "k"}, {"headers": {"h": "v"}}]))
                await send(world, len(known), some(100 * len(known), data.draw(st.integers(1, 5)), **more))
            elif step == "again" and known:
                number = data.draw(st.sampled_from(sorted(known)))
                await send(world, number, known[number][0])
            elif step == "single":  # which takes part in the same commits
                answer = await world.connect().publish("t", "x")
                stored[answer["partition"], answer["offset"]] = answer["id"]
            elif step == "kill":
                await world.kill()
            elif step == "wait":
                await settle(2)
            elif step == "wait long":
                await settle(7)
            elif step == "grow" and stored:
                partitions += 1
                await world.create("t", partitions=partitions)
        found = {
            (partition, event.offset): event.id
            for partition in range(partitions)
            for event in await world.log.read("t", partition, 1, 1_000)
        }
        assert found == stored
        await world.stop()

    with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
        runner.run(story())
