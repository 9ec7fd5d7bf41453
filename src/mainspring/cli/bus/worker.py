"""`mainspring worker`: runs the tasks of a queue until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Final

import typer

from mainspring.cli.support.node_options import NodeAddress
from mainspring.cli.support.output import CommandFailed, on_change
from mainspring.cli.support.settings import load_all
from mainspring.cli.support.stopping import stop_signals, unless_stopped
from mainspring.client import connect
from mainspring.import_path import find_object
from mainspring.loop import new_event_loop
from mainspring.tasks import TaskQueue, Worker
from mainspring.telemetry import configure_logging

logger: logging.Logger = logging.getLogger("mainspring.tasks")
_STATES: Final = {"open": "connected", "waiting": "the node does not answer; trying again"}


def worker(
    program: Annotated[str, typer.Argument(metavar="MODULE:QUEUE", help="Where the TaskQueue is, or a list of them.")],
    *,
    at: NodeAddress,
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks at a time, of each queue.")] = 16,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for running tasks to finish when stopping.")] = 30.0,
) -> None:
    """Run the tasks of a queue.

    SIGTERM or Ctrl-C stops in order: no new tasks, running ones finish, the rest goes to other workers. A second one
    ends at once; what ran then is run again elsewhere. MAINSPRING_LOG_LEVEL and MAINSPRING_LOG_FORMAT say how it logs.
    """
    configure_logging(load_all().settings)
    queues = find_queues(program)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_work(queues, at, concurrency, grace))


def find_queues(program: str) -> list[TaskQueue]:
    """The queues that `MODULE:QUEUE` names."""
    found = find_object(program, "TaskQueue", "MODULE:QUEUE, like shop.tasks:queue")
    queues = found if isinstance(found, (list, tuple)) else [found]
    if not queues or not all(isinstance(queue, TaskQueue) for queue in queues):
        raise CommandFailed(f"{program} is no TaskQueue", remedy='write `queue = TaskQueue("name")` there')
    return list(queues)


async def _work(queues: list[TaskQueue], at: NodeAddress, concurrency: int, grace: float) -> None:
    stopping = stop_signals(logger)
    async with connect(at.address, at.token, connect_timeout=0, on_state=on_change(logger.info, _STATES)) as bus:
        workers = [Worker(queue.use(bus), concurrency=concurrency) for queue in queues]
        if await unless_stopped(stopping, asyncio.gather(*(one.start() for one in workers))) is None:
            return
        names = ", ".join(f"{queue.name} ({len(queue.tasks)} tasks)" for queue in queues)
        logger.info("working on %s at %s", names, bus.url)
        try:
            await unless_stopped(stopping, asyncio.gather(*(one.wait() for one in workers)))
        finally:
            await asyncio.gather(*(one.stop(grace) for one in workers))
