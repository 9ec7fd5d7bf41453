"""What a user of Flower, Celery or Procrastinate expects to see of tasks, and to do with their calls.

- the tasks there are, and how many calls of each wait, run, are retried, done, failed and cancelled
- the newest calls first, with arguments, attempts, result or error; those in one state; page by page
- one call by its id; how long its last attempt took, and how long a task takes on average
- what failed can be retried or discarded, one by one or all; what is open can be cancelled, also before it is due
- the same from a handler's messages, a client, and HTTP
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, TaskContext
from mainspring.client import NodeRefused
from tests.expectations.conftest import Start
from tests.support.running_node import RunningNode


def shop() -> tuple[App, dict[str, Any]]:
    """A task that fails while `down`, one that runs until `go`, one that waits for its second try for an hour."""
    app, state = App("shop"), {"down": True, "go": asyncio.Event()}

    @app.task(max_attempts=1)
    async def mail(to: str, *, subject: str = "hello") -> str:
        if state["down"]:
            raise ConnectionError(f"no way to {to}")
        return f"sent to {to}"

    @app.task
    async def render(pages: int, task: TaskContext) -> int:
        task.progress({"of": pages})
        await state["go"].wait()
        return pages

    @app.task(backoff="1h", max_backoff="1h")
    async def flaky(n: int) -> None:
        raise OSError("later")

    state.update(mail=mail, render=render, flaky=flaky)
    return app, state


async def counts(node: RunningNode, task: str) -> dict[str, int]:
    found = next(each for each in await node.bus.tasks() if each["task"] == task)
    return {name: value for name, value in found.items() if value and isinstance(value, int) and name != "workers"}


async def calls(node: RunningNode, task: str, **filters: Any) -> list[dict[str, Any]]:
    return [each async for each in node.bus.task_calls(task, **filters)]


async def reach(node: RunningNode, task: str, **wanted: int) -> None:
    async def there() -> bool:
        return await counts(node, task) == wanted

    await node.until(there)


async def test_every_task_with_its_calls_by_state(start: Start) -> None:
    app, state = shop()
    async with start(app) as node:
        listed = await node.bus.tasks()
        assert [each["task"] for each in listed] == ["shop.flaky", "shop.mail", "shop.render"]
        assert all(each["group"] == "shop" and each["workers"] for each in listed)
        await state["mail"].enqueue("ada")
        await state["render"].enqueue(3)
        await state["flaky"].enqueue(1)
        await state["mail"].options(delay="1h").enqueue("bob")
        await reach(node, "shop.mail", failed=1, delayed=1)
        await reach(node, "shop.render", running=1)
        await reach(node, "shop.flaky", retrying=1)
        state["go"].set()
        await reach(node, "shop.render", done=1)


async def test_calls_are_listed_newest_first_with_arguments_result_and_error(start: Start) -> None:
    app, state = shop()
    async with start(app) as node:
        failed = await state["mail"].enqueue("ada", subject="order")
        await reach(node, "shop.mail", failed=1)
        state["down"] = False
        done = await state["mail"].options(priority="high").enqueue("bob")
        assert await done.result("30s") == "sent to bob"
        await reach(node, "shop.mail", failed=1, done=1)
        listed = {each["id"]: each for each in await calls(node, "shop.mail")}
        newest, oldest = listed[done.id], listed[failed.id]
        assert (newest["state"], newest["args"], newest["value"]) == ("done", ["bob"], "sent to bob")
        assert newest["topic"] == "tasks.shop.high"
        assert (oldest["state"], oldest["attempts"]) == ("failed", 1)
        assert oldest["kwargs"] == {"subject": "order"}
        assert "no way to ada" in oldest["error"]
        assert oldest["updated"] >= oldest["created"] > 0
        assert [each["id"] for each in await calls(node, "mail", state="failed")] == [failed.id]
        assert [each["id"] for each in await calls(node, "mail", state="done")] == [done.id]
        assert (await node.bus.task_call("mail", done.id))["value"] == "sent to bob"
        with pytest.raises(NodeRefused, match="no call 'nobody'"):
            await node.bus.task_call("mail", "nobody")
        with pytest.raises(NodeRefused, match="no task 'male'"):
            await node.bus.task_call("male", done.id)


async def test_a_running_call_shows_its_progress_and_a_retried_one_its_next_time(start: Start) -> None:
    app, state = shop()
    async with start(app) as node:
        rendered = await state["render"].enqueue(7)
        await state["flaky"].enqueue(1)

        async def reported() -> Any:
            return [each for each in await calls(node, "render", state="running") if "progress" in each]

        (running,) = await node.until(reported)
        assert (running["args"], running["progress"], running["attempts"]) == ([7], {"of": 7}, 1)
        await reach(node, "shop.flaky", retrying=1)
        (again,) = await calls(node, "flaky", state="retrying")
        assert again["nextMs"] > again["created"]
        assert "later" in again["error"]
        assert again["durationMs"] >= 0
        assert "durationMs" not in running
        state["go"].set()
        await rendered.result("30s")
        done = await node.bus.task_call("render", rendered.id)
        assert 0 <= done["durationMs"] <= done["updated"] - done["created"] + 1_000
        task = next(each for each in await node.bus.tasks() if each["task"] == "shop.render")
        assert task["duration"] == {"meanMs": done["durationMs"], "longestMs": done["durationMs"]}


async def test_what_failed_is_retried_with_all_its_attempts(start: Start) -> None:
    app, state = shop()
    async with start(app) as node:
        one = await state["mail"].enqueue("ada")
        await state["mail"].enqueue("bob")
        await reach(node, "shop.mail", failed=2)
        state["down"] = False
        assert await node.bus.retry_calls("mail", ids=[one.id]) == 1
        await reach(node, "shop.mail", failed=1, done=1)
        assert (await node.bus.task_call("mail", one.id))["value"] == "sent to ada"
        assert await node.bus.retry_calls("mail", error="nothing like this") == 0
        assert await node.bus.retry_calls("mail", all=True) == 1
        await reach(node, "shop.mail", done=2)
        with pytest.raises(NodeRefused, match="is done; it has not failed"):
            await node.bus.retry_calls("mail", ids=[one.id])
        with pytest.raises(NodeRefused, match="which calls"):
            await node.bus.retry_calls("mail")


async def test_what_failed_can_be_discarded(start: Start) -> None:
    app, state = shop()
    async with start(app) as node:
        one = await state["mail"].enqueue("ada")
        await state["mail"].options(priority="low").enqueue("bob")
        await reach(node, "shop.mail", failed=2)
        assert await node.bus.discard_calls("mail", error="bob") == 1
        assert [each["args"] for each in await calls(node, "mail", state="failed")] == [["ada"]]
        assert await node.bus.discard_calls("mail", ids=[one.id]) == 1
        assert await calls(node, "mail", state="failed") == []
        assert {each["state"] for each in await calls(node, "mail")} == {"discarded"}


async def test_open_calls_are_cancelled_before_they_begin_and_while_they_run(start: Start) -> None:
    app, state = shop()
    async with start(app) as node:
        later = await state["mail"].options(delay="1h").enqueue("ada")
        running = await state["render"].enqueue(1)
        await reach(node, "shop.render", running=1)
        assert await node.bus.cancel_calls("render", ids=[running.id], reason="too long") == 1
        await reach(node, "shop.render", cancelled=1)
        assert await node.bus.cancel_calls("mail", all=True) == 1
        (call,) = await calls(node, "mail")
        assert (call["id"], call["state"]) == (later.id, "cancelled")
        with pytest.raises(NodeRefused, match="is cancelled already"):
            await node.bus.cancel_calls("render", ids=[running.id])


async def test_calls_wait_while_nobody_takes_them(start: Start) -> None:
    app, state = shop()
    async with start(app, run_tasks=False) as node:
        handles = [await state["mail"].enqueue(str(n)) for n in range(7)]
        assert await counts(node, "shop.mail") == {"waiting": 7}
        assert [each["args"] for each in await calls(node, "mail", state="waiting")] == [[str(6 - n)] for n in range(7)]
        assert await node.bus.cancel_calls("mail", ids=[handles[3].id]) == 1
        assert (await node.bus.task_call("mail", handles[3].id))["state"] == "cancelled"


async def test_messages_say_the_same_page_by_page(start: Start) -> None:
    app, state = shop()
    state["down"] = False
    async with start(app) as node:
        for n in range(5):
            await state["mail"].enqueue(f"a{n}")
        await reach(node, "shop.mail", done=5)
        tasks = (await node.query("Bus.Tasks"))["tasks"]
        assert next(each for each in tasks if each["task"] == "shop.mail")["done"] == 5
        seen: list[Any] = []
        page: dict[str, Any] = {"next": ""}
        while "next" in page:
            page = await node.query("Bus.TaskCalls", {"task": "shop.mail", "limit": 2, "cursor": page["next"]})
            seen += [each["args"][0] for each in page["calls"]]
        assert seen == ["a4", "a3", "a2", "a1", "a0"]
        asked = {"task": "mail", "id": page["calls"][0]["id"]}
        assert (await node.query("Bus.TaskCall", asked))["value"] == "sent to a0"
        assert (await node.command("Bus.RetryTaskCalls", {"task": "mail", "all": True}))["count"] == 0
        assert (await node.command("Bus.DiscardTaskCalls", {"task": "mail", "all": True}))["count"] == 0
        assert (await node.command("Bus.CancelTaskCalls", {"task": "mail", "all": True}))["count"] == 0
