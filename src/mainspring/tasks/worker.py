"""A worker: takes tasks, runs them, says what became of them.

So many loops as `concurrency` says take the next task each: the most urgent that may start now. What becomes of a task
is decided by `Outcomes`. Whatever a worker holds is under a lease that it extends; if it dies, others get its tasks.

A task can be interrupted in three ways: by its time limit, by a cancellation, by the end of the worker. A coroutine is
interrupted where it waits. A function in a thread cannot be interrupted; its outcome is decided all the same and what
it returns later is ignored (it can look at `TaskContext.cancelled`).
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from mainspring.client import (
    BadPayload,
    Client,
    ClientError,
    Closed,
    Event,
    EventEnvelope,
    Outgoing,
    Subscription,
    describe,
    encode_event,
)
from mainspring.durations import Duration, seconds
from mainspring.loop import wake
from mainspring.tasks.dead_tasks import REDRIVEN, letter_headers
from mainspring.tasks.errors import UnknownTask
from mainspring.tasks.queue import TaskQueue
from mainspring.tasks.queue_topics import NAME as TASK_NAME
from mainspring.tasks.queue_topics import RETRY, TASK_ID, TIMEOUT
from mainspring.tasks.results import State, encode_record
from mainspring.tasks.task import DeclaredTask, Retry, TaskContext
from mainspring.telemetry import CORRELATION, handling

E = TypeVar("E", bound=Event[Any])


class KeyOrder(Generic[E]):
    """Tasks with a key: one at a time per key, in order, also when one of them must wait for another try.

    The node gives all tasks of a key to one worker, but several at once, as far as the window goes. Here they stand in
    line. When the first of a line failed and waits at the node for its next try, the others keep their place behind it:
    they were delivered, but are not started until it came back and was settled.

    No clock and no connection in here; the worker tells what arrives and what ends.
    """

    def __init__(self) -> None:
        self.ready: deque[E] = deque()
        self._lines: dict[str, list[E]] = {}  # behind the one that runs or is awaited
        self._awaited: dict[str, int] = {}  # key -> offset that comes again
        self._busy: set[str] = set()
        self.blocked: int = 0  # tasks that stand behind an awaited one

    def arrived(self, event: E) -> None:
        """A task was delivered."""
        key = event.key
        if key is None:
            self.ready.append(event)
        elif key not in self._busy or self._awaited.get(key) == event.offset:
            if self._awaited.pop(key, None) is not None:
                self.blocked -= len(self._lines.get(key, ()))
            self._busy.add(key)
            self.ready.append(event)
        else:
            bisect.insort(self._lines.setdefault(key, []), event, key=lambda each: each.offset)
            if key in self._awaited:
                self.blocked += 1

    def ended(self, event: E) -> None:
        """A task was settled; the next of its key may start."""
        key = event.key
        if key is None or key not in self._busy:
            return
        line = self._lines.get(key)
        if line:
            self.ready.append(line.pop(0))
        else:
            self._lines.pop(key, None)
            self._busy.discard(key)

    def retrying(self, event: E) -> None:
        """A task waits at the node for its next try; its key waits with it."""
        key = event.key
        if key is not None and key in self._busy:
            self._awaited[key] = event.offset
            self.blocked += len(self._lines.get(key, ()))

    def drain(self) -> list[E]:
        """Everything that stands in line and was not started; the lines are empty afterwards."""
        found = [event for line in self._lines.values() for event in line]
        self._lines.clear()
        self.blocked = 0
        return found

    def lost(self, running: set[str]) -> None:
        """The connection is gone, and every lease with it; only keys whose task still runs stay busy."""
        self.ready.clear()
        self._lines.clear()
        self._awaited.clear()
        self._busy = {key for key in self._busy if key in running}
        self.blocked = 0

    def __len__(self) -> int:
        return len(self.ready) + sum(len(line) for line in self._lines.values())


logger: logging.Logger = logging.getLogger("mainspring.tasks")

Then = Callable[[ClientError | None], None]


class Release(Protocol):
    """Told when a task is no longer this worker's; `retrying`: it waits at the node for its next try."""

    def __call__(self, event: Event[Any], *, retrying: bool = False) -> None: ...


class _Reported(Outgoing):
    """A result or dead letter on its way."""

    __slots__ = ("_then",)

    def __init__(self, id: str, event: bytes, then: Then) -> None:
        super().__init__(id, event)
        self._then = then

    def placed(self, partition: int, offset: int) -> None:
        self._then(None)

    def failed(self, error: ClientError) -> None:
        self._then(error)


