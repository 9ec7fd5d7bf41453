"""The stream changed behind our back: edited, purged or deleted. Running nodes notice and say what to do."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from mainspring.log import EngineSetup, LogMissing, LogUnavailable, inspect_log
from mainspring.log.engines.nats import FACTORY
from tests.support.fixtures.nats import Node, OpenNode, everything, until, until_equal
from tests.support.nats_server import NatsServer


async def api(node: Node, verb: str, body: dict[str, Any] | None = None) -> Any:
    return await node.engine.link.api(f"{verb}.{node.engine.address.stream}", body)


@pytest.mark.parametrize("change", [{"max_age": 3_600_000_000_000}, {"max_msgs": 1_000, "discard": "old"}])
async def test_limits_that_drop_messages_are_said(
    server: NatsServer, name: str, node: OpenNode, change: dict[str, Any]
) -> None:
    one = await node(server.url(name))
    await one.publish("x")
    config = (await api(one, "STREAM.INFO"))["config"]
    await api(one, "STREAM.UPDATE", config | change)
    told = await one.engine.durability()
    assert not told.durable
    assert told.known
    assert "the stream was changed" in told.statement
    found = await inspect_log(server.url(name), one.engine.replica.path.parent)
    assert found.durability is not None
    assert "the stream was changed" in found.durability.statement


async def test_a_purged_stream_is_mended_by_a_running_node_so_that_a_new_one_can_join(
    server: NatsServer, name: str, node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    one = await node(server.url(name))
    for n in range(5):
        await one.publish(f"e{n}")
    await api(one, "STREAM.PURGE", {"seq": 4})
    found = await inspect_log(server.url(name), one.engine.replica.path.parent)
    assert found.durability is not None
    assert not found.durability.durable
    assert "somebody removed messages" in found.durability.statement
    with caplog.at_level(logging.ERROR):
        await one.engine.durability()
    assert "somebody removed messages" in caplog.text
    await until(lambda: one.engine.replica.state.snapshot is not None)
    found = await inspect_log(server.url(name), one.engine.replica.path.parent)
    assert found.durability is not None
    assert "somebody removed messages" not in found.durability.statement
    two = await node(server.url(name), "b")
    await one.publish("e5")
    await until_equal(one, two)
    assert await everything(one.log) == await everything(two.log)
    assert await two.ids() == [f"e{n}" for n in range(6)]


async def test_a_new_node_waits_for_a_running_one_to_mend_a_shortened_stream(
    server: NatsServer, name: str, node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    one = await node(server.url(name))
    for n in range(5):
        await one.publish(f"e{n}")
    await api(one, "STREAM.PURGE", {"seq": 4})
    joining = asyncio.create_task(node(server.url(name), "b"))
    await until(lambda: "waiting for one of a running node" in caplog.text)
    await one.engine.durability()  # as every node asks now and then
    two = await joining
    assert await two.ids() == [f"e{n}" for n in range(5)]


async def test_a_deleted_stream_is_said_and_nothing_is_acknowledged(
    server: NatsServer, name: str, node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    one = await node(server.url(name, patience=1))
    await one.publish("x")
    with caplog.at_level(logging.ERROR):
        await api(one, "STREAM.DELETE")
        await until(lambda: "gone from the server" in caplog.text)
    with pytest.raises(LogUnavailable, match="gone from the server"):
        await one.publish("y")
    told = await one.engine.durability()
    assert not told.durable
    assert "gone from the server" in told.statement
    assert await one.ids() == ["x"]


async def test_nothing_begins_an_empty_log_where_one_was_deleted(
    server: NatsServer, name: str, node: OpenNode, tmp_path: Path
) -> None:
    """A node without a replica cannot know it from its own files: the store of snapshots is left, and tells."""
    one = await node(server.url(name, patience=1), "a")
    await one.publish("x")
    await api(one, "STREAM.DELETE")
    setup = EngineSetup(tmp_path / "new")
    with pytest.raises(LogMissing, match="was deleted") as refused:
        await node(server.url(name, patience=1), "new")
    assert "--begin-anew" in refused.value.remedy
    with pytest.raises(LogMissing):
        await FACTORY.init(server.url(name, patience=1), setup)
    found = await FACTORY.inspect(server.url(name, patience=1), setup)
    assert (found.log, found.gone) == (False, True)
    await one.log.close()
    anew = EngineSetup(tmp_path / "new", begin_anew=True)
    assert await FACTORY.init(server.url(name, patience=1), anew) == [f"created the stream MAINSPRING_{name}"]
    two = await node(server.url(name, patience=1), "new")
    assert await two.ids() == []
    await two.publish("y")
    assert await FACTORY.init(server.url(name, patience=1), anew) == []  # nothing happens to a log that is there
    assert await two.ids() == ["y"]
