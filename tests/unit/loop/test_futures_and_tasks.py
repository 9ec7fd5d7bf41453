"""Futures that may be done already, and tasks that nobody awaits."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mainspring.loop import BackgroundTasks, reject, resolve, run_virtual, wake

logger = logging.getLogger("mainspring.test")


def test_a_future_that_waits_gets_its_result() -> None:
    async def main() -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        failing: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        wake(waiter)
        resolve(number, 7)
        reject(failing, ValueError("no"))
        assert (waiter.result(), number.result()) == (None, 7)
        with pytest.raises(ValueError, match="no"):
            await failing

    run_virtual(main())


def test_a_future_that_was_given_up_is_left_alone() -> None:
    async def main() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        wake(future)
        resolve(future, None)
        reject(future, ValueError())
        assert future.cancelled()

    run_virtual(main())


@pytest.mark.parametrize("unseen", [True, False])
def test_an_error_that_nobody_sees_is_reported_unless_that_is_expected(
    unseen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reject(future, ValueError("unseen"), may_go_unseen=unseen)
        del future

    run_virtual(main())
    assert ("never retrieved" in caplog.text) is not unseen


def test_background_tasks_are_kept_until_they_end_and_their_failures_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        tasks = BackgroundTasks(logger, "the shop")

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError("no paper")

        tasks.start(fail(), "printing")
        tasks.start(asyncio.sleep(5), "resting")
        assert (len(tasks), tasks.is_running("printing"), tasks.is_running("reading")) == (2, True, False)
        await tasks.wait()
        assert len(tasks) == 0

    run_virtual(main())
    (record,) = caplog.records
    assert record.getMessage() == "the shop: background task 'printing' failed"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no paper"


def test_one_task_of_a_name_is_enough() -> None:
    async def main() -> None:
        tasks = BackgroundTasks(logger, "the shop")
        begun: list[float] = []

        async def sweep() -> None:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)

        assert tasks.start_unless_running(sweep, "sweeping")
        assert not tasks.start_unless_running(sweep, "sweeping")
        await tasks.wait()
        assert tasks.start_unless_running(sweep, "sweeping")
        await tasks.wait()
        assert len(begun) == 2

    run_virtual(main())


def test_cancelling_waits_for_the_end_and_spares_the_task_that_cancels(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        tasks = BackgroundTasks(logger, "the shop")
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(1)
                ended.append("work")

        async def stop() -> None:
            await tasks.cancel()
            ended.append("stop")

        tasks.start(work(), "work")
        await asyncio.sleep(0)
        await tasks.start(stop(), "stop")
        assert ended == ["work", "stop"]

    run_virtual(main())
    assert not caplog.records


def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def main() -> float:
        tasks = BackgroundTasks(logger, "the shop")

        async def deaf() -> None:
            for _ in range(2):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
            await asyncio.sleep(3600)

        tasks.start(deaf(), "deaf")
        await asyncio.sleep(0)
        await tasks.cancel(repeat_s=0.1)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(0.2)


def test_without_an_event_loop_nothing_is_started_and_nothing_left_unawaited() -> None:
    with pytest.raises(RuntimeError):
        BackgroundTasks(logger, "the shop").start(asyncio.sleep(1), "resting")
