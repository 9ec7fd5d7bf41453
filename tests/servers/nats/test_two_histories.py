"""Servers that come back with less than they had acknowledged: no node goes on with a history of its own.

A loss of power is imitated by giving a server its older files back, which is what is left when nothing was synced.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.errors import MainspringError
from mainspring.log import FormatError, LogUnavailable, SqliteEngine
from mainspring.log.engines.history import OtherHistory
from tests.support.fixtures.nats import Node, OpenNode, everything, until, until_equal
from tests.support.nats_history import leader_of
from tests.support.nats_server import NatsCluster, NatsServer


def copy_of(server: NatsServer) -> Path:
    """The files of a server as they are on its disk now."""
    server.stop()
    kept = server.place / "older"
    shutil.copytree(server.place / "store", kept)
    server.start()
    return kept


def lose_power(server: NatsServer, older: Path) -> None:
    server.kill()
    shutil.rmtree(server.place / "store")
    shutil.copytree(older, server.place / "store")
    server.start()


def failure_of(node: Node) -> list[MainspringError]:
    failures: list[MainspringError] = []
    node.engine.on_failure(failures.append)
    return failures


async def test_a_node_that_has_seen_what_the_server_lost_stops_and_its_log_is_kept(
    own_server: NatsServer, name: str, node: OpenNode, tmp_path: Path
) -> None:
    """The stream is longer than the node has seen by the time it looks, because another node wrote."""
    one = await node(own_server.url(name, patience=3), "a")
    for n in range(5):
        await one.publish(f"kept-{n}")
    older = await asyncio.to_thread(copy_of, own_server)
    for n in range(5):
        await one.publish(f"lost-{n}")
    own_server.kill()
    await until(lambda: not one.engine.connected)
    failures = failure_of(one)
    port, own_server.port = own_server.port, own_server.__class__(tmp_path / "elsewhere").port
    await asyncio.to_thread(lose_power, own_server, older)  # where only a newcomer finds it
    two = await node(own_server.url(name, patience=3), "b")
    for n in range(20):
        await two.publish(f"new-{n}")
    own_server.kill()
    own_server.port = port
    own_server.start()
    await until(lambda: bool(failures))
    assert isinstance(failures[0], OtherHistory)
    assert "two histories" in failures[0].message
    assert "engine compare" in failures[0].remedy
    with pytest.raises(LogUnavailable):
        await one.publish("refused")
    assert await one.ids() == [f"kept-{n}" for n in range(5)] + [f"lost-{n}" for n in range(5)]
    await one.log.close()
    two = await node(own_server.url(name, patience=3), "b2")
    again = await node(own_server.url(name, patience=3), "a")
    await until_equal(again, two)
    assert await everything(again.log) == await everything(two.log)
    assert await again.ids() == [f"kept-{n}" for n in range(5)] + [f"new-{n}" for n in range(20)]
    assert (tmp_path / "a" / "replica.sqlite3.replaced-1").exists()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "cluster").start()
    yield cluster
    cluster.kill()


@pytest.mark.timeout(300)
async def test_of_three_servers_one_that_lost_power_and_one_that_paused_are_enough(
    cluster: NatsCluster, name: str, node: OpenNode, tmp_path: Path
) -> None:
    """A majority has forgotten what another majority had acknowledged: the third server was down meanwhile."""
    one = await node(cluster.url(name, patience=30), "a")
    leader = await leader_of(one, cluster)
    cut, down = (server for server in cluster.servers if server is not leader)
    for n in range(5):
        await one.publish(f"kept-{n}")
    older = await asyncio.to_thread(copy_of, cut)
    await until_current(one, 2)
    await asyncio.to_thread(down.stop)
    for n in range(5):
        await one.publish(f"lost-{n}")
    failures = failure_of(one)
    leader.freeze()
    await asyncio.to_thread(lose_power, cut, older)
    await asyncio.to_thread(down.start)
    theirs = f"nats://{cut.host},{down.host}/{name}?patience=60"
    two = await node(theirs, "b")
    for n in range(20):
        await two.publish(f"new-{n}")
    await until(lambda: bool(failures))
    assert isinstance(failures[0], FormatError)
    with pytest.raises(LogUnavailable):
        await one.publish("refused")
    await one.log.close()
    again = await node(theirs, "a")
    await until_equal(again, two)
    assert await everything(again.log) == await everything(two.log)
    assert not {f"lost-{n}" for n in range(5)} & set(await again.ids())
    kept = SqliteEngine(tmp_path / "a" / "replica.sqlite3.replaced-1", read_only=True)
    await kept.open()
    assert {f"lost-{n}" for n in range(5)} <= {event.id for event in await kept.read("t", 0, 1, 100)}
    await kept.close()


async def until_current(node: Node, followers: int) -> None:
    """Wait until so many servers have everything that the stream's leader has."""
    async with asyncio.timeout(60):
        while True:
            found = await node.engine.link.api(f"STREAM.INFO.{node.engine.address.stream}")
            if sum(bool(each.get("current")) for each in found["cluster"].get("replicas", ())) >= followers:
                return
            await asyncio.sleep(0.05)


