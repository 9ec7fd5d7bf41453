"""Bus: topics, events and groups, for everyone who can send a message.

The same bus that WebSocket and HTTP serve; what a language model or a script with nothing but a socket needs of it.
Answers fit one line: where there is more, they say where to go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

import msgspec

from mainspring.bus import Bus, GroupInfo, PartitionOffsets, Schedule, Start, Stats
from mainspring.bus.topics.config import encode_topic
from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Fail, Handler, handler_from
from mainspring.kernel.lineage import lineage_headers
from mainspring.log import StoredEvent
from mainspring.message import NULL

_ANSWER_BYTES: Final = 13_000  # of a line of 16384: the rest is envelope
_STATUS: Final = {
    "forbidden": 403,
    "unknown_topic": 404,
    "unknown_group": 404,
    "unknown_event": 404,
    "unknown_schedule": 404,
    "conflict": 409,
    "bad_offset": 409,
    "too_large": 413,
    "rate_limited": 429,
    "unavailable": 503,
}


def _about(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


Topic = Annotated[str, _about("The topic's name.")]
GroupName = Annotated[str, _about("The group's name.")]


class Publish(msgspec.Struct):
    topic: Topic
    payload: Annotated[msgspec.Raw, _about("Any JSON value.")]
    key: Annotated[str | None, _about("Events of one key stay in order.")] = None
    headers: Annotated[dict[str, str] | None, _about("Text by name, stored with the event.")] = None
    id: Annotated[str | None, _about("The same id within the dedupe window is stored once.")] = None
    delayMs: Annotated[int, msgspec.Meta(ge=0, description="Publish it so many milliseconds later.")] = 0


class Published(msgspec.Struct, omit_defaults=True):
    topic: str
    partition: int
    offset: Annotated[int, _about("0 for a delayed event: it gets its place when it is due.")]
    id: str
    duplicate: bool = False


class Read(msgspec.Struct):
    topic: Topic
    partition: Annotated[int, msgspec.Meta(ge=0, description="From 0.")] = 0
    offset: Annotated[int, msgspec.Meta(ge=0, description="Where to begin; 0 and 1 are the beginning.")] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000, description="How many at most.")] = 20


class ReadEvent(msgspec.Struct, omit_defaults=True):
    partition: int
    offset: int
    id: str
    ts: Annotated[int, _about("When it was stored: epoch ms.")]
    payload: Any
    key: str | None = None
    headers: dict[str, str] | None = None


class Page(msgspec.Struct):
    events: list[ReadEvent]
    next: Annotated[int, _about("Where to go on.")]


class Nothing(msgspec.Struct):
    """No input."""


class After(msgspec.Struct):
    after: Annotated[str, _about("Only names greater than this: the next page.")] = ""


class Topics(msgspec.Struct):
    topics: Annotated[list[dict[str, Any]], _about("The settings of each topic, by name.")]
    more: Annotated[bool, _about("Whether there are more after the last one.")]


class CreateTopic(msgspec.Struct):
    topic: Topic
    settings: Annotated[dict[str, Any], _about("partitions, retentionMs, maxAttempts, compact, ...")] = {}


class Created(msgspec.Struct):
    settings: dict[str, Any]
    created: Annotated[bool, _about("False when it existed and was changed.")]


class OfTopic(msgspec.Struct):
    topic: Topic


class Offsets(msgspec.Struct):
    partitions: list[PartitionOffsets]


class AskGroups(msgspec.Struct):
    topic: Annotated[str | None, _about("Of this topic only; without it, of all.")] = None


class Groups(msgspec.Struct):
    groups: list[GroupInfo]


class Seek(msgspec.Struct):
    topic: Topic
    group: GroupName
    kind: Annotated[Literal["latest", "offset", "timestamp"], _about("What `value` is.")]
    value: Annotated[int | None, _about("An offset, or epoch ms.")] = None
    partition: Annotated[int | None, _about("Only this one; without it, all.")] = None


class DeleteGroup(msgspec.Struct):
    topic: Topic
    group: GroupName


class AskLetters(msgspec.Struct):
    topic: Annotated[str, _about("The original topic.")]
    offset: Annotated[int, msgspec.Meta(ge=0, description="Where to begin in its dead letters.")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000, description="How many at most.")] = 20


class Letters(msgspec.Struct):
    letters: Annotated[list[Any], _about("Where each came from, how often it was tried, and why it died.")]
    more: Annotated[bool, _about("Whether there are more after the last one.")]


class Redrive(msgspec.Struct):
    topic: Annotated[str, _about("The original topic.")]
    offsets: Annotated[list[int] | None, _about("Offsets of dead letters; without them, all.")] = None


class Redriven(msgspec.Struct):
    count: int


class PutSchedule(msgspec.Struct):
    name: Annotated[str, _about("A schedule of this name is replaced.")]
    topic: Topic
    payload: Annotated[msgspec.Raw, _about("Any JSON value, published each time.")] = NULL
    every: Annotated[int | None, _about("Milliseconds between two events.")] = None
    cron: Annotated[str | None, _about("Minute, hour, day of month, month, day of week, in UTC.")] = None
    key: Annotated[str | None, _about("The key of its events.")] = None


class Planned(msgspec.Struct):
    name: str
    next: Annotated[int, _about("When it fires: epoch ms.")]


class Schedules(msgspec.Struct):
    schedules: list[Schedule]


class NamedSchedule(msgspec.Struct):
    name: Annotated[str, _about("The schedule's name.")]


class Done(msgspec.Struct):
    done: bool = True


def bus(the_bus: Bus) -> Capability:
    """The capability `Bus` of a node with this bus."""
    return Capability(
        id="Bus",
        description="Durable topics, events and groups.",
        handlers=[*_events(the_bus), *_topics(the_bus), *_groups(the_bus), *_schedules(the_bus)],
    )


def _events(bus: Bus) -> list[Handler]:
    async def publish(data: Publish, ctx: Context) -> Published:
        """Store an event in a topic. It is durable when the answer comes."""
        cause = ctx.message.metadata
        headers = {**lineage_headers(cause.id, cause.correlation), **(data.headers or {})}
        with _answered():
            stored = await bus.publish(
                data.topic,
                bytes(data.payload),
                key=data.key,
                headers=headers,
                id=data.id,
                delay_ms=data.delayMs,
            )
        return Published(stored.topic, stored.partition, stored.offset, stored.id, stored.duplicate)

    async def read(data: Read, ctx: Context) -> Page:
        """Read stored events of one partition in order."""
        with _answered():
            found = await bus.read(data.topic, data.partition, data.offset, data.limit)
        shown = _fitting([_event(event) for event in found])
        if found and not shown:
            raise Fail(413, f"the event at offset {found[0].offset} does not fit one line", remedy="read it over HTTP")
        return Page(shown, shown[-1].offset + 1 if shown else max(1, data.offset))

    async def dead_letters(data: AskLetters, ctx: Context) -> Letters:
        """Events of a topic that a group gave up, and why."""
        with _answered():
            found = await bus.dead_letters(data.topic, offset=data.offset, limit=data.limit)
        shown = _fitting(found)
        return Letters(shown, len(shown) < len(found) or len(found) == data.limit)

    async def redrive(data: Redrive, ctx: Context) -> Redriven:
        """Publish dead letters to their topic again."""
        with _answered():
            return Redriven(len(await bus.redrive(data.topic, data.offsets)))

    return [
        handler_from("command", "Bus.Publish", publish),
        handler_from("query", "Bus.Read", read),
        handler_from("query", "Bus.DeadLetters", dead_letters),
        handler_from("command", "Bus.Redrive", redrive),
    ]


def _topics(bus: Bus) -> list[Handler]:
    def topics(data: After, ctx: Context) -> Topics:
        """Every topic and its settings, by name."""
        known = [config for config in bus.topics.configs() if config.topic > data.after]
        shown = _fitting([msgspec.json.decode(encode_topic(config)) for config in known])
        return Topics(shown, len(shown) < len(known))

    async def create(data: CreateTopic, ctx: Context) -> Created:
        """Create a topic, or change its settings; what is not mentioned stays."""
        with _answered():
            wanted = msgspec.json.encode({**data.settings, "topic": data.topic})
            change = await bus.put_topic(bus.topics.settings_after(wanted))
        return Created(msgspec.json.decode(encode_topic(change.config)), change.created)

    async def offsets(data: OfTopic, ctx: Context) -> Offsets:
        """First and last offset of each partition, and where its groups stand."""
        with _answered():
            return Offsets(_fitting(await bus.offsets(data.topic)))

    def stats(data: Nothing, ctx: Context) -> Stats:
        """Counters since the node started, and gauges of now."""
        return bus.stats()

    return [
        handler_from("query", "Bus.Topics", topics),
        handler_from("command", "Bus.CreateTopic", create),
        handler_from("query", "Bus.Offsets", offsets),
        handler_from("query", "Bus.Stats", stats),
    ]


def _groups(bus: Bus) -> list[Handler]:
    def groups(data: AskGroups, ctx: Context) -> Groups:
        """Groups with their members, positions and lag."""
        with _answered():
            return Groups(_fitting(bus.groups.infos(data.topic)))

    async def seek(data: Seek, ctx: Context) -> GroupInfo:
        """Move a group; events it skips count as settled, events before come again."""
        with _answered():
            return await bus.seek(data.topic, data.group, Start(data.kind, data.value), partition=data.partition)

    async def delete(data: DeleteGroup, ctx: Context) -> Done:
        """Forget a group that has no members."""
        with _answered():
            await bus.delete_group(data.topic, data.group)
        return Done()

    return [
        handler_from("query", "Bus.Groups", groups),
        handler_from("command", "Bus.Seek", seek),
        handler_from("command", "Bus.DeleteGroup", delete),
    ]


def _schedules(bus: Bus) -> list[Handler]:
    async def schedule(data: PutSchedule, ctx: Context) -> Planned:
        """Publish an event again and again: `every` so many milliseconds, or as `cron` says."""
        with _answered():
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
        return Planned(put.name, put.next_ms)

    async def unschedule(data: NamedSchedule, ctx: Context) -> Done:
        """End a schedule."""
        with _answered():
            await bus.schedules.delete(data.name)
        return Done()

    def schedules(data: After, ctx: Context) -> Schedules:
        """Schedules by name, and when each fires next."""
        return Schedules(_fitting([each for each in bus.schedules.all() if each.name > data.after]))

    return [
        handler_from("command", "Bus.Schedule", schedule),
        handler_from("command", "Bus.Unschedule", unschedule),
        handler_from("query", "Bus.Schedules", schedules),
    ]


def _event(event: StoredEvent) -> ReadEvent:
    headers = None if event.headers is None else msgspec.json.decode(event.headers, type=dict[str, str])
    payload = msgspec.json.decode(event.payload)
    return ReadEvent(event.partition, event.offset, event.id, event.ts, payload, event.key, headers)


def _fitting(items: list[Any]) -> list[Any]:
    """As many as fit one answer."""
    size = 0
    for index, item in enumerate(items):
        size += len(msgspec.json.encode(item)) + 1
        if size > _ANSWER_BYTES:
            return items[:index]
    return items


@contextmanager
def _answered() -> Iterator[None]:
    """Errors of the bus as answers."""
    try:
        yield
    except MainspringError as error:
        raise Fail(_STATUS.get(error.code, 422), error.message, remedy=error.remedy) from None
