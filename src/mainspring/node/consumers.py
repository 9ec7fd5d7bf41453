"""Runs a program's consumers: members of groups that live in the node itself.

There is no socket and no frame in between: the member is handed the event in the turn in which it is leased, and gives
it back in the same way. Otherwise it is a member like any other, and shares the group with members that come over
WebSocket. A lease is extended as long as its function runs, because this process knows that it does.

A function may end the process. So that this is counted, the attempt is stored before the function is called, where it
may have happened before: with every event that comes again, and after a start that no stop preceded with what may have
been handed out before, a few at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal

import msgspec

from mainspring.app import BlockingEvent, DeclaredConsumer, Event
from mainspring.bus import Bus, LastCall
from mainspring.bus.groups import Gate, Member, MemberOrigin, Position
from mainspring.bus.topics import ReadyEvent
from mainspring.codec import Encoding
from mainspring.data_types import decoder_of
from mainspring.durations import Duration
from mainspring.errors import MainspringError
from mainspring.kernel import Kernel
from mainspring.log import Log
from mainspring.loop import Clock, HandlerThreads, Loop, identifies_work, in_time, runs_in_thread
from mainspring.message import encode_bytes, validation_text
from mainspring.node.causation import begin_delivery, decode_envelope, note_event
from mainspring.node.declarations import PublishedVersions
from mainspring.node.settlement import LeaseLost, Settlement, Together
from mainspring.retries import Reject, Retries
from mainspring.runs import Runtime
from mainspring.runs.durable import check_id
from mainspring.telemetry import (
    CORRELATION,
    KeptError,
    OpenSpan,
    Recorder,
    causation_headers,
    error_keeping,
    handling,
    tracing,
)

logger: logging.Logger = logging.getLogger("mainspring.app")

LONGEST_RUN_ID: Final = 180
_REASON: Final = 1_000  # characters that are kept of why a scheduled call failed
TICK_MS: Final = 5  # of a limited rate
FEW: Final = 16  # events held at a time while one of them may end the process


class _Pace:
    """Lets a member have an event every so often: one by one, or, of fast ones, as many as a few milliseconds bring.

    Deliveries take credits from the member's gate, time gives them back. Nothing ticks while all are there.
    """

    def __init__(self, per_second: float, clock: Clock, loop: Loop) -> None:
        self._per_ms = per_second / 1_000
        self._clock = clock
        self._loop = loop
        self._most = math.ceil(self._per_ms * TICK_MS)
        self._saved: float = self._most
        self._ticks = False
        self._at_ms = 0

    def begin(self, gate: Gate, on_credit: Callable[[], object]) -> None:
        gate.credits = self._most
        self._gate, self._on_credit = gate, on_credit

    def delivered(self) -> None:
        """A credit was used."""
        self._saved -= 1
        if not self._ticks:
            self._ticks, self._at_ms = True, self._clock.now_ms()
            self._plan()

    def _plan(self) -> None:
        self._loop.schedule(max(TICK_MS, math.ceil((1 - self._saved) / self._per_ms)), self._tick, None, ref=False)

    def _tick(self, _: None) -> None:
        now = self._clock.now_ms()
        self._saved = min(self._most + 0.999, self._saved + (now - self._at_ms) * self._per_ms)
        self._at_ms = now
        self._gate.credits = int(self._saved)
        self._ticks = self._saved < self._most
        if self._ticks:
            self._plan()
        self._on_credit()


class _LocalMember(Member):
    """A member that is handed events, not frames."""

    __slots__ = ("take",)

    def __init__(self, topic: str, group: str, take: Callable[[Position, ReadyEvent, int], None]) -> None:
        super().__init__(topic, group, Gate(), lambda _frame: None)
        self.take = take
        self.ack_each = True

    def deliver(self, position: Position, event: ReadyEvent, attempt: int) -> None:
        self.take(position, event, attempt)


class _PacedMember(_LocalMember):
    """One that gets so many a second."""

    __slots__ = ("pace",)

    pace: _Pace

    def deliver(self, position: Position, event: ReadyEvent, attempt: int) -> None:
        self.pace.delivered()
        self.take(position, event, attempt)


class Consuming:
    """One declared consumer at work. `start`, then `quiesce`, `finish` and `stop`."""

    def __init__(
        self,
        declared: DeclaredConsumer,
        *,
        bus: Bus,
        log: Log,
        loop: Loop,
        kernel: Kernel,
        runtime: Runtime,
        versions: PublishedVersions,
        threads: HandlerThreads,
        random: Callable[[], float],
        encoding: Encoding | None = None,
    ) -> None:
        self.declared = declared
        self.encoding = encoding
        self._event_class: type[Event[Any]] = BlockingEvent if runs_in_thread(declared.function) else Event
        self._call = _caller(declared, threads)
        self._random = random
        self.versions = versions
        self.kernel = kernel
        self.runtime = runtime
        self.bus = bus
        self._log = log
        self._loop = loop
        self._decode = decoder_of(declared.payload)
        if encoding is not None:
            self._decode = encoding.decoder(self._decode)
        self._room = asyncio.Semaphore(declared.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._handle_first = self._handle_carefully if log.shared else self._handle
        self._new_work: type[EventWork] = _ScheduledWork if declared.schedule else EventWork
        if encoding is not None:
            self._new_work = _EncodedScheduledWork if declared.schedule else _EncodedWork

    async def start(self) -> None:
        """Join the group; where it starts is durable when this returns."""
        declared, bus = self.declared, self.bus
        await bus.ensure_topic(declared.topic)
        topic = bus.topics.open(declared.topic)
        start = None if declared.group in topic.groups else declared.start
        self._group, unstored = await bus.groups.begin(topic, declared.group, start)
        if unstored:
            await bus.groups.store(self._group)
        careful = self._is_careful()
        self._member = self._new_member(self._given_carefully if careful else self._given)
        self._member.window = min(declared.max_inflight, FEW) if careful else declared.max_inflight
        self._settlement = Settlement(bus, self._log, self.runtime, self._group, self._member)
        self._group.join(self._member)
        bus.delivery.wake(self._group)

    def _new_member(self, take: Callable[[Position, ReadyEvent, int], None]) -> _LocalMember:
        declared, limits = self.declared, self.declared.limits
        if limits.per_second:
            paced = _PacedMember(declared.topic, declared.group, take)
            paced.pace = _Pace(limits.per_second, self.bus.clock, self._loop)
            paced.pace.begin(paced.gate, self._has_room_again)
            member: _LocalMember = paced
        else:
            member = _LocalMember(declared.topic, declared.group, take)
        member.origin = MemberOrigin(since=self.bus.clock.wall_ms(), program=True)
        member.sticky = declared.one_node or bool(limits.key_concurrency)
        member.key_window = limits.key_concurrency
        return member

    def _has_room_again(self) -> None:
        self._group.choice.recheck_room(self._member)
        self.bus.delivery.wake(self._group)

    def quiesce(self) -> None:
        """Take no more events."""
        self._member.gate.paused = True

    async def finish(self) -> None:
        """Wait for the functions that run."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Give back what is held; functions that still run are cancelled, their events come again."""
        self.quiesce()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._member.gone:
            return
        self._group.leave(self._member, self.bus.clock.now_ms())

    # -- one event

    def _given(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        handle = self._handle_first if attempt == 1 else self._handle_carefully
        task = asyncio.get_running_loop().create_task(handle(position, ready, attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _given_carefully(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        task = asyncio.get_running_loop().create_task(self._handle_carefully(position, ready, attempt))
        self._tasks.add(task)
        task.add_done_callback(self._passed)

    def _passed(self, task: asyncio.Task[None]) -> None:
        """An event that was handled carefully is done; behind the last one it goes on as usual."""
        self._tasks.discard(task)
        if self._member.take != self._given and not self._member.gone and not self._is_careful():
            self._member.take = self._given
            self._member.window = self.declared.max_inflight
            self._group.changed_member(self._member)
            self.bus.delivery.wake(self._group)

    def _is_careful(self) -> bool:
        return any(position.is_careful() for position in self._group.positions.values())

    async def _handle_carefully(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        """Call the function when the attempt is stored, so that it counts if it ends the process, and when it is
        certain that the event is still this node's."""
        keeping = self._keep_lease(position, ready.offset)
        try:
            async with self._room:
                if await self._settlement.may_begin(position, ready.offset):
                    await self._work(position, ready, attempt)
        finally:
            keeping()

    async def _handle(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        keeping = self._keep_lease(position, ready.offset)
        try:
            async with self._room:
                await self._work(position, ready, attempt)
        finally:
            keeping()

    @identifies_work(lambda known: kind_and_name(known["self"].declared))
    async def _work(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        work = self._new_work(self)
        doing = None if tracing.recorder is None else self._begin(tracing.recorder, position, ready, attempt)
        entered = None if doing is None else doing.enter()
        try:
            event = self._event(work, position, ready, attempt)
            await (self._call(event) if self.declared.takes_event else self._call())
            if event.refusal is not None:
                self._settlement.nack(position, ready.offset, *event.refusal)
                work.failed(attempt, event.refusal[0])
            elif work.together or self.declared.store_each:
                work.done(attempt)
                await self._settlement.ack_with(position, ready.offset, work.together)
            else:
                self._settlement.ack(position, ready.offset)
        except Exception as error:
            if doing is not None:
                doing.end(error)
            self._failed(position, ready.offset, attempt, error)
            work.failed(attempt, _reason(error), error)
        finally:
            if doing is not None:
                doing.leave(entered)
                doing.end()

    def _begin(self, recorder: Recorder, position: Position, ready: ReadyEvent, attempt: int) -> OpenSpan:
        envelope, place = decode_envelope(ready.envelope), (position.partition, ready.offset)
        return begin_delivery(recorder, envelope, self.declared.topic, self.declared.group, *place, attempt)

    def _event(self, work: EventWork, position: Position, ready: ReadyEvent, attempt: int) -> Event[Any]:
        envelope = decode_envelope(ready.envelope)
        note_event(self.kernel, self.declared.topic, envelope.id, ready.ts, envelope.headers)
        handling.set((envelope.id, (envelope.headers or {}).get(CORRELATION)))
        return self._event_class(
            work,
            topic=self.declared.topic,
            group=self.declared.group,
            partition=position.partition,
            offset=ready.offset,
            attempt=attempt,
            id=envelope.id,
            ts=ready.ts,
            key=ready.key,
            headers=envelope.headers,
            payload=self._decode(envelope.payload),
        )

    def _failed(self, position: Position, offset: int, attempt: int, error: Exception) -> None:
        self._log_failure(position, offset, f"attempt {attempt}", error)
        self._refuse(position, offset, attempt, error)

    def _refuse(self, position: Position, offset: int, attempt: int, error: Exception) -> None:
        if isinstance(error, LeaseLost):  # it may have been given to this member again: that attempt goes on
            return
        gives_up = isinstance(error, Reject)
        delay_ms = None if gives_up else self.declared.retries.backoff.delay_ms(attempt, self._random)
        self._settlement.nack(position, offset, _reason(error), delay_ms, _failure(error))

    def _log_failure(self, position: Position, offset: int, what: str, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, Reject) else error
        logger.warning(
            "the consumer of %s %s at %d:%d, %s: %s",
            self.declared.name,
            "gave up" if isinstance(error, Reject) else "failed",
            position.partition,
            offset,
            what,
            _reason(error),
            exc_info=None if isinstance(cause, MainspringError | msgspec.ValidationError) else cause,
            extra={"fields": {"topic": self.declared.topic, "partition": position.partition, "offset": offset}},
        )

    def _keep_lease(self, position: Position, offset: int) -> Callable[[], object]:
        """Extend the lease every third of its time; gives the function that ends it."""
        group, clock = self._group, self.bus.clock
        timer: Any = None

        def extend(_: None) -> None:
            nonlocal timer
            if offset in self._member.held.get(position.partition, {}):
                group.extend(self._member, position.partition, offset, clock.now_ms() + group.ack_timeout_ms)
                timer = self._loop.schedule(max(1, group.ack_timeout_ms // 3), extend, None, ref=False)

        timer = self._loop.schedule(max(1, group.ack_timeout_ms // 3), extend, None, ref=False)
        return lambda: self._loop.cancel(timer)


def _caller(declared: DeclaredConsumer, threads: HandlerThreads) -> Callable[..., Awaitable[Any]]:
    """How the function is called: in a thread or not, with a limit or not, with a look at its errors or not."""
    function, retries = declared.function, declared.retries
    call: Callable[..., Awaitable[Any]] = function
    if runs_in_thread(function):
        call = partial(threads.call, function, limit_ms=retries.timeout_ms)
    elif retries.timeout_ms is not None:
        call = partial(in_time, retries.timeout_ms, function)
    if declared.around is not None:
        call = partial(_surround, declared, declared.around, call)
    return call if retries.takes_every_error else partial(_judge, call, retries)


async def _surround(
    declared: DeclaredConsumer, around: Callable[..., Awaitable[Any]], call: Callable[..., Any], *args: Any
) -> None:
    kind = "schedule" if declared.schedule else "consumer"
    name = declared.schedule.rpartition("/")[2] or declared.group  # a schedule of the log is app/<app>/<name>
    await around(kind, name, args[0] if args else None, None, partial(call, *args))


async def _judge(call: Callable[..., Awaitable[Any]], retries: Retries, *args: Any) -> None:
    """Call it; an error that is not worth another attempt rejects the event."""
    try:
        await call(*args)
    except Exception as error:
        if isinstance(error, Reject) or retries.allow_another(error):
            raise
        raise Reject(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Why an event was refused, for its dead letter."""
    if isinstance(error, Reject):
        return error_keeping.redacted(str(error))
    if isinstance(error, msgspec.ValidationError):
        return f"the payload does not fit: {validation_text(error)}"
    return f"{type(error).__name__}: {error_keeping.redacted(str(error))}"


def _failure(error: Exception) -> BaseException:
    """The error that is kept: the program's own, where `Reject` only says that it is not worth another attempt."""
    cause = error.__cause__
    if isinstance(error, Reject) and isinstance(cause, Exception) and _reason(cause) == str(error):
        return cause
    return error


def kind_and_name(declared: DeclaredConsumer) -> tuple[str, str]:
    if declared.schedule:
        return "schedule", declared.schedule.rpartition("/")[2]
    return "consumer", f"{getattr(declared.function, '__name__', declared.group)} of topic {declared.topic}"


class EventWork:
    """What one event leads to, collected until its function returns."""

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming
        self.together: Together = Together()

    def done(self, attempt: int) -> None:
        """The function returned; the event is about to be settled in a commit of its own."""

    def failed(self, attempt: int, reason: str, error: Exception | None = None) -> None:
        """The function raised, or refused the event."""

    def prepare_run(self, event: Event[Any], program: Any, args: tuple[Any, ...], id: str | None) -> str:
        run_id = _run_id(event, len(self.together.runs)) if id is None else check_id(id)
        record = self._consuming.runtime.durable.prepare_run(program, args, run_id)
        self.together.runs.append(record)
        self._consuming.kernel.note(
            "run", record.program, run_id, causation=event.id, correlation=event.correlation, at_ms=record.created
        )
        return run_id

    def prepare_publish(
        self,
        event: Event[Any],
        topic: str,
        payload: bytes,
        key: str | None,
        headers: dict[str, str],
        id: str | None,
        ttl: Duration,
    ) -> str:
        given = id or f"{event.group}/{event.id}/{len(self.together.events)}"
        headers = {**causation_headers(event.id, event.correlation), **headers}
        versions = self._consuming.versions.headers(topic, headers)
        prepared = self._consuming.bus.prepare(topic, payload, key=key, headers=versions, id=given, ttl=ttl)
        self.together.events.append(prepared)
        note_event(self._consuming.kernel, topic, given, self._consuming.bus.clock.wall_ms(), headers)
        return given

    def ask(self, event: Event[Any], kind: str, type: str, data: Any, timeout: Duration | None) -> Awaitable[Any]:
        return self._consuming.kernel.ask(
            kind, type, {} if data is None else data, timeout=timeout, correlation=event.correlation, causation=event.id
        )

    def emit(self, event: Event[Any], type: str, data: Any) -> None:
        self._consuming.kernel.emit(type, data, causation=event.id, correlation=event.correlation)


class _ScheduledWork(EventWork):
    """A call of a scheduled function: how it went is kept."""

    def __init__(self, consuming: Consuming) -> None:
        super().__init__(consuming)
        self._schedule, self._schedules = consuming.declared.schedule, consuming.bus.schedules
        self._clock = consuming.bus.clock
        self._began = self._clock.wall_ms()

    def done(self, attempt: int) -> None:
        self.together.events.append(self._schedules.called(self._schedule, self._call("done", attempt)))

    def failed(self, attempt: int, reason: str, error: Exception | None = None) -> None:
        failure = None if error is None else error_keeping.keep(_failure(error))
        self._schedules.store_call(self._schedule, self._call("failed", attempt, reason[:_REASON], failure))

    def _call(
        self, result: Literal["done", "failed"], attempt: int, reason: str = "", failure: KeptError | None = None
    ) -> LastCall:
        began, lasted = self._began, max(0, self._clock.wall_ms() - self._began)
        return LastCall(result=result, at_ms=began, duration_ms=lasted, attempt=attempt, reason=reason, failure=failure)


class _EncodedWork(EventWork):
    """What an event of a program with a codec leads to."""

    def prepare_publish(self, event: Event[Any], topic: str, payload: bytes, *options: Any) -> str:
        encoding = self._consuming.encoding
        assert encoding is not None
        return super().prepare_publish(event, topic, encoding.seal(payload), *options)

    async def ask(self, event: Event[Any], kind: str, type: str, data: Any, timeout: Duration | None) -> Any:
        encoding = self._consuming.encoding
        assert encoding is not None
        sealed = encoding.seal_data(type, encode_bytes({} if data is None else data))
        return encoding.open_value(await super().ask(event, kind, type, sealed, timeout))

    def emit(self, event: Event[Any], type: str, data: Any) -> None:
        encoding = self._consuming.encoding
        assert encoding is not None
        super().emit(event, type, encoding.seal_data(type, encode_bytes(data)))


class _EncodedScheduledWork(_EncodedWork, _ScheduledWork):
    """A call of a scheduled function of such a program."""


def _run_id(event: Event[Any], number: int) -> str:
    """One event, one run: made from the event's place, which never changes."""
    place = f"{event.topic}/{event.group}/{event.partition}/{event.offset}"
    if len(place) > LONGEST_RUN_ID:
        place = hashlib.sha256(place.encode()).hexdigest()
    return f"{place}/{number}" if number else place
