"""Tasks with real processes: a node, workers that are started, stopped and killed, and who enqueues."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import App, SyncClient, TaskContext
from mainspring.client import Client, DeadEvent, connect
from mainspring.tasks import TaskCancelled, TaskFailed, Worker
from tests.support import task_app
from tests.support.client_node import Node, eventually
from tests.support.paths import ROOT
from tests.support.serving import clean_environment

EMPTY = App("empty")


class Workers:
    """Worker processes of one test."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, program: str = "tests.support.task_app:app") -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "mainspring",
            "worker",
            program,
            "--url",
            self._url,
            *arguments,
        ]
        env = clean_environment({"PYTHONPATH": str(ROOT)})
        with open(self._folder / "worker.txt", "ab") as errors:
            self.started.append(subprocess.Popen(command, env=env, cwd=self._folder, stderr=errors))
        return self.started[-1]

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def workers(own_node: Node, tmp_path: Path) -> Iterator[Workers]:
    found = Workers(own_node.url, tmp_path)
    yield found
    found.end()


@pytest.fixture
async def bus(own_node: Node) -> Client:
    async with connect(own_node.url) as client:
        yield client


@pytest.fixture(autouse=True)
def used(request: pytest.FixtureRequest) -> Iterator[None]:
    """The program as it is where tasks are only enqueued: with a client and no node."""
    if "bus" in request.fixturenames:
        task_app.app.use(request.getfixturevalue("bus"))
    yield
    task_app.app.tasks.use(None)


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    return tmp_path / "paper.txt"


def told(paper: Path, text: str = "x") -> task_app.Note:
    return {"path": str(paper), "text": text}


async def test_tasks_enqueued_before_the_first_worker_are_done(bus: Client, workers: Workers, paper: Path) -> None:
    handles = [await task_app.note.enqueue(told(paper, f"n{n}")) for n in range(20)]
    workers.start()
    assert [await handle.result(60) for handle in handles] == [2] * 10 + [3] * 10
    assert sorted(task_app.lines(paper)) == sorted(f"n{n}" for n in range(20))


async def test_a_worker_killed_at_work_leaves_its_tasks_to_others(bus: Client, workers: Workers, paper: Path) -> None:
    first = workers.start("--concurrency", "2")
    handles = [await task_app.slow_note.enqueue(told(paper, f"n{n}")) for n in range(6)]

    async def begun() -> bool:
        return bool(task_app.lines(paper))

    await eventually(begun)
    first.kill()
    workers.start("--concurrency", "2")
    assert [await handle.result(60) for handle in handles] == [f"n{n}" for n in range(6)]


SURROUNDED = """
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Annotated, Any

from mainspring import App, Depends
from mainspring.app import HandlerCall, Next

app = App("mails")
tenant: ContextVar[str] = ContextVar("tenant")
closed = []

@app.middleware
async def watch(call: HandlerCall, next: Next) -> Any:
    tenant.set(f"{call.kind} {call.name} {call.value[0]}")
    return f"<{await next(call)}>"

def get_session() -> Iterator[str]:
    yield f"session of {tenant.get()}"
    closed.append(1)

@app.task
def send(to: str, session: Annotated[str, Depends(get_session)]) -> str:
    return f"{to} {session} {len(closed)}"
"""


async def test_middleware_and_dependencies_are_there_in_a_worker(own_node: Node, bus: Client, tmp_path: Path) -> None:
    (tmp_path / "mails.py").write_text(SURROUNDED)
    workers = Workers(own_node.url, tmp_path)
    app = App("mails")

    @app.task
    def send(to: str) -> str:
        return to

    app.use(bus)
    try:
        workers.start("--processes", "2", "--concurrency", "1", program="mails:app")
        done = [await (await send.enqueue("ada")).result(60) for _ in range(2)]
        assert {each.rpartition(" ")[0] for each in done} == {"<ada session of task send ['ada']"}
    finally:
        workers.end()


async def test_a_task_that_ends_its_process_every_time_fails_and_the_others_are_done(
    bus: Client, workers: Workers, paper: Path
) -> None:
    workers.start("--processes", "2", "--concurrency", "4")
    handles = await task_app.where.enqueue_many([(str(paper), 0.01) for _ in range(20)])
    deadly = await task_app.killer.enqueue(told(paper))
    handles += await task_app.where.enqueue_many([(str(paper), 0.01) for _ in range(20)])
    with pytest.raises(TaskFailed, match="the process ended 3 times while this task ran"):
        await deadly.result(60)
    for handle in handles:
        await handle.result(60)
    assert task_app.lines(paper).count("deadly") == 3
    (letter,) = [each async for each in bus.dead_letters(task_app.killer.topic)]
    assert letter.original_id == deadly.id


