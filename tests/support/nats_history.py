"""What publishers were told while servers came and went, to be compared with what the log holds in the end."""

from __future__ import annotations

import asyncio

from mainspring.log import LogUnavailable
from tests.support.fixtures.nats import Node, everything, found, until, until_equal
from tests.support.nats_server import NatsCluster, NatsServer


class History:
    """Writers that never stop, and what came of each of their events."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.doubtful: set[str] = set()
        self._stop = asyncio.Event()
        self._writers: list[asyncio.Task[None]] = []

    def write(self, node: Node, prefix: str) -> None:
        self._writers.append(asyncio.create_task(self._keep_writing(node, prefix)))

    async def _keep_writing(self, node: Node, prefix: str) -> None:
        n = 0
        while not self._stop.is_set():
            text = f"{prefix}{n}"
            try:
                self.acknowledged[text] = await node.publish(text)
            except LogUnavailable:
                self.doubtful.add(text)  # and go on with the next: it may be there or not
            n += 1

    async def grow(self, by: int) -> None:
        goal = len(self.acknowledged) + by
        await until(lambda: len(self.acknowledged) >= goal, 60)

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._writers)

    async def check(self, *nodes: Node) -> None:
        await until_equal(*nodes)
        states = [await everything(node.log) for node in nodes]
        assert all(state == states[0] for state in states)
        ids = await nodes[0].ids()
        assert len(ids) == len(set(ids))
        offsets = {text: offset for offset, text in enumerate(ids, 1)}
        missing = {text for text, offset in self.acknowledged.items() if offsets.get(text) != offset}
        assert not missing
        assert set(ids) <= self.acknowledged.keys() | self.doubtful


async def leader_of(node: Node, cluster: NatsCluster) -> NatsServer:
    return cluster.named((await found(node)).servers[0])
