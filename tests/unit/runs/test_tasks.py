"""Structured tasks: who waits for whom, who falls with whom, and when things repeat."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.runs import (
    Cancelled,
    ChildTimedOut,
    Failed,
    GroupClosed,
    Join,
    RunCancelled,
    Sleep,
    Spawn,
    UnobservedFailure,
    Value,
)
from tests.support.runs import Boom, Hop, World


def nap(world: World, log: list[Any]) -> Any:
    async def child(ms: int, perform: Any) -> int:
        await perform(Sleep(ms=abs(ms)))
        if ms < 0:
            raise Boom(str(ms))
        log.append(world.now)
        return world.now

    return child


@pytest.fixture
def world() -> World:
    return World()


def test_a_child_starts_soon_but_not_inline(world: World) -> None:
    order: list[str] = []

    async def child(perform: Any) -> None:
        order.append("child")

    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            group.spawn(child)
            order.append("owner")

    world.runtime.start(owner)
    world.runtime.run_until_idle()
    assert order == ["owner", "child"]


def test_awaiting_a_child_inside_a_program_gives_its_value_or_raises_its_error(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> Any:
        good, bad, cut = (perform.spawn(child, ms) for ms in (3, -4, 9))
        values = [await good]
        with pytest.raises(Boom):
            await bad
        cut.cancel("enough")
        with pytest.raises(RunCancelled) as caught:
            await cut
        return [*values, caught.value.reason]

    run = world.runtime.start(owner)
    world.runtime.advance(20)
    assert run.outcome_now() == Value([3, "enough"])


def test_join_keeps_value_failed_and_cancelled_apart(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> list[str]:
        children = [perform.spawn(child, ms) for ms in (3, -4, 9)]
        children[2].cancel()
        return [type(await perform.join(each)).__name__ for each in children]

    run = world.runtime.start(owner)
    world.runtime.advance(20)
    assert run.outcome_now() == Value(["Value", "Failed", "Cancelled"])


def test_a_generator_program_spawns_and_joins_with_effects(world: World) -> None:
    child = nap(world, [])

    def owner() -> Any:
        run = yield Spawn(child, (5,))
        outcome = yield Join(run)
        return outcome.value

    run = world.runtime.start(owner)
    world.runtime.advance(5)
    assert run.outcome_now() == Value(5)


def test_an_owner_waits_for_attached_children_it_never_joined(world: World) -> None:
    log: list[Any] = []
    child = nap(world, log)

    async def owner(perform: Any) -> str:
        perform.spawn(child, 7)
        return "done"

    run = world.runtime.start(owner)
    world.runtime.advance(6)
    assert run.outcome_now() is None
    world.runtime.advance(1)
    assert (run.outcome_now(), log) == (Value("done"), [7])


def test_a_failed_child_nobody_looked_at_fails_its_owner(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> str:
        perform.spawn(child, -2)
        await perform(Sleep(ms=9))
        return "never"

    run = world.runtime.start(owner)
    world.runtime.advance(10)
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, UnobservedFailure)
    assert isinstance(outcome.error.__cause__, Boom)
    assert [run_id for _, run_id in world.failures] == ["run_2", "run_1"]


def test_a_failing_child_of_a_group_cuts_the_owner_short_even_in_the_middle_of_an_effect(world: World) -> None:
    child, seen = nap(world, []), []

    async def owner(perform: Any) -> str:
        try:
            async with perform.group() as group:
                group.spawn(child, -3)
                await perform(Sleep(ms=1000))
        finally:
            seen.append(world.now)
        return "never"

    run = world.runtime.start(owner)
    world.runtime.advance(3)
    assert isinstance(run.outcome_now(), Failed)
    assert seen == [3]
    ticks = world.runtime.ticks
    world.runtime.advance(2000)
    assert world.runtime.ticks == ticks, "the owner's sleep left no timer"


def test_a_joined_child_of_a_group_may_fail_without_taking_the_owner_along(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> str:
        async with perform.group() as group:
            outcome = await perform.join(group.spawn(child, -3))
        return type(outcome).__name__

    run = world.runtime.start(owner)
    world.runtime.advance(5)
    assert run.outcome_now() == Value("Failed")


def test_cancelling_a_child_lets_the_owner_finish(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> int:
        async with perform.group() as group:
            long = group.spawn(child, 1000)
            await perform(Sleep(ms=2))
            assert long.cancel("not needed")
        return 7

    run = world.runtime.start(owner)
    world.runtime.advance(2)
    assert run.outcome_now() == Value(7)


def test_cancellation_cascades_to_descendants_only(world: World) -> None:
    log: list[Any] = []
    child = nap(world, log)
    handles: list[Any] = []

    async def middle(perform: Any) -> None:
        async with perform.group() as group:
            handles.append(group.spawn(child, 50))

    async def top(perform: Any) -> None:
        async with perform.group() as group:
            handles.append(group.spawn(middle))
            handles.append(group.spawn(child, 50))

    run = world.runtime.start(top)
    world.runtime.advance(5)
    middle_run, sibling, grandchild = handles
    assert middle_run.cancel("one branch")
    assert isinstance(grandchild.outcome_now(), Cancelled)
    assert sibling.outcome_now() is None
    world.runtime.advance(50)
    assert (run.outcome_now(), log) == (Value(None), [50])


def test_a_raising_body_cancels_the_children(world: World) -> None:
    child, handles = nap(world, []), []

    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            handles.append(group.spawn(child, 50))
            await perform(Hop(1))
            raise Boom("body")

    run = world.runtime.start(owner)
    world.runtime.run_until_idle()
    assert isinstance(run.outcome_now(), Failed)
    assert isinstance(handles[0].outcome_now(), Cancelled)


def test_a_closed_group_takes_no_children(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> None:
        group = perform.group()
        with pytest.raises(GroupClosed):
            group.spawn(child, 1)
        async with group:
            group.spawn(child, 1)
        with pytest.raises(GroupClosed):
            group.spawn(child, 1)

    run = world.runtime.start(owner)
    world.runtime.advance(5)
    assert run.outcome_now() == Value(None)


def test_a_detached_child_outlives_a_value_and_dies_with_a_cancellation(world: World) -> None:
    log: list[Any] = []
    child = nap(world, log)

    async def owner(ms: int, perform: Any) -> str:
        perform.detach(child, 30)
        await perform(Sleep(ms=ms))
        return "done"

    done, cut = world.runtime.start(owner, 5), world.runtime.start(owner, 500)
    world.runtime.advance(10)
    assert done.outcome_now() == Value("done")
    cut.cancel()
    world.runtime.advance(30)
    assert log == [30], "only the child of the run that returned went on"


def test_a_detached_failure_reaches_the_sink_and_nobody_else(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> int:
        perform.detach(child, -3)
        await perform(Sleep(ms=9))
        return 1

    run = world.runtime.start(owner)
    world.runtime.advance(10)
    assert run.outcome_now() == Value(1)
    assert [run_id for _, run_id in world.failures] == ["run_2"]


def test_unref_work_does_not_keep_the_owner_and_ends_with_it(world: World) -> None:
    log: list[Any] = []
    child, handles = nap(world, log), []

    async def owner(perform: Any) -> str:
        async with perform.group() as group:
            handles.append(group.spawn(child, 100, unref=True))
            group.spawn(child, 5)
        handles.append(perform.spawn(child, 100, unref=True))
        return "done"

    run = world.runtime.start(owner)
    world.runtime.advance(10)
    assert (run.outcome_now(), log) == (Value("done"), [5])
    assert all(isinstance(each.outcome_now(), Cancelled) for each in handles)


def test_a_child_unreferenced_later_frees_a_waiting_owner(world: World) -> None:
    child, handles = nap(world, []), []

    async def owner(perform: Any) -> str:
        async with perform.group() as group:
            handles.append(group.spawn(child, 100))
        return "done"

    run = world.runtime.start(owner)
    world.runtime.advance(10)
    handles[0].unref()
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value("done")


def test_within_gives_the_value_or_raises_when_the_time_is_up(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> Any:
        value = await perform.within(0.005, child, 3)
        with pytest.raises(ChildTimedOut):
            await perform.within(0.005, child, 50)
        with pytest.raises(Boom):
            await perform.within(0.005, child, -2)
        return value, world.now

    run = world.runtime.start(owner)
    world.runtime.advance(100)
    assert run.outcome_now() == Value((3, 10))


def test_after_runs_once_when_the_time_has_come(world: World) -> None:
    async def answer(value: int, perform: Any) -> tuple[int, int]:
        return value, world.now

    async def owner(perform: Any) -> Any:
        async with perform.group() as group:
            timer = group.after("5ms", answer, 7)
        return timer.outcome_now()

    run = world.runtime.start(owner)
    world.runtime.advance(5)
    assert run.outcome_now() == Value(Value((7, 5)))


@pytest.mark.parametrize(
    ("overlap", "takes", "starts"),
    [
        ("serial", 7, [5, 17]),
        ("serial", 0, [5, 10, 15]),
        ("concurrent", 7, [5, 10, 15]),
        ("skip", 7, [5, 15]),
        ("buffer-one", 7, [5, 12, 19]),
        ("buffer-one", 0, [5, 10, 15]),
        ("skip", 0, [5, 10, 15]),
    ],
)
def test_an_interval_of_5_cancelled_at_20(world: World, overlap: str, takes: int, starts: list[int]) -> None:
    begun: list[int] = []

    async def callback(perform: Any) -> None:
        begun.append(world.now)
        if takes:
            await perform(Sleep(ms=takes))

    async def owner(perform: Any) -> str:
        async with perform.group() as group:
            interval = group.every("5ms", callback, overlap=overlap)
            await perform(Sleep(ms=20))
            interval.cancel()
        return "done"

    run = world.runtime.start(owner)
    world.runtime.advance(100)
    assert begun == starts
    assert run.outcome_now() == Value("done")


def test_buffer_one_remembers_only_one(world: World) -> None:
    begun: list[int] = []

    async def callback(perform: Any) -> None:
        begun.append(world.now)
        await perform(Sleep(ms=23))

    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            interval = group.every("5ms", callback, overlap="buffer-one")
            await perform(Sleep(ms=60))
            interval.cancel()

    world.runtime.start(owner)
    world.runtime.advance(200)
    assert begun == [5, 28, 51]


def test_an_interval_whose_callback_fails_fails_once(world: World) -> None:
    async def callback(perform: Any) -> None:
        raise Boom("tick")

    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            group.every("5ms", callback)

    run = world.runtime.start(owner)
    world.runtime.advance(100)
    assert isinstance(run.outcome_now(), Failed)
    assert [run_id for _, run_id in world.failures] == ["run_2", "run_1"]


def test_an_unknown_overlap_is_refused(world: World) -> None:
    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            group.every("5ms", nap(world, []), 1, overlap="sometimes")

    run = world.runtime.start(owner)
    world.runtime.run_until_idle()
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert "sometimes" in str(outcome.error)


def test_nothing_is_left_when_everything_ended(world: World) -> None:
    child = nap(world, [])

    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            for ms in (1, 2, -3, 4):
                group.spawn(child, ms)

    for _ in range(20):
        world.runtime.start(owner)
    world.runtime.advance(100)
    assert (world.runtime.live, world.runtime.runs()) == (0, [])


def test_cancelling_an_owner_that_waits_for_its_group_is_no_late_completion(world: World) -> None:
    async def child(perform: Any) -> None:
        await perform(Sleep(ms=50))

    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            group.spawn(child)

    run = world.runtime.start(owner)
    world.runtime.run_until_idle()
    assert run.cancel("enough") is True
    world.runtime.advance(100)
    assert (run.outcome_now(), world.runtime.late_completions) == (Cancelled("enough"), 0)


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
@pytest.mark.parametrize("form", ["group", "spawn"])
def test_trees_end_however_deep_they_are(world: World, form: str, ending: str) -> None:
    deep, closed = 1500, []

    async def nested(level: int, perform: Any) -> None:
        try:
            if level == deep:
                await perform(Sleep(ms=5))
                raise Boom
            if form == "group":
                async with perform.group() as group:
                    group.spawn(nested, level + 1)
            else:
                await perform.spawn(nested, level + 1)
        finally:
            closed.append(level)

    root = world.runtime.start(nested, 0)
    world.runtime.advance(4)
    assert world.runtime.live == deep + 1
    if ending == "cancelled":
        assert root.cancel("enough") is True
    else:
        world.runtime.advance(1)
    assert root.state == ending
    assert world.runtime.live == 0
    assert closed == list(range(deep, -1, -1)), "children before their owners"
