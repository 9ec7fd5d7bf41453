"""A leader cut off from the other servers, but not from its nodes: the most tempting moment to acknowledge falsely.

Once it is joined to the others again, the server takes back what only it has, one message in a second or two, before
it has what they stored (docs/decisions/nats-engine.md). The node behind it does not wait for that: it gets the log from
another server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.fixtures.nats import Node, OpenNode, until
from tests.support.nats_history import History, leader_of
from tests.support.nats_partition import SplitCluster
from tests.support.nats_server import NatsServer

MESSAGES_TO_TAKE_BACK = 120  # which keeps the server busy for longer than anybody here waits


@pytest.fixture
async def split(tmp_path: Path) -> AsyncIterator[SplitCluster]:
    cluster = await SplitCluster(tmp_path / "split").join()
    yield cluster
    await cluster.end()


async def served_by(server: NatsServer, name: str, node: OpenNode) -> Node:
    """A node that is connected to this server and gets the log from it, too: from which one is chance."""
    for attempt in count():
        opened = await node(server.url(name, patience=8), f"{server.name}-{attempt}")
        there = await opened.engine.link.api(f"CONSUMER.LIST.{opened.engine.address.stream}")
        newest = max(there["consumers"], key=lambda consumer: consumer["created"])
        if newest["cluster"]["leader"] == server.name:
            return opened
        await opened.log.close()
    raise AssertionError


@pytest.mark.timeout(600)
async def test_behind_a_leader_that_is_alone_nothing_is_acknowledged_and_the_others_go_on(
    split: SplitCluster, name: str, node: OpenNode
) -> None:
    nodes = {server.name: await node(server.url(name, patience=8), server.name) for server in split.servers}
    leader = await leader_of(nodes["s0"], split)
    await nodes[leader.name].log.close()
    nodes[leader.name] = await served_by(leader, name, node)
    histories = {where: History() for where in nodes}
    for where, one in nodes.items():
        histories[where].write(one, where)
    for history in histories.values():
        await history.grow(30)

    alone = histories[leader.name]
    others = [history for history in histories.values() if history is not alone]
    split.isolate(leader)
    await until(lambda: len(alone.doubtful) > 0, 60)
    settled = len(alone.acknowledged)
    for history in others:
        await history.grow(30)
    assert len(alone.acknowledged) == settled
    engine = nodes[leader.name].engine
    for _ in range(MESSAGES_TO_TAKE_BACK):
        await engine.link.client.publish(engine.address.subject, b"stored by nobody else")
        await engine.link.client.flush()  # so that the server does not put them together
    split.heal()
    for history in histories.values():
        await history.grow(30)

    together = History()
    for history in histories.values():
        await history.end()
        together.acknowledged |= history.acknowledged
        together.doubtful |= history.doubtful
    await together.check(*nodes.values())
