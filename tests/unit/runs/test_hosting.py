"""Who turns the runtime: an asyncio loop, a Mainspring loop, several threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mainspring.log import Log, SqliteEngine
from mainspring.loop import Loop, MonotonicClock, VirtualClock, run_virtual
from mainspring.runs import Cancelled, Effect, RunCancelled, Runtime, Sleep, Value, resume
from tests.support.runs import Hop

LIMIT_S = 60


class Later(Effect[int]):
    pass


async def hops(count: int, perform: Any) -> int:
    return sum([await perform(Hop(1)) for _ in range(count)])


async def nap(ms: int, perform: Any) -> int:
    clock = perform.run.scheduler.clock
    before: int = clock.now_ms()
    await perform(Sleep(ms=ms))
    after: int = clock.now_ms()
    return after - before


class StandingClock:
    """Not a virtual clock, so the runtime turns by itself; its time is the test's."""

    ms = 1000

    def now_ns(self) -> int:
        return self.ms * 1_000_000

    def now_ms(self) -> int:
        return self.ms

    wall_ns, wall_ms = now_ns, now_ms


def make(**settings: Any) -> Runtime:
    runtime = Runtime(**settings)
    runtime.handle(Hop, lambda effect, ctx: resume(effect.n))
    return runtime


async def test_a_long_chain_leaves_turns_to_everybody_else_on_the_loop() -> None:
    runtime = make(max_steps_per_tick=10)
    run = runtime.start(hops, 5000)
    turns = 0
    while not run.is_done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5000 / 10
    assert await run == 5000


async def test_sleeps_on_a_real_clock_are_never_short() -> None:
    runtime = make()
    assert await asyncio.wait_for(runtime.start(nap, 20), LIMIT_S) >= 20
    many = [runtime.start(nap, ms) for ms in (5, 1, 3, 0)]
    assert [await asyncio.wait_for(run, LIMIT_S) >= ms for run, ms in zip(many, (5, 1, 3, 0), strict=True)] == [
        True
    ] * 4


async def test_runs_started_before_there_was_a_loop_begin_when_somebody_waits() -> None:
    runtime = await asyncio.to_thread(make)
    run = await asyncio.to_thread(lambda: runtime.start(hops, 3))
    assert await asyncio.wait_for(run, LIMIT_S) == 3


def test_a_run_goes_on_in_the_next_asyncio_loop() -> None:
    runtime = make()

    async def begin() -> Any:
        return runtime.start(nap, 5), runtime.start(hops, 3)

    runs = asyncio.run(begin())

    async def finish() -> Any:
        return [await asyncio.wait_for(run, LIMIT_S) for run in runs]

    slept, hopped = asyncio.run(finish())
    assert (slept >= 5, hopped) == (True, 3)


def test_a_sleeping_run_wakes_in_the_next_asyncio_loop() -> None:
    runtime = make()

    async def begin() -> Any:
        run = runtime.start(nap, 200)
        for _ in range(10):
            await asyncio.sleep(0)
        assert runtime.steps == 1
        return run

    run = asyncio.run(begin())

    async def finish() -> Any:
        return await asyncio.wait_for(run, LIMIT_S)

    assert asyncio.run(finish()) >= 200


@pytest.mark.parametrize("first", ["await", "start"])
def test_a_sleep_that_ended_late_in_an_asyncio_loop_that_ended_wakes_in_the_next(first: str) -> None:
    """The loop was stopped past the sleep's end and closed before it had read what arrived meanwhile."""
    clock = StandingClock()
    runtime = make(clock=clock)

    async def begin() -> Any:
        run = runtime.start(nap, 3_600_000)
        await asyncio.sleep(0)
        assert runtime.steps == 1
        clock.ms += 2 * 3_600_000
        await asyncio.wait_for(runtime.start(hops, 3), LIMIT_S)
        assert not run.is_done()
        return run

    run = asyncio.run(begin())

    async def finish() -> Any:
        if first == "start":
            runtime.start(hops, 1)
        return await asyncio.wait_for(run, LIMIT_S)

    assert asyncio.run(finish()) == 2 * 3_600_000


