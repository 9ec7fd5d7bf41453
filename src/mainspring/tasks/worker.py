"""A worker: takes tasks, runs them, says what became of them. In a process of its own or in the node.

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
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from mainspring.client import BadPayload, ClientError, Closed, describe
from mainspring.codec import Encoding
from mainspring.errors import MainspringError
from mainspring.loop import HandlerThreads, blocking_verb, identifies_work, time_limit, wake
from mainspring.retries import Backoff, Reject, Retries
from mainspring.task_topics import EXPIRES, PRIORITIES, RETRY, TASK_ID, TIMEOUT
from mainspring.task_topics import NAME as TASK_NAME
from mainspring.tasks.ports import Delivery, Report, StoredReport, TaskLane, TaskPort
from mainspring.tasks.results import NotStorable, State, encode_record
from mainspring.tasks.task import BadArguments, Task, TaskContext, TaskRegistry, retries_from, running_task
from mainspring.telemetry import CORRELATION, KeptError, error_keeping, failure_header, handling

E = TypeVar("E", bound=Delivery)


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

REDRIVEN: Final = "x-redriven"  # of a task that was sent again: where its letter was
UNANSWERED: Final = 10  # deliveries beyond max_attempts whose lease ended without an answer
LEAST_ENDS: Final = 2  # a process may hold tasks that it has not begun: with one end, nothing is known


UNKNOWN: Final = Retries(Backoff(1_000, 300_000), 5)  # of a task that is not declared here


class _Taken(msgspec.Struct, eq=False):
    """A task that a worker took, until it is no longer the worker's."""

    event: Delivery
    lane: _Lane
    loop: asyncio.Task[None]  # which runs it
    id: str
    name: str
    policy: Retries
    keep: bool = True  # whether what becomes of it is stored
    task: Task[..., Any] | None = None  # None: it is not declared here
    context: TaskContext | None = None  # of the function, once it is called
    interrupted: str = ""  # why, if it was
    began: float | None = None  # on the loop's clock, once the function is called

    def duration_ms(self, now: float) -> int | None:
        return None if self.began is None else round((now - self.began) * 1000)


class Release(Protocol):
    """Told when a task is no longer this worker's; `retrying`: it waits at the node for its next try."""

    def __call__(self, taken: _Taken, *, retrying: bool = False) -> None: ...


