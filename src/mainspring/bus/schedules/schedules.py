"""Delayed events and schedules: rows in the log that become events when their time comes.

A delayed event is kept under its due time; when it is due, one batch appends it to its topic and deletes the row. A
schedule (`every`, cron) is kept under its name with the time it fires next; when it fires, one batch appends the event
and moves that time on. So a node that dies in between has done both or neither: nothing is lost and nothing doubled.
Of several nodes on one log, the one that has the role fires. Both batches carry its guard and the version of the row
they replace, so that nothing fires twice for one due time, also not while the role changes hands.

A delayed event gets its offset when it is due, not when it is accepted. Giving it one at once would leave it below
every group's cursor as an open event for as long as it waits, hold back every commit, and make an hour of delayed
events an hour of memory.

Memory does not grow with the number of delayed events: rows are read in the order of their time, when it has come.
Schedules are in memory, their next times in a heap: a firing looks at what is due and at nothing else. A firing missed
while no node ran is made up once; what passes while a schedule is paused is not.

How the last call of a schedule went is a row of its own (`CALLS`), written by whoever made the call in one commit with
the acknowledgement of its event.

The reasons are in docs/decisions/schedules.md.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.bus.audit import Audit
from mainspring.bus.errors import Forbidden, Unavailable, UnknownSchedule
from mainspring.bus.protocol import EXPIRES
from mainspring.bus.publishing.admission import Admission
from mainspring.bus.publishing.publisher import Accepted, OnDone, Placed, Publisher
from mainspring.bus.quotas import UNLIMITED, Quota
from mainspring.bus.results import Published
from mainspring.bus.schedules.cron import cron_line
from mainspring.bus.schedules.schedule import LastCall, Schedule, ScheduleInfo, info_of
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.cluster import Role
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Append, Batch, KeptRecord, Log, Prepared, Put, Receipt, Record, Refused, add_prepared
from mainspring.loop import Clock, Loop

if TYPE_CHECKING:
    from mainspring.bus.groups.delivery import Delivery

logger: logging.Logger = logging.getLogger("mainspring.bus")

SPACE: Final = "schedules"
DELAYED: Final = "delayed/"
NAMED: Final = "named/"
CALLS: Final = "schedule_calls"  # a space: how the last call of each went, by name
UNIT_BYTES: Final = 64 << 10  # schedules are in memory: a payload of so many bytes counts as one more
PAGE: Final = 500
RETRY_MS: Final = 1_000
CLOCK_JUMP_MS: Final = 1_000  # less is the slewing and jitter of ordinary clocks

_encode = msgspec.json.Encoder().encode


class _Delayed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of a delayed event."""

    topic: str
    partition: int
    id: str
    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    dedupe: str | None = None
    dedupe_ms: int = 0
    accepted: int = 0  # epoch ms; its delay counts from here. 0: it is due at a time of day


class DelayedEvent(msgspec.Struct, frozen=True):
    """An event that is published at `due` (epoch ms). `accepted` is 0 for one that is due at a time of day."""

    topic: str
    partition: int
    id: str
    due: int
    accepted: int
    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None


_decode_delayed = msgspec.json.Decoder(_Delayed).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_call = msgspec.json.Decoder(LastCall).decode


