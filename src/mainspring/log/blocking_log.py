"""`BlockingLog`: the log for callers that have no asyncio loop.

It runs a loop of its own in one thread and hands every call over to it, so there is one implementation of the log and
no synchronous twin to keep in step. Calls from several threads still share commits: what arrives in one slice of that
loop is one group, as for all other callers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from mainspring.log.contract import Engine, LogUnavailable, Record
from mainspring.log.log import Log

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[Log, P], Awaitable[T]]) -> Callable[Concatenate[BlockingLog, P], T]:
    """The method of `Log`, for a caller that waits."""

    @wraps(method)
    def call(self: BlockingLog, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._await(lambda: method(self._log, *args, **kwargs))

    return call


class BlockingLog:
    """A log whose methods block until they are done. Open while the `with` block lasts, or until `close`.

    Do not call it from a thread that runs an asyncio loop you care about: it would stand still meanwhile.
    """

    def __init__(self, engine: Engine) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mainspring-log", daemon=True)
        self._thread.start()
        self._closed = False
        self._log = Log(engine)
        try:
            self._await(self._log.open)
        except BaseException:
            self._stop()
            raise

    @property
    def engine(self) -> Engine:
        """The engine underneath."""
        return self._log.engine

    def __enter__(self) -> BlockingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what was submitted, close the engine and end the thread. Idempotent."""
        if self._closed:
            return
        try:
            self._await(self._log.close)
        finally:
            self._stop()

    def _stop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    commit = _blocking(Log.commit)
    trim = _blocking(Log.trim)
    read = _blocking(Log.read)
    outline = _blocking(Log.outline)
    topics = _blocking(Log.topics)
    bounds = _blocking(Log.bounds)
    offset_at = _blocking(Log.offset_at)
    get = _blocking(Log.get)
    spaces = _blocking(Log.spaces)
    forget_dedupe = _blocking(Log.forget_dedupe)

    def scan(self, space: str, prefix: str = "", after: str = "") -> Iterator[Record]:
        records = self._log.scan(space, prefix, after)

        async def page() -> list[Record]:
            found: list[Record] = []
            async for record in records:
                found.append(record)
                if len(found) == 256:
                    break
            return found

        while found := self._await(page):
            yield from found

    def _await(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise LogUnavailable("the log is closed", remedy="open a new BlockingLog")
        if threading.current_thread() is self._thread:
            raise LogUnavailable("a blocking call from the log's own thread would wait for itself", remedy="use Log")

        async def run() -> T:
            return await call()

        work: Coroutine[Any, Any, T] = run()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
