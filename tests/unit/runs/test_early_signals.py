"""Signals to a run that has not started are kept for it, for a time and up to a number."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.log import Log
from mainspring.loop import VirtualClock
from mainspring.runs import RunError, Signal, Value, WaitSignal
from tests.support.runs import World

HOUR = 3_600_000


async def two(perform: Any) -> list[Any]:
    return [await perform(WaitSignal("news")), await perform(WaitSignal("news"))]


async def boot(log: Log, **settings: Any) -> World:
    world = World(log=log, **settings)
    world.runtime.register(two, "two")
    await world.runtime.start_service()
    return world


@pytest.mark.parametrize("restarts", [False, True], ids=["same process", "after a restart"])
async def test_they_are_received_in_order_once_the_run_starts(log: Log, restarts: bool) -> None:
    clock = VirtualClock(wall_ms=1_000_000_000)
    world = await boot(log, clock=clock)
    assert await world.runtime.durable.signal("a", "news", 1)
    if restarts:
        await world.runtime.stop_service()
        clock.advance(1)
        world = await boot(log, clock=clock)
    assert await world.runtime.durable.signal("a", "news", 2)
    run = world.runtime.start("two", durable=True, id="a")
    await world.runtime.settle()
    assert run.outcome_now() == Value([1, 2])
    assert [row async for row in log.scan("runs/early")] == [row async for row in log.scan("runs/signals")] == []
    assert not await world.runtime.durable.signal("a", "news", 3), "it is over"


async def test_a_program_sends_them_too(log: Log) -> None:
    async def sender(perform: Any) -> bool:
        return await perform(Signal("a", "news", 1))

    world = await boot(log)
    run = world.runtime.start(sender, durable=True)
    await world.runtime.settle()
    assert run.outcome_now() == Value(True)
    late = world.runtime.start("two", durable=True, id="a")
    await world.runtime.durable.signal("a", "news", 2)
    await world.runtime.settle()
    assert late.outcome_now() == Value([1, 2])


async def test_they_are_forgotten_in_time(log: Log) -> None:
    world = await boot(log, clock=VirtualClock(wall_ms=1_000_000_000), early_signal_ms=HOUR)
    await world.runtime.durable.signal("a", "news", 1)
    await world.runtime.elapse(HOUR - 10_000)
    assert [row async for row in log.scan("runs/signals")]
    await world.runtime.elapse(20_000)
    assert [row async for row in log.scan("runs/early")] == [row async for row in log.scan("runs/signals")] == []


async def test_they_are_bounded_and_can_be_off(log: Log) -> None:
    world = await boot(log)
    for n in range(100):
        await world.runtime.durable.signal("a", "news", n)
    with pytest.raises(RunError, match="100 signals wait for it"):
        await world.runtime.durable.signal("a", "news", 100)
    assert not await world.runtime.durable.signal("a~1", "news", 1), "only its parent starts a child"
    world = await boot(log, early_signal_ms=0)
    assert not await world.runtime.durable.signal("b", "news", 1)


async def test_a_run_that_starts_after_a_restart_receives_what_came_before_it(log: Log) -> None:
    clock = VirtualClock(wall_ms=1_000_000_000)
    world = await boot(log, clock=clock)
    assert await world.runtime.durable.signal("a", "news", 1)
    await world.runtime.stop_service()
    world = await boot(log, clock=clock)
    run = world.runtime.start("two", durable=True, id="a")
    await world.runtime.settle()
    assert await world.runtime.durable.signal("a", "news", 2)
    await world.runtime.settle()
    assert run.outcome_now() == Value([1, 2])
