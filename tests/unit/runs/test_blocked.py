"""What a user of Temporal expects of a deploy: code that does not fit a journal blocks the run, and loses nothing.

A blocked run keeps its signals, says why it is blocked, goes on when code that fits is registered, and can be moved to
the code of now, restarted, failed or cancelled.
"""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.log import Log
from mainspring.loop import VirtualClock
from mainspring.runs import Cancelled, Failed, NotFinished, Sleep, Value, WaitSignal
from tests.support.runs import Hop, World

HOUR = 3_600_000


async def boot(log: Log, clock: VirtualClock, program: Any = None, **programs: Any) -> World:
    world = World(clock=clock, log=log)
    for name, each in {**({} if program is None else {"p": program}), **programs}.items():
        world.runtime.register(each, name)
    await world.runtime.start_service()
    await world.runtime.settle()
    return world


async def old(perform: Any) -> list[Any]:
    first = await perform(Hop(1))
    second = await perform(Hop(2))
    return [first, second, await perform(WaitSignal("go"))]


async def new(perform: Any) -> list[Any]:
    first = await perform(Hop(1))
    other = await perform(Hop(20))
    return ["new", first, other, await perform(WaitSignal("go"))]


async def raising(perform: Any) -> list[Any]:
    await perform(Hop(1))
    raise KeyError("typo")


old.__qualname__ = new.__qualname__ = raising.__qualname__ = "p"  # one function, before and after a deploy


async def stopped_with(log: Log, clock: VirtualClock, program: Any = old) -> None:
    """A run `a` of a program, whose node ends while it waits."""
    world = await boot(log, clock, program)
    world.runtime.start("p", durable=True, id="a")
    await world.runtime.settle()
    await world.runtime.stop_service()


async def state_of(world: World, run_id: str = "a") -> str:
    await world.runtime.settle()
    return (await world.runtime.durable.store.record(run_id)).state


async def value_of(world: World, run_id: str = "a") -> Any:
    await world.runtime.settle()
    return (await world.runtime.durable.find(run_id)).outcome_now()


@pytest.mark.parametrize("broken", [new, raising], ids=["another effect", "an error of its own"])
async def test_a_misfit_blocks_and_says_why_and_fitting_code_goes_on_at_boot(
    log: Log, clock: VirtualClock, broken: Any
) -> None:
    await stopped_with(log, clock)
    world = await boot(log, clock, broken)
    record = await world.runtime.durable.store.record("a")
    assert record.state == "blocked"
    assert record.error is not None
    assert record.error["code"] == "replay_mismatch"
    assert 'journal: Hop {"n":2}' in record.error["message"]
    assert ("Hop" if broken is new else "raised KeyError: 'typo'") in record.error["message"].split("program:")[1]
    run = await world.runtime.durable.find("a")
    assert (run.state, run.is_done(), world.failures) == ("blocked", False, [])
    assert [each.id for each in await world.runtime.durable.store.runs(state="blocked")] == ["a"]
    assert await world.runtime.durable.store.runs(state="running") == []
    assert await world.runtime.durable.signal("a", "go", "kept")
    await world.runtime.stop_service()

    world = await boot(log, clock, old)
    assert await value_of(world) == Value([1, 2, "kept"])
    record = await world.runtime.durable.store.record("a")
    assert (record.state, record.error) == ("done", None)
    assert world.hops == [], "what is in the journal is not done again"


async def test_it_goes_on_when_fitting_code_is_registered_again(log: Log, clock: VirtualClock) -> None:
    await stopped_with(log, clock)
    world = await boot(log, clock, new)
    run = await world.runtime.durable.find("a")
    assert await world.runtime.durable.signal("a", "go", 1)
    world.runtime.register(waiting, "another")  # changes nothing
    assert await state_of(world) == "blocked"
    world.runtime.register(old, "p")
    await world.runtime.settle()
    assert run.outcome_now() == Value([1, 2, 1])


async def test_one_that_goes_on_is_running_again(log: Log, clock: VirtualClock) -> None:
    await stopped_with(log, clock)
    for _ in range(2):
        world = await boot(log, clock, new)
        assert await state_of(world) == "blocked"
        await world.runtime.stop_service()
    world = await boot(log, clock, old)
    assert await state_of(world) == "running"
    await world.runtime.durable.signal("a", "go", 3)
    assert await value_of(world) == Value([1, 2, 3])


async def test_it_is_moved_to_the_code_of_now_from_the_last_effect_that_fits(log: Log, clock: VirtualClock) -> None:
    await stopped_with(log, clock)
    world = await boot(log, clock, new)
    await world.runtime.durable.signal("a", "go", "kept")
    await world.runtime.durable.retry("a")
    assert await state_of(world) == "blocked", "the whole journal does not fit"
    run = await world.runtime.durable.retry("a", "fitting")
    await world.runtime.settle()
    assert run.outcome_now() == Value(["new", 1, 20, "kept"])
    assert world.hops == [("a#00000001", 20)]
    assert (await world.runtime.durable.store.record("a")).retries == 2


@pytest.mark.parametrize("fails_first", [False, True], ids=["blocked", "failed"])
async def test_it_is_restarted_from_the_start(log: Log, clock: VirtualClock, fails_first: bool) -> None:
    await stopped_with(log, clock)
    world = await boot(log, clock, new)
    if fails_first:
        assert await world.runtime.durable.fail("a")
        with pytest.raises(NotFinished, match="not blocked"):
            await world.runtime.durable.retry("a", "fitting")
    await world.runtime.durable.retry("a", "nothing")
    await world.runtime.settle()
    await world.runtime.durable.signal("a", "go", "kept")
    assert await value_of(world) == Value(["new", 1, 20, "kept"])
    assert world.hops == [("a#00000000", 1), ("a#00000001", 20)]


