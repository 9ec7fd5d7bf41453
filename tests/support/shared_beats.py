"""Heartbeats of several nodes on one shared log in one process, under virtual time."""

from __future__ import annotations

from typing import Any

from mainspring.beats import Driver, Heartbeat, TopicInlet
from mainspring.beats.storage.journal import EnqueueFact, read_journal
from mainspring.beats.storage.line import journals_of
from mainspring.log import Append, Batch, Log
from tests.support.cluster import LEASE_MS, Member, World, in_virtual_time, wait

__all__ = [
    "LEASE_MS",
    "Node",
    "World",
    "digests",
    "in_virtual_time",
    "install",
    "journals",
    "leader",
    "node",
    "nodes",
    "publish",
    "seen",
    "signals_of",
    "wait",
]


def count(signal: str, target: str | None, stage: Any) -> None:
    """Counts how often each signal was worked on."""
    stage.write(f"/seen{signal}", (stage.read(f"/seen{signal}") or 0) + 1)


def bound(signal: str, target: str | None, stage: Any) -> None:
    stage.write(f"/bound{target}", stage.beat)


def install(heartbeat: Heartbeat) -> None:
    heartbeat.register("count", "/jobs", count, match="prefix")
    heartbeat.register("count", "/topics", count, match="prefix")
    heartbeat.register("bound", "/place", bound, match="prefix")


class Node:
    """One node: its membership, its heartbeat and the driver."""

    def __init__(self, member: Member, topic: str | None, **settings: Any) -> None:
        self.member = member
        self.name = member.name
        self.log: Log = member.log
        self.engine = member.engine
        self.heartbeat = Heartbeat(member.log, cluster=member.cluster, clock=member.world.clock, **settings)
        install(self.heartbeat)
        self.reports: list[Any] = []
        self.driver = Driver(self.heartbeat, member.loop, on_report=self.reports.append)
        if topic is not None:
            self.heartbeat.add_inlet(TopicInlet(member.log, topic))
            member.log.watch(lambda change: self.driver.wake() if change.appended else None)

    async def start(self) -> None:
        await self.heartbeat.open()
        self.driver.start()

    def kill(self) -> None:
        self.member.kill()

    def freeze(self) -> None:
        self.member.stop()

    def thaw(self) -> None:
        self.member.go_on()

    async def leave(self) -> None:
        await self.driver.stop()
        await self.heartbeat.aclose()
        await self.member.leave()

    async def signal(self, signal: str, target: str | None = None, beat: int | None = None) -> int:
        lands = self.heartbeat.signal(signal, target, beat)
        await self.heartbeat.aflush()
        return lands


async def node(world: World, name: str, topic: str | None = None, **settings: Any) -> Node:
    made = Node(await world.node(name), topic, **settings)
    await made.start()
    return made


async def nodes(world: World, *names: str, topic: str | None = None, **settings: Any) -> list[Node]:
    made = [await node(world, name, topic, **settings) for name in names]
    await wait(100)
    return made


def leader(made: list[Node]) -> Node:
    (found,) = [each for each in made if each.heartbeat.leads]
    return found


def seen(each: Node) -> dict[str, int]:
    """How often each signal was worked on, as this node reads it."""
    paths = each.heartbeat.paths("/seen")
    return {path.removeprefix("/seen"): each.heartbeat.read(path) for path in paths}


async def publish(log: Log, topic: str, *payloads: str) -> None:
    await log.commit(Batch([Append(topic, 0, text, 0, f'"{text}"'.encode()) for text in payloads]))


async def journals(world: World) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async for record in world.shared.state.scan(journals_of("main")):
        beat = int(record.key[:16])
        found[beat] = found.get(beat, b"") + record.value
    return found


async def digests(world: World) -> list[str]:
    prefix = "main/digest/"
    return [record.value.decode() async for record in world.shared.state.scan("beats", prefix)]


async def signals_of(world: World) -> list[str | None]:
    """Every signal of every inbox, in order: read from the journals."""
    found: list[str | None] = []
    for beat, journal in sorted((await journals(world)).items()):
        found += [fact.impulse.signal for fact in read_journal(beat, journal) if isinstance(fact, EnqueueFact)]
    return found
