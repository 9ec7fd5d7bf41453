"""Groups beyond the basics: modes of acknowledging, batches, stickiness, mixed filters, seeks, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.bus import Conflict, Start, UnknownGroup, UnknownTopic
from mainspring.settings import Settings
from tests.support.bus import BEGINNING, LATEST, Peer, World, in_virtual_time, settle


@in_virtual_time
async def test_ack_each_settles_one_event_only(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 3)
    await peer.subscribe("t", "g", BEGINNING, ack="each")
    await peer.messages()
    peer.ack("t", "g", 3)
    assert await world.committed("t", "g") == 0
    assert await world.inflight("t", "g") == 2
    peer.ack("t", "g", 1)
    assert await world.committed("t", "g") == 1
    peer.ack("t", "g", 2)
    assert await world.committed("t", "g") == 3


@in_virtual_time
async def test_events_acknowledged_out_of_order_stay_settled_over_a_crash(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 6)
    await peer.subscribe("t", "g", BEGINNING, ack="each")
    await peer.messages()
    for offset in (2, 3, 5):
        peer.ack("t", "g", offset)
    await settle(0.1)
    await world.kill()
    again = world.connect()
    await again.subscribe("t", "g")
    assert [(m["offset"], m["attempt"]) for m in await again.messages()] == [(1, 2), (4, 2), (6, 2)]


@in_virtual_time
async def test_batches_come_in_messages_frames(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 10)
    await peer.subscribe("t", "g", BEGINNING, batch=4)
    await settle()
    assert {frame["type"] for frame in peer.got} == {"MESSAGES"}
    assert [len(frame["messages"]) for frame in peer.got] == [4, 4, 2]
    assert {(frame["topic"], frame["group"]) for frame in peer.got} == {("t", "g")}
    messages = [message for frame in peer.got for message in frame["messages"]]
    assert [m["offset"] for m in messages] == list(range(1, 11))
    assert messages[0]["envelope"]["payload"] == {"n": 1}
    assert (messages[0]["partition"], messages[0]["attempt"]) == (0, 1)


@in_virtual_time
async def test_extend_sets_the_end_of_a_lease_longer_or_shorter(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 2)
    await peer.subscribe("t", "g", BEGINNING)
    await peer.messages()
    extend = {"type": "EXTEND", "topic": "t", "partition": 0, "group": "g"}
    peer.send({**extend, "offset": 1, "ms": 90_000})
    peer.send({**extend, "offset": 2, "ms": 1_000})
    await settle(5)
    assert [m["offset"] for m in await peer.messages()] == [2]
    peer.ack("t", "g", 2)  # in cumulative mode this settles 1 as well
    assert await world.committed("t", "g") == 2


@in_virtual_time
async def test_unsubscribe_gives_back_and_ends_deliveries(world: World) -> None:
    peer, other = world.connect(), world.connect()
    await peer.publish_many("t", 3)
    await peer.subscribe("t", "g", BEGINNING)
    await peer.messages()
    assert (await peer.ask({"type": "UNSUBSCRIBE", "topic": "t", "group": "g", "corr": 1}))["type"] == "OK"
    await other.subscribe("t", "g")
    assert await other.offsets() == [1, 2, 3]
    assert await peer.messages() == []


@in_virtual_time
async def test_a_delayed_nack_frees_its_place_and_later_events_go_on(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 4)
    await peer.subscribe("t", "g", BEGINNING, max_inflight=1)
    await peer.messages()
    peer.nack("t", "g", 1, delay_ms=60_000)
    for offset in (2, 3, 4):
        assert await peer.offsets() == [offset]
        peer.ack("t", "g", offset)
    assert await world.committed("t", "g") == 0
    await world.kill()  # the delay is part of what is stored
    again = world.connect()
    await again.subscribe("t", "g")
    await settle(50)
    assert await again.messages() == []
    await settle(15)
    assert [(m["offset"], m["attempt"]) for m in await again.messages()] == [(1, 2)]
    again.ack("t", "g", 1)
    assert await world.committed("t", "g") == 4


@in_virtual_time
async def test_only_the_holder_settles(world: World) -> None:
    first, second = world.connect(), world.connect()
    await first.subscribe("t", "g", BEGINNING, max_inflight=1)
    await second.publish("t", 1)
    await first.message()
    await second.subscribe("t", "g", max_inflight=1)
    second.ack("t", "g", 1)
    second.nack("t", "g", 1)
    await settle()
    assert second.got == []
    assert await world.committed("t", "g") == 0


@in_virtual_time
async def test_a_late_ack_does_not_settle_what_others_hold_by_now(world: World) -> None:
    slow, other = world.connect(), world.connect()
    await slow.subscribe("t", "g", BEGINNING, max_inflight=1)
    await other.publish("t", 1)
    await slow.message()
    slow.send({"type": "FLOW", "credits": 0})
    await other.subscribe("t", "g", max_inflight=1)
    await settle(31.5)
    await other.message()
    slow.ack("t", "g", 1)
    assert await world.committed("t", "g") == 0
    other.ack("t", "g", 1)
    assert await world.committed("t", "g") == 1


async def keyed(world: World, topic: str, keys: str) -> None:
    writer = world.connect()
    for n, key in enumerate(keys):
        await writer.publish(topic, n, key=key)
    writer.close()


@in_virtual_time
async def test_a_sticky_key_stays_with_one_member_while_it_lives(world: World) -> None:
    members = [world.connect() for _ in range(3)]
    for member in members:
        await member.subscribe("t", "g", BEGINNING, sticky=True, max_inflight=4)
    owner: dict[str, Peer] = {}
    for _ in range(6):
        await keyed(world, "t", "abcdefabcdef")
        for member in members:
            got = await member.messages()
            assert [m["offset"] for m in got] == sorted(m["offset"] for m in got)
            for message in got:
                assert owner.setdefault(message["envelope"]["key"], member) is member
            if got:
                member.ack("t", "g", got[-1]["offset"])
    assert len(set(owner.values())) == 3


@in_virtual_time
async def test_the_keys_of_a_member_that_leaves_go_to_another_in_order(world: World) -> None:
    first, second = world.connect(), world.connect()
    await first.subscribe("t", "g", BEGINNING, sticky=True)
    await keyed(world, "t", "kkkk")
    await second.subscribe("t", "g", sticky=True)
    assert await first.offsets() == [1, 2, 3, 4]
    first.ack("t", "g", 1)
    first.close()
    await keyed(world, "t", "kk")
    assert await second.offsets() == [2, 3, 4, 5, 6]


@in_virtual_time
async def test_a_sticky_key_waits_for_its_event_that_comes_again(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING, sticky=True, max_inflight=1, ack="each")
    await keyed(world, "t", "kkj")
    assert await peer.offsets() == [1]
    peer.nack("t", "g", 1, delay_ms=5_000)
    assert await peer.offsets() == [3]  # the other key goes on, k waits for its first
    peer.ack("t", "g", 3)
    await settle(5)
    assert await peer.offsets() == [1]
    peer.ack("t", "g", 1)
    assert await peer.offsets() == [2]


@in_virtual_time
async def test_a_full_member_does_not_hold_up_other_keys(world: World) -> None:
    slow, quick = world.connect(), world.connect()
    await slow.subscribe("t", "g", BEGINNING, sticky=True, max_inflight=1)
    await quick.subscribe("t", "g", BEGINNING, sticky=True, max_inflight=100)
    await keyed(world, "t", "ab" + "ab" * 50)
    stuck, flowing = await slow.messages(), await quick.messages()
    assert (len(stuck), len(flowing)) == (1, 51)
    assert {m["envelope"]["key"] for m in flowing} == {"b"} or {m["envelope"]["key"] for m in flowing} == {"a"}


@in_virtual_time
async def test_members_with_different_filters_each_get_theirs(world: World) -> None:
    a, b = world.connect(), world.connect()
    await a.subscribe("t", "g", BEGINNING, filter={"key": "a"}, max_inflight=1)
    await b.subscribe("t", "g", BEGINNING, filter={"key": "b"}, max_inflight=10)
    await keyed(world, "t", "aabbbc")
    assert await a.offsets() == [1]
    assert await b.offsets() == [3, 4, 5]
    a.ack("t", "g", 1)
    assert await a.offsets() == [2]
    a.ack("t", "g", 2)
    b.ack("t", "g", 5)
    assert await world.committed("t", "g") == 6


FROM_TABLE: list[tuple[Any, list[int], list[int]]] = [
    # from, offsets of a new group, offsets of a group that committed 3 of 6
    (None, [1, 2, 3, 4, 5, 6], [4, 5, 6]),
    (LATEST, [], [4, 5, 6]),
    (BEGINNING, [1, 2, 3, 4, 5, 6], [4, 5, 6]),
    ({"kind": "offset"}, [1, 2, 3, 4, 5, 6], [4, 5, 6]),
    ({"kind": "offset", "value": 1}, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
    ({"kind": "offset", "value": 5}, [5, 6], [5, 6]),
    ({"kind": "offset", "value": 100}, [], []),
    ({"kind": "timestamp", "value": 1}, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
]


@pytest.mark.parametrize(("start", "new", "known"), FROM_TABLE)
@in_virtual_time
async def test_where_groups_start(world: World, start: Any, new: list[int], known: list[int]) -> None:
    peer = world.connect()
    await peer.publish_many("t", 6)
    await peer.subscribe("t", "new", start)
    assert await peer.offsets() == new
    other = world.connect()
    await other.subscribe("t", "known", max_inflight=3)
    await other.messages()
    other.ack("t", "known", 3)
    await settle()
    other.close()
    await settle(0.1)
    again = world.connect()
    await again.subscribe("t", "known", start)
    assert await again.offsets() == known
    assert await world.committed("t", "known") >= 3  # never lowered


@in_virtual_time
async def test_a_start_beyond_the_tail_waits_and_counts_what_it_skips_as_settled(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", {"kind": "offset", "value": 4})
    await world.connect().publish_many("t", 3)
    assert await peer.offsets() == []
    assert await world.committed("t", "g") == 3
    await world.connect().publish_many("t", 2)
    assert await peer.offsets() == [4, 5]


@in_virtual_time
async def test_the_start_of_a_new_group_survives_a_crash_right_after_ok(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 5)
    await peer.subscribe("t", "g", LATEST)
    await world.kill()
    writer = world.connect()
    await writer.publish("t", 6)
    again = world.connect()
    await again.subscribe("t", "g")
    assert await again.offsets() == [6]


@in_virtual_time
async def test_seek_moves_the_whole_group_from_outside(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 6)
    await peer.subscribe("t", "g", BEGINNING)
    await peer.messages()
    peer.ack("t", "g", 6)
    await world.bus.groups.seek("t", "g", Start("offset", 4))
    assert [(m["offset"], m["attempt"]) for m in await peer.messages()] == [(4, 1), (5, 1), (6, 1)]
    assert await world.committed("t", "g") == 6
    await world.bus.groups.seek("t", "g", Start("latest"))
    assert await world.inflight("t", "g") == 0
    assert await peer.messages() == []
    info = await world.bus.groups.seek("t", "g", Start("timestamp", world.clock.wall_ms() - 1_000), partition=0)
    assert (info.members, info.partitions[0].lag) == (1, 0)
    assert await peer.offsets() == [1, 2, 3, 4, 5, 6]


@in_virtual_time
async def test_a_group_is_deleted_when_nobody_uses_it(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 2)
    await peer.subscribe("t", "g", LATEST)
    with pytest.raises(Conflict):
        await world.bus.groups.delete("t", "g")
    peer.close()
    await world.bus.groups.delete("t", "g")
    with pytest.raises(UnknownGroup):
        await world.bus.groups.delete("t", "g")
    with pytest.raises(UnknownTopic):
        await world.bus.groups.delete("nobody", "g")
    await world.kill()
    again = world.connect()
    await again.subscribe("t", "g")
    assert await again.offsets() == [1, 2]


@in_virtual_time
async def test_a_group_with_a_long_backlog_reads_it_in_pages(world: World) -> None:
    writer, peer = world.connect(), world.connect()
    for _ in range(20):
        events = [{"payload": n} for n in range(200)]
        assert (await writer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": events}))["offsets"]
    await peer.subscribe("t", "g", BEGINNING, max_inflight=100)
    seen: list[int] = []
    while offsets := await peer.offsets():
        seen += offsets
        peer.ack("t", "g", offsets[-1])
    assert seen == list(range(1, 4001))


@in_virtual_time
async def test_a_client_that_delays_everything_cannot_fill_the_memory(world: World) -> None:
    from mainspring.bus.groups.group import MAX_OPEN

    writer, peer = world.connect(), world.connect()
    for _ in range(MAX_OPEN // 1000 + 2):
        await writer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1}] * 1000})
    await peer.subscribe("t", "g", BEGINNING, max_inflight=5000, ack="each")
    seen = 0
    while offsets := await peer.offsets():
        seen += len(offsets)
        for offset in offsets:
            peer.nack("t", "g", offset, delay_ms=3_600_000)
    assert seen == MAX_OPEN


@in_virtual_time
async def test_groups_are_told_with_their_members_and_lag(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 4)
    await peer.subscribe("t", "g", BEGINNING, max_inflight=3)
    await settle(0.1)
    (info,) = world.bus.groups.infos("t")
    assert (info.group, info.members) == ("g", 1)
    offsets = info.partitions[0]
    assert (offsets.last_committed, offsets.lag, offsets.inflight) == (0, 4, 3)
    assert [i.group for i in world.bus.groups.infos()] == ["g"]


@in_virtual_time
async def test_ten_thousand_idle_subscriptions_do_no_work_for_other_topics(world: World) -> None:
    idle = world.connect()
    for n in range(2_000):
        idle.send({"type": "SUBSCRIBE", "topic": f"idle.{n}", "group": "g", "from": LATEST})
    await settle(1)
    assert len(idle.got) == 2_000
    woken: list[str] = []
    for topic in world.bus.topics.all():
        for group in topic.groups.values():
            group.deliver = lambda now, name=topic.name: woken.append(name)  # type: ignore[method-assign]
    await world.connect().publish_many("busy", 5)
    assert woken == []


@in_virtual_time
async def test_a_paused_connection_gets_nothing_and_holds_up_nobody(world: World) -> None:
    stuck, lively = world.connect(), world.connect()
    for peer in (stuck, lively):
        await peer.subscribe("t", "g", BEGINNING, max_inflight=5)
    stuck.session.pause()
    writer = world.connect()
    await writer.publish_many("t", 3)
    assert await stuck.messages() == []
    assert await lively.offsets() == [1, 2, 3]
    stuck.session.resume()
    await writer.publish_many("t", 4)
    assert len(await stuck.messages()) == 2


@in_virtual_time
async def test_a_group_sent_back_from_beyond_the_tail_has_not_settled_what_was_not_there(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 3)
    await peer.subscribe("t", "g", {"kind": "offset", "value": 10})
    assert await world.committed("t", "g") == 3
    await world.bus.groups.seek("t", "g", Start("offset", 2))
    await peer.publish_many("t", 4)
    assert await world.committed("t", "g") == 3
    peer.close()


@in_virtual_time
async def test_an_ack_settles_its_event_also_when_higher_ones_were_delivered_before_it(world: World) -> None:
    peer, writer = world.connect(), world.connect()
    await peer.subscribe("t", "g", BEGINNING, sticky=True)
    await writer.publish("t", 1, key="a")
    assert await peer.offsets() == [1]
    peer.nack("t", "g", 1, delay_ms=400)
    await writer.publish("t", 2, key="a")  # waits behind the first of its key
    await writer.publish("t", 3, key="b")
    assert await peer.offsets() == [3]
    await settle(0.5)
    assert await peer.offsets() == [1]
    peer.ack("t", "g", 1)
    assert await peer.offsets() == [2]
    peer.ack("t", "g", 2)
    assert await world.committed("t", "g") == 2
    assert await world.inflight("t", "g") == 1


@in_virtual_time
async def test_an_ack_settles_what_was_kept_for_a_member_that_left(world: World) -> None:
    picky, other, writer = world.connect(), world.connect(), world.connect()
    await picky.subscribe("t", "g", BEGINNING, max_inflight=1, filter={"key": "a"})
    await other.subscribe("t", "g", BEGINNING, filter={"key": "b"})
    for key in ("a", "a", "b"):
        await writer.publish("t", key, key=key)
    assert (await picky.offsets(), await other.offsets()) == ([1], [3])
    picky.ack("t", "g", 1)
    assert await picky.offsets() == [2]
    await writer.publish("t", "a", key="a")
    await writer.publish("t", "b", key="b")
    await other.subscribe("t", "g")
    picky.close()
    assert sorted(await other.offsets()) == [2, 4, 5]
    for offset in (2, 4):
        other.ack("t", "g", offset)
    assert await world.committed("t", "g") == 4
    assert await world.inflight("t", "g") == 1


@pytest.mark.parametrize("in_memory", [True, False])
@in_virtual_time
async def test_after_a_crash_events_of_a_key_still_wait_for_the_one_that_comes_again(
    world: World, in_memory: bool
) -> None:
    peer, writer = world.connect(), world.connect()
    await peer.subscribe("t", "g", BEGINNING, sticky=True)
    await writer.publish("t", 1, key="a")
    await writer.publish("t", 2)
    assert await peer.offsets() == [1, 2]
    peer.nack("t", "g", 1, delay_ms=5_000)
    peer.nack("t", "g", 2, delay_ms=5_000)
    if not in_memory:
        await writer.publish("t", 3, key="a")
    await settle(0.1)
    await world.kill()
    peer, writer = world.connect(), world.connect()
    await peer.subscribe("t", "g", sticky=True)
    if in_memory:
        await writer.publish("t", 3, key="a")
    await writer.publish("t", 4, key="b")
    assert await peer.offsets() == [4]
    await settle(5)
    assert await peer.offsets() == [1, 2]
    peer.nack("t", "g", 1, delay_ms=1_000)
    assert await peer.offsets() == []
    await settle(1)
    assert await peer.offsets() == [1]
    peer.ack("t", "g", 1)
    assert await peer.offsets() == [3]


@in_virtual_time
async def test_groups_come_back_on_a_node_that_may_keep_fewer_topics_than_it_has(world: World) -> None:
    peer = world.connect()
    for topic in ("a", "b", "c"):
        await peer.subscribe(topic, "g", LATEST)
    world.settings = Settings(metrics_interval_ms=0, max_topics=1)
    await world.kill()
    assert sorted(info.topic for info in world.bus.groups.infos()) == ["a", "b", "c"]


@pytest.mark.parametrize("members", [1, 2], ids=["an only member", "one of several"])
@in_virtual_time
async def test_a_lease_ends_when_its_time_is_up_and_not_a_millisecond_later(world: World, members: int) -> None:
    await world.create("t", ackTimeoutMs=2_000)
    peers = [world.connect() for _ in range(members)]
    for peer in peers:
        await peer.subscribe("t", "g", max_inflight=1)
    given = world.clock.now_ns()
    await world.connect().publish("t", 1)
    assert [m["attempt"] for peer in peers for m in await peer.messages()] == [1]
    for until_ms, attempts in ((1_999.5, []), (2_000.5, [2])):
        await settle((given - world.clock.now_ns()) / 1e9 + until_ms / 1e3)
        assert [m["attempt"] for peer in peers for m in peer.got] == attempts
