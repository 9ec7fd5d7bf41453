"""Families of runs on a shared log, whose node dies after each of its writes: they end as if it had not."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.loop import VirtualClock, run_virtual
from mainspring.runs import Sleep
from tests.support.shared_runs import LEASE_MS, Hop, World, about_runs, node, wait
from tests.support.trouble import Trouble

MINUTE = 60_000


async def failing(perform: Any) -> None:
    await perform(Hop(0))
    raise ValueError("no good")


async def napping(minutes: int, perform: Any) -> None:
    await perform(Sleep(minutes=minutes))


async def detaching(perform: Any) -> None:
    perform.detach(napping, 30)


async def fails_while_children_begin(perform: Any) -> None:
    await perform(Hop(0))
    async with perform.group() as group:
        group.spawn(napping, 10)
        raise ValueError("before it has begun")


async def fails_with_its_group(perform: Any) -> None:
    await perform(Hop(0))
    async with perform.group() as group:
        group.spawn(napping, 10)
        group.spawn(failing)
        await perform(Sleep(minutes=20))


async def takes_detached_along(perform: Any) -> None:
    perform.spawn(detaching)
    await perform(Sleep(minutes=10))
    raise ValueError("after a while")


async def joins_and_copes(perform: Any) -> str:
    await perform.join(perform.spawn(failing))
    await perform(Sleep(minutes=10))
    return "coped"


ENDINGS: dict[Any, dict[str, str]] = {
    fails_while_children_begin: {"a": "failed", "a~1": "cancelled"},
    fails_with_its_group: {"a": "failed", "a~1": "cancelled", "a~2": "failed"},
    takes_detached_along: {"a": "failed", "a~1": "done", "a~1~1": "cancelled"},
    joins_and_copes: {"a": "done", "a~1": "failed"},
}


async def story(world: World, program: Any, at: int) -> int:
    programs = (*ENDINGS, failing, napping, detaching)
    a, b = [await node(world, name, programs=programs, recovery_ms=1_000) for name in "ab"]
    trouble = Trouble(a.member, "killed after", at, about_runs)
    a.start(program, id="a")
    await wait(6 * LEASE_MS + 40 * MINUTE)
    ended = {record.id: record.state for record in await b.durable.store.runs()}
    expected = {run_id: state for run_id, state in ENDINGS[program].items() if run_id in ended}
    assert ended == expected, f"killed after commit {at}"
    assert "a" in ended
    for each in (a, b):
        each.runtime.close()
    return trouble.commits


@pytest.mark.slow
@pytest.mark.parametrize("program", ENDINGS, ids=lambda program: program.__name__)
def test_a_family_ends_the_same_way_wherever_its_node_was_killed(program: Any) -> None:
    def attempt(at: int) -> int:
        clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)
        return run_virtual(story(World(clock), program, at), clock=clock)

    for at in range(1, attempt(0) + 1):
        attempt(at)
