"""A task queue against a real node, with its worker in this process: one promise at a time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.client import BadArgument, Client, NodeRefused, TimedOut, connect
from mainspring.tasks import (
    NotBound,
    Retry,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskQueue,
    Worker,
)
from tests.support.client_node import Node, eventually

QUICK = Retry(attempts=3, first=0.01, jitter=0)


@dataclass
class Mail:
    to: str


@pytest.fixture
async def bus(node: Node) -> Client:
    async with connect(node.url) as client:
        yield client


@pytest.fixture
def queue(bus: Client, name: str) -> TaskQueue:
    return TaskQueue(name, bus, retry=QUICK)


async def test_a_payload_is_published_as_it_is_and_handed_over_as_its_type(bus: Client, queue: TaskQueue) -> None:
    seen: list[Mail] = []

    @queue.task
    async def send(mail: Mail) -> str:
        seen.append(mail)
        return f"sent to {mail.to}"

    handle = await send.enqueue(Mail("a@example.org"))
    (stored,) = [event async for event in bus.replay(queue.name)]
    assert stored.payload == {"to": "a@example.org"}
    assert stored.headers["x-task"] == "send"
    async with Worker(queue):
        assert await handle.result(10) == "sent to a@example.org"
    assert seen == [Mail("a@example.org")]
    assert await send(Mail("b")) == "sent to b"  # still the function it was


async def test_any_publisher_can_enqueue_for_a_queue_with_one_task(bus: Client, queue: TaskQueue) -> None:
    got: asyncio.Queue[object] = asyncio.Queue()

    @queue.task
    async def take(payload: object) -> None:
        got.put_nowait(payload)

    await bus.publish(queue.name, {"plain": True})
    async with Worker(queue):
        assert await asyncio.wait_for(got.get(), 10) == {"plain": True}


async def test_a_payload_that_does_not_fit_is_buried_at_once(queue: TaskQueue) -> None:
    @queue.task
    async def send(mail: Mail) -> None: ...

    async with Worker(queue):
        handle = await queue.enqueue("send", {"to": 7})
        with pytest.raises(TaskFailed, match="does not fit"):
            await handle.result(10)
        assert (await queue.dead())[0].attempts == 1


async def test_a_result_that_json_cannot_say_is_a_failure(queue: TaskQueue) -> None:
    @queue.task
    async def odd() -> object:
        return object()

    async with Worker(queue):
        with pytest.raises(TaskFailed, match="cannot be stored"):
            await (await odd.enqueue()).result(10)


async def test_a_failed_task_comes_again_until_it_works(queue: TaskQueue) -> None:
    attempts: list[int] = []

    @queue.task
    async def shaky(_: object, task: TaskContext) -> str:
        attempts.append(task.attempt)
        if task.attempt < 3:
            raise OSError("not yet")
        return "at last"

    async with Worker(queue):
        handle = await shaky.enqueue({})
        assert await handle.result(10) == "at last"
        assert await handle.status() == "done"
    assert attempts == [1, 2, 3]


async def test_the_policy_travels_with_the_task(bus: Client, queue: TaskQueue) -> None:
    attempts: list[int] = []

    @queue.task(retry=Retry(attempts=9))
    async def fails(_: object, task: TaskContext) -> None:
        attempts.append(task.attempt)
        raise OSError

    handle = await fails.enqueue(1, retry=Retry(attempts=2, first=0.01))
    (stored,) = [event async for event in bus.replay(queue.name)]
    assert stored.headers["x-retry"] == "2 0.01 2 600 0.5"
    async with Worker(queue):
        with pytest.raises(TaskFailed):
            await handle.result(10)
    assert attempts == [1, 2]


async def test_an_unknown_task_ends_as_a_dead_letter(queue: TaskQueue) -> None:
    @queue.task
    async def known() -> None: ...

    async with Worker(queue):
        with pytest.raises(TaskFailed, match="no task 'unknown'"):
            await (await queue.enqueue("unknown")).result(10)


async def test_urgent_tasks_go_first(queue: TaskQueue) -> None:
    order: list[str] = []

    @queue.task
    async def work(what: str) -> None:
        order.append(what)

    handles = [await work.enqueue(f"low {n}", priority="low") for n in range(3)]
    handles += [await work.enqueue(f"normal {n}") for n in range(3)]
    handles += [await work.enqueue(f"high {n}", priority="high") for n in range(3)]
    async with Worker(queue, concurrency=1, prefetch=10):
        for handle in handles:
            await handle.result(10)
    assert order == [f"{each} {n}" for each in ("high", "normal", "low") for n in range(3)]


async def test_a_delayed_task_waits(queue: TaskQueue) -> None:
    order: list[str] = []

    @queue.task
    async def work(what: str) -> None:
        order.append(what)

    async with Worker(queue):
        late = await work.enqueue("late", delay=0.3)
        later = await work.enqueue("later", at=datetime.now(UTC) + timedelta(seconds=0.6))
        soon = await work.enqueue("soon")
        for handle in (late, later, soon):
            await handle.result(10)
    assert order == ["soon", "late", "later"]


async def test_a_unique_task_is_enqueued_once(queue: TaskQueue) -> None:
    runs: list[int] = []

    @queue.task
    async def work(n: int) -> int:
        runs.append(n)
        return n

    handles = [await work.enqueue(n, unique="invoice-17") for n in range(3)]
    assert len({handle.id for handle in handles}) == 1
    other = await work.enqueue(9, unique="invoice-18")
    async with Worker(queue):
        assert [await handle.result(10) for handle in handles] == [0, 0, 0]
        assert await other.result(10) == 9
    assert runs == [0, 9]


async def test_tasks_with_a_key_run_in_order_even_when_one_must_be_tried_again(queue: TaskQueue) -> None:
    order: list[tuple[str, int]] = []
    running: set[str] = set()

    @queue.task
    async def step(what: tuple[str, int], task: TaskContext) -> None:
        key, n = what
        assert key not in running
        running.add(key)
        await asyncio.sleep(0.002)
        running.discard(key)
        if n % 4 == 1 and task.attempt == 1:
            raise OSError("try again")
        order.append((key, n))

    handles = [await step.enqueue((key, n), key=key) for n in range(12) for key in ("a", "b", "c")]
    async with Worker(queue, concurrency=8, prefetch=8):
        for handle in handles:
            await handle.result(30)
    for key in ("a", "b", "c"):
        assert [n for which, n in order if which == key] == list(range(12))


async def test_a_key_and_a_priority_exclude_each_other(queue: TaskQueue) -> None:
    @queue.task
    async def work() -> None: ...

    with pytest.raises(BadArgument):
        await work.enqueue(key="k", priority="high")


async def test_a_result_can_be_asked_for_elsewhere_by_id(node: Node, queue: TaskQueue) -> None:
    @queue.task
    async def work(n: int) -> int:
        return n * 2

    async with Worker(queue):
        handle = await work.enqueue(21)
        await handle.result(10)
    async with connect(node.url) as other:
        elsewhere = TaskQueue(queue.name, other)
        assert await elsewhere.handle(handle.id).result(10) == 42
        assert await elsewhere.handle("nobody").status() == "waiting"
        with pytest.raises(TimedOut):
            await elsewhere.handle("nobody").result(0.1)


async def test_results_expire(own_node: Node) -> None:
    async with connect(own_node.url) as bus:
        queue = TaskQueue("short", bus, results_kept=0.5)

        @queue.task
        async def work() -> int:
            return 1

        async with Worker(queue):
            handle = await work.enqueue()
            assert await handle.result(10) == 1

        async def gone() -> bool:
            return await handle.status() == "waiting"

        await eventually(gone)


async def test_a_task_without_a_result_leaves_no_record(bus: Client, queue: TaskQueue) -> None:
    done = asyncio.Event()

    @queue.task(keep_result=False)
    async def quiet() -> int:
        done.set()
        return 1

    async with Worker(queue):
        await quiet.enqueue()
        await asyncio.wait_for(done.wait(), 10)
    assert [event async for event in bus.replay(f"{queue.name}.results")] == []

    async def acknowledged() -> bool:
        return await bus.lag(queue.name, "workers") == 0

    await eventually(acknowledged)


async def test_a_cancelled_task_that_swallows_it_is_cancelled_all_the_same(queue: TaskQueue) -> None:
    begun = asyncio.Event()

    @queue.task
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I finished anyway"
        return ""

    async with Worker(queue) as worker:
        handle = await stubborn.enqueue()
        await asyncio.wait_for(begun.wait(), 10)
        await handle.cancel()
        assert await handle.result(10) == "I finished anyway"
        assert worker.done == 1
        again = await stubborn.enqueue()  # its loop still works
        begun.clear()
        await asyncio.wait_for(begun.wait(), 10)
        await again.cancel()
        await again.result(10)


async def test_a_task_that_cancels_itself_has_failed(queue: TaskQueue) -> None:
    @queue.task(retry=Retry(attempts=1))
    async def suicidal() -> None:
        raise asyncio.CancelledError

    async with Worker(queue, concurrency=1):
        for _ in range(3):
            with pytest.raises(TaskFailed, match="CancelledError"):
                await (await suicidal.enqueue()).result(10)


async def test_cancelling_what_has_ended_changes_nothing(queue: TaskQueue) -> None:
    @queue.task
    async def work() -> int:
        return 5

    async with Worker(queue):
        handle = await work.enqueue()
        assert await handle.result(10) == 5
        await handle.cancel()
        assert await handle.result(10) == 5


async def test_stopping_interrupts_what_does_not_finish_and_gives_it_back(queue: TaskQueue) -> None:
    attempts: list[int] = []
    begun = asyncio.Event()

    @queue.task
    async def slow(_: object, task: TaskContext) -> int:
        attempts.append(task.attempt)
        begun.set()
        if task.attempt == 1:
            await asyncio.Event().wait()
        return task.attempt

    worker = Worker(queue)
    await worker.start()
    handle = await slow.enqueue(0)
    await asyncio.wait_for(begun.wait(), 10)
    await worker.stop(timeout=0.05)
    await worker.stop()
    async with Worker(queue):
        assert await handle.result(10) == 2
    assert attempts == [1, 2]


async def test_progress_and_status(queue: TaskQueue) -> None:
    go = asyncio.Event()

    @queue.task
    async def steps(_: object, task: TaskContext) -> str:
        for n in range(3):
            task.progress({"done": n, "of": 3})
            await asyncio.sleep(0.05)
        await go.wait()
        return "all"

    async with Worker(queue):
        handle = await steps.enqueue(0)
        assert await handle.status() in ("waiting", "progress")
        seen = []
        async for each in handle.progress():
            seen.append(each["done"])
            if each["done"] == 2:
                assert await handle.status() == "progress"
                go.set()
        assert seen == sorted(seen)
        assert seen[-1] == 2
        assert await handle == "all"


async def test_a_repeated_task_runs_by_itself_and_keeps_its_rhythm(bus: Client, queue: TaskQueue) -> None:
    ticks = asyncio.Queue[object]()

    @queue.task(every=0.1, payload={"from": "the clock"})
    async def tick(payload: object) -> None:
        ticks.put_nowait(payload)

    @queue.task(cron="0 4 * * *")
    async def nightly() -> None: ...

    async with Worker(queue):
        assert await asyncio.wait_for(ticks.get(), 10) == {"from": "the clock"}
        assert await asyncio.wait_for(ticks.get(), 10) == {"from": "the clock"}
        known = await bus.http.call("GET", f"/schedules/{queue.name}%2Fnightly")
        assert known["cron"] == "0 4 * * *"
        await queue.schedule_repeated()
        assert (await bus.http.call("GET", f"/schedules/{queue.name}%2Fnightly"))["nextMs"] == known["nextMs"]
    await bus.unschedule(f"{queue.name}/tick")


async def test_many_tasks_at_once(queue: TaskQueue) -> None:
    total = 0

    @queue.task
    async def add(n: int) -> int:
        nonlocal total
        total += n
        return n

    handles = await queue.enqueue_many(add, range(1_000))
    async with Worker(queue, concurrency=50):
        assert [await handle.result(30) for handle in handles] == list(range(1_000))
    assert total == sum(range(1_000))


async def test_what_is_declared_wrongly_is_refused_when_it_is_declared(queue: TaskQueue) -> None:
    with pytest.raises(BadArgument, match="3 arguments"):
        queue.task(lambda a, b, c: None)

    @queue.task
    async def once() -> None: ...

    with pytest.raises(BadArgument, match="already has"):
        queue.task(name="once")(lambda: None)
    with pytest.raises(BadArgument):
        queue.task(cron="* * * * *", every=1)


async def test_a_queue_without_a_connection_says_so() -> None:
    with pytest.raises(NotBound, match="use"):
        await TaskQueue("q").enqueue("x")


async def test_dead_letters_are_written_in_the_nodes_form(bus: Client, queue: TaskQueue) -> None:
    @queue.task(retry=Retry(attempts=1))
    async def fails(_: object) -> None:
        raise OSError("boom")

    async with Worker(queue):
        handle = await fails.enqueue({"a": 1}, headers={"mine": "kept"})
        with pytest.raises(TaskFailed):
            await handle.result(10)
    letters = await bus.http.call("GET", f"/dlq/{queue.name}")
    (letter,) = letters["letters"]
    assert (letter["originalTopic"], letter["originalOffset"], letter["reason"]) == (queue.name, 1, "OSError: boom")
    assert letter["headers"]["mine"] == "kept"
    assert json.loads(json.dumps(letter["payload"])) == {"a": 1}


async def test_a_worker_that_is_not_let_in_says_so(node: Node, name: str) -> None:
    async with connect(node.url) as boss:
        await boss.put_topic(f"{name}.low", subscribeACL=["nobody"])
    async with connect(f"{node.url}/?agent_id=bob") as bus:
        queue = TaskQueue(name, bus)
        with pytest.raises(NodeRefused) as refused:
            await Worker(queue).run()
        assert refused.value.code == "forbidden"


async def test_waiting_for_a_cancelled_task_raises(queue: TaskQueue) -> None:
    @queue.task
    async def never() -> None: ...

    handle = await never.enqueue(delay=0.2)
    await handle.cancel()
    async with Worker(queue):
        with pytest.raises(TaskCancelled):
            await handle.result(10)
