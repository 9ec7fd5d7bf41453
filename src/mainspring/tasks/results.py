"""What became of tasks: records on a results topic, and how to wait for them.

A record is keyed by its task's id, and the topic is compacted: of each task the newest record stays, until it expires.
Who waits follows the topic from a place before the task was enqueued, so no result can slip by, however quick the task
was. Nothing is followed until someone waits for the first time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

from mainspring.client import TimedOut
from mainspring.codec import Encoding
from mainspring.data_types import json_encoder
from mainspring.durations import Duration, seconds
from mainspring.errors import MainspringError
from mainspring.loop import blocking_verb, time_limit, wake
from mainspring.task_topics import NewCall
from mainspring.tasks.errors import TaskCancelled, TaskExpired, TaskFailed
from mainspring.telemetry import KeptError

if TYPE_CHECKING:
    from mainspring.tasks.ports import StoredReport, TaskPort
    from mainspring.tasks.task import Task

T = TypeVar("T", covariant=True)
State = Literal["progress", "retrying", "done", "failed", "cancelled", "expired"]
FINAL: Final = frozenset({"done", "failed", "cancelled", "expired"})
REMEMBERED: Final = 10_000


class NotStorable(MainspringError, code="not_storable"):
    """What a task returned or reported cannot be written as JSON."""


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened to a task. `value` is its result or the progress it reported."""

    state: State
    name: str = ""
    attempt: int = 1
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    failure: KeptError | None = None  # of an attempt that raised
    duration_ms: int | None = None  # of the attempt that ended; None: it did not begin

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def outcome(self, id: str) -> Any:
        """The result's JSON text. Raises TaskFailed, TaskCancelled or TaskExpired."""
        if self.state == "done":
            return self.value
        if self.state == "cancelled":
            raise TaskCancelled(f"task {id} was cancelled", task_id=id)
        if self.state == "expired":
            raise TaskExpired(f"task {id} expired before it was started", task_id=id)
        raise TaskFailed(f"task {id} failed: {self.error}", remedy="it is a dead letter of its topic", task_id=id)


_decode: Final = msgspec.json.Decoder(TaskRecord).decode
_encode: Final = json_encoder().encode


def read_record(report: StoredReport) -> TaskRecord | None:
    """The record of an event; None for what is none."""
    try:
        return _decode(report.payload)
    except msgspec.MsgspecError:
        return None


def encode_record(
    state: State,
    name: str,
    attempt: int,
    value: Any = None,
    error: str = "",
    encoding: Encoding | None = None,
    failure: KeptError | None = None,
    duration_ms: int | None = None,
) -> bytes:
    """A record's payload. Raises NotStorable for a value that JSON cannot say."""
    try:
        raw = msgspec.Raw(b"null" if value is None else _encode(value))
        if encoding is not None:
            raw = msgspec.Raw(encoding.seal(raw))
    except (TypeError, ValueError, RecursionError) as problem:
        raise NotStorable(f"it cannot be written as JSON: {problem}", remedy="return what JSON has") from None
    return msgspec.json.encode(TaskRecord(state, name, attempt, raw, error, failure, duration_ms))


class TaskRecords:
    """The records of one results topic, as far as this process has an interest in them."""

    def __init__(self, port: TaskPort, topic: str) -> None:
        self._port = port
        self._topic = topic
        self._begin: Any = None  # a position from before the first task of this process
        self._seen: OrderedDict[str, TaskRecord] = OrderedDict()
        self._forgot = False
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._following: asyncio.Task[None] | None = None

    async def mark(self) -> Any:
        """Remember this place: what is enqueued from now on has its records behind it. Gives the place."""
        if self._begin is None:
            self._begin = await self._port.position(self._topic)
        return self._begin

    async def latest(self, id: str, after: Any = None) -> TaskRecord | None:
        """The newest record of a task that is stored now; looked for after a position, where that is known."""
        found = None
        async for report in self._port.stored(self._topic, after):
            if report.key == id:
                found = read_record(report) or found
        return found

    async def wait(self, id: str, *, mine: bool, timeout: float | None = None, after: Any = None) -> TaskRecord:
        """The task's final record. `mine`: it was enqueued here, so its records lie behind the mark."""
        try:
            async with time_limit(timeout):
                record = None
                while record is None or not record.final:
                    record = await self.changed(id, record, mine=mine, after=after)
                return record
        except TimeoutError:
            raise TimedOut(f"task {id} did not end within {timeout} s", remedy="wait longer, or cancel it") from None

    async def changed(self, id: str, known: TaskRecord | None, *, mine: bool, after: Any = None) -> TaskRecord:
        """The task's newest record, as soon as it is another one than `known`."""
        waiter: asyncio.Future[None] | None = None
        await self._follow()
        if known is None and id not in self._seen and (self._forgot or not mine):
            found = await self.latest(id, after)
            if found is not None and id not in self._seen:
                self._remember(id, found)
        try:
            while (record := self._seen.get(id)) is None or record is known:
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.setdefault(id, set()).add(waiter)
                await waiter
            return record
        finally:
            if waiter is not None and id in self._waiting:
                self._waiting[id].discard(waiter)
                if not self._waiting[id]:
                    del self._waiting[id]

    async def _follow(self) -> None:
        if self._following is None:
            begin = await self.mark()
            if self._following is None:
                self._following = self._port.run(self._read(begin), "results")

    async def _read(self, begin: Any) -> None:
        async for report in self._port.follow(self._topic, begin):
            record = read_record(report)
            if record is not None and report.key is not None:
                self._remember(report.key, record)

    def _remember(self, id: str, record: TaskRecord) -> None:
        known = self._seen.get(id)
        if known is not None and known.final and not record.final:
            return  # a report that was late
        self._seen[id] = record
        self._seen.move_to_end(id)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
            self._forgot = True
        for waiter in self._waiting.get(id, ()):
            wake(waiter)