async def test_an_answer_from_another_thread_wakes_the_loop() -> None:
    runtime = make()

    def handler(effect: Later, ctx: Any) -> Any:
        later = ctx.later()
        threading.Thread(target=later.resume, args=(7,)).start()
        return later

    runtime.handle(Later, handler)

    def program() -> Any:
        return (yield Later())

    assert await asyncio.wait_for(runtime.start(program), LIMIT_S) == 7


async def test_an_outcome_can_be_awaited_on_another_loop_in_another_thread() -> None:
    runtime = make()
    run = runtime.start(nap, 20)

    async def elsewhere() -> Any:
        return await run.outcome()

    outcome = await asyncio.wait_for(asyncio.to_thread(lambda: asyncio.run(elsewhere())), LIMIT_S)
    assert isinstance(outcome, Value)
    assert outcome.value >= 20


async def test_a_runtime_on_a_mainspring_loop_turns_with_it() -> None:
    loop = Loop(MonotonicClock())
    loop.attach()
    runtime = make(loop=loop)
    run, sleeper = runtime.start(hops, 100), runtime.start(nap, 5)
    assert await asyncio.wait_for(run, LIMIT_S) == 100
    assert await asyncio.wait_for(sleeper, LIMIT_S) >= 5
    loop.detach()


def test_a_mainspring_loop_under_virtual_time_drives_the_runtime() -> None:
    clock = VirtualClock()
    loop = Loop(clock)
    runtime = make(clock=clock, loop=loop)
    run = runtime.start(nap, 3_600_000)
    loop.run_until_idle()
    assert run.outcome_now() is None
    loop.advance(3_600_000)
    assert run.outcome_now() == Value(3_600_000)


def test_a_whole_asyncio_program_under_virtual_time() -> None:
    async def main() -> int:
        clock = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
        loop = Loop(clock)
        loop.attach()
        runtime = make(clock=clock, loop=loop)
        try:
            return await runtime.start(nap, 86_400_000)
        finally:
            loop.detach()

    assert run_virtual(main()) == 86_400_000


async def test_closing_a_runtime_cancels_what_is_left() -> None:
    runtime = make()
    run = runtime.start(nap, 1_000_000)
    await asyncio.sleep(0)
    runtime.close()
    assert isinstance(run.outcome_now(), Cancelled)
    with pytest.raises(RunCancelled):
        await run


async def test_durable_runs_on_sqlite_with_a_real_clock(tmp_path: Any) -> None:
    for attempt in range(2):
        log = Log(SqliteEngine(tmp_path / "log.db"))
        await log.open()
        runtime = make(log=log)
        runtime.register(hops, "hops")
        await runtime.start_service()
        runs = [runtime.start(hops, 5, durable=True, id=f"r{n}") for n in range(50)]
        assert [await asyncio.wait_for(run, LIMIT_S) for run in runs] == [5] * 50
        assert (runtime.steps > 0) == (attempt == 0), "the second time nothing is executed"
        await runtime.stop_service()
        await log.close()


async def test_a_hundred_thousand_steps_of_many_runs_leave_nothing_behind() -> None:
    runtime = make()
    for _ in range(5):
        assert sum(await asyncio.gather(*(_value(runtime.start(hops, 20)) for _ in range(1000)))) == 20_000
    assert (runtime.live, runtime.runs(), runtime.late_completions) == (0, [], 0)


async def _value(run: Any) -> int:
    value: int = await run
    return value


async def test_outcomes_can_be_awaited_in_many_threads_while_the_runs_step() -> None:
    runtime = Runtime()
    stepped_in: set[int] = set()

    def hop(effect: Hop, ctx: Any) -> int:
        stepped_in.add(threading.get_ident())
        return effect.n

    async def program(perform: Any) -> int:
        total = 0
        for n in range(200):
            total += await perform(Hop(n))
        await perform(Sleep(ms=1))
        return total

    runtime.handle(Hop, hop)
    runs = [runtime.start(program) for _ in range(20)]
    heard: list[Any] = []

    def listen() -> None:
        async def wait() -> None:
            heard.append(await asyncio.gather(*(run.outcome() for run in runs)))

        asyncio.run(wait())

    threads = [threading.Thread(target=listen) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    assert heard == [[Value(19_900)] * 20] * 4
    assert stepped_in == {threading.get_ident()}
