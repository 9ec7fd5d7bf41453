"""A whole bus under virtual time: no sockets, no waiting, and a crash is one line.

`World` is a bus on a log that outlives it; `Peer` is a connection that remembers what it got. A test decorated with
`@in_virtual_time` gets a fresh world and may sleep for hours: the clock jumps whenever nothing is left to do.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mainspring.bus import Bus, Session
from mainspring.bus.topics import config as topics
from mainspring.log import Batch, Engine, Log, LogUnavailable, MemoryEngine, Result
from mainspring.loop import Loop, VirtualClock, VirtualEventLoop
from mainspring.settings import Settings

Frame = dict[str, Any]
LATEST: Frame = {"kind": "latest"}
BEGINNING: Frame = {"kind": "offset", "value": 0}
WALL_MS = 1_700_000_000_000


class FailingEngine(MemoryEngine):
    """A disk that is full for a while."""

    full = False

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        return self._refused(batches) if self.full else await super().commit(batches)

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        if self.full:
            done(self._refused(batches))
        else:
            super().submit(batches, done)

    def _refused(self, batches: Sequence[Batch]) -> list[Result]:
        return [LogUnavailable("the disk is full", remedy="make room") for _ in batches]


class Peer:
    """One connection; frames it got are taken from the front."""

    def __init__(self, bus: Bus, agent: str | None, journal: list[tuple[Peer, Frame]]) -> None:
        self.got: list[Frame] = []
        self._journal = journal
        self.session: Session = bus.open_session(agent, self._take)

    def _take(self, text: bytes) -> None:
        frame = json.loads(text)
        self.got.append(frame)
        self._journal.append((self, frame))

    def send(self, frame: Frame | str | bytes) -> None:
        self.session.receive(json.dumps(frame) if isinstance(frame, dict) else frame)

    async def ask(self, frame: Frame | str | bytes) -> Frame:
        """Send, and take the next frame that is not a delivery."""
        self.send(frame)
        await settle()
        for index, got in enumerate(self.got):
            if got["type"] not in ("MESSAGE", "MESSAGES"):
                return self.got.pop(index)
        raise AssertionError(f"no answer to {frame!r}; got {self.got}")

    async def publish(self, topic: str, payload: Any = None, **fields: Any) -> Frame:
        answer = await self.ask({"type": "PUBLISH", "topic": topic, "payload": payload, **fields})
        assert answer["type"] == "PUBLISHED", answer
        return answer

    async def publish_many(self, topic: str, count: int, **fields: Any) -> None:
        for n in range(1, count + 1):
            await self.publish(topic, {"n": n}, **fields)

    async def subscribe(self, topic: str, group: str, start: Frame | None = None, **options: Any) -> Frame:
        frame = {"type": "SUBSCRIBE", "topic": topic, "group": group, **options}
        if start is not None:
            frame["from"] = start
        answer = await self.ask(frame)
        assert answer["type"] == "OK", answer
        return answer

    async def messages(self) -> list[Frame]:
        """Every delivery that has arrived, and nothing else may have."""
        await settle()
        taken, self.got = self.got, []
        assert all(frame["type"] == "MESSAGE" for frame in taken), taken
        return taken

    async def offsets(self) -> list[int]:
        return [frame["offset"] for frame in await self.messages()]

    async def message(self) -> Frame:
        (only,) = await self.messages()
        return only

    def ack(self, topic: str, group: str, offset: int, partition: int = 0) -> None:
        self.send({"type": "ACK", "topic": topic, "partition": partition, "group": group, "offset": offset})

    def nack(self, topic: str, group: str, offset: int, partition: int = 0, **fields: Any) -> None:
        frame = {"type": "NACK", "topic": topic, "partition": partition, "group": group, "offset": offset}
        self.send({**frame, **fields})

    def close(self) -> None:
        self.session.close()


class World:
    """A bus that can die and come back on the same log."""

    def __init__(self, clock: VirtualClock, engine: Engine | None = None, **settings: Any) -> None:
        self.clock = clock
        self.engine = engine or MemoryEngine()
        self.settings = Settings(**{"metrics_interval_ms": 0, **settings})
        self.random = random.Random(7)
        self.ids = 0
        self.journal: list[tuple[Peer, Frame]] = []  # what all peers got, in order

    async def start(self) -> None:
        self.loop = Loop(self.clock)
        self.loop.attach()
        self.log = Log(self.engine)
        await self.log.open()
        self.bus = Bus(
            self.log,
            self.clock,
            self.loop,
            settings=self.settings,
            new_id=self._new_id,
            random=self.random.random,
        )
        await self.bus.start()

    def _new_id(self) -> str:
        self.ids += 1
        return f"018bcfe5-6800-7000-8000-{self.ids:012x}"

    async def stop(self) -> None:
        await self.bus.stop()
        self.loop.detach()

    async def kill(self) -> None:
        """The process dies: nothing is written any more, sockets are gone, and a new process starts on the same log."""
        await settle()
        self.loop.detach()
        self.bus.delivery.closed = True
        await self.start()

    def connect(self, agent: str | None = None) -> Peer:
        return Peer(self.bus, agent, self.journal)

    async def create(self, topic: str, **fields: Any) -> topics.TopicConfig:
        return (await self.bus.put_topic(topics.topic_from({"topic": topic, **fields}))).config

    async def committed(self, topic: str, group: str, partition: int = 0) -> int:
        await settle(0.1)
        return (await self.bus.groups.offsets(topic))[partition].groups[group].last_committed

    async def inflight(self, topic: str, group: str, partition: int = 0) -> int:
        return (await self.bus.groups.offsets(topic))[partition].groups[group].inflight

    async def stored(self, topic: str, partition: int = 0) -> list[Any]:
        """Payloads in the log."""
        await settle(0.2)
        return [json.loads(event.payload) for event in await self.log.read(topic, partition, 1, 10_000)]


async def settle(seconds: float = 0.001) -> None:
    """Let everything happen that can happen now. Positions are stored after 10 ms, audit after 100."""
    await asyncio.sleep(seconds)


def in_virtual_time(
    test: Callable[..., Coroutine[Any, Any, None]] | None = None, **settings: Any
) -> Callable[..., Any]:
    """Make a plain test of a coroutine that takes a World (and fixtures)."""
    if test is None:
        return functools.partial(in_virtual_time, **settings)

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        clock = VirtualClock(1_000, wall_ms=WALL_MS)

        async def story() -> None:
            world = World(clock, **settings)
            await world.start()
            try:
                await test(world, *arguments, **fixtures)
            finally:
                await world.stop()

        with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
            runner.run(story())

    # pytest must not ask for a fixture named `world`
    signature = __import__("inspect").signature(test)
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
