"""Drives the groups: wakes them, reads for them, watches their leases, and stores their positions.

Work is collected per slice: however many acknowledgements arrive in one slice, a group delivers once. Positions are
collected for a few milliseconds: however many events are acknowledged within that time, each position is stored once.
How it is stored is the supply's business (`local.py`, `shared/supply.py`).

A position has one writer at a time. A batch that contains its record and something else (a dead letter, an
acknowledgement together with what it led to) holds its write lock until the batch is decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Final

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.groups.group import PAGE, Group
from mainspring.bus.groups.position import COPIES, OpenEvent, Position, PositionWrite, decode_copy
from mainspring.bus.groups.supply import Supply
from mainspring.bus.topics.follow import read_on, sound
from mainspring.bus.topics.tail import ReadyEvent
from mainspring.bus.topics.topic import Topic
from mainspring.cluster import Suspects
from mainspring.errors import MainspringError
from mainspring.log import Batch, Log, StoredEvent
from mainspring.loop import BackgroundTasks, Clock, Loop

logger: logging.Logger = logging.getLogger("mainspring.bus")

STORE_MS: Final = 10  # positions may be this old when the node dies; what was acknowledged then comes once more


class Delivery:
    """What groups need from the bus. `write_dead_letters` is given by the owner, because dead letters are published."""

    def __init__(self, log: Log, clock: Clock, loop: Loop, counters: BusCounters, audit: Audit, supply: Supply) -> None:
        self._log = log
        self._clock = clock
        self._loop = loop
        self._counters = counters
        self._audit = audit
        self._supply = supply
        self._due: dict[Group, None] = {}
        self._timers: dict[Group, tuple[int, Hashable]] = {}
        self._changed: dict[Position, None] = {}
        self._store_planned = False
        self._lock_waiters: dict[Position, deque[asyncio.Future[None]]] = {}
        self._tasks = BackgroundTasks(logger, "bus")
        self.closed: bool = False
        self._is_held = False
        self.write_dead_letters: Callable[[Position], None] = lambda _position: None
        supply.attach(self)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """A background task of the bus; `close` ends it."""
        self._tasks.start(work, getattr(work, "__qualname__", "work"))

    # -- waking

    def appended(self, topic: Topic) -> None:
        """The topic has new events."""
        for group in topic.active:
            self.wake(group)
        for follower in topic.followers:
            follower.set()

    def wake(self, group: Group) -> None:
        """Let the group deliver at the end of this slice."""
        if not self._due and not self.closed:
            asyncio.get_running_loop().call_soon(self._run_due)
        self._due[group] = None

    def hold(self) -> None:
        """Deliver nothing until `go_on`: the node is not up yet, and a function may end the process."""
        self._is_held = True

    def go_on(self) -> None:
        self._is_held = False
        if self._due and not self.closed:
            asyncio.get_running_loop().call_soon(self._run_due)

    def _run_due(self) -> None:
        if self._is_held:
            return
        due, self._due = self._due, {}
        now = self._clock.now_ms()
        deliver = self._supply.deliver
        for group in due:
            deliver(group, now)

    def hold_suspect(self, suspects: Suspects, position: Position, event: OpenEvent) -> None:
        """The process ended more than once with this event: deliver it when it is its turn to be handled alone."""
        position.hold((event.offset,))
        position.group.choice.owners.hold_back(event)

        def begin() -> bool:
            if position.group.members:
                position.wait(event)
                self.wake(position.group)
            return bool(position.group.members)

        def is_over() -> bool:
            return position.open.get(event.offset) is not event or event.dying

        suspects.add(position.ends[event.offset][0], begin, is_over)

    async def before_attempt(self, position: Position) -> None:
        """See the supply."""
        await self._supply.before_attempt(position)

    def wake_at(self, group: Group, deadline: int) -> None:
        """Call `Group.check` at this monotonic ms, if not earlier."""
        planned = self._timers.get(group)
        if planned is not None:
            if planned[0] <= deadline:
                return
            self._loop.cancel(planned[1])
        if not self.closed:
            timer = self._loop.schedule_at(deadline, self._check, group, kind="timeout", ref=False)
            self._timers[group] = (deadline, timer)

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
            self._changed.pop(position, None)
            position.dirty = False

    # -- reading

    def fetch(self, position: Position, start: int) -> None:
        """Read a page of events and hand it to `Group.fetched`, or call `Group.not_fetched`."""
        self.run(self._fetch(position, start))

    async def _fetch(self, position: Position, start: int) -> None:
        group, resets, tail = position.group, position.resets, position.tail.offset
        try:
            entries = await read_on(self._log, group.topic.name, position.partition, start, PAGE)
        except MainspringError as error:
            logger.error("cannot read %r partition %d: %s", group.topic.name, position.partition, error)
            group.not_fetched(position, resets, self._clock.now_ms())
            return
        end = entries[-1].offset if entries else tail
        stored = sound(entries)
        damaged = [entry.offset for entry in entries[: len(entries) - len(stored)]]
        if position.copies:
            stored = await self._with_copies(position, stored, start, end)
            damaged = [offset for offset in damaged if offset not in position.copies]
        self._counters.damaged += len(damaged)
        group.fetched(position, resets, start, [position.tail.ready(event) for event in stored], end, damaged)
        self.wake(group)

    async def _with_copies(
        self, position: Position, stored: Sequence[StoredEvent], start: int, end: int
    ) -> list[StoredEvent]:
        """The same with the events that were dead letters, which the topic may have forgotten."""
        found = {event.offset: event for event in stored}
        for offset in [each for each in position.copies if start <= each <= end]:
            copy = await self.copy(position, offset)
            if copy is not None:
                found[offset] = copy
        return [found[offset] for offset in sorted(found)]

    async def copy(self, position: Position, offset: int) -> StoredEvent | None:
        """The event that was a dead letter and is open again; None: it was none, or it is settled."""
        record = await self._log.get(COPIES, position.copy_key(offset)) if offset in position.copies else None
        return None if record is None else decode_copy(record.value)

    # -- counting

    def delivered(self, position: Position, offset: int, attempt: int, count: int) -> None:
        """`count` events were sent, the last one at `offset`; `attempt` is 1 for first deliveries."""
        counters = self._counters
        counters.delivered += count
        topic = position.group.topic
        topic.delivered += count
        if attempt > 1:
            counters.redeliveries += 1
            self._audit.note("redelivery", topic, position.partition, offset, 1, position.group.name)

    def is_expired(self, position: Position, ready: ReadyEvent) -> bool:
        """Whether nobody shall get the event any more; counted."""
        expires = ready.expires()
        if not expires or expires > self._clock.wall_ms():
            return False
        self._counters.expired += 1
        self._audit.note("expired", position.group.topic, position.partition, ready.offset, 1, position.group.name)
        return True

    def settled(self, position: Position, offset: int, count: int) -> None:
        """`count` events were acknowledged, the last one at `offset`."""
        self._counters.acks += count
        group = position.group
        self._audit.note("ack", group.topic, position.partition, offset, count, group.name)

    def write_audit(self) -> None:
        """Something is about to be committed: what was noted can be part of that."""
        self._audit.flush()

    def inflight(self, change: int) -> None:
        self._counters.inflight += change

    # -- storing positions

    def changed(self, position: Position) -> None:
        """The position must be stored soon."""
        if position.dirty:
            return
        position.dirty = True
        self._changed[position] = None
        if not self._store_planned and not self.closed:
            self._store_planned = True
            self._loop.schedule(STORE_MS, self.store_changed, False, ref=False)

    def store_changed(self, at_once: bool) -> None:
        """Store what changed, `at_once` also what could wait; positions with a held write lock come again later."""
        self._store_planned = False
        now = self._clock.now_ms()
        changed, self._changed = self._changed, {}
        ready = []
        for position in changed:
            position.dirty = False
            if position.write_locked or (now < position.store_after and not at_once):
                self.changed(position)
            else:
                ready.append(position)
        if ready:
            self._supply.store(ready)

    @property
    def has_changes(self) -> bool:
        """Whether some position must still be stored."""
        return bool(self._changed)

    def put_position(self, batch: Batch, position: Position, settles: frozenset[int]) -> PositionWrite:
        """Write the position's record with this batch, which settles these open events."""
        assert position.write_locked, "only the holder of a position's write lock may write it"
        return self._supply.put_position(batch, position, settles)

    async def store_now(self, position: Position) -> None:
        """Make durable what is in memory of this position, and what changed before. Raises the errors of the log."""
        self.store_changed(True)
        await self.lock(position)
        try:
            batch = Batch()
            write = self.put_position(batch, position, frozenset())
            await self._log.commit(batch)
            write.stored()
        finally:
            self.unlock(position)

    # -- one writer of a position at a time

    async def lock(self, position: Position) -> None:
        """Wait for the position's write lock and take it; `unlock` gives it to the next writer."""
        if position.write_locked:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._lock_waiters.setdefault(position, deque()).append(turn)
            await turn
        position.write_locked = True

    def unlock(self, position: Position) -> None:
        """The batch is decided. The writer that waited longest is next; then dead letters that came up meanwhile."""
        turns = self._lock_waiters.get(position)
        while turns:
            turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._lock_waiters.pop(position, None)
        position.write_locked = False
        if any(event.dying for event in position.open.values()):
            self.write_dead_letters(position)

    async def close(self) -> None:
        """End all background work."""
        self.closed = True
        for turn in [turn for turns in self._lock_waiters.values() for turn in turns]:
            turn.cancel()
        for _, timer in self._timers.values():
            self._loop.cancel(timer)
        self._timers.clear()
        await self._tasks.cancel()
