"""Drives the groups: wakes them, reads for them, watches their leases.

Work is collected per slice: however many acknowledgements arrive in one slice, a group delivers once. How positions are
kept is the difference between a node that owns its log (`storing.py`) and one that shares it (`claims.py`); which of
the two it is, is decided once, when the bus is made.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.groups.group import Group
from mainspring.bus.groups.position import Position
from mainspring.bus.topics.tail import ReadyEvent
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.log import Batch, DamagedEvent, Log
from mainspring.loop import Clock, Loop

logger: logging.Logger = logging.getLogger("mainspring.bus")

READ_BYTES: Final = 1 << 20


class Written:
    """A position's record as part of somebody's batch: up to where everything is settled with it.

    `happened` is what the log's news say about the batch, where they do: they come also when its answer got lost.
    """

    __slots__ = ("happened", "settled")

    def __init__(self, settled: int = 0) -> None:
        self.settled: int = settled
        self.happened: bool | None = None


class Delivery(ABC):
    """The groups' host. `on_bury` is given by the owner, because dead letters are published."""

    def __init__(self, log: Log, clock: Clock, loop: Loop, counters: BusCounters, audit: Audit) -> None:
        self._log = log
        self._clock = clock
        self._loop = loop
        self._counters = counters
        self._audit = audit
        self._topics: dict[str, Topic] = {}
        self._due: dict[Group, None] = {}
        self._timers: dict[Group, tuple[int, Hashable]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: dict[Position, deque[asyncio.Future[None]]] = {}
        self._closed = False
        self.on_bury: Callable[[Group, Position], None] = lambda _group, _position: None

    def adopt(self, topic: Topic) -> None:
        self._topics[topic.name] = topic

    # -- waking

    def appended(self, topic: Topic) -> None:
        """The topic has new events."""
        for group in topic.active:
            self.wake(group)
        for follower in topic.followers:
            follower.set()

    def wake(self, group: Group) -> None:
        """Let the group deliver at the end of this slice."""
        if not self._due and not self._closed:
            asyncio.get_running_loop().call_soon(self._run_due)
        self._due[group] = None

    def _run_due(self) -> None:
        due, self._due = self._due, {}
        now = self._clock.now_ms()
        for group in due:
            group.deliver(now)

    def wake_at(self, group: Group, deadline: int) -> None:
        planned = self._timers.get(group)
        if planned is not None:
            if planned[0] <= deadline:
                return
            self._loop.cancel(planned[1])
        if not self._closed:
            self._timers[group] = (deadline, self._loop.schedule_at(deadline, self._check, group, ref=False))

    def _check(self, group: Group) -> None:
        self._timers.pop(group, None)
        group.check(self._clock.now_ms())
        self.wake(group)

    def forget(self, group: Group) -> None:
        """The group is deleted."""
        planned = self._timers.pop(group, None)
        if planned is not None:
            self._loop.cancel(planned[1])

    # -- reading

    def fetch(self, group: Group, position: Position, start: int, limit: int) -> None:
        self.run(self._fetch(group, position, start, limit))

    async def _fetch(self, group: Group, position: Position, start: int, limit: int) -> None:
        epoch, tail = position.epoch, position.tail.offset
        try:
            events = await self.read(group.topic, position, start, limit)
        except MainspringError as error:
            logger.error("cannot read %r partition %d: %s", group.topic, position.partition, error)
            group.not_fetched(position, epoch, self._clock.now_ms())
            return
        group.fetched(position, epoch, start, events, events[-1].offset if events else tail)
        self.wake(group)

    async def read(self, topic: str, position: Position, start: int, limit: int) -> list[ReadyEvent]:
        """Events from `start` on; damaged ones are passed over and reported."""
        while True:
            try:
                found = await self._log.read(topic, position.partition, start, limit, READ_BYTES)
            except DamagedEvent as error:
                logger.error("%s", error)
                start = error.offset + 1
            else:
                return [position.tail.ready(event) for event in found]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """A background task of the bus; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("background work failed", exc_info=task.exception())

    # -- positions

    @abstractmethod
    def changed(self, group: Group, position: Position) -> None:
        """The position must be stored soon."""

    @abstractmethod
    def put_position(
        self, batch: Batch, group: Group, position: Position, without: frozenset[int] = frozenset()
    ) -> Written:
        """Write the position's record with this batch.

        `without` are open events that the batch settles. The position is held until the batch is decided.
        """

    # -- counting

    def delivered(self, group: Group, position: Position, offset: int, attempt: int, count: int) -> None:
        counters = self._counters
        counters.delivered += count
        topic = self._topics[group.topic]
        topic.delivered += count
        if attempt > 1:
            counters.redeliveries += 1
            self._audit.note("redelivery", topic, position.partition, offset, 1, group.name)

    def settled(self, group: Group, position: Position, offset: int, count: int) -> None:
        self._counters.acks += count
        self._audit.note("ack", self._topics[group.topic], position.partition, offset, count, group.name)

    def inflight(self, change: int) -> None:
        self._counters.inflight += change

    def bury(self, group: Group, position: Position) -> None:
        self.on_bury(group, position)

    # -- one writer of a position at a time

    async def hold(self, position: Position) -> None:
        """Wait until nobody writes the position's record with a batch of their own, and keep everybody else out."""
        if position.burying:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._turns.setdefault(position, deque()).append(turn)
            await turn
        position.burying = True

    def release(self, group: Group, position: Position) -> None:
        """The batch is decided. Who waited longest is next; then dead letters that came up meanwhile."""
        turns = self._turns.get(position)
        while turns:
            turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._turns.pop(position, None)
        position.burying = False
        if any(event.dying for event in position.open.values()):
            self.bury(group, position)

    # -- the end

    @abstractmethod
    async def flush(self) -> None:
        """Store everything that is known of the positions now, and wait until it is."""

    async def close(self) -> None:
        self._closed = True
        for turn in [turn for turns in self._turns.values() for turn in turns]:
            turn.cancel()
        for _, timer in self._timers.values():
            self._loop.cancel(timer)
        self._timers.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