async def test_it_is_failed_with_what_blocks_it_and_can_be_retried(log: Log, clock: VirtualClock) -> None:
    await stopped_with(log, clock)
    world = await boot(log, clock, new)
    assert await world.runtime.durable.fail("a")
    outcome = await value_of(world)
    assert isinstance(outcome, Failed)
    assert "does not fit its journal" in str(outcome.error)
    assert not await world.runtime.durable.fail("a")
    await world.runtime.stop_service()
    world = await boot(log, clock, old)
    await world.runtime.durable.retry("a")
    await world.runtime.durable.signal("a", "go", 5)
    assert await value_of(world) == Value([1, 2, 5])


async def test_it_is_cancelled(log: Log, clock: VirtualClock) -> None:
    await stopped_with(log, clock)
    world = await boot(log, clock, new)
    assert await world.runtime.durable.cancel("a", "no longer wanted")
    assert await value_of(world) == Cancelled("no longer wanted")


async def test_arguments_that_do_not_fit_block_it(log: Log, clock: VirtualClock) -> None:
    async def one(n: int, perform: Any) -> Any:
        return [n, await perform(WaitSignal("go"))]

    async def none(perform: Any) -> None:
        return None

    world = await boot(log, clock, one)
    world.runtime.start("p", 7, durable=True, id="a")
    await world.runtime.settle()
    await world.runtime.stop_service()
    world = await boot(log, clock, none)
    record = await world.runtime.durable.store.record("a")
    assert record.state == "blocked"
    assert record.error is not None
    assert "the arguments of run a do not fit its program" in record.error["message"]
    await world.runtime.durable.signal("a", "go", "kept")
    await world.runtime.stop_service()
    world = await boot(log, clock, one)
    assert await value_of(world) == Value([7, "kept"])


async def waiting(perform: Any) -> Any:
    return await perform(WaitSignal("go"))


async def hopping(perform: Any) -> Any:
    return await perform(Hop(9))


async def parent(perform: Any) -> Any:
    child = perform.spawn(waiting)
    await perform(Hop(1))
    return await child


async def other_parent(perform: Any) -> Any:
    try:
        child = perform.spawn(hopping)
    except Exception:
        return "swallowed"
    await perform(Hop(1))
    return await child


async def test_another_child_blocks_its_parent_even_when_the_error_is_caught(log: Log, clock: VirtualClock) -> None:
    children = {"waiting": waiting, "hopping": hopping}
    world = await boot(log, clock, parent, **children)
    world.runtime.start("p", durable=True, id="a")
    await world.runtime.settle()
    await world.runtime.stop_service()
    world = await boot(log, clock, other_parent, **children)
    assert await state_of(world) == "blocked"
    assert await state_of(world, "a~1") == "running"
    run = await world.runtime.durable.retry("a", "fitting")
    await world.runtime.settle()
    assert run.outcome_now() == Value(9)
    assert await world.runtime.durable.store.runs(prefix="a~") == [
        each for each in await world.runtime.durable.store.runs(prefix="a~1") if each.program == "hopping"
    ]


async def test_a_child_that_is_blocked_holds_its_parent_back_and_ends_with_it(log: Log, clock: VirtualClock) -> None:
    async def asking(perform: Any) -> Any:
        await perform(Hop(1))
        return await perform(WaitSignal("go"))

    async def sleeping(perform: Any) -> Any:
        await perform(Sleep(hours=1))

    async def owner(perform: Any) -> Any:
        return await perform.spawn("asking")

    for ending in ("value", "cancelled"):
        world = await boot(log, clock, owner, asking=asking)
        world.runtime.start("p", durable=True, id=ending)
        await world.runtime.settle()
        await world.runtime.stop_service()
        world = await boot(log, clock, owner, asking=sleeping)
        child = f"{ending}~1"
        assert [await state_of(world, ending), await state_of(world, child)] == ["running", "blocked"]
        if ending == "cancelled":
            assert await world.runtime.durable.cancel(ending)
            assert await state_of(world, child) == "cancelled"
        else:
            await world.runtime.durable.signal(child, "go", "up")
            await world.runtime.stop_service()
            world = await boot(log, clock, owner, asking=asking)
            assert await value_of(world, ending) == Value("up")
        await world.runtime.stop_service()


async def test_a_run_whose_program_is_gone_waits_for_it_and_can_be_ended(log: Log, clock: VirtualClock) -> None:
    world = await boot(log, clock, parent, waiting=waiting)
    for run_id in ("a", "b", "c"):
        world.runtime.start("p", durable=True, id=run_id)
    await world.runtime.settle()
    await world.runtime.stop_service()
    world = await boot(log, clock)
    durable = world.runtime.durable
    assert durable.ownership.waits_for(await durable.store.record("a")) == "program p"
    assert await durable.signal("a~1", "go", "kept")
    assert await durable.cancel("b")
    assert await durable.fail("c", "gone for good")
    assert await value_of(world, "b") == Cancelled(None)
    assert isinstance(await value_of(world, "c"), Failed)
    assert await state_of(world, "b~1") == "cancelled"
    world.runtime.register(waiting, "waiting")
    world.runtime.register(parent, "p")
    assert await value_of(world, "a") == Value("kept")
