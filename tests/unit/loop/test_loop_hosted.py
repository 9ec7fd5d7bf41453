"""The loop hosted by asyncio and by uvloop, in real time: waking, sleeping, threads, yielding.

No duration is asserted here, only that things happen, in order, and not early.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mainspring.loop import FailedTurn, Loop, LoopBusy, LoopStalled, MonotonicClock, VirtualClock, new_event_loop, run

Host = Callable[[Coroutine[Any, Any, None]], None]
Factory = Callable[[], asyncio.AbstractEventLoop]


def factories() -> list[Any]:
    try:
        import uvloop
    except ImportError:
        return [pytest.param(asyncio.SelectorEventLoop, id="asyncio")]
    return [
        pytest.param(asyncio.SelectorEventLoop, id="asyncio"),
        pytest.param(uvloop.new_event_loop, id="uvloop"),
    ]


@pytest.fixture(params=factories())
def host(request: pytest.FixtureRequest) -> Host:
    factory: Factory = request.param

    def run_in(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(main, 30))

    return run_in


def ignore(argument: object) -> None:
    """A turn that does nothing."""


def test_turns_posted_before_and_after_attaching_run_in_order(host: Host) -> None:
    async def main() -> None:
        loop, seen = Loop(), list[int]()
        loop.post(seen.append, 1)
        with loop.hosted():
            loop.post(seen.append, 2)
            loop.post_system(seen.append, 0)
            assert seen == [], "nothing runs inside post"
            await loop.quiescent()
        assert seen == [0, 1, 2]

    host(main())


def test_a_sleeping_loop_wakes_for_posts_timers_and_cancels(host: Host) -> None:

    async def main() -> None:
        loop, seen = Loop(), list[str]()
        with loop.hosted():
            far = loop.schedule(3_600_000, seen.append, "far")
            await asyncio.sleep(0.01)
            loop.schedule(5, seen.append, "near")
            await asyncio.sleep(0.01)
            loop.post(seen.append, "post")
            await asyncio.sleep(0.01)
            loop.post_system(seen.append, "system")
            loop.cancel(far)
            await loop.quiescent()
        assert sorted(seen) == ["near", "post", "system"]
        assert seen.index("post") < seen.index("system")

    host(main())


def test_timers_are_never_early_in_real_time(host: Host) -> None:
    """With many random delays."""

    async def main() -> None:
        loop, clock = Loop(), MonotonicClock()
        early: list[tuple[float, int]] = []
        fired: list[float] = []

        def check(timer: tuple[float, int]) -> None:
            delay_ms, set_ns = timer
            fired.append(delay_ms)
            if clock.now_ns() - set_ns < delay_ms * 1_000_000:
                early.append(timer)

        with loop.hosted():
            for number in range(300):
                delay_ms = (number * 37 % 60) + number / 300
                loop.schedule(delay_ms, check, (delay_ms, clock.now_ns()))
                if number % 50 == 0:
                    await asyncio.sleep(0.001)
            await loop.quiescent()
        assert early == []
        assert len(fired) == 300

    host(main())


def test_completions_from_other_threads_all_arrive_as_turns_of_the_loops_thread(host: Host) -> None:
    async def main() -> None:
        loop, here = Loop(), threading.get_ident()
        seen: list[tuple[int, int]] = []
        elsewhere: list[int] = []

        def arrive(item: tuple[int, int]) -> None:
            seen.append(item)
            if threading.get_ident() != here:
                elsewhere.append(1)

        def work(worker: int) -> None:
            for number in range(2000):
                loop.complete(arrive, (worker, number))
                if number % 500 == 0:
                    time.sleep(0.001)

        with loop.hosted():
            with loop.hold("threads"):
                await asyncio.gather(*(asyncio.to_thread(work, worker) for worker in range(4)))
            await loop.quiescent()
        assert elsewhere == []
        for worker in range(4):
            assert [number for who, number in seen if who == worker] == list(range(2000))

    host(main())


def test_one_completion_wakes_a_loop_that_sleeps_without_any_timer(host: Host) -> None:
    async def main() -> None:
        loop = Loop()
        arrived = asyncio.Event()
        with loop.hosted():
            for _ in range(50):
                arrived.clear()
                await asyncio.sleep(0)
                thread = threading.Thread(target=loop.complete, args=(lambda _: arrived.set(), None))
                thread.start()
                await arrived.wait()
                thread.join()

    host(main())


def test_an_idle_loop_asks_for_nothing(host: Host) -> None:
    """With nothing to do there is no slice at all, and so nothing that could use the processor."""

    async def main() -> None:
        loop = Loop()
        with loop.hosted(), loop.hold("input"):
            loop.schedule(3_600_000, ignore, None)
            await asyncio.sleep(0.05)
            before = loop.counters().slices
            await asyncio.sleep(0.3)
            assert loop.counters().slices == before

    host(main())


def test_a_busy_loop_lets_the_host_breathe_after_every_slice(host: Host) -> None:
    """One driver only: tasks of the host run between slices of work that never ends."""

    async def main() -> None:
        loop = Loop(max_turns_per_slice=100)
        stop = False

        def again(argument: object) -> None:
            if not stop:
                loop.post(again, argument)

        with loop.hosted():
            for _ in range(10):
                loop.post(again, None)
            reader, writer = os.pipe()
            got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().add_reader(reader, lambda: got.done() or got.set_result(os.read(reader, 10)))
            os.write(writer, b"hello")
            assert await got == b"hello"
            asyncio.get_running_loop().remove_reader(reader)
            await asyncio.sleep(0.005)
            stop = True
            await loop.quiescent()
        for descriptor in (reader, writer):
            os.close(descriptor)
        counters = loop.counters()
        assert counters.turns <= counters.slices * 100

    host(main())


def test_system_work_that_feeds_itself_does_not_shut_out_the_host(host: Host) -> None:
    async def main() -> None:
        loop, seen = Loop(max_turns_per_slice=50), list[str]()
        stop = False

        def again(argument: object) -> None:
            if not stop:
                loop.post_system(again, argument)

        with loop.hosted():
            loop.post_system(again, None)
            loop.post(seen.append, "user")
            await asyncio.sleep(0.01)
            assert seen == [], "the system lane was never empty"
            stop = True
            await loop.quiescent()
        assert seen == ["user"]

    host(main())


def test_a_failing_turn_does_not_stop_a_hosted_loop(host: Host) -> None:
    async def main() -> None:
        failures: list[FailedTurn] = []
        loop, seen = Loop(on_error=failures.append), list[int]()
        with loop.hosted():
            loop.post([].index, 1)
            loop.schedule(1, [].index, 2)
            loop.schedule(2, seen.append, 3)
            await loop.quiescent()
        assert seen == [3]
        assert [failure.argument for failure in failures] == [1, 2]

    host(main())


def test_detaching_keeps_what_waits_for_the_next_driver(host: Host) -> None:
    async def main() -> None:
        loop, seen = Loop(), list[int]()
        loop.attach()
        loop.attach()
        loop.post(seen.append, 1)
        loop.detach()
        loop.detach()
        await asyncio.sleep(0.01)
        assert seen == []
        loop.complete(seen.append, 2)
        assert loop.run_until_idle() == 2
        assert seen == [1, 2]
        loop.attach()
        loop.post(seen.append, 3)
        await loop.quiescent()
        assert seen == [1, 2, 3]
        loop.detach()

    host(main())


def test_a_turn_may_detach_its_own_loop(host: Host) -> None:
    async def main() -> None:
        loop, seen = Loop(max_turns_per_slice=1), list[int]()
        loop.attach()
        loop.post(lambda _: loop.detach(), None)
        loop.post(seen.append, 1)
        await asyncio.sleep(0.01)
        assert seen == []
        assert loop.run_until_idle() == 1

    host(main())


def test_a_completion_after_the_host_ended_waits_for_the_next_driver(host: Host) -> None:
    loop, seen = Loop(), list[int]()

    async def main() -> None:
        loop.attach()

    host(main())
    loop.complete(seen.append, 1)
    loop.post(seen.append, 2)
    assert loop.run_until_idle() == 2
    assert sorted(seen) == [1, 2]

    async def later() -> None:
        with loop.hosted():
            loop.post(seen.append, 3)
            await loop.quiescent()

    host(later())
    assert seen[2:] == [3]


def test_a_loop_has_one_host_at_a_time(host: Host) -> None:
    loop = Loop()

    async def main() -> None:
        loop.attach()

        def elsewhere() -> None:
            async def other() -> None:
                with pytest.raises(LoopBusy, match="another event loop"):
                    loop.attach()

            asyncio.run(other())

        await asyncio.to_thread(elsewhere)
        loop.detach()

    host(main())


def test_awaiting_quiescence_needs_a_driver_and_ends_with_it(host: Host) -> None:
    async def main() -> None:
        loop = Loop()
        with pytest.raises(LoopBusy, match="nobody drives"):
            await loop.quiescent()
        with loop.hosted():
            loop.schedule(3_600_000, ignore, None)
            waiting = asyncio.ensure_future(loop.quiescent())
            await asyncio.sleep(0)
        with pytest.raises(LoopStalled, match="detached"):
            await waiting

    host(main())


def test_a_virtual_clock_on_a_real_host_moves_by_hand_only(host: Host) -> None:
    async def main() -> None:
        clock = VirtualClock()
        loop, seen = Loop(clock), list[int]()
        with loop.hosted():
            loop.schedule(10, seen.append, 10)
            loop.schedule(20, seen.append, 20)
            await asyncio.sleep(0.05)
            assert seen == []
            clock.advance(10)
            await asyncio.sleep(0.01)
            assert seen == [10]
            clock.advance(10)
            await loop.quiescent()
            assert seen == [10, 20]

    host(main())


def test_a_bare_loop_can_wait_for_real_time_and_threads() -> None:
    """Batch mode returns when quiescent."""
    loop, seen = Loop(), list[str]()
    loop.schedule(5, seen.append, "timer")
    hold = loop.hold("thread")

    def work() -> None:
        time.sleep(0.02)
        loop.complete(lambda _: (seen.append("thread"), hold.release()), None)

    thread = threading.Thread(target=work)
    thread.start()
    loop.run_until_quiescent()
    thread.join()
    assert seen == ["timer", "thread"]


def test_run_uses_the_fastest_event_loop_that_is_installed() -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    fastest = new_event_loop()
    assert run(main()) == type(fastest).__module__
    fastest.close()


def test_an_offer_to_a_sleeping_loop_is_made_at_once_and_counted_like_any_turn(host: Host) -> None:
    async def main() -> None:
        failures: list[FailedTurn] = []
        loop, seen = Loop(on_error=failures.append), list[str]()
        with loop.hosted():
            await loop.quiescent()
            await asyncio.sleep(0.001)
            loop.offer(seen.append, "at once")
            assert seen == ["at once"]
            loop.offer([].index, "absent")
            assert [failure.argument for failure in failures] == ["absent"]
            assert loop.counters().turns == 2
            assert loop.counters().failed_turns == 1

    host(main())


def test_an_offer_never_overtakes_what_waits_and_never_nests(host: Host) -> None:
    async def main() -> None:
        loop, seen = Loop(), list[str]()

        def outer(argument: object) -> None:
            loop.offer(seen.append, "inner")
            seen.append("outer over")

        with loop.hosted():
            await loop.quiescent()
            await asyncio.sleep(0.001)
            loop.post(seen.append, "first")
            loop.offer(outer, None)
            assert seen == []
            await loop.quiescent()
            assert seen == ["first", "outer over", "inner"]
            loop.complete(seen.append, "completion")
            loop.offer(seen.append, "with the completion")
            assert len(seen) == 3, "something waited, so nothing ran at once"
            await loop.quiescent()
            assert sorted(seen[3:]) == ["completion", "with the completion"]

    host(main())


def test_an_offer_to_a_bare_loop_is_a_post() -> None:
    loop, seen = Loop(VirtualClock()), list[int]()
    loop.offer(seen.append, 1)
    assert seen == []
    loop.run_until_idle()
    assert seen == [1]


def test_waiting_for_quiescence_may_not_block_the_host(host: Host) -> None:
    async def main() -> None:
        with Loop().hosted() as loop, pytest.raises(LoopBusy, match="would block the host"):
            loop.run_until_quiescent()

    host(main())


def test_no_arrival_is_missed_by_a_bare_loop_that_keeps_going_to_sleep() -> None:
    loop, arrived = Loop(), list[int]()
    hold = loop.hold("thread")
    number_of_arrivals = 3000

    def arrive(number: int) -> None:
        arrived.append(number)
        if number == number_of_arrivals - 1:
            hold.release()

    def work() -> None:
        for number in range(number_of_arrivals):
            loop.complete(arrive, number)
            if number % 3 == 0:
                time.sleep(0)

    thread = threading.Thread(target=work)
    thread.start()
    loop.run_until_quiescent()
    thread.join()
    assert arrived == list(range(number_of_arrivals))
