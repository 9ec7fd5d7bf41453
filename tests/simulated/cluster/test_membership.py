"""Who is alive: leases, silence, fencing and coming back."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.cluster import About, Alone, NameTaken
from mainspring.errors import MainspringError
from mainspring.log import Batch, FormatError, LogUnavailable, MissedTooMuch, Refused
from tests.support.cluster import LEASE_MS, Member, World, in_virtual_time, wait


def seen(member: Member) -> list[str]:
    return [node.name for node in member.cluster.nodes()]


@in_virtual_time
async def test_nodes_see_each_other_with_epochs_that_differ(world: World) -> None:
    a, b, c = await world.nodes("a", "b", "c")
    await wait(1)
    for member in (a, b, c):
        assert seen(member) == ["a", "b", "c"]
    epochs = {member.cluster.epoch for member in (a, b, c)}
    assert len(epochs) == 3
    assert all(c.cluster.alive(epoch) for epoch in epochs)
    assert all(a.cluster.alive(epoch) for epoch in epochs)


@in_virtual_time
async def test_nobody_is_taken_for_dead_while_all_are_well(world: World) -> None:
    members = await world.nodes("a", "b", "c")
    await wait(20 * LEASE_MS)
    for member in members:
        assert member.deaths == member.fenced == []
        assert await member.write()


@in_virtual_time
async def test_a_node_that_stops_in_order_is_gone_at_once(world: World) -> None:
    a, b = await world.nodes("a", "b")
    epoch = b.cluster.epoch
    await b.leave()
    await wait(1)
    assert a.deaths == [epoch]
    assert not a.cluster.alive(epoch)
    assert seen(a) == ["a"]


@in_virtual_time
async def test_a_node_that_died_is_noticed_after_its_lease_and_not_before(world: World) -> None:
    a, b = await world.nodes("a", "b")
    await wait(5 * LEASE_MS)
    epoch = b.cluster.epoch
    b.kill()
    await wait(LEASE_MS * 0.6)
    assert a.deaths == []
    await wait(LEASE_MS * 0.6)
    assert a.deaths == [epoch]
    assert not a.cluster.alive(epoch)


@in_virtual_time
async def test_every_survivor_hears_of_a_death_once(world: World) -> None:
    a, b, c, d = await world.nodes("a", "b", "c", "d")
    epoch = d.cluster.epoch
    d.kill()
    await wait(3 * LEASE_MS)
    assert a.deaths == b.deaths == c.deaths == [epoch]


@in_virtual_time
async def test_a_stopped_node_writes_nothing_under_its_old_lease_and_comes_back_with_a_new_one(world: World) -> None:
    a, b = await world.nodes("a", "b")
    before = b.cluster.epoch
    old = Batch()
    b.cluster.guard(old)
    old.put("test", "place", b"too late")
    b.stop()
    await wait(2 * LEASE_MS)
    assert a.deaths == [before]
    b.go_on()
    await wait(LEASE_MS)
    assert b.fenced == [before]
    assert b.deaths == [before], "the last one left must see to its own former things"
    assert b.cluster.epoch not in (before, 0)
    assert a.cluster.alive(b.cluster.epoch)
    assert seen(a) == ["a", "b"]
    with pytest.raises(Refused):
        await b.log.commit(old)
    assert await b.log.get("test", "place") is None
    assert await b.write()


@in_virtual_time
async def test_a_short_pause_costs_no_lease(world: World) -> None:
    a, b = await world.nodes("a", "b")
    before = b.cluster.epoch
    b.stop()
    await wait(LEASE_MS / 2)
    b.go_on()
    await wait(3 * LEASE_MS)
    assert a.deaths == b.deaths == b.fenced == []
    assert b.cluster.epoch == before


@in_virtual_time
async def test_a_node_that_slept_takes_nobody_for_dead(world: World) -> None:
    """Its own clock went on while it heard nothing; that is its silence, not theirs."""
    a, b, c = await world.nodes("a", "b", "c")
    b.stop()
    c.stop()
    await wait(0.8 * LEASE_MS)
    b.go_on()
    c.go_on()
    await wait(LEASE_MS / 2)
    assert a.deaths == b.deaths == c.deaths == []


@in_virtual_time
async def test_a_log_that_was_away_for_minutes_costs_no_leases(world: World) -> None:
    members = await world.nodes("a", "b", "c")
    epochs = [member.cluster.epoch for member in members]
    for member in members:
        member.engine.cut_off = True
    await wait(30 * LEASE_MS)
    assert not any(member.cluster.in_touch for member in members)
    for member in members:
        member.engine.join_again()
        await wait(700)
    await wait(3 * LEASE_MS)
    assert [member.cluster.epoch for member in members] == epochs
    assert all(member.deaths == member.fenced == [] for member in members)
    assert all(member.cluster.in_touch for member in members)


@in_virtual_time
async def test_a_node_alone_behind_a_cut_loses_its_lease_and_knows_that_it_is_not_certain(world: World) -> None:
    a, b = await world.nodes("a", "b")
    before = b.cluster.epoch
    b.engine.cut_off = True
    await wait(LEASE_MS * 1.5)
    assert a.deaths == [before]
    assert not b.cluster.in_touch
    assert not await b.write()
    assert b.fenced == []
    b.engine.join_again()
    await wait(LEASE_MS)
    assert b.fenced == [before]
    assert b.cluster.in_touch
    assert await b.write()


@in_virtual_time
async def test_lost_answers_change_nothing(world: World) -> None:
    a, b = await world.nodes("a", "b")
    for member in (a, b):
        member.engine.lose_answers = True
    c = Member(world, "c")
    c.engine.lose_answers = True
    await c.start()
    await wait(5 * LEASE_MS)
    assert a.deaths == b.deaths == c.deaths == []
    assert seen(a) == seen(b) == seen(c) == ["a", "b", "c"]


@in_virtual_time
async def test_lost_answers_while_coming_back_give_one_new_lease(world: World) -> None:
    a, b = await world.nodes("a", "b")
    before = b.cluster.epoch
    b.stop()
    await wait(2 * LEASE_MS)
    b.engine.lose_answers = True
    b.go_on()
    await wait(2 * LEASE_MS)
    b.engine.lose_answers = False
    await wait(LEASE_MS)
    assert b.fenced == [before]
    assert a.deaths == [before]
    assert a.cluster.alive(b.cluster.epoch)


@in_virtual_time
async def test_two_living_nodes_of_one_name_are_refused(world: World) -> None:
    first = await world.node("a")
    first.about = About(address="http://10.0.0.1:7070")
    first.cluster.announce()
    await wait(1)
    with pytest.raises(NameTaken, match=r"'a' is alive at http://10.0.0.1:7070") as failure:
        await world.node("a")
    assert "--node" in failure.value.remedy
    await wait(2 * LEASE_MS)
    assert first.fenced == []
    assert await first.write()


@in_virtual_time
async def test_a_node_that_died_can_start_again_under_its_name_when_its_lease_is_over(world: World) -> None:
    watcher = await world.node("watcher")
    first = await world.node("a")
    epoch = first.cluster.epoch
    first.kill()
    second = await world.node("a")
    assert second.cluster.epoch != epoch
    await wait(1)
    assert watcher.deaths == [epoch]
    assert seen(watcher) == ["a", "watcher"]


@in_virtual_time
async def test_the_next_owner_of_a_home_need_not_wait(world: World) -> None:
    watcher = await world.node("watcher")
    first = await world.node("a", home="disk-1")
    epoch = first.cluster.epoch
    first.kill()
    began = world.clock.now_ms()
    second = await world.node("a", home="disk-1")
    assert world.clock.now_ms() - began < 100
    await wait(1)
    assert watcher.deaths == [epoch]
    assert watcher.cluster.alive(second.cluster.epoch)


@in_virtual_time
async def test_of_two_nodes_with_one_home_the_later_one_stays_and_the_other_says_why(world: World) -> None:
    first = await world.node("a", home="copied")
    ousted: list[MainspringError] = []
    first.cluster.on_end(ousted.append)
    second = await world.node("a", home="copied")
    await wait(3 * LEASE_MS)
    assert [error.code for error in ousted] == ["name_taken"]
    assert not await first.write()
    assert second.fenced == []
    assert await second.write()


@in_virtual_time
async def test_clocks_of_day_that_disagree_by_years_are_harmless(world: World) -> None:
    a, b = await world.nodes("a", "b")
    for _ in range(10):
        await wait(LEASE_MS / 2)
        world.clock.shift_wall(365 * 86_400_000)
        await wait(LEASE_MS / 2)
        world.clock.shift_wall(-700 * 86_400_000)
    assert a.deaths == b.deaths == []


@in_virtual_time
async def test_each_lease_lasts_as_long_as_its_own_node_says(world: World) -> None:
    hasty = await world.node("hasty", lease_ms=1_000)
    calm = await world.node("calm", lease_ms=30_000)
    await wait(60_000)
    assert hasty.deaths == calm.deaths == []
    epoch = calm.cluster.epoch
    calm.kill()
    await wait(15_000)
    assert hasty.deaths == []
    await wait(20_000)
    assert hasty.deaths == [epoch]


@in_virtual_time
async def test_an_epoch_that_was_not_announced_yet_is_not_taken_for_dead(world: World) -> None:
    """A reader may be ahead of the news: it finds what a new node wrote before it hears of that node."""
    (a,) = await world.nodes("a")
    a.engine.cut_off = True
    b = await world.node("b")
    assert a.cluster.alive(b.cluster.epoch)
    a.engine.join_again()
    await wait(1)
    assert a.cluster.alive(b.cluster.epoch)
    await b.leave()
    await wait(1)
    assert not a.cluster.alive(b.cluster.epoch)


@in_virtual_time
async def test_what_died_before_a_node_joined_is_dead_for_it(world: World) -> None:
    a = await world.node("a")
    await a.leave()
    b = await world.node("b")
    assert not b.cluster.alive(a.cluster.epoch)


@in_virtual_time
async def test_nodes_tell_about_themselves(world: World) -> None:
    a, b = await world.nodes("a", "b")
    a.about = About(address="http://h:1", version="9.9", serves=("command:Stock.Reserve",))
    a.cluster.announce()
    await wait(1)
    found = next(node for node in b.cluster.nodes() if node.name == "a")
    assert (found.address, found.version, found.serves) == ("http://h:1", "9.9", ("command:Stock.Reserve",))
    assert found.epoch == a.cluster.epoch
    assert found.since == 1_700_000_000_000
    assert not found.here
    assert next(node for node in a.cluster.nodes() if node.name == "a").here


@in_virtual_time
async def test_leaving_without_a_log_ends_and_the_others_take_the_lease(world: World) -> None:
    a, b = await world.nodes("a", "b")
    epoch = b.cluster.epoch
    b.engine.cut_off = True
    await b.cluster.leave()
    await b.cluster.leave()
    await wait(2 * LEASE_MS)
    assert a.deaths == [epoch]


@in_virtual_time
async def test_joining_a_log_that_cannot_be_reached_says_so(world: World) -> None:
    member = Member(world, "a")
    member.loop.attach()
    await member.log.open()
    member.engine.cut_off = True
    with pytest.raises(LogUnavailable):
        await member.cluster.join()


@in_virtual_time
async def test_many_nodes_that_start_at_once_all_join(world: World) -> None:
    members = await asyncio.gather(*(world.node(f"n{number}") for number in range(20)))
    await wait(2 * LEASE_MS)
    assert all(len(seen(member)) == 20 for member in members)
    assert all(member.deaths == [] for member in members)


def test_a_node_on_its_own_log_is_alone() -> None:
    alone = Alone("here")
    batch = Batch()
    alone.guard(batch)
    alone.role("beats").guard(batch)
    assert batch.operations == []
    assert alone.in_touch
    assert alone.role("beats").held
    assert [node.name for node in alone.nodes()] == ["here"]


@in_virtual_time
async def test_a_record_that_cannot_be_read_does_not_stop_the_others(world: World) -> None:
    a = await world.node("a")
    batch = Batch()
    batch.put("leases", "node/broken", b"no json")
    batch.put("leases", "role/broken", b"7")
    batch.put("nodes", "broken", b"[]")
    await a.log.commit(batch)
    b = await world.node("b")
    await wait(3 * LEASE_MS)
    assert seen(a) == seen(b) == ["a", "b"]
    assert a.deaths == b.deaths == []


@in_virtual_time
async def test_a_broken_lease_under_the_own_name_is_an_error_and_not_a_wait_without_end(world: World) -> None:
    a = await world.node("a")
    batch = Batch()
    batch.put("leases", "node/b", b'{"from": "another program"}')
    await a.log.commit(batch)
    with pytest.raises(FormatError, match="the lease of node 'b' in the log cannot be read"):
        await world.node("b")


@in_virtual_time
async def test_a_log_that_can_be_followed_no_further_ends_the_node(world: World) -> None:
    a, b = await world.nodes("a", "b")
    ended: list[MainspringError] = []
    b.cluster.on_end(ended.append)

    async def missed(batches: object) -> None:
        raise MissedTooMuch("the journal is gone")

    b.engine.commit = missed  # type: ignore[method-assign, assignment]
    await wait(3 * LEASE_MS)
    assert [error.code for error in ended] == ["missed_too_much"]
    assert b.cluster.trouble == "the journal is gone"
    assert a.deaths == [b.cluster.epoch]


@pytest.mark.parametrize("away", [0.3, 0.5, 0.6, 0.8, 0.95, 1.1, 2.0])
@in_virtual_time
async def test_after_an_outage_of_any_length_who_is_back_first_waits_for_the_others(world: World, away: float) -> None:
    a, b = await world.nodes("a", "b")
    for phase in range(0, 3_000, 700):
        await wait(2 * LEASE_MS + phase)
        a.engine.cut_off = b.engine.cut_off = True
        await wait(away * LEASE_MS)
        a.engine.join_again()
        await wait(0.2 * LEASE_MS)
        b.engine.join_again()
    await wait(2 * LEASE_MS)
    assert a.deaths == b.deaths == a.fenced == b.fenced == []
