"""`Log`: many writers, one commit at a time.

Making a batch durable costs one fsync whether it holds one event or a thousand. So batches that are submitted while the
event loop goes through one slice are handed to the engine together, and while that commit is under way, the next ones
gather. There is no timer: a lone writer's batch leaves in the same slice in which it came, and does not wait. Under
load the commits grow by themselves, because more gathers while one is under way.

At most one commit is under way. A second one could be prepared meanwhile, but two would share the disk's time and the
later one could not be acknowledged earlier; it would only make groups smaller.

All results of one commit come back in one wake-up of the loop, and are handed out in the order of submission. The next
commit is started first, so that the disk works while the loop hands out results.

A commit belongs to no single writer, so it runs in the context (of `contextvars`) in which the log was opened.

The reasons are in docs/decisions/log-commits.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from typing import Any

import msgspec

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Batch,
    Change,
    DirectEngine,
    Engine,
    FallibleEngine,
    LogUnavailable,
    ReadThrough,
    Receipt,
    Record,
    Remove,
    Result,
    Room,
    RoomyEngine,
    SharedEngine,
    groups,
)
from mainspring.log.unreadable import RecordCheck
from mainspring.loop import VirtualClock, clock_to_pin, reject, resolve
from mainspring.telemetry import Histogram, nanoseconds, numbers

TRIM_STEP = 5_000  # events per commit: some 10 ms of a writer's time, so that publishers hardly notice a trim
MOST_OPERATIONS = 4_096  # per commit: beyond this a group gains nothing, and its first writer waits for its last

Callback = Callable[[Result], object]


class Log(ReadThrough):
    """The engine's face for the parts of a node: group commit for writes, reads passed through.

    Use it from one asyncio loop. `open` and `close` also open and close the engine.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.engine = engine
        self.shared: bool = isinstance(engine, SharedEngine)  # whether other nodes may write to this log
        self.takes_many: bool = getattr(engine, "takes_many", False)  # whether a batch may hold `AppendMany`
        self._direct = engine if isinstance(engine, DirectEngine) else None
        self._batches: list[Batch] = []
        self._callbacks: list[Callback] = []
        self._operations = 0
        self._under_way: list[Callback] | None = None
        self._flush_planned = False
        self._closed = False
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._virtual_clock: VirtualClock | None = None
        self._pinned: VirtualClock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: Context | None = None
        self._began = 0.0
        self.commits: int = 0
        self.operations: int = 0  # of all commits
        self.failed_commits: int = 0
        self.commit_ns: Histogram = nanoseconds()
        self.commit_ms: float = 0.0  # what the last few took
        self.commit_batches: Histogram = numbers()  # how many writers shared each commit
        self.fault: LogUnavailable | None = None  # why the last commit failed; None while writing works
        self.records: RecordCheck = RecordCheck(engine)  # which records can be read
        self._watchers: list[Callable[[Change], None]] = []

    async def open(self) -> None:
        self._use_running_loop()
        self._context = copy_context()
        await self.engine.open()
        if isinstance(self.engine, FallibleEngine):
            self.engine.on_failure(self._on_failure)
        self._closed = False

    def _on_failure(self, error: MainspringError) -> None:
        self.fault = error if isinstance(error, LogUnavailable) else LogUnavailable(error.message, remedy=error.remedy)

    async def close(self) -> None:
        """Wait until everything submitted is decided, then close the engine. Idempotent."""
        self._closed = True
        await self._idle.wait()
        await self.engine.close()

    # -- writing

    async def room(self) -> Room | None:
        """How much room there is for the log; None where the engine does not know."""
        return await self.engine.room() if isinstance(self.engine, RoomyEngine) else None

    async def commit(self, batch: Batch) -> Receipt:
        """Durable when it returns. Raises `Refused` or `LogUnavailable`; then nothing of the batch was stored.

        Cancelling the caller does not take the batch back: once submitted it may be stored.
        """
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def decided(result: Result) -> None:
            if isinstance(result, Receipt):
                resolve(answer, result)
            else:
                reject(answer, result)

        self.submit(batch, decided)
        return await answer

    def submit(self, batch: Batch, callback: Callback) -> None:
        """`commit` without a coroutine, for hot paths. It never raises an error of the log.

        `callback` gets the receipt or the error, later, in this loop's thread; the callbacks of one commit follow each
        other without a pause, in the order of submission. A callback that raises is reported to the loop.
        """
        if self._closed:
            self._refuse(callback)
            return
        if self.records.found:
            batch, callback = self.records.over_unreadable(batch, callback)
        self._batches.append(batch)
        self._callbacks.append(callback)
        self._operations += batch.size()
        if not self._flush_planned and self._under_way is None:
            self._flush_planned = True
            self._idle.clear()
            loop = self._loop or self._use_running_loop()
            loop.call_soon(self._flush, context=self._context)

    def _use_running_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.get_running_loop()
        self._virtual_clock = clock_to_pin(loop)
        return loop

    def _refuse(self, callback: Callback) -> None:
        """The log is closed. The callback gets the error in a later turn, like every other result."""
        error = LogUnavailable("the log is closed", remedy="open it, or stop writing before it closes")
        loop = self._loop or asyncio.get_running_loop()
        if not loop.is_closed():
            loop.call_soon(callback, error, context=self._context)

    def _flush(self) -> None:
        self._flush_planned = False
        batches = self._batches
        waiting = self._operations
        if waiting <= MOST_OPERATIONS:
            self._batches, self._under_way, self._callbacks, self._operations = [], self._callbacks, [], 0
        else:
            batches = self._first_batches()
        loop = self._loop
        assert loop is not None
        self.commits += 1
        self.operations += waiting - self._operations
        self.commit_batches.observe(len(batches))
        self._began = loop.time()
        if self._direct is None:
            self._task = loop.create_task(self._commit(batches), context=self._context)
            return
        self._pinned = self._virtual_clock
        if self._pinned is not None:
            self._pinned.pin()
        try:
            self._direct.submit(batches, self._wake)
        except Exception as error:
            loop.call_soon(self._finish, _unavailable(error, len(batches)), context=self._context)

    def _first_batches(self) -> list[Batch]:
        """As many as fit one commit, at least one; the rest stays for the next."""
        count = len(next(groups((batch.size() for batch in self._batches), MOST_OPERATIONS)))
        self._operations -= sum(batch.size() for batch in self._batches[:count])
        first, self._batches = self._batches[:count], self._batches[count:]
        self._under_way, self._callbacks = self._callbacks[:count], self._callbacks[count:]
        return first

    def _wake(self, results: Sequence[Result]) -> None:
        """From the engine's thread into the loop's; a loop that is closed waits for nothing."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, results, context=self._context)

    async def _commit(self, batches: list[Batch]) -> None:
        try:
            results = await self.engine.commit(batches)
        except Exception as error:
            results = _unavailable(error, len(batches))
        self._finish(results)

    def _finish(self, results: Sequence[Result]) -> None:
        callbacks = self._under_way or []
        self._under_way = None
        if self._pinned is not None:
            self._pinned.unpin()
            self._pinned = None
        assert self._loop is not None
        took = self._loop.time() - self._began
        self.commit_ns.observe(int(took * 1e9))
        self.commit_ms += (took * 1e3 - self.commit_ms) / 4
        self.fault = next((result for result in results[:1] if isinstance(result, LogUnavailable)), None)
        if self.fault is not None:
            self.failed_commits += 1
        if self._batches:
            self._flush()
        for callback, result in zip(callbacks, results, strict=True):
            try:
                callback(result)
            except Exception as error:  # a defect of one writer; the others must learn what became of their batches
                context = {"message": f"a callback of the log failed: {callback!r}", "exception": error}
                self._loop.call_exception_handler(context)
        if self._under_way is None and not self._flush_planned:
            self._idle.set()

    async def trim(self, topic: str, partition: int, below: int) -> None:
        """Remove all events below an offset, in steps, so that other writers get their turns in between."""
        while step := await self._next_step(topic, partition, below):
            await self.commit(Batch([Remove(topic, partition, below=step)]))

    async def _next_step(self, topic: str, partition: int, below: int) -> int:
        """The next lower bound on the way to `below`; 0 when nothing is left under it."""
        bounds = next((b for b in await self.engine.bounds(topic) if b.partition == partition), None)
        if bounds is None or bounds.head >= min(below, bounds.tail + 1):
            return 0
        return min(below, bounds.head + TRIM_STEP)

    # -- records

    def get(self, space: str, key: str) -> Coroutine[Any, Any, Record | None]:
        """The record, or None. One that its part cannot read counts as not being there."""
        return self.records.get(space, key) if space in self.records.readers else self.engine.get(space, key)

    def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        """As the engine does it, without the records that their part cannot read."""
        if space in self.records.readers:
            return self.records.scan(space, prefix, after)
        return self.engine.scan(space, prefix, after)

    # -- other nodes

    def watch(self, seen: Callable[[Change], None]) -> None:
        """Call `seen` for every batch that any node commits; see `SharedEngine`. Embedded engines report none.

        It sees no records that their part cannot read.
        """
        if not isinstance(self.engine, SharedEngine):
            return
        if not self._watchers:
            self.engine.watch(self._on_change)
        self._watchers.append(seen)

    def _on_change(self, change: Change) -> None:
        if change.records:
            readable = tuple(filter(self.records.is_readable, change.records))
            if len(readable) != len(change.records):
                change = msgspec.structs.replace(change, records=readable)
        for seen in self._watchers:
            try:
                seen(change)
            except Exception as error:  # the others must learn of it all the same
                context = {"message": f"a watcher of the log failed: {seen!r}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def watch_records(self, seen: Callable[[Change], None]) -> None:
        """`watch`, but only for batches that write or delete records: most of them only append events."""
        self.watch(lambda change: seen(change) if change.records else None)

    def watch_topic(self, topic: str, seen: Callable[[Change], None]) -> None:
        """`watch`, but only for batches that append to this topic."""
        self.watch(lambda change: seen(change) if any(each.topic == topic for each in change.appended) else None)

    def forget_dedupe(self, now: int) -> Coroutine[Any, Any, int]:
        """Drop the dedupe marks whose time is up; how many."""
        return self.engine.forget_dedupe(now)


def _unavailable(error: Exception, count: int) -> list[Result]:
    if isinstance(error, MainspringError):
        return [error] * count
    what = f"the engine failed: {type(error).__name__}: {error}"
    fault = LogUnavailable(what, remedy="see the node's log; then try again")
    fault.__cause__ = error
    return [fault] * count
