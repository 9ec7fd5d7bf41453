"""asyncio under virtual time: sleeps that cost nothing and last exactly as long as they say."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.loop import Loop, VirtualClock, VirtualEventLoop, run_virtual


async def wrapped(depth: int, body: Callable[[], Awaitable[int]]) -> int:
    """Several layers of awaiting around something, each of another kind."""
    if depth == 0:
        return await body()
    if depth % 3 == 0:
        return await asyncio.wait_for(wrapped(depth - 1, body), 3600)
    if depth % 3 == 1:
        return await asyncio.create_task(wrapped(depth - 1, body))
    async with asyncio.timeout(7200):
        return (await asyncio.gather(wrapped(depth - 1, body)))[0]


def test_an_hour_passes_at_once_and_exactly() -> None:
    clock = VirtualClock(start_ms=1_700_000_000_000)

    async def main() -> int:
        await asyncio.sleep(3600)
        return clock.now_ns()

    assert run_virtual(main(), clock=clock) == (1_700_000_000_000 + 3_600_000) * 1_000_000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 5000), max_size=5)), max_size=6),
    st.sampled_from([0, 12_345, 1_700_000_000_000]),
)
def test_sleeps_end_exactly_on_time_under_any_number_of_awaits(plans: list[tuple[int, list[int]]], start: int) -> None:
    clock = VirtualClock(start)
    wrong: list[tuple[int, int]] = []

    async def sleeper(delays_ms: list[int]) -> int:
        due = start
        for delay_ms in delays_ms:
            due += delay_ms
            await asyncio.sleep(delay_ms / 1000)
            if clock.now_ns() != due * 1_000_000:
                wrong.append((clock.now_ns(), due))
        return due

    async def main() -> None:
        await asyncio.gather(*(wrapped(depth, lambda plan=plan: sleeper(plan)) for depth, plan in plans))  # type: ignore[misc]

    run_virtual(main(), clock=clock)
    assert wrong == []
    assert clock.now_ms() == start + max((sum(plan) for _, plan in plans), default=0)


def test_time_does_not_jump_while_any_callback_is_ready() -> None:
    clock = VirtualClock()
    seen: list[int] = []

    async def main() -> None:
        sleeper = asyncio.create_task(asyncio.sleep(1))
        for _ in range(1000):
            await asyncio.sleep(0)
            seen.append(clock.now_ms())
        await sleeper
        seen.append(clock.now_ms())

    run_virtual(main(), clock=clock)
    assert seen == [*[0] * 1000, 1000]


def test_a_loop_and_its_host_share_one_time() -> None:
    """The loop's timers and asyncio's sleeps interleave by deadline."""
    clock = VirtualClock()
    seen: list[tuple[str, int]] = []

    async def main() -> None:
        with Loop(clock).hosted() as loop:

            def again(left: int) -> None:
                seen.append(("timer", clock.now_ms()))
                if left:
                    loop.schedule(100, again, left - 1)

            loop.schedule(100, again, 3)
            for _ in range(3):
                await asyncio.sleep(0.15)
                seen.append(("sleep", clock.now_ms()))
            await loop.quiescent()

    run_virtual(main(), clock=clock)
    times = [at for _, at in seen]
    assert times == sorted(times)
    assert [at for who, at in seen if who == "timer"] == [100, 200, 300, 400]
    assert [at for who, at in seen if who == "sleep"] == [150, 300, 450]
    assert clock.now_ms() == 450


def test_a_cancelled_timer_leaves_no_trace_in_virtual_time() -> None:
    clock = VirtualClock()

    async def main() -> None:
        with Loop(clock).hosted() as loop:
            timeout = loop.schedule(30_000, print, "never")
            await asyncio.sleep(0.25)
            assert loop.cancel(timeout)
            await loop.quiescent()
            assert clock.now_ms() == 250
            await asyncio.sleep(0.25)

    run_virtual(main(), clock=clock)
    assert clock.now_ms() == 500


def test_a_timeout_under_virtual_time_times_out_exactly() -> None:
    clock = VirtualClock()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), 12.5)
        assert clock.now_ms() == 12_500

    run_virtual(main(), clock=clock)


def test_work_in_an_executor_is_waited_for_and_time_stands_still() -> None:
    clock = VirtualClock()

    async def main() -> None:
        waiting = asyncio.wait_for(asyncio.to_thread(lambda: time.sleep(0.05) or 7), 1)
        assert await waiting == 7
        assert clock.now_ms() == 0
        await asyncio.sleep(2)

    run_virtual(main(), clock=clock)
    assert clock.now_ms() == 2000


def test_a_hold_that_pins_time_keeps_timeouts_from_firing_while_a_thread_works() -> None:
    clock = VirtualClock()
    seen: list[str] = []

    async def main() -> None:
        with Loop(clock).hosted() as loop:
            timeout = loop.schedule(1000, seen.append, "timeout")
            hold = loop.hold("disk", pins_time=True)

            def done(argument: object) -> None:
                seen.append("done")
                loop.cancel(timeout)
                hold.release()

            threading.Timer(0.05, loop.complete, (done, None)).start()
            await loop.quiescent()

    run_virtual(main(), clock=clock)
    assert seen == ["done"]
    assert clock.now_ms() == 0
    assert not clock.pinned


def test_sockets_are_served_before_time_jumps() -> None:
    clock = VirtualClock()

    async def main() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        _, other = await asyncio.open_connection(sock=theirs)
        for number in range(100):
            other.write(b"line %d\n" % number)
            assert await asyncio.wait_for(reader.readline(), 1) == b"line %d\n" % number
        assert clock.now_ms() == 0
        writer.close()
        other.close()
        await asyncio.sleep(1)

    run_virtual(main(), clock=clock)
    assert clock.now_ms() == 1000


def test_days_pass_too() -> None:
    clock = VirtualClock()

    async def main() -> None:
        await asyncio.sleep(30 * 24 * 3600)

    run_virtual(main(), clock=clock)
    assert clock.now_ms() == 30 * 24 * 3_600_000


def test_the_event_loop_can_be_used_with_any_runner() -> None:
    async def main() -> float:
        await asyncio.sleep(5)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualEventLoop) as runner:
        assert runner.run(main()) == 5
