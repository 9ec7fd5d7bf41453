"""Nodes' engines on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from mainspring.log import Append, Batch, Change, Log
from mainspring.log.engines.nats import JetStreamEngine, stream
from mainspring.log.engines.nats.snapshots import USUAL, Housekeeping
from servers.nats_server import NatsServer, shared_server

OpenNode = Callable[..., Awaitable["Node"]]


class Node:
    """One node: its engine, its log, and all it heard of."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self.engine = engine
        self.log = Log(engine)
        self.heard: list[Change] = []

    async def open(self) -> Node:
        await self.log.open()
        self.log.watch(self.heard.append)
        return self

    async def publish(self, text: str, topic: str = "t") -> int:
        """The offset of an event whose id is the text; a second try of it is no second event."""
        event = Append(topic, 0, text, 1, b"{}", dedupe=text, dedupe_until=1 << 50)
        receipt = await self.log.commit(Batch([event]))
        return receipt.offsets[0][1]

    async def ids(self, topic: str = "t") -> list[str]:
        return [event.id for event in await self.log.read(topic, 0, 1, 1_000_000, 1 << 30)]


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something that a server or another node brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)


async def until_equal(*nodes: Node) -> None:
    """Wait until all nodes have applied the same messages."""
    await until(lambda: len({node.engine.applied for node in nodes}) == 1)


async def found(node: Node) -> stream.Found:
    """The log's stream as the server sees it."""
    there = await stream.find(node.engine.link, node.engine.address)
    assert there is not None
    return there


async def everything(log: Log) -> tuple[object, ...]:
    """All a log holds, to be compared with another node's."""
    topics = await log.topics()
    bounds = {topic: await log.bounds(topic) for topic in topics}
    events = [await log.read(topic, b.partition, 1, 1_000_000, 1 << 30) for topic in topics for b in bounds[topic]]
    records = [(space, record) for space in await log.spaces() async for record in log.scan(space)]
    return bounds, events, records, [mark async for mark in log.marks()]


@pytest.fixture
def server() -> NatsServer:
    """A server that other tests use too: not to be killed."""
    return shared_server()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "server").start()
    yield server
    server.kill()


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A name for the test's log."""
    return sha256(str(tmp_path).encode()).hexdigest()[:24]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[OpenNode]:
    """`await node(url, "a")` opens node "a"; all are closed when the test ends."""
    nodes: list[Node] = []

    async def open_node(url: str, which: str = "a", housekeeping: Housekeeping = USUAL) -> Node:
        opened = Node(JetStreamEngine(url, tmp_path / which / "replica.sqlite3", housekeeping=housekeeping))
        nodes.append(opened)
        return await opened.open()

    yield open_node
    for opened in nodes:
        await opened.log.close()
