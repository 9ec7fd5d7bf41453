"""`Bus`: the one door to topics, groups and events. WebSocket, HTTP, capabilities and the command line all use it.

It builds the parts and hands requests to them; the ideas are in the parts. `Publisher` is the one way to the log,
`Group` the state machine of delivery, `Delivery` its driver, `Session` one connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec

from mainspring.bus.access.access import Access, Action, Caller, Checker, Who, readable_events
from mainspring.bus.access.patterns import Pattern
from mainspring.bus.access.tokens import TokenSource
from mainspring.bus.audit import AUDIT_TOPIC, Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.disk import DiskGuard
from mainspring.bus.errors import BadOffset, BusError, Conflict, Forbidden, Unavailable, hidden_schedule
from mainspring.bus.groups.dead_letters import DeadLetterQueue, DeadLetterWriter
from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.local import LocalSupply
from mainspring.bus.groups.position import COPIES
from mainspring.bus.groups.position import SPACE as GROUPS
from mainspring.bus.groups.registry import OWNERS, TTLS, GroupRegistry
from mainspring.bus.groups.shared.records import (
    CLAIMS,
    MEMBERS,
    read_claim,
    read_copy,
    read_owner,
    read_position,
    read_presence,
    read_ttl,
)
from mainspring.bus.groups.shared.supply import SharedSupply
from mainspring.bus.groups.supply import Supply
from mainspring.bus.names import DEAD_LETTERS, check_name
from mainspring.bus.publishing.admission import Admission, check_event, check_headers
from mainspring.bus.publishing.publisher import Accepted, Publisher
from mainspring.bus.quotas import UNLIMITED, Quotas
from mainspring.bus.results import DeadLetterFilter, NewEvent, Published, ReadyState, Stats
from mainspring.bus.schedules.schedule import Schedule, ScheduleInfo
from mainspring.bus.schedules.schedules import CALLS, Schedules, read_call, read_row
from mainspring.bus.schedules.schedules import SPACE as SCHEDULES
from mainspring.bus.schemas.registry import SPACE as SCHEMAS
from mainspring.bus.schemas.registry import Compatibility, SchemaRegistry, SchemaVersion, read_schema
from mainspring.bus.session import Session
from mainspring.bus.task_calls import TaskCalls
from mainspring.bus.topics.compaction import SPACE as COMPACTION
from mainspring.bus.topics.compaction import read_progress
from mainspring.bus.topics.config import TopicChange, TopicConfig
from mainspring.bus.topics.follow import Entry, follow, read_on, sound
from mainspring.bus.topics.housekeeping import Housekeeping
from mainspring.bus.topics.registry import SPACE as TOPICS
from mainspring.bus.topics.registry import TopicRegistry, read_topic
from mainspring.bus.topics.topic import Topic
from mainspring.cluster import Alone, Cluster
from mainspring.durations import Duration, duration_ms
from mainspring.errors import MainspringError
from mainspring.log import DamagedEvent, KeptRecord, Log, Prepared, Reader, Room, StoredEvent
from mainspring.loop import BackgroundTasks, Clock, Loop
from mainspring.settings import Settings

logger: logging.Logger = logging.getLogger("mainspring.bus")

T = TypeVar("T")

METRICS_TOPIC = "system.metrics"
MAX_PAGE = 10_000


class Bus:
    """Durable topics, groups, leases, dead letters and replay.

    Every method that takes `agent` obeys the topic's access lists for that agent (None: an agent without a name) and
    raises `Forbidden`. A `Caller` is someone outside: the scopes of its token and the program's checker count as well.
    Names are checked (`BadFrame`). Reading methods raise `UnknownTopic` for a topic that was never created, published
    or subscribed to. Errors are subclasses of `mainspring.bus.BusError`.

    The tables of everything the bus keeps are its attributes: `topics`, `groups`, `dead_letters`, `schemas`,
    `schedules`, `task_calls`; `access` decides who may, and `audit` writes down who was refused and who changed
    something.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        loop: Loop,
        *,
        settings: Settings,
        new_id: Callable[[], str],
        random: Callable[[], float],
        checker: Checker | None = None,
        cluster: Cluster | None = None,
        tokens: TokenSource | None = None,
        room: Callable[[], Awaitable[Room | None]] | None = None,
    ) -> None:
        """`log` is open before `start` and closed after `stop`. `new_id` gives UUIDv7 text; `random` is in [0, 1).

        `cluster`: the other nodes on this log, joined before `start` and left after `stop`; None: there are none.
        `tokens`: those the node accepts; they say what the owner of a schedule may do when it fires. `room`: how much
        there is for the log; the engine is asked otherwise.
        """
        self.settings = settings
        self.clock = clock
        self.quotas: Quotas = Quotas(settings, clock)
        self.loop: Loop = loop
        self.counters: BusCounters = BusCounters()
        self._log = log
        log.records.use(RECORD_READERS)
        self._new_id = new_id
        others = None if isinstance(cluster, Alone) else cluster
        roles = cluster or Alone()
        self._own_headers = None if others is None else {"node": others.node}  # whose numbers they are
        self.audit: Audit = Audit(
            loop, partial(self._write, AUDIT_TOPIC), enabled=settings.audit, shared=others is not None
        )
        audit = self.audit
        self.topics: TopicRegistry = TopicRegistry(log, clock, settings, shared=others is not None)
        scopes_of = tokens.scopes_of if tokens is not None and tokens.is_required else None
        self.access: Access = Access(
            clock, self.topics.config_of, checker=checker, ttl_ms=settings.checker_ttl_ms, scopes_of=scopes_of
        )
        self.access.closed = self.topics.closed
        self.schemas: SchemaRegistry = SchemaRegistry(log, clock)
        self._supply: Supply = (
            LocalSupply(log, clock, loop, roles.suspects)
            if others is None
            else SharedSupply(log, clock, loop, self.topics, others)
        )
        self.delivery: Delivery = Delivery(log, clock, loop, self.counters, audit, self._supply)
        role = roles.role("housekeeping")
        self.groups: GroupRegistry = GroupRegistry(log, loop, self.topics, self.delivery, self._supply, audit, role)
        self.access.owner_of = self.groups.owner_of
        self.admission: Admission = Admission(
            clock,
            self.topics,
            self.access,
            self.schemas,
            settings,
            new_id=new_id,
            random=random,
            takes_many=log.takes_many,
        )
        self.disk: DiskGuard = DiskGuard(log, loop, settings, self.admission, room or log.room)
        self.publisher: Publisher = Publisher(log, self.counters, audit, self.delivery.appended, self.topics.store_new)
        self.schedules: Schedules = Schedules(
            log,
            clock,
            loop,
            self.topics,
            self.admission,
            self.publisher,
            self.delivery,
            roles.role("schedules"),
            self.groups.unsettled,
            audit,
        )
        self.publisher.store_delayed = self.schedules.store_delayed
        letters = DeadLetterWriter(log, clock, self.delivery, self.publisher, self.counters, audit, self.topics, new_id)
        self.delivery.write_dead_letters = letters.write
        self.dead_letters: DeadLetterQueue = DeadLetterQueue(
            log, self.topics, self.groups, self._supply, self.admission, self.publisher, audit
        )
        self.task_calls: TaskCalls = TaskCalls(
            self, log, clock, self.topics, self.groups, self.dead_letters, self.schedules, self.access, audit
        )
        self._housekeeping = Housekeeping(
            log, clock, loop, self.delivery, self.topics, settings, role, self._write_metrics, self.groups
        )
        self._sessions: set[Session] = set()
        self._state: Literal["new", "ready", "draining", "stopped"] = "new"

    # -- life

    async def start(self) -> None:
        """Load topics, groups and schedules; start background work. Call once, on the running asyncio loop."""
        self._supply.listen(
            {
                TOPICS: self._on_topic_changed,
                SCHEMAS: self.schemas.on_changed,
                SCHEDULES: self.schedules.on_changed,
                CALLS: self.schedules.on_called,
                OWNERS: self.groups.on_owner_changed,
                TTLS: self.groups.on_ttl_changed,
            }
        )
        await self.topics.start()
        await self.schemas.start()
        await self.groups.start()
        await self.schedules.start()
        await self._supply.catch_up()
        self._housekeeping.start()
        await self.disk.start(self.delivery.run)
        self._state = "ready"

    async def drain(self) -> None:
        """Refuse new requests (`Unavailable`), wait until everything accepted is durable and answered."""
        if self._state == "ready":
            self._state = "draining"
            fault = self._log.fault
            self.admission.close("the node is stopping" if fault is None else f"the node stops: {fault.message}")
            self.schedules.stop()
            await self.publisher.idle()

    async def stop(self) -> None:
        """Give back leases, write positions, end background work. Idempotent."""
        if self._state == "stopped":
            return
        await self.drain()
        self._state = "stopped"
        self._housekeeping.stop()
        self.disk.stop()
        for session in list(self._sessions):
            session.close()
        for topic in self.topics.all():
            for follower in topic.followers:
                follower.set()
        self.audit.flush()
        await self.publisher.idle()
        await self._supply.stop()
        await self.delivery.close()
        self.schemas.close()

    def readiness(self) -> ReadyState:
        """Ready between `start` and `drain`."""
        if self._state == "ready":
            return ReadyState(True)
        return ReadyState(False, {"new": "starting", "draining": "stopping", "stopped": "stopped"}[self._state])

    # -- connections

    def open_session(self, agent: Who, send: Callable[[bytes], None]) -> Session:
        """A connection of `agent` (a plain name counts as claimed).

        `send` takes one frame (JSON text as UTF-8), never blocks and never raises.

        `session.receive(text)` takes one frame; `session.close()` releases its leases at once.
        """
        caller = agent if isinstance(agent, Caller) else Caller(agent, sid=self._new_id())
        session = Session(self, caller, send)
        self._sessions.add(session)
        self.counters.connections += 1
        return session

    def closed_session(self, session: Session) -> None:
        """Called by the session itself."""
        self._sessions.discard(session)
        self.counters.connections -= 1

    # -- topics

    async def put_topic(self, config: TopicConfig, *, agent: Who = None) -> TopicChange:
        """Create or change a topic; durable when it returns. Raises Conflict when partitions would shrink.

        Subscriptions that new access lists no longer allow end.
        """
        self.access.check_admin(agent, "change topics")
        await self.access.check(config.topic, "publish", agent)
        change = await self.topics.put(config)
        self._recheck(config.topic)
        if agent is not None:
            self.audit.did("changed", agent, "settings of a topic", topic=config.topic)
        return change

    async def purge_topic(self, name: str, *, agent: Who = None) -> int:
        """Remove every event of a topic that is stored now; how many. Its groups and settings stay."""
        topic = await self._to_be_emptied(name, agent)
        removed = await _or_unavailable(self.topics.purge(topic))
        self.audit.did("deleted", agent, f"{removed} events of a topic", topic=name)
        return removed

    async def delete_topic(self, name: str, *, agent: Who = None) -> None:
        """Delete a topic with its groups, schedules, delayed events, schemas and dead letters; durable when it returns.

        Its offsets are never used again, also not by a topic that is made anew under the name. Raises Conflict while a
        group of it has members.
        """
        topic = await self._to_be_emptied(name, agent)
        letters = self.topics.find(name + DEAD_LETTERS)
        going = [each for each in (letters, topic) if each is not None and each.exists]
        for each in going:
            self.groups.check_unused(each)
        for each in going:
            await _or_unavailable(self._delete_topic(each))
            self.audit.did("deleted", agent, "a topic", topic=each.name)

    async def _delete_topic(self, topic: Topic) -> None:
        await self.schedules.delete_of(topic.name)
        for group in list(topic.groups.values()):
            await self.groups.delete(topic.name, group.name)
        await self.schemas.delete(topic.name)
        await self.topics.delete(topic)
        self._recheck(topic.name)

    async def delete_group(self, topic: str, name: str, *, agent: Who = None) -> None:
        """Delete a group: where it stands and what its members must get again. Raises Conflict while it has some."""
        await self.groups.delete(topic, name)
        self.audit.did("deleted", agent, f"group {name}", topic=topic)

    async def drop_dead_letters(self, topic: str, wanted: DeadLetterFilter, *, agent: Who = None) -> int:
        """Drop dead letters that fit; how many."""
        dropped = await self.dead_letters.drop(topic, wanted)
        if dropped:
            self.audit.did("deleted", agent, f"{dropped} dead letters", topic=topic)
        return dropped

    async def _to_be_emptied(self, name: str, agent: Who) -> Topic:
        self.access.check_admin(agent, "delete events")
        await self.access.check(name, "publish", agent)
        topic = self.topics.get(name)
        if topic.is_system:
            raise Conflict(f"{name!r} is the node's own", remedy="its retention keeps it small")
        return topic

    def _on_topic_changed(self, record: KeptRecord) -> None:
        topic = self.topics.on_changed(record)
        if topic is not None:
            self._recheck(topic.name)

    def _recheck(self, topic: str) -> None:
        """The topic's lists changed: whoever reads it, or its dead letters, is looked at again."""
        for session in list(self._sessions):
            session.recheck(topic)
        name = topic
        while (found := self.topics.find(name)) is not None:
            for follower in found.followers:
                follower.set()
            name += DEAD_LETTERS

    async def ensure_topic(self, name: str) -> None:
        """Make a topic with default settings unless it exists; durable when it returns."""
        topic = self.topics.open(name)
        if not topic.stored:
            await self.put_topic(topic.config)

    # -- publishing

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        delay_ms: int = 0,
        not_before: int = 0,
        ttl: Duration = 0,
        expect: int | None = None,
        agent: Who = None,
    ) -> Published:
        """Store one event; durable when it returns. `payload` is JSON text (checked).

        When `ttl` has passed since it was stored (0: never), groups that have not handled it do not get it any more.
        """
        event = NewEvent(payload, key, check_headers(headers), id, delay_ms, not_before, duration_ms(ttl) if ttl else 0)
        return (await self._publish(topic, (event,), agent, expect))[0]

    async def publish_batch(self, topic: str, events: Sequence[NewEvent], *, agent: Who = None) -> list[Published]:
        """Store all events or none; answers in the order of the events."""
        return await self._publish(topic, events, agent, None) if events else []

    async def _publish(self, topic: str, events: Sequence[NewEvent], agent: Who, expect: int | None) -> list[Published]:
        for event in events:
            check_event(event)
        waiting = self.access.ask(topic, "publish", agent)
        if waiting is not None:
            await waiting
        return await self.publisher.store(self.admission.accept(topic, events, agent, expect=expect))

    def prepare(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None,
        headers: Mapping[str, str] | None,
        id: str,
        ttl: Duration = 0,
    ) -> Prepared:
        """Publish within a batch of the caller's own (`mainspring.log.add_prepared`).

        The event's `id` makes it exactly one: the same id within the dedupe window is stored once.
        """
        event = NewEvent(payload, key, check_headers(headers), id, ttl_ms=duration_ms(ttl) if ttl else 0)
        check_event(event)
        return self.publisher.prepare(self.admission.accept(topic, (event,), None, limited=False))

    # -- reading

    async def read(
        self, topic: str, partition: int, offset: int, limit: int, *, agent: Who = None
    ) -> list[StoredEvent]:
        """Up to `limit` events from `offset` on (0 and 1: the beginning), ascending. Damaged ones are only reported."""
        return sound(await self.entries(topic, partition, offset, limit, agent=agent))

    async def entries(self, topic: str, partition: int, offset: int, limit: int, *, agent: Who = None) -> list[Entry]:
        """`read` with the damaged events in their places."""
        upcaster = (await self._readable(topic, agent, partition)).upcaster
        entries: list[Entry] = []
        while found := await read_on(self._log, topic, partition, max(1, offset), min(limit, MAX_PAGE)):
            if entries := readable_events(agent, topic, found):
                break
            offset = found[-1].offset + 1  # none of them is for this reader
        return _upcast(entries, upcaster)

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        """The lowest offset whose event has `ts` (epoch ms) or later; tail + 1 when there is none."""
        return await self._log.offset_at(self.topics.get(topic).name, partition, ts)

    async def follow(
        self, topic: str, *, after: Mapping[int, int] | None = None, agent: Who = None
    ) -> AsyncIterator[list[StoredEvent]]:
        """Events as they come, in lists, until the caller stops iterating or the bus stops.

        `after` gives the last offset already seen of each partition; a partition not named starts behind its tail of
        now, and with `after=None` all do. Within a partition offsets ascend and nothing is left out but damaged events,
        which are reported.
        """
        async for entries in self.follow_entries(topic, after=after, agent=agent):
            if events := sound(entries):
                yield events

    async def follow_entries(
        self, topic: str, *, after: Mapping[int, int] | None = None, agent: Who = None
    ) -> AsyncIterator[list[Entry]]:
        """`follow` with the damaged events in their places."""
        state = await self._readable(topic, agent)
        await self.topics.load(state)

        async def check() -> None:
            if isinstance(agent, Caller):
                await self.access.check(topic, "subscribe", agent)

        async for entries in follow(self._log, state, after, lambda: self._state == "stopped", check):
            if entries := readable_events(agent, topic, entries):
                yield _upcast(entries, state.upcaster)

    async def follow_pattern(
        self, pattern: str, after: Mapping[str, Mapping[int, int]], *, agent: Who = None
    ) -> AsyncIterator[list[Entry]]:
        """`follow_entries` for every topic whose name fits and that `agent` may read; each list is of one topic.

        `after` is by topic. One that is not named there, or appears later, is followed from its beginning.
        """
        wanted, arrived = Pattern(pattern), asyncio.Queue[list[Entry]](1)
        following, names = BackgroundTasks(logger, "followers of a pattern"), set[str]()

        async def follow_one(name: str) -> None:
            with suppress(Forbidden):
                await self.ensure_topic(name)
                begin = dict.fromkeys(range(self.topics.get(name).config.partitions), 0)
                async for entries in self.follow_entries(name, after={**begin, **after.get(name, {})}, agent=agent):
                    await arrived.put(entries)

        def begin(name: str) -> None:
            if name not in names and wanted.covers_topic(name):
                names.add(name)
                following.start(follow_one(name), f"follow {name}")

        self.topics.on_new.append(begin)
        try:
            for topic in self.topics.all():
                if topic.exists:
                    begin(topic.name)
            while self._state != "stopped":
                yield await arrived.get()
        finally:
            self.topics.on_new.remove(begin)
            await following.cancel()

    async def _readable(self, name: str, agent: Who, partition: int = 0) -> Topic:
        await self.access.check(name, "subscribe", agent)  # first: who may not know of it is told the same either way
        topic = self.topics.get(name)
        if not 0 <= partition < topic.config.partitions:
            raise BadOffset(f"topic {name!r} has partitions 0 to {topic.config.partitions - 1}, not {partition}")
        return topic

    # -- schemas

    async def register_schema(
        self, topic: str, schema: Any, *, compatibility: Compatibility | None = None, agent: Who = None
    ) -> tuple[SchemaVersion, bool]:
        """Make a JSON Schema or a Python type the latest version of the topic's schema; durable when it returns.

        Gives the version, and whether it is new. Raises SchemaIncompatible with the differences, and BadSchema.
        """
        self.access.check_admin(agent, "register schemas")
        await self.access.check(topic, "publish", agent)
        registered = await self.schemas.register(topic, schema, compatibility)
        if agent is not None:
            self.audit.did("changed", agent, "schema of a topic", topic=topic)
        return registered

    # -- schedules

    async def put_schedule(self, schedule: Schedule, *, agent: Who = None) -> Schedule:
        """Create or replace the schedule of this name; durable when it returns, with `next_ms` filled in."""
        check_name("topic", schedule.topic)
        await self.access.check(schedule.topic, "publish", agent)
        other = self.schedules.find(schedule.name)
        if other is not None:  # replacing one takes it away from its topic
            await self.access.check(other.topic, "publish", agent)
        schedule.check()
        quota = agent.quota if isinstance(agent, Caller) else UNLIMITED
        return await self.schedules.put(self.admission.accept_schedule(schedule, agent), quota)

    async def check_schedule(self, name: str, agent: Who, action: Action | None = "publish") -> ScheduleInfo:
        """The schedule, if `agent` may do this with its topic (None: know of it). Raises UnknownSchedule, Forbidden.

        A limited token is told the same of one that is not there as of one that it may not see.
        """
        schedule = self.schedules.find(name)
        if schedule is None:
            if isinstance(agent, Caller) and agent.is_limited:
                raise hidden_schedule(name)
            return self.schedules.get(name)
        if schedule.topic not in await self.access.visible(agent, [schedule.topic]):
            raise hidden_schedule(name)
        if action is not None:
            await self.access.check(schedule.topic, action, agent)
        return schedule

    async def resume_schedule(self, name: str, *, agent: Who = None) -> ScheduleInfo:
        """Let a paused schedule go on from now, in the name of `agent` where a token proves it."""
        schedule = await self.check_schedule(name, agent)
        if isinstance(agent, Caller) and agent.is_proven and schedule.owner not in (None, agent.agent):
            known = {each: getattr(schedule, each) for each in Schedule.__struct_fields__}
            await self.schedules.put(self.admission.accept_schedule(Schedule(**known), agent))
        return await self.schedules.resume(name)

    # -- numbers

    def stats(self) -> Stats:
        """Counters since the start, and gauges of now."""
        return self.counters.snapshot(self.topics.all(), self.quotas.refused, self.disk.state)

    # -- what the node writes itself

    def _write_metrics(self) -> None:
        if not self.disk.is_full:
            stats = msgspec.structs.replace(self.stats(), disk=msgspec.UNSET)  # it names topics
            self._write(METRICS_TOPIC, [msgspec.json.encode(stats)])

    def _write(self, name: str, payloads: Sequence[bytes]) -> None:
        topic = self.topics.open(name)
        events = [self.admission.own_event(topic, payload, headers=self._own_headers) for payload in payloads]
        self.publisher.submit(Accepted(topic, events))


async def _or_unavailable(work: Awaitable[T]) -> T:
    try:
        return await work
    except BusError:
        raise
    except MainspringError as error:
        raise Unavailable(f"the topic could not be changed: {error.message}", remedy=error.remedy) from error


def _upcast(entries: list[Entry], upcaster: Callable[[StoredEvent], StoredEvent] | None) -> list[Entry]:
    if upcaster is None:
        return entries
    return [entry if isinstance(entry, DamagedEvent) else upcaster(entry) for entry in entries]


# How each kind of record that the bus writes is read, by space.
RECORD_READERS: Final[Mapping[str, Reader]] = {
    TOPICS: read_topic,
    SCHEMAS: read_schema,
    SCHEDULES: read_row,
    CALLS: read_call,
    COMPACTION: read_progress,
    GROUPS: read_position,
    COPIES: read_copy,
    CLAIMS: read_claim,
    MEMBERS: read_presence,
    OWNERS: read_owner,
    TTLS: read_ttl,
}
