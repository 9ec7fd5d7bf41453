"""A leader cut off from the other servers, but not from its nodes: the most tempting moment to acknowledge falsely."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fixtures.nats import OpenNode, until
from tests.support.nats_history import History, leader_of
from tests.support.nats_partition import SplitCluster


@pytest.fixture
async def split(tmp_path: Path) -> AsyncIterator[SplitCluster]:
    cluster = await SplitCluster(tmp_path / "split").join()
    yield cluster
    await cluster.end()


@pytest.mark.timeout(600)
async def test_behind_a_leader_that_is_alone_nothing_is_acknowledged_and_the_others_go_on(
    split: SplitCluster, name: str, node: OpenNode
) -> None:
    nodes = {server.name: await node(server.url(name, patience=8), server.name) for server in split.servers}
    histories = {where: History() for where in nodes}
    for where, one in nodes.items():
        histories[where].write(one, where)
    for history in histories.values():
        await history.grow(30)

    leader = await leader_of(nodes["s0"], split)
    alone = histories[leader.name]
    others = [history for history in histories.values() if history is not alone]
    split.isolate(leader)
    await until(lambda: len(alone.doubtful) > 0, 60)
    settled = len(alone.acknowledged)
    for history in others:
        await history.grow(30)
    assert len(alone.acknowledged) == settled
    split.heal()
    for history in histories.values():
        await history.grow(30)

    together = History()
    for history in histories.values():
        await history.end()
        together.acknowledged |= history.acknowledged
        together.doubtful |= history.doubtful
    await together.check(*nodes.values())
