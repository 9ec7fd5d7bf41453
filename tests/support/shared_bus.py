"""Several nodes on one log, in one process and under virtual time.

`Town` has the log; each `Node` is a bus with a cluster membership and an engine of its own. A node can be killed (it
says no more), frozen (it hears and says nothing for a while, then goes on), cut off from the log, and made to lose the
answers of what it stores.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mainspring.bus import Bus
from mainspring.bus.topics import config as topics
from mainspring.cluster import Membership
from mainspring.log import Batch, InDoubt, Log, Result, SharedMemory, SharedMemoryEngine
from mainspring.loop import Loop, VirtualClock, VirtualEventLoop
from mainspring.settings import Settings
from tests.support.bus import WALL_MS, Frame, Peer, settle

LEASE_MS = 3_000


class LateEngine(SharedMemoryEngine):
    """An engine whose commits, when it is `late`, are in doubt at once and stored some time afterwards."""

    late_s = 0.0

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        if not self.late_s or self.cut_off:
            return await super().commit(batches)
        asyncio.get_running_loop().call_later(self.late_s, self._store, list(batches))
        return [InDoubt("the answer takes too long") for _ in batches]

    def _store(self, batches: list[Batch]) -> None:
        if not self.cut_off:
            self._keep = asyncio.ensure_future(super().commit(batches))


class NodePeer(Peer):
    """A connection that remembers under which of the node's leases it got a frame."""

    def __init__(self, node: Node, agent: str | None) -> None:
        self.node = node
        super().__init__(node.bus, agent, node.town.journal)

    def _take(self, text: bytes) -> None:
        super()._take(text)
        self.got[-1]["epoch"] = self.node.cluster.epoch


class Node:
    """One node of the town."""

    def __init__(self, town: Town, name: str) -> None:
        self.town = town
        self.name = name
        self.engine = LateEngine(town.shared)
        town.shared.engines.append(self.engine)
        self.loop = Loop(town.clock)
        self.log = Log(self.engine)
        self.cluster = Membership(self.log, self.loop, node=name, new_id=town.new_id, lease_ms=LEASE_MS)
        self.bus = Bus(
            self.log,
            town.clock,
            self.loop,
            settings=town.settings,
            new_id=town.new_id,
            random=town.random.random,
            cluster=self.cluster,
        )
        self.alive = False

    async def start(self) -> None:
        self.loop.attach()
        await self.log.open()
        await self.cluster.join()
        await self.bus.start()
        self.alive = True

    async def stop(self) -> None:
        if self.alive:
            self.alive = False
            await self.bus.stop()
            await self.cluster.leave()
            self.loop.detach()

    def kill(self) -> None:
        """From now on it does nothing, and nobody is told."""
        self.alive = False
        self.engine.cut_off = True
        self.loop.detach()
        self.bus.delivery.closed = True
        self.town.shared.engines.remove(self.engine)

    def connect(self, agent: str | None = None) -> Peer:
        return NodePeer(self, agent)

    async def committed(self, topic: str, group: str, partition: int = 0) -> int:
        return (await self.bus.groups.offsets(topic))[partition].groups[group].last_committed


class Town:
    """The log and its nodes."""

    def __init__(self, clock: VirtualClock, **settings: Any) -> None:
        self.clock = clock
        self.shared = SharedMemory()
        self.settings = Settings(**{"metrics_interval_ms": 0, "audit": False, **settings})
        self.random = random.Random(7)
        self.ids = 0
        self.nodes: list[Node] = []
        self.journal: list[tuple[Peer, Frame]] = []

    def new_id(self) -> str:
        self.ids += 1
        return f"018bcfe5-6800-7000-8000-{self.ids:012x}"

    async def add(self) -> Node:
        node = Node(self, f"node-{len(self.nodes) + 1}")
        self.nodes.append(node)
        await node.start()
        return node

    async def create(self, topic: str, **fields: Any) -> topics.TopicConfig:
        node = next(node for node in self.nodes if node.alive)
        return (await node.bus.put_topic(topics.topic_from({"topic": topic, **fields}))).config

    async def stop(self) -> None:
        for node in self.nodes:
            node.engine.lose_answers, node.engine.late_s = False, 0.0
            await node.stop()


def in_town(
    test: Callable[..., Coroutine[Any, Any, None]] | None = None, *, nodes: int = 2, **settings: Any
) -> Callable[..., Any]:
    """Make a plain test of a coroutine that takes a Town with so many nodes (and fixtures)."""
    if test is None:
        return functools.partial(in_town, nodes=nodes, **settings)

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        clock = VirtualClock(1_000, wall_ms=WALL_MS)

        async def story() -> None:
            town = Town(clock, **settings)
            for _ in range(nodes):
                await town.add()
            try:
                await test(town, *arguments, **fixtures)
            finally:
                await town.stop()

        with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
            runner.run(story())

    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


__all__ = ["LEASE_MS", "Node", "Town", "in_town", "settle"]
