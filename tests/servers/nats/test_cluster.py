"""Three servers, three replicas: what was acknowledged outlives the loss of any one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.errors import SettingError
from mainspring.log import Batch, Put, open_engine
from mainspring.log.engines.nats.snapshots import TrimmingRules
from tests.support.fixtures.nats import Node, OpenNode, everything, found, until, until_equal
from tests.support.nats_history import History, leader_of
from tests.support.nats_server import NatsCluster, NatsServer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("cluster")).start()
    yield cluster
    cluster.kill()


async def opened(node: OpenNode, cluster: NatsCluster, name: str, which: str) -> Node:
    return await node(cluster.url(name, patience=20), which)


async def test_without_a_wish_the_stream_has_three_replicas(cluster: NatsCluster, name: str, node: OpenNode) -> None:
    one = await node(cluster.url(name, patience=20))
    there = await found(one)
    assert (there.replicas, sorted(there.servers)) == (3, ["s0", "s1", "s2"])


async def test_the_leader_killed_stopped_and_restarted_costs_nothing_acknowledged(
    cluster: NatsCluster, name: str, node: OpenNode
) -> None:
    nodes = [await opened(node, cluster, name, which) for which in "abc"]
    history = History()
    for which, one in zip("abc", nodes, strict=True):
        history.write(one, which)
    await history.grow(60)

    killed = await leader_of(nodes[0], cluster)
    killed.kill()
    await history.grow(60)
    killed.start()
    await history.grow(60)

    frozen = await leader_of(nodes[0], cluster)
    frozen.freeze()
    await history.grow(60)
    frozen.thaw()
    await history.grow(60)

    stopped = await leader_of(nodes[0], cluster)  # in order, as an upgrade does
    stopped.stop()
    await history.grow(60)
    stopped.start()
    await history.grow(60)
    await history.end()
    await history.check(*nodes)


async def test_without_a_majority_nothing_is_acknowledged_and_then_all_goes_on(
    cluster: NatsCluster, name: str, node: OpenNode
) -> None:
    two = await opened(node, cluster, name, "b")
    one = await node(cluster.url(name, patience=2), "a")
    history = History()
    history.write(one, "a")
    await history.grow(20)
    leader = await leader_of(one, cluster)
    others = [server for server in cluster.servers if server is not leader]
    for server in others:
        server.kill()
    before = len(history.doubtful)
    await until(lambda: len(history.doubtful) > before)
    known = len(history.acknowledged)
    await until(lambda: len(history.doubtful) > before + 1)
    assert len(history.acknowledged) == known
    for server in others:
        server.start()
    await history.grow(40)
    await history.end()
    await history.check(one, two)


async def test_a_node_starts_from_a_snapshot_while_a_server_is_gone(
    cluster: NatsCluster, name: str, node: OpenNode
) -> None:
    small = TrimmingRules(grown_bytes=50_000, keep_ms=0, claim_ms=5_000)
    one = await node(cluster.url(name, patience=20), "a", small)
    await one.publish("early")
    async with asyncio.timeout(60):
        while (await found(one)).first <= 1:
            for n in range(20):
                await one.log.commit(Batch([Put("s", f"k{n}", b"v" * 500)]))
    gone = cluster.named((await found(one)).servers[1])
    gone.kill()
    late = await node(cluster.url(name, patience=20), "late", small)
    await until_equal(one, late)
    assert await everything(late.log) == await everything(one.log)
    assert await late.publish("early") == 1
    gone.start()


async def test_a_log_with_one_replica_gets_three_when_asked(cluster: NatsCluster, name: str, node: OpenNode) -> None:
    one = await node(cluster.url(name, patience=20, replicas=1))
    await one.publish("x")
    two = await node(cluster.url(name, patience=20, replicas=3), "b")
    assert (await found(two)).replicas == 3
    assert await two.publish("y") == 2


async def test_more_replicas_than_servers_is_a_clear_error(server: NatsServer, name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="replicas"):
        await open_engine(server.url(name, replicas=3), tmp_path).open()
