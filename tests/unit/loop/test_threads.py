"""Plain functions in threads: what they return, what they may call, and what happens when they block.

Each story runs under real and under virtual time; what differs is said in the tests of that kind alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from mainspring.loop import (
    HandlerThreads,
    VirtualClock,
    blocking_verb,
    run_virtual,
    runs_in_thread,
    with_blocking_verbs,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]

name: ContextVar[str] = ContextVar("name", default="nobody")


@pytest.fixture(params=["real", "virtual"])
def run(request: pytest.FixtureRequest) -> Run:
    return asyncio.run if request.param == "real" else run_virtual


class Desk:
    """What a plain function is given: its verbs belong to the loop's thread."""

    def __init__(self) -> None:
        self.loop_thread = threading.get_ident()
        self.done_by: list[str] = []

    def note(self, text: str) -> int:
        assert threading.get_ident() == self.loop_thread
        self.done_by.append(f"{text} by {name.get()}")
        return len(self.done_by)

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return f"{name.get()} waited"

    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise KeyError("sku")


BlockingDesk = with_blocking_verbs(Desk)


def test_a_function_runs_in_a_thread_with_the_context_of_its_caller(run: Run) -> None:
    async def main() -> tuple[int, str]:
        name.set("ada")
        found: tuple[int, str] = await threads.call(lambda: (threading.get_ident(), name.get()))
        return found

    threads = HandlerThreads()
    thread, who = run(main())
    assert thread != threading.get_ident()
    assert who == "ada"


def test_an_exception_arrives_at_the_caller(run: Run) -> None:
    def fail() -> None:
        raise KeyError("sku")

    async def main() -> None:
        with pytest.raises(KeyError, match="sku"):
            await HandlerThreads().call(fail)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await HandlerThreads().call(next, iter(()))

    run(main())


def test_verbs_of_the_loop_block_in_a_thread_and_give_their_result(run: Run) -> None:
    def work(desk: Desk) -> list[Any]:
        name.set("grace")
        first = desk.note("one")
        waited = desk.wait(0.001)
        try:
            desk.fail()  # type: ignore[unused-coroutine]
        except KeyError as error:
            return [first, waited, error.args, desk.note("two")]
        return []

    async def main() -> Desk:
        desk = BlockingDesk()
        assert await HandlerThreads(1).call(work, desk) == [1, "grace waited", ("sku",), 2]
        assert await desk.wait(0) == "nobody waited"  # on the loop, verbs are what they were
        assert desk.note("three") == 3
        return desk

    assert run(main()).done_by == ["one by grace", "two by grace", "three by nobody"]


def test_very_many_verbs_in_one_function(run: Run) -> None:
    def work(desk: Desk) -> int:
        return [desk.note("again") for _ in range(3_000)][-1]

    async def main() -> int:
        found: int = await HandlerThreads(1).call(work, BlockingDesk())
        return found

    assert run(main()) == 3_000


def test_functions_that_ask_each_other_cannot_use_up_the_threads(run: Run) -> None:
    async def main() -> int:
        threads = HandlerThreads(2)

        @blocking_verb
        def deeper(depth: int) -> Any:
            return threads.call(work, depth)

        def work(depth: int) -> int:
            return 0 if depth == 20 else 1 + int(deeper(depth + 1))

        found = await asyncio.gather(*(threads.call(work, 0) for _ in range(3)))
        assert threads.busy == 0
        return sum(found)

    assert run(main()) == 60


def test_a_coroutine_that_a_plain_function_returns_is_awaited_on_the_loop(run: Run) -> None:
    async def later() -> str:
        return "later"

    async def main() -> str:
        found: str = await HandlerThreads().call(lambda: later())
        return found

    assert run(main()) == "later"