class Outcomes:
    """Reports what became of a task that ran: its result, its next try, or its dead letter; then acknowledges it.

    A result or a dead letter is an event, and the task is acknowledged when that is durable: in one commit in the node,
    afterwards in a worker process. A worker that dies in between runs the task again and reports the same once more.
    Nothing waits meanwhile: the loop that ran the task takes the next one.
    """

    def __init__(self, port: TaskPort, release: Release, encoding: Encoding | None) -> None:
        self.failures: int = 0
        self._encoding = encoding
        self.pause: float = 10.0  # seconds before a task comes again whose outcome could not be stored
        self._port = port
        self._release = release
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()  # the loop's

    def failed(self, taken: _Taken, reason: str, *, again: bool = True, error: Exception | None = None) -> None:
        """Again later, or never again."""
        self.failures += 1
        event, policy = taken.event, taken.policy
        if event.span is not None:
            event.span.end(reason, "nack" if error is None else type(error).__qualname__)
        if not again or event.attempt >= (policy.max_attempts or 1):
            self.give_up(taken, reason, error)
            return
        if taken.keep:
            failure = None if error is None else error_keeping.keep(error)
            self._port.put(self._record(taken, "retrying", None, reason, failure))
        self.refuse(taken, policy.backoff.delay_ms(event.attempt, self._port.random) / 1000, reason)

    def ended(self, taken: _Taken, state: State, *, value: Any = None, error: str = "") -> None:
        """Store how the task ended; then acknowledge it."""
        if not taken.keep:
            self._port.accept(taken.event)
            self._release(taken)
            return
        try:
            self._settle(taken, (self._record(taken, state, value, error),))
        except (NotStorable, ClientError) as unsaid:
            self.give_up(taken, f"its result cannot be stored: {unsaid.message}")

    def give_up(self, taken: _Taken, reason: str, error: Exception | None = None) -> None:
        """Write the dead letter and the record; then acknowledge."""
        event = taken.event
        logger.error("task %s %s is dead: %s", taken.name, taken.id, reason)
        life = event.headers.get(REDRIVEN, "")  # a task that was sent back may die once more
        letter_id = f"dead:{event.topic}:{event.partition}:{event.offset}:{life}".rstrip(":")
        failure = None if error is None else error_keeping.keep(error)
        headers = letter_headers(event, taken.id, reason, failure)
        letter = Report(f"{event.topic}.DLQ", letter_id, event.raw_payload, event.key, headers)
        record = (self._record(taken, "failed", None, reason, failure),) if taken.keep else ()
        self._settle(taken, (letter, *record))

    def refuse(self, taken: _Taken, delay: float, reason: str) -> None:
        """Again later. If its lease was lost meanwhile, another copy is here or elsewhere already."""
        self._release(taken, retrying=taken.event.refuse(delay, reason))

    @blocking_verb
    def report(self, results: str, context: TaskContext, value: Any) -> None:
        """Progress, also from a thread. What JSON cannot say is raised where it was reported."""
        record = encode_record("progress", context.name, context.attempt, value, encoding=self._encoding)
        report = Report(results, self._port.new_id(), record, context.id)
        if threading.get_ident() == self._thread:
            self._port.put(report)  # at once: it must come before the result
        else:  # a thread of the program's own
            self._loop.call_soon_threadsafe(self._port.put, report)

    def _record(self, taken: _Taken, state: State, value: Any, error: str, failure: KeptError | None = None) -> Report:
        lasted = taken.duration_ms(self._loop.time())
        record = encode_record(state, taken.name, taken.event.attempt, value, error, self._encoding, failure, lasted)
        return Report(taken.lane.results, self._port.new_id(), record, taken.id)

    def _settle(self, taken: _Taken, reports: tuple[Report, ...]) -> None:
        def then(failure: MainspringError | None) -> None:
            if failure is None:
                self._release(taken)
            else:
                self.refuse(taken, self.pause, describe(failure))

        self._port.settle(taken.event, reports, then)


def letter_headers(event: Delivery, task_id: str, reason: str, failure: KeptError | None) -> dict[str, str]:
    """The headers of a dead letter, in the node's form: the task's own, and its story."""
    return {
        **event.headers,
        TASK_ID: task_id,
        "x-original-topic": event.topic,
        "x-original-partition": str(event.partition),
        "x-original-offset": str(event.offset),
        "x-original-id": event.id,
        "x-original-ts": str(event.ts),
        "x-group": event.group,
        "x-attempts": str(event.attempt),
        "x-reason": reason[:1_000],
        **failure_header(failure, len(event.raw_payload)),
    }


REMEMBERED: Final = 100_000


class Cancellations:
    """Ids of cancelled tasks, from control topics; `on_cancel` is called with new ones.

    Every worker reads the topic from its beginning before it takes its first task, so a task that was cancelled while
    no worker ran is never started. Nothing is acknowledged and no group is left behind: each worker reads for itself.
    """

    def __init__(self, port: TaskPort, on_cancel: Callable[[str], None]) -> None:
        self._port = port
        self._on_cancel = on_cancel
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    async def load(self, topic: str) -> asyncio.Task[None]:
        """Everything cancelled so far; then a task that follows."""
        position = await self._port.position(topic)
        async for report in self._port.stored(topic):
            self._take(report)
        return self._port.run(self._follow(topic, position), "cancellations")

    async def _follow(self, topic: str, position: Any) -> None:
        async for report in self._port.follow(topic, position):
            self._take(report)

    def _take(self, report: StoredReport) -> None:
        if report.key is None:
            return
        self._ids[report.key] = None
        if len(self._ids) > REMEMBERED:
            self._ids.popitem(last=False)
        self._on_cancel(report.key)


class TaskLimit:
    """How many calls of a task may run at a time here, and how many may start per second."""

    def __init__(self, task: Task[..., Any]) -> None:
        self._most = task.concurrency
        self._interval = 1 / task.rate if task.rate else 0.0
        self._running = 0
        self._next = 0.0

    def wait(self, now: float) -> float | None:
        """Seconds until a call may start; 0: now. None: when one of them has ended."""
        if self._most is not None and self._running >= self._most:
            return None
        return max(0.0, self._next - now)

    def begin(self, now: float) -> None:
        self._running += 1
        self._next = max(now, self._next) + self._interval

    def end(self) -> None:
        self._running -= 1


