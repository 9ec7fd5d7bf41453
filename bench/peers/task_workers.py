"""The same task that does nothing, in three queues, and a count of how often it ran that any process can read.

Imported by the workers themselves: `mainspring worker bench.peers.task_workers:app`, `celery -A
bench.peers.task_workers`, `taskiq worker bench.peers.task_workers:stream`. Each worker process counts in a file of its
own, because counting must not be what is measured.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("BENCH_COUNTS", "."))
REDIS = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379")
_count: mmap.mmap | None = None


def ran() -> None:
    """Count one run of this process."""
    global _count
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


def __getattr__(name: str) -> Any:
    """Each worker asks for its own; nobody pays for the others."""
    makers: dict[str, Callable[[], Any]] = {
        "app": make_app,
        "celery": make_celery,
        "stream": lambda: make_taskiq("stream"),
        "list": lambda: make_taskiq("list"),
    }
    if name not in makers:
        raise AttributeError(name)
    value = makers[name]()
    globals()[name] = value
    return value
