"""`mainspring worker`: runs the tasks of a program until it is told to stop, in one process or several.

With `--processes` the program is imported once and the process forks: the children run tasks, and the parent starts a
new one for each that ends. It runs no event loop and no threads, so it can fork at any time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Final

import typer

from mainspring.app import App
from mainspring.cli.support.node_options import NodeAddress
from mainspring.cli.support.output import CommandFailed, say_json
from mainspring.cli.support.stopping import stop_signals, unless_stopped
from mainspring.import_path import find_object
from mainspring.loop import Clock, HandlerThreads, MonotonicClock, new_event_loop
from mainspring.retries import Backoff
from mainspring.settings import load_all
from mainspring.tasks import Worker
from mainspring.telemetry import configure_logging

logger: logging.Logger = logging.getLogger("mainspring.tasks")

_AGAIN: Final = Backoff(500, 30_000)  # before a process that died is replaced
_HEALTHY_MS: Final = 10_000  # one that lived longer than that did not die of starting


def worker(
    program: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The program whose tasks are run.")],
    *,
    at: NodeAddress,
    processes: Annotated[int, typer.Option(min=1, help="Processes that run tasks, for several processors.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks at a time in each process.")] = 16,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for running tasks to finish when stopping.")] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON line from each process when it begins to work.")
    ] = False,
) -> None:
    """Run the tasks of a program.

    The same `@app.task` functions that the node runs: plain ones in threads, `async def` ones on the event loop. The
    node may run them, too; `mainspring serve --no-tasks` leaves them all to workers.

    SIGTERM or Ctrl-C stops in order: no new tasks, running ones finish, the rest goes to other workers. A second one
    ends at once; what ran then is run again elsewhere. MAINSPRING_LOG_LEVEL and MAINSPRING_LOG_FORMAT say how it logs.
    """
    configure_logging(load_all().settings)
    app = _find_app(program)

    def work(parent: int | None = None) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_work(app, at, concurrency, grace, parent, as_json))

    if processes == 1:
        work()
    else:
        raise typer.Exit(_Processes(work, processes, MonotonicClock(), time.sleep).run())


def _find_app(program: str) -> App:
    app = find_object(program)
    if not isinstance(app, App):
        raise CommandFailed(f"{program} is not an App", remedy='write `app = App("name")` there')
    if not app.tasks:
        raise CommandFailed(f"{program} declares no tasks", remedy="write @app.task above a function")
    for task in app.tasks:
        task.begin()
    return app


async def _work(app: App, at: NodeAddress, concurrency: int, grace: float, parent: int | None, as_json: bool) -> None:
    stopping = stop_signals(logger)
    if parent is not None:  # readable when the parent is gone
        asyncio.get_running_loop().add_reader(parent, stopping.set)
    # A thread cannot be interrupted, a process can: where another takes its place, it ends with what is stuck in it.
    threads = HandlerThreads(concurrency, None if parent is None else partial(_end_in_order, stopping))
    async with (
        at.open_client(connect_timeout=0, on_state=_report()) as bus,
        AsyncExitStack() as undo,
    ):
        app.use(bus)
        await app.hooks.enter(app, undo, HandlerThreads())  # their own: they run also when all others are stuck
        worker = Worker(app.tasks, concurrency=concurrency, threads=threads)
        if await unless_stopped(stopping, asyncio.ensure_future(_started(worker))) is None:
            return
        if as_json:
            say_json({"process": os.getpid(), "program": app.name, "tasks": len(app.tasks), "url": bus.url})
        logger.info("process %d works on %d tasks of %s at %s", os.getpid(), len(app.tasks), app.name, bus.url)
        try:
            await unless_stopped(stopping, asyncio.ensure_future(worker.wait()))
        finally:
            await worker.stop(grace)


def _end_in_order(stopping: asyncio.Event) -> None:
    if not stopping.is_set():
        logger.warning("a function runs on after its time limit: this process finishes its others and is replaced")
        stopping.set()


async def _started(worker: Worker) -> bool:
    await worker.start()
    return True


class _Processes:
    """The parent of worker processes."""

    def __init__(self, work: Callable[[int], None], count: int, clock: Clock, pause: Callable[[float], object]) -> None:
        self._work = work
        self._count = count
        self._clock = clock
        self._pause = pause
        self._children: dict[int, int] = {}  # by process id: when it was started
        self._stopping = False
        self._lifeline = os.pipe()  # children read the end of it when the parent is gone

    def run(self) -> int:
        """Until all of them have ended; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        pauses = _AGAIN.series()
        for _ in range(self._count):
            self._fork()
        while self._children:
            pid, status = os.wait()
            lived_ms = self._clock.now_ms() - self._children.pop(pid, 0)
            if self._stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            level = logging.ERROR if code else logging.INFO
            logger.log(level, "worker process %d ended with %d; its tasks go to others, a new one starts", pid, code)
            if lived_ms > _HEALTHY_MS:
                pauses.succeeded()
            else:
                self._pause(pauses.failed() / 1000)
            if not self._stopping:
                self._fork()
        return 0

    def _fork(self) -> None:
        pid = os.fork()
        if pid:
            self._children[pid] = self._clock.now_ms()
            return
        code = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C at the terminal is for the parent, which tells its children
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._lifeline[1])
            self._work(self._lifeline[0])
            code = 0
        except BaseException:
            logger.exception("the worker process ends")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _on_signal(self, number: int, _: Any) -> None:
        if self._stopping:
            number = signal.SIGKILL
        self._stopping = True
        for pid in self._children:
            os.kill(pid, number)


def _report() -> Callable[[str], None]:
    """Says when the connection is there and when it is not, once each time."""
    texts = {"open": "connected", "waiting": "the node does not answer; trying again"}
    said = ""

    def on_state(state: str) -> None:
        nonlocal said
        if state in texts and texts[state] != said:
            said = texts[state]
            logger.info("%s", said)

    return on_state