@dataclass(slots=True, eq=False)
class _Lane:
    """The tasks of one topic that were delivered here."""

    source: TaskLane
    level: int
    results: str
    report: Callable[[TaskContext, Any], None]  # the progress of its tasks
    tasks: dict[str | None, Task[..., Any]] = field(default_factory=dict)  # by name; None: of one that does not say
    order: KeyOrder[Delivery] | None = None  # where tasks have keys
    limited: bool = False
    waiting: deque[Delivery] = field(default_factory=deque)  # not started
    listed: bool = False  # whether it is among those that have something to start
    started: set[Delivery] = field(default_factory=set)  # until they are settled
    quiet: asyncio.Event | None = None  # set when nothing is started any more


ORDERED: Final = 1_000  # tasks with keys a worker may hold; most stand in line, and one that comes again needs room


class Worker:
    """Runs tasks of a program until `stop`. Use it with `async with`, or `run` it.

    `concurrency` tasks at a time; `only` some of the tasks, by name. Plain functions run in `threads`.
    """

    def __init__(
        self,
        tasks: TaskRegistry,
        *,
        concurrency: int = 16,
        only: Iterable[str] = (),
        threads: HandlerThreads | None = None,
        port: TaskPort | None = None,
    ) -> None:
        self.tasks: list[Task[..., Any]] = [task for task in tasks if not only or task.name in set(only)]
        for task in self.tasks:
            task.begin()
        self.done: int = 0
        self._port = port or tasks.port
        self._may_begin = self._port.may_begin
        self._threads = threads or HandlerThreads(concurrency)
        self._concurrency = concurrency
        self._prefetch = 2 * concurrency
        self._ordered_window = max(ORDERED, self._prefetch)
        self._lease = 30.0
        self._lanes: dict[str, _Lane] = {}
        self._levels: list[deque[_Lane]] = [deque() for _ in PRIORITIES]  # lanes that have something to start
        self._limits = {
            each.name: TaskLimit(each) for each in self.tasks if each.concurrency is not None or each.rate is not None
        }
        self._held: dict[Delivery, None] = {}
        self._running: dict[str, _Taken] = {}  # by id
        self._idle: deque[asyncio.Future[None]] = deque()
        self._suspects: deque[tuple[_Lane, Delivery]] = deque()  # several processes ended with them: each runs alone
        self._alone = False  # whether one of them runs
        self._loops: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._keeping: asyncio.TimerHandle | None = None
        self._stopping = False
        self._stopped = False
        self._leaving: asyncio.Future[Any] | None = None
        self._time = asyncio.get_running_loop().time
        self._outcomes = Outcomes(self._port, self._release, tasks.encoding)
        self._cancelled = Cancellations(self._port, self._cancel)

    @property
    def failed(self) -> int:
        """How often a task failed here."""
        return self._outcomes.failures

    # -- life

    async def start(self) -> None:
        """Take tasks from now on."""
        topics = {name: wanted for task in self.tasks for name, wanted in task.topics.settings().items()}
        self._lease = await self._port.prepare(topics) / 1000
        self._outcomes.pause = self._lease / 3
        for control in dict.fromkeys(task.topics.control for task in self.tasks):
            self._others.append(await self._cancelled.load(control))
        for task in self.tasks:
            for topic, priority in task.topics.lanes().items():
                lane = self._lanes.get(topic) or self._open(topic, task, PRIORITIES.index(priority))
                lane.tasks[task.name] = task
                lane.tasks[None] = task
                lane.limited = lane.limited or task.name in self._limits
        for lane in self._lanes.values():
            if len(lane.tasks) > 2:
                del lane.tasks[None]  # several tasks: each call says of which
        await asyncio.gather(*(lane.source.confirmed() for lane in self._lanes.values()))
        self._loops = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]

    def _open(self, topic: str, task: Task[..., Any], level: int) -> _Lane:
        ordered = topic == task.topics.ordered
        window = self._ordered_window if ordered else self._prefetch
        if topic == task.topic and task.concurrency is not None:
            window = min(window, 2 * task.concurrency)
        source, results = self._port.subscribe(topic, task.group, window, sticky=ordered), task.topics.results
        lane = self._lanes[topic] = _Lane(source, level, results, partial(self._outcomes.report, results))
        if ordered:
            lane.order = KeyOrder()
            lane.waiting = lane.order.ready
        source.on_arrival = self._arrived
        source.on_lost = self._lost
        return lane

    async def finish(self) -> None:
        """Take no more tasks, give back those that were not started, and wait for those that run."""
        if self._leaving is None:
            self._stopping = True
            for waiter in self._idle:
                wake(waiter)
            self._leaving = asyncio.gather(*(self._leave(lane) for lane in self._lanes.values()))
        await asyncio.wait([self._leaving])

    async def stop(self, timeout: float = 30.0) -> None:
        """`finish`, for at most `timeout` seconds; then interrupt what runs and give it back. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.finish()
        for taken in list(self._running.values()):
            taken.interrupted = "the worker stopped"
            taken.loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # results and dead letters that are on their way
            async with asyncio.timeout(timeout):
                await self._port.flush()
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)
        if self._keeping is not None:
            self._keeping.cancel()
        for task in self._others:
            task.cancel()
        await asyncio.gather(*(lane.source.close() for lane in self._lanes.values()))

    async def _leave(self, lane: _Lane) -> None:
        """Give back what was not started, wait for what was, then leave.

        What is given back must not come straight back, which would count as one more attempt: so first the node is told
        that there is no room here, and where nothing runs, leaving gives it back.
        """
        if lane.started:
            await lane.source.resize(1)
            suspects = self._take_suspects(lane)
            for event in [*lane.waiting, *suspects, *(() if lane.order is None else lane.order.drain())]:
                event.refuse(0.0, "the worker stopped")
                self._held.pop(event, None)
            lane.waiting.clear()
            lane.quiet = asyncio.Event()
            if lane.started:
                await lane.quiet.wait()
        await lane.source.close()

    async def run(self) -> None:
        """Work until `stop`. Raises what ends it otherwise: a node that does not let this client in, for instance."""
        async with self:
            await self.wait()

    async def wait(self) -> None:
        """Until it was stopped. Raises what ends it otherwise: the node refuses a subscription, for instance."""
        working = asyncio.gather(*self._loops)
        lanes = [asyncio.ensure_future(lane.source.ended()) for lane in self._lanes.values()]
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

    def _arrived(self, source: TaskLane) -> None:
        """Everything that was delivered comes here at once, so that leases of waiting tasks are kept, too."""
        lane = self._lanes[source.topic]
        order = lane.order
        while (event := source.get_nowait()) is not None:
            self._held[event] = None
            if order is not None:
                order.arrived(event)
            elif event.ended >= LEAST_ENDS:
                self._suspects.append((lane, event))
            else:
                lane.waiting.append(event)
        if self._suspects and self._idle:
            wake(self._idle.popleft())
        if self._keeping is None and self._held:
            self._keeping = asyncio.get_running_loop().call_later(self._lease / 3, self._keep_leases)
        if order is not None:
            self._make_room(lane, order)
        self._wake_loops(lane)

    def _lost(self, source: TaskLane) -> None:
        """The connection is gone: what waits here will be delivered again. What runs, runs on."""
        lane = self._lanes[source.topic]
        for event in [each for each in self._held if each.topic == source.topic]:
            del self._held[event]
        lane.waiting.clear()
        self._take_suspects(lane)
        if lane.order is not None:
            lane.order.lost({taken.event.key for taken in self._running.values() if taken.event.key})

    def _wake_loops(self, lane: _Lane) -> None:
        if lane.waiting and not lane.listed:
            lane.listed = True
            self._levels[lane.level].append(lane)
        ready = len(lane.waiting)
        while self._idle and ready > 0:
            wake(self._idle.popleft())
            ready -= 1

    def _next(self) -> tuple[_Lane, Delivery] | None:
        """The most urgent task that may start now; lanes that are as urgent take turns. Suspects come last."""
        if self._alone:
            return None
        for level in self._levels:
            while level:
                lane = level.popleft()
                lane.listed = False
                event = self._take_limited(lane) if lane.limited else lane.waiting.popleft() if lane.waiting else None
                if event is not None:
                    if lane.waiting:
                        lane.listed = True
                        level.append(lane)
                    return lane, event
        if self._suspects and not self._running:
            self._alone = True
            return self._suspects.popleft()
        return None

    def _take_suspects(self, lane: _Lane) -> list[Delivery]:
        """Those of this lane, which are not to be started any more."""
        taken = [event for of, event in self._suspects if of is lane]
        self._suspects = deque(each for each in self._suspects if each[0] is not lane)
        return taken

    def _end_alone(self) -> None:
        """A suspect is done: the others may start again."""
        self._alone = False
        for lane in self._lanes.values():
            self._wake_loops(lane)

    def _take_limited(self, lane: _Lane) -> Delivery | None:
        """The first whose task may start now. When it is only a matter of time, the lane comes again by itself."""
        now, soonest = self._time(), float("inf")
        for place, event in enumerate(lane.waiting):
            task = lane.tasks.get(event.headers.get(TASK_NAME))
            limit = None if task is None else self._limits.get(task.name)
            pause = 0.0 if limit is None else limit.wait(now)
            if pause == 0.0:
                del lane.waiting[place]
                return event
            soonest = min(soonest, float("inf") if pause is None else pause)
        if soonest != float("inf"):
            asyncio.get_running_loop().call_later(soonest, self._wake_loops, lane)
        return None

    async def _work(self) -> None:
        myself = asyncio.current_task()
        assert myself is not None
        while not self._stopping:
            found = self._next()
            if found is None:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                continue
            taken = self._begin(*found, myself)
            if taken is None:
                if self._alone:
                    self._end_alone()
                continue
            try:
                await (self._run_limited(taken) if taken.lane.limited else self._run_task(taken))
            except asyncio.CancelledError:
                if not taken.interrupted:
                    raise
                myself.uncancel()
            if self._alone:
                self._end_alone()

    # -- one task

    def _begin(self, lane: _Lane, event: Delivery, loop: asyncio.Task[None]) -> _Taken | None:
        """A task to be run now. None: it is not to be run, and what becomes of it is decided."""
        lane.started.add(event)
        headers = event.headers
        id, name = headers.get(TASK_ID) or event.id, headers.get(TASK_NAME)
        task = lane.tasks.get(name) or lane.tasks.get(None)
        if task is None or (name is not None and name != task.name):
            taken = _Taken(event, lane, loop, id, name or "", retries_from(headers.get(RETRY), UNKNOWN))
            self._outcomes.failed(taken, f"UnknownTask: no task {name!r} is declared here")
            return None
        policy = retries_from(headers.get(RETRY), task.retries)
        taken = _Taken(event, lane, loop, id, task.name, policy, task.keep_result, task)
        if id in self._cancelled:
            self._outcomes.ended(taken, "cancelled")
        elif EXPIRES in headers and event.attempt == 1 and self._port.wall_ms() >= _number(headers[EXPIRES], 0):
            self._outcomes.ended(taken, "expired")
        elif id in self._running:  # an older copy whose lease was lost still runs here
            self._outcomes.refuse(taken, self._lease / 3, "still running")
        elif event.ended >= max(LEAST_ENDS, policy.max_attempts or 1):
            self._outcomes.give_up(taken, f"the process ended {event.ended} times while this task ran")
        elif event.attempt > (policy.max_attempts or 1) + UNANSWERED:
            self._outcomes.give_up(taken, f"delivered {event.attempt} times without an answer")
        else:
            return taken
        return None

    async def _run_limited(self, taken: _Taken) -> None:
        """Run a task that may have a limit, and then let those begin that waited for it."""
        limit = self._limits.get(taken.name)
        if limit is not None:
            limit.begin(self._time())
        try:
            await self._run_task(taken)
        finally:
            if limit is not None:
                limit.end()
                for each in self._lanes.values():
                    if each.limited:
                        self._wake_loops(each)

    @identifies_work(lambda known: ("task", known["taken"].name))
    async def _run_task(self, taken: _Taken) -> None:
        event, task, headers = taken.event, taken.task, taken.event.headers
        assert task is not None
        limit_s = _number(headers[TIMEOUT], task.timeout_s) if TIMEOUT in headers else task.timeout_s
        limit: asyncio.Timeout | None = None
        context = taken.context = TaskContext(
            taken.id, task.name, event.attempt, event.key, headers, event.ts, taken.lane.report
        )
        self._running[taken.id] = taken
        running_task.set(context)
        handling.set((event.id, headers.get(CORRELATION)))
        try:
            waiting = None if self._may_begin is None else self._may_begin(event)
            if waiting is not None and not await waiting:
                self._release(taken)
                return
            taken.began = self._time()
            if not limit_s and event.span is None:
                value = await task.call(event.raw_payload, context, self._threads)
            else:
                with contextlib.nullcontext() if event.span is None else event.span.current():
                    async with contextlib.nullcontext() if not limit_s else time_limit(limit_s) as limit:
                        value = await task.call(event.raw_payload, context, self._threads)
        except asyncio.CancelledError:
            if not self._cancelled_itself(taken):
                raise
        except Exception as error:
            self._failed(taken, error, f"took longer than {limit_s:g} s" if limit and limit.expired() else "")
        else:
            self.done += 1
            self._outcomes.ended(taken, "done", value=value)
        finally:
            self._running.pop(taken.id, None)

    def _cancelled_itself(self, taken: _Taken) -> bool:
        """After CancelledError: whether the function raised it. Otherwise the loop that ran it was interrupted."""
        if taken.context is not None:
            taken.context.cancelled = True
        if taken.interrupted == "cancelled":
            self._outcomes.ended(taken, "cancelled")
        elif not taken.interrupted and not taken.loop.cancelling():
            self._outcomes.failed(taken, "CancelledError")
            return True
        return False  # what the end of the worker interrupted is given back when it leaves the lane

    def _failed(self, taken: _Taken, error: Exception, too_long: str) -> None:
        context, task, event = taken.context, taken.task, taken.event
        assert context is not None
        assert task is not None
        context.cancelled = True
        if isinstance(error, BadArguments | BadPayload):
            self._outcomes.give_up(taken, error.message, error)
        elif too_long:
            self._outcomes.failed(taken, too_long, error=error)
        elif isinstance(error, TypeError) and (wrong := task.parameters.fit(event.raw_payload, context)):
            self._outcomes.give_up(taken, f"the arguments do not fit: {wrong}", error)
        else:
            logger.warning("task %s %s failed", task.name, taken.id, exc_info=error)
            reason = error.message if isinstance(error, Reject) else describe(error)
            self._outcomes.failed(taken, reason, again=taken.policy.allow_another(error), error=error)

    # -- when it is no longer ours

    def _release(self, taken: _Taken, *, retrying: bool = False) -> None:
        """The task is no longer ours; with a key, the next of its line may start, or waits for this one's return."""
        event, lane = taken.event, taken.lane
        self._held.pop(event, None)
        lane.started.discard(event)
        if lane.quiet is not None and not lane.started:
            lane.quiet.set()
        if lane.order is None:
            return
        if retrying and not self._stopping:
            lane.order.retrying(event)
        else:
            lane.order.ended(event)
        self._make_room(lane, lane.order)
        self._wake_loops(lane)

    def _make_room(self, lane: _Lane, order: KeyOrder[Delivery]) -> None:
        """What was delivered and must wait fills the window; the task it waits for needs a place in it."""
        if not self._stopping:
            lane.source.resize(self._ordered_window + order.blocked)

    def _cancel(self, id: str) -> None:
        taken = self._running.get(id)
        if taken is not None and not taken.interrupted:
            taken.interrupted = "cancelled"
            if taken.context is not None:
                taken.context.cancelled = True
            taken.loop.cancel()

    def _keep_leases(self) -> None:
        """Extend the leases of everything that is held, as long as something is."""
        self._keeping = None
        if self._held:
            self._others = [task for task in self._others if not task.done()]
            self._others.append(self._port.run(self._extend(list(self._held)), "leases of tasks"))
            self._keeping = asyncio.get_running_loop().call_later(self._lease / 3, self._keep_leases)

    async def _extend(self, held: list[Delivery]) -> None:
        for event in held:
            await event.extend(self._lease)


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        return default
