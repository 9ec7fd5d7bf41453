"""Delayed events and schedules: rows in the log that become events when their time comes.

A delayed event is kept under its due time; when it is due, one batch appends it to its topic and deletes the row. A
schedule (`every`, cron) is kept under its name with the time it fires next; when it fires, one batch appends the event
and moves that time on. So a node that dies in between has done both or neither: nothing is lost and nothing doubled.
Of several nodes on one log, the one that has the role fires. Both batches carry its guard and the version of the row
they replace, so that nothing fires twice for one due time, also not while the role changes hands.

A delayed event gets its offset when it is due, not when it is accepted. Giving it one at once would leave it below
every group's cursor as an open event for as long as it waits, hold back every commit, and make an hour of delayed
events an hour of memory.

Memory does not grow with the number of delayed events: rows are read in the order of their time, when it has come. A
firing missed while no node ran is made up once.

The reasons are in docs/decisions/schedules.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from mainspring.bus.errors import BadFrame, Unavailable, UnknownSchedule
from mainspring.bus.names import check_name
from mainspring.bus.protocol import EXPIRES
from mainspring.bus.publishing.admission import Admission
from mainspring.bus.publishing.publisher import Accepted, OnDone, Placed, Publisher
from mainspring.bus.schedules.cron import CronLine
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.cluster import Role
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Append, Batch, KeptRecord, Log, Record, Refused
from mainspring.loop import Clock, Loop

if TYPE_CHECKING:
    from mainspring.bus.groups.delivery import Delivery

logger: logging.Logger = logging.getLogger("mainspring.bus")

SPACE: Final = "schedules"
DELAYED: Final = "delayed/"
NAMED: Final = "named/"
PAGE: Final = 500
RETRY_MS: Final = 1_000
CLOCKS_DIFFER_MS: Final = 60_000  # by so much the clocks of nodes may differ without a grid being counted anew
LEAST_EVERY_MS: Final = 10
MOST_EVERY_MS: Final = 2**53

_encode = msgspec.json.Encoder().encode


class Schedule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An event published again and again: `every` ms, or as `cron` says (five fields, UTC). Exactly one of the two."""

    name: str
    topic: str
    payload: msgspec.Raw
    every: Annotated[int, msgspec.Meta(ge=LEAST_EVERY_MS, le=MOST_EVERY_MS)] | None = None
    cron: str | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    next_ms: int = 0

    def following(self, after_ms: int) -> int:
        """When it fires next, strictly after this instant. A grid of `every` is kept, however late a firing was."""
        if self.cron is not None:
            return CronLine(self.cron).next_after(after_ms)
        assert self.every is not None
        if not self.next_ms:
            return after_ms + self.every
        missed = max(0, after_ms - self.next_ms) // self.every
        return self.next_ms + (missed + 1) * self.every

    def rescheduled(self, now_ms: int) -> Schedule | None:
        """The same, counted from now, when the clock was set back so far that the next time is intervals away.

        Only for `every`, which is about time that passes. A cron line is about the time of day: what was called at that
        time today is not called again because the clock shows it a second time.
        """
        if self.every is None or self.next_ms - now_ms <= 2 * self.every + CLOCKS_DIFFER_MS:
            return None
        return msgspec.structs.replace(self, next_ms=now_ms + self.every)


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


