"""What a mistake in one callback, or an unlucky moment, must not do to anybody else."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

from mainspring.loop import VirtualClock
from mainspring.runs import Cancelled, Effect, Failed, Runtime, Sleep, UnknownProgram, Value, resume
from tests.support.runs import Boom, Hop, World


class Poll(Effect[int]):
    """Answered by timers of its handler."""


@pytest.fixture
def world() -> World:
    return World()


def polling(*_: Any) -> Any:
    return (yield Poll())


def raise_boom() -> None:
    raise Boom("no good")


def test_a_timer_of_a_handler_that_raises_fails_its_run_and_nobody_else(world: World) -> None:
    def handler(effect: Poll, ctx: Any) -> Any:
        ctx.after(1, raise_boom)
        return ctx.later()

    def sleeper() -> Any:
        yield Sleep(ms=1)
        return "woken"

    world.runtime.handle(Poll, handler)
    run, other = world.runtime.start(polling), world.runtime.start(sleeper)
    world.runtime.advance(5)
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Boom)
    assert [run_id for _, run_id in world.failures] == [run.id]
    assert other.outcome_now() == Value("woken")


async def test_on_a_real_clock_too_the_others_go_on_after_a_timer_that_raised() -> None:
    runtime = Runtime(on_failure=lambda error, run_id: None)

    def handler(effect: Poll, ctx: Any) -> Any:
        later = ctx.later()
        ctx.after(0, lambda: later.resume(1))
        ctx.after(0, raise_boom)
        return later

    runtime.handle(Poll, handler)
    assert await asyncio.wait_for(runtime.start(polling), 10) == 1
    assert await asyncio.wait_for(runtime.start(polling), 10) == 1


def test_a_timer_set_again_for_now_waits_for_the_next_tick(world: World) -> None:
    rung: list[int] = []

    def handler(effect: Poll, ctx: Any) -> Any:
        later = ctx.later()

        def ring() -> None:
            rung.append(world.runtime.ticks)
            if len(rung) == 3:
                later.resume(7)
            else:
                ctx.after(0, ring)

        ctx.after(0, ring)
        return later

    world.runtime.handle(Poll, handler)
    run = world.runtime.start(polling)
    world.runtime.run_until_idle()
    assert rung == [2, 3, 4]
    assert run.outcome_now() == Value(7)


def test_a_timer_forgotten_by_another_of_the_same_moment_is_not_called(world: World) -> None:
    def sleeper() -> Any:
        yield Sleep(ms=5)
        return "woken"

    def handler(effect: Poll, ctx: Any) -> Any:
        later = ctx.later()
        ctx.after(5, lambda: victim.cancel("first") and later.resume(1))
        return later

    world.runtime.handle(Poll, handler)
    run, victim = world.runtime.start(polling), world.runtime.start(sleeper)
    world.runtime.advance(5)
    assert victim.outcome_now() == Cancelled("first")
    assert run.outcome_now() == Value(1)
    assert world.runtime.late_completions == 0


@pytest.mark.parametrize("ending", ["cancelled", "answered"])
def test_what_fails_to_be_released_changes_no_outcome(world: World, ending: str) -> None:
    released: list[str] = []

    def handler(effect: Poll, ctx: Any) -> Any:
        later = ctx.later()
        ctx.on_release(raise_boom)
        ctx.on_release(lambda: released.append("second"))
        ctx.after(5, lambda: later.resume(3))
        return later

    world.runtime.handle(Poll, handler)
    run = world.runtime.start(polling)
    world.runtime.run_until_idle()
    if ending == "cancelled":
        assert run.cancel("enough") is True
    world.runtime.advance(5)
    assert run.outcome_now() == (Cancelled("enough") if ending == "cancelled" else Value(3))
    assert released == ["second"]


@pytest.mark.parametrize("company", [0, 1], ids=["alone", "with an unrelated run"])
def test_who_hears_of_an_ending_steps_in_the_next_tick_whoever_else_runs(world: World, company: int) -> None:
    """An owner fails while its child has the next turn: what the ending causes belongs to the tick after it."""

    async def child(perform: Any) -> None:
        while True:
            await perform(Sleep(ms=0))

    async def owner(perform: Any) -> None:
        perform.spawn(child)
        await perform(Hop(1))
        await perform(Hop(2))
        raise Boom

    async def joiner(perform: Any) -> Any:
        return await perform.join(failing)

    def other() -> Any:
        for n in range(6):
            yield Hop(n)

    failing = world.runtime.start(owner)
    world.runtime.start(joiner)
    for _ in range(company):
        world.runtime.start(other)
    world.runtime.run_until_idle()
    trace = world.runtime.trace
    ended, heard = trace.index(f"outcome {failing.id} failed"), trace.index("step run_2 1")
    assert [entry for entry in trace[ended:heard] if entry.startswith("tick")] != []


def test_a_program_that_raises_any_error_while_it_is_closed_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def program() -> Any:
        try:
            yield Sleep(ms=5)
        finally:
            raise ValueError("no good")

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert run.cancel() is True
    assert "raised while it was closed" in caplog.text


async def test_an_interrupt_leaves_the_other_runs_able_to_go_on() -> None:
    """Whoever catches the user's interrupt and goes on finds the runtime as it was."""
    runtime = Runtime(on_failure=lambda error, run_id: None)
    runtime.handle(Hop, lambda effect, ctx: resume(effect.n))
    loop, stopped = asyncio.new_event_loop(), []

    def exiting() -> Any:
        yield Hop(0)
        raise SystemExit

    def counting() -> Any:
        for n in range(9):
            yield Hop(n)
        return "counted"

    async def both() -> Any:
        runtime.start(exiting)
        return await runtime.start(counting)

    def drive() -> Any:
        task = loop.create_task(both())
        try:
            loop.run_until_complete(task)
        except SystemExit:
            stopped.append(True)
        try:
            return loop.run_until_complete(asyncio.wait_for(task, 60))
        finally:
            loop.close()

    assert await asyncio.to_thread(drive) == "counted"
    assert stopped == [True]


