"""Bus: topics, events and groups as messages.

The same bus that WebSocket and HTTP serve; what a language model or a script with nothing but a socket needs of it.
Answers fit one line: where there is more, they say where to go on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from mainspring.builtin.answers import Empty, about, errors_as_answers, fitting
from mainspring.bus import BadFrame, Bus, DeadLetterFilter, GroupInfo, PartitionOffsets, Schedule, Start, Stats
from mainspring.bus.topics import topic_data
from mainspring.kernel import Capability, Context, Fail, Handler, handler_from
from mainspring.log import StoredEvent
from mainspring.message import NULL
from mainspring.telemetry import causation_headers

Topic = Annotated[str, about("The topic's name.")]
GroupName = Annotated[str, about("The group's name.")]


class PublishRequest(msgspec.Struct):
    topic: Topic
    payload: Annotated[msgspec.Raw, about("Any JSON value.")]
    key: Annotated[str | None, about("Events of one key stay in order.")] = None
    headers: Annotated[dict[str, str] | None, about("Text by name, stored with the event.")] = None
    id: Annotated[str | None, about("The same id within the dedupe window is stored once.")] = None
    delayMs: Annotated[int, msgspec.Meta(ge=0, description="Publish it so many milliseconds later.")] = 0


class PublishResult(msgspec.Struct, omit_defaults=True):
    topic: str
    partition: int
    offset: Annotated[int, about("0 for a delayed event: it gets its place when it is due.")]
    id: str
    duplicate: bool = False


class ReadRequest(msgspec.Struct):
    topic: Topic
    partition: Annotated[int, msgspec.Meta(ge=0, description="From 0.")] = 0
    offset: Annotated[int, msgspec.Meta(ge=0, description="Where to begin; 0 and 1 are the beginning.")] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000, description="How many at most.")] = 20


class EventView(msgspec.Struct, omit_defaults=True):
    partition: int
    offset: int
    id: str
    ts: Annotated[int, about("When it was stored: epoch ms.")]
    payload: Any
    key: str | None = None
    headers: dict[str, str] | None = None


class ReadResult(msgspec.Struct):
    events: list[EventView]
    next: Annotated[int, about("Where to go on.")]


class NamesRequest(msgspec.Struct):
    after: Annotated[str, about("Only names greater than this: the next page.")] = ""


class TopicsResult(msgspec.Struct):
    topics: Annotated[list[dict[str, Any]], about("The settings of each topic, by name.")]
    more: Annotated[bool, about("Whether there are more after the last one.")]


class CreateTopicRequest(msgspec.Struct):
    topic: Topic
    settings: Annotated[dict[str, Any], about("partitions, retentionMs, maxAttempts, compact, ...")] = {}


class CreateTopicResult(msgspec.Struct):
    settings: dict[str, Any]
    created: Annotated[bool, about("False when it existed and was changed.")]


class OffsetsRequest(msgspec.Struct):
    topic: Topic


class OffsetsResult(msgspec.Struct):
    partitions: list[PartitionOffsets]


class GroupsRequest(msgspec.Struct):
    topic: Annotated[str | None, about("Of this topic only; without it, of all.")] = None


class GroupsResult(msgspec.Struct):
    groups: list[GroupInfo]


class SeekRequest(msgspec.Struct):
    topic: Topic
    group: GroupName
    kind: Annotated[Literal["latest", "offset", "timestamp"], about("What `value` is.")]
    value: Annotated[int | None, about("An offset, or epoch ms.")] = None
    partition: Annotated[int | None, about("Only this one; without it, all.")] = None


class DeleteGroupRequest(msgspec.Struct):
    topic: Topic
    group: GroupName


class DeadLettersRequest(msgspec.Struct):
    topic: Annotated[str, about("The original topic.")]
    offset: Annotated[int, msgspec.Meta(ge=0, description="Where to begin in its dead letters.")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000, description="How many at most.")] = 20


class DeadLettersResult(msgspec.Struct):
    letters: Annotated[list[Any], about("Where each came from, how often it was tried, and why it died.")]
    more: Annotated[bool, about("Whether there are more after the last one.")]


class ChosenLetters(msgspec.Struct, kw_only=True):
    topic: Annotated[str, about("The original topic.")]
    offsets: Annotated[
        Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], msgspec.Meta(min_length=1)] | None,
        about("Offsets of dead letters; without them, all that fit."),
    ] = None
    group: Annotated[str | None, about("Only those this group gave up on.")] = None
    key: Annotated[str | None, about("Only those with this key.")] = None
    reason: Annotated[str | None, about("Only those whose reason contains this text.")] = None
    before: Annotated[Annotated[int, msgspec.Meta(ge=0)] | None, about("Only those that died before: epoch ms.")] = None
    limit: Annotated[Annotated[int, msgspec.Meta(ge=1)] | None, about("At most so many, oldest first.")] = None

    def filter(self) -> DeadLetterFilter:
        return DeadLetterFilter(**{name: getattr(self, name) for name in DeadLetterFilter.__struct_fields__})


class RedriveRequest(ChosenLetters, kw_only=True):
    toAll: Annotated[bool, about("To every group of the topic, not only to the one that gave up.")] = False


class DropRequest(ChosenLetters, kw_only=True):
    all: Annotated[bool, about("All dead letters of the topic; without it something must be chosen.")] = False


class LetterCount(msgspec.Struct):
    count: int


class ScheduleRequest(msgspec.Struct):
    name: Annotated[str, about("A schedule of this name is replaced.")]
    topic: Topic
    payload: Annotated[msgspec.Raw, about("Any JSON value, published each time.")] = NULL
    every: Annotated[int | None, about("Milliseconds between two events.")] = None
    cron: Annotated[str | None, about("Minute, hour, day of month, month, day of week, in UTC.")] = None
    key: Annotated[str | None, about("The key of its events.")] = None


class ScheduleResult(msgspec.Struct):
    name: str
    next: Annotated[int, about("When it fires: epoch ms.")]


class SchedulesResult(msgspec.Struct):
    schedules: list[Schedule]


class UnscheduleRequest(msgspec.Struct):
    name: Annotated[str, about("The schedule's name.")]


class DoneResult(msgspec.Struct):
    done: bool = True


def bus_capability(bus: Bus) -> Capability:
    """The capability `Bus` of a node with this bus."""
    return Capability(
        id="Bus",
        description="Durable topics, events and groups.",
        handlers=[*_events(bus), *_dead_letters(bus), *_topics(bus), *_groups(bus), *_schedules(bus)],
    )


def _events(bus: Bus) -> list[Handler]:
    async def publish(data: PublishRequest, ctx: Context) -> PublishResult:
        """Store an event in a topic. It is durable when the answer comes."""
        cause = ctx.message.metadata
        headers = {**causation_headers(cause.id, cause.correlation), **(data.headers or {})}
        with errors_as_answers():
            stored = await bus.publish(
                data.topic,
                bytes(data.payload),
                key=data.key,
                headers=headers,
                id=data.id,
                delay_ms=data.delayMs,
            )
        return PublishResult(stored.topic, stored.partition, stored.offset, stored.id, stored.duplicate)

    async def read(data: ReadRequest, ctx: Context) -> ReadResult:
        """Read stored events of one partition in order."""
        with errors_as_answers():
            events = await bus.read(data.topic, data.partition, data.offset, data.limit)
        shown = fitting([_event(event) for event in events])
        if events and not shown:
            raise Fail(413, f"the event at offset {events[0].offset} does not fit one line", remedy="read it over HTTP")
        return ReadResult(shown, shown[-1].offset + 1 if shown else max(1, data.offset))

    return [
        handler_from("command", "Bus.Publish", publish),
        handler_from("query", "Bus.Read", read),
    ]


def _dead_letters(bus: Bus) -> list[Handler]:
    async def dead_letters(data: DeadLettersRequest, ctx: Context) -> DeadLettersResult:
        """Events of a topic that a group gave up, and why."""
        with errors_as_answers():
            letters = await bus.dead_letters.page(data.topic, offset=data.offset, limit=data.limit)
        shown = fitting([msgspec.structs.asdict(letter) for letter in letters])
        return DeadLettersResult(shown, len(shown) < len(letters) or len(letters) == data.limit)

    async def redrive(data: RedriveRequest, ctx: Context) -> LetterCount:
        """Send dead letters back to the group that gave up on them."""
        with errors_as_answers():
            return LetterCount(len(await bus.dead_letters.redrive(data.topic, data.filter(), to_all=data.toAll)))

    async def drop(data: DropRequest, ctx: Context) -> LetterCount:
        """Drop dead letters: nobody gets them any more."""
        with errors_as_answers():
            wanted = data.filter()
            if not data.all and wanted == DeadLetterFilter():
                raise BadFrame("which dead letters?", remedy="give offsets or a filter, or all: true")
            return LetterCount(await bus.dead_letters.drop(data.topic, wanted))

    return [
        handler_from("query", "Bus.DeadLetters", dead_letters),
        handler_from("command", "Bus.Redrive", redrive),
        handler_from("command", "Bus.DropDeadLetters", drop),
    ]


def _topics(bus: Bus) -> list[Handler]:
    def topics(data: NamesRequest, ctx: Context) -> TopicsResult:
        """Every topic and its settings, by name."""
        configs = [config for config in bus.topics.configs() if config.topic > data.after]
        shown = fitting([topic_data(config) for config in configs])
        return TopicsResult(shown, len(shown) < len(configs))

    async def create(data: CreateTopicRequest, ctx: Context) -> CreateTopicResult:
        """Create a topic, or change its settings; what is not mentioned stays."""
        with errors_as_answers():
            wanted = msgspec.json.encode({**data.settings, "topic": data.topic})
            change = await bus.put_topic(bus.topics.settings_after(wanted))
        return CreateTopicResult(topic_data(change.config), change.created)

    async def offsets(data: OffsetsRequest, ctx: Context) -> OffsetsResult:
        """First and last offset of each partition, and where its groups stand."""
        with errors_as_answers():
            return OffsetsResult(fitting(await bus.groups.offsets(data.topic)))

    def stats(data: Empty, ctx: Context) -> Stats:
        """Counters since the node started, and gauges of now."""
        return bus.stats()

    return [
        handler_from("query", "Bus.Topics", topics),
        handler_from("command", "Bus.CreateTopic", create),
        handler_from("query", "Bus.Offsets", offsets),
        handler_from("query", "Bus.Stats", stats),
    ]


def _groups(bus: Bus) -> list[Handler]:
    def groups(data: GroupsRequest, ctx: Context) -> GroupsResult:
        """Groups with their members, positions and lag."""
        with errors_as_answers():
            return GroupsResult(fitting(bus.groups.infos(data.topic)))

    async def seek(data: SeekRequest, ctx: Context) -> GroupInfo:
        """Move a group; events it skips count as settled, events before come again."""
        with errors_as_answers():
            return await bus.groups.seek(data.topic, data.group, Start(data.kind, data.value), partition=data.partition)

    async def delete(data: DeleteGroupRequest, ctx: Context) -> DoneResult:
        """Forget a group that has no members."""
        with errors_as_answers():
            await bus.groups.delete(data.topic, data.group)
        return DoneResult()

    return [
        handler_from("query", "Bus.Groups", groups),
        handler_from("command", "Bus.Seek", seek),
        handler_from("command", "Bus.DeleteGroup", delete),
    ]


def _schedules(bus: Bus) -> list[Handler]:
    async def schedule(data: ScheduleRequest, ctx: Context) -> ScheduleResult:
        """Publish an event again and again: `every` so many milliseconds, or as `cron` says."""
        with errors_as_answers():
            put = await bus.put_schedule(
                Schedule(
                    name=data.name,
                    topic=data.topic,
                    payload=data.payload.copy(),
                    every=data.every,
                    cron=data.cron,
                    key=data.key,
                )
            )
        return ScheduleResult(put.name, put.next_ms)

    async def unschedule(data: UnscheduleRequest, ctx: Context) -> DoneResult:
        """End a schedule."""
        with errors_as_answers():
            await bus.schedules.delete(data.name)
        return DoneResult()

    def schedules(data: NamesRequest, ctx: Context) -> SchedulesResult:
        """Schedules by name, and when each fires next."""
        return SchedulesResult(fitting([each for each in bus.schedules.all() if each.name > data.after]))

    return [
        handler_from("command", "Bus.Schedule", schedule),
        handler_from("command", "Bus.Unschedule", unschedule),
        handler_from("query", "Bus.Schedules", schedules),
    ]


def _event(event: StoredEvent) -> EventView:
    headers = None if event.headers is None else msgspec.json.decode(event.headers, type=dict[str, str])
    payload = msgspec.json.decode(event.payload)
    return EventView(event.partition, event.offset, event.id, event.ts, payload, event.key, headers)