def test_a_cancelled_function_says_nothing_any_more(run: Run) -> None:
    seen: list[str] = []

    def work(desk: Desk) -> None:
        try:
            desk.wait(3600)  # type: ignore[unused-coroutine]
        except asyncio.CancelledError:
            seen.append("cancelled in the first verb")
            desk.note("too late")
            raise
        finally:
            seen.append("finally")

    async def main() -> list[str]:
        threads, desk = HandlerThreads(), BlockingDesk()
        call = threads.call(work, desk)
        task = asyncio.ensure_future(asyncio.wait_for(call, 0.05))
        with pytest.raises(TimeoutError):
            await task
        await threads.idle()
        return desk.done_by

    assert run(main()) == []
    assert seen == ["cancelled in the first verb", "finally"]


def test_closing_ends_the_threads_and_what_waits_for_one() -> None:
    async def main() -> None:
        threads, begun, go_on = HandlerThreads(1), threading.Event(), threading.Event()

        def work() -> str:
            begun.set()
            go_on.wait()
            return threading.current_thread().name

        first, second = threads.call(work), threads.call(work)
        await asyncio.to_thread(begun.wait)
        assert (threads.busy, threads.waiting) == (1, 1)
        threads.close()
        assert second.cancelled()
        go_on.set()
        thread_name = await first
        await asyncio.to_thread(_gone, thread_name)

    asyncio.run(main())


def test_a_thread_whose_event_loop_went_away_ends_with_the_others() -> None:
    threads, begun, go_on = HandlerThreads(2), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()

    async def main() -> None:
        threads.call(work)
        await asyncio.to_thread(begun.wait)

    before = set(threading.enumerate())
    asyncio.run(main())
    mine = [each for each in set(threading.enumerate()) - before if each.name.startswith("mainspring-handler")]
    threads.close()
    go_on.set()
    for thread in mine:
        thread.join()
    assert len(mine) == 1


def _gone(thread_name: str) -> None:
    for each in threading.enumerate():
        if each.name == thread_name:
            each.join()


def test_a_blocked_pool_does_not_stop_the_loop_and_is_bounded() -> None:
    async def main() -> None:
        threads, go_on, begun = HandlerThreads(3), threading.Event(), [0]

        def work() -> None:
            begun[0] += 1
            go_on.wait()

        calls = [threads.call(work) for _ in range(10)]
        while begun[0] < 3:  # noqa: ASYNC110 - other threads count
            await asyncio.sleep(0)
        assert (threads.busy, threads.waiting, begun[0]) == (3, 7, 3)
        calls[-1].cancel()
        go_on.set()
        await threads.idle()
        assert (threads.busy, threads.waiting, begun[0]) == (0, 0, 9)

    asyncio.run(main())


def test_under_virtual_time_functions_take_turns_in_a_fixed_order() -> None:
    def story() -> list[str]:
        said: list[str] = []
        clock = VirtualClock()

        def work(who: str, desk: Desk) -> None:
            for step in range(3):
                said.append(f"{who}{step} at {clock.now_ms()}")
                desk.wait(1 if who == "a" else 1.5)  # type: ignore[unused-coroutine]

        async def main() -> None:
            threads, desk = HandlerThreads(), BlockingDesk()
            await asyncio.gather(threads.call(work, "a", desk), threads.call(work, "b", desk))

        run_virtual(main(), clock=clock)
        return said

    assert story() == ["a0 at 0", "b0 at 0", "a1 at 1000", "b1 at 1500", "a2 at 2000", "b2 at 3000"]
    assert story() == story()


def test_under_virtual_time_a_function_that_does_not_wait_is_done_at_once() -> None:
    async def main() -> None:
        assert HandlerThreads().call(lambda: 7).result() == 7

    run_virtual(main())


def test_which_functions_run_in_threads() -> None:
    class Plain:
        def __call__(self) -> None: ...

    class Async:
        async def __call__(self) -> None: ...

    async def coroutine(n: int = 0) -> None: ...

    def plain(n: int = 0) -> None: ...

    assert [runs_in_thread(each) for each in (plain, partial(plain, 1), Plain(), lambda: None)] == [True] * 4
    assert [runs_in_thread(each) for each in (coroutine, partial(coroutine, 1), Async())] == [False] * 3
