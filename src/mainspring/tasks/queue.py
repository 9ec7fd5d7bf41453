"""TaskQueue: declare tasks, enqueue them, run workers.

    queue = TaskQueue("emails")

    @queue.task
    async def send(mail: Mail) -> str: ...

    async with connect() as bus:
        queue.use(bus)
        handle = await send.enqueue(Mail("a@example.org"), delay=60)
        print(await handle.result())

A task is an event of a topic, so everything the bus promises holds for it: it is durable when `enqueue` returns, it
waits for the first worker however long that takes, and it is delivered at least once. See `queue_topics.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from datetime import datetime
from typing import Any, Final, ParamSpec, TypeVar, overload
from urllib.parse import quote

from mainspring.client import BadArgument, Client, New, NodeRefused
from mainspring.durations import Duration, duration_ms, seconds
from mainspring.tasks.dead_tasks import DeadTask, dead_tasks, drop, redrive
from mainspring.tasks.errors import NotBound, UnknownTask
from mainspring.tasks.queue_topics import (
    NAME,
    RETRY,
    TIMEOUT,
    Layout,
    Priority,
    ensure_topics,
)
from mainspring.tasks.results import TaskHandle, TaskRecords
from mainspring.tasks.task import DeclaredTask, Retry, TaskSchedule

P = ParamSpec("P")
R = TypeVar("R")

LEASE: Final = "30s"
RESULTS_KEPT: Final = "1d"


class TaskQueue:
    """A named queue. `retry` is the policy of tasks that bring none; results expire after `results_kept`.

    `lease` is how long a task stays with a worker that says nothing; workers extend it while a task runs.
    """

    def __init__(
        self,
        name: str,
        bus: Client | None = None,
        *,
        group: str = "workers",
        retry: Retry | None = None,
        results_kept: Duration = RESULTS_KEPT,
        lease: Duration = LEASE,
    ) -> None:
        self.name = name
        self.group = group
        self.retry: Retry = retry or Retry()
        self.lease: float = seconds(lease)
        self.layout: Layout = Layout(name)
        self.tasks: dict[str, DeclaredTask[..., Any]] = {}
        self._results_ms = duration_ms(results_kept)
        self._records: TaskRecords | None = None
        self._ready: asyncio.Task[None] | None = None
        if bus is not None:
            self.use(bus)

    # -- declaring

    @overload
    def task(self, function: Callable[P, R], /) -> DeclaredTask[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        keep_result: bool = True,
        cron: str | None = None,
        every: Duration | None = None,
        payload: Any = None,
    ) -> Callable[[Callable[P, R]], DeclaredTask[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        keep_result: bool = True,
        cron: str | None = None,
        every: Duration | None = None,
        payload: Any = None,
    ) -> Any:
        """Declare a task, known by its function's name or the one given.

        `timeout` is its time limit. With `cron` (five fields, UTC) or `every`, the node enqueues it by itself, with
        `payload`, from when the first worker has started.
        """
        if cron is not None and every is not None:
            raise BadArgument("a task has either `cron` or `every`", remedy="give one of them")
        repeated = TaskSchedule(cron, every, payload) if cron is not None or every is not None else None

        def declare(function: Callable[..., Any]) -> DeclaredTask[..., Any]:
            known = name or function.__name__
            if known in self.tasks:
                raise BadArgument(f"queue {self.name!r} already has a task {known!r}", remedy="give it another name")
            declared = DeclaredTask(
                self, function, known, retry=retry, timeout=timeout, keep_result=keep_result, cron=repeated
            )
            self.tasks[known] = declared
            return declared

        return declare if function is None else declare(function)

    # -- the connection

    def use(self, bus: Client) -> TaskQueue:
        """Use this client from now on; itself."""
        if self._records is None or bus is not self._records.bus:
            self._records = TaskRecords(bus, self.layout.results)
            self._ready = None
        return self

    @property
    def bus(self) -> Client:
        """The client it works with. Raises NotBound before `use`."""
        return self.records.bus

    @property
    def records(self) -> TaskRecords:
        """What is known of tasks by their ids: states, results, cancellations. Raises NotBound before `use`."""
        if self._records is None:
            raise NotBound(f"queue {self.name!r} has no connection", remedy="call use(bus) first")
        return self._records

    async def ready(self) -> None:
        """Make sure that the queue's topics exist. Done once per connection."""
        if self._ready is None or (self._ready.done() and (self._ready.cancelled() or self._ready.exception())):
            self._ready = asyncio.create_task(self._prepare())
        await asyncio.shield(self._ready)

    async def _prepare(self) -> None:
        bus = self.bus
        await bus.insist(lambda: ensure_topics(bus, self.layout, round(self.lease * 1000), self._results_ms))
        await self.records.mark()

    # -- enqueueing

    async def enqueue(
        self,
        task: DeclaredTask[..., Any] | str,
        payload: Any = None,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        priority: Priority = "normal",
        key: str | None = None,
        unique: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        headers: dict[str, str] | None = None,
    ) -> TaskHandle:
        """Put a task on the queue; durable when it returns.

        `delay` or `at` hold it back. Tasks of a higher `priority` are taken first. Tasks with the same `key`
        run one after the other, in the order they were enqueued. A second task with the same `unique` text, within the
        node's dedupe window (10 minutes by default), is not enqueued; its handle is that of the first. `retry` and
        `timeout` override what the task was declared with. `task` may be a name that only workers know.
        """
        if key is not None and priority != "normal":
            raise BadArgument("tasks with a key are kept in order, so they have no priority", remedy="give one of them")
        await self.ready()
        name = task if isinstance(task, str) else task.name
        id = f"{name}:{unique}" if unique is not None else self.bus.new_id()
        await self.bus.publish(
            self.layout.lane(priority, key),
            payload,
            key=key,
            headers=self._headers(task, retry, timeout, headers),
            id=id,
            delay=delay,
            at=at,
        )
        return TaskHandle(self, id, mine=True)

    async def enqueue_many(
        self,
        task: DeclaredTask[..., Any] | str,
        payloads: Iterable[Any] | AsyncIterable[Any],
        *,
        priority: Priority = "normal",
        delay: Duration = 0,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> list[TaskHandle]:
        """Put many tasks on the queue, in order and in large batches; durable when it returns."""
        await self.ready()
        headers = self._headers(task, None, None, None)
        handles: list[TaskHandle] = []
        new_id = self.bus.new_id

        async def events() -> Any:
            async for payload in _each(payloads):
                id = new_id()
                handles.append(TaskHandle(self, id, mine=True))
                yield New(payload, None, headers, id, delay)

        await self.bus.publish_many(self.layout.lane(priority, None), events(), progress=progress)
        return handles

    def _headers(
        self,
        task: DeclaredTask[..., Any] | str,
        retry: Retry | None,
        timeout: Duration | None,
        headers: dict[str, str] | None,
    ) -> dict[str, str]:
        declared = self.tasks.get(task) if isinstance(task, str) else task
        told = {**(headers or {}), NAME: task if isinstance(task, str) else task.name}
        told[RETRY] = (retry or (declared.retry if declared is not None else None) or self.retry).header()
        limit = timeout if timeout is not None else (declared.timeout if declared is not None else None)
        if limit is not None:
            told[TIMEOUT] = f"{seconds(limit):g}"
        return told

    def handle(self, id: str) -> TaskHandle:
        """The handle of a task that was enqueued elsewhere."""
        return TaskHandle(self, id, mine=False)

    async def cancel(self, id: str, reason: str = "") -> None:
        """Cancel a task that waits or runs. Durable when it returns; one that has ended stays as it is."""
        await self.ready()
        await self.bus.publish(self.layout.control, {"cancel": id, "reason": reason}, key=id)

    # -- dead letters, repeated tasks

    async def dead(self, limit: int = 1_000) -> list[DeadTask]:
        """Tasks that failed for good."""
        return await dead_tasks(self.bus, self.layout, limit)

    async def redrive(self, tasks: list[DeadTask] | None = None) -> int:
        """Enqueue dead tasks again, these or all, with their attempts counted anew; how many."""
        return await redrive(self.bus, self.layout, tasks)

    async def drop_dead(self, tasks: list[DeadTask] | None = None) -> int:
        """Forget dead tasks, these or all; how many."""
        return await drop(self.bus, self.layout, tasks)

    async def schedule_repeated(self) -> None:
        """Tell the node about tasks with `cron` or `every`. One that it knows already keeps its rhythm."""
        for task in self.tasks.values():
            if task.cron is not None:
                await self._schedule(task, task.cron)

    async def _known_schedule(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await self.bus.http.call("GET", f"/schedules/{quote(name, safe='')}")
        except NodeRefused as error:
            if error.code != "unknown_schedule":
                raise
            return {}
        return found

    async def _schedule(self, task: DeclaredTask[..., Any], cron: TaskSchedule) -> None:
        name = f"{self.name}/{task.name}"
        headers = self._headers(task, None, None, None)
        known = await self.bus.insist(lambda: self._known_schedule(name))
        every_ms = None if cron.every is None else duration_ms(cron.every)
        same = (known.get("cron"), known.get("every"), known.get("headers")) == (cron.cron, every_ms, headers)
        if not same or known.get("payload") != cron.payload:
            await self.bus.schedule(
                name, self.layout.normal, cron.payload, cron=cron.cron, every=cron.every, headers=headers
            )

    def find(self, name: str | None) -> DeclaredTask[..., Any]:
        """The task of this name; without a name, the only one there is (for foreign publishers)."""
        if name is None and len(self.tasks) == 1:
            return next(iter(self.tasks.values()))
        task = self.tasks.get(name or "")
        if task is None:
            raise UnknownTask(f"queue {self.name!r} has no task {name!r}", remedy="declare it in the worker's module")
        return task


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> Any:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
