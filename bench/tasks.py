"""How fast tasks that do nothing go through the queue, against Celery and taskiq on Redis in the same run.

    python -m bench.tasks [--quick]

Prints one JSON object. Nobody keeps results. Ours: a node that fsyncs before every acknowledgement, one worker process;
a task is acknowledged after it ran. Redis writes its append-only file and syncs it once a second (its usual setting),
so the others promise less about what is stored. Celery: prefork with two processes, acknowledged before the task runs
(its default). taskiq: two processes; once with Redis streams, which acknowledge, and once with lists, which lose what a
dying worker held. Each gets its best way to enqueue: batches for ours, a task per event for taskiq, `delay` for Celery,
which has nothing faster.

- `enqueue`: tasks per second put on a queue that nobody serves yet.
- `drain`: then workers start; tasks per second from the first to the last one run.
- `end_to_end`: workers wait; from the first enqueued to the last one run.

Rounds take turns; ratios are medians over rounds. Goals: 5 times Celery, 2 times taskiq.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bench.harness import options, progress, report, summary, versus
from bench.peers import servers as peers
from bench.peers import task_workers as work
from mainspring.client import connect
from mainspring.loop import run

Result = dict[str, Any]
Enqueue = Callable[[int], Awaitable[None]]
PATIENCE_S = 300


class Contest:
    """One queue, ready to be measured: how to enqueue, and the command of its workers."""

    def __init__(self, enqueue: Enqueue, command: list[str], env: dict[str, str], folder: Path) -> None:
        self.enqueue = enqueue
        self._command = command
        self._env = env
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.others: list[int] = []  # processes that are neither workers nor this one, and belong to it

    @contextlib.contextmanager
    def workers(self) -> Iterator[subprocess.Popen[bytes]]:
        env = {**os.environ, **self._env, "BENCH_COUNTS": str(self._folder), "PYTHONPATH": _path()}
        with open(self._folder / "log.txt", "ab") as log:
            process = subprocess.Popen(self._command, env=env, stdout=log, stderr=log, start_new_session=True)
        self._process = process
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()

    async def reached(self, count: int) -> float:
        """When this many have run."""
        end = time.perf_counter() + PATIENCE_S
        while work.runs(self._folder) < count:
            if time.perf_counter() > end or (self._process is not None and self._process.poll() is not None):
                raise RuntimeError((self._folder / "log.txt").read_text()[-2000:])
            await asyncio.sleep(0.002)
        return time.perf_counter()

    def forget(self) -> None:
        for file in self._folder.glob("count.*"):
            file.unlink()


def _path() -> str:
    return os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])


@contextlib.asynccontextmanager
async def ours(engine: str = "sqlite") -> AsyncIterator[Contest]:
    with tempfile.TemporaryDirectory(prefix="ms-bench-") as made:
        async with peers.node(MAINSPRING_ENGINE=engine) as node:
            url = f"ws://127.0.0.1:{node.port}"
            async with connect(url) as bus:
                app = work.make_app()
                app.use(bus)

                async def enqueue(count: int) -> None:
                    await app.tasks.get("nothing").enqueue_many((n,) for n in range(count))

                command = [sys.executable, "-m", "mainspring", "worker", "bench.peers.task_workers:app", "--url", url]
                contest = Contest(enqueue, [*command, "--concurrency", "256"], {}, Path(made))
                contest.others = [node.process.pid]
                yield contest


@contextlib.asynccontextmanager
async def celery() -> AsyncIterator[Contest]:
    async with peers.redis(always=False) as port:
        work.REDIS = f"redis://127.0.0.1:{port}"
        app = work.make_celery()

        async def enqueue(count: int) -> None:
            task = app.tasks["nothing"]
            await asyncio.to_thread(lambda: [task.delay(n) for n in range(count)])

        command = [sys.executable, "-m", "celery", "-A", "bench.peers.task_workers:celery", "worker"]
        command += ["--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
        with tempfile.TemporaryDirectory(prefix="ms-bench-") as made:
            yield Contest(enqueue, command, {"BENCH_REDIS": work.REDIS}, Path(made))
        app.close()


def taskiq(kind: str) -> Any:
    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[Contest]:
        async with peers.redis(always=False) as port:
            work.REDIS = f"redis://127.0.0.1:{port}"
            broker = work.make_taskiq(kind)
            await broker.startup()

            async def enqueue(count: int) -> None:
                task, left = broker.find_task("nothing"), iter(range(count))

                async def producer() -> None:
                    for n in left:
                        await task.kiq(n)

                await asyncio.gather(*(producer() for _ in range(50)))

            command = [sys.executable, "-m", "taskiq", "worker", f"bench.peers.task_workers:{kind}", "--workers", "2"]
            command += ["--max-async-tasks", "100", "--max-prefetch", "100", "--log-level", "ERROR"]
            with tempfile.TemporaryDirectory(prefix="ms-bench-") as made:
                yield Contest(enqueue, command, {"BENCH_REDIS": work.REDIS}, Path(made))
            await broker.shutdown()

    return start


async def measure(start: Any, count: int) -> dict[str, float]:
    async with start() as contest:
        begun = time.perf_counter()
        await contest.enqueue(count)
        enqueued = time.perf_counter() - begun
        with contest.workers():
            first = await contest.reached(1)
            drained = await contest.reached(count) - first
            contest_count = 2 * count
            begun = time.perf_counter()
            await contest.enqueue(count)
            end_to_end = await contest.reached(contest_count) - begun
        contest.forget()
    return {"enqueue": count / enqueued, "drain": count / drained, "end_to_end": count / end_to_end}


async def main(quick: bool) -> Result:
    rounds = 1 if quick else 3
    contests: dict[str, tuple[Any, int]] = {"ours": (ours, 5_000 if quick else 30_000)}
    skipped = []
    if shutil.which("redis-server"):
        small, middle = (1_000, 2_000) if quick else (5_000, 10_000)
        contests |= {
            "celery": (celery, small),
            "taskiq_stream": (taskiq("stream"), middle),
            "taskiq_list": (taskiq("list"), middle),
        }
    else:
        skipped.append("Celery and taskiq: redis-server is not installed")
    rates: dict[str, list[dict[str, float]]] = {name: [] for name in contests}
    for _ in range(rounds):
        for name, (start, count) in contests.items():
            rates[name].append(await measure(start, count))
            progress("tasks", name, rates[name][-1])
    result: Result = {
        "tasks": {name: count for name, (_, count) in contests.items()},
        "skipped": skipped,
        "goals": {"times_celery": 5, "times_taskiq_stream": 2, "times_taskiq_list": 2},
    }
    for shape in ("enqueue", "drain", "end_to_end"):
        found = {name: [each[shape] for each in measured] for name, measured in rates.items()}
        entry: Result = {name: summary(values) for name, values in found.items()}
        entry["times"] = {name: versus(found["ours"], values) for name, values in found.items() if name != "ours"}
        result[shape] = entry
    return result


if __name__ == "__main__":
    report(
        run(main(options(__doc__).quick)),
        ours="fsync before every acknowledgement; one node, one worker process, concurrency 256",
        redis="appendonly yes, appendfsync everysec",
        others="two worker processes; Celery prefork, taskiq asyncio",
        payload="one number",
    )