_decode_delayed = msgspec.json.Decoder(_Delayed).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode


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
    ) -> None:
        self._role = role
        self._log = log
        self._clock = clock
        self._loop = loop
        self._topics = topics
        self._admission = admission
        self._publisher = publisher
        self._delivery = delivery
        self._named: dict[str, tuple[Schedule, int]] = {}
        self._timer: tuple[int, Hashable] | None = None
        self._firing = False
        self._again = False
        self._stopped = False

    async def start(self) -> None:
        async for record in self._log.scan(SPACE, NAMED):
            try:
                schedule = _decode_schedule(record.value)
            except msgspec.DecodeError as error:
                logger.error("schedule %r cannot be read and does not fire: %s", record.key, error)
                continue
            self._named[schedule.name] = (schedule, record.version)
        self._role.on_change(self._role_changed)

    def _role_changed(self, held: bool) -> None:
        if held:
            self._fire(None)

    def on_changed(self, record: KeptRecord) -> None:
        """A row was written or deleted, here or on another node."""
        if record.key.startswith(DELAYED):
            if record.version != ABSENT and self._role.held:
                self.plan(_due_of(record.key))
            return
        if record.version == ABSENT:
            self._named.pop(record.key.removeprefix(NAMED), None)
        else:
            self._keep(_decode_schedule(record.value), record.version)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._loop.cancel(self._timer[1])

    # -- delayed events

    def store_delayed(self, accepted: Accepted, on_done: OnDone) -> None:
        """Store accepted events of which some are due later: those have offset 0 until then."""
        batch = Batch()
        for append, due in zip(accepted.appends, accepted.due, strict=True):
            if due:
                self._put_delayed(batch, append, due)
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

    def _put_delayed(self, batch: Batch, append: Append, due_ms: int) -> None:
        row = _Delayed(
            topic=append.topic,
            partition=append.partition,
            id=append.id,
            payload=msgspec.Raw(append.payload),
            key=append.key,
            headers=None if append.headers is None else msgspec.json.decode(append.headers),
            dedupe=append.dedupe,
            dedupe_ms=max(0, append.dedupe_until - append.ts),
        )
        batch.put(SPACE, f"{DELAYED}{due_ms:016d}/{self._admission.new_id()}", _encode(row))

    def clock_moved(self) -> None:
        """The time of day jumped: the clock was set, or the machine slept. What was planned is not to be trusted."""
        if self._timer is not None:
            self._loop.cancel(self._timer[1])
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
        versions = dict.fromkeys(wanted, ABSENT)
        async for record in self._log.scan(SPACE, NAMED + prefix):
            name = record.key.removeprefix(NAMED)
            if name not in wanted:
                batch.delete(SPACE, record.key, expect=record.version)
                gone.append(name)
            elif _fires_like(record.value, wanted[name]):
                del versions[name]
            else:
                versions[name] = record.version
        for name, version in versions.items():
            put.append(self._from_now(wanted[name]))
            batch.put(SPACE, NAMED + name, _encode(put[-1]), expect=version)
        if not put and not gone:
            return
        receipt = await self._log.commit(batch)
        for name in gone:
            self._named.pop(name, None)
        for each, version in zip(put, receipt.versions, strict=True):
            self._keep(each, version)

    def _from_now(self, schedule: Schedule) -> Schedule:
        check_name("schedule", schedule.name)
        schedule = msgspec.structs.replace(schedule, next_ms=0)
        return msgspec.structs.replace(schedule, next_ms=schedule.following(self._clock.wall_ms()))

    def _keep(self, schedule: Schedule, version: int) -> None:
        """Remember this version of a schedule, unless a newer one is here, and plan its firing."""
        _, current = self._named.get(schedule.name, (None, ABSENT))
        if current < version:
            self._named[schedule.name] = (schedule, version)
            if self._role.held:
                self.plan(schedule.next_ms)

    async def put(self, schedule: Schedule) -> Schedule:
        if (schedule.every is None) == (schedule.cron is None):
            raise BadFrame("a schedule has either `every` or `cron`", remedy="give exactly one of them")
        if schedule.every is not None and not LEAST_EVERY_MS <= schedule.every <= MOST_EVERY_MS:
            raise BadFrame(f"`every` is {schedule.every} ms", remedy=f"give at least {LEAST_EVERY_MS} ms")
        self._topics.open(schedule.topic)
        schedule = self._from_now(schedule)
        batch = Batch()
        batch.put(SPACE, NAMED + schedule.name, _encode(schedule))
        try:
            receipt = await self._log.commit(batch)
        except MainspringError as error:
            raise Unavailable(f"the schedule could not be stored: {error.message}", remedy=error.remedy) from error
        self._keep(schedule, receipt.versions[0])
        return schedule

    def find(self, name: str) -> Schedule | None:
        schedule, _ = self._named.get(name, (None, ABSENT))
        return schedule

    def all(self) -> list[Schedule]:
        return [schedule for _, (schedule, _) in sorted(self._named.items())]

    async def delete(self, name: str) -> None:
        if name not in self._named:
            raise UnknownSchedule(f"there is no schedule {name!r}")
        batch = Batch()
        batch.delete(SPACE, NAMED + name)
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            raise Unavailable(f"the schedule could not be deleted: {error.message}", remedy=error.remedy) from error
        self._named.pop(name, None)

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
                await self._fire_named()
                await self._fire_delayed()
        except MainspringError as error:
            logger.error("a scheduled event could not be stored, trying again: %s", error)
            self.plan(self._clock.wall_ms() + RETRY_MS)
        finally:
            self._firing = False

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
        for name, (schedule, version) in list(self._named.items()):
            if schedule.next_ms <= now:
                await self._fire_one(name, schedule, version, now)
            elif moved := schedule.rescheduled(now):
                await self._reschedule(name, moved, version)
        for schedule, _ in self._named.values():
            self.plan(schedule.next_ms)

    async def _reschedule(self, name: str, moved: Schedule, version: int) -> None:
        logger.warning("the clock was set back: the schedule %s counts from now", name)
        batch = Batch()
        self._role.guard(batch)
        batch.put(SPACE, NAMED + name, _encode(moved), expect=version)
        with contextlib.suppress(Refused):  # someone else changed or fired it
            receipt = await self._log.commit(batch)
            self._named[name] = (moved, receipt.versions[0])

    async def _fire_one(self, name: str, schedule: Schedule, version: int, now: int) -> None:
        topic = self._topics.find_or_add(schedule.topic)
        moved = msgspec.structs.replace(schedule, next_ms=schedule.following(now))
        batch = Batch()
        self._role.guard(batch)
        batch.put(SPACE, NAMED + name, _encode(moved), expect=version)
        batch.append(self._admission.own_event(topic, bytes(schedule.payload), schedule.key, schedule.headers))
        with contextlib.suppress(Refused):  # someone else changed or fired it
            await self._publisher.commit_batch(batch, (topic,))
        record = await self._log.get(SPACE, NAMED + name)
        if record is None:
            self._named.pop(name, None)
        else:
            self._named[name] = (_decode_schedule(record.value), record.version)


def _fires_like(stored: bytes, wanted: Schedule) -> bool:
    """At the same times, into the same topic."""
    try:
        schedule = _decode_schedule(stored)
    except msgspec.DecodeError:
        return False
    return (schedule.every, schedule.cron, schedule.topic) == (wanted.every, wanted.cron, wanted.topic)


def _due_of(key: str) -> int:
    return int(key[len(DELAYED) : len(DELAYED) + 16])