class Outcomes:
    """Reports what became of a task that ran: its result, its next try, or its dead letter; then acknowledges it.

    A result or a dead letter is published like any event, and the task is acknowledged when that is durable. A worker
    that dies in between runs the task again and reports the same once more. Nothing waits meanwhile: the loop that ran
    the task takes the next one.
    """

    def __init__(self, queue: TaskQueue, release: Release) -> None:
        self.failures: int = 0
        self._bus = queue.bus
        self._results = queue.layout.results
        self._pause = queue.lease / 3  # before a task comes again whose outcome could not be stored
        self._release = release

    def failed(self, event: Event[Any], id: str, name: str, policy: Retry, reason: str, *, keep: bool) -> None:
        """Again later, or never again."""
        self.failures += 1
        if event.attempt >= policy.attempts:
            self.bury(event, id, name, reason, keep=keep)
            return
        if keep:
            self._put(id, encode_record("retrying", name, event.attempt, None, reason), lambda _: None)
        self.refuse(event, policy.delay(event.attempt, self._bus.random), reason)

    def tell(
        self, event: Event[Any], id: str, state: State, name: str, *, value: Any = None, error: str = "", keep: bool
    ) -> None:
        """Store how the task ended; then acknowledge it."""
        if not keep:
            self._settle(event)
            return

        def then(failure: ClientError | None) -> None:
            if failure is None:
                self._settle(event)
            else:
                self.refuse(event, self._pause, describe(failure))

        try:
            self._put(id, encode_record(state, name, event.attempt, value, error), then)
        except ClientError as unsaid:
            self.bury(event, id, name, f"its result cannot be stored: {unsaid.message}", keep=True)

    def bury(self, event: Event[Any], id: str, name: str, reason: str, *, keep: bool) -> None:
        """Write the dead letter, then the record, then acknowledge."""
        logger.error("task %s %s is dead: %s", name, id, reason)
        life = event.headers.get(REDRIVEN, "")  # a task that was sent back may die once more
        letter_id = f"dead:{event.topic}:{event.partition}:{event.offset}:{life}".rstrip(":")
        headers = letter_headers(event, id, reason)
        letter = encode_event(letter_id, event.delivered.envelope.payload, event.key, headers)

        def then(failure: ClientError | None) -> None:
            if failure is None:
                self.tell(event, id, "failed", name, error=reason, keep=keep)
            else:
                self.refuse(event, self._pause, reason)

        self._bus.put(f"{event.topic}.DLQ", _Reported(letter_id, letter, then))

    def refuse(self, event: Event[Any], delay: float, reason: str) -> None:
        """Again later. If its lease was lost meanwhile, another copy is here or elsewhere already."""
        self._release(event, retrying=event.refuse(delay, reason))

    def report(self, context: TaskContext, value: Any) -> None:
        """Progress, perhaps from a thread. What JSON cannot say is raised where it was reported."""
        told = self._record(context.id, encode_record("progress", context.name, context.attempt, value))
        self._bus.event_loop.call_soon_threadsafe(self._bus.put, self._results, told)

    def _settle(self, event: Event[Any]) -> None:
        event.accept()
        self._release(event)

    def _put(self, id: str, record: dict[str, Any], then: Then) -> None:
        self._bus.put(self._results, self._record(id, record, then))

    def _record(self, id: str, record: dict[str, Any], then: Then = lambda _: None) -> _Reported:
        record_id = self._bus.new_id()
        return _Reported(record_id, encode_event(record_id, record, id, None), then)


REMEMBERED: Final = 100_000


class Cancellations:
    """Ids of cancelled tasks, from `<queue>.control`; `on_cancel` is called with new ones.

    Every worker reads the topic from its beginning before it takes its first task, so a task that was cancelled while
    no worker ran is never started. Nothing is acknowledged and no group is left behind: each worker reads for itself.
    """

    def __init__(self, bus: Client, topic: str, on_cancel: Callable[[str], None]) -> None:
        self._bus = bus
        self._topic = topic
        self._on_cancel = on_cancel
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    async def load(self) -> asyncio.Task[None]:
        """Everything cancelled so far; then a task that follows."""
        cursor = await self._bus.insist(self._read)
        return self._bus.run(self._follow(cursor), "cancellations")

    async def _read(self) -> str:
        cursor = await self._bus.http.last_cursor(self._topic)
        async for page in self._bus.http.read(self._topic, params={}):
            for envelope in page:
                self._take(envelope)
        return cursor

    async def _follow(self, cursor: str) -> None:
        async for envelope in self._bus.envelopes(self._topic, {"cursor": cursor}):
            self._take(envelope)

    def _take(self, envelope: EventEnvelope) -> None:
        if envelope.key is None:
            return
        self._ids[envelope.key] = None
        if len(self._ids) > REMEMBERED:
            self._ids.popitem(last=False)
        self._on_cancel(envelope.key)


ORDERED: Final = 1_000  # tasks with keys a worker may hold; most stand in line, and one that comes again needs room
UNANSWERED: Final = 10  # deliveries beyond the policy that ended without an answer, before a task counts as deadly


@dataclass(slots=True)
class _Running:
    """A task that runs now: whose loop it is, and why it was interrupted, if it was."""

    loop: asyncio.Task[None]
    context: TaskContext | None = None
    interrupted: str = ""


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

    async def stop(self, timeout: Duration = 30.0) -> None:
        """Take no more tasks; let running ones finish for `timeout`; give back the rest. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        for waiter in self._idle:
            wake(waiter)
        leaving = asyncio.gather(*(self._leave(lane, waiting) for lane, waiting in self._lanes))
        await asyncio.wait([leaving], timeout=seconds(timeout))
        for running in list(self._running.values()):
            running.interrupted = "the worker stopped"
            running.loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # results and dead letters that are on their way
            async with asyncio.timeout(seconds(timeout)):
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

    async def __aexit__(self, *_: object) -> None:
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
            wake(self._idle.popleft())
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
            with event.span.current() if event.span is not None else contextlib.nullcontext():
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