async def test_nothing_is_sent_before_the_history_was_compared(
    own_server: NatsServer, name: str, node: OpenNode
) -> None:
    """A publisher that never pauses must not fill the gap with its own commits."""
    one = await node(own_server.url(name, patience=2), "a")
    await one.publish("kept")
    older = await asyncio.to_thread(copy_of, own_server)
    for n in range(3):
        await one.publish(f"lost-{n}")
    failures = failure_of(one)
    stop = asyncio.Event()
    stored: list[str] = []

    async def publisher() -> None:
        n = 0
        while not stop.is_set() and not failures:
            n += 1
            try:
                await one.publish(f"more-{n}")
                stored.append(f"more-{n}")
            except LogUnavailable:
                continue

    await asyncio.to_thread(lose_power, own_server, older)
    stored.clear()
    publishing = asyncio.create_task(publisher())
    try:
        await until(lambda: bool(failures), 60)
    finally:
        stop.set()
        await publishing
    assert isinstance(failures[0], FormatError)
    assert stored == []


async def test_a_writer_of_another_history_is_found_by_the_digest_of_its_next_message(
    server: NatsServer, name: str, node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the cause: here a node's memory of one message is changed."""
    one, two = await node(server.url(name), "a"), await node(server.url(name), "b")
    for n in range(3):
        await one.publish(f"e{n}")
    await until_equal(one, two)
    seen = two.engine.replica.writer.history
    wrong = [(seq, f"{mark} but another", b"another-hist") for seq, mark in reversed(seen.newest_marks(seen.seq))]
    seen.move(wrong)
    failures = failure_of(two)
    with caplog.at_level(logging.ERROR):
        await one.publish("e3")
        await until(lambda: bool(failures))
    assert isinstance(failures[0], OtherHistory)
    assert await one.publish("e4") == 5  # the node that has the servers' history goes on


async def test_the_node_that_is_right_goes_on_and_names_the_message_of_the_other(
    server: NatsServer, name: str, node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await node(server.url(name), "a"), await node(server.url(name), "b")
    for n in range(3):
        await one.publish(f"e{n}")
    await until_equal(one, two)
    sender = two.engine._sender
    assert sender is not None
    sender._seen = (sender._seen[0], b"another-hist")
    failures = failure_of(one)
    with caplog.at_level(logging.ERROR):
        await two.publish("foreign")
        await until(lambda: "another history" in caplog.text)
    assert not failures
    await one.publish("e3")
    assert await one.ids() == ["e0", "e1", "e2", "foreign", "e3"]


async def test_two_nodes_that_make_something_else_of_the_same_messages_are_found(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one, two = await node(server.url(name), "a"), await node(server.url(name), "b")
    await one.publish("e0")
    await until_equal(one, two)
    sender = two.engine._sender
    assert sender is not None
    seq, digest = sender._seen
    sender._seen = (seq, digest[:-1] + bytes([digest[-1] ^ 1]))
    failures = failure_of(one)
    await two.publish("e1")
    await until(lambda: bool(failures))
    assert "made something else of the same messages" in failures[0].message


async def test_a_replica_of_an_older_version_is_followed_on(own_server: NatsServer, name: str, node: OpenNode) -> None:
    """It has neither mark nor digest; the next restart of the digest gives it one."""
    one = await node(own_server.url(name), "a")
    await one.publish("e0")
    one.engine.replica.writer._connection.execute("DELETE FROM replica WHERE name IN ('mark', 'digest')")
    await one.log.close()
    again, two = await node(own_server.url(name), "a"), await node(own_server.url(name), "b")
    for n in range(1, 4):
        await again.publish(f"e{n}")
        await two.publish(f"f{n}")
    await until_equal(again, two)
    assert await everything(again.log) == await everything(two.log)
    assert again.engine.replica.writer.history.digest == b""
    assert again.engine.replica.writer.history.mark