async def test_a_task_that_kills_its_worker_is_tried_again_elsewhere(
    bus: Client, workers: Workers, paper: Path
) -> None:
    first = workers.start()
    handle = await task_app.deadly.enqueue(told(paper))
    assert first.wait(30) == 9
    workers.start()
    assert await handle.result(60) == "survived"
    assert task_app.lines(paper) == ["attempt 1", "attempt 2"]


async def test_a_worker_told_to_stop_finishes_what_runs_and_leaves_the_rest(
    bus: Client, workers: Workers, paper: Path
) -> None:
    first = workers.start("--concurrency", "1")
    handles = [await task_app.slow_note.enqueue(told(paper, f"n{n}")) for n in range(3)]

    async def begun() -> bool:
        return bool(task_app.lines(paper))

    await eventually(begun)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert task_app.lines(paper) == ["begin n0", "end n0"]
    workers.start()
    assert [await handle.result(60) for handle in handles] == ["n0", "n1", "n2"]
    assert task_app.lines(paper).count("begin n0") == 1


async def test_a_node_killed_under_a_queue_loses_no_task(
    own_node: Node, bus: Client, workers: Workers, paper: Path
) -> None:
    workers.start()
    workers.start()
    handles = await task_app.note.enqueue_many([(told(paper, f"n{n}"),) for n in range(300)])
    own_node.kill()
    own_node.restart()
    for handle in handles:
        await handle.result(60)
    assert set(task_app.lines(paper)) == {f"n{n}" for n in range(300)}


async def test_a_worker_waits_for_a_node_that_is_not_there_yet(
    own_node: Node, bus: Client, workers: Workers, paper: Path
) -> None:
    handle = await task_app.note.enqueue(told(paper))
    own_node.kill()
    workers.start()
    await asyncio.sleep(1.5)
    own_node.restart()
    assert await handle.result(60) == 1


async def test_a_running_task_is_cancelled_from_another_process(bus: Client, workers: Workers, paper: Path) -> None:
    workers.start()
    handle = await task_app.endless.enqueue(told(paper))

    async def begun() -> bool:
        return "begin" in task_app.lines(paper)

    await eventually(begun)
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled):
        await handle.result(60)
    assert task_app.lines(paper) == ["begin", "cancelled"]


async def test_a_task_cancelled_before_a_worker_comes_is_never_started(
    bus: Client, workers: Workers, paper: Path
) -> None:
    handle = await task_app.note.enqueue(told(paper, "never"))
    await handle.cancel()
    after = await task_app.note.enqueue(told(paper, "after"))
    workers.start()
    with pytest.raises(TaskCancelled):
        await handle.result(60)
    assert await after.result(60) == 5
    assert task_app.lines(paper) == ["after"]


async def test_a_failing_task_is_tried_as_often_as_it_was_promised_then_buried_and_redriven(
    bus: Client, workers: Workers, paper: Path
) -> None:
    workers.start()
    handle = await task_app.failing.options(max_attempts=3, backoff="10ms").enqueue(told(paper, "boom"))
    with pytest.raises(TaskFailed, match="boom"):
        await handle.result(60)
    assert task_app.lines(paper) == ["attempt 1", "attempt 2", "attempt 3"]
    topic = task_app.failing.topic

    async def dead() -> list[DeadEvent]:
        return [letter async for letter in bus.dead_letters(topic)]

    (letter,) = await dead()
    assert (letter.original_id, letter.attempts, letter.reason) == (handle.id, 3, "RuntimeError: boom")
    assert letter.payload == {"args": [told(paper, "boom")]}
    assert await bus.redrive(topic) == 1

    async def again() -> bool:
        return len(task_app.lines(paper)) == 6 and len(await dead()) == 1

    await eventually(again)
    (letter,) = await dead()
    assert (letter.original_id, letter.attempts) == (handle.id, 3)
    assert await bus.drop_dead_letters(topic, all=True) == 1
    assert await dead() == []


async def test_functions_in_threads_and_their_progress(bus: Client, workers: Workers, paper: Path) -> None:
    handle = await task_app.threaded.enqueue(told(paper, "abc"))
    workers.start()
    assert [each async for each in handle.progress()] == [{"at": "half"}]
    assert await handle.result(60) == "ABC"


async def test_a_time_limit_ends_a_task(bus: Client, workers: Workers, paper: Path) -> None:
    workers.start()
    handle = await task_app.limited.enqueue(told(paper))
    with pytest.raises(TaskFailed, match=r"longer than 0\.2 s"):
        await handle.result(60)


