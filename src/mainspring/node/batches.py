"""Runs the consumers that take their events in batches: `@app.consumer("orders", batch=100, wait="50ms")`.

Events are collected as the group delivers them, until there are enough or the first has waited long enough. They stay
single events: each has its lease, its attempt, and what it publishes. What the function says through any of them is
stored with the acknowledgements of all, in one commit for each partition.

While an event may be one that ends the process, each is a batch of its own, so that the others are not counted with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from mainspring.app import Event
from mainspring.bus.groups import Position
from mainspring.bus.topics import ReadyEvent
from mainspring.loop import identifies_work
from mainspring.node.causation import decode_envelope
from mainspring.node.consumers import Consuming, EventWork, kind_and_name
from mainspring.telemetry import TRACEPARENT, OpenSpan, Recorder, handling, messaging, tracing


class _Delivered(NamedTuple):
    position: Position
    ready: ReadyEvent
    attempt: int

    @property
    def place(self) -> tuple[Position, int]:
        return self.position, self.ready.offset


class _Given(NamedTuple):
    """A delivered event as the function has it."""

    delivered: _Delivered
    event: Event[Any]
    work: EventWork


_Batch = list[_Delivered]


class BatchConsuming(Consuming):
    """One declared consumer of batches at work."""

    def __init__(self, *declared: Any, **parts: Any) -> None:
        super().__init__(*declared, **parts)
        self._collected: _Batch = []

    def quiesce(self) -> None:
        """Take no more events; those that wait for their batch to become full are handled."""
        super().quiesce()
        self._begin_collected()

    # -- collecting

    def _given(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        collected = self._collected
        collected.append(_Delivered(position, ready, attempt))
        if len(collected) == 1:
            self._keeping = self._keep_leases(collected)
            self._timer = self._loop.schedule(self.declared.wait_ms, self._waited, None, ref=False)
        if len(collected) >= self.declared.batch:
            self._begin_collected()

    def _given_carefully(self, position: Position, ready: ReadyEvent, attempt: int) -> None:
        batch = [_Delivered(position, ready, attempt)]
        self._start_batch(batch, self._keep_leases(batch), careful=True)

    def _waited(self, _: None) -> None:
        self._begin_collected()

    def _begin_collected(self) -> None:
        batch, self._collected = self._collected, []
        if batch:
            self._loop.cancel(self._timer)
            self._start_batch(batch, self._keeping, careful=False)

    def _start_batch(self, batch: _Batch, keeping: Callable[[], object], *, careful: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._handle_batch(batch, keeping, careful))
        self._tasks.add(task)
        task.add_done_callback(self._passed)

    def _keep_leases(self, batch: _Batch) -> Callable[[], object]:
        """Extend the leases of all every third of their time; gives the function that ends it."""
        group, clock = self._group, self.bus.clock
        timer: Any = None

        def extend(_: None) -> None:
            nonlocal timer
            held = [each.place for each in batch if self._holds(each)]
            for position, offset in held:
                group.extend(self._member, position.partition, offset, clock.now_ms() + group.ack_timeout_ms)
            if held:
                timer = self._loop.schedule(max(1, group.ack_timeout_ms // 3), extend, None, ref=False)

        timer = self._loop.schedule(max(1, group.ack_timeout_ms // 3), extend, None, ref=False)
        return lambda: self._loop.cancel(timer)

    def _holds(self, delivered: _Delivered) -> bool:
        return delivered.ready.offset in self._member.held.get(delivered.position.partition, {})

    # -- one batch

    async def _handle_batch(self, batch: _Batch, keeping: Callable[[], object], careful: bool) -> None:
        try:
            async with self._room:
                careful = careful or self._log.shared
                again = {each.position: each.ready.offset for each in batch if careful or each.attempt > 1}
                for position, offset in again.items():  # one record has all events of its partition
                    await self._settlement.may_begin(position, offset)
                held = [each for each in batch if self._holds(each)]
                if held:
                    await self._work_on(held)
        finally:
            keeping()

    @identifies_work(lambda known: kind_and_name(known["self"].declared))
    async def _work_on(self, batch: _Batch) -> None:
        doing = None if tracing.recorder is None else self._begin_span(tracing.recorder, batch)
        entered = None if doing is None else doing.enter()
        given: list[_Given] = []
        try:
            given = self._events(batch)
            handling.set(None)  # what is published otherwise than through an event has no one cause
            if given:
                await self._call([each.event for each in given])
                await self._settle(given)
        except Exception as error:
            if doing is not None:
                doing.end(error)
            self._fail_all(given, error)
        finally:
            if doing is not None:
                doing.leave(entered)
                doing.end()

    def _events(self, batch: _Batch) -> list[_Given]:
        """Those whose payload fits; the others are refused."""
        given = []
        for each in batch:
            work = self._new_work(self)
            try:
                given.append(_Given(each, self._event(work, *each), work))
            except msgspec.ValidationError as error:
                self._failed(*each.place, each.attempt, error)
        return given

    def _fail_all(self, given: list[_Given], error: Exception) -> None:
        if given:
            self._log_failure(*given[0].delivered.place, f"a batch of {len(given)}", error)
        for delivered, event, _ in given:
            if event.refusal is not None:
                self._settlement.nack(*delivered.place, *event.refusal)
            else:
                self._refuse(*delivered.place, delivered.attempt, error)

    async def _settle(self, given: list[_Given]) -> None:
        for delivered, event, _ in given:
            if event.refusal is not None:
                self._settlement.nack(*delivered.place, *event.refusal)
        done = [each for each in given if each.event.refusal is None]
        if not any(each.work.together for each in done):
            for each in done:
                self._settlement.ack(*each.delivered.place)
            return
        errors = await self._settlement.ack_all([(*each.delivered.place, each.work.together) for each in done])
        for each, error in zip(done, errors, strict=True):
            if isinstance(error, Exception):
                self._failed(*each.delivered.place, each.delivered.attempt, error)

    def _begin_span(self, recorder: Recorder, batch: _Batch) -> OpenSpan:
        """The span of one call, linked to the traces of all its events."""
        topic = self.declared.topic
        attributes = messaging("process", "process", topic, group=self.declared.group, count=len(batch))
        headers = [decode_envelope(each.ready.envelope).headers or {} for each in batch]
        links = [each[TRACEPARENT] for each in headers if TRACEPARENT in each]
        return recorder.begin(f"process {topic}", "CONSUMER", attributes, links=links)
