"""What happens when two things are asked for at the same time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mainspring.bus import BadFrame, RateLimited, Schedule
from mainspring.bus.results import NewEvent
from tests.support.bus import World, in_virtual_time, settle


@in_virtual_time()
async def test_unsubscribing_before_the_subscription_is_confirmed_ends_it(world: World) -> None:
    peer, other = world.connect(), world.connect()
    peer.send({"type": "SUBSCRIBE", "topic": "t", "group": "g"})
    peer.send({"type": "UNSUBSCRIBE", "topic": "t", "group": "g"})
    await settle()
    assert [(frame["type"], frame["in_reply_to"]) for frame in peer.got] == [("OK", "SUBSCRIBE"), ("OK", "UNSUBSCRIBE")]
    peer.got.clear()
    await other.publish("t", 1)
    assert await peer.messages() == []
    await peer.subscribe("t", "g")
    assert await peer.offsets() == [1]


@in_virtual_time()
async def test_a_group_deleted_while_someone_joins_is_there_again(world: World) -> None:
    peer, other = world.connect(), world.connect()
    await peer.subscribe("t", "g")
    peer.close()
    joining = world.connect()
    joining.send({"type": "SUBSCRIBE", "topic": "t", "group": "g"})
    await world.bus.groups.delete("t", "g")
    await settle()
    joining.got.clear()
    await other.publish("t", 1)
    assert await joining.offsets() == [1]
    joining.ack("t", "g", 1)
    await settle()
    assert [info.group for info in world.bus.groups.infos("t")] == ["g"]
    await world.kill()
    assert [info.group for info in world.bus.groups.infos("t")] == ["g"]


@in_virtual_time()
async def test_letters_lie_in_one_line_whatever_the_partitions(world: World) -> None:
    await world.create("t", maxAttempts=1, partitions=4)
    await world.create("t.DLQ", partitions=4)
    peer = world.connect()
    for n in range(8):
        await peer.publish("t", n, key=f"k{n}")
    await peer.subscribe("t", "g", max_inflight=100)
    for frame in await peer.messages():
        peer.nack("t", "g", frame["offset"], frame["partition"])
    await settle()
    assert len(await world.bus.dead_letters.page("t")) == 8


@pytest.mark.parametrize("every", [-1, 0, 1, 9, 2**60])
@in_virtual_time()
async def test_a_schedule_that_could_not_be_read_again_is_refused(world: World, every: int) -> None:
    schedule = Schedule(name="fast", topic="t", payload=msgspec.Raw(b"1"), every=every)
    with pytest.raises(BadFrame, match="every"):
        await world.bus.put_schedule(schedule)
    await world.kill()
    assert world.bus.schedules.all() == []


@in_virtual_time()
async def test_a_schedule_row_of_foreign_make_does_not_stop_the_boot(world: World) -> None:
    from mainspring.log import Batch

    batch = Batch()
    batch.put("schedules", "named/odd", b'{"name":"odd","topic":"t","payload":1,"every":1}')
    await world.log.commit(batch)
    await world.kill()
    assert world.bus.schedules.all() == []
    assert (await world.connect().publish("t", 1))["offset"] == 1


@in_virtual_time()
async def test_a_batch_that_can_never_fit_the_rate_says_so(world: World) -> None:
    await world.create("t", ratePerSecond=2, rateBurst=2)
    with pytest.raises(RateLimited, match="at most 2 events at once") as refused:
        await world.bus.publish_batch("t", [NewEvent(b"1")] * 3)
    assert refused.value.retry_after_ms is None
    await world.bus.publish_batch("t", [NewEvent(b"1")] * 2)
    with pytest.raises(RateLimited) as refused:
        await world.bus.publish("t", b"1")
    assert refused.value.retry_after_ms == 500


@in_virtual_time()
async def test_a_number_too_large_to_hash_is_a_bad_frame(world: World) -> None:
    frame = '{"type":"PUBLISH","topic":"t","payload":1e999,"payload_sha256":"00"}'
    assert (await world.connect().ask(frame))["code"] == "bad_frame"


@in_virtual_time()
async def test_a_sticky_event_given_back_with_a_delay_returns_although_its_successor_was_parked(world: World) -> None:
    peer = world.connect()
    for key in ("a", "b", "a", "b", "b"):
        await peer.publish("t", key, key=key)
    await peer.subscribe("t", "g", sticky=True, max_inflight=2, ack="each")
    assert await peer.offsets() == [1, 2]
    peer.nack("t", "g", 1, delay_ms=200)
    await asyncio.sleep(1)  # due again while others fill the window
    held = [2, *await peer.offsets()]
    seen: list[int] = []
    for _ in range(20):
        for offset in held:
            seen.append(offset)
            peer.ack("t", "g", offset)
        await asyncio.sleep(0.1)
        held = await peer.offsets()
    assert sorted(seen) == [1, 2, 3, 4, 5]
    assert seen.index(1) < seen.index(3), "the order of key a"
    assert [offset for offset in seen if offset in (2, 4, 5)] == [2, 4, 5], "the order of key b"
