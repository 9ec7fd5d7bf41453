"""Trouble at every write of a shared line, and storms of it: each signal once, one chain of digests, on every node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring.beats import RETRY, Heartbeat
from mainspring.log import Batch, Delete, Log, LogUnavailable
from mainspring.loop import VirtualClock, run_virtual

from .kit import LEASE_MS, Node, World, install, nodes, publish, seen, signals_of, wait

FAULTS = ("killed before", "killed after", "answer lost", "stopped before", "stopped after", "lease taken before")


class Trouble:
    """Lets a node's commits through, except that something happens around one of those that are about beats."""

    def __init__(self, victim: Node, fault: str, at: int) -> None:
        self.victim, self.fault, self.at = victim, fault, at
        self.commits = 0
        self._commit = victim.engine.commit
        victim.engine.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, batches: Sequence[Batch]) -> Any:
        operations = [operation for batch in batches for operation in batch.operations]
        if not any("beats" in getattr(each, "space", getattr(each, "topic", "")) for each in operations):
            return await self._commit(batches)
        self.commits += 1
        if self.commits != self.at:
            return await self._commit(batches)
        return await self._trouble(batches)

    async def _trouble(self, batches: Sequence[Batch]) -> Any:
        victim, fault = self.victim, self.fault
        if fault == "answer lost":
            victim.engine.lose_answers = True
            try:
                return await self._commit(batches)
            finally:
                victim.engine.lose_answers = False
        if fault == "lease taken before":
            other = next(each for each in victim.member.world.members if each is not victim.member)
            await other.log.commit(Batch([Delete("leases", f"node/{victim.name}")]))
            return await self._commit(batches)
        results = await self._commit(batches) if fault.endswith("after") else None
        (victim.kill if fault.startswith("killed") else victim.freeze)()
        if fault.startswith("killed"):
            await asyncio.get_running_loop().create_future()
        await wait(3 * LEASE_MS)
        victim.thaw()
        await wait(5)
        if results is None:
            try:
                return await self._commit(batches)
            except LogUnavailable:
                return await self._commit(batches)
        return results


async def story(world: World, fault: str, at: int) -> int:
    a, b, c = await nodes(world, "a", "b", "c", topic="orders")
    assert a.heartbeat.leads
    trouble = Trouble(a, fault, at)
    for n in range(3):
        b.heartbeat.bind(f"/places/{n}", "bound")
        await b.signal(f"/work/b{n}")
        await c.signal(f"/work/c{n}", beat=c.heartbeat.next_beat + 2)
        await c.signal("/place", f"/places/{n}/x")
        await publish(c.log, "orders", f"e{n}")
        await wait(250)
    await wait(7 * LEASE_MS)
    where = f"{fault} commit {at}"
    living = [b, c] if fault.startswith("killed") else [a, b, c]
    await same_everywhere(world, living, where)
    expected = {f"/work/{who}{n}": 1 for who in "bc" for n in range(3)}
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
            living[-1].heartbeat.signal(f"/work/{sent}")
            living[-1].heartbeat.signal(f"/flaky/{10 * sent}", beat=None)
            sent += 1
        if chance.random() < 0.5 and not living[0].engine.cut_off and not living[0].engine.lose_answers:
            await publish(living[0].log, "orders", f"e{published}")
            published += 1
        await trouble(chance, living, begin)
        await wait(chance.choice((5, 50, 300, LEASE_MS / 2)))
        for each in living[-1:]:
            recover(each)
            await each.heartbeat.aflush()  # what a node has not sent dies with it, and nobody was told otherwise
    for each in living:
        recover(each)
    await wait(12 * LEASE_MS)
    assert sum(each.heartbeat.leads for each in living) == 1
    assert seen(living[0]) == {f"/work/{n}": 1 for n in range(sent)} | {
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
    what = chance.choice(("kill", "freeze", "cut", "doubt", "well", "well"))
    if what == "kill" and len(living) > 2 and not victim.heartbeat.waiting:
        living.remove(victim)
        victim.kill()
        await begin()
    elif what == "freeze":
        victim.freeze()
        await wait(chance.choice((100, 2 * LEASE_MS)))
        victim.thaw()
    elif what == "cut":
        victim.engine.cut_off = True
    elif what == "doubt":
        victim.engine.lose_answers = True
    else:
        recover(victim)


def recover(victim: Node) -> None:
    victim.engine.lose_answers = False
    victim.engine.join_again()


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_each_signal_is_worked_on_once(seed: int) -> None:
    clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)
    run_virtual(storm(World(clock), random.Random(seed)), clock=clock)
