"""Kills a process at every write of a durable program with ten effects, and lets another process go on.

Run as a script: `python -m tests.support.runs_crash_program DIRECTORY`; prints one JSON object per crash. Each try is a
fork of this process, so that dying with SIGKILL costs nothing but a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mainspring.log import Append, Batch, Log, SqliteEngine
from mainspring.runs import Effect, Runtime, Value, resume


class Record(Effect[int]):
    """Writes one event together with its answer: exactly once."""

    n: int


class Touch(Effect[int]):
    """Writes a line to a file: at least once."""

    n: int


async def program(perform: Any) -> int:
    total = 0
    for n in range(10):
        total += await perform(Record(n) if n % 2 == 0 else Touch(n))
    return total


class DyingEngine(SqliteEngine):
    """Kills its own process at the given write, before or after it is on disk."""

    def __init__(self, path: Path, at: int, when: str) -> None:
        super().__init__(path)
        self.at, self.when, self.writes = at, when, 0

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Any]], None]) -> None:
        self.writes += 1
        if self.writes != self.at:
            super().submit(batches, done)
        elif self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            super().submit(batches, lambda results: os.kill(os.getpid(), signal.SIGKILL))


async def live(folder: Path, at: int, when: str) -> dict[str, Any]:
    log = Log(DyingEngine(folder / "log.db", at, when))
    await log.open()
    runtime = Runtime(log=log)
    runtime.register(program, "program")

    def record(effect: Record, ctx: Any) -> Any:
        ctx.batch.append(Append("out", 0, ctx.key, ctx.wall_ms(), b"%d" % effect.n))
        return resume(effect.n)

    def touch(effect: Touch, ctx: Any) -> Any:
        with (folder / "touched").open("a") as file:
            file.write(f"{ctx.key} {effect.n}\n")
        return resume(effect.n)

    runtime.handle(Record, record)
    runtime.handle(Touch, touch)
    await runtime.start_service()
    outcome = await runtime.start(program, durable=True, id="a").outcome()
    journal = (await runtime.durable.history("a")).journal
    events = await log.read("out", 0, 1, 100)
    await runtime.stop_service()
    await log.close()
    return {
        "value": outcome.value if isinstance(outcome, Value) else str(outcome),
        "journal": [(entry.effect, json.loads(bytes(entry.value))) for entry in journal],
        "events": [(event.id, int(event.payload)) for event in events],
        "touched": (folder / "touched").read_text().split("\n")[:-1],
        "writes": log.engine.writes,  # type: ignore[attr-defined]
    }


def in_a_fork(work: Callable[[], Any]) -> int:
    """The exit status of a child that does the work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"child failed: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def one_crash(folder: Path, at: int, when: str) -> dict[str, Any]:
    """Die at one write, then go on in a new process; what is left afterwards."""
    folder.mkdir()
    status = in_a_fork(lambda: asyncio.run(live(folder, at, when)))
    report = folder / "report"
    in_a_fork(lambda: report.write_text(json.dumps(asyncio.run(live(folder, 0, "")))))
    return {
        "at": at,
        "when": when,
        "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
        **json.loads(report.read_text()),
    }


def main(folder: Path) -> None:
    report = folder / "whole"
    report.mkdir()
    in_a_fork(lambda: (report / "report").write_text(json.dumps(asyncio.run(live(report, 0, "")))))
    whole = json.loads((report / "report").read_text())
    print(json.dumps({"at": 0, "when": "never", "killed": False, **whole}), flush=True)
    for at in range(1, whole["writes"] + 1):
        for when in ("before", "after"):
            print(json.dumps(one_crash(folder / f"{at}-{when}", at, when)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