@pytest.mark.parametrize("ending", ["cancelled", "timed out"])
async def test_a_handlers_coroutine_that_is_not_needed_any_more_is_closed_before_its_first_turn(
    world: World, ending: str
) -> None:
    async def handler(effect: Poll, ctx: Any) -> Any:
        raise Boom

    world.runtime.handle(Poll, handler, timeout=0)
    run = world.runtime.start(polling)
    gc.collect()  # what other tests left in this process is not this one's
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        world.runtime.tick()
        if ending == "cancelled":
            run.cancel("enough")
        else:
            world.runtime.run_until_idle()
        await world.runtime.settle()
        gc.collect()
    assert [str(each.message) for each in warned] == []
    assert run.state == ("cancelled" if ending == "cancelled" else "failed")
    assert not isinstance(run.outcome_now(), Failed) or "did not answer" in str(run.outcome_now())


def test_a_clock_that_stands_between_two_milliseconds_can_be_advanced() -> None:
    clock = VirtualClock()
    world = World(clock=clock)
    clock.advance(0.5)
    world.runtime.advance(0)
    world.runtime.advance(2)
    assert clock.now_ms() == 2


def test_a_handler_may_move_the_clock_past_the_end_of_the_advance(world: World) -> None:
    def handler(effect: Poll, ctx: Any) -> Any:
        world.clock.advance(10)
        return resume(1)

    world.runtime.handle(Poll, handler)
    run = world.runtime.start(polling)
    world.runtime.advance(5)
    assert run.outcome_now() == Value(1)
    assert world.now == 10


async def test_elapsing_has_the_rules_of_advancing(world: World) -> None:
    await world.runtime.elapse(3)
    await world.runtime.elapse(-2)
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            await world.runtime.elapse(odd)
    assert world.now == 3


def test_a_name_nobody_registered_is_no_program(world: World) -> None:
    with pytest.raises(TypeError) as caught:
        world.runtime.start("nobody")
    assert isinstance(caught.value, UnknownProgram)
    assert world.runtime.start(polling).id == "run_1"


def test_a_program_may_wait_for_a_run_after_a_tick_of_its_own(world: World) -> None:
    async def inner(perform: Any) -> Any:
        return await perform(Hop(4))

    async def outer(perform: Any) -> Any:
        run = world.runtime.start(inner)
        world.runtime.tick()
        return await run

    run = world.runtime.start(outer)
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value(4)


@pytest.mark.parametrize("how", ["spawn", "group", "detach"])
@pytest.mark.parametrize("when", ["after it cancelled itself", "while it is closed"])
def test_a_run_that_is_over_gets_no_children_that_nobody_would_end(world: World, how: str, when: str) -> None:
    begun: list[str] = []

    async def child(perform: Any) -> None:
        begun.append("child")
        await perform(Sleep(ms=5))
        begun.append("woken")

    async def owner(perform: Any) -> None:
        async with perform.group() as group:
            start = {"spawn": perform.spawn, "group": group.spawn, "detach": perform.detach}[how]
            if when == "after it cancelled itself":
                perform.run.cancel("self")
                start(child)
            try:
                await perform(Sleep(ms=1000))
            finally:
                start(child)

    run = world.runtime.start(owner)
    world.runtime.run_until_idle()
    run.cancel("self")
    world.runtime.advance(100)
    assert run.outcome_now() == Cancelled("self")
    assert begun == []
    assert world.runtime.live == 0
    assert [entry for entry in world.runtime.trace if entry.startswith("outcome")] == ["outcome run_1 cancelled"]


def test_many_timers_of_one_moment_ring_in_their_order(world: World) -> None:
    woken: list[int] = []

    def sleeper(n: int) -> Any:
        yield Sleep(ms=5)
        woken.append(n)

    for n in range(3000):
        world.runtime.start(sleeper, n)
    world.runtime.advance(5)
    assert woken == list(range(3000))


def test_a_handler_that_polls_for_long_still_leaves_nothing_behind(world: World) -> None:
    polls: list[int] = []

    def handler(effect: Poll, ctx: Any) -> Any:
        later = ctx.later()

        def poll() -> None:
            polls.append(world.now)
            ctx.after(10, poll)
            ctx.after(3, lambda: None)

        ctx.after(10, poll)
        return later

    world.runtime.handle(Poll, handler)
    run = world.runtime.start(polling)
    world.runtime.advance(1000)
    assert polls == list(range(10, 1001, 10))
    ticks = world.runtime.ticks
    assert run.cancel("enough") is True
    world.runtime.advance(1000)
    assert world.runtime.ticks == ticks, "no timer is left to wake up for"