def test_a_worker_that_waits_for_its_node_can_be_stopped(tmp_path: Path) -> None:
    workers = Workers("ws://127.0.0.1:1", tmp_path)
    worker = workers.start()
    try:
        while "trying again" not in (tmp_path / "worker.txt").read_text():
            time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        workers.end()


def test_a_worker_without_tasks_says_what_to_write(tmp_path: Path) -> None:
    for program, said in (
        ("tests.support.task_app:nothing", "holds the App"),
        ("tests.support.task_app:App", "is not an App"),
        ("tests.process.tasks.test_tasks_processes:EMPTY", "declares no tasks"),
        ("nowhere:app", "no module"),
        ("x", "MODULE:APP"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mainspring", "worker", program],
            env=clean_environment({"PYTHONPATH": str(ROOT)}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


async def test_processes_share_the_work_and_one_that_is_killed_is_replaced(
    bus: Client, workers: Workers, paper: Path
) -> None:
    """Nothing is lost, and nothing is done twice except what the process that died had not acknowledged."""
    parent = workers.start("--processes", "3", "--concurrency", "4")
    handles = await task_app.where.enqueue_many([(str(paper), 0.02) for _ in range(150)])

    async def begun() -> bool:
        return len(set(task_app.lines(paper))) == 3

    await eventually(begun)
    victim = int(task_app.lines(paper)[0])
    os.kill(victim, signal.SIGKILL)
    done = [await handle.result(60) for handle in handles]
    assert len(done) == 150
    assert 150 <= len(task_app.lines(paper)) <= 150 + 8  # what one process may hold

    late = [await task_app.where.enqueue(str(paper)) for _ in range(40)]
    assert set(await asyncio.gather(*(handle.result(60) for handle in late))) - {victim}
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert "ended with -9" in (paper.parent / "worker.txt").read_text()


async def test_processes_end_when_their_parent_is_gone(bus: Client, workers: Workers, paper: Path) -> None:
    parent = workers.start("--processes", "2")
    await (await task_app.where.enqueue(str(paper))).result(60)
    child = int(task_app.lines(paper)[0])
    parent.kill()
    await gone(child)


async def gone(process: int) -> None:
    async def ended() -> bool:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        return False

    await eventually(ended)


async def test_a_function_that_outlives_its_time_limit_ends_with_its_process_which_is_replaced(
    bus: Client, workers: Workers, paper: Path
) -> None:
    workers.start("--processes", "2", "--concurrency", "1")
    handles = [await task_app.stuck.enqueue(str(paper)) for _ in range(2)]
    for handle in handles:
        with pytest.raises(TaskFailed, match=r"took longer than 0\.1 s"):
            await handle.result(60)
    for process in set(task_app.lines(paper)):
        await gone(int(process))
    assert await (await task_app.where.enqueue(str(paper))).result(60)


def test_a_program_without_an_event_loop_enqueues_and_waits(own_node: Node, workers: Workers, paper: Path) -> None:
    workers.start()
    with SyncClient(own_node.url) as client:
        task_app.app.use(client)
        handle = task_app.note.enqueue(told(paper, "abc"))
        assert handle.result("60s") == 3
        assert handle.state() == "done"


async def test_tasks_of_the_queue_of_the_version_before_are_done(own_node: Node, bus: Client, paper: Path) -> None:
    """A `TaskQueue("mails")` had one topic for all its tasks, each named by a header, and bare payloads."""
    for name in ("send", "count"):
        headers = {"x-task": name, "x-retry": "5 1 2 600 0.5"}
        await bus.publish("mails", {"to": "ada"}, headers=headers, id=f"old-{name}")
    await bus.publish("mails.high", {"to": "bob"}, headers={"x-task": "send"}, id="old-high")
    app, done = App("shop"), []

    @app.task(topic="mails", group="workers")
    async def send(mail: dict[str, str]) -> None:
        done.append(("send", mail["to"]))

    @app.task(topic="mails", group="workers")
    async def count(mail: dict[str, str], task: TaskContext) -> str:
        done.append(("count", mail["to"]))
        return task.id

    app.use(bus)
    async with Worker(app.tasks):
        assert await count.handle("old-count").result(60) == "old-count"
        await send.handle("old-send").result(60)
        await send.handle("old-high").result(60)
        assert await (await count.enqueue({"to": "eve"})).result(60)
    assert sorted(done) == [("count", "ada"), ("count", "eve"), ("send", "ada"), ("send", "bob")]
