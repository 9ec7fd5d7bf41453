"""One connection: decodes its frames, answers them in order, holds its subscriptions.

Answers come in the order of the requests, so a client needs no `corr` to match them. Requests that wait for the log
take a place in a queue of answers; an answer leaves when everything before it has left. A subscription begins to
deliver in the moment its OK leaves, never before.

`receive` never waits and never raises. A connection that sends faster than the log can store becomes `congested`; its
adapter then stops reading until `relieved`. A connection whose peer does not read is paused by its adapter: it keeps
what it has, gets no more deliveries, and slows no other connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.bus.access.access import NO_OWNER, Action, Caller, filter_replies, origin_of
from mainspring.bus.access.patterns import Pattern, is_pattern
from mainspring.bus.errors import (
    BusError,
    Forbidden,
    LimitReached,
    NotSubscribed,
    TooLarge,
    Unavailable,
    hidden_schedule,
)
from mainspring.bus.groups.group import Group
from mainspring.bus.groups.member import CountingMember, Gate, Member, MemberOrigin
from mainspring.bus.names import check_name
from mainspring.bus.protocol import (
    NOTHING,
    AckFrame,
    BatchEvent,
    ExtendFrame,
    Filter,
    FlowFrame,
    LeanBatchFrame,
    LeaseFrame,
    NackFrame,
    NamedBatchFrame,
    PublishBatchFrame,
    PublishFrame,
    Rejected,
    Request,
    ScheduleFrame,
    SubscribeFrame,
    UnscheduleFrame,
    UnsubscribeFrame,
    decode,
    decode_lean,
    decode_named,
    error_frame,
    is_named,
    ok_frame,
    published_frame,
    refusal_frame,
    type_of,
    with_corr,
)
from mainspring.bus.publishing.admission import with_sha256
from mainspring.bus.publishing.publisher import Accepted, OnDone, Placed, refusal
from mainspring.bus.publishing.rate_limit import bucket
from mainspring.bus.schedules.schedule import Schedule
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.loop import pause

if TYPE_CHECKING:
    from mainspring.bus.bus import Bus

logger: logging.Logger = logging.getLogger("mainspring.bus")

_to_json = msgspec.json.Encoder().encode

NO_FILTER: Final = Filter()
MOST_UNANSWERED: Final = 8_192  # requests without an answer before a connection is not read from
MOST_EVENTS: Final = 10_000  # of one batch, which is one commit: more would make everybody else wait for it
MOST_UNANSWERED_BYTES: Final = 8 << 20
RETRY_MS: Final = 1_000  # before a topic that fits a pattern is tried again


class Session:
    """A connection of the bus. `caller` is who it is; `send` takes one frame of JSON text and must not raise."""

    def __init__(self, bus: Bus, caller: Caller, send: Callable[[bytes], None]) -> None:
        self.caller = caller
        self.closed: bool = False
        self._bus = bus
        self._send = send
        self._gate = Gate()
        self._members: dict[tuple[str, str], tuple[Group, Member]] = {}
        self._wanted: set[tuple[str, str]] = set()  # subscriptions it has, or that are being made
        self._unanswered: dict[tuple[str, str], int] = {}  # how many SUBSCRIBEs of each wait for their OK
        self._windows: dict[tuple[str, str], int] = {}
        self._patterns: dict[tuple[str, str], tuple[Pattern, SubscribeFrame]] = {}
        self._joined_by: dict[tuple[str, str], str] = {}  # subscriptions that a pattern made, and which
        self._replies = ReplyQueue(send)
        self._blocked = False  # a SUBSCRIBE finds its start, or a checker has not answered: later frames wait
        self._waiting_frames: deque[bytes] = deque()
        settings = bus.settings
        self._has_checker = bus.access.has_checker
        self._accept = bus.admission.accept
        self._accept_lean = bus.admission.accept_lean
        self._is_lean = self._is_named_lean = bus.admission.takes_many  # until a batch comes that is not
        self._submit = bus.publisher.submit
        self._spend = caller.quota.spend
        self._bucket = bucket(settings.connection_rate, settings.connection_burst, bus.clock.now_ms())

    # -- the adapter's side

    def receive(self, data: bytes | str) -> None:
        """One text frame, in UTF-8."""
        if self.closed:
            return
        frame = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if self._blocked:
            self._waiting_frames.append(frame)
            self._replies.waiting_frames += 1
            self._replies.waiting_bytes += len(frame)
        else:
            self._handle(frame)

    def refuse(self, error: BusError) -> None:
        """Answer something that is no frame (binary data, or more than the adapter reads)."""
        self._replies.reply(error_frame(error))

    @property
    def congested(self) -> bool:
        """Whether the adapter should stop reading for now."""
        return self._replies.congested

    async def relieved(self) -> None:
        """Wait until the session is no longer congested."""
        await self._replies.relieved()

    def pause(self) -> None:
        """The peer does not read: no more deliveries."""
        self._gate.paused = True

    def resume(self) -> None:
        """The peer reads again: deliveries to it go on."""
        self._gate.paused = False
        self._wake_members()

    def close(self) -> None:
        """The connection is gone: give back every lease at once. Idempotent."""
        if self.closed:
            return
        self.closed = True
        now = self._bus.clock.now_ms()
        for key, (group, member) in list(self._members.items()):
            if isinstance(member, CountingMember) and not self._bus.admission.closed:
                member.lost(group.positions)
            self._leave(key, now)
        for key in list(self._wanted):
            self._drop_wanted(key)
        if self._patterns:
            self._bus.topics.on_new.remove(self._appeared)
        self._replies.close()
        self._waiting_frames.clear()
        self._bus.closed_session(self)

    # -- frames

    def _handle(self, data: bytes) -> None:
        if len(data) > self._bus.settings.max_frame_bytes:
            limit = self._bus.settings.max_frame_bytes
            self._replies.reply(error_frame(TooLarge(f"a frame may have {limit} bytes, this one has {len(data)}")))
            return
        request: Request | None = None
        if is_named(data):
            if self._is_named_lean:
                request = decode_named(data)
                self._is_named_lean = request is not None
        elif self._is_lean:
            request = decode_lean(data)
        try:
            if request is None:
                request = decode(data)
                if type(request) is PublishBatchFrame and request.batch_id is None:
                    self._is_lean = False
        except Rejected as rejected:
            self._replies.reply(with_corr(error_frame(rejected.error, rejected.about), rejected.corr))
            return
        if self._has_checker and type(request) in _CHECKED and self._is_undecided(request, data):
            return
        try:
            _HANDLERS[type(request)](self, request, len(data))
        except BusError as error:
            self._refuse(request, error)
        except Exception:
            logger.exception("a %s frame failed", type_of(request))
            self._refuse(request, BusError("the node failed to handle this frame", remedy="see the node's log"))

    def _refuse(self, request: Request, error: BusError) -> None:
        if isinstance(error, Forbidden):
            self._bus.audit.refused("right_refused", self.caller, type_of(request), error.message)
        self._replies.reply(refusal_frame(request, error))

    def _is_undecided(self, request: Any, data: bytes) -> bool:
        """Whether the node's checker takes its time; then this frame and those behind it wait for its answer."""
        if isinstance(request, SubscribeFrame) and is_pattern(request.topic):
            return False  # each topic that fits is asked for by itself
        action, caller = _CHECKED[type(request)], self._caller_of(request)
        waiting = self._bus.access.ask(request.topic, action, caller)
        if waiting is None:
            return False

        async def decide() -> None:
            await waiting
            self._blocked = False
            if not self.closed:
                self._handle(data)
                self._handle_waiting()

        self._blocked = True
        self._bus.delivery.run(decide())
        return True

    def _caller_of(self, frame: Any) -> Caller:
        """Who sends this frame. While names are only claimed, its headers name the agent if nothing else does."""
        caller = self.caller
        if caller.agent is not None or caller.is_proven:
            return caller
        if isinstance(frame, PublishBatchFrame):
            first = frame.events[0].headers
            if first is None:  # all of a batch must name the same one
                return caller
            named = {(event.headers or {}).get("agent_id") for event in frame.events}
            claimed = named.pop() if len(named) == 1 else None
        else:
            claimed = (getattr(frame, "headers", None) or {}).get("agent_id")
        return caller if claimed is None else Caller(claimed, sid=caller.sid, quota=caller.quota)

    def _publish(self, frame: PublishFrame, size: int) -> None:
        if frame.payload_sha256 is not None:
            frame = with_sha256(frame)
        self._spend(1, size)
        accepted = self._accept(frame.topic, (frame,), self._caller_of(frame), bucket=self._bucket, expect=frame.expect)
        self._submit(accepted, self._replies.publishing(accepted, frame.corr, size, is_batch=False))

    def _publish_lean(self, frame: LeanBatchFrame, size: int) -> None:
        self._spend_on_batch(len(frame.events), size)
        accepted = self._accept_lean(frame.topic, frame.events, self.caller, self._bucket)
        if accepted is None:
            events = [BatchEvent(event.payload, event.key) for event in frame.events]
            accepted = self._accept(frame.topic, events, self.caller, bucket=self._bucket)
        self._submit(accepted, self._replies.publishing(accepted, frame.corr, size, is_batch=True))

    def _publish_named(self, frame: NamedBatchFrame, size: int) -> None:
        self._spend_on_batch(len(frame.events), size)
        accepted = self._accept_lean(frame.topic, frame.events, self.caller, self._bucket, frame.batch_id)
        if accepted is None:
            events = [BatchEvent(event.payload, event.key, None, event.id) for event in frame.events]
            accepted = self._accept(frame.topic, events, self.caller, bucket=self._bucket, batch_id=frame.batch_id)
        self._submit(accepted, self._replies.publishing(accepted, frame.corr, size, is_batch=True))

    def _spend_on_batch(self, count: int, size: int) -> None:
        if count > MOST_EVENTS:
            raise TooLarge(f"a batch may have {MOST_EVENTS} events", remedy="send it in several frames")
        self._spend(count, size)

    def _publish_batch(self, frame: PublishBatchFrame, size: int) -> None:
        self._spend_on_batch(len(frame.events), size)
        events: Sequence[BatchEvent] = frame.events
        if any(event.payload_sha256 is not None for event in events):
            events = [with_sha256(event) for event in events]
        caller, batch_id = self._caller_of(frame), frame.batch_id
        accepted = self._accept(frame.topic, events, caller, bucket=self._bucket, batch_id=batch_id)
        self._submit(accepted, self._replies.publishing(accepted, frame.corr, size, is_batch=True))

    # -- subscriptions

    def _subscribe(self, frame: SubscribeFrame, size: int) -> None:
        if frame.start is not None:
            frame.start.checked()
        if is_pattern(frame.topic):
            self._subscribe_pattern(frame)
            return
        check_name("topic", frame.topic)
        self._bus.access.check_now(self._bus.topics.config_of(frame.topic), "subscribe", self.caller, frame.group)
        if self._bus.admission.closed:
            raise Unavailable("the node is stopping", remedy="subscribe again in a moment")
        self._reserve(frame)
        try:  # only now: what is refused leaves nothing behind
            topic = self._bus.topics.open(frame.topic, self.caller.quota)
        except BusError:
            self._unreserve(frame)
            raise
        reply = self._replies.place()
        self._blocked = True
        self._bus.delivery.run(self._find_start(frame, topic, reply))

    def _subscribe_pattern(self, frame: SubscribeFrame) -> None:
        """Every topic whose name fits and that the caller may read; those that appear from now on follow."""
        pattern = Pattern(frame.topic)
        if self._bus.admission.closed:
            raise Unavailable("the node is stopping", remedy="subscribe again in a moment")
        if not self._patterns:
            self._bus.topics.on_new.append(self._appeared)
        self._patterns[(frame.topic, frame.group)] = (pattern, frame)
        reply = self._replies.place()
        self._blocked = True
        self._bus.delivery.run(self._begin_pattern(frame, pattern, reply))

    async def _begin_pattern(self, frame: SubscribeFrame, pattern: Pattern, reply: PendingReply) -> None:
        """Until all of them are found, later frames of this connection wait."""
        found: list[tuple[SubscribeFrame, Group]] = []
        try:
            await self._replies.nothing_publishing()
            for topic in self._bus.topics.all():
                if topic.exists and pattern.covers_topic(topic.name):
                    found += await self._begin_of_pattern(frame, topic)
        except MainspringError as error:
            for each, _ in found:
                self._unreserve(each)
            self._forget_pattern((frame.topic, frame.group))
            refused = error if isinstance(error, BusError) else Unavailable(error.message, remedy=error.remedy)
            reply.frame = refusal_frame(frame, refused)
        else:
            reply.frame = ok_frame(frame, topic=frame.topic, group=frame.group)
            reply.on_sent = partial(self._join_all, found)
        self._blocked = False
        self._replies.flush()
        self._handle_waiting()

    def _join_all(self, found: list[tuple[SubscribeFrame, Group]]) -> None:
        for frame, group in found:
            self._join(frame, group)

    async def _begin_of_pattern(self, frame: SubscribeFrame, topic: Topic) -> list[tuple[SubscribeFrame, Group]]:
        """One topic of a pattern, and its group, which is stored; none when it is not the caller's to read."""
        key = (topic.name, frame.group)
        if key in self._wanted and self._joined_by.get(key) != frame.topic:
            return []  # it was subscribed to by its name, or by another pattern
        own = msgspec.structs.replace(frame, topic=topic.name)
        try:
            await self._bus.access.check(topic.name, "subscribe", self.caller, frame.group)
        except Forbidden:
            return []
        if self.closed:
            return []
        self._reserve(own)
        self._joined_by[key] = frame.topic
        try:
            start = None if key in self._members else frame.start
            group, unstored = await self._bus.groups.begin(topic, frame.group, start, self.caller.quota)
            if self.caller.is_proven:
                await self._bus.groups.claim(group, self.caller)
            if frame.group_ttl_ms is not None:
                await self._bus.groups.set_ttl(group, frame.group_ttl_ms)
            if unstored:
                await self._bus.groups.store(group)
        except Forbidden:  # another agent made the group a moment ago
            self._unreserve(own)
            return []
        except MainspringError:
            self._unreserve(own)
            raise
        return [(own, group)]

    def _appeared(self, name: str) -> None:
        """A topic begins to exist."""
        for pattern, frame in self._patterns.values():
            if pattern.covers_topic(name) and (name, frame.group) not in self._wanted:
                self._bus.delivery.run(self._join_new(frame, name))

    async def _join_new(self, frame: SubscribeFrame, name: str) -> None:
        """From its beginning, as soon as that can be stored."""
        from_beginning = msgspec.structs.replace(frame, start=None)
        while not self.closed and (frame.topic, frame.group) in self._patterns:
            try:
                await self._bus.ensure_topic(name)
                for each, group in await self._begin_of_pattern(from_beginning, self._bus.topics.open(name)):
                    self._join(each, group)
                return
            except LimitReached as error:
                self._replies.reply(error_frame(error, "", name, frame.group))
                return
            except MainspringError as error:
                logger.warning("a subscription of %s does not begin with %s yet: %s", frame.topic, name, error)
                await pause(self._bus.loop, RETRY_MS, ref=False)

    def _forget_pattern(self, key: tuple[str, str]) -> None:
        del self._patterns[key]
        if not self._patterns:
            self._bus.topics.on_new.remove(self._appeared)

    def _reserve(self, frame: SubscribeFrame) -> None:
        limit, wanted = self._bus.settings.max_subscriptions, (frame.topic, frame.group)
        if len(self._wanted) >= limit and wanted not in self._wanted:
            raise LimitReached(
                f"a connection may hold {limit} subscriptions",
                remedy="unsubscribe, use another connection, or raise max_subscriptions",
            )
        if wanted not in self._wanted:
            self.caller.quota.take("subscriptions")
            self._wanted.add(wanted)
        self._unanswered[wanted] = self._unanswered.get(wanted, 0) + 1
        if wanted in self._members:  # what a new start brings comes behind the OK
            self._members[wanted][1].window = 0

    def _unreserve(self, frame: SubscribeFrame) -> None:
        key = (frame.topic, frame.group)
        self._answered(key)
        if key in self._members:
            group, _ = self._members[key]
            self._open_window(key)
            self._bus.delivery.wake(group)
        elif key not in self._unanswered:
            self._joined_by.pop(key, None)
            self._drop_wanted(key)

    def _drop_wanted(self, key: tuple[str, str]) -> None:
        if key in self._wanted:
            self._wanted.remove(key)
            self.caller.quota.give_back("subscriptions")

    def _answered(self, key: tuple[str, str]) -> None:
        left = self._unanswered.pop(key) - 1
        if left:
            self._unanswered[key] = left

    def _open_window(self, key: tuple[str, str]) -> None:
        """Once the last OK has left."""
        if key not in self._unanswered:
            group, member = self._members[key]
            member.window = self._windows[key]
            group.choice.recheck_room(member)

    async def _find_start(self, frame: SubscribeFrame, topic: Topic, reply: PendingReply) -> None:
        """Until the start is found, later frames of this connection wait: they may publish to the same topic."""
        try:
            await self._replies.nothing_publishing()
            group, unstored = await self._bus.groups.begin(topic, frame.group, frame.start, self.caller.quota)
        except MainspringError as error:
            if not isinstance(error, BusError):
                error = Unavailable(f"the topic cannot be read: {error.message}", remedy=error.remedy)
            self._unreserve(frame)
            reply.frame = refusal_frame(frame, error)
        else:
            self._bus.delivery.run(self._confirm(frame, group, reply, unstored))
        self._blocked = False
        self._replies.flush()
        self._handle_waiting()

    async def _confirm(self, frame: SubscribeFrame, group: Group, reply: PendingReply, unstored: bool) -> None:
        try:
            if self.caller.is_proven:
                await self._bus.groups.claim(group, self.caller)
            if frame.group_ttl_ms is not None:
                await self._bus.groups.set_ttl(group, frame.group_ttl_ms)
            if unstored:
                await self._bus.groups.store(group)
        except BusError as error:
            self._unreserve(frame)
            if isinstance(error, Forbidden):
                self._bus.audit.refused("right_refused", self.caller, "SUBSCRIBE", error.message)
            reply.frame = refusal_frame(frame, error)
        else:
            reply.frame = ok_frame(frame, topic=frame.topic, group=frame.group)
            reply.on_sent = lambda: self._join(frame, group)
        self._replies.flush()

    async def _claim(self, group: Group) -> None:
        with suppress(BusError):
            await self._bus.groups.claim(group, self.caller)

    def _join(self, frame: SubscribeFrame, group: Group) -> None:
        key = (frame.topic, frame.group)
        self._answered(key)
        if key not in self._wanted:
            return  # unsubscribed while the group was being stored
        was_deleted = group.deleted
        group = self._bus.groups.keep(group)
        if was_deleted and frame.group_ttl_ms is not None:
            self._bus.delivery.run(self._bus.groups.set_ttl(group, frame.group_ttl_ms, again=True))
        if self.caller.is_proven and self._bus.groups.owner_of(group.topic.name, group.name) == NO_OWNER:
            self._bus.delivery.run(self._claim(group))  # it was deleted while it was being joined
        is_new = key not in self._members
        pattern = self._joined_by.get(key, "")
        if is_new:
            kind = CountingMember if frame.count_ends else Member
            member = kind(frame.topic, frame.group, self._gate, self._send, pattern=pattern)
            caller, now = self.caller, self._bus.clock.wall_ms()
            member.origin = MemberOrigin(caller.agent or "", caller.address, now)
        else:
            member = self._members[key][1]
        settings = self._bus.settings
        self._windows[key] = min(frame.max_inflight or settings.max_inflight, settings.max_window)
        member.window = 0
        member.ack_each = frame.ack == "each"
        member.batch = max(min(frame.batch, settings.max_window), 2 if pattern else 1)  # 1: frames of another form
        member.sticky = frame.sticky
        wanted = filter_replies(self.caller, frame.topic, frame.filter)
        member.filter = None if wanted == NO_FILTER else wanted
        if is_new:
            self._members[key] = (group, member)
            group.join(member)
        else:
            group.changed_member(member)
        self._open_window(key)
        self._bus.delivery.wake(group)

    def _handle_waiting(self) -> None:
        while self._waiting_frames and not self._blocked and not self.closed:
            data = self._waiting_frames.popleft()
            self._replies.waiting_frames -= 1
            self._replies.waiting_bytes -= len(data)
            self._handle(data)
        self._replies.flush()

    def _unsubscribe(self, frame: UnsubscribeFrame, size: int) -> None:
        key = (frame.topic, frame.group)
        if key in self._patterns:
            self._forget_pattern(key)
            for each in [each for each, by in self._joined_by.items() if (by, each[1]) == key]:
                if each in self._members:
                    self._leave(each, self._bus.clock.now_ms())
                self._drop_wanted(each)
        elif key in self._wanted and key not in self._members:
            self._drop_wanted(key)  # it has not joined yet, and will not
        else:
            self._held(frame)
            self._leave(key, self._bus.clock.now_ms())
        self._replies.reply(ok_frame(frame, topic=frame.topic, group=frame.group))

    def _leave(self, key: tuple[str, str], now: int) -> None:
        group, member = self._members.pop(key)
        del self._windows[key]
        self._joined_by.pop(key, None)
        self._drop_wanted(key)
        group.leave(member, now)

    def recheck(self, topic: str) -> None:
        """The topic's access lists changed: end the subscriptions they no longer allow, and say so."""
        for name, group in list(self._members):
            if origin_of(name) != topic:
                continue
            try:
                config = self._bus.topics.config_of(name)
                self._bus.access.check_now(config, "subscribe", self.caller, group)
            except Forbidden as error:
                self._leave((name, group), self._bus.clock.now_ms())
                self._bus.audit.did("subscription_ended", self.caller, group, topic=name)
                self._replies.reply(error_frame(error, "", name, group))
            except BusError:
                continue  # a checker that has not answered yet forbids nothing

    def _held(self, frame: LeaseFrame | UnsubscribeFrame) -> tuple[Group, Member]:
        subscription = self._members.get((frame.topic, frame.group))
        if subscription is None:
            raise NotSubscribed(
                f"this connection has no subscription of {frame.topic!r} as {frame.group!r}",
                remedy="send SUBSCRIBE first",
            )
        return subscription

    def _ack(self, frame: AckFrame, size: int) -> None:
        group, member = self._held(frame)
        group.ack(member, frame.partition, frame.offset)
        self._bus.delivery.wake(group)

    def _nack(self, frame: NackFrame, size: int) -> None:
        group, member = self._held(frame)
        if isinstance(member, CountingMember) and frame.partition in group.positions:
            member.said(group.positions[frame.partition], frame.offset, begun=False)
        now, delay_ms = self._bus.clock.now_ms(), None if frame.reject else frame.delay_ms or 0
        if group.nack(member, frame.partition, frame.offset, frame.reason or "", delay_ms, now, frame.failure):
            self._bus.counters.nacks += 1
            self._bus.delivery.wake(group)

    def _extend(self, frame: ExtendFrame, size: int) -> None:
        group, member = self._held(frame)
        group.extend(member, frame.partition, frame.offset, self._bus.clock.now_ms() + frame.ms)
        if frame.begun and isinstance(member, CountingMember):
            member.said(group.positions[frame.partition], frame.offset, begun=True)

    def _flow(self, frame: FlowFrame, size: int) -> None:
        self._gate.credits = (self._gate.credits or 0) + frame.credits
        self._wake_members()

    def _wake_members(self) -> None:
        for group, member in self._members.values():
            group.choice.recheck_room(member)
            self._bus.delivery.wake(group)

    # -- schedules

    def _schedule(self, frame: ScheduleFrame, size: int) -> None:
        check_name("topic", frame.topic)
        self._bus.access.check_now(self._bus.topics.config_of(frame.topic), "publish", self.caller)
        self._check_schedule(frame.name)
        schedule = Schedule(
            name=frame.name,
            topic=frame.topic,
            payload=msgspec.Raw(bytes(frame.payload)),
            every=frame.every,
            cron=frame.cron,
            timezone=frame.timezone,
            jitter=frame.jitter,
            overlap=frame.overlap,
            key=frame.key,
            headers=frame.headers,
        )
        kept = self._bus.admission.accept_schedule(schedule, self.caller)
        self._reply_later(frame, self._bus.schedules.put(kept, self.caller.quota))

    def _check_schedule(self, name: str) -> None:
        """Who takes a schedule away from its topic needs the right to publish there."""
        schedule = self._bus.schedules.find(name)
        if schedule is None:
            return
        config = self._bus.topics.config_of(schedule.topic)
        try:
            self._bus.access.check_now(config, "publish", self.caller)
        except Forbidden:
            if self.caller.is_limited:  # do not tell which topic it is
                raise hidden_schedule(name) from None
            raise

    def _unschedule(self, frame: UnscheduleFrame, size: int) -> None:
        if self._bus.schedules.find(frame.name) is None and self.caller.is_limited:
            raise hidden_schedule(frame.name)
        self._check_schedule(frame.name)
        self._reply_later(frame, self._bus.schedules.delete(frame.name))

    def _reply_later(self, frame: ScheduleFrame | UnscheduleFrame, work: Awaitable[Schedule | None]) -> None:
        reply = self._replies.place()

        async def finish() -> None:
            try:
                schedule = await work
            except BusError as error:
                reply.frame = with_corr(error_frame(error, type_of(frame)), frame.corr)
            else:
                more = {} if schedule is None else {"next": schedule.next_ms}
                reply.frame = ok_frame(frame, name=frame.name, **more)
            self._replies.flush()

        self._bus.delivery.run(finish())


