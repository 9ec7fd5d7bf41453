"""A queue for tests with real worker processes: `mainspring worker task_app:queue`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TypedDict

from mainspring.tasks import Retry, TaskContext, TaskQueue

queue = TaskQueue("jobs", retry=Retry(attempts=4, first=0.05, jitter=0), lease=1.0)


class Note(TypedDict):
    path: str
    text: str


def write(path: str, text: str) -> None:
    """One line, in one write, so that lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


@queue.task
async def note(what: Note) -> int:
    write(what["path"], what["text"])
    return len(what["text"])


@queue.task
async def slow_note(what: Note) -> str:
    write(what["path"], f"begin {what['text']}")
    await asyncio.sleep(0.5)
    write(what["path"], f"end {what['text']}")
    return what["text"]


@queue.task
async def endless(what: Note) -> None:
    try:
        write(what["path"], "begin")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        write(what["path"], "cancelled")
        raise


@queue.task
def threaded(what: Note, task: TaskContext) -> str:
    task.progress({"at": "half"})
    time.sleep(0.05)
    return what["text"].upper()


@queue.task
async def deadly(what: Note, task: TaskContext) -> str:
    """Kills its worker the first time, without a word."""
    write(what["path"], f"attempt {task.attempt}")
    if task.attempt == 1:
        os._exit(9)
    return "survived"


@queue.task
async def failing(what: Note, task: TaskContext) -> None:
    write(what["path"], f"attempt {task.attempt}")
    raise RuntimeError(what["text"])


@queue.task(retry=Retry(attempts=1), timeout=0.2)
async def limited(what: Note) -> None:
    await asyncio.Event().wait()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
