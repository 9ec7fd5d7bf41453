"""Deadlines that are noticed late: what has arrived meanwhile is handled before anything is judged."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.loop import Loop, VirtualClock, VirtualEventLoop, run_virtual, time_limit


def stall(ms: int) -> None:
    """Block the thread, as a handler does that computes."""
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualEventLoop)
    running.clock.advance(ms)


def arrives(rounds: int, future: asyncio.Future[str]) -> None:
    """Something in a socket's buffer: the event loop has to go round so often until it is handled."""
    if rounds:
        asyncio.get_running_loop().call_soon(arrives, rounds - 1, future)
    else:
        future.set_result("arrived")


def test_a_wait_that_is_late_by_a_stall_gets_what_had_arrived() -> None:
    async def main() -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def stop_and_go() -> None:
            stall(5_000)
            arrives(10, answer)

        asyncio.get_running_loop().call_later(1, stop_and_go)
        async with time_limit(2):
            return await answer

    assert run_virtual(main()) == "arrived"


def test_a_wait_for_what_does_not_come_ends_after_a_stall_and_without_one() -> None:
    async def main(stalled_ms: int) -> float:
        aio = asyncio.get_running_loop()
        began = aio.time()
        aio.call_later(1, stall, stalled_ms)
        with pytest.raises(TimeoutError):
            async with time_limit(2):
                await aio.create_future()
        return aio.time() - began

    assert round(run_virtual(main(0)), 6) == 2
    assert round(run_virtual(main(5_000)), 6) == 6


def test_a_timeout_of_the_loop_that_is_cancelled_by_what_had_arrived_is_not_judged() -> None:
    async def main() -> list[str]:
        aio, judged = asyncio.get_running_loop(), list[str]()
        assert isinstance(aio, VirtualEventLoop)
        loop = Loop(aio.clock)
        with loop.hosted():
            lease = loop.schedule(2_000, judged.append, "lease", kind="timeout")
            loop.schedule(2_000, judged.append, "other lease", kind="timeout")
            loop.schedule(2_000, judged.append, "sleep")

            def acknowledge(rounds: int) -> None:
                if rounds:
                    aio.call_soon(acknowledge, rounds - 1)
                else:
                    judged.append("acknowledged")
                    assert loop.cancel(lease)

            def stop_and_go() -> None:
                stall(4_000)
                acknowledge(10)

            aio.call_later(1, stop_and_go)
            await loop.quiescent()
        return judged

    assert run_virtual(main()) == ["sleep", "acknowledged", "other lease"]


def test_a_clock_that_a_test_moves_by_hand_is_never_late() -> None:
    async def main() -> list[str]:
        clock, judged = VirtualClock(), list[str]()
        loop = Loop(clock)
        with loop.hosted():
            loop.schedule(2_000, judged.append, "lease", kind="timeout")
            clock.advance(4_000)
            await loop.quiescent()
        return judged

    assert asyncio.run(main()) == ["lease"]


def test_a_late_timeout_of_a_host_that_ends_is_judged_by_the_next() -> None:
    """The event loop that was to go round a while before the timeout is judged was closed instead."""
    clock, fired = VirtualClock(), list[str]()
    loop = Loop(clock)

    async def begin() -> None:
        loop.attach()
        loop.schedule(5, fired.append, "late", kind="timeout")
        await asyncio.sleep(0)
        stall(100)
        loop.post(fired.append, "turn")
        while not fired:  # noqa: ASYNC110 - turns are counted
            await asyncio.sleep(0)
        assert fired == ["turn"]

    async def finish() -> None:
        loop.attach()
        while len(fired) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)

    for main in (begin, finish):
        with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
            runner.run(main())
    assert fired == ["turn", "late"]