class PendingReply:
    """A place in the queue of answers. `on_sent` runs when the answer leaves."""

    __slots__ = ("frame", "on_sent")

    def __init__(self, frame: bytes | None = None) -> None:
        self.frame: bytes | None = frame
        self.on_sent: Callable[[], None] | None = None


class ReplyQueue:
    """The answers of one connection, in the order of its requests.

    `waiting_bytes` are those of requests that were read and not answered.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._queue: deque[PendingReply] = deque()
        self._publishing = 0
        self._nothing_publishing = asyncio.Event()
        self._relief = asyncio.Event()
        self._closed = False
        self.waiting_frames = 0
        self.waiting_bytes: int = 0

    def reply(self, frame: bytes) -> None:
        """An answer that needs no waiting."""
        if self._queue:
            self._queue.append(PendingReply(frame))
        else:
            self._send(frame)

    def place(self) -> PendingReply:
        """Keep a place for an answer that comes later: fill in its `frame`, then `flush`."""
        reply = PendingReply()
        self._queue.append(reply)
        return reply

    def publishing(self, accepted: Accepted, corr: msgspec.Raw, size: int, *, is_batch: bool) -> OnDone:
        """The same for events on their way to the log; what this gives is called when they are decided."""
        reply = PublishReply(self, accepted, corr, size, is_batch)
        self._queue.append(reply)
        self._publishing += 1
        self.waiting_bytes += size
        return reply.done

    def published(self, reply: PublishReply) -> None:
        self._publishing -= 1
        self.waiting_bytes -= reply.size
        if not self._publishing:
            self._nothing_publishing.set()
        if self._queue and self._queue[0] is reply:
            self.flush()

    def flush(self) -> None:
        """Send what is answered, as far as everything before it is."""
        queue = self._queue
        while queue and (frame := queue[0].frame) is not None:
            reply = queue.popleft()
            self._send(frame)
            if reply.on_sent is not None:
                reply.on_sent()
        if not self.congested:
            self._relief.set()

    async def nothing_publishing(self) -> None:
        """Wait until every event published so far is answered."""
        while self._publishing and not self._closed:
            self._nothing_publishing.clear()
            await self._nothing_publishing.wait()

    @property
    def congested(self) -> bool:
        waiting = len(self._queue) + self.waiting_frames
        return waiting > MOST_UNANSWERED or self.waiting_bytes > MOST_UNANSWERED_BYTES

    async def relieved(self) -> None:
        while self.congested and not self._closed:
            self._relief.clear()
            await self._relief.wait()

    def close(self) -> None:
        """The connection is gone; nothing is answered any more."""
        self._closed = True
        self._queue.clear()
        self._nothing_publishing.set()
        self._relief.set()


class PublishReply(PendingReply):
    """The answer of a PUBLISH or PUBLISH_BATCH; `done` fills it in."""

    __slots__ = ("_accepted", "_corr", "_is_batch", "_replies", "size")

    def __init__(self, replies: ReplyQueue, accepted: Accepted, corr: msgspec.Raw, size: int, is_batch: bool) -> None:
        self.frame: bytes | None = None
        self.on_sent: Callable[[], None] | None = None
        self._replies = replies
        self._accepted = accepted
        self._corr = corr
        self._is_batch = is_batch
        self.size: int = size

    def done(self, result: Sequence[Placed] | MainspringError) -> None:
        accepted = self._accepted
        if isinstance(result, MainspringError):
            about = "PUBLISH_BATCH" if self._is_batch else "PUBLISH"
            frame = error_frame(refusal(result), about, accepted.topic.name)
        elif self._is_batch:
            many = accepted.many
            if many is None:
                places = _to_json([(partition, offset) for partition, offset, _ in result])
            else:
                ((partition, first, _),) = result
                places = _to_json(list(zip(repeat(partition), range(first, first + len(many.ids)))))
            frame = b'{"type":"PUBLISHED_BATCH","topic":%b,"offsets":%b}' % (accepted.topic.json, places)
        else:
            partition, offset, duplicate = result[0]
            append = accepted.appends[0]
            frame = published_frame(accepted.topic.json, partition, offset, append.id, append.ts)
            if duplicate:
                frame = frame[:-1] + b',"duplicate":true}'
            elif accepted.due:
                frame = b'%b,"not_before":%d}' % (frame[:-1], accepted.due[0])
        self.frame = with_corr(frame, self._corr) if self._corr is not NOTHING else frame
        self._replies.published(self)


_HANDLERS: Final[dict[type, Callable[[Session, Any, int], None]]] = {
    PublishFrame: Session._publish,
    PublishBatchFrame: Session._publish_batch,
    LeanBatchFrame: Session._publish_lean,
    NamedBatchFrame: Session._publish_named,
    SubscribeFrame: Session._subscribe,
    UnsubscribeFrame: Session._unsubscribe,
    AckFrame: Session._ack,
    NackFrame: Session._nack,
    ExtendFrame: Session._extend,
    FlowFrame: Session._flow,
    ScheduleFrame: Session._schedule,
    UnscheduleFrame: Session._unschedule,
}

_CHECKED: Final[dict[type, Action]] = {
    PublishFrame: "publish",
    PublishBatchFrame: "publish",
    LeanBatchFrame: "publish",
    NamedBatchFrame: "publish",
    SubscribeFrame: "subscribe",
    ScheduleFrame: "publish",
}
