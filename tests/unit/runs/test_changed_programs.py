"""Durable runs whose world changed while they slept, and effects that cannot be described: one run's trouble only."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mainspring.log import Log
from mainspring.loop import VirtualClock
from mainspring.runs import (
    Cancelled,
    ChildTimedOut,
    Effect,
    Failed,
    HasEnded,
    Join,
    Sleep,
    Value,
    WaitSignal,
    check,
    resume,
)
from tests.support.runs import Boom, Hop, World

HOUR = 3_600_000


async def boot(log: Log, clock: VirtualClock, **programs: Any) -> World:
    world = World(clock=clock, log=log)
    for name, program in programs.items():
        world.runtime.register(program, name)
    await world.runtime.start_service()
    return world


async def ended(world: World, run_id: str) -> Any:
    await world.runtime.settle()
    return (await world.runtime.durable.find(run_id)).outcome_now()


async def fine(perform: Any) -> str:
    await perform(Sleep(hours=1))
    await perform(Hop(1))
    return "fine"


def asking(answer: Any) -> Any:
    class Get(Effect[answer]):  # type: ignore[valid-type]
        n: int

    async def program(perform: Any) -> Any:
        found = await perform(Get(1))
        await perform(Sleep(hours=1))
        return found

    return Get, program


async def test_an_answer_of_a_type_the_effect_no_longer_has_is_a_difference(log: Log, clock: VirtualClock) -> None:
    effect, program = asking(int)
    world = await boot(log, clock, asking=program, fine=fine)
    world.runtime.handle(effect, lambda effect, ctx: resume(5))
    world.runtime.start("asking", durable=True, id="a")
    world.runtime.start("fine", durable=True, id="b")
    await world.runtime.settle()
    world.runtime.close()

    effect, program = asking(str)
    world = await boot(log, clock, asking=program, fine=fine)
    world.runtime.handle(effect, lambda effect, ctx: resume("5"))
    assert await ended(world, "a") is None
    record = await world.runtime.durable.store.record("a")
    assert (record.state, (record.error or {})["type"]) == ("blocked", "ReplayMismatch")
    assert "effect 0" in str(record.error)
    assert "was answered with 5" in str(record.error)
    (verdict,) = check([await world.runtime.durable.history("a")], world.runtime.programs)
    assert "was answered with 5" in verdict.problem
    await world.runtime.elapse(HOUR)
    assert await ended(world, "b") == Value("fine")

    effect, program = asking(int)
    world = await boot(log, clock, asking=program, fine=fine)
    world.runtime.handle(effect, lambda effect, ctx: resume(6))
    await world.runtime.elapse(HOUR)
    assert await ended(world, "a") == Value(5)


async def test_a_value_the_program_no_longer_declares_can_still_be_read(log: Log, clock: VirtualClock) -> None:
    async def old(perform: Any) -> int:
        return 5

    async def new(perform: Any) -> dict[str, int]:
        return {"n": 5}

    world = await boot(log, clock, five=old)
    world.runtime.start("five", durable=True, id="a")
    assert await ended(world, "a") == Value(5)
    world = await boot(log, clock, five=new)
    assert await ended(world, "a") == Value(5)
    assert await world.runtime.start("five", durable=True, id="a") == 5


async def nobody(perform: Any) -> Any:
    return await perform(Join("nobody"))


async def nothing(perform: Any) -> Any:
    return await perform(HasEnded(None))


async def words(perform: Any) -> Any:
    return await perform(Sleep(ms="soon"))  # type: ignore[arg-type]


@pytest.mark.parametrize("program", [nobody, nothing, words], ids=lambda program: program.__name__)
async def test_an_effect_that_cannot_be_described_fails_its_run_and_nobody_else(
    log: Log, clock: VirtualClock, program: Any
) -> None:
    world = await boot(log, clock, odd=program, fine=fine)
    world.runtime.start("fine", durable=True, id="b")
    world.runtime.start("odd", durable=True, id="a")
    await world.runtime.elapse(HOUR)
    assert isinstance(await ended(world, "a"), Failed)
    assert await ended(world, "b") == Value("fine")


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "in memory"])
@pytest.mark.parametrize("endless", [math.inf, 10**400], ids=["infinite", "huge"])
async def test_an_endless_sleep_does_not_end(log: Log, clock: VirtualClock, endless: Any, durable: bool) -> None:
    async def sleeper(perform: Any) -> str:
        await perform(Sleep(ms=endless))
        return "woken"

    world = await boot(log, clock, sleeper=sleeper)
    run = world.runtime.start("sleeper", durable=durable)
    await world.runtime.elapse(2 * HOUR)
    assert run.state == "running"
    assert run.cancel() is True


async def patient(ms: float, perform: Any) -> Any:
    try:
        return await perform.within(ms / 1000, hearing)
    except ChildTimedOut:
        return "too late"


async def hearing(perform: Any) -> Any:
    return await perform(WaitSignal("news"))


async def test_the_time_a_child_is_given_goes_on_over_a_restart(log: Log, clock: VirtualClock) -> None:
    world = await boot(log, clock, patient=patient, hearing=hearing)
    world.runtime.start("patient", HOUR, durable=True, id="a")
    await world.runtime.elapse(HOUR / 2)
    world.runtime.close()
    world = await boot(log, clock, patient=patient, hearing=hearing)
    await world.runtime.elapse(HOUR / 2 - 1)
    assert await ended(world, "a") is None
    await world.runtime.elapse(1)
    assert await ended(world, "a") == Value("too late")


async def test_a_child_that_is_given_all_the_time_there_is_has_it(log: Log, clock: VirtualClock) -> None:
    world = await boot(log, clock, patient=patient, hearing=hearing)
    run = world.runtime.start(patient, math.inf)
    await world.runtime.elapse(2 * HOUR)
    assert run.state == "running"
    child = next(each for each in world.runtime.runs() if each is not run)
    assert world.runtime.signal(child.id, "news", "at last")
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value("at last")


async def test_signals_keep_their_order_over_a_restart_although_the_clock_was_set_back(
    log: Log, clock: VirtualClock
) -> None:
    async def listener(perform: Any) -> list[Any]:
        await perform(Sleep(hours=1))
        return [await perform(WaitSignal("news")) for _ in range(3)]

    world = await boot(log, clock, listener=listener)
    world.runtime.start("listener", durable=True, id="a")
    await world.runtime.settle()
    assert await world.runtime.durable.signal("a", "news", 1)
    clock.shift_wall(-5000)
    assert await world.runtime.durable.signal("a", "news", 2)
    world.runtime.close()
    world = await boot(log, clock, listener=listener)
    assert await world.runtime.durable.signal("a", "news", 3)
    await world.runtime.elapse(2 * HOUR)
    assert await ended(world, "a") == Value([1, 2, 3])


async def test_a_detached_run_whose_parent_is_over_still_ends_with_its_root_after_a_restart(
    log: Log, clock: VirtualClock
) -> None:
    async def lasting(perform: Any) -> str:
        await perform(Hop(7))
        await perform(Sleep(hours=3))
        return "outlived them all"

    async def passing(perform: Any) -> None:
        perform.detach(lasting)

    async def root(perform: Any) -> None:
        perform.spawn(passing)
        await perform(Sleep(hours=1))
        raise Boom

    programs = {"root": root, "passing": passing, "lasting": lasting}
    world = await boot(log, clock, **programs)
    world.runtime.start("root", durable=True, id="a")
    await world.runtime.settle()
    assert world.hops == [("a~1~1#00000000", 7)]
    world.runtime.close()
    world = await boot(log, clock, **programs)
    await world.runtime.elapse(HOUR)
    assert world.hops == [], "its journal knows the answer"
    assert isinstance(await ended(world, "a"), Failed)
    assert await ended(world, "a~1") == Value(None)
    assert await ended(world, "a~1~1") == Cancelled("its owner a ended")


@pytest.mark.parametrize("waits", [False, True], ids=["its parent was over", "its parent ended with the root"])
async def test_a_retry_takes_detached_runs_along_that_the_root_had_taken_along(
    log: Log, clock: VirtualClock, waits: bool
) -> None:
    async def lasting(perform: Any) -> str:
        await perform(Hop(7))
        await perform(Sleep(hours=3))
        return "lasted"

    async def passing(perform: Any) -> None:
        perform.detach(lasting)
        if waits:
            await perform(Sleep(hours=2))

    async def root(perform: Any) -> str:
        perform.spawn(passing)
        await perform(Sleep(hours=1))
        await perform(Ready())
        return "ready"

    class Ready(Effect[None]):
        pass

    def not_yet(effect: Any, ctx: Any) -> Any:
        raise Boom

    world = await boot(log, clock, root=root, passing=passing, lasting=lasting)
    world.runtime.handle(Ready, not_yet)
    world.runtime.start("root", durable=True, id="a")
    await world.runtime.elapse(HOUR)
    assert isinstance(await ended(world, "a"), Failed)
    assert isinstance(await ended(world, "a~1~1"), Cancelled)

    world.runtime.handle(Ready, lambda effect, ctx: resume())
    run = await world.runtime.durable.retry("a")
    await world.runtime.elapse(3 * HOUR)
    assert run.outcome_now() == Value("ready")
    assert await ended(world, "a~1") == Value(None)
    assert await ended(world, "a~1~1") == Value("lasted")
    assert world.hops == [("a~1~1#00000000", 7)], "done once"
