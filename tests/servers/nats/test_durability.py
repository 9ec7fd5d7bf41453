"""What an acknowledgement means is said as the servers are configured, and what is unknown is not assumed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.cluster import DurabilityWatch, NotDurable, startup
from mainspring.errors import MainspringError
from mainspring.log import SharedEngine
from mainspring.loop import Loop, MonotonicClock
from tests.support.fixtures.nats import OpenNode, until
from tests.support.nats_server import NatsCluster, NatsServer


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that is started by the test, once it is configured."""
    server = NatsServer(tmp_path / "server")
    yield server
    server.kill()


async def test_a_server_that_syncs_now_and_then_has_a_window(configured: NatsServer, node: OpenNode) -> None:
    configured.jetstream = 'sync_interval: "10s"'
    configured.start()
    one = await node(configured.url(monitor=configured.monitor))
    assert isinstance(one.engine, SharedEngine)
    told = await one.engine.durability()
    assert not told.durable
    assert "up to 10 s" in told.statement
    assert "one replica" in told.statement


async def test_a_server_that_always_syncs_is_durable(configured: NatsServer, node: OpenNode) -> None:
    configured.jetstream = "sync_interval: always"
    configured.start()
    told = await (await node(configured.url(monitor=configured.monitor))).engine.durability()
    assert told.durable
    assert "loss of power" in told.statement


async def test_what_cannot_be_seen_is_unknown_and_not_durable(configured: NatsServer, node: OpenNode) -> None:
    configured.jetstream = "sync_interval: always"
    configured.start()
    told = await (await node(configured.url(monitor="http://127.0.0.1:1"))).engine.durability()
    assert not told.durable
    assert "not known" in told.statement


async def test_the_monitor_of_another_server_proves_nothing(
    configured: NatsServer, tmp_path: Path, node: OpenNode
) -> None:
    other = NatsServer(tmp_path / "other", name="other")
    other.jetstream = "sync_interval: always"
    other.start()
    configured.start()
    try:
        told = await (await node(configured.url(monitor=other.monitor))).engine.durability()
        assert not told.durable
        assert "not known" in told.statement
    finally:
        other.kill()


async def test_a_cluster_is_durable_when_every_server_of_it_is(tmp_path: Path, node: OpenNode) -> None:
    cluster = NatsCluster(tmp_path, jetstream="sync_interval: always")
    cluster.servers[2].jetstream = 'sync_interval: "30s"'
    cluster.start()
    try:
        monitors = ",".join(server.monitor for server in cluster.servers)
        one = await node(cluster.url(patience=20, monitor=monitors))
        told = await one.engine.durability()
        assert not told.durable
        assert "3 replicas" in told.statement
        assert "one loses power while another is stopped" in told.statement
        assert "up to 30 s" in told.statement
        cluster.servers[2].stop()
        cluster.servers[2].jetstream = "sync_interval: always"
        cluster.servers[2].start()
        assert (await one.engine.durability()).durable
    finally:
        cluster.kill()


async def test_a_server_that_comes_back_with_other_settings_is_noticed(
    configured: NatsServer, node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "_ASK_AGAIN_MS", 50)
    configured.jetstream = "sync_interval: always"
    configured.start()
    one = await node(configured.url(monitor=configured.monitor))
    loop, failures = Loop(MonotonicClock()), list[MainspringError]()
    loop.attach()
    watch = DurabilityWatch(one.log, loop, required=True, failed=failures.append)
    await watch.ask()
    watching = asyncio.create_task(watch.follow())
    try:
        configured.stop()
        await until(lambda: not one.engine.connected)
        assert watch.found is not None
        assert watch.found.durable  # a server that is away for a moment changes nothing
        assert not failures
        configured.jetstream = 'sync_interval: "10s"'
        configured.start()
        await until(lambda: bool(failures))
    finally:
        watching.cancel()
        loop.detach()
    assert isinstance(failures[0], NotDurable)
    assert "up to 10 s" in failures[0].message
    assert not watch.found.durable
