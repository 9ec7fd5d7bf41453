"""What a program declares is put into effect among the programs of other nodes, and nothing of theirs undone.

Topics are settled before anything is consumed, schedules when everything else is ready. Both follow what is in force,
that is, what the programs of all living nodes declare (`cluster/program_versions.py`). What another node declares
meanwhile is noticed: schedules are written under a guard, and topics are looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mainspring.app import App, DeclaredConsumer, DeclaredSchedule, DeclaredSchema, DeclaredTopic, place_of
from mainspring.bus import DECLARED, SCHEMA_HEADER, BadSchema, Bus, Conflict, Schedule, TopicConfig
from mainspring.bus.access import Pattern
from mainspring.bus.schemas import schema_of
from mainspring.bus.topics import UNDECLARED, DeclaredGroup
from mainspring.cluster import Cluster, DeclarationsInForce, Declared, ProgramVersions
from mainspring.errors import MainspringError
from mainspring.kernel import CapabilityError
from mainspring.log import Log, Refused
from mainspring.loop import Loop, pause
from mainspring.tasks import Task

logger: logging.Logger = logging.getLogger("mainspring.app")

_RETRY_MS: Final = 1_000


def declares(app: App) -> Declared:
    """Everything a program says about what nodes share, as plain data. Another digest of it is another program."""
    beats = app.beats
    return {
        "schedules": declared_schedules(app),
        "topics": declared_topics(app.topics),
        "enzymes": {f"{each.name} {each.query}": [each.match, each.before, each.after] for each in beats.enzymes},
        "bindings": {f"{path} {name}": kind for path, name, kind in beats.bindings},
        "inlets": {each.topic: {} for each in beats.topics},
    }


class Declarations:
    """Puts one program's declarations into effect. `settle_topics`, then `settle_schedules`; `stop` at the end."""

    def __init__(self, app: App, bus: Bus, log: Log, loop: Loop, cluster: Cluster) -> None:
        self.programs: ProgramVersions = ProgramVersions(log, loop, cluster, declares(app))
        self._app = app
        self._bus = bus
        self._loop = loop
        self._again: asyncio.Task[None] | None = None
        cluster.on_fenced(self._fenced)

    async def settle_topics(self) -> None:
        """Create the program's topics, or change them where they differ."""
        before: DeclarationsInForce | None = None
        while before != (now := await self.programs.declare()):
            await configure_topics(now, self._app.topics, self._bus)
            before = now

    async def settle_schedules(self) -> None:
        """Write the program's schedules, and remove those that nobody declares any more."""
        while True:
            try:
                await plan_schedules(self._app, self._bus, await self.programs.declare())
                return
            except Refused:
                continue  # somebody declared something, or one of them fired

    async def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait([self._again])

    def _fenced(self, _: Any) -> None:
        """What was declared under the former lease counted as gone for a while: say it again."""
        if self._again is None or self._again.done():
            self._again = asyncio.get_running_loop().create_task(self._declare_again())

    async def _declare_again(self) -> None:
        while True:
            try:
                await self.settle_topics()
                await self.settle_schedules()
                return
            except MainspringError as error:
                logger.warning("what the program declares could not be written down yet: %s", error.message)
                await pause(self._loop, _RETRY_MS, ref=False)


_KEPT_FIRINGS = 1_000  # of each schedule, for people who look back


_CALLS_AT_ONCE = 100  # of a function whose calls may overlap


def schedule_name(app: App, declared: DeclaredSchedule) -> str:
    return f"{DECLARED}{app.name}/{declared.name}"


def schedule_topic(app: App, declared: DeclaredSchedule) -> str:
    """Where the firings of a schedule are events: each schedule has its own, so that a slow one delays no other."""
    return f"schedules.{app.name}.{declared.name}"


def schedule_consumers(app: App) -> list[DeclaredConsumer]:
    """The consumers that call the scheduled functions."""
    return [
        DeclaredConsumer(
            schedule_topic(app, declared),
            app.name,
            declared.function,
            retries=declared.retries,
            takes_event=declared.takes_event,
            store_each=True,
            schedule=schedule_name(app, declared),
            one_node=declared.overlap != "allow",
            concurrency=_CALLS_AT_ONCE if declared.overlap == "allow" else 1,
            max_inflight=_CALLS_AT_ONCE if declared.overlap == "allow" else 1,
            place=place_of(declared.function),
        )
        for declared in app.schedules
    ]


def groups_of(
    consumers: Sequence[DeclaredConsumer], tasks: Iterable[Task[..., Any]]
) -> Callable[[str, str], DeclaredGroup]:
    """What the consumers and tasks of a program say about a group, by topic and group."""
    declared = {(topic, task.group): DeclaredGroup() for task in tasks for topic in task.topics.lanes()}
    patterns: list[tuple[Pattern, str, DeclaredGroup]] = []
    for each in consumers:
        said = DeclaredGroup(each.retries.max_attempts or 0, each.limits.group_concurrency)
        if each.is_pattern:
            patterns.append((Pattern(each.topic), each.group, said))
        else:
            declared[(each.topic, each.group)] = said

    def find(topic: str, group: str) -> DeclaredGroup:
        fitting = (said for pattern, name, said in patterns if name == group and pattern.covers_topic(topic))
        return declared.get((topic, group)) or next(fitting, UNDECLARED)

    return find


