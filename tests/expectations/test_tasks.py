"""What a user of Celery or DBOS expects of tasks.

- `@app.task` above any function; `await task.enqueue(...)` with its arguments, checked where it is called
- a result, a state, a cancellation, by a handle
- delays, priorities, keys, uniqueness, expiry
- retries with back-off, for the errors one names; time limits; rate limits
- `.delay()` and `.apply_async()` say what to write instead
- plain functions may block; context variables travel
- chains, groups and chords, as runs
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import App, Perform, Reject, TaskContext
from mainspring.client import TimedOut
from mainspring.tasks import BadTask, NotServed, Task, TaskCancelled, TaskExpired, TaskFailed
from mainspring.testing import serving
from tests.expectations.conftest import Start

WAIT = 60  # seconds, for what comes at once


async def test_a_task_is_done_later_and_again_when_it_failed(start: Start) -> None:
    app, sent = App("shop"), []

    @app.task(backoff="10ms")
    async def send_mail(to: str, *, subject: str = "hello") -> None:
        sent.append((to, subject))
        if len(sent) == 1:
            raise ConnectionError("no mail server")

    async with start(app) as node:
        await send_mail.enqueue("ada", subject="your order")
        await node.until(lambda: len(sent) == 2)
        assert sent == [("ada", "your order")] * 2


def mailer() -> App:
    app = App("mailer")

    @app.task
    async def send_mail(to: str) -> None:
        await app.publish("mails", to)

    app.state.send_mail = send_mail
    return app


async def test_a_task_that_was_enqueued_survives_a_crash(start: Start) -> None:
    async with start(mailer) as node:
        await node.enqueue(mailer().state.send_mail, "ada")
        await node.crash()
        await node.until(lambda: node.events("mails"))


@dataclass
class Point:
    x: int
    y: int = 0


async def test_any_signature_and_its_result(start: Start) -> None:
    app = App("sums")

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    @app.task
    async def moved(point: Point, *by: int, twice: bool = False, **names: str) -> list[Any]:
        total = sum(by) * (2 if twice else 1)
        return [Point(point.x + total, point.y), names]

    @app.task
    def mirrored(point: Point) -> Point:
        return Point(point.y, point.x)

    @app.task
    def where_am_i(n: int, task: TaskContext, label: str = "-") -> str:
        return f"{task.name} {n} {label} {task.attempt}"

    async with start(app):
        assert await (await add.enqueue(2, y=3)).result(WAIT) == 5
        handle = await moved.enqueue(Point(1), 2, 3, twice=True, a="b")
        assert await handle.result(WAIT) == [{"x": 11, "y": 0}, {"a": "b"}]
        assert await (await mirrored.enqueue(Point(1, 2))).result(WAIT) == Point(2, 1)
        assert await (await where_am_i.enqueue(7, "here")).result(WAIT) == "where_am_i 7 here 1"
        assert await (await where_am_i.enqueue(7, label="there")).result(WAIT) == "where_am_i 7 there 1"
        with pytest.raises(TypeError, match="missing a required argument: 'y'"):
            await add.enqueue(2)


async def test_arguments_that_another_program_published_and_that_do_not_fit_are_a_dead_letter_at_once(
    start: Start,
) -> None:
    app = App("sums")

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    async with start(app) as node:
        await node.publish(add.topic, {"args": ["two", 3]})
        await node.publish(add.topic, {"args": [1]})

        async def dead() -> Any:
            letters = await node.dead_letters(add.topic)
            return letters if len(letters) == 2 else None

        reasons = sorted(letter["reason"] for letter in await node.until(dead))
        assert "Expected `int`, got `str`" in reasons[0]
        assert "missing a required argument: 'y'" in reasons[1]


async def test_a_payload_that_is_no_call_is_the_one_argument(start: Start) -> None:
    app, got = App("posts"), []

    @app.task
    async def post(what: Point) -> None:
        got.append(what)

    async with start(app) as node:
        await node.publish(post.topic, {"x": 3, "y": 4})
        await node.until(lambda: got == [Point(3, 4)])


async def test_a_failed_task_is_told_to_who_waits_and_is_a_dead_letter(start: Start) -> None:
    app, tried = App("post"), []

    @app.task(max_attempts=3, backoff="1ms")
    def send(to: str) -> None:
        tried.append(to)
        raise ValueError("no such address")

    async with start(app) as node:
        handle = await send.enqueue("nobody")
        with pytest.raises(TaskFailed, match="ValueError: no such address"):
            await handle.result(WAIT)
        assert (len(tried), await handle.state()) == (3, "failed")
        (letter,) = await node.dead_letters(send.topic)
        assert (letter["attempts"], letter["reason"]) == (3, "ValueError: no such address")
        assert await node.redrive(send.topic) == 1
        await node.until(lambda: len(tried) == 6)


async def test_only_some_errors_are_tried_again(start: Start) -> None:
    app, tried = App("post"), []

    @app.task(max_attempts=5, backoff="1ms", retry_on=OSError, give_up_on=FileNotFoundError)
    async def read(how: str) -> None:
        tried.append(how)
        raise {"value": ValueError, "gone": FileNotFoundError, "no": Reject, "later": ConnectionError}[how](how)

    async with start(app):
        for how in ("value", "gone", "no", "later"):
            with pytest.raises(TaskFailed):
                await (await read.enqueue(how)).result(WAIT)
    assert [tried.count(how) for how in ("value", "gone", "no", "later")] == [1, 1, 1, 5]


async def test_a_call_may_bring_its_own_attempts_and_time_limit(start: Start) -> None:
    app, tried = App("post"), []

    @app.task
    async def stuck() -> None:
        tried.append(1)
        await asyncio.Event().wait()

    async with start(app):
        handle = await stuck.options(timeout="20ms", max_attempts=2, backoff="1ms").enqueue()
        with pytest.raises(TaskFailed, match=r"took longer than 0\.02 s"):
            await handle.result(WAIT)
    assert len(tried) == 2


async def test_a_task_is_cancelled_before_and_while_it_runs(start: Start) -> None:
    app, seen = App("post"), []

    @app.task
    async def endless() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    async with start(app) as node:
        waits = await endless.options(delay="1h").enqueue()
        assert await waits.state() == "waiting"
        runs = await endless.enqueue()
        await node.until(lambda: seen == ["begun"])
        await runs.cancel()
        with pytest.raises(TaskCancelled):
            await runs.result(WAIT)
        await waits.cancel("not needed")
        assert seen == ["begun", "cancelled"]


async def test_an_unknown_option_is_refused_where_it_is_given() -> None:
    app = App("post")

    @app.task
    def send() -> None: ...

    with pytest.raises(BadTask, match="no option 'ttl_ms'"):
        send.options(ttl_ms=5)  # type: ignore[call-arg]
    with pytest.raises(BadTask, match="not a rate"):
        app.task(rate="fast")(lambda: None)
    with pytest.raises(BadTask, match="no priority"):
        send.options(key="a", priority="high")
    with pytest.raises(BadTask, match="already has"):
        app.task(name="send")(lambda: None)
    with pytest.raises(BadTask, match="cannot be named"):
        app.task(name="results")(lambda: None)


async def test_celery_words_name_the_ones_to_use() -> None:
    app = App("post")

    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(AttributeError, match=r"write `await send\.enqueue\(\.\.\.\)`"):
        send.delay("ada")
    with pytest.raises(AttributeError, match=r"options\(delay="):
        send.apply_async(("ada",))


async def test_outside_a_node_a_task_says_how_to_reach_one() -> None:
    app = App("post")

    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(NotServed, match=r"app\.use\(connect\(\.\.\.\)\)"):
        await send.enqueue("ada")


async def test_urgent_tasks_overtake(start: Start) -> None:
    app, order = App("post"), []
    go = asyncio.Event()

    @app.task
    async def block() -> None:
        order.append("block")
        await asyncio.wait_for(go.wait(), WAIT)

    @app.task
    async def send(n: str) -> None:
        order.append(n)

    async with start(app, task_concurrency=1) as node:
        await block.enqueue()
        await node.until(lambda: order == ["block"])
        handles = [await send.options(priority="low").enqueue("low")]
        handles += [await send.enqueue("normal"), await send.options(priority="high").enqueue("high")]
        await node.until(lambda: app.tasks.port.bus.counters.inflight == 4)  # type: ignore[attr-defined]
        go.set()
        for handle in handles:
            await handle.result(WAIT)
    assert order == ["block", "high", "normal", "low"]


async def test_tasks_with_a_key_are_done_in_order_also_when_one_is_tried_again(start: Start) -> None:
    app, order = App("post"), []

    @app.task(backoff="1ms")
    async def step(key: str, n: int, task: TaskContext) -> None:
        if n % 3 == 1 and task.attempt == 1:
            raise OSError("again")
        order.append((key, n))

    async with start(app):
        handles = [await step.options(key=key).enqueue(key, n) for n in range(8) for key in "ab"]
        for handle in handles:
            await handle.result(WAIT)
    for key in "ab":
        assert [n for which, n in order if which == key] == list(range(8))


async def test_a_unique_call_is_enqueued_once(start: Start) -> None:
    app, done = App("post"), []

    @app.task
    async def bill(n: int) -> int:
        done.append(n)
        return n

    async with start(app):
        handles = [await bill.options(unique="invoice-17").enqueue(n) for n in range(3)]
        assert [await handle.result(WAIT) for handle in handles] == [0, 0, 0]
    assert done == [0]


async def test_a_call_that_was_not_started_in_time_never_is(start: Start) -> None:
    app, done = App("post"), []

    @app.task
    async def remind() -> None:
        done.append(1)

    async with start(app):
        handle = await remind.options(delay="30ms", ttl="10ms").enqueue()
        with pytest.raises(TaskExpired):
            await handle.result(WAIT)
    assert not done


async def test_functions_run_side_by_side_unless_told_otherwise(start: Start) -> None:
    app, waiting, inside = App("post"), list[asyncio.Future[None]](), list[int]()

    @app.task
    async def meet(n: int) -> int:
        """Nobody goes on before all five are there."""
        here = asyncio.get_running_loop().create_future()
        waiting.append(here)
        if len(waiting) == 5:
            for each in waiting:
                each.set_result(None)
        await here
        return n

    @app.task(concurrency=1)
    async def alone(n: int) -> int:
        inside.append(n)
        await asyncio.sleep(0.01)
        most = len(inside)
        inside.remove(n)
        return most

    async with start(app):
        handles = await meet.enqueue_many([(n,) for n in range(5)])
        assert [await handle.result(WAIT) for handle in handles] == list(range(5))
        handles = await alone.enqueue_many([(n,) for n in range(5)])
        assert [await handle.result(WAIT) for handle in handles] == [1] * 5


@pytest.mark.process
async def test_plain_functions_block_side_by_side() -> None:
    """In a real node: a simulation calls one plain function at a time."""
    app, meeting = App("post"), threading.Barrier(5, timeout=WAIT)

    @app.task
    def meet(n: int) -> int:
        meeting.wait()  # nobody goes on before all five are there
        return n

    async with serving(app):
        handles = await meet.enqueue_many([(n,) for n in range(5)])
        assert [await handle.result(WAIT) for handle in handles] == list(range(5))


async def test_a_task_enqueues_a_task_from_a_plain_function(start: Start) -> None:
    app, got = App("post"), []

    @app.task
    def second(n: int) -> None:
        got.append(n)

    @app.task
    def first(n: int) -> int:
        handle = second.enqueue(n + 1)
        handle.result(WAIT)
        return n

    async with start(app):
        assert await (await first.enqueue(1)).result(WAIT) == 1
    assert got == [2]


async def test_progress_is_seen_by_who_waits(start: Start) -> None:
    app = App("post")
    go = asyncio.Event()

    @app.task
    async def steps(task: TaskContext) -> str:
        task.progress({"done": 1, "of": 2})
        await asyncio.wait_for(go.wait(), WAIT)
        return "all"

    async with start(app):
        handle = await steps.enqueue()
        seen = []
        async for each in handle.progress():
            seen.append(each)
            go.set()
        assert seen == [{"done": 1, "of": 2}]
        assert await handle == "all"


def shop() -> tuple[App, Task[Any, Any], Task[Any, Any]]:
    app = App("pictures")

    @app.task(max_attempts=1)
    def resize(name: str, width: int = 100) -> str:
        if name == "broken":
            raise ValueError("no picture")
        return f"{name}@{width}"

    @app.task
    async def page(pictures: list[str]) -> str:
        return " ".join(pictures)

    @app.run
    async def chain(name: str, perform: Perform) -> str:
        small = await perform.task(resize, name, width=50)
        return await perform.task(page, [small])

    @app.run
    async def chord(names: list[str], perform: Perform) -> str:
        started = [await perform.enqueue(resize, name) for name in names]
        pictures = [await each.result() for each in started]
        return await perform.task(page, pictures)

    @app.run
    async def careful(name: str, perform: Perform) -> str:
        try:
            return await perform.task(resize, name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return app, resize, page


async def test_chains_groups_and_chords_are_runs(start: Start) -> None:
    app, _, _ = shop()
    async with start(app) as node:
        one = await node.start_run("chain", "cat")
        many = await node.start_run("chord", ["a", "b", "c"])
        assert (await node.outcome(one)).value == "cat@50"
        assert (await node.outcome(many)).value == "a@100 b@100 c@100"


async def test_a_run_hears_that_its_task_failed(start: Start) -> None:
    app, _, _ = shop()
    async with start(app) as node:
        run = await node.start_run("careful", "broken")
        assert "no picture" in (await node.outcome(run)).value


def slow_shop() -> App:
    app = App("slow")

    @app.task
    async def work(n: int) -> int:
        await app.publish("begun", n)
        await asyncio.sleep(0.2)
        return n * 2

    @app.run
    async def both(perform: Perform) -> int:
        first = await perform.task(work, 1)
        return first + await perform.task(work, 10)

    return app


async def test_a_run_that_waits_for_a_task_goes_on_after_a_crash(start: Start) -> None:
    async with start(slow_shop) as node:
        run = await node.start_run("both")
        await node.until(lambda: node.events("begun"))
        await node.crash()
        assert (await node.outcome(run)).value == 22


async def test_waiting_ends_after_its_time(start: Start) -> None:
    app = App("post")

    @app.task
    async def later() -> None: ...

    async with start(app):
        handle = await later.options(delay="1d").enqueue()
        with pytest.raises(TimedOut, match="did not end within"):
            await handle.result("50ms")
