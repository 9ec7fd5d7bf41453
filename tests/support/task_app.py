"""Tasks for tests with real worker processes: `mainspring worker tests.support.task_app:app`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TypedDict

from mainspring import App, TaskContext

app = App("jobs")
app.state.started = 0


@app.on_start
def count_starts() -> None:
    app.state.started += 1


class Note(TypedDict):
    path: str
    text: str


def write(path: str, text: str) -> None:
    """One line, in one write, so that lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


@app.task(max_attempts=4, backoff="50ms")
async def note(what: Note) -> int:
    write(what["path"], what["text"])
    return len(what["text"])


@app.task(max_attempts=4, backoff="50ms")
async def slow_note(what: Note) -> str:
    write(what["path"], f"begin {what['text']}")
    await asyncio.sleep(0.5)
    write(what["path"], f"end {what['text']}")
    return what["text"]


@app.task(max_attempts=4, backoff="50ms")
async def endless(what: Note) -> None:
    try:
        write(what["path"], "begin")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        write(what["path"], "cancelled")
        raise


@app.task(max_attempts=4, backoff="50ms")
def threaded(what: Note, task: TaskContext) -> str:
    task.progress({"at": "half"})
    time.sleep(0.05)
    return what["text"].upper()


@app.task(max_attempts=4, backoff="50ms")
async def deadly(what: Note, task: TaskContext) -> str:
    """Kills its worker the first time, without a word."""
    write(what["path"], f"attempt {task.attempt}")
    if task.attempt == 1:
        os._exit(9)
    return "survived"


@app.task(max_attempts=1, timeout="100ms")
def stuck(path: str) -> None:
    """Never returns, and cannot be cancelled."""
    write(path, str(os.getpid()))
    while True:
        time.sleep(60)


@app.task(max_attempts=3, backoff="50ms")
def killer(what: Note) -> None:
    """Kills its worker every time."""
    write(what["path"], "deadly")
    os._exit(9)


@app.task(max_attempts=4, backoff="50ms")
async def failing(what: Note, task: TaskContext) -> None:
    write(what["path"], f"attempt {task.attempt}")
    raise RuntimeError(what["text"])


@app.task(max_attempts=1, timeout="200ms")
async def limited(what: Note) -> None:
    await asyncio.Event().wait()


@app.task
def where(path: str, seconds: float = 0.0) -> int:
    """Blocks its thread, as plain code does."""
    write(path, str(os.getpid()))
    time.sleep(seconds)
    return app.state.started * os.getpid()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
