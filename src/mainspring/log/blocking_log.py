"""`BlockingLog`: the log for callers that have no asyncio loop.

It runs a loop of its own in one thread and hands every call over to it, so there is one implementation of the log and
no synchronous twin to keep in step. Calls from several threads still share commits: what arrives in one slice of that
loop is one group, as for all other callers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

from mainspring.log.contract import Batch, Bounds, Engine, LogUnavailable, Outline, Receipt, Record, StoredEvent
from mainspring.log.log import Log

T = TypeVar("T")


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

    def commit(self, batch: Batch) -> Receipt:
        """Durable when it returns. Raises `Refused` or `LogUnavailable`; then nothing of the batch was stored."""
        return self._await(lambda: self._log.commit(batch))

    def trim(self, topic: str, partition: int, below: int) -> None:
        """Remove the events of a partition below an offset."""
        self._await(lambda: self._log.trim(topic, partition, below))

    def read(self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20) -> list[StoredEvent]:
        return self._await(lambda: self._log.read(topic, partition, start, limit, max_bytes))

    def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        return self._await(lambda: self._log.outline(topic, partition, start, limit))

    def topics(self) -> list[str]:
        return self._await(self._log.topics)

    def bounds(self, topic: str) -> list[Bounds]:
        return self._await(lambda: self._log.bounds(topic))

    def offset_at(self, topic: str, partition: int, ts: int) -> int:
        return self._await(lambda: self._log.offset_at(topic, partition, ts))

    def get(self, space: str, key: str) -> Record | None:
        return self._await(lambda: self._log.get(space, key))

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

    def spaces(self) -> list[str]:
        return self._await(self._log.spaces)

    def forget_dedupe(self, now: int) -> int:
        return self._await(lambda: self._log.forget_dedupe(now))

    def _await(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise LogUnavailable("the log is closed", remedy="open a new BlockingLog")
        if threading.current_thread() is self._thread:
            raise LogUnavailable("a blocking call from the log's own thread would wait for itself", remedy="use Log")

        async def run() -> T:
            return await call()

        work: Coroutine[Any, Any, T] = run()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
