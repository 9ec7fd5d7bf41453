"""What became of tasks: records on `<queue>.results`, and how to wait for them.

A record is keyed by its task's id, and the topic is compacted: of each task the newest record stays, until it expires.
Who waits follows the topic from a place before the task was enqueued, so no result can slip by, however quick the task
was. Nothing is followed until someone waits for the first time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from mainspring.client import Client, EventEnvelope, TimedOut, decoder
from mainspring.durations import Duration, seconds
from mainspring.loop import wake
from mainspring.tasks.errors import TaskCancelled, TaskFailed

if TYPE_CHECKING:
    from mainspring.tasks.queue import TaskQueue

State = Literal["progress", "retrying", "done", "failed", "cancelled"]
FINAL: Final = frozenset({"done", "failed", "cancelled"})
REMEMBERED: Final = 10_000


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened to a task. `value` is its result or the progress it reported."""

    state: State
    name: str = ""
    attempt: int = 1
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""

    @property
    def final(self) -> bool:
        return self.state in FINAL


_decode: Final = msgspec.json.Decoder(TaskRecord).decode


def read_record(envelope: EventEnvelope) -> TaskRecord | None:
    """The record of an event; None for what is none."""
    try:
        return _decode(envelope.payload)
    except msgspec.MsgspecError:
        return None


class TaskRecords:
    """The records of one queue, as far as this process has an interest in them."""

    def __init__(self, bus: Client, topic: str) -> None:
        self.bus = bus
        self._topic = topic
        self._begin: str | None = None  # a cursor from before the first task of this process
        self._seen: OrderedDict[str, TaskRecord] = OrderedDict()
        self._forgot = False
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._following: asyncio.Task[None] | None = None

    async def mark(self) -> None:
        """Remember this place: what is enqueued from now on has its records behind it."""
        if self._begin is None:
            self._begin = await self.bus.insist(lambda: self.bus.http.last_cursor(self._topic))

    async def latest(self, id: str) -> TaskRecord | None:
        """The newest record of a task that is stored now."""
        return await self.bus.insist(lambda: self._latest(id))

    async def _latest(self, id: str) -> TaskRecord | None:
        found = None
        async for page in self.bus.http.read(self._topic, params={}):
            for envelope in page:
                if envelope.key == id:
                    found = read_record(envelope) or found
        return found

    async def wait(self, id: str, *, mine: bool, timeout: Duration | None) -> TaskRecord:
        """The task's final record. `mine`: it was enqueued here, so its records lie behind the mark."""
        limit_s = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit_s):
                record = None
                while record is None or not record.final:
                    record = await self.changed(id, record, mine=mine)
                return record
        except TimeoutError:
            raise TimedOut(f"task {id} did not end within {limit_s:g} s", remedy="wait longer, or cancel it") from None

    async def changed(self, id: str, known: TaskRecord | None, *, mine: bool) -> TaskRecord:
        """The task's newest record, as soon as it is another one than `known`."""
        waiter: asyncio.Future[None] | None = None
        await self._follow()
        if known is None and id not in self._seen and (self._forgot or not mine):
            found = await self.latest(id)
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
            await self.mark()
            self._following = self.bus.run(self._read(self._begin or ""), "results")

    async def _read(self, cursor: str) -> None:
        async for envelope in self.bus.envelopes(self._topic, {"cursor": cursor}):
            record = read_record(envelope)
            if record is not None and envelope.key is not None:
                self._remember(envelope.key, record)

    def _remember(self, id: str, record: TaskRecord) -> None:
        self._seen[id] = record
        self._seen.move_to_end(id)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
            self._forgot = True
        for waiter in self._waiting.get(id, ()):
            wake(waiter)


def encode_record(state: State, name: str, attempt: int, value: Any = None, error: str = "") -> dict[str, Any]:
    """A record's payload."""
    told: dict[str, Any] = {"state": state, "name": name, "attempt": attempt}
    if value is not None:
        told["value"] = value
    if error:
        told["error"] = error
    return told


class TaskHandle:
    """One task by its id. Cheap; nothing is asked of the node until a verb is used."""

    __slots__ = ("_mine", "_queue", "id")

    def __init__(self, queue: TaskQueue, id: str, *, mine: bool) -> None:
        self.id: str = id
        self._queue = queue
        self._mine = mine

    async def result(self, timeout: Duration | None = None, type: Any = None) -> Any:
        """What the task returned, decoded into `type`.

        Raises TaskFailed when it is a dead letter, TaskCancelled when it was cancelled, and TimedOut. A task declared
        without results, and one whose result has expired, is waited for in vain.
        """
        record = await self._queue.records.wait(self.id, mine=self._mine, timeout=timeout)
        if record.state == "done":
            return decoder(type)(record.value)
        if record.state == "cancelled":
            raise TaskCancelled(f"task {self.id} was cancelled", task_id=self.id)
        raise TaskFailed(f"task {self.id} failed: {record.error}", remedy="see `dead` and `redrive`", task_id=self.id)

    async def status(self) -> str:
        """The newest that is known: waiting, progress, retrying, done, failed or cancelled."""
        record = await self._queue.records.latest(self.id)
        return "waiting" if record is None else record.state

    async def progress(self) -> AsyncIterator[Any]:
        """What the task reports while it works; ends when the task does."""
        seen: TaskRecord | None = None
        while seen is None or not seen.final:
            record = await self._queue.records.changed(self.id, seen, mine=self._mine)
            if record.state == "progress":
                yield msgspec.json.decode(record.value)
            seen = record

    async def cancel(self, reason: str = "") -> None:
        """Ask for the task to end: it will not be started, or is interrupted where it waits. Durable when it returns.

        A task that has already ended stays as it is.
        """
        await self._queue.cancel(self.id, reason)

    def __await__(self) -> Any:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"
