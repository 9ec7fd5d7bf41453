"""Tasks are as private as their topics: a token without a scope for them sees no task, no call, no count and no result,
and can retry, cancel and discard nothing.

A user of Flower or of a queue in the cloud expects what the queue itself asks for: reading calls is reading the queue,
changing them is writing to it. Both faces are attacked, HTTP and the messages `Bus.*`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

from mainspring import App
from tests.support.access import Reply, Served, make_token, served
from tests.support.client_node import eventually

SECRET = "4242-SECRET"
NONE, NONE_TOKEN = make_token("mallory", "publish:nowhere")
OTHER, OTHER_TOKEN = make_token("other", "publish:tasks.web.**", "subscribe:tasks.web.**")
SENDER, SENDER_TOKEN = make_token("sender", "publish:tasks.shop.mail")
READER, READER_TOKEN = make_token("reader", "subscribe:tasks.shop.mail")
WORKER, WORKER_TOKEN = make_token("worker", "publish:tasks.shop.**", "subscribe:tasks.shop.**")
ROOT, ROOT_TOKEN = make_token("root", "admin")
TOKENS = (NONE_TOKEN, OTHER_TOKEN, SENDER_TOKEN, READER_TOKEN, WORKER_TOKEN, ROOT_TOKEN)


class Shop(NamedTuple):
    node: Served
    done: str  # the ids of calls of the task shop.mail
    failed: str
    running: str
    delayed: str


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """A node whose task has a call of each kind."""
    app, go = App("shop"), asyncio.Event()

    @app.task(max_attempts=1)
    async def mail(card: str, fail: bool = False, wait: bool = False) -> str:
        if fail:
            raise OSError(f"declined card {card}")
        if wait:
            await go.wait()
        return f"charged {card}"

    async with served(app, tokens=tuple(each.line() for each in TOKENS)) as node:
        calls = [await mail.enqueue(SECRET), await mail.enqueue(SECRET, fail=True), await mail.enqueue("x", wait=True)]
        calls.append(await mail.options(delay="1h").enqueue(SECRET))

        async def settled() -> bool:
            return await counts(node) == {"done": 1, "failed": 1, "running": 1, "delayed": 1}

        await eventually(settled)
        yield Shop(node, *(each.id for each in calls))
        go.set()


async def counts(node: Served) -> dict[str, int]:
    (task,) = (await node.get("/tasks", ROOT)).json["tasks"]
    return {name: task[name] for name in ("waiting", "done", "failed", "running", "delayed", "cancelled") if task[name]}


async def message(node: Served, token: str, kind: str, type: str, data: Any) -> Reply:
    return await node.post("/messages", {"kind": kind, "type": type, "data": data}, token)


def reads(task: str, id: str) -> Iterator[tuple[str, tuple[str, Any]]]:
    """What asks for calls: a path, and the message that does the same."""
    yield f"/tasks/{task}/calls", ("Bus.TaskCalls", {"task": task})
    yield f"/tasks/{task}/calls?state=failed", ("Bus.TaskCalls", {"task": task, "state": "failed"})
    yield f"/tasks/{task}/calls/{id}", ("Bus.TaskCall", {"task": task, "id": id})


def changes(task: str, id: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What changes calls: a path, the message, and what both take."""
    for verb, type in (("retry", "Bus.RetryTaskCalls"), ("cancel", "Bus.CancelTaskCalls")):
        yield f"/tasks/{task}/{verb}", type, {"ids": [id]}
        yield f"/tasks/{task}/{verb}", type, {"all": True}
    yield f"/tasks/{task}/discard", "Bus.DiscardTaskCalls", {"all": True}


async def read_all(shop: Shop, token: str, task: str = "shop.mail") -> list[Reply]:
    answers: list[Reply] = []
    for path, (type, data) in reads(task, shop.done):
        answers.append(await shop.node.get(path, token))
        answers.append(await message(shop.node, token, "query", type, data))
    return answers


async def change_all(shop: Shop, token: str, task: str = "shop.mail") -> list[Reply]:
    answers: list[Reply] = []
    for path, type, data in changes(task, shop.failed):
        answers.append(await shop.node.post(path, data, token))
        answers.append(await message(shop.node, token, "command", type, {"task": task, **data}))
    return answers


