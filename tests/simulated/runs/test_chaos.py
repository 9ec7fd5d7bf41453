"""Many runs, several nodes, and whatever can happen to them, in an order that a seed decides."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mainspring.loop import VirtualClock, run_virtual
from mainspring.runs import Value
from tests.support.shared_runs import LEASE_MS, Node, World, node, noter, outcomes_of, wait
from tests.support.trouble import recover, weather

RUNS = 12
STEPS = 3
KILLED = 1 / 6  # of all that happens


async def storm(world: World, chance: random.Random) -> None:
    names = iter(f"node{n}" for n in range(100))
    living = [await node(world, next(names), recovery_ms=1_000) for _ in range(3)]
    everyone = list(living)
    started: list[str] = []
    for step in range(24):
        while len(started) * 2 <= step and len(started) < RUNS:
            run_id = f"run-{len(started)}"
            started.append(run_id)
            for each in chance.sample(living, chance.randint(1, 2)):
                each.start(noter, STEPS, id=run_id)
        await trouble(world, chance, living, everyone, names)
        await wait(chance.choice((5, 40, 200, LEASE_MS / 2)))
    for each in living:
        recover(each.member)
    await wait(4 * LEASE_MS)
    for run_id in started:  # those that a killed node was about to write down are started by whoever wanted them
        living[0].start(noter, STEPS, id=run_id)
    await wait(4 * LEASE_MS)
    await decide(world, living, everyone, started)
    for each in everyone:
        each.runtime.close()


async def trouble(world: World, chance: random.Random, living: list[Node], everyone: list[Node], names: object) -> None:
    victim = chance.choice(living)
    if chance.random() < KILLED and len(living) > 1:
        living.remove(victim)
        victim.kill()
        living.append(await node(world, next(names), recovery_ms=1_000))  # type: ignore[call-overload]
        everyone.append(living[-1])
    else:
        await weather(victim.member, chance)


async def decide(world: World, living: list[Node], everyone: list[Node], started: list[str]) -> None:
    outcomes = await outcomes_of(world)
    assert sorted(outcomes) == sorted(started)
    assert {record.state for record in outcomes.values()} == {"done"}
    notes = Counter(event.id.partition("@")[0] for event in await living[0].log.read("notes", 0, 1, 10_000))
    assert notes == {f"{run_id}#{3 * n:08d}": 1 for run_id in started for n in range(STEPS)}
    for run_id in started:
        journal = (await living[-1].durable.history(run_id)).journal
        assert [entry.effect for entry in journal] == ["Note", "Hop", "Sleep"] * STEPS
        for each in living:
            assert (await each.durable.find(run_id)).outcome_now() == Value(STEPS)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_every_run_has_one_outcome(seed: int) -> None:
    clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)
    run_virtual(storm(World(clock), random.Random(seed)), clock=clock)
