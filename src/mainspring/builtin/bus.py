"""Bus: topics, events and groups as messages.

The same bus that WebSocket and HTTP serve; what a language model or a script with nothing but a socket needs of it.
Answers fit one line: where there is more, they say where to go on. Who asks over HTTP needs the same rights on a topic
as for the HTTP operation that does the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from mainspring.builtin.answers import Messages, about, caller_of, fitting
from mainspring.bus import (
    Action,
    BadFrame,
    Bus,
    CallFilter,
    CallState,
    ChangedCalls,
    DeadLetterFilter,
    Forbidden,
    GroupInfo,
    Overlap,
    PartitionOffsets,
    Schedule,
    ScheduleInfo,
    Start,
    Stats,
    TaskCall,
    TaskCallPage,
    TaskInfo,
    sha256_headers,
)
from mainspring.bus.topics import topic_data
from mainspring.kernel import Capability, Context, Fail
from mainspring.log import DamagedEvent, StoredEvent
from mainspring.message import NULL
from mainspring.status import RefusedOutgoing, RefusedOutgoings
from mainspring.telemetry import causation_headers

message: Final = Messages("Bus", "Durable topics, events and groups.")

Topic = Annotated[str, about("The topic's name.")]
OriginalTopic = Annotated[str, about("The original topic.")]
GroupName = Annotated[str, about("The group's name.")]
ScheduleName = Annotated[str, about("The schedule's name.")]
After = Annotated[str, about("Only names greater than this: the next page.")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1_000, description="How many at most.")]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
LetterOffsets = Annotated[
    Annotated[list[Positive], msgspec.Meta(min_length=1)] | None,
    about("Offsets of dead letters; without them, all that fit."),
]
OutgoingIds = Annotated[list[str] | None, about("Ids, as Bus.RefusedOutgoing shows them.")]
AllOutgoing = Annotated[bool, about("All of them.")]
LetterGroup = Annotated[str | None, about("Only those this group gave up on.")]
LetterKey = Annotated[str | None, about("Only those with this key.")]
LetterReason = Annotated[str | None, about("Only those whose reason contains this text.")]
LetterBefore = Annotated[Natural | None, about("Only those that died before: epoch ms.")]
LetterLimit = Annotated[Positive | None, about("At most so many, oldest first.")]
TaskName = Annotated[str, about("The task's name: shop.send_mail, or send_mail where that is clear.")]
CallId = Annotated[str, about("The id of a call.")]
CallIds = Annotated[
    Annotated[list[str], msgspec.Meta(min_length=1)] | None, about("The ids of calls; without them, all that fit.")
]
CallError = Annotated[str | None, about("Only those whose error contains this text.")]
CallBefore = Annotated[Natural | None, about("Only those that were enqueued before: epoch ms.")]
CallLimit = Annotated[Positive | None, about("At most so many, newest first.")]
AllCalls = Annotated[bool, about("All calls of the task; without it something must be chosen.")]
More = Annotated[bool, about("Whether there are more after the last one.")]


class PublishResult(msgspec.Struct, omit_defaults=True):
    topic: str
    partition: int
    offset: Annotated[int, about("0 for a delayed event: it gets its place when it is due.")]
    id: str
    duplicate: bool = False


class EventView(msgspec.Struct, omit_defaults=True):
    partition: int
    offset: int
    id: str
    ts: Annotated[int, about("When it was stored: epoch ms.")]
    payload: Any
    key: str | None = None
    headers: dict[str, str] | None = None


class ReadResult(msgspec.Struct, omit_defaults=True):
    events: list[EventView]
    next: Annotated[int, about("Where to go on.")]
    damaged: Annotated[list[int], about("Offsets before these events where what is stored is damaged.")] = []


class TopicsResult(msgspec.Struct):
    topics: Annotated[list[dict[str, Any]], about("The settings of each topic, by name.")]
    more: More


class CreateTopicResult(msgspec.Struct):
    settings: dict[str, Any]
    created: Annotated[bool, about("False when it existed and was changed.")]


class DeadLettersResult(msgspec.Struct):
    letters: Annotated[list[Any], about("Where each came from, how often it was tried, and why it died.")]
    more: More


class ScheduleResult(msgspec.Struct):
    name: str
    next: Annotated[int, about("When it fires: epoch ms.")]


class DoneResult(msgspec.Struct):
    done: bool = True


def bus_capability(bus: Bus, refused: RefusedOutgoings | None = None) -> Capability:
    """The capability `Bus` of a node with this bus. `refused`: on a log that takes transactions of programs."""
    return message.of(_BusMessages(bus, refused))


class _BusMessages:
    def __init__(self, bus: Bus, refused: RefusedOutgoings | None) -> None:
        self._bus = bus
        self._refused = refused

    async def _check(self, ctx: Context, topic: str, *actions: Action) -> None:
        """Raise Forbidden unless a caller from outside may do this with the topic."""
        caller = caller_of(ctx)
        if caller is not None:
            for action in actions:
                await self._bus.access.check(topic, action, caller)

    async def _check_letters(self, ctx: Context, topic: str, *actions: Action) -> None:
        caller = caller_of(ctx)
        if caller is not None:
            await self._bus.access.check_letters(topic, caller)
            await self._check(ctx, topic, *actions)

    async def _check_group(self, ctx: Context, topic: str, group: str) -> None:
        caller = caller_of(ctx)
        if caller is not None:
            await self._bus.access.check_group(topic, caller, group)

    async def _readable(self, ctx: Context, topics: Iterable[str]) -> set[str]:
        return await self._bus.access.allowed(caller_of(ctx), "subscribe", topics)

    async def _visible(self, ctx: Context, topics: Iterable[str]) -> set[str]:
        return await self._bus.access.visible(caller_of(ctx), topics)

    # --- events

    @message("command", "Bus.Publish", "PublishRequest")
    async def publish(
        self,
        ctx: Context,
        topic: Topic,
        payload: Annotated[msgspec.Raw, about("Any JSON value.")],
        key: Annotated[str | None, about("Events of one key stay in order.")] = None,
        headers: Annotated[dict[str, str] | None, about("Text by name, stored with the event.")] = None,
        id: Annotated[str | None, about("The same id within the dedupe window is stored once.")] = None,
        delayMs: Annotated[int, msgspec.Meta(ge=0, description="Publish it so many milliseconds later.")] = 0,
        ttlMs: Annotated[int, msgspec.Meta(ge=0, description="It expires after so many milliseconds; 0: never.")] = 0,
        payloadSha256: Annotated[str | None, about("Of the payload as JSON with sorted keys; it is checked.")] = None,
    ) -> PublishResult:
        """Store an event in a topic. It is durable when the answer comes."""
        cause = ctx.message.metadata
        headers = {**causation_headers(cause.id, cause.correlation), **(headers or {})}
        if payloadSha256 is not None:
            headers = sha256_headers(bytes(payload), headers, payloadSha256)
        stored = await self._bus.publish(
            topic,
            bytes(payload),
            key=key,
            headers=headers,
            id=id,
            delay_ms=delayMs,
            ttl=ttlMs / 1000,
            agent=caller_of(ctx),
        )
        return PublishResult(stored.topic, stored.partition, stored.offset, stored.id, stored.duplicate)

    @message("query", "Bus.Read", "ReadRequest")
    async def read(
        self,
        ctx: Context,
        topic: Topic,
        partition: Annotated[int, msgspec.Meta(ge=0, description="From 0.")] = 0,
        offset: Annotated[int, msgspec.Meta(ge=0, description="Where to begin; 0 and 1 are the beginning.")] = 1,
        limit: Limit = 20,
    ) -> ReadResult:
        """Read stored events of one partition in order."""
        entries = await self._bus.entries(topic, partition, offset, limit, agent=caller_of(ctx))
        damaged = [entry.offset for entry in entries if isinstance(entry, DamagedEvent)]
        events = [entry for entry in entries if not isinstance(entry, DamagedEvent)]
        shown = fitting([_event(event) for event in events])
        if events and not shown and not damaged:
            raise Fail(413, f"the event at offset {events[0].offset} does not fit one line", remedy="read it over HTTP")
        last = max([max(1, offset) - 1, *damaged, *(event.offset for event in shown)])
        return ReadResult(shown, last + 1, damaged)

    @message("query", "Bus.DeadLetters", "DeadLettersRequest")
    async def dead_letters(
        self,
        ctx: Context,
        topic: OriginalTopic,
        offset: Annotated[int, msgspec.Meta(ge=0, description="Where to begin in its dead letters.")] = 0,
        limit: Limit = 20,
    ) -> DeadLettersResult:
        """Events of a topic that a group gave up, and why."""
        await self._check_letters(ctx, topic)
        letters = await self._bus.dead_letters.page(topic, offset=offset, limit=limit)
        shown = fitting([msgspec.structs.asdict(letter) for letter in letters])
        return DeadLettersResult(shown, len(shown) < len(letters) or len(letters) == limit)

    @message("command", "Bus.Redrive", "RedriveRequest", gives="LetterCount.count")
    async def redrive(
        self,
        ctx: Context,
        topic: OriginalTopic,
        offsets: LetterOffsets = None,
        group: LetterGroup = None,
        key: LetterKey = None,
        reason: LetterReason = None,
        before: LetterBefore = None,
        limit: LetterLimit = None,
        toAll: Annotated[bool, about("To every group of the topic, not only to the one that gave up.")] = False,
    ) -> int:
        """Send dead letters back to the group that gave up on them."""
        await self._check_letters(ctx, topic, "publish")
        wanted = DeadLetterFilter(offsets=offsets, group=group, key=key, reason=reason, before=before, limit=limit)
        return len(await self._bus.dead_letters.redrive(topic, wanted, to_all=toAll))

    @message("command", "Bus.DropDeadLetters", "DropRequest", gives="LetterCount.count")
    async def drop_dead_letters(
        self,
        ctx: Context,
        topic: OriginalTopic,
        offsets: LetterOffsets = None,
        group: LetterGroup = None,
        key: LetterKey = None,
        reason: LetterReason = None,
        before: LetterBefore = None,
        limit: LetterLimit = None,
        all: Annotated[bool, about("All dead letters of the topic; without it something must be chosen.")] = False,
    ) -> int:
        """Drop dead letters: nobody gets them any more."""
        await self._check_letters(ctx, topic, "publish")
        wanted = DeadLetterFilter(offsets=offsets, group=group, key=key, reason=reason, before=before, limit=limit)
        if not all and wanted == DeadLetterFilter():
            raise BadFrame("which dead letters?", remedy="give offsets or a filter, or all: true")
        return await self._bus.drop_dead_letters(topic, wanted, agent=caller_of(ctx))

    # --- topics

    @message("query", "Bus.Topics", "NamesRequest")
    async def topics(self, ctx: Context, after: After = "") -> TopicsResult:
        """Every topic and its settings, by name."""
        configs = [config for config in self._bus.topics.configs() if config.topic > after]
        visible = await self._visible(ctx, (config.topic for config in configs))
        configs = [config for config in configs if config.topic in visible]
        shown = fitting([topic_data(config) for config in configs])
        return TopicsResult(shown, len(shown) < len(configs))

    @message("command", "Bus.CreateTopic", "CreateTopicRequest")
    async def create_topic(
        self,
        ctx: Context,
        topic: Topic,
        settings: Annotated[dict[str, Any], about("partitions, retentionMs, maxAttempts, compact, ...")] = {},  # noqa: B006
    ) -> CreateTopicResult:
        """Create a topic, or change its settings; what is not mentioned stays."""
        self._bus.access.check_admin(caller_of(ctx), "change topics")
        await self._check(ctx, topic, "subscribe")  # who may not read it may not open it to others either
        wanted = msgspec.json.encode({**settings, "topic": topic})
        change = await self._bus.put_topic(self._bus.topics.settings_after(wanted), agent=caller_of(ctx))
        return CreateTopicResult(topic_data(change.config), change.created)

    @message("command", "Bus.PurgeTopic", "PurgeTopicRequest", gives="PurgedTopic.removed")
    async def purge_topic(self, ctx: Context, topic: Topic) -> int:
        """Remove every event of a topic; its settings and groups stay, and offsets are never used again."""
        return await self._bus.purge_topic(topic, agent=caller_of(ctx))

    @message("command", "Bus.DeleteTopic", "DeleteTopicRequest")
    async def delete_topic(self, ctx: Context, topic: Topic) -> DoneResult:
        """Delete a topic with its groups, schedules, schemas and dead letters. Refused while a group has members."""
        await self._bus.delete_topic(topic, agent=caller_of(ctx))
        return DoneResult()

    @message("query", "Bus.Offsets", "OffsetsRequest", gives="OffsetsResult.partitions")
    async def offsets(self, ctx: Context, topic: Topic) -> list[PartitionOffsets]:
        """First and last offset of each partition, and where its groups stand."""
        if topic not in await self._visible(ctx, [topic]):
            raise Forbidden("this token has no right on this topic", remedy="use one with a scope for it")
        places = await self._bus.groups.offsets(topic)
        if not await self._readable(ctx, [topic]):
            places = [msgspec.structs.replace(place, groups={}) for place in places]
        return fitting(places)

    @message("query", "Bus.Stats")
    async def stats(self, ctx: Context) -> Stats:
        """Counters since the node started, and gauges of now."""
        stats = self._bus.stats()
        disk = stats.disk
        largest = [] if isinstance(disk, msgspec.UnsetType) else [each.topic for each in disk.largest if each.topic]
        readable = await self._readable(ctx, {*stats.by_topic, *largest})
        shown = {topic: count for topic, count in stats.by_topic.items() if topic in readable}
        return msgspec.structs.replace(stats, by_topic=shown, disk=disk and disk.without_others(readable))

    # --- groups

    @message("query", "Bus.Groups", "GroupsRequest", gives="GroupsResult.groups")
    async def groups(
        self, ctx: Context, topic: Annotated[str | None, about("Of this topic only; without it, of all.")] = None
    ) -> list[GroupInfo]:
        """Groups with their members, positions and lag."""
        if topic is not None and not await self._readable(ctx, [topic]):
            raise Forbidden("this token may not read this topic", remedy="use one with a scope for it")
        groups = self._bus.groups.infos(topic)
        readable = await self._readable(ctx, {each.topic for each in groups})
        return fitting([each for each in groups if each.topic in readable])

    @message("command", "Bus.Seek", "SeekRequest")
    async def seek(
        self,
        ctx: Context,
        topic: Topic,
        group: GroupName,
        kind: Annotated[Literal["latest", "offset", "timestamp"], about("What `value` is.")],
        value: Annotated[int | None, about("An offset, or epoch ms.")] = None,
        partition: Annotated[int | None, about("Only this one; without it, all.")] = None,
    ) -> GroupInfo:
        """Move a group; events it skips count as settled, events before come again."""
        await self._check_group(ctx, topic, group)
        return await self._bus.groups.seek(topic, group, Start(kind, value), partition=partition)

    @message("command", "Bus.DeleteGroup", "DeleteGroupRequest")
    async def delete_group(self, ctx: Context, topic: Topic, group: GroupName) -> DoneResult:
        """Delete a group that has no members."""
        await self._check_group(ctx, topic, group)
        await self._bus.delete_group(topic, group, agent=caller_of(ctx))
        return DoneResult()

    # --- schedules

    @message("command", "Bus.Schedule", "ScheduleRequest")
    async def schedule(
        self,
        ctx: Context,
        name: Annotated[str, about("A schedule of this name is replaced.")],
        topic: Topic,
        payload: Annotated[msgspec.Raw, about("Any JSON value, published each time.")] = NULL,
        every: Annotated[int | None, about("Milliseconds between two events.")] = None,
        cron: Annotated[str | None, about("Minute, hour, day of month, month, day of week.")] = None,
        timezone: Annotated[str | None, about("Of the cron line: Europe/Berlin. UTC unless given.")] = None,
        jitter: Annotated[Natural, about("Milliseconds by which an event may be late.")] = 0,
        overlap: Annotated[Overlap, about("skip: nothing while a group of the topic has events to settle.")] = "queue",
        key: Annotated[str | None, about("The key of its events.")] = None,
    ) -> ScheduleResult:
        """Publish an event again and again: `every` so many milliseconds, or as `cron` says."""
        wanted = Schedule(
            name=name,
            topic=topic,
            payload=payload.copy(),
            every=every,
            cron=cron,
            timezone=timezone,
            jitter=jitter,
            overlap=overlap,
            key=key,
        )
        put = await self._bus.put_schedule(wanted, agent=caller_of(ctx))
        return ScheduleResult(put.name, put.next_ms)

    @message("command", "Bus.Unschedule", "UnscheduleRequest")
    async def unschedule(self, ctx: Context, name: ScheduleName) -> DoneResult:
        """End a schedule. One that a program declares comes back when the program starts; pause it instead."""
        await self._bus.check_schedule(name, caller_of(ctx))
        await self._bus.schedules.delete(name)
        return DoneResult()

    @message("command", "Bus.PauseSchedule", "PauseScheduleRequest")
    async def pause_schedule(self, ctx: Context, name: ScheduleName) -> ScheduleInfo:
        """Publish nothing more until the schedule is resumed, also after a restart."""
        await self._bus.check_schedule(name, caller_of(ctx))
        return await self._bus.schedules.pause(name)

    @message("command", "Bus.ResumeSchedule", "ResumeScheduleRequest")
    async def resume_schedule(self, ctx: Context, name: ScheduleName) -> ScheduleInfo:
        """Let a paused schedule go on from now. What it missed is not made up."""
        return await self._bus.resume_schedule(name, agent=caller_of(ctx))

    @message("command", "Bus.RunSchedule", "RunScheduleRequest")
    async def run_schedule(self, ctx: Context, name: ScheduleName) -> PublishResult:
        """Publish the schedule's event now, also while it is paused. Its next time stays."""
        await self._bus.check_schedule(name, caller_of(ctx))
        event = await self._bus.schedules.run(name)
        return PublishResult(event.topic, event.partition, event.offset, event.id)

    @message("query", "Bus.Schedules", "NamesRequest", gives="SchedulesResult.schedules")
    async def schedules(self, ctx: Context, after: After = "") -> list[ScheduleInfo]:
        """Schedules by name: when each fires next, and how its last call went."""
        found = [each for each in self._bus.schedules.all() if each.name > after]
        visible = await self._visible(ctx, {each.topic for each in found})
        return fitting([each for each in found if each.topic in visible])

    # --- tasks

    @message("query", "Bus.Tasks", gives="TasksResult.tasks")
    async def tasks(self, ctx: Context) -> list[TaskInfo]:
        """Tasks by name: how many calls of each wait, run, are done and failed."""
        return fitting(await self._bus.task_calls.tasks(caller_of(ctx)))

    @message("query", "Bus.TaskCalls", "TaskCallsRequest")
    async def calls(
        self,
        ctx: Context,
        task: TaskName,
        state: Annotated[CallState | None, about("Only calls in this state.")] = None,
        limit: Limit = 20,
        cursor: Annotated[str, about("The `next` of the answer before.")] = "",
    ) -> TaskCallPage:
        """Calls of a task, newest first: arguments, state, attempts, result or error."""
        who = caller_of(ctx)
        while True:
            page = await self._bus.task_calls.calls(task, state=state, limit=limit, cursor=cursor, who=who)
            if limit == 1 or len(fitting(page.calls)) == len(page.calls):
                return page
            limit //= 2

    @message("query", "Bus.TaskCall", "TaskCallRequest")
    async def call(self, ctx: Context, task: TaskName, id: CallId) -> TaskCall:
        """One call of a task."""
        return await self._bus.task_calls.call(task, id, who=caller_of(ctx))

    @message("command", "Bus.RetryTaskCalls", "RetryTaskCallsRequest")
    async def retry_calls(
        self,
        ctx: Context,
        task: TaskName,
        ids: CallIds = None,
        error: CallError = None,
        before: CallBefore = None,
        limit: CallLimit = None,
        all: AllCalls = False,
    ) -> ChangedCalls:
        """Have calls that failed done again, with all their attempts."""
        wanted = CallFilter(ids=ids, error=error, before=before, limit=limit, all=all)
        return await self._bus.task_calls.retry(task, wanted, who=caller_of(ctx))

    @message("command", "Bus.CancelTaskCalls", "CancelTaskCallsRequest")
    async def cancel_calls(
        self,
        ctx: Context,
        task: TaskName,
        ids: CallIds = None,
        error: CallError = None,
        before: CallBefore = None,
        limit: CallLimit = None,
        all: AllCalls = False,
        reason: Annotated[str, about("Kept with the cancellation.")] = "",
    ) -> ChangedCalls:
        """Cancel calls that are open: one that waits never begins, one that runs is interrupted."""
        wanted = CallFilter(ids=ids, error=error, before=before, limit=limit, all=all)
        return await self._bus.task_calls.cancel(task, wanted, reason=reason, who=caller_of(ctx))

    @message("command", "Bus.DiscardTaskCalls", "DiscardTaskCallsRequest")
    async def discard_calls(
        self,
        ctx: Context,
        task: TaskName,
        ids: CallIds = None,
        error: CallError = None,
        before: CallBefore = None,
        limit: CallLimit = None,
        all: AllCalls = False,
    ) -> ChangedCalls:
        """Drop calls that failed: nobody will do them any more."""
        wanted = CallFilter(ids=ids, error=error, before=before, limit=limit, all=all)
        return await self._bus.task_calls.discard(task, wanted, who=caller_of(ctx))

    @message("query", "Bus.RefusedOutgoing", "RefusedOutgoingRequest", gives="RefusedOutgoingResult.refused")
    async def refused_outgoing(self, ctx: Context, after: After = "", limit: Limit = 100) -> list[RefusedOutgoing]:
        """What programs published in their own transactions and the node refused; oldest first."""
        return fitting([] if self._refused is None else await self._of(ctx, self._refused).page(after, limit))

    @message("command", "Bus.RetryOutgoing", "RetryOutgoingRequest", gives="RetriedOutgoing.count")
    async def retry_outgoing(self, ctx: Context, ids: OutgoingIds = None, all: AllOutgoing = False) -> int:
        """Try again what was refused: a schema has changed, or a topic is there now."""
        chosen = _chosen(ids, all)
        return 0 if self._refused is None else await self._of(ctx, self._refused).retry(chosen)

    @message("command", "Bus.DropOutgoing", "DropOutgoingRequest", gives="DroppedOutgoing.count")
    async def drop_outgoing(self, ctx: Context, ids: OutgoingIds = None, all: AllOutgoing = False) -> int:
        """Drop what was refused: it is never published."""
        chosen = _chosen(ids, all)
        return 0 if self._refused is None else await self._of(ctx, self._refused).drop(chosen)

    def _of(self, ctx: Context, refused: RefusedOutgoings) -> RefusedOutgoings:
        """Of all topics and programs, so only for those who may do everything."""
        caller = caller_of(ctx)
        if caller is not None and caller.is_limited:
            raise Forbidden("this token may not see what transactions published", remedy="use one with the scope admin")
        return refused


def _chosen(ids: list[str] | None, all: bool) -> list[str] | None:
    if (ids is None) is not all:
        text = "Schema validation failed: data: give ids or all, one of them"
        raise Fail(422, text, remedy="`mainspring outgoing list` shows the ids")
    return ids


def _event(event: StoredEvent) -> EventView:
    headers = None if event.headers is None else msgspec.json.decode(event.headers, type=dict[str, str])
    payload = msgspec.json.decode(event.payload)
    return EventView(event.partition, event.offset, event.id, event.ts, payload, event.key, headers)