def refuse_former_groups(consumers: Sequence[DeclaredConsumer], bus: Bus) -> None:
    """A consumer without `group=` had the app's name as its group before; it must not start again unnoticed."""
    declared = {(each.topic, each.group) for each in consumers}
    for each in consumers:
        former = (each.topic, each.app)
        if (
            each.app
            and former not in declared
            and bus.groups.find(*former)
            and not bus.groups.find(each.topic, each.group)
        ):
            raise CapabilityError(
                f"{each.place}: the consumer of {each.topic!r} would start from the beginning as group {each.group!r}, "
                f"while group {each.app!r} has a position",
                remedy=f"give group={each.app!r} to go on from there, or group={each.group!r} to start anew",
            )


def declared_schedules(app: App) -> dict[str, dict[str, Any]]:
    """The schedules of a program as other nodes read them, by their names in the log."""
    return {
        schedule_name(app, each): {
            "topic": schedule_topic(app, each),
            "every": None,
            "cron": None,
            **each.times,
            **({} if each.overlap == "queue" else {"overlap": each.overlap}),
        }
        for each in app.schedules
    }


async def plan_schedules(app: App, bus: Bus, in_force: DeclarationsInForce) -> None:
    """Make the rows of the log agree with what is in force. Raises Refused when that changed meanwhile."""
    for declared in app.schedules:
        topic = schedule_topic(app, declared)
        if not bus.topics.open(topic).stored:
            await bus.put_topic(TopicConfig(topic=topic, retention_count=_KEPT_FIRINGS))
    prefix = f"{DECLARED}{app.name}/"
    wanted = {}
    for name, said in in_force.of("schedules").items():
        if name.startswith(prefix):
            payload = msgspec.Raw(msgspec.json.encode({"schedule": name.removeprefix(prefix)}))
            wanted[name] = bus.admission.accept_schedule(Schedule(name=name, payload=payload, **said[-1]), None)
    await bus.schedules.agree(prefix, wanted, in_force.guard)


# -- topics


def declared_topics(declared: Iterable[DeclaredTopic]) -> dict[str, dict[str, Any]]:
    """What a program says about topics as other nodes read it, by topic."""
    said: dict[str, dict[str, Any]] = {}
    for each in declared:
        said[each.topic] = {**said.get(each.topic, {}), **each.settings}
    return said


async def configure_topics(in_force: DeclarationsInForce, own: Iterable[DeclaredTopic], bus: Bus) -> None:
    """Create this program's topics, or change them where they differ from what is in force for them."""
    everything = in_force.of("topics")
    for topic in declared_topics(own):
        each = DeclaredTopic(topic, {key: value for said in everything[topic] for key, value in said.items()})
        state = bus.topics.open(each.topic)
        wanted = each.over(state.config)
        if not state.stored or wanted != state.config:
            await bus.put_topic(wanted)


# -- schemas

_TRIES: Final = 20  # several nodes with one new program may start at once, and register the same
_AGAIN_S: Final = 0.1


class PublishedVersions:
    """The versions of schemas in which one node's program publishes.

    While a newer program runs on other nodes, the latest version of a schema may be one that this program does not
    know. So what this program publishes is held to the version that it registered itself, and its events name it.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._versions: dict[str, int] = {}

    def register(self, topic: str, version: int) -> None:
        """The program's schema of this topic is that version."""
        self._versions[topic] = version

    def headers(self, topic: str, headers: Mapping[str, str] | None) -> dict[str, str] | None:
        """The headers of an event that the program publishes: they name its version where that is not the latest."""
        version = self._versions.get(topic)
        if version is not None and version != self._bus.schemas.get(topic).version:
            return {SCHEMA_HEADER: str(version), **(headers or {})}
        return None if headers is None else dict(headers)


async def install_schemas(app: App, bus: Bus, versions: PublishedVersions) -> None:
    """Register the program's schemas and upcasters with a bus that has started.

    A schema that breaks what its topic promises fails the boot, with the differences. What consumers expect is only
    shown; nothing is held to it.
    """
    for step in app.payloads.upcasters:
        change = step.step if app.encoding is None else app.encoding.around(step.step)
        bus.topics.add_upcaster(step.topic, step.version, change)
    if app.encoding is not None:
        bus.schemas.open_payload = app.encoding.open
    for declared in app.payloads.schemas:
        versions.register(declared.topic, await _register(bus, declared))
    for consumer in app.consumers:
        if consumer.is_pattern:
            continue
        try:
            bus.schemas.expected[consumer.topic] = {} if consumer.payload is Any else schema_of(consumer.payload)
        except BadSchema:
            bus.schemas.expected[consumer.topic] = {}  # a type without a schema: all that is known is the topic


async def _register(bus: Bus, declared: DeclaredSchema) -> int:
    """The version that a schema has then. What another node registers at the same moment is looked at again."""
    tries = 1
    while True:
        try:
            registered, _ = await bus.register_schema(
                declared.topic, declared.given, compatibility=declared.compatibility
            )
            return registered.version
        except Conflict:
            if tries == _TRIES:
                raise
            tries += 1
            await asyncio.sleep(_AGAIN_S)
        except MainspringError as error:
            error.message = f"{declared.place}: the schema of {declared.topic!r} cannot be registered: {error.message}"
            raise
