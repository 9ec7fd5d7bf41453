"""A worker: takes tasks, runs them, says what became of them.

So many loops as `concurrency` says take the next task each: the most urgent that may start now. What becomes of a task
is decided in `outcomes.py`. Whatever a worker holds is under a lease that it extends; if it dies, others get its tasks.

A task can be interrupted in three ways: by its time limit, by a cancellation, by the end of the worker. A coroutine is
interrupted where it waits. A function in a thread cannot be interrupted; its outcome is decided all the same and what
it returns later is ignored (it can look at `TaskContext.cancelled`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Final

import msgspec

from mainspring.client.consumer import describe
from mainspring.client.errors import BadPayload, Closed
from mainspring.client.event import Event
from mainspring.client.subscription import Subscription
from mainspring.tasks.cancellation import Cancellations
from mainspring.tasks.context import TaskContext
from mainspring.tasks.errors import UnknownTask
from mainspring.tasks.layout import NAME as TASK_NAME
from mainspring.tasks.layout import RETRY, TASK_ID, TIMEOUT
from mainspring.tasks.order import KeyOrder
from mainspring.tasks.outcomes import Outcomes
from mainspring.tasks.queue import TaskQueue
from mainspring.tasks.retry import Retry
from mainspring.tasks.task import DeclaredTask
from mainspring.telemetry import CORRELATION, handling

logger: logging.Logger = logging.getLogger("mainspring.tasks")

ORDERED: Final = 1_000  # tasks with keys a worker may hold; most stand in line, and one that comes again needs room
UNANSWERED: Final = 10  # deliveries beyond the policy that ended without an answer, before a task counts as deadly


class _Running:
    """A task that runs now: whose loop it is, and why it was interrupted, if it was."""

    __slots__ = ("context", "interrupted", "loop")

    def __init__(self, loop: asyncio.Task[None]) -> None:
        self.loop = loop
        self.context: TaskContext | None = None
        self.interrupted = ""


class Worker:
    """Runs tasks of one queue until `stop`. Use it with `async with`, or `run` it."""

    def __init__(self, queue: TaskQueue, *, concurrency: int = 16, prefetch: int | None = None) -> None:
        self.queue = queue
        self.done: int = 0
        self._bus = queue.bus
        self._concurrency = concurrency
        self._prefetch = prefetch or 2 * concurrency
        self._ordered_window = max(ORDERED, self._prefetch)
        self._lanes: list[tuple[Subscription[Any], deque[Event[Any]]]] = []
        self._order: KeyOrder[Event[Any]] = KeyOrder()
        self._ordered: Subscription[Any] | None = None
        self._held: dict[Event[Any], None] = {}
        self._started: dict[str, set[Event[Any]]] = {}  # by topic, until they are settled
        self._quiet: dict[str, asyncio.Event] = {}  # by topic: nothing is started any more
        self._running: dict[str, _Running] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._loops: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._stopping = False
        self._outcomes = Outcomes(queue, self._release)
        self._cancelled = Cancellations(self._bus, queue.layout.control, self._cancel)

    @property
    def failed(self) -> int:
        """How often a task failed here."""
        return self._outcomes.failures

    # -- life

    async def start(self) -> None:
        """Take tasks from now on."""
        await self.queue.ready()
        self._others.append(await self._cancelled.load())
        await self.queue.schedule_repeated()
        layout = self.queue.layout
        for topic in layout.lanes:
            ordered = topic == layout.ordered
            lane = self._bus.subscribe(
                topic,
                group=self.queue.group,
                from_="beginning",
                max_inflight=self._ordered_window if ordered else self._prefetch,
                sticky=ordered,
            )
            waiting = self._order.ready if ordered else deque[Event[Any]]()
            if ordered:
                self._ordered = lane
            self._lanes.append((lane, waiting))
            lane.on_arrival = self._arrived
            lane.on_lost = self._lost
        await asyncio.gather(*(lane.confirmed() for lane, _ in self._lanes))
        self._loops = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        self._others.append(self._bus.run(self._keep_leases(), "leases of tasks"))

    async def stop(self, timeout: float = 30.0) -> None:
        """Take no more tasks; let running ones finish for `timeout` seconds; give back the rest. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        for waiter in self._idle:
            _wake(waiter)
        leaving = asyncio.gather(*(self._leave(lane, waiting) for lane, waiting in self._lanes))
        await asyncio.wait([leaving], timeout=timeout)
        for running in list(self._running.values()):
            running.interrupted = "the worker stopped"
            running.loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # results and dead letters that are on their way
            async with asyncio.timeout(timeout):
                await self._bus.flush()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        for task in self._others:
            task.cancel()
        await asyncio.gather(*(lane.close() for lane, _ in self._lanes))

    async def _leave(self, lane: Subscription[Any], waiting: deque[Event[Any]]) -> None:
        """Give back what was not started, wait for what was, then leave.

        What is given back must not come straight back, which would count as one more attempt: so first the node is told
        that there is no room here, and where nothing runs, leaving gives it back.
        """
        started = self._started.setdefault(lane.topic, set())
        if started:
            await lane.resize(1)
            for event in [*waiting, *(self._order.drain() if lane is self._ordered else ())]:
                event.refuse(0.0, "the worker stopped")
                self._held.pop(event, None)
            waiting.clear()
            quiet = self._quiet[lane.topic] = asyncio.Event()
            if started:
                await quiet.wait()
        await lane.close()

    async def run(self) -> None:
        """Work until `stop`. Raises what ends it otherwise: a node that does not let this client in, for instance."""
        async with self:
            await self.wait()

    async def wait(self) -> None:
        """Until it was stopped. Raises what ends it otherwise: the node refuses a subscription, for instance."""
        working = asyncio.gather(*self._loops)
        lanes = [asyncio.ensure_future(lane.ended()) for lane, _ in self._lanes]
        try:
            watched: list[asyncio.Future[Any]] = [working, *lanes]
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for lane in lanes:
                if lane.done() and not isinstance(lane.result(), Closed):
                    raise lane.result()
            await working
        finally:
            for lane in lanes:
                lane.cancel()

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- taking tasks

    def _arrived(self, lane: Subscription[Any]) -> None:
        """Everything that was delivered comes here at once, so that leases of waiting tasks are kept, too."""
        waiting = next(found for one, found in self._lanes if one is lane)
        while (event := lane.get_nowait()) is not None:
            self._held[event] = None
            if lane is self._ordered:
                self._order.arrived(event)
            else:
                waiting.append(event)
        if lane is self._ordered:
            self._make_room()
        self._wake_loops()

    def _lost(self, lane: Subscription[Any]) -> None:
        """The connection is gone: what waits here will be delivered again. What runs, runs on."""
        for event in [each for each in self._held if each.topic == lane.topic]:
            del self._held[event]
        for one, waiting in self._lanes:
            if one is lane:
                waiting.clear()
        if lane is self._ordered:
            self._order.lost({one.context.key for one in self._running.values() if one.context and one.context.key})

    def _wake_loops(self) -> None:
        ready = sum(len(waiting) for _, waiting in self._lanes)
        while self._idle and ready > 0:
            _wake(self._idle.popleft())
            ready -= 1

    def _next(self) -> Event[Any] | None:
        for _, waiting in self._lanes:
            if waiting:
                return waiting.popleft()
        return None

    async def _work(self) -> None:
        myself = asyncio.current_task()
        assert myself is not None
        while not self._stopping:
            event = self._next()
            if event is None:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                continue
            running = _Running(myself)
            self._started.setdefault(event.topic, set()).add(event)
            try:
                await self._handle(event, running)
            except asyncio.CancelledError:
                if not running.interrupted:
                    raise
                myself.uncancel()

    # -- one task

    async def _handle(self, event: Event[Any], running: _Running) -> None:
        id = event.headers.get(TASK_ID) or event.id
        name = event.headers.get(TASK_NAME)
        policy = Retry.from_header(event.headers.get(RETRY), self.queue.retry)
        try:
            task = self.queue.find(name)
        except UnknownTask as error:
            self._outcomes.failed(event, id, name or "", policy, describe(error), keep=True)
            return
        if id in self._cancelled:
            self._outcomes.tell(event, id, "cancelled", task.name, keep=task.keep_result)
            return
        if event.attempt > policy.attempts + UNANSWERED:
            reason = f"delivered {event.attempt} times without an answer: its workers died"
            self._outcomes.bury(event, id, task.name, reason, keep=task.keep_result)
            return
        if id in self._running:  # an older copy whose lease was lost still runs here
            self._outcomes.refuse(event, self.queue.lease / 3, "still running")
            return
        await self._run_task(event, id, task, policy, running)

    async def _run_task(
        self, event: Event[Any], id: str, task: DeclaredTask[..., Any], policy: Retry, running: _Running
    ) -> None:
        context = running.context = TaskContext(
            id=id,
            name=task.name,
            attempt=event.attempt,
            key=event.key,
            headers=event.headers,
            enqueued_ms=event.ts,
            report=self._outcomes.report,
        )
        self._running[id] = running
        handling.set((event.id, event.headers.get(CORRELATION)))
        limit_s = _seconds(event.headers.get(TIMEOUT)) or task.timeout
        limit = asyncio.timeout(limit_s) if limit_s else None
        try:
            with event.span.current() if event.span is not None else nullcontext():
                if limit is None:
                    value = await task.call(event.delivered.envelope.payload, context)
                else:
                    async with limit:
                        value = await task.call(event.delivered.envelope.payload, context)
        except asyncio.CancelledError:
            context.cancelled = True
            if running.interrupted == "cancelled":
                self._outcomes.tell(event, id, "cancelled", task.name, keep=task.keep_result)
            elif running.interrupted:
                pass  # leaving the lane gives it back
            elif asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            else:  # the task cancelled itself
                self._outcomes.failed(event, id, task.name, policy, "CancelledError", keep=task.keep_result)
                return
            raise
        except (msgspec.ValidationError, BadPayload) as error:
            self._outcomes.bury(event, id, task.name, f"the payload does not fit: {error}", keep=task.keep_result)
        except Exception as error:
            context.cancelled = True
            timed_out = limit is not None and limit.expired()
            reason = f"took longer than {limit_s:g} s" if timed_out else describe(error)
            if not timed_out:
                logger.warning("task %s %s failed", task.name, id, exc_info=error)
            self._outcomes.failed(event, id, task.name, policy, reason, keep=task.keep_result)
        else:
            self.done += 1
            self._outcomes.tell(event, id, "done", task.name, value=value, keep=task.keep_result)
        finally:
            self._running.pop(id, None)

    # -- when it is no longer ours

    def _release(self, event: Event[Any], *, retrying: bool = False) -> None:
        """The task is no longer ours; with a key, the next of its line may start, or waits for this one's return."""
        self._held.pop(event, None)
        started = self._started[event.topic]
        started.discard(event)
        if not started and event.topic in self._quiet:
            self._quiet[event.topic].set()
        if self._ordered is None or event.topic != self._ordered.topic:
            return
        if retrying and not self._stopping:
            self._order.retrying(event)
        else:
            self._order.ended(event)
        self._make_room()
        self._wake_loops()

    def _make_room(self) -> None:
        """What was delivered and must wait fills the window; the task it waits for needs a place in it."""
        if self._ordered is not None and not self._stopping:
            self._ordered.resize(self._ordered_window + self._order.blocked)

    def _cancel(self, id: str) -> None:
        running = self._running.get(id)
        if running is not None and not running.interrupted:
            running.interrupted = "cancelled"
            if running.context is not None:
                running.context.cancelled = True
            running.loop.cancel()

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self.queue.lease / 3)
            for event in list(self._held):
                await event.extend(self.queue.lease)


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
