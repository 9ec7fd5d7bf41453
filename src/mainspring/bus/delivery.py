"""Drives the groups: wakes them, reads for them, watches their leases, stores their positions.

Work is collected per slice. However many acknowledgements arrive in one slice, a group delivers once; however many
positions change within a few milliseconds, each is stored once, and all of them share the log's next commit with
whatever is published at the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final

from mainspring.bus.audit import Audit
from mainspring.bus.group import RETRY_MS, Group
from mainspring.bus.metrics import Counters
from mainspring.bus.position import SPACE, Position, encode_position, record_key
from mainspring.bus.tails import ReadyEvent
from mainspring.bus.topic_state import TopicState
from mainspring.errors import MainspringError
from mainspring.log import Batch, DamagedEvent, Log, Receipt, Result
from mainspring.loop import Clock, Loop

logger: logging.Logger = logging.getLogger("mainspring.bus")

STORE_MS: Final = 10  # positions may be this old when the node dies; what was acknowledged then comes once more
BYTES_PER_MS: Final = 2_000  # of one position's records: thousands of delayed events must not occupy the disk
STORE_AT_MOST_MS: Final = 300
READ_BYTES: Final = 1 << 20


class Delivery:
    """The groups' host. `bury` is given by the owner, because dead letters are published."""

    def __init__(self, log: Log, clock: Clock, loop: Loop, counters: Counters, audit: Audit) -> None:
        self._log = log
        self._clock = clock
        self._loop = loop
        self._counters = counters
        self._audit = audit
        self._topics: dict[str, TopicState] = {}
        self._due: dict[Group, None] = {}
        self._dirty: dict[Position, Group] = {}
        self._store_planned = False
        self._storing = 0
        self._stored = asyncio.Event()
        self._timers: dict[Group, tuple[int, Hashable]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.on_bury: Callable[[Group, Position], None] = lambda _group, _position: None

    def adopt(self, topic: TopicState) -> None:
        self._topics[topic.name] = topic

    # -- waking

    def appended(self, topic: TopicState) -> None:
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
        for position in group.positions.values():
            self._dirty.pop(position, None)
            position.dirty = False

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

    def changed(self, group: Group, position: Position) -> None:
        if position.dirty:
            return
        position.dirty = True
        self._dirty[position] = group
        if not self._store_planned and not self._closed:
            self._store_planned = True
            self._loop.schedule(STORE_MS, self._store_all, False, ref=False)

    def _store_all(self, at_once: bool) -> None:
        self._store_planned = False
        now = self._clock.now_ms()
        dirty, self._dirty = self._dirty, {}
        batch = Batch()
        stored: list[tuple[Group, Position, int]] = []
        for position, group in dirty.items():
            position.dirty = False
            if position.burying or (now < position.store_after and not at_once):
                self.changed(group, position)  # a burial's batch holds the record; a second one could overtake it
            else:
                stored.append((group, position, self.put_position(batch, group, position)))
        if stored:
            self._submit(batch, stored)

    def put_position(
        self, batch: Batch, group: Group, position: Position, without: frozenset[int] = frozenset()
    ) -> int:
        """Write the position's record with this batch; up to where it says that everything is settled."""
        wall, now = self._clock.wall_ms(), self._clock.now_ms()
        record = position.record(group.topic, group.name, wall, wall - now, without)
        text = encode_position(record)
        position.store_after = now + min(len(text) // BYTES_PER_MS, STORE_AT_MOST_MS)
        batch.put(SPACE, record_key(group.topic, group.name, position.partition), text)
        return position.settled(without)

    def _submit(self, batch: Batch, stored: list[tuple[Group, Position, int]]) -> None:
        def decided(result: Result) -> None:
            self._storing -= 1
            for group, position, settled in stored:
                if isinstance(result, Receipt):
                    position.durable = max(position.durable, settled)
                    position.stored = True
                else:
                    self._loop.schedule(RETRY_MS, lambda pair: self.changed(*pair), (group, position), ref=False)
            self._stored.set()

        self._storing += 1
        try:
            self._log.submit(batch, decided)
        except MainspringError as error:
            decided(error)

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

    # -- the end

    async def flush(self) -> None:
        """Store every changed position now, and wait until it is."""
        while self._dirty or self._storing:
            if self._dirty:
                self._store_all(True)
            if self._storing:
                self._stored.clear()
                await self._stored.wait()
            elif self._dirty:  # only positions with a burial under way are left
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        self._closed = True
        for _, timer in self._timers.values():
            self._loop.cancel(timer)
        self._timers.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
