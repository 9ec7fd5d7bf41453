"""Trouble at every write of a shared line, and storms of it: each signal once, one chain of digests, on every node."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mainspring.beats import RETRY, Heartbeat
from mainspring.log import Log, Operation
from mainspring.loop import VirtualClock, run_virtual
from tests.support.shared_beats import LEASE_MS, Node, World, install, nodes, publish, seen, signals_of, wait
from tests.support.trouble import FAULTS, Trouble, recover, weather

KILLED = 1 / 6  # of all that happens


def about_beats(operation: Operation) -> bool:
    return "beats" in getattr(operation, "space", getattr(operation, "topic", ""))


async def story(world: World, fault: str, at: int) -> int:
    a, b, c = await nodes(world, "a", "b", "c", topic="orders")
    assert a.heartbeat.leads
    trouble = Trouble(a.member, fault, at, about_beats)
    for n in range(3):
        b.heartbeat.bind(f"/places/{n}", "bound")
        await b.signal(f"/jobs/b{n}")
        await c.signal(f"/jobs/c{n}", beat=c.heartbeat.next_beat + 2)
        await c.signal("/place", f"/places/{n}/x")
        await publish(c.log, "orders", f"e{n}")
        await wait(250)
    await wait(7 * LEASE_MS)
    where = f"{fault} commit {at}"
    living = [b, c] if fault.startswith("killed") else [a, b, c]
    await same_everywhere(world, living, where)
    expected = {f"/jobs/{who}{n}": 1 for who in "bc" for n in range(3)}
    expected |= {f"/topics/orders/0/{n + 1}": 1 for n in range(3)}
    assert seen(b) == expected, where
    assert b.heartbeat.paths("/bound") == [f"/bound/places/{n}/x" for n in range(3)], where
    assert len(await signals_of(world)) == len(expected) + 3, where
    return trouble.commits


async def same_everywhere(world: World, living: list[Node], where: str) -> None:
    """Every node reads what the log holds, and the chain of digests is whole."""
    fresh = Heartbeat(Log(world.shared.engine()))
    install(fresh)
    await fresh.open()
    assert await fresh.averify() == [], where
    assert (await fresh.areplay()).identical, where
    for each in living:
        state, other = each.heartbeat.state, fresh.state
        assert (state.beat, state.digest, state.paused) == (other.beat, other.digest, other.paused), where
        assert state.cells.versions(state.beat + 1) == other.cells.versions(other.beat + 1), where
        assert state.bindings.records() == other.bindings.records(), where
        assert {k: v for k, v in state.queues.items() if v} == {k: v for k, v in other.queues.items() if v}, where
        assert state.content.texts() == other.content.texts(), where
        assert state.dead == other.dead, where
        assert (await each.heartbeat.areplay()).identical, where
        for beat in range(1, state.beat + 1):
            assert each.heartbeat.paths("/", beat) == fresh.paths("/", beat), where


@pytest.mark.parametrize("fault", FAULTS)
def test_trouble_at_any_write_of_the_leader_loses_and_doubles_nothing(fault: str) -> None:
    def attempt(at: int) -> int:
        clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)
        return run_virtual(story(World(clock), fault, at), clock=clock)

    writes = attempt(0)
    assert writes >= 8
    for at in range(1, writes + 1):
        attempt(at)


def flaky(signal: str, target: str | None, stage: Any) -> int | None:
    """Fails now and then, keeps long texts, and gives itself more work."""
    number = int(signal.rpartition("/")[2])
    if number % 5 == 0 and stage.attempt == 1:
        return RETRY
    stage.write(f"/long/{number % 7}", f"{signal} " * 200)
    if number % 3 == 0 and stage.read(f"/done/{number}") is None:
        stage.signal(f"/flaky/{number + 1}", beat=stage.beat + 1 + number % 4)
    stage.write(f"/done/{number}", stage.beat)
    return None


async def storm(world: World, chance: random.Random) -> None:
    names = iter(f"node{n}" for n in range(100))
    living: list[Node] = []
    rules: dict[str, Any] = {"max_signals_per_beat": 3, "retain_beats": chance.choice((None, 8))}

    async def begin() -> None:
        made = Node(await world.node(next(names)), "orders", **rules)
        made.heartbeat.register("flaky", "/flaky", flaky, match="prefix")
        await made.start()
        living.append(made)

    for _ in range(3):
        await begin()
    sent = published = 0
    for _ in range(30):
        for _ in range(chance.randint(0, 4)):
            living[-1].heartbeat.signal(f"/jobs/{sent}")
            living[-1].heartbeat.signal(f"/flaky/{10 * sent}", beat=None)
            sent += 1
        if chance.random() < 0.5 and not living[0].engine.cut_off and not living[0].engine.lose_answers:
            await publish(living[0].log, "orders", f"e{published}")
            published += 1
        await trouble(chance, living, begin)
        await wait(chance.choice((5, 50, 300, LEASE_MS / 2)))
        for each in living[-1:]:
            recover(each.member)
            await each.heartbeat.aflush()  # what a node has not sent dies with it, and nobody was told otherwise
    for each in living:
        recover(each.member)
    await wait(12 * LEASE_MS)
    assert sum(each.heartbeat.leads for each in living) == 1
    assert seen(living[0]) == {f"/jobs/{n}": 1 for n in range(sent)} | {
        f"/topics/orders/0/{n + 1}": 1 for n in range(published)
    }
    if rules["retain_beats"] is None:
        found = Heartbeat(Log(world.shared.engine()), **rules)
        install(found)
        found.register("flaky", "/flaky", flaky, match="prefix")
        await found.open()
        assert await found.averify() == []
        assert (await found.areplay()).identical
    digests = {each.heartbeat.digest for each in living}
    assert len(digests) == 1
    texts = [(each.heartbeat.state.content.texts(), each.heartbeat.state.cells.versions(10**9)) for each in living]
    if rules["retain_beats"] is None:
        assert all(text == texts[0] for text in texts)


async def trouble(chance: random.Random, living: list[Node], begin: Any) -> None:
    victim = chance.choice(living)
    if chance.random() < KILLED and len(living) > 2 and not victim.heartbeat.waiting:
        living.remove(victim)
        victim.kill()
        await begin()
    else:
        await weather(victim.member, chance)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_each_signal_is_worked_on_once(seed: int) -> None:
    clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)
    run_virtual(storm(World(clock), random.Random(seed)), clock=clock)
