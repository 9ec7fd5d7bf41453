"""The program's tasks in the node itself: `NodePort` is to a worker and a handle here what a client is elsewhere.

There is no socket in between: a lane is a member of its group that is handed events, and what becomes of a task is
stored in one commit with its acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mainspring.bus import Bus, NewEvent
from mainspring.bus.groups import Gate, Group, Member, MemberOrigin, Position
from mainspring.bus.topics import ReadyEvent, topic_from
from mainspring.errors import MainspringError
from mainspring.kernel import Kernel
from mainspring.log import Batch, Log, Receipt, StoredEvent, add_prepared
from mainspring.loop import BackgroundTasks, resolve, result_elsewhere
from mainspring.message import encode_data
from mainspring.node.causation import Envelope, begin_delivery, decode_envelope, note_event
from mainspring.node.settlement import Settlement, Together
from mainspring.runs import Runtime
from mainspring.task_topics import LEASE_MS, NewCall
from mainspring.tasks import Report, Then
from mainspring.telemetry import tracing

logger: logging.Logger = logging.getLogger("mainspring.tasks")

PORTION: Final = 500  # calls of `publish_many` in one commit
PAGE: Final = 1_000


class LeasedTask:
    """A task under lease in the node."""

    __slots__ = ("_ready", "attempt", "envelope", "lane", "position", "span")

    def __init__(self, lane: NodeLane, position: Position, ready: ReadyEvent, attempt: int) -> None:
        self.lane: NodeLane = lane
        self.position: Position = position
        self.attempt: int = attempt
        self.span: Any = None
        self._ready = ready
        self.envelope: Envelope = decode_envelope(ready.envelope)

    @property
    def id(self) -> str:
        return self.envelope.id

    @property
    def topic(self) -> str:
        return self.lane.topic

    @property
    def group(self) -> str:
        return self.lane.group_name

    @property
    def partition(self) -> int:
        return self.position.partition

    @property
    def offset(self) -> int:
        return self._ready.offset

    @property
    def ts(self) -> int:
        return self._ready.ts

    @property
    def key(self) -> str | None:
        return self._ready.key

    @property
    def headers(self) -> Mapping[str, str]:
        return self.envelope.headers or {}

    @property
    def raw_payload(self) -> bytes:
        return bytes(self.envelope.payload)

    @property
    def ended(self) -> int:
        return self.position.ends.get(self.offset, (0, 0))[0]

    @property
    def is_held(self) -> bool:
        return self.offset in self.lane.held.get(self.partition, {})

    def refuse(self, delay: float, reason: str) -> bool:
        held = self.is_held
        self.end_span(reason)
        if held:
            self.lane.settlement.nack(self.position, self.offset, reason, round(delay * 1000))
        return held

    async def extend(self, seconds: float) -> bool:
        if self.is_held:
            deadline = self.lane.port.bus.clock.now_ms() + round(seconds * 1000)
            self.lane.group.extend(self.lane, self.partition, self.offset, deadline)
        return self.is_held

    def end_span(self, error: str = "") -> None:
        if self.span is not None:
            self.span.end(error or None, "nack")


class NodeLane(Member):
    """A member of a group that collects what it is given for a worker."""

    __slots__ = (
        "_arrived",
        "_joined",
        "_over",
        "_told",
        "group",
        "group_name",
        "on_arrival",
        "on_lost",
        "port",
        "settlement",
        "topic",
    )

    group: Group
    settlement: Settlement

    def __init__(self, port: NodePort, topic: str, group: str, window: int, *, sticky: bool) -> None:
        super().__init__(topic, group, Gate(), lambda _frame: None)
        self.topic: str = topic
        self.group_name: str = group
        self.port: NodePort = port
        self.window: int = window
        self.ack_each: bool = True
        self.sticky: bool = sticky
        self.on_arrival: Callable[[Any], None] | None = None
        self.on_lost: Callable[[Any], None] | None = None
        self._arrived: deque[LeasedTask] = deque()
        self._told = False
        self._joined = False
        self._over: asyncio.Future[MainspringError] = asyncio.get_running_loop().create_future()

    def deliver(self, position: Position, event: ReadyEvent, attempt: int) -> None:
        task = LeasedTask(self, position, event, attempt)
        self.port.began(task)
        self._arrived.append(task)
        if not self._told:  # the worker may change the window, and this is in the middle of a delivery
            self._told = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._told = False
        if self.on_arrival is not None:
            self.on_arrival(self)

    def get_nowait(self) -> LeasedTask | None:
        return self._arrived.popleft() if self._arrived else None

    def resize(self, max_inflight: int) -> asyncio.Future[None]:
        if max_inflight != self.window and not self.gone:
            self.window = max_inflight
            self.group.changed_member(self)
            self.port.bus.delivery.wake(self.group)
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known.set_result(None)
        return known

    async def confirmed(self) -> None:
        """Join the group; where it starts is durable when this returns."""
        bus = self.port.bus
        topic = bus.topics.open(self.topic)
        self.group, unstored = await bus.groups.begin(topic, self.group_name, None)
        if unstored:
            await bus.groups.store(self.group)
        self.settlement = Settlement(bus, self.port.log, self.port.runtime, self.group, self)
        self._joined = True
        self.origin = MemberOrigin(since=bus.clock.wall_ms(), program=True)
        self.group.join(self)
        bus.delivery.wake(self.group)

    async def ended(self) -> MainspringError:
        return await asyncio.shield(self._over)

    async def close(self) -> None:
        if not self.gone and not self._over.done():
            if self._joined:
                self.group.leave(self, self.port.bus.clock.now_ms())
            resolve(self._over, MainspringError("the node stops"))


class NodePort:
    """Tasks in the node itself."""

    def __init__(
        self,
        *,
        bus: Bus,
        log: Log,
        kernel: Kernel,
        runtime: Runtime,
        publish: Callable[..., Coroutine[Any, Any, Any]],
        new_id: Callable[[], str],
        random: Callable[[], float],
    ) -> None:
        self.bus = bus
        self.log = log
        self.runtime = runtime
        self.new_id: Callable[[], str] = new_id
        self.random: Callable[[], float] = random
        self.event_loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.caller: Callable[..., Any] | None = None  # how a simulation carries out the verbs of a test
        self.may_begin: Callable[[LeasedTask], Awaitable[bool] | None] | None = self._may_begin
        self._kernel = kernel
        self._publish = publish
        self._tasks = BackgroundTasks(logger, "tasks of the node")
        self._settling: set[asyncio.Task[None]] = set()

    def wall_ms(self) -> int:
        return self.bus.clock.wall_ms()

    def call(self, work: Coroutine[Any, Any, Any], *, for_ever: bool = False) -> Any:
        if self.caller is None:
            return result_elsewhere(work, self.event_loop)
        return self.caller(work, for_ever=for_ever)

    async def prepare(self, topics: Mapping[str, Mapping[str, Any]]) -> int:
        lease = LEASE_MS
        for name, wanted in topics.items():
            state = self.bus.topics.open(name)
            said = msgspec.to_builtins(state.config)
            config = topic_from({**wanted, **{key: value for key, value in said.items() if value}})
            if not state.stored or config != state.config:
                await self.bus.put_topic(config)
            lease = min(lease, config.ack_timeout_ms or LEASE_MS)
        return lease

    async def publish(self, topic: str, call: NewCall) -> None:
        await self._publish(
            topic,
            call.payload,
            key=call.key,
            headers=call.headers,
            id=call.id,
            delay_ms=call.delay_ms,
            not_before=call.not_before,
        )

    async def publish_many(self, topic: str, calls: Iterable[NewCall]) -> None:
        portion: list[NewEvent] = []
        for call in calls:
            payload = bytes(encode_data(call.payload))
            portion.append(NewEvent(payload, call.key, call.headers, call.id, call.delay_ms, call.not_before))
            if len(portion) == PORTION:
                await self.bus.publish_batch(topic, portion)
                portion = []
        await self.bus.publish_batch(topic, portion)

    def subscribe(self, topic: str, group: str, window: int, *, sticky: bool) -> NodeLane:
        return NodeLane(self, topic, group, window, sticky=sticky)

    def began(self, task: LeasedTask) -> None:
        """A task was delivered: note what caused it, and begin its span."""
        note_event(self._kernel, task.topic, task.id, task.ts, task.headers)
        if tracing.recorder is not None:
            place = (task.topic, task.group, task.partition, task.offset)
            task.span = begin_delivery(tracing.recorder, task.envelope, *place, task.attempt)

    def _may_begin(self, task: LeasedTask) -> Awaitable[bool] | None:
        """After an unclean end, and when it comes again: a task that ends the process must be counted.

        On a shared log it may be another node's by now.
        """
        may_end = task.attempt > 1 or task.offset < task.position.careful_until or self.log.shared
        if not may_end and not task.position.is_careful():
            return None
        return task.lane.settlement.may_begin(task.position, task.offset)

    def accept(self, event: LeasedTask) -> None:
        event.end_span()
        event.lane.settlement.ack(event.position, event.offset)

    def settle(self, event: LeasedTask, reports: Sequence[Report], then: Then) -> None:
        settlement = event.lane.settlement
        event.end_span()
        together = Together(events=[self._prepared(each) for each in reports])

        async def store() -> None:
            try:
                await settlement.ack_with(event.position, event.offset, together)
            except MainspringError as error:
                then(error)
            else:
                then(None)

        task = asyncio.get_running_loop().create_task(store())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _prepared(self, report: Report) -> Any:
        return self.bus.prepare(report.topic, report.payload, key=report.key, headers=report.headers, id=report.id)

    def put(self, report: Report) -> None:
        batch = Batch()
        show = add_prepared(batch, (self._prepared(report),))

        def done(result: Receipt | Exception) -> None:
            if isinstance(result, Receipt):
                show(result)

        self.log.submit(batch, done)

    async def flush(self) -> None:
        if self._settling:
            await asyncio.wait(set(self._settling))

    async def position(self, topic: str) -> dict[str, int]:
        await self.bus.ensure_topic(topic)
        return {str(each.partition): each.tail for each in await self.bus.groups.offsets(topic)}

    async def stored(self, topic: str, after: Any = None) -> AsyncIterator[StoredEvent]:
        begin = {} if after is None else after
        for partition, tail in (await self.position(topic)).items():
            offset = begin.get(partition, 0) + 1
            while offset <= tail:
                events = await self.bus.read(topic, int(partition), offset, PAGE)
                if not events:
                    break
                for event in events:
                    yield event
                offset = events[-1].offset + 1

    async def follow(self, topic: str, after: Mapping[str, int]) -> AsyncIterator[StoredEvent]:
        async for events in self.bus.follow(topic, after={int(each): offset for each, offset in after.items()}):
            for event in events:
                yield event

    def run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.start(work, name)

    async def close(self) -> None:
        await self._tasks.cancel()
