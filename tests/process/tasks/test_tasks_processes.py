"""A task queue with real processes: a node, workers that are started, stopped and killed, and who enqueues."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.client import Client, connect
from mainspring.tasks import Retry, TaskCancelled, TaskFailed, TaskQueue
from tests.support import task_app
from tests.support.client_node import Node, eventually
from tests.support.paths import ROOT
from tests.support.serving import clean_environment


class Workers:
    """Worker processes of one test."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "mainspring",
            "worker",
            "tests.support.task_app:queue",
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


@pytest.fixture
def queue(bus: Client) -> TaskQueue:
    """The queue as a program sees it that only enqueues: it has none of the functions."""
    return TaskQueue("jobs", bus, retry=Retry(attempts=4, first=0.05, jitter=0), lease=1.0)


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    return tmp_path / "paper.txt"


def told(paper: Path, text: str = "x") -> task_app.Note:
    return {"path": str(paper), "text": text}


async def test_tasks_enqueued_before_the_first_worker_are_done(queue: TaskQueue, workers: Workers, paper: Path) -> None:
    handles = [await queue.enqueue("note", told(paper, f"n{n}")) for n in range(20)]
    workers.start()
    assert [await handle.result(30) for handle in handles] == [2] * 10 + [3] * 10
    assert sorted(task_app.lines(paper)) == sorted(f"n{n}" for n in range(20))


async def test_a_worker_killed_at_work_leaves_its_tasks_to_others(
    queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    first = workers.start("--concurrency", "2")
    handles = [await queue.enqueue("slow_note", told(paper, f"n{n}")) for n in range(6)]

    async def begun() -> bool:
        return bool(task_app.lines(paper))

    await eventually(begun)
    first.kill()
    workers.start("--concurrency", "2")
    assert [await handle.result(30) for handle in handles] == [f"n{n}" for n in range(6)]


async def test_a_task_that_kills_its_worker_is_tried_again_elsewhere(
    queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    first = workers.start()
    handle = await queue.enqueue("deadly", told(paper))
    assert first.wait(30) == 9
    workers.start()
    assert await handle.result(30) == "survived"
    assert task_app.lines(paper) == ["attempt 1", "attempt 2"]


async def test_a_worker_told_to_stop_finishes_what_runs_and_leaves_the_rest(
    queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    first = workers.start("--concurrency", "1")
    handles = [await queue.enqueue("slow_note", told(paper, f"n{n}")) for n in range(3)]

    async def begun() -> bool:
        return bool(task_app.lines(paper))

    await eventually(begun)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert task_app.lines(paper) == ["begin n0", "end n0"]
    workers.start()
    assert [await handle.result(30) for handle in handles] == ["n0", "n1", "n2"]
    assert task_app.lines(paper).count("begin n0") == 1


async def test_a_node_killed_under_a_queue_loses_no_task(
    own_node: Node, queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    workers.start()
    workers.start()
    handles = await queue.enqueue_many("note", [told(paper, f"n{n}") for n in range(300)])
    own_node.kill()
    own_node.restart()
    for handle in handles:
        await handle.result(60)
    assert set(task_app.lines(paper)) == {f"n{n}" for n in range(300)}


async def test_a_worker_waits_for_a_node_that_is_not_there_yet(
    own_node: Node, queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    handle = await queue.enqueue("note", told(paper))
    own_node.kill()
    workers.start()
    await asyncio.sleep(1.5)
    own_node.restart()
    assert await handle.result(60) == 1


async def test_a_running_task_is_cancelled_from_another_process(
    queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    workers.start()
    handle = await queue.enqueue("endless", told(paper))

    async def begun() -> bool:
        return "begin" in task_app.lines(paper)

    await eventually(begun)
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled):
        await handle.result(30)
    assert task_app.lines(paper) == ["begin", "cancelled"]


async def test_a_task_cancelled_before_a_worker_comes_is_never_started(
    queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    handle = await queue.enqueue("note", told(paper, "never"))
    await handle.cancel()
    after = await queue.enqueue("note", told(paper, "after"))
    workers.start()
    with pytest.raises(TaskCancelled):
        await handle.result(30)
    assert await after.result(30) == 5
    assert task_app.lines(paper) == ["after"]


async def test_a_failing_task_is_tried_as_often_as_it_was_promised_then_buried_and_redriven(
    queue: TaskQueue, workers: Workers, paper: Path
) -> None:
    workers.start()
    handle = await queue.enqueue("failing", told(paper, "boom"), retry=Retry(attempts=3, first=0.01))
    with pytest.raises(TaskFailed, match="boom"):
        await handle.result(30)
    assert task_app.lines(paper) == ["attempt 1", "attempt 2", "attempt 3"]
    (dead,) = await queue.dead()
    assert (dead.id, dead.name, dead.attempts, dead.reason) == (handle.id, "failing", 3, "RuntimeError: boom")
    assert dead.payload == told(paper, "boom")
    assert await queue.redrive([dead]) == 1

    async def again() -> bool:
        return len(task_app.lines(paper)) == 6 and len(await queue.dead()) == 1

    await eventually(again)
    (dead,) = await queue.dead()
    assert (dead.id, dead.attempts) == (handle.id, 3)
    assert await queue.drop_dead() == 1
    assert await queue.dead() == []


async def test_functions_in_threads_and_their_progress(queue: TaskQueue, workers: Workers, paper: Path) -> None:
    handle = await queue.enqueue("threaded", told(paper, "abc"))
    workers.start()
    assert [each async for each in handle.progress()] == [{"at": "half"}]
    assert await handle.result(30) == "ABC"


async def test_a_time_limit_ends_a_task(queue: TaskQueue, workers: Workers, paper: Path) -> None:
    workers.start()
    handle = await queue.enqueue("limited", told(paper), retry=Retry(attempts=1))
    with pytest.raises(TaskFailed, match=r"longer than 0\.2 s"):
        await handle.result(30)


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


def test_a_worker_without_a_queue_says_what_to_write(tmp_path: Path) -> None:
    for program, said in (
        ("tests.support.task_app:nothing", "holds the TaskQueue"),
        ("tests.support.task_app:App", "holds the TaskQueue"),
        ("os:sep", "no TaskQueue"),
        ("nowhere:queue", "no module"),
        ("x", "MODULE:QUEUE"),
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
