"""A process dies after each batch that it stored: whatever a family of durable runs was about, it ends the same way.

The first run is the one where nobody dies. Then the log is taken as it stood after each batch, another process goes on
from there, and the outcomes are compared. Nothing here is a race: the programs decide by what they were told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainspring.log import Batch, Log, MemoryEngine
from mainspring.loop import VirtualClock
from mainspring.runs import Cancelled, Failed, Sleep, Value
from tests.support.runs import Boom, Hop, World

HOUR = 3_600_000


class Witness(MemoryEngine):
    """Remembers what it held after each batch, and when that was."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.moments: list[tuple[MemoryEngine, int]] = []
        self._clock = clock

    def _decide(self, batch: Batch) -> Any:
        result = super()._decide(batch)
        copy = MemoryEngine()
        copy._records = {space: dict(records) for space, records in self._records.items()}
        copy._version = self._version
        self.moments.append((copy, self._clock.now_ms()))
        return result


async def failing(hops: int, perform: Any) -> None:
    for n in range(hops):
        await perform(Hop(n))
    raise Boom("no good")


async def napping(hours: int, perform: Any) -> str:
    await perform(Sleep(hours=hours))
    return "rested"


async def detaching(perform: Any) -> None:
    perform.detach(napping, 3)


async def joins_and_copes(perform: Any) -> str:
    child = perform.spawn(failing, 2)
    await perform.join(child)
    await perform(Sleep(hours=1))
    return "coped"


async def joins_in_a_group(perform: Any) -> str:
    async with perform.group() as group:
        await perform.join(group.spawn(failing, 0))
        group.spawn(napping, 1)
        await perform(Hop(1))
    return "coped"


async def tries_within(perform: Any) -> str:
    try:
        await perform.within("1h", failing, 1)
    except Exception:
        await perform(Sleep(hours=1))
    return "coped"


async def fails_with_its_group(perform: Any) -> None:
    await perform(Hop(0))
    async with perform.group() as group:
        group.spawn(napping, 1)
        group.spawn(failing, 1)
        await perform(Sleep(hours=2))


async def fails_while_children_begin(perform: Any) -> None:
    await perform(Hop(0))
    async with perform.group() as group:
        group.spawn(fails_with_its_group)
        group.spawn(napping, 1)
        raise Boom("before they have begun")


async def never_looks(perform: Any) -> str:
    perform.spawn(failing, 1)
    await perform(Sleep(hours=1))
    return "never"


async def takes_detached_along(perform: Any) -> None:
    perform.spawn(detaching)
    await perform(Sleep(hours=1))
    raise Boom("after an hour")


PROGRAMS: dict[Callable[..., Any], dict[str, str]] = {
    joins_and_copes: {"a": "done", "a~1": "failed"},
    joins_in_a_group: {"a": "done", "a~1": "failed", "a~2": "done"},
    tries_within: {"a": "done", "a~1": "failed"},
    fails_with_its_group: {"a": "failed", "a~1": "cancelled", "a~2": "failed"},
    fails_while_children_begin: {"a": "failed", "a~1": "cancelled", "a~2": "cancelled"},
    never_looks: {"a": "failed", "a~1": "failed"},
    takes_detached_along: {"a": "failed", "a~1": "done", "a~1~1": "cancelled"},
}


async def boot(engine: MemoryEngine, clock: VirtualClock) -> World:
    log = Log(engine)
    await log.open()
    world = World(clock=clock, log=log, recovery_ms=HOUR)
    for program in (*PROGRAMS, failing, napping, detaching):
        world.runtime.register(program, program.__name__)
    await world.runtime.start_service()
    return world


async def endings(world: World) -> dict[str, str]:
    await world.runtime.elapse(5 * HOUR)
    assert world.runtime.live == 0
    return {record.id: record.state for record in await world.runtime.durable.store.runs()}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
async def test_a_family_ends_the_same_way_wherever_its_process_died(program: Callable[..., Any]) -> None:
    clock = VirtualClock(wall_ms=1_000_000_000)
    engine = Witness(clock)
    world = await boot(engine, clock)
    world.runtime.start(program, durable=True, id="a")
    assert await endings(world) == PROGRAMS[program]
    for number, (moment, time) in enumerate(list(engine.moments)):
        later = VirtualClock(wall_ms=1_000_000_000)
        later.move_to(time)
        after = await endings(await boot(moment, later))
        expected = {run_id: PROGRAMS[program][run_id] for run_id in after}  # some may never have begun
        assert after == expected, f"died after batch {number}"


async def test_a_child_that_is_ended_because_its_parent_is_over_says_so() -> None:
    clock = VirtualClock(wall_ms=1_000_000_000)
    engine = Witness(clock)
    world = await boot(engine, clock)
    world.runtime.start(fails_while_children_begin, durable=True, id="a")
    await world.runtime.settle()
    left = next(copy for copy, _ in engine.moments if "a" in copy._records.get("runs", {}))
    assert "a~1" in left._records["runs/live"], "the moment this is about"
    world = await boot(left, clock)
    await world.runtime.settle()
    child = await world.runtime.durable.find("a~1")
    assert child.outcome_now() == Cancelled("its owner a ended")
    root = (await world.runtime.durable.find("a")).outcome_now()
    assert isinstance(root, Failed)


async def test_a_child_tried_again_by_hand_stands_on_its_own() -> None:
    clock = VirtualClock(wall_ms=1_000_000_000)
    engine = MemoryEngine()
    world = await boot(engine, clock)
    world.runtime.start(fails_with_its_group, durable=True, id="a")
    await world.runtime.settle()
    await world.runtime.durable.retry("a~1")
    await world.runtime.settle()
    world.runtime.close()
    world = await boot(engine, clock)
    await world.runtime.elapse(HOUR)
    assert (await world.runtime.durable.find("a~1")).outcome_now() == Value("rested")
