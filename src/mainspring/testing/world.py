"""World: a simulated node as a test sees it.

What a test does (`send`, `publish`, `advance`, ...) is awaited and returns when everything that follows from it at the
same instant has happened. What a test looks at (`events`, `runs`, `now`, ...) is plain data, read when it is asked.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mainspring.app import App
from mainspring.bus import DeadLetter, GroupInfo, Published, ScheduleInfo, TopicConfig
from mainspring.codec import Encoding
from mainspring.durations import Duration, duration_ms
from mainspring.kernel import draw_tree
from mainspring.log import DamagedEvent, Log
from mainspring.message import Message, Retry, encode_bytes
from mainspring.runs import Outcome, ReplayMismatch, RunRecord
from mainspring.testing.driving import DidNotHappen

if TYPE_CHECKING:
    from mainspring.client import Client, SyncClient
    from mainspring.node import Core
    from mainspring.testing.one_node import Simulation

T = TypeVar("T")


@dataclass(frozen=True)
class SeenEvent:
    """One stored event."""

    topic: str
    partition: int
    offset: int
    id: str
    ts: int
    key: str | None
    headers: Mapping[str, str]
    payload: Any


@dataclass(frozen=True)
class SeenRun:
    """One durable run. `state` is running, blocked, done, failed or cancelled; the rest says more."""

    id: str
    program: str
    state: str
    value: Any = None
    error: Mapping[str, str] | None = None
    reason: Any = None
    parent: str | None = None


class Events(list[SeenEvent]):
    """Events of a topic by partition and offset. Plain data; awaiting it gives itself."""

    def __await__(self) -> Generator[None, None, Events]:
        yield from ()
        return self

    @property
    def payloads(self) -> list[Any]:
        return [event.payload for event in self]


class World:
    """The node of a simulation. Made by `simulate`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.random: random.Random = random.Random(f"{simulation.seed}/world")
        self.messages: list[Message] = []  # everything that passed the kernel, in order, over all lives

    @property
    def seed(self) -> int:
        """Where ids, random numbers and ties come from; the same seed gives the same story."""
        return self._simulation.seed

    @property
    def node(self) -> Core:
        """The parts of the node's present life, for what this face does not offer."""
        return self._simulation.core

    # -- time

    @property
    def now_ms(self) -> int:
        """Virtual time of day: epoch ms."""
        return self._simulation.clock.wall_ms()

    @property
    def now(self) -> datetime:
        """The same for people."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    async def advance(self, span: Duration) -> None:
        """Let time pass ("1h", "30d", seconds); everything that is due on the way happens, in order."""
        clock, driver = self._simulation.clock, self._simulation.driver
        until_ns = clock.now_ns() + duration_ms(span) * 1_000_000
        await self.settle()
        while clock.now_ns() < until_ns:
            driver.step(until_ns)
            await driver.share()

    async def advance_to(self, moment: datetime) -> None:
        """Let time pass until this moment."""
        await self.advance(max(0.0, moment.timestamp() - self.now_ms / 1000))

    async def settle(self) -> None:
        """Let everything happen that can happen without time passing."""
        self._simulation.driver.settle()
        await self._simulation.driver.share()

    async def until(self, condition: Callable[[], Any], *, within: Duration = "366d") -> Any:
        """Let time pass until the condition, plain or async, is true; gives its value. Raises DidNotHappen."""
        clock, driver = self._simulation.clock, self._simulation.driver
        limit_ns = clock.now_ns() + duration_ms(within) * 1_000_000
        await self.settle()
        while not (found := await _value(condition())):
            if clock.now_ns() >= limit_ns:
                raise DidNotHappen(f"it was not true within {within}", remedy="wait longer, or look at world.messages")
            driver.step(limit_ns)
            await driver.share()
        return found

    # -- clients

    def client(self, token: str | None = None, **options: Any) -> Client:
        """A client of the node, as `connect` gives one, on virtual time; use it with `async with`, in place of it.

        It lives over crashes and restarts. What the test awaits of it moves time, as far as needed; a wait without an
        end (`follow`, the next event without a `timeout`) only while no other task of the test could do something.
        """
        from mainspring.testing.client import simulated_client

        return simulated_client(self._simulation, token, options)

    def sync_client(self, token: str | None = None, **options: Any) -> SyncClient:
        """The same for code that blocks, in place of `SyncClient`; use it with `with`."""
        from mainspring.testing.client import SimulatedSyncClient, simulated_client

        return SimulatedSyncClient(simulated_client(self._simulation, token, options))

    # -- doing

    async def send(
        self,
        kind: str,
        type: str,
        data: Any = None,
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Send a message. For a command or a query: the reply's data, or `Fail` with the error's code."""
        if kind == "event":
            return await self._call(self._emit(type, data))
        return await self._call(self._ask(kind, type, data, timeout, retry))

    async def command(
        self, type: str, data: Any = None, *, timeout: Duration | None = None, retry: Retry | None = None
    ) -> Any:
        """Send a command."""
        return await self.send("command", type, data, timeout=timeout, retry=retry)

    async def query(
        self, type: str, data: Any = None, *, timeout: Duration | None = None, retry: Retry | None = None
    ) -> Any:
        """Send a query."""
        return await self.send("query", type, data, timeout=timeout, retry=retry)

    async def begin(self, kind: str, type: str, data: Any = None, *, retry: Retry | None = None) -> None:
        """Send a command or a query and do not wait for its outcome; `messages` has it when it comes."""
        await self._call(self._begin_request(kind, type, data, retry))

    async def publish(self, topic: str, payload: Any, *, delay: Duration = 0, **options: Any) -> Published:
        """Publish an event; the other `options` (key, headers, id, ...) are the bus's own."""
        text, encoding = encode_bytes(payload), self._encoding
        if encoding is not None:
            text = encoding.seal(text)
        return await self._call(self.node.bus.publish(topic, text, delay_ms=duration_ms(delay), **options))

    async def configure(self, topic: TopicConfig) -> None:
        """Create a topic with these settings, or change them."""
        await self._call(self.node.bus.put_topic(topic))

    async def signal(self, signal: str | None, target: str | None = None) -> None:
        """Signal the beats."""
        await self.send("command", "Beat.Signal", {"signal": signal, "target": target})

    async def start_run(self, program: Any, *args: Any, id: str | None = None) -> str:
        """Start a durable run of a declared program, by function or by name; gives its id."""
        return await self._call(self._begin(program, args, id))

    async def outcome(self, run_id: str, *, within: Duration = "366d") -> Outcome[Any]:
        """Let time pass until the run is over; how it ended. Raises DidNotHappen, or ReplayMismatch if blocked."""
        await self.until(lambda: self.run(run_id).state != "running", within=within)
        durable = self.node.runtime.durable
        record = self._run(durable.store.record(run_id))
        found = durable.outcome_of(record)
        if found is None:
            raise ReplayMismatch((record.error or {}).get("message", ""), remedy="restart with an app that fits")
        return found

    async def crash_and_restart(self, *, down: Duration = 0) -> None:
        """Kill the node at once, wait, boot a new one on the same log.

        What was not committed is gone. Nothing of the old life runs any more, not even its `finally` blocks.
        """
        self._simulation.crash(duration_ms(down))
        await self.settle()

    async def restart(self, *, down: Duration = 0, app: App | None = None) -> None:
        """Stop the node in order, wait, boot a new one on the same log: with another `app`, this is a deploy."""
        self._simulation.stop()
        self._simulation.let_pass(duration_ms(down))
        self._simulation.app = app or self._simulation.app
        self._simulation.start()
        await self.settle()

    # -- looking

    def events(self, topic: str) -> Events:
        """The stored events of a topic, by partition and offset; none when it does not exist.

        What the codec of the app has encoded is decoded.
        """
        found, encoding = self._run(stored_events(self.node.log, topic)), self._encoding
        if encoding is None:
            return found
        return Events(replace(each, payload=encoding.readable(each.payload)) for each in found)

    def runs(self, program: str | None = None) -> list[SeenRun]:
        """Durable runs by id, of one program or of all."""
        found = self._run(self.node.runtime.durable.store.runs())
        return [_seen_run(record) for record in found if program is None or record.program == program]

    def run(self, run_id: str) -> SeenRun:
        """One durable run. Raises UnknownRun."""
        return _seen_run(self._run(self.node.runtime.durable.store.record(run_id)))

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """Groups of one topic, or of all, with their lag in each partition."""
        return self.node.bus.groups.infos(topic)

    def lag(self, topic: str, group: str) -> int:
        """How many events of a topic a group has not settled yet, as far as it is stored."""
        (found,) = [each for each in self.groups(topic) if each.group == group]
        return sum(each.lag for each in found.partitions.values())

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """The events of a topic that a group gave up."""
        return self._run(self.node.bus.dead_letters.page(topic))

    def schedules(self) -> list[ScheduleInfo]:
        """What will fire, by name."""
        return self.node.bus.schedules.all()

    def read(self, path: str) -> Any:
        """A value of the beats' state."""
        return self._run(self.node.heartbeat.aread(path))

    def said(self, type: str) -> list[Any]:
        """The data of every message of this type that passed so far."""
        return [message.data for message in self.messages if message.type == type]

    def trace(self, id: str) -> str:
        """What caused a message, an event or a run and what followed from it, as a tree for people."""
        return draw_tree(self._run(self.node.kernel.whole_trace(id)), id)

    # -- inside

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._simulation.process.run(work)

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        result = await self._simulation.process.call(work)
        await self.settle()
        return result

    async def _ask(self, kind: str, type: str, data: Any, timeout: Duration | None, retry: Retry | None) -> Any:
        answer = await self.node.kernel.ask(kind, type, self._sent(type, data), timeout=timeout, retry=retry)
        return answer if self._encoding is None else self._encoding.open_value(answer)

    def _sent(self, type: str, data: Any) -> Any:
        """Data as the program itself would send it."""
        given = {} if data is None else data
        return given if self._encoding is None else self._encoding.seal_data(type, encode_bytes(given))

    @property
    def _encoding(self) -> Encoding | None:
        return None if self.node.app is None else self.node.app.encoding

    async def _begin_request(self, kind: str, type: str, data: Any, retry: Retry | None) -> None:
        outcome = self.node.kernel.ask(kind, type, self._sent(type, data), retry=retry)
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else will look

    async def _emit(self, type: str, data: Any) -> None:
        self.node.kernel.emit(type, data)

    async def _begin(self, program: Any, args: tuple[Any, ...], id: str | None) -> str:
        begun = self.node.runtime.start(program, *args, durable=True, id=id)
        await self.node.runtime.durable.written(begun)
        return begun.id


async def stored_events(log: Log, topic: str) -> Events:
    """The events of a topic by partition and offset, without those that are damaged."""
    found = Events()
    for bounds in await log.bounds(topic):
        start = bounds.head
        while start <= bounds.tail:
            try:
                page = await log.read(topic, bounds.partition, start, 1_000)
            except DamagedEvent as error:
                start = error.offset + 1
                continue
            if not page:
                break
            found += [_seen(event) for event in page]
            start = page[-1].offset + 1
    return found


async def _value(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def _seen(event: Any) -> SeenEvent:
    return SeenEvent(
        event.topic,
        event.partition,
        event.offset,
        event.id,
        event.ts,
        event.key,
        {} if event.headers is None else msgspec.json.decode(event.headers, type=dict[str, str]),
        msgspec.json.decode(event.payload),
    )


def _seen_run(record: RunRecord) -> SeenRun:
    value, reason = msgspec.json.decode(record.value), msgspec.json.decode(record.reason)
    return SeenRun(record.id, record.program, record.state, value, record.error, reason, record.parent)
