"""A worker in this process against a real node: one promise at a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import App, TaskContext
from mainspring.client import Client, NodeRefused, TimedOut, connect
from mainspring.tasks import TaskFailed, Worker
from tests.support.client_node import Node, eventually


@pytest.fixture
async def bus(node: Node) -> Client:
    async with connect(node.url) as client:
        yield client


@pytest.fixture
def app(bus: Client, name: str) -> App:
    made = App(name)
    made.use(bus)
    return made


async def test_a_result_that_json_cannot_say_is_a_failure(app: App) -> None:
    @app.task
    async def odd() -> Any:
        return object()

    async with Worker(app.tasks):
        with pytest.raises(TaskFailed, match="cannot be stored"):
            await (await odd.enqueue()).result(60)


async def test_a_task_that_the_worker_does_not_know_ends_as_a_dead_letter(app: App, bus: Client) -> None:
    @app.task
    async def known() -> None: ...

    headers = {"x-task": "unknown", "x-retry": "2 0.01 2 1 0"}
    async with Worker(app.tasks):
        await bus.publish(f"tasks.{app.name}.high", {}, headers=headers)

        async def dead() -> bool:
            try:
                letters = [each async for each in bus.dead_letters(f"tasks.{app.name}.high")]
            except NodeRefused:
                return False
            return [each.reason for each in letters] == ["UnknownTask: no task 'unknown' is declared here"]

        await eventually(dead)


async def test_a_delayed_task_waits(app: App) -> None:
    order: list[str] = []

    @app.task
    async def work(n: str) -> None:
        order.append(n)

    async with Worker(app.tasks):
        late = await work.options(delay="300ms").enqueue("late")
        at = datetime.now(UTC) + timedelta(seconds=0.6)
        later = await work.options(at=at).enqueue("later")
        last = await work.options(at=at + timedelta(seconds=0.3)).enqueue_many([("last",)])
        soon = await work.enqueue("soon")
        for handle in (late, later, soon, *last):
            await handle.result(60)
    assert order == ["soon", "late", "later", "last"]


async def test_a_result_can_be_asked_for_elsewhere_by_id(node: Node, app: App) -> None:
    @app.task
    async def work(n: int) -> int:
        return n * 2

    async with Worker(app.tasks):
        handle = await work.enqueue(21)
        await handle.result(60)
    async with connect(node.url) as other:
        app.use(other)
        assert await work.handle(handle.id).result(60) == 42
        assert await work.handle("nobody").state() == "waiting"
        with pytest.raises(TimedOut):
            await work.handle("nobody").result(0.1)


async def test_results_expire(own_node: Node) -> None:
    async with connect(own_node.url) as bus:
        await bus.put_topic("tasks.short.results", compact=True, retentionMs=500)
        app = App("short")
        app.use(bus)

        @app.task
        async def work() -> int:
            return 1

        async with Worker(app.tasks):
            handle = await work.enqueue()
            assert await handle.result(60) == 1

        async def gone() -> bool:
            return bool(await handle.state() == "waiting")

        await eventually(gone)


async def test_a_task_without_a_result_leaves_no_record(bus: Client, app: App) -> None:
    done = asyncio.Event()

    @app.task(keep_result=False)
    async def quiet() -> int:
        done.set()
        return 1

    async with Worker(app.tasks):
        await quiet.enqueue()
        await asyncio.wait_for(done.wait(), 30)
    assert [event async for event in bus.replay(f"tasks.{app.name}.results")] == []

    async def acknowledged() -> bool:
        return await bus.lag(quiet.topic, app.name) == 0

    await eventually(acknowledged)


async def test_a_cancelled_task_that_swallows_it_is_done_all_the_same(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I finished anyway"
        return ""

    async with Worker(app.tasks) as worker:
        handle = await stubborn.enqueue()
        await asyncio.wait_for(begun.wait(), 30)
        await handle.cancel()
        assert await handle.result(60) == "I finished anyway"
        assert worker.done == 1
        again = await stubborn.enqueue()  # its loop still works
        begun.clear()
        await asyncio.wait_for(begun.wait(), 30)
        await again.cancel()
        await again.result(60)


async def test_a_task_that_cancels_itself_has_failed(app: App) -> None:
    @app.task(max_attempts=1)
    async def suicidal() -> None:
        raise asyncio.CancelledError

    async with Worker(app.tasks, concurrency=1):
        for _ in range(3):
            with pytest.raises(TaskFailed, match="CancelledError"):
                await (await suicidal.enqueue()).result(60)


async def test_cancelling_what_has_ended_changes_nothing(app: App) -> None:
    @app.task
    async def work() -> int:
        return 5

    async with Worker(app.tasks):
        handle = await work.enqueue()
        assert await handle.result(60) == 5
        await handle.cancel()
        assert await handle.result(60) == 5


async def test_stopping_interrupts_what_does_not_finish_and_gives_it_back(app: App) -> None:
    attempts: list[int] = []
    begun = asyncio.Event()

    @app.task
    async def slow() -> int:
        task = TaskContext.current()
        attempts.append(task.attempt)
        begun.set()
        if task.attempt == 1:
            await asyncio.Event().wait()
        return task.attempt

    worker = Worker(app.tasks)
    await worker.start()
    handle = await slow.enqueue()
    await asyncio.wait_for(begun.wait(), 30)
    await worker.stop(timeout=0.05)
    await worker.stop()
    async with Worker(app.tasks):
        assert await handle.result(60) == 2
    assert attempts == [1, 2]


async def test_many_tasks_of_several_kinds_at_once(app: App) -> None:
    total = 0

    @app.task
    async def add(n: int) -> int:
        nonlocal total
        total += n
        return n

    @app.task(concurrency=3)
    async def few(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return n

    running = most = 0
    adding = await add.enqueue_many((n,) for n in range(500))
    urgent = await few.options(priority="high").enqueue_many((n,) for n in range(50))
    others = await few.enqueue_many((n,) for n in range(50))
    async with Worker(app.tasks, concurrency=50):
        assert [await handle.result(60) for handle in adding] == list(range(500))
        assert [await handle.result(60) for handle in (*urgent, *others)] == [*range(50), *range(50)]
    assert total == sum(range(500))
    assert most == 3


async def test_calls_start_no_faster_than_their_rate(app: App) -> None:
    started: list[float] = []

    @app.task(rate="50/s")
    async def polite(n: int) -> None:
        started.append(asyncio.get_running_loop().time())

    handles = await polite.enqueue_many((n,) for n in range(10))
    async with Worker(app.tasks):
        for handle in handles:
            await handle.result(60)
    assert started[-1] - started[0] >= 9 / 50 - 0.01


async def test_dead_letters_are_written_in_the_nodes_form(bus: Client, app: App) -> None:
    @app.task(max_attempts=1)
    async def fails(what: dict[str, Any]) -> None:
        raise OSError("boom")

    async with Worker(app.tasks):
        handle = await fails.options(headers={"mine": "kept"}).enqueue({"a": 1})
        with pytest.raises(TaskFailed):
            await handle.result(60)
    (letter,) = [each async for each in bus.dead_letters(fails.topic)]
    assert (letter.original_offset, letter.reason, letter.headers["mine"]) == (1, "OSError: boom", "kept")
    assert letter.payload == {"args": [{"a": 1}]}


async def test_a_worker_that_is_not_let_in_says_so(node: Node, name: str) -> None:
    async with connect(node.url) as boss:
        await boss.put_topic(f"tasks.{name}.low", subscribeACL=["nobody"])
    async with connect(f"{node.url}/?agent_id=bob") as bus:
        app = App(name)
        app.use(bus)

        @app.task
        async def work() -> None: ...

        with pytest.raises(NodeRefused) as refused:
            await Worker(app.tasks).run()
        assert refused.value.code == "forbidden"
