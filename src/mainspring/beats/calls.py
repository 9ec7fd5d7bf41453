"""Calling an enzyme: everything it does ends as an outcome.

Exceptions become the result "failed", and so does a cancellation that is not the beat's own: an enzyme may have waited
for a task that was cancelled. What is no `Exception` (a keyboard interrupt, the cancellation of the task that runs the
beat) is not the enzyme's failure: it goes through, and the beat has not happened.

An enzyme that takes long changes nothing about the order; it is only reported, while it lasts, by a thread that waits.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Final, TypeVar

from mainspring.beats.errors import NotOpen, RunningLoop
from mainspring.beats.matching.registry import Enzyme
from mainspring.beats.stage import CallOutcome, Stage, current, result_of

T = TypeVar("T")

_log: Final = logging.getLogger("mainspring.beats")


class CurrentLoop:
    """The asyncio loop that runs the beat."""

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    async def yield_to_others(self) -> None:
        """Let other tasks of the loop run."""
        await asyncio.sleep(0)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """The result of work that takes a while, beside the loop."""
        return await asyncio.to_thread(work)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """See work through to its end, also when the task that waits for it is cancelled meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if task.exception() is not None:
                _log.error("a cancelled beat could not be stored: %s", task.exception())
            raise


class PrivateLoop:
    """A loop that exists only while a synchronous beat needs one. It never suspends its caller."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        if a_loop_runs_here():
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise RunningLoop("an async enzyme needs the loop that is running here", remedy="await hb.abeat()")
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_awaited(awaitable), context=copy_context())

    async def yield_to_others(self) -> None:
        return None

    async def in_thread(self, work: Callable[[], T]) -> T:
        return work()

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        await work

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


EnzymeHost = CurrentLoop | PrivateLoop  # where awaitables of enzymes are awaited


def a_loop_runs_here() -> bool:
    """Whether an asyncio loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _being_cancelled() -> bool:
    """Whether it is the beat itself that is being cancelled."""
    if not a_loop_runs_here():
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise NotOpen("this needs a running loop", remedy="use the method's async form")


async def call(function: Enzyme, signal: str | None, target: str | None, stage: Stage, host: EnzymeHost) -> CallOutcome:
    """Call an enzyme and wait for it."""
    token = current.set(stage)
    context = stage.context
    entered = None if context is None else context.enter()
    try:
        answer = function(signal, target, stage)
        if inspect.isawaitable(answer):
            answer = await host.wait(answer)
        return closed(stage, answer)
    except RunningLoop:
        raise
    except asyncio.CancelledError as error:
        if _being_cancelled():
            raise
        return failed(stage, error)
    except Exception as error:
        return failed(stage, error)
    finally:
        if context is not None:
            context.leave(entered)
        current.reset(token)


def call_now(function: Enzyme, signal: str | None, target: str | None, stage: Stage) -> CallOutcome | None:
    """Call an ordinary function, in a thread without a loop; None for an async one, which is not called."""
    if is_async(function):
        return None
    host = PrivateLoop()
    try:
        return run_now(call(function, signal, target, stage, host))
    finally:
        host.close()


def is_async(function: Enzyme) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def closed(stage: Stage, answer: object) -> CallOutcome:
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        raise TypeError("the enzyme is a generator, of which nothing was executed: write it without yield")
    result = result_of(answer)
    return stage.close(result, detail="" if result in ("ok", "retry") else f"returned {answer!r}")


def failed(stage: Stage, error: BaseException) -> CallOutcome:
    if stage.context is not None:
        stage.context.failed(error)
    detail = "".join(traceback.format_exception(error)).strip()
    return stage.close("failed", type(error).__qualname__, detail)


class SlowCallWatch:
    """Warns when a call has lasted longer than it should; one thread, only while beats run."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._changed = threading.Condition()
        self._watched: str | None = None
        self._turn = 0
        self._thread: threading.Thread | None = None

    def begin(self, what: str) -> None:
        with self._changed:
            self._watched = what
            self._turn += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mainspring-beats-watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._watched = None
            self._turn += 1
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while True:
                if self._watched is None:
                    if not self._changed.wait(timeout=60) and self._watched is None:
                        self._thread = None  # nothing to watch for a minute: the next call starts another thread
                        return
                    continue
                turn = self._turn
                self._changed.wait(timeout=self._limit_s)
                if turn == self._turn and self._watched is not None:
                    _log.warning("%s has been running for more than %g s", self._watched, self._limit_s)
                    self._changed.wait_for(lambda seen=turn: self._turn != seen)  # type: ignore[misc]
