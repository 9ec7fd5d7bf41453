"""Trouble at every single write of a run on a shared log: one outcome, nothing lost, nothing exactly-once doubled.

The node that executes the run is killed before or after each of its commits, loses the answer of each, is stopped
longer than its lease around each, or has its lease taken away right before each.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mainspring.loop import VirtualClock, run_virtual
from mainspring.runs import Value, WaitSignal
from tests.support.shared_runs import LEASE_MS, Hop, Note, World, about_runs, node, outcomes_of, wait
from tests.support.trouble import FAULTS, Trouble


async def work(count: int, perform: Any) -> list[Any]:
    heard = []
    for n in range(count):
        await perform(Note(n))
        heard.append(await perform(WaitSignal("news", timeout=10**6)))
        await perform(Hop(n))
    return heard


async def story(world: World, fault: str, at: int) -> int:
    a, b, c = [await node(world, name, programs=(work,), recovery_ms=1_000) for name in "abc"]
    trouble = Trouble(a.member, fault, at, about_runs)
    run = a.start(work, 2, id="run")
    await wait(100)
    sent = [b.start(work, 2, id="run")]
    for n in range(2):
        while not await b.durable.signal("run", "news", n):
            await wait(LEASE_MS)  # the first write of all may have been in trouble
            sent.append(c.start(work, 2, id="run"))
            await wait(10)
        await wait(50)
    await wait(6 * LEASE_MS)
    where = f"{fault} commit {at}"
    outcomes = await outcomes_of(world)
    assert list(outcomes) == ["run"], where
    for each in (b, c):
        assert (await each.durable.find("run")).outcome_now() == Value([0, 1]), where
    assert all(handle.outcome_now() == Value([0, 1]) for handle in sent), where
    if not fault.startswith("killed"):
        assert run.outcome_now() == Value([0, 1]), where
    journal = (await b.durable.history("run")).journal
    assert [entry.effect for entry in journal] == ["Note", "WaitSignal", "Hop"] * 2, where
    assert all(entry.answered for entry in journal), where
    notes = [event.payload for event in await b.log.read("notes", 0, 1, 100)]
    assert notes == [b"0", b"1"], where
    hops = Counter(key for each in (a, b, c) for key, _ in each.hops)
    assert set(hops) == {"run#00000002", "run#00000005"}, where
    assert sum(hops.values()) <= 3, f"{where}: at most the interrupted effect is repeated"
    for each in (a, b, c):
        each.runtime.close()
    return trouble.commits


@pytest.mark.parametrize("fault", FAULTS)
def test_trouble_at_any_write_leaves_one_outcome_and_nothing_doubled(fault: str) -> None:
    def attempt(at: int) -> int:
        clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)
        return run_virtual(story(World(clock), fault, at), clock=clock)

    writes = attempt(0)
    assert writes >= 8, "the start, six answers and the outcome"
    for at in range(1, writes + 1):
        attempt(at)
