"""One node leads a line of beats; whatever comes to the others reaches it; when it dies another goes on."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.beats import Heartbeat
from mainspring.beats.errors import NotLeading, PastBeat
from mainspring.log import Log, LogUnavailable
from tests.support.shared_beats import (
    LEASE_MS,
    Node,
    World,
    digests,
    in_virtual_time,
    install,
    journals,
    leader,
    node,
    nodes,
    publish,
    seen,
    signals_of,
    wait,
)


def others(made: list[Node]) -> list[Node]:
    return [each for each in made if not each.heartbeat.leads]


@in_virtual_time
async def test_one_node_beats_and_everybody_can_signal_and_read(world: World) -> None:
    made = await nodes(world, "a", "b", "c")
    for n, each in enumerate(made):
        await each.signal(f"/jobs/{n}")
    await wait(100)
    assert sum(bool(each.reports) for each in made) == 1
    for each in made:
        assert seen(each) == {"/jobs/0": 1, "/jobs/1": 1, "/jobs/2": 1}
        assert each.heartbeat.digest == leader(made).heartbeat.digest
        assert each.heartbeat.next_beat == leader(made).heartbeat.next_beat
        assert await each.heartbeat.averify() == []
        assert each.heartbeat.waiting == 0


@in_virtual_time
async def test_beats_are_for_the_leader_alone(world: World) -> None:
    made = await nodes(world, "a", "b")
    with pytest.raises(NotLeading) as refused:
        await others(made)[0].heartbeat.abeat()
    assert refused.value.remedy == f"ask node {leader(made).name}"
    assert (await leader(made).heartbeat.abeat()).beat == 1


@in_virtual_time
async def test_another_node_goes_on_with_the_same_chain_of_digests(world: World) -> None:
    made = await nodes(world, "a", "b", "c")
    alone = Heartbeat()
    install(alone)
    for n in range(6):
        sender = made[n % len(made)]
        await sender.signal(f"/jobs/{n}")
        await wait(50)
        alone.signal(f"/jobs/{n}")
        alone.beat()
        if n == 2:
            dead = leader(made)
            dead.kill()
            made.remove(dead)
            await wait(2 * LEASE_MS)
    await wait(100)
    assert (await digests(world)) == [alone.read(f"/rt/beat/{beat}/digest") for beat in range(1, 7)]
    for each in made:
        assert seen(each) == {f"/jobs/{n}": 1 for n in range(6)}
        assert await each.heartbeat.averify() == []
    replay = await leader(made).heartbeat.areplay()
    assert replay.identical


@in_virtual_time
async def test_what_was_sent_to_a_dead_leader_is_worked_on_by_the_next(world: World) -> None:
    made = await nodes(world, "a", "b")
    dead, living = leader(made), others(made)[0]
    dead.kill()
    await living.signal("/jobs/1")
    await living.signal("/jobs/2", beat=5)
    await wait(2 * LEASE_MS)
    assert living.heartbeat.leads
    await wait(2_000)
    assert await signals_of(world) == ["/jobs/1", "/jobs/2"]
    assert living.heartbeat.next_beat == 6


@in_virtual_time
async def test_a_stopped_leader_cannot_add_a_beat_after_it_was_replaced(world: World) -> None:
    made = await nodes(world, "a", "b")
    stopped, living = leader(made), others(made)[0]
    await stopped.signal("/jobs/1")
    await wait(50)
    stopped.freeze()
    stopped.heartbeat.signal("/jobs/local")
    await wait(2 * LEASE_MS)
    await living.signal("/jobs/2")
    await wait(50)
    stopped.thaw()
    await wait(2 * LEASE_MS)
    assert living.heartbeat.leads
    assert not stopped.heartbeat.leads
    for each in made:
        assert seen(each) == {"/jobs/1": 1, "/jobs/2": 1, "/jobs/local": 1}
        assert each.heartbeat.digest == living.heartbeat.digest
        assert await each.heartbeat.averify() == []


@in_virtual_time
async def test_a_write_whose_answer_was_lost_is_looked_up_and_not_repeated(world: World) -> None:
    made = await nodes(world, "a", "b")
    lead, other = leader(made), others(made)[0]
    for n in range(5):
        lead.engine.lose_answers = True
        await other.signal(f"/jobs/{n}")
        await wait(20)
        lead.engine.lose_answers = False
        await wait(1_000)
    assert seen(lead) == seen(other) == {f"/jobs/{n}": 1 for n in range(5)}
    assert await signals_of(world) == [f"/jobs/{n}" for n in range(5)]
    assert await lead.heartbeat.averify() == []


@in_virtual_time
async def test_a_signal_whose_answer_was_lost_arrives_once(world: World) -> None:
    made = await nodes(world, "a", "b")
    other = others(made)[0]
    other.engine.lose_answers = True
    other.heartbeat.signal("/jobs/1")
    await wait(1_000)
    other.engine.lose_answers = False
    await other.signal("/jobs/2")
    await wait(1_000)
    assert await signals_of(world) == ["/jobs/1", "/jobs/2"]


@in_virtual_time
async def test_bindings_and_pauses_reach_the_leader_from_any_node(world: World) -> None:
    made = await nodes(world, "a", "b")
    lead, other = leader(made), others(made)[0]
    other.heartbeat.bind("/places", "bound")
    await other.signal("/place", "/places/1")
    await wait(100)
    assert other.heartbeat.paths("/bound") == ["/bound/places/1"]
    assert other.heartbeat.resolve("/place", "/places/2") == ["bound"]
    other.heartbeat.pause()
    await other.signal("/jobs/1")
    await wait(1_000)
    assert other.heartbeat.paused
    assert lead.heartbeat.paused
    assert seen(other) == {}
    assert other.heartbeat.waiting == lead.heartbeat.waiting == 1
    lead.kill()
    await wait(2 * LEASE_MS)
    assert other.heartbeat.paused
    other.heartbeat.resume()
    other.heartbeat.unbind("/places", "bound")
    await other.heartbeat.aflush()
    await wait(1_000)
    assert seen(other) == {"/jobs/1": 1}
    assert other.heartbeat.resolve("/place", "/places/2") == []


@in_virtual_time
async def test_bindings_a_program_declares_are_in_force_whoever_leads(world: World) -> None:
    made = []
    for name in "ab":
        each = Node(await world.node(name), None)
        each.heartbeat.bind("/declared", "bound")
        await each.start()
        made.append(each)
    await wait(100)
    await others(made)[0].signal("/place", "/declared/1")
    await wait(100)
    dead = leader(made)
    dead.kill()
    made.remove(dead)
    await wait(2 * LEASE_MS)
    await made[0].signal("/place", "/declared/2")
    await wait(100)
    assert made[0].heartbeat.paths("/bound") == ["/bound/declared/1", "/bound/declared/2"]


@in_virtual_time
async def test_events_of_a_topic_become_signals_exactly_once_across_take_overs(world: World) -> None:
    made = await nodes(world, "a", "b", "c", topic="orders")
    sent = 0
    for _ in range(4):
        for _ in range(5):
            await publish(made[-1].log, "orders", f"e{sent}")
            sent += 1
            await wait(7)
        lead = leader(made)
        lead.freeze()
        await publish(others(made)[0].log, "orders", f"e{sent}")
        sent += 1
        await wait(2 * LEASE_MS)
        lead.thaw()
        await wait(LEASE_MS)
    for each in made:
        assert seen(each) == {f"/topics/orders/0/{n + 1}": 1 for n in range(sent)}
    assert await signals_of(world) == [f"/topics/orders/0/{n + 1}" for n in range(sent)]


@in_virtual_time
async def test_past_beats_are_read_anywhere_and_forks_made_anywhere(world: World) -> None:
    made = await nodes(world, "a", "b")
    other = others(made)[0]
    for n in range(3):
        await other.signal(f"/jobs/{n}")
        await wait(50)
    assert await other.heartbeat.aread("/seen/jobs/1", 2) is None
    assert await other.heartbeat.aread("/seen/jobs/1", 3) == 1
    assert (await other.heartbeat.aread("/rt/beat/2/inbox"))[0]["signal"] == "/jobs/1"
    assert await other.heartbeat.aread("/rt/beat/3/digest") == (await digests(world))[2]
    await other.heartbeat.afork(2, "branch")
    branch = Heartbeat(Log(world.shared.engine()), line="branch")
    await branch.open()
    assert branch.paths("/seen") == ["/seen/jobs/0", "/seen/jobs/1"]
    with pytest.raises(PastBeat):
        other.heartbeat.signal("/jobs/late", beat=1)


@in_virtual_time
async def test_old_beats_are_forgotten_everywhere(world: World) -> None:
    made = await nodes(world, "a", "b", retain_beats=5)
    other = others(made)[0]
    for n in range(20):
        await other.signal(f"/jobs/{n}")
        await wait(20)
    lead = leader(made)
    assert len(await journals(world)) <= 7
    assert other.heartbeat.state.oldest >= lead.heartbeat.state.oldest - 1
    assert len(seen(other)) == 20
    late = await node(world, "late", retain_beats=5)
    assert seen(late) == seen(other) == seen(lead)


@in_virtual_time
async def test_a_node_that_leaves_in_order_hands_over_at_once(world: World) -> None:
    made = await nodes(world, "a", "b")
    lead, other = leader(made), others(made)[0]
    await lead.signal("/jobs/1")
    await lead.leave()
    await wait(100)
    assert other.heartbeat.leads
    await wait(100)
    assert seen(other) == {"/jobs/1": 1}


@in_virtual_time
async def test_a_former_leader_that_could_not_read_the_line_tries_again_by_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nothing happens in the line any more that could remind it."""
    a, b = await nodes(world, "a", "b")
    a.freeze()
    await wait(2 * LEASE_MS)
    await b.signal("/jobs/1")
    await wait(500)
    scan = a.log.scan
    slow_until = world.clock.now_ms() + 3_000

    def slow(space: str, *arguments: Any) -> Any:
        if space == "beats" and world.clock.now_ms() < slow_until:
            raise LogUnavailable("the server is slow")
        return scan(space, *arguments)

    monkeypatch.setattr(a.log, "scan", slow)
    a.thaw()
    await wait(LEASE_MS)
    assert seen(a) == seen(b) == {"/jobs/1": 1}


@in_virtual_time
async def test_a_node_that_leaves_does_not_read_the_line_once_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await nodes(world, "a", "b")
    first = leader(made)
    await first.signal("/jobs/0")
    await wait(100)
    reads: list[str] = []
    get = Log.get

    async def slow(self: Log, space: str, key: str) -> Any:
        if self is first.log:
            reads.append(key)
            await wait(1_000)
        return await get(self, space, key)

    monkeypatch.setattr(Log, "get", slow)
    await first.driver.stop()
    await first.heartbeat.aclose()
    await first.member.cluster.leave()  # which ends its role
    await wait(100)
    assert reads == []
