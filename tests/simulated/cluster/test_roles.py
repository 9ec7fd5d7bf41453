"""Work for one node at a time."""

from __future__ import annotations

from mainspring.log import Batch, Refused
from tests.support.cluster import LEASE_MS, World, in_virtual_time, wait


@in_virtual_time
async def test_one_node_has_a_role_and_everyone_knows_who(world: World) -> None:
    members = await world.nodes("a", "b", "c")
    roles = [member.want("beats") for member in members]
    await wait(1)
    assert [role.held for role in roles].count(True) == 1
    holder = next(member.name for member, role in zip(members, roles, strict=True) if role.held)
    for member in members:
        assert [node.name for node in member.cluster.nodes() if "beats" in node.roles] == [holder]


@in_virtual_time
async def test_a_role_passes_on_at_once_when_its_node_stops_in_order(world: World) -> None:
    a, b = await world.nodes("a", "b")
    a.want("beats")
    await wait(1)
    later = b.want("beats")
    await wait(1)
    assert not later.held
    await a.leave()
    await wait(1)
    assert later.held
    assert a.roles == [("beats", True), ("beats", False)]
    assert b.roles == [("beats", True)]


@in_virtual_time
async def test_a_role_passes_on_when_its_node_dies(world: World) -> None:
    a, b = await world.nodes("a", "b")
    a.want("beats")
    await wait(1)
    later = b.want("beats")
    a.kill()
    await wait(1.5 * LEASE_MS)
    assert later.held


@in_virtual_time
async def test_a_stopped_holder_writes_nothing_once_the_role_has_passed_on(world: World) -> None:
    a, b = await world.nodes("a", "b")
    first = a.want("beats")
    await wait(1)
    second = b.want("beats")
    late = Batch()
    first.guard(late)
    late.put("test", "place", b"late")
    a.stop()
    await wait(1.5 * LEASE_MS)
    assert second.held
    a.go_on()
    await wait(LEASE_MS)
    assert not first.held
    assert a.roles == [("beats", True), ("beats", False)]
    (result,) = await a.engine.commit([late])
    assert isinstance(result, Refused)
    assert await b.write("by the holder", second)
    assert not await a.write("by another", first)


@in_virtual_time
async def test_the_guard_of_a_role_never_had_never_holds(world: World) -> None:
    a, b = await world.nodes("a", "b")
    a.want("beats")
    await wait(1)
    assert not await b.write("x", b.want("beats"))


@in_virtual_time
async def test_a_lost_answer_does_not_lose_the_role(world: World) -> None:
    (a,) = await world.nodes("a")
    a.engine.lose_answers = True
    role = a.want("beats")
    await wait(1)
    assert role.held
    a.engine.lose_answers = False
    assert await a.write("x", role)


@in_virtual_time
async def test_a_role_wanted_while_the_log_is_away_is_had_when_it_is_back(world: World) -> None:
    (a,) = await world.nodes("a")
    a.engine.cut_off = True
    role = a.want("beats")
    await wait(100)
    assert not role.held
    a.engine.join_again()
    await wait(LEASE_MS)
    assert role.held


@in_virtual_time
async def test_roles_are_independent(world: World) -> None:
    a, b = await world.nodes("a", "b")
    first, second = a.want("one"), b.want("two")
    await wait(1)
    assert first.held
    assert second.held
    assert a.want("one") is first
