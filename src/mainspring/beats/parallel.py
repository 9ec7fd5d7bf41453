"""Calling independent enzymes side by side, with the same bytes as one after another.

Enzymes of a beat cannot see each other's work, so the order in which they are called shows nowhere except where a
program asked for it with `before` and `after`; entries that depend on each other are called one after another, in
agenda order. Everything that decides is done later, on one thread, in agenda order.

Threads suit enzymes that wait (network, disk). Processes suit enzymes that compute: their functions must be importable
in the other process, and what they read is asked for over a pipe.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any

from mainspring.beats.beat import Draft, PlannedCall
from mainspring.beats.calls import call_now, failed, is_async
from mainspring.beats.matching.registry import Enzyme
from mainspring.beats.stage import CallOutcome, Stage
from mainspring.errors import SettingError
from mainspring.telemetry import handling, lines_written, write_lines

MakeStage = Callable[[PlannedCall], Stage]


class Workers:
    """A pool that lives as long as its heartbeat."""

    def __init__(self, kind: str, count: int) -> None:
        if kind not in ("threads", "processes"):
            raise SettingError(f"parallel is 'threads' or 'processes', not {kind!r}")
        if count < 1:
            raise SettingError(f"workers is a whole number of at least 1, not {count!r}")
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="mainspring-beats")
        self._children: SimpleQueue[_Child] | None = None
        self._started: list[_Child] = []
        if kind == "processes":
            self._children = SimpleQueue()
            self._started = [_Child() for _ in range(count)]
            for child in self._started:
                self._children.put(child)

    def run(self, draft: Draft, make_stage: MakeStage) -> dict[int, CallOutcome]:
        """The outcome of each entry that may run here, by its place in the agenda."""
        groups = [group for group in draft.groups() if not any(is_async(e.registration.function) for e in group)]
        outcomes: dict[int, CallOutcome] = {}
        waiting = [self._pool.submit(copy_context().run, self._run_group, draft, group, make_stage) for group in groups]
        for group in waiting:
            outcomes.update(group.result())
        return outcomes

    def _run_group(self, draft: Draft, group: list[PlannedCall], make_stage: MakeStage) -> dict[int, CallOutcome]:
        outcomes: dict[int, CallOutcome] = {}
        for entry in group:
            impulse = draft.inbox[entry.item]
            outcome = self._call(entry.registration.function, impulse.signal, impulse.target, make_stage(entry))
            if outcome is not None:
                outcomes[entry.run] = outcome
        return outcomes

    def _call(self, function: Enzyme, signal: str | None, target: str | None, stage: Stage) -> CallOutcome | None:
        if self._children is None:
            return call_now(function, signal, target, stage)
        child, context = self._children.get(), stage.context
        entered = None if context is None else context.enter()
        try:
            return child.call(function, signal, target, stage)
        finally:
            if context is not None:
                context.leave(entered)
            self._children.put(child)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for child in self._started:
            child.close()


class _Child:
    """Another process that calls enzymes and asks back for what they read."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._pipe: Connection[Any, Any] | None = None

    def call(self, function: Enzyme, signal: str | None, target: str | None, stage: Stage) -> CallOutcome:
        try:
            name = None if stage.context is None else stage.context.cause
            work = pickle.dumps((function, signal, target, stage.beat, stage.attempt, name, lines_written()))
            pipe = self._connected()
            pipe.send_bytes(work)
            while True:
                kind, content = pipe.recv()
                if kind == "done":
                    outcome: CallOutcome = content
                    return outcome
                pipe.send(stage.committed(content))
        except (pickle.PicklingError, AttributeError, TypeError, EOFError, OSError) as error:
            # The process died under the enzyme, or the function cannot be sent: only this enzyme has failed.
            self.close()
            return failed(stage, error)

    def _connected(self) -> Connection[Any, Any]:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
            self._pipe = ours
        return self._pipe

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join()
            self._process = None


def _serve(pipe: Connection[Any, Any]) -> None:
    """The life of a child process: one call after the other until the pipe ends."""

    def ask(path: str) -> str | None:
        pipe.send(("read", path))
        answer: str | None = pipe.recv()
        return answer

    while True:
        try:
            work = pipe.recv_bytes()
        except EOFError:
            return
        stage = Stage(0, 1, ask)
        try:
            function, signal, target, stage.beat, stage.attempt, name, lines = pickle.loads(work)
            handling.set(name)
            if lines != lines_written():
                write_lines(*lines)
            outcome = call_now(function, signal, target, stage)
        except Exception as error:
            outcome = failed(stage, error)
        pipe.send(("done", outcome))