async def tasks_of(shop: Shop, token: str) -> list[list[str]]:
    """The tasks that a token is shown, over HTTP and by message."""
    over_http = (await shop.node.get("/tasks", token)).json["tasks"]
    by_message = (await message(shop.node, token, "query", "Bus.Tasks", {})).json["data"]["tasks"]
    return [[each["task"] for each in found] for found in (over_http, by_message)]


@pytest.mark.parametrize("token", [NONE, OTHER])
async def test_a_token_without_a_scope_for_a_task_sees_and_changes_nothing(shop: Shop, token: str) -> None:
    before = await counts(shop.node)
    assert await tasks_of(shop, token) == [[], []]
    for task in ("shop.mail", "mail", "no.such"):
        answers = [*await read_all(shop, token, task), *await change_all(shop, token, task)]
        assert {each.status for each in answers} == {403}
        assert not any(SECRET in each.body.decode() for each in answers)
        assert {each.json["message"] for each in answers} == {f"this token may use no task {task!r}"}
    assert await counts(shop.node) == before


async def test_who_may_only_enqueue_sees_no_call_and_no_count(shop: Shop) -> None:
    before = await counts(shop.node)
    assert await tasks_of(shop, SENDER) == [[], []]
    answers = [*await read_all(shop, SENDER), *await change_all(shop, SENDER)]
    assert {each.status for each in answers} == {403}
    assert not any(SECRET in each.body.decode() for each in answers)
    assert await counts(shop.node) == before


async def test_who_may_only_read_a_task_changes_nothing_and_sees_no_results_of_a_private_topic(shop: Shop) -> None:
    before = await counts(shop.node)
    assert await tasks_of(shop, READER) == [["shop.mail"], ["shop.mail"]]
    answers = await read_all(shop, READER)
    assert {each.status for each in answers} == {200}
    listed = answers[0].json["calls"]
    assert {each["state"] for each in listed} == {"done", "failed", "running", "delayed"}
    assert not any("charged" in each.body.decode() for each in answers), "the results topic is not theirs"
    assert {each.status for each in await change_all(shop, READER)} == {403}
    assert await counts(shop.node) == before
    for path, token in (("/tasks/shop.mail/calls", WORKER), (f"/tasks/shop.mail/calls/{shop.done}", WORKER)):
        assert f"charged {SECRET}" in (await shop.node.get(path, token)).body.decode()


async def test_a_list_on_the_dead_letters_holds_for_the_calls_that_failed(shop: Shop) -> None:
    private = {"topic": "tasks.shop.mail.DLQ", "subscribeACL": ["root"]}
    assert (await shop.node.post("/topics", private, ROOT)).status in (200, 201)
    assert {each.status for each in await read_all(shop, READER)} == {403}


@pytest.mark.parametrize("verb", ["retry", "cancel", "discard"])
@pytest.mark.parametrize("token", [NONE, SENDER, READER])
async def test_rights_are_asked_before_the_body_is_read(shop: Shop, verb: str, token: str) -> None:
    headers = {"Content-Type": "application/json"}
    path = f"/tasks/shop.mail/{verb}"
    answer = await shop.node.request("POST", path, token, data=b"this is no JSON", headers=headers)
    assert (answer.status, answer.json["code"]) == (403, "forbidden")


async def test_a_scope_for_the_topics_is_enough_for_everything(shop: Shop) -> None:
    retried = await shop.node.post("/tasks/mail/retry", {"ids": [shop.failed]}, WORKER)
    assert (retried.status, retried.json["count"]) == (200, 1)
    cancelled = await shop.node.post("/tasks/mail/cancel", {"ids": [shop.running, shop.delayed]}, WORKER)
    assert (cancelled.status, cancelled.json["count"]) == (200, 2)

    async def failed_again() -> bool:
        return (await counts(shop.node)).get("failed") == 1

    await eventually(failed_again)
    assert (await shop.node.post("/tasks/mail/discard", {"all": True}, WORKER)).json["count"] == 1
