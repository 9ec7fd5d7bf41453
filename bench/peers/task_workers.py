"""The same task that does nothing, in five queues, and a count of how often it ran that any process can read.

Imported by the workers themselves: `mainspring worker bench.peers.task_workers:app`, `celery -A
bench.peers.task_workers:celery`, `taskiq worker bench.peers.task_workers:stream`, `procrastinate --app
bench.peers.task_workers.procrastinate worker`; a worker of DBOS is `python -m bench.peers.task_workers`. Each worker
process counts in a file of its own, because counting must not be what is measured.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("BENCH_COUNTS", "."))
REDIS = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379")
POSTGRES = os.environ.get("BENCH_POSTGRES", "")
_count: mmap.mmap | None = None
_counting = threading.Lock()  # DBOS runs workflows in threads


def ran() -> None:
    """Count one run of this process."""
    global _count
    with _counting:
        if _count is None:
            file = os.open(FOLDER / f"count.{os.getpid()}", os.O_RDWR | os.O_CREAT)
            os.ftruncate(file, 8)
            _count = mmap.mmap(file, 8)
        struct.pack_into("<q", _count, 0, struct.unpack_from("<q", _count, 0)[0] + 1)


def runs(folder: Path) -> int:
    """How often the task ran, in all processes."""
    return sum(struct.unpack("<q", file.read_bytes())[0] for file in folder.glob("count.*") if file.stat().st_size == 8)


def make_app() -> Any:
    from mainspring import App

    made = App("bench")

    @made.task(name="nothing", keep_result=False)
    async def nothing(_: int) -> None:
        ran()

    return made


def make_celery() -> Any:
    from celery import Celery  # type: ignore[import-untyped]

    made = Celery("bench", broker=REDIS)
    made.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=256,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )

    @made.task(name="nothing", shared=False)  # type: ignore[untyped-decorator]
    def nothing(_: int) -> None:
        ran()

    return made


def make_taskiq(kind: str) -> Any:
    from taskiq_redis import ListQueueBroker, RedisStreamBroker

    made: Any = RedisStreamBroker(REDIS) if kind == "stream" else ListQueueBroker(REDIS)

    @made.task(task_name="nothing")  # type: ignore[untyped-decorator]
    async def nothing(_: int) -> None:
        ran()

    return made


def make_procrastinate() -> Any:
    from procrastinate import App, PsycopgConnector

    made: Any = App(connector=PsycopgConnector(conninfo=POSTGRES, max_size=20))

    @made.task(name="nothing")  # type: ignore[untyped-decorator]
    async def nothing(n: int) -> None:
        ran()

    return made


def dbos_worker() -> None:
    """A worker of DBOS; it looks for work a hundred times a second, because its usual second would be the figure."""
    from dbos import DBOS

    config: Any = {"name": "bench", "system_database_url": POSTGRES, "log_level": "ERROR", "application_version": "1"}
    DBOS(config=config | {"run_admin_server": False})

    @DBOS.workflow(name="nothing")
    def nothing(_: int) -> None:
        ran()

    DBOS.launch()
    DBOS.register_queue("work", polling_interval_sec=0.01)
    threading.Event().wait()


def __getattr__(name: str) -> Any:
    """Each worker asks for its own; nobody pays for the others."""
    makers: dict[str, Callable[[], Any]] = {
        "app": make_app,
        "celery": make_celery,
        "stream": lambda: make_taskiq("stream"),
        "list": lambda: make_taskiq("list"),
        "procrastinate": make_procrastinate,
    }
    if name not in makers:
        raise AttributeError(name)
    value = makers[name]()
    globals()[name] = value
    return value


if __name__ == "__main__":
    dbos_worker()