class TaskHandle(Generic[T]):
    """One call of a task by its id. Cheap; nothing is asked of the node until a verb is used.

    The verbs are awaited, but not in plain functions and not where the app uses a `SyncClient`.
    """

    __slots__ = ("_mine", "_task", "id")

    def __init__(self, task: Task[..., Any], id: str, *, mine: bool) -> None:
        self.id: str = id
        self._task = task
        self._mine = mine

    @blocking_verb
    def result(self, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """What the task returned, in the type that its function declares.

        Raises TaskFailed when it is a dead letter, TaskCancelled, TaskExpired, and TimedOut. A task declared without
        results, and one whose result has expired, is waited for in vain.
        """
        found: Coroutine[Any, Any, T] = self._port.call(self._result(timeout), for_ever=timeout is None)
        return found

    @blocking_verb
    def state(self) -> Coroutine[Any, Any, str]:
        """The newest that is known: waiting, progress, retrying, done, failed, cancelled or expired."""
        found: Coroutine[Any, Any, str] = self._port.call(self._state())
        return found

    async def progress(self) -> AsyncIterator[Any]:
        """What the task reports while it works; ends when the task does."""
        seen: TaskRecord | None = None
        while seen is None or not seen.final:
            seen = await self._port.call(self._changed(seen), for_ever=True)
            if seen is not None and seen.state == "progress":
                encoding = self._task.registry.encoding
                yield msgspec.json.decode(seen.value if encoding is None else encoding.open(seen.value))

    @blocking_verb
    def cancel(self, reason: str = "") -> Coroutine[Any, Any, None]:
        """Ask for the task to end: it will not be started, or is interrupted where it waits. Durable when it returns.

        A task that has already ended stays as it is.
        """
        found: Coroutine[Any, Any, None] = self._port.call(self._cancel(reason))
        return found

    async def _result(self, timeout: Duration | None) -> T:
        task = self._task
        await task.registry.ready(task)
        limit = None if timeout is None else seconds(timeout)
        record = await task.registry.records(task).wait(self.id, mine=self._mine, timeout=limit)
        result: T = task.decode_result(record.outcome(self.id))
        return result

    async def _state(self) -> str:
        task = self._task
        await task.registry.ready(task)
        record = await task.registry.records(task).latest(self.id)
        return "waiting" if record is None else record.state

    async def _changed(self, known: TaskRecord | None) -> TaskRecord:
        task = self._task
        await task.registry.ready(task)
        return await task.registry.records(task).changed(self.id, known, mine=self._mine)

    async def _cancel(self, reason: str) -> None:
        task, port = self._task, self._port
        await task.registry.ready(task)
        call = NewCall(port.new_id(), {"cancel": self.id, "reason": reason}, self.id)
        await port.publish(task.topics.control, call)

    @property
    def _port(self) -> TaskPort:
        return self._task.registry.port

    def __await__(self) -> Generator[Any, Any, T]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"


if TYPE_CHECKING:

    class BlockingTaskHandle(TaskHandle[T]):
        """What `enqueue` gives in a plain function: its verbs wait there. On an event loop `enqueue` is awaited."""

        def result(self, timeout: Duration | None = None) -> T: ...  # type: ignore[override]
        def state(self) -> str: ...  # type: ignore[override]
        def cancel(self, reason: str = "") -> None: ...  # type: ignore[override]
        def __await__(self) -> Generator[Any, Any, TaskHandle[T]]: ...  # type: ignore[override]

    class BlockingTaskHandles(list[BlockingTaskHandle[T]]):
        """What `enqueue_many` gives in a plain function. On an event loop it is awaited."""

        def __await__(self) -> Generator[Any, Any, list[TaskHandle[T]]]: ...

else:
    BlockingTaskHandle = TaskHandle
    BlockingTaskHandles = list
