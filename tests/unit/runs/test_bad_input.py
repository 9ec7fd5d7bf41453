"""What a runtime does with programs and handlers that break the rules."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from mainspring.loop import MonotonicClock, VirtualClock, Watchdog
from mainspring.runs import (
    AlreadyAnswered,
    Cancelled,
    Effect,
    EffectTimeout,
    Failed,
    HandlerGaveUp,
    NoHostLoop,
    NotAnEffect,
    RunError,
    Runtime,
    Sleep,
    Value,
    WrongAnswer,
    end,
    resume,
    tail,
)
from tests.support.runs import Boom, Hop, World


class Odd(Effect[Any]):
    pass


@pytest.fixture
def world() -> World:
    return World()


def error_of(run: Any) -> BaseException:
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed), outcome
    return outcome.error


@pytest.mark.parametrize("thing", [None, 7, "Hop", Hop, object(), [Hop(1)]], ids=lambda value: type(value).__name__)
def test_a_program_that_yields_something_else_fails_with_its_type(world: World, thing: Any) -> None:
    def program() -> Any:
        yield thing

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert isinstance(error_of(run), NotAnEffect)
    assert type(thing).__name__ in str(error_of(run))


async def test_a_program_that_awaits_asyncio_itself_fails(world: World) -> None:
    async def program(perform: Any) -> None:
        await asyncio.sleep(0.001)

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert isinstance(error_of(run), NotAnEffect)


@pytest.mark.parametrize("nonsense", [resume, tail, end, (x for x in ())], ids=["resume", "tail", "end", "generator"])
def test_a_handler_that_returns_nonsense_fails_the_run(world: World, nonsense: Any) -> None:
    world.runtime.handle(Odd, lambda effect, ctx: nonsense)

    def program() -> Any:
        yield Odd()

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert isinstance(error_of(run), WrongAnswer)
    assert "Odd" in str(error_of(run))


def test_answering_twice_tells_the_second_and_keeps_the_first(world: World) -> None:
    laters = []
    world.runtime.handle(Odd, lambda effect, ctx: laters.append(ctx.later()) or laters[-1])

    def program() -> Any:
        return (yield Odd()), (yield Odd())

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    laters[0].resume(1)
    with pytest.raises(AlreadyAnswered):
        laters[0].resume(2)
    world.runtime.run_until_idle()
    with pytest.raises(AlreadyAnswered):
        laters[0].resume(3)
    laters[1].resume(4)
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value((1, 4))


def test_a_handler_that_answers_through_later_and_returns_too_is_answered_once(world: World) -> None:
    def handler(effect: Odd, ctx: Any) -> Any:
        ctx.later().resume("through later")
        return resume("returned")

    world.runtime.handle(Odd, handler)

    def program() -> Any:
        return (yield Odd())

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value("through later")
    assert world.runtime.late_completions == 1


def test_a_later_answer_of_the_wrong_kind_fails_the_run(world: World) -> None:
    laters = []
    world.runtime.handle(Odd, lambda effect, ctx: laters.append(ctx.later()) or laters[-1])

    def program() -> Any:
        yield Odd()

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    laters[0].answer(tail(1))
    world.runtime.run_until_idle()
    assert isinstance(error_of(run), WrongAnswer)


def test_an_answer_from_another_thread_arrives_at_the_next_tick(world: World) -> None:
    laters = []
    world.runtime.handle(Odd, lambda effect, ctx: laters.append(ctx.later()) or laters[-1])

    def program() -> Any:
        return (yield Odd())

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    thread = threading.Thread(target=laters[0].resume, args=(5,))
    thread.start()
    thread.join()
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value(5)


@pytest.mark.parametrize("form", ["later", "coroutine"])
async def test_a_handler_that_never_answers_meets_its_timeout(world: World, form: str) -> None:
    cancelled = []

    async def forever(effect: Odd, ctx: Any) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.append(True)

    world.runtime.handle(Odd, forever if form == "coroutine" else lambda effect, ctx: ctx.later(), timeout="50ms")

    def program() -> Any:
        yield Odd()

    run = world.runtime.start(program)
    await world.runtime.elapse(49)
    assert run.outcome_now() is None
    await world.runtime.elapse(1)
    await world.runtime.settle()
    assert isinstance(error_of(run), EffectTimeout)
    assert "Odd" in str(error_of(run))
    assert cancelled == ([True] if form == "coroutine" else [])
    assert len(world.failures) == 1


def test_a_timeout_that_is_not_needed_leaves_nothing_behind(world: World) -> None:
    laters = []
    world.runtime.handle(Odd, lambda effect, ctx: laters.append(ctx.later()) or laters[-1], timeout="50ms")

    def program() -> Any:
        return (yield Odd())

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    laters[0].resume(1)
    ticks_needed = world.runtime.run_until_idle()
    assert (run.outcome_now(), ticks_needed) == (Value(1), 2)
    ticks = world.runtime.ticks
    world.runtime.advance(100)
    assert world.runtime.ticks == ticks


def test_a_coroutine_handler_without_an_asyncio_loop_fails_the_run_with_the_remedy(world: World) -> None:
    async def handler(effect: Odd, ctx: Any) -> None:
        pass

    world.runtime.handle(Odd, handler)

    def program() -> Any:
        yield Odd()

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert isinstance(error_of(run), NoHostLoop)


async def test_a_handler_cancelled_from_outside_is_a_failure(world: World) -> None:
    async def handler(effect: Odd, ctx: Any) -> None:
        await asyncio.get_running_loop().create_future()

    world.runtime.handle(Odd, handler)

    def program() -> Any:
        yield Odd()

    run = world.runtime.start(program)
    await world.runtime.settle()
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    await world.runtime.settle()
    assert isinstance(error_of(run), HandlerGaveUp)


def test_a_program_that_swallows_its_closing_is_cancelled_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def stubborn() -> Any:
        for attempt in range(3):
            try:
                yield Sleep(ms=1000)
            except GeneratorExit:
                seen.append(attempt)
        seen.append("left")

    run = world.runtime.start(stubborn)
    world.runtime.run_until_idle()
    assert run.cancel("enough")
    assert (run.outcome_now(), seen) == (Cancelled("enough"), [0, 1, 2, "left"])
    assert world.failures == []


def test_a_program_that_performs_in_its_finally_block_is_cancelled_all_the_same(world: World) -> None:
    async def program(perform: Any) -> None:
        try:
            await perform(Sleep(ms=1000))
        finally:
            await perform(Hop(1))

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert run.cancel()
    assert run.outcome_now() == Cancelled()
    assert world.hops == []


def test_a_program_that_raises_while_it_is_closed_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def program() -> Any:
        try:
            yield Sleep(ms=1000)
        finally:
            raise Boom("while closing")

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    with caplog.at_level(logging.ERROR):
        assert run.cancel()
    assert run.outcome_now() == Cancelled()
    assert "run_1" in caplog.text
    assert world.failures == []


def test_cancelling_inside_the_step_closes_the_program_when_it_suspends(world: World) -> None:
    seen = []

    def program() -> Any:
        run.cancel("self")
        try:
            yield Hop(1)
        finally:
            seen.append("closed")

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert (seen, world.hops) == (["closed"], [])


def test_no_continuation_is_kept_after_the_end(world: World) -> None:
    class Big:
        pass

    def program(big: Any) -> Any:
        yield Sleep(ms=1000)

    big = Big()
    alive = weakref.ref(big)
    run = world.runtime.start(program, big)
    world.runtime.run_until_idle()
    run.cancel()
    del big
    gc.collect()
    assert alive() is None


def test_a_failing_sink_and_a_failing_listener_change_nothing() -> None:
    def broken(*_: Any) -> None:
        raise Boom("sink")

    runtime = Runtime(clock=VirtualClock(), on_failure=broken)
    runtime.on_outcome(broken)

    def program() -> Any:
        raise Boom("program")
        yield

    run = runtime.start(program)
    runtime.run_until_idle()
    assert str(error_of(run)) == "program"


@pytest.mark.parametrize("exit_error", [KeyboardInterrupt, SystemExit])
def test_the_users_interrupt_is_not_swallowed(world: World, exit_error: type[BaseException]) -> None:
    def program() -> Any:
        raise exit_error
        yield

    run = world.runtime.start(program)
    with pytest.raises(exit_error):
        world.runtime.run_until_idle()
    world.runtime.run_until_idle()
    assert isinstance(error_of(run), exit_error)


@pytest.mark.parametrize(
    "thing", [lambda: None, print, int, 42, None, (x for x in ())], ids=lambda value: type(value).__name__
)
def test_what_is_not_a_program_is_refused(world: World, thing: Any) -> None:
    with pytest.raises(TypeError):
        world.runtime.start(thing)
    assert world.runtime.live == 0


def test_async_generators_are_not_programs(world: World) -> None:
    async def program(perform: Any) -> Any:
        yield 1

    with pytest.raises(TypeError):
        world.runtime.start(program)


def test_callable_objects_and_partials_are_programs(world: World) -> None:
    from functools import partial

    class Program:
        async def __call__(self, n: int, perform: Any) -> int:
            return n + await perform(Hop(n))

        def method(self, n: int) -> Any:
            return n + (yield Hop(n))

    runs = [
        world.runtime.start(Program(), 1),
        world.runtime.start(Program().method, 2),
        world.runtime.start(partial(Program().method, 3)),
    ]
    world.runtime.run_until_idle()
    assert [run.outcome_now() for run in runs] == [Value(2), Value(4), Value(6)]


def test_handlers_may_take_the_effect_alone_but_not_three_arguments(world: World) -> None:
    world.runtime.handle(Odd, lambda effect: resume("alone"))

    def program() -> Any:
        return (yield Odd())

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value("alone")
    with pytest.raises(TypeError):
        world.runtime.handle(Odd, lambda effect, ctx, more: None)
    with pytest.raises(TypeError):
        world.runtime.handle(Odd, "not callable")


def test_an_effect_kind_must_be_one_of_two() -> None:
    with pytest.raises(TypeError, match="kind"):
        type(Effect)("Wrong", (Effect,), {}, kind="sometimes")


def test_an_effect_subclass_is_not_answered_by_its_parents_handler(world: World) -> None:
    class Further(Hop):
        pass

    def program() -> Any:
        yield Further(1)

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert "Further" in str(error_of(run))


def test_only_a_virtual_clock_can_be_advanced() -> None:
    with pytest.raises(RunError, match="virtual"):
        Runtime(clock=MonotonicClock()).advance(1)


async def test_a_run_that_does_not_suspend_is_named_while_it_still_runs() -> None:
    named = threading.Event()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "busy" in record.getMessage():
                named.set()

    def busy() -> Any:
        assert named.wait(30)
        yield Sleep(ms=0)

    logger, listener = logging.getLogger("mainspring.loop"), Seen()
    logger.addHandler(listener)
    runtime = Runtime()
    try:
        with Watchdog(limit_ms=1) as watchdog:
            await runtime.start(busy)
            while not any(each.kind == "run" and "busy" in each.name for each in watchdog.blocked):
                await asyncio.to_thread(named.wait, 0.01)
    finally:
        logger.removeHandler(listener)
        runtime.close()


async def test_cleanups_may_be_coroutines(world: World) -> None:
    cleaned = []

    async def clean() -> None:
        await asyncio.sleep(0)
        cleaned.append(1)

    async def fail() -> None:
        raise Boom("cleanup")

    def handler(effect: Odd, ctx: Any) -> Any:
        ctx.on_close(clean)
        ctx.on_close(fail)
        return resume()

    world.runtime.handle(Odd, handler)

    def program() -> Any:
        yield Odd()

    run = world.runtime.start(program)
    await world.runtime.settle()
    assert (run.outcome_now(), cleaned) == (Value(None), [1])


def test_a_plain_handler_that_raises_a_cancellation_fails_the_run(world: World) -> None:
    def handler(effect: Odd, ctx: Any) -> Any:
        raise asyncio.CancelledError

    world.runtime.handle(Odd, handler)

    def program() -> Any:
        yield Odd()

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert isinstance(error_of(run), HandlerGaveUp)


async def test_awaiting_a_run_never_cancels_the_one_who_waits(world: World) -> None:
    def program() -> Any:
        raise asyncio.CancelledError
        yield

    run = world.runtime.start(program)
    await world.runtime.settle()
    assert isinstance(error_of(run), asyncio.CancelledError)
    with pytest.raises(RunError):
        await run


def test_a_bare_value_that_cannot_be_compared_is_a_value(world: World) -> None:
    class Matrix:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of a matrix is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    matrix = Matrix()
    world.runtime.handle(Odd, lambda effect, ctx: matrix)

    def program() -> Any:
        answer = yield Odd()
        return answer is matrix

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    assert run.outcome_now() == Value(True)


def test_a_run_that_is_given_too_little_says_what_its_program_takes(world: World) -> None:
    async def checkout(customer: str, cents: int, perform: Any) -> None: ...
    def refund(cents: int) -> Any:
        yield Hop(cents)

    with pytest.raises(TypeError, match=r"checkout takes \(customer: .*str.*, cents: .*int.*\), and 1 argument came"):
        world.runtime.start(checkout, "ada")
    with pytest.raises(TypeError, match=r"refund takes \(cents: .*int.*\), and 0 arguments came"):
        world.runtime.start(refund)


def test_a_program_nobody_knows_is_told_with_those_that_are_known(world: World) -> None:
    async def checkout(perform: Any) -> None: ...

    world.runtime.register(checkout, "checkout")
    with pytest.raises(RunError, match="no program named 'chekout'") as caught:
        world.runtime.start("chekout")
    assert caught.value.remedy.startswith("known here: checkout;")


def test_the_log_says_where_a_handler_failed(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(clock=VirtualClock())

    def explode(effect: Odd, ctx: Any) -> Any:
        raise ConnectionError("the bank is away")

    def program() -> Any:
        yield Odd()

    runtime.handle(Odd, explode)
    with caplog.at_level(logging.ERROR):
        runtime.start(program)
        runtime.run_until_idle()
    assert "in explode" in caplog.text
