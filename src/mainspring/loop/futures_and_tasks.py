"""Small chores around asyncio's futures and tasks.

Whoever waits on a future may stop waiting at any moment, and a future that was cancelled refuses a result. So everybody
who has a result asks first: `wake`, `resolve` and `reject` do that.

An event loop keeps only a weak reference to a task, and an error in a task that nobody awaits appears when the garbage
collector finds it, if ever. `BackgroundTasks` keeps its tasks, logs what they fail with, and ends them together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def wake(waiter: asyncio.Future[None]) -> None:
    """Let a waiter go on, unless it has stopped waiting. Takes one argument, so it can be the function of a timer."""
    if not waiter.done():
        waiter.set_result(None)


def resolve(future: asyncio.Future[_T], value: _T) -> None:
    """Give a future its result, unless it is done."""
    if not future.done():
        future.set_result(value)


def reject(future: asyncio.Future[Any], error: BaseException, *, may_go_unseen: bool = False) -> None:
    """Give a future its error, unless it is done.

    With `may_go_unseen` nothing is logged when nobody awaits the future any more.
    """
    if not future.done():
        future.set_exception(error)
        if may_go_unseen:
            future.exception()


class BackgroundTasks:
    """Tasks of one owner that nobody needs to await. Their failures are logged; `cancel` ends all of them.

    `owner` says in the log whose they are.
    """

    __slots__ = ("_logger", "_owner", "_tasks")

    def __init__(self, logger: logging.Logger, owner: str) -> None:
        self._logger = logger
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many are running."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run `work` as a task of the running event loop; without one, `work` is closed and RuntimeError raised."""
        try:
            task = asyncio.get_running_loop().create_task(work, name=name)
        except RuntimeError:
            work.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def start_unless_running(self, work: Callable[[], Coroutine[Any, Any, object]], name: str) -> bool:
        """Run `work()` unless a task of that name is running; whether it was started."""
        if self.is_running(name):
            return False
        self.start(work(), name)
        return True

    def is_running(self, name: str) -> bool:
        """Whether there is a task of that name which is not done."""
        return any(task.get_name() == name and not task.done() for task in self._tasks)

    async def wait(self) -> None:
        """Wait until all tasks that are running now have ended."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def cancel(self, *, repeat_s: float | None = None) -> None:
        """Cancel all tasks, except the one that calls this, and wait until they have ended.

        `repeat_s`: cancel again every so many seconds, for tasks that wait in libraries which may swallow a
        cancellation.
        """
        calling = asyncio.current_task()
        while running := [task for task in self._tasks if task is not calling and not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=repeat_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("%s: background task %r failed", self._owner, task.get_name(), exc_info=error)


def result_elsewhere(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop | None) -> Any:
    """The coroutine, to be awaited; in a thread without an event loop, its result, when `loop` has carried it out."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if loop is not None and loop.is_running():
            return asyncio.run_coroutine_threadsafe(work, loop).result()
    return work
