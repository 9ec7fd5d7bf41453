"""A task that was enqueued: wait for it, look at it, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.client.event import decoder
from mainspring.tasks.errors import TaskCancelled, TaskFailed
from mainspring.tasks.results import Record

if TYPE_CHECKING:
    from mainspring.tasks.queue import TaskQueue


class TaskHandle:
    """One task by its id. Cheap; nothing is asked of the node until a verb is used."""

    __slots__ = ("_mine", "_queue", "id")

    def __init__(self, queue: TaskQueue, id: str, *, mine: bool) -> None:
        self.id: str = id
        self._queue = queue
        self._mine = mine

    async def result(self, timeout: float | None = None, type: Any = None) -> Any:
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
        seen: Record | None = None
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