class Schedules:
    """Keeps the rows and fires them."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        loop: Loop,
        topics: TopicRegistry,
        admission: Admission,
        publisher: Publisher,
        delivery: Delivery,
        role: Role,
        unsettled: Callable[[str], Awaitable[str]],
        audit: Audit,
    ) -> None:
        self._audit = audit
        self._unsettled = unsettled
        self._role = role
        self._log = log
        self._clock = clock
        self._loop = loop
        self._topics = topics
        self._admission = admission
        self._publisher = publisher
        self._delivery = delivery
        self._named: dict[str, tuple[Schedule, int]] = {}
        self._heap: list[tuple[int, int, str]] = []  # next time, version and name; those of former versions are dropped
        self._last: dict[str, LastCall] = {}
        self._makers: dict[str, tuple[Quota, int]] = {}  # in whose quota a schedule counts, and for how much
        self._check_all = True  # the clock may have been set since all next times were looked at
        self._ahead: int | None = None  # the time of day against the monotonic clock, when that was last compared
        self._accepted_ms = 0  # the latest time of day at which a delayed event was accepted here since then
        self._timer: tuple[int, Hashable] | None = None
        self._firing = False
        self._again = False
        self._stopped = False

    async def start(self) -> None:
        async for record in self._log.scan(SPACE, NAMED):
            self._keep(_decode_schedule(record.value), record.version)
        async for record in self._log.scan(CALLS, ""):
            self._last[record.key] = _decode_call(record.value)
        self._role.on_change(self._role_changed)

    def _role_changed(self, held: bool) -> None:
        if held:
            self._check_all = True
            self._fire(None)

    def on_changed(self, record: KeptRecord) -> None:
        """A row was written or deleted, here or on another node."""
        if record.key.startswith(DELAYED):
            if record.version != ABSENT and self._role.held:
                self._plan_delayed(record)
            return
        if record.version == ABSENT:
            self._forget(record.key.removeprefix(NAMED))
        else:
            self._keep(_decode_schedule(record.value), record.version)

    def _plan_delayed(self, record: KeptRecord) -> None:
        if _decode_delayed(record.value).accepted > self._clock.wall_ms() + CLOCK_JUMP_MS:
            self._ahead = None  # the node that accepted it is ahead of this one: its delay counts from now
            self._fire(None)
        else:
            self.plan(_due_of(record.key))

    def on_called(self, record: KeptRecord) -> None:
        """A call was made or skipped, here or on another node."""
        if record.version == ABSENT:
            self._last.pop(record.key, None)
        else:
            self._last[record.key] = _decode_call(record.value)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._loop.cancel(self._timer[1])

    # -- delayed events

    def store_delayed(self, accepted: Accepted, on_done: OnDone) -> None:
        """Store accepted events of which some are due later: those have offset 0 until then."""
        batch = Batch()
        for number, (append, due) in enumerate(zip(accepted.appends, accepted.due, strict=True)):
            if due:
                self._put_delayed(batch, append, due, 0 if number in accepted.at_times else append.ts)
            else:
                batch.append(append)

        def done(result: Sequence[Placed] | MainspringError) -> None:
            if not isinstance(result, MainspringError):
                stored = iter(result)
                result = [
                    (append.partition, 0, False) if due else next(stored)
                    for append, due in zip(accepted.appends, accepted.due, strict=True)
                ]
                self.plan(min(due for due in accepted.due if due))
            on_done(result)

        self._publisher.submit_batch(batch, (accepted.topic,), done)

    def _put_delayed(self, batch: Batch, append: Append, due_ms: int, accepted_ms: int) -> None:
        self._accepted_ms = max(self._accepted_ms, accepted_ms)
        row = _Delayed(
            topic=append.topic,
            partition=append.partition,
            id=append.id,
            payload=msgspec.Raw(append.payload),
            key=append.key,
            headers=None if append.headers is None else msgspec.json.decode(append.headers),
            dedupe=append.dedupe,
            dedupe_ms=max(0, append.dedupe_until - append.ts),
            accepted=accepted_ms,
        )
        batch.put(SPACE, f"{DELAYED}{due_ms:016d}/{self._admission.new_id()}", _encode(row))

    async def delayed(self, topics: Collection[str], most: int) -> list[DelayedEvent]:
        """Events of these topics that are not due yet, in the order of their time; the first `most` of all are seen."""
        found: list[DelayedEvent] = []
        async for record in self._log.scan(SPACE, DELAYED):
            row = _decode_delayed(record.value)
            if row.topic in topics:
                due = _due_of(record.key)
                found.append(
                    DelayedEvent(
                        row.topic, row.partition, row.id, due, row.accepted, row.payload.copy(), row.key, row.headers
                    )
                )
            most -= 1
            if not most:
                break
        return found

    def clock_moved(self) -> None:
        """The time of day jumped: the clock was set, or the machine slept. What was planned is not to be trusted."""
        if self._timer is not None:
            self._loop.cancel(self._timer[1])
        self._check_all = True
        if not self._stopped:
            self._fire(None)

    def plan(self, due_ms: int) -> None:
        """Something is due at this instant (epoch ms)."""
        if self._stopped:
            return
        if self._timer is not None:
            if self._timer[0] <= due_ms:
                return
            self._loop.cancel(self._timer[1])
        delay = max(0, due_ms - self._clock.wall_ms())
        self._timer = (due_ms, self._loop.schedule(delay, self._fire, None, ref=False))

    # -- schedules

    async def agree(self, prefix: str, wanted: Mapping[str, Schedule], guard: Callable[[Batch], None]) -> None:
        """Make those whose names begin with `prefix` these and no others, in one commit.

        One that is as it was keeps its next time. Raises Refused when the guard does not hold or one of them changed
        meanwhile (it fired): then look again.
        """
        batch = Batch()
        guard(batch)
        put: list[Schedule] = []
        gone: list[str] = []
        kept: dict[str, Record] = {}
        async for record in self._log.scan(SPACE, NAMED + prefix):
            name = record.key.removeprefix(NAMED)
            if name in wanted:
                kept[name] = record
            else:
                batch.delete(SPACE, record.key, expect=record.version)
                batch.delete(CALLS, name)
                gone.append(name)
        for name, schedule in wanted.items():
            known = _readable(kept.get(name))
            changed = self._replacing(known, schedule)
            if known != changed:
                put.append(changed)
                batch.put(SPACE, NAMED + name, _encode(changed), expect=kept[name].version if name in kept else ABSENT)
        if not put and not gone:
            return
        receipt = await self._log.commit(batch)
        for name in gone:
            self._forget(name)
        for each, version in zip(put, receipt.versions, strict=True):
            self._keep(each, version)

    def _replacing(self, known: Schedule | None, wanted: Schedule) -> Schedule:
        """A declared schedule, with what is kept of the one that is stored: its times if they are the same, a pause."""
        wanted.check()
        if known is None:
            return wanted.planned_anew(self._clock.wall_ms())
        wanted = msgspec.structs.replace(wanted, paused=known.paused, last_ms=known.last_ms)
        if known.fires_like(wanted):
            return msgspec.structs.replace(wanted, next_ms=known.next_ms, due_ms=known.due_ms)
        return wanted.planned_anew(self._clock.wall_ms())

    def _keep(self, schedule: Schedule, version: int) -> None:
        """Remember this version of a schedule, unless a newer one is here, and plan its firing."""
        _, current = self._named.get(schedule.name, (None, ABSENT))
        if current < version:
            self._named[schedule.name] = (schedule, version)
            self._push(schedule, version)

    def _push(self, schedule: Schedule, version: int) -> None:
        if schedule.paused:
            return
        if len(self._heap) > 2 * len(self._named) + PAGE:  # most are of former versions
            self._heap = [(each.next_ms, its, name) for name, (each, its) in self._named.items() if not each.paused]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (schedule.next_ms, version, schedule.name))
        if self._role.held:
            self.plan(schedule.next_ms)

    def _forget(self, name: str) -> None:
        self._named.pop(name, None)
        self._last.pop(name, None)
        maker, held = self._makers.pop(name, (UNLIMITED, 0))
        maker.give_back("schedules", held)

    async def put(self, schedule: Schedule, quota: Quota = UNLIMITED) -> Schedule:
        """Create or replace a schedule. One that is paused stays so. A new one counts in the quota, by its size."""
        schedule.check()
        size = 1 + len(bytes(schedule.payload)) // UNIT_BYTES
        quota.take("schedules", size)
        maker, held = self._makers.pop(schedule.name, (UNLIMITED, 0))
        maker.give_back("schedules", held)
        self._makers[schedule.name] = (quota, size)
        self._topics.open(schedule.topic)

        def replaced(known: Schedule | None) -> Schedule:
            anew = schedule.planned_anew(self._clock.wall_ms())
            return anew if known is None else msgspec.structs.replace(anew, paused=known.paused, last_ms=known.last_ms)

        return await self._change(schedule.name, replaced)

    async def pause(self, name: str) -> ScheduleInfo:
        """Publish nothing more until it is resumed, also after a restart. Raises UnknownSchedule."""
        await self._change(name, lambda known: msgspec.structs.replace(_known(name, known), paused=True))
        return self.get(name)

    async def resume(self, name: str) -> ScheduleInfo:
        """Go on: what passed meanwhile is not made up, what is still to come stays. Raises UnknownSchedule."""

        def resumed(known: Schedule | None) -> Schedule:
            schedule = _known(name, known)
            if not schedule.paused:
                return schedule
            going = msgspec.structs.replace(schedule, paused=False)
            now = self._clock.wall_ms()
            return going if going.next_ms > now else going.planned(now)

        await self._change(name, resumed)
        return self.get(name)

    async def _change(self, name: str, change: Callable[[Schedule | None], Schedule]) -> Schedule:
        """Write what `change` makes of a schedule; again when it changed (it fired) meanwhile."""
        while True:
            try:
                record = await self._log.get(SPACE, NAMED + name)
                known = _readable(record)
                changed = change(known)
                if changed == known:
                    return changed
                batch = Batch()
                batch.put(SPACE, NAMED + name, _encode(changed), expect=ABSENT if record is None else record.version)
                receipt = await self._log.commit(batch)
            except Refused:
                continue
            except UnknownSchedule:
                raise
            except MainspringError as error:
                raise Unavailable(f"the schedule could not be stored: {error.message}", remedy=error.remedy) from error
            self._keep(changed, receipt.versions[0])
            return changed

    async def run(self, name: str) -> Published:
        """Publish its event now, also while it is paused; its next time stays. Raises UnknownSchedule."""
        while True:
            schedule, version = self._named.get(name, (None, ABSENT))
            schedule = _known(name, schedule)
            try:
                return await self._publish(schedule, version, self._clock.wall_ms(), Batch())
            except Refused:
                await self._look_again(name)
            except MainspringError as error:
                raise Unavailable(f"the event could not be stored: {error.message}", remedy=error.remedy) from error

    def find(self, name: str) -> ScheduleInfo | None:
        """The schedule of this name; None when there is none."""
        schedule, _ = self._named.get(name, (None, ABSENT))
        return None if schedule is None else info_of(schedule, self._last.get(name))

    def get(self, name: str) -> ScheduleInfo:
        """Raises UnknownSchedule."""
        return info_of(_known(name, self._named.get(name, (None, ABSENT))[0]), self._last.get(name))

    def all(self) -> list[ScheduleInfo]:
        """By name."""
        return [info_of(schedule, self._last.get(name)) for name, (schedule, _) in sorted(self._named.items())]

    def __len__(self) -> int:
        return len(self._named)

    async def delete(self, name: str) -> None:
        """Raises UnknownSchedule. One that a program declares comes back when a node of it starts."""
        _known(name, self._named.get(name, (None, ABSENT))[0])
        batch = Batch()
        batch.delete(SPACE, NAMED + name)
        batch.delete(CALLS, name)
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            raise Unavailable(f"the schedule could not be deleted: {error.message}", remedy=error.remedy) from error
        self._forget(name)

    async def delete_of(self, topic: str) -> None:
        """Delete every schedule and every delayed event of a topic; durable when it returns."""
        for schedule in self.all():
            if schedule.topic == topic:
                await self.delete(schedule.name)
        async for record in self._log.scan(SPACE, DELAYED):
            if _decode_delayed(record.value).topic == topic:
                batch = Batch()
                batch.delete(SPACE, record.key)
                await self._log.commit(batch)

    # -- how calls went

    def called(self, name: str, call: LastCall) -> Prepared:
        """How a call went, to be stored in one batch with what it led to."""
        return Prepared([Put(CALLS, name, _encode(call))], lambda _receipt: self._last.__setitem__(name, call))

    def store_call(self, name: str, call: LastCall) -> None:
        """How a call went, stored by itself and soon."""
        batch = Batch()
        stored = add_prepared(batch, [self.called(name, call)])
        self._log.submit(batch, lambda result: stored(result) if isinstance(result, Receipt) else None)

    # -- firing

    def _fire(self, _: None) -> None:
        self._timer = None
        if not self._role.held:
            return
        if self._firing:
            self._again = True
            return
        self._firing = True
        self._delivery.run(self._fire_due())

    async def _fire_due(self) -> None:
        """Everything that is due, in order, until nothing is; then plan the next."""
        try:
            self._again = True
            while self._again and not self._stopped and self._role.held:
                self._again = False
                await self._notice_clock()
                await self._fire_named()
                await self._fire_delayed()
        except MainspringError as error:
            logger.error("a scheduled event could not be stored, trying again: %s", error)
            self._check_all = True
            self.plan(self._clock.wall_ms() + RETRY_MS)
        finally:
            self._firing = False

    async def _notice_clock(self) -> None:
        """After a clock was set back no delayed event waits for longer than its own delay, counted from now."""
        before, now = self._ahead, self._clock.wall_ms()
        ahead = now - self._clock.now_ms()
        if before is None or ahead <= before - CLOCK_JUMP_MS or self._accepted_ms > now + CLOCK_JUMP_MS:
            await self._wait_from_now(before, ahead, now)
            self._accepted_ms = now
        self._ahead = ahead  # not before: when the log cannot write, it is tried again

    async def _wait_from_now(self, before: int | None, ahead: int, now: int) -> None:
        async for record in self._log.scan(SPACE, DELAYED):
            due, row = _due_of(record.key), _decode_delayed(record.value)
            if row.accepted <= now:
                continue
            left = due - row.accepted  # all of it; less where it is known how much of that has passed
            if before is not None:
                left = min(left, due + ahead - before - now)
            batch = Batch()
            self._role.guard(batch)
            batch.delete(SPACE, record.key, expect=record.version)
            moved = f"{DELAYED}{now + max(0, left):016d}/{record.key.rpartition('/')[2]}"
            batch.put(SPACE, moved, _encode(msgspec.structs.replace(row, accepted=now)))
            try:
                await self._log.commit(batch)
                logger.warning("the clock was set back: an event of %s waits for %d ms from now", row.topic, left)
            except Refused:
                continue  # another node was faster

    async def _fire_delayed(self) -> None:
        now = self._clock.wall_ms()
        due: list[Record] = []
        following = None
        async for record in self._log.scan(SPACE, DELAYED):
            at = _due_of(record.key)
            if at > now or len(due) >= PAGE:
                following = at
                break
            due.append(record)
        submitted = [self._submit_delayed(record, now) for record in due]
        for result in await asyncio.gather(*submitted, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, Refused):
                raise result
        if following is not None:
            self.plan(following)

    def _submit_delayed(self, record: Record, now: int) -> asyncio.Future[Sequence[Placed]]:
        row = _decode_delayed(record.value)
        batch = Batch()
        self._role.guard(batch)
        batch.delete(SPACE, record.key, expect=record.version)
        batch.append(
            Append(
                topic=row.topic,
                partition=row.partition,
                id=row.id,
                ts=now,
                payload=bytes(row.payload),
                key=row.key,
                headers=None if row.headers is None else _encode(row.headers),
                dedupe=row.dedupe,
                dedupe_until=now + row.dedupe_ms if row.dedupe is not None else 0,
            )
        )
        topic = self._topics.find_or_add(row.topic)
        if row.headers is not None and EXPIRES in row.headers:
            topic.has_expiring_events()
        return self._publisher.commit_batch(batch, (topic,))

    async def _fire_named(self) -> None:
        now = self._clock.wall_ms()
        if self._check_all:
            self._check_all = False
            await self._reschedule_all(now)
        due = self._pop_due(now)
        if len(due) == PAGE:
            self._again = True
        results = await asyncio.gather(*(self._fire_one(*each, now) for each in due), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if (first := self._first()) is not None:
            self.plan(first)

    def _first(self) -> int | None:
        """The next time of all; what the heap holds of former versions before it is dropped."""
        while self._heap:
            at, version, name = self._heap[0]
            schedule, current = self._named.get(name, (None, ABSENT))
            if schedule is not None and current == version:
                return at
            heapq.heappop(self._heap)
        return None

    def _pop_due(self, now: int) -> list[tuple[Schedule, int]]:
        due: list[tuple[Schedule, int]] = []
        while len(due) < PAGE and (first := self._first()) is not None and first <= now:
            due.append(self._named[heapq.heappop(self._heap)[2]])
        return due

    async def _reschedule_all(self, now: int) -> None:
        """After the clock was set: intervals whose next time is now far away count from now."""
        for name, (schedule, version) in list(self._named.items()):
            moved = None if schedule.paused else schedule.rescheduled(now)
            if moved is not None:
                logger.warning("the clock was set back: the schedule %s counts from now", name)
                batch = Batch()
                self._role.guard(batch)
                batch.put(SPACE, NAMED + name, _encode(moved), expect=version)
                try:
                    self._keep(moved, (await self._log.commit(batch)).versions[0])
                except Refused:
                    await self._look_again(name)

    async def _fire_one(self, schedule: Schedule, version: int, now: int) -> None:
        batch = Batch()
        self._role.guard(batch)
        try:
            why = await self._unsettled(schedule.topic) if schedule.overlap == "skip" else ""
            if refusal := await self._refusal(schedule):
                await self._stop(schedule, version, batch, refusal)
            elif why:
                await self._skip(schedule, version, now, batch, why)
            else:
                await self._publish(schedule.planned(now), version, now, batch)
        except Refused:  # someone else changed or fired it
            await self._look_again(schedule.name)
        except BaseException:
            heapq.heappush(self._heap, (schedule.next_ms, version, schedule.name))
            raise

    async def _publish(self, schedule: Schedule, version: int, now: int, batch: Batch) -> Published:
        """Publish the event in one commit with the schedule as it is then. Raises Refused when it changed meanwhile.

        Its time is the one from which the next was planned: however long this takes, the next one's is another.
        """
        topic = self._topics.find_or_add(schedule.topic)
        moved = msgspec.structs.replace(schedule, last_ms=now)
        batch.put(SPACE, NAMED + schedule.name, _encode(moved), expect=version)
        event = self._admission.own_event(topic, bytes(schedule.payload), schedule.key, schedule.headers, now)
        accepted = Accepted(topic, [event])
        stored = add_prepared(batch, [self._publisher.prepare(accepted)])
        receipt = await self._log.commit(batch)
        stored(receipt)
        self._keep(moved, receipt.versions[0])
        return accepted.published(receipt.offsets)[0]

    async def _refusal(self, schedule: Schedule) -> str:
        """Why its owner may not publish this any more; "" where it may, or where nobody is its owner."""
        owner = schedule.owner or _former_owner(schedule)
        if owner is None:
            return ""
        try:
            await self._admission.access.check_owner(schedule.topic, owner)
        except Forbidden as error:
            return error.message
        return ""

    async def _stop(self, schedule: Schedule, version: int, batch: Batch, why: str) -> None:
        """Its owner has lost the right: it waits until somebody who has it resumes it."""
        paused = msgspec.structs.replace(schedule, paused=True)
        batch.put(SPACE, NAMED + schedule.name, _encode(paused), expect=version)
        call = LastCall(result="skipped", at_ms=self._clock.wall_ms(), reason=why)
        stored = add_prepared(batch, [self.called(schedule.name, call)])
        receipt = await self._log.commit(batch)
        stored(receipt)
        self._keep(paused, receipt.versions[0])
        self._audit.did("schedule_paused", schedule.owner, schedule.name, topic=schedule.topic, reason=why)

    async def _skip(self, schedule: Schedule, version: int, now: int, batch: Batch, why: str) -> None:
        moved = schedule.planned(now)
        batch.put(SPACE, NAMED + schedule.name, _encode(moved), expect=version)
        call = LastCall(result="skipped", at_ms=now, reason=why)
        stored = add_prepared(batch, [self.called(schedule.name, call)])
        receipt = await self._log.commit(batch)
        stored(receipt)
        self._keep(moved, receipt.versions[0])
        logger.info("the schedule %s was skipped: %s", schedule.name, why)

    async def _look_again(self, name: str) -> None:
        """What is kept in memory was not what the log has."""
        record = await self._log.get(SPACE, NAMED + name)
        if record is None:
            self._forget(name)
        elif (schedule := _readable(record)) is not None:
            self._named.pop(name, None)
            self._keep(schedule, record.version)


def _readable(record: Record | None) -> Schedule | None:
    try:
        return None if record is None else _decode_schedule(record.value)
    except msgspec.DecodeError:
        return None


def _former_owner(schedule: Schedule) -> str | None:
    """Version 0.1 wrote who made a schedule into its headers alone, and the scopes of the token beside it."""
    headers = schedule.headers or {}
    return headers.get("agent_id") if "scopes" in headers else None


def _known(name: str, schedule: Schedule | None) -> Schedule:
    if schedule is None:
        raise UnknownSchedule(f"there is no schedule {name!r}", remedy="`mainspring schedules list` shows them")
    return schedule


def _due_of(key: str) -> int:
    return int(key[len(DELAYED) : len(DELAYED) + 16])


def read_row(key: str, value: bytes) -> None:
    """Raise where a row is neither a schedule nor a delayed event, or could never fire."""
    if key.startswith(DELAYED):
        _due_of(key)
        _decode_delayed(value)
        return
    schedule = _decode_schedule(value)
    if key != NAMED + schedule.name:
        raise ValueError("it is of another schedule")
    if not schedule.every:
        cron_line(schedule.cron or "", schedule.timezone)


def read_call(_: str, value: bytes) -> None:
    """Raise where a record does not say how a call went."""
    _decode_call(value)
