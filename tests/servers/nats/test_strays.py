"""Stray and damaged messages in the subject of the log: named and passed over, also by a node that starts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mainspring.log import Batch
from mainspring.log.engines.nats.encoding import StreamEnvelope, encode_envelope
from mainspring.node.stored_records import RECORD_READERS, read_with_care
from tests.support.fixtures.nats import OpenNode, until
from tests.support.nats_server import NatsServer

STRAYS = (
    b"MSJ\x02x",
    b"MSJ\x02\x93\xa1w\x01\xa6commit",
    b"MSJ\xff" + b"\x00" * 50,
    b"\x00" * 10,
    b"MSJ\x01" + msgspec.msgpack.encode(["w", 2**64 - 1, "commit", b""]),
    b"MSJ\x01" + msgspec.msgpack.encode(["w", 1, "commit", b"", 7, 3]),
    encode_envelope(StreamEnvelope("stray", 1, "commit", b"\xc1")),
    encode_envelope(StreamEnvelope("stray", 2, "restore", b"\xc1")),
    encode_envelope(StreamEnvelope("stray", 3, "forget", b"\xc1")),
    encode_envelope(StreamEnvelope("stray", 4, "something else", b"")),
)


async def test_a_stray_message_ends_no_node_and_keeps_none_from_starting(
    server: NatsServer, name: str, node: OpenNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = await node(server.url(name))
    await one.publish("before")
    failed: list[Exception] = []
    one.engine.on_failure(failed.append)
    stream = one.engine.link.client.jetstream()
    for stray in STRAYS:
        await stream.publish(one.engine.address.subject, stray)
    await one.publish("after")
    assert not failed
    assert "message 2 of the stream" in caplog.text
    assert await one.ids() == ["before", "after"]
    fresh = await node(server.url(name), "fresh")
    assert await fresh.ids() == ["before", "after"]
    await one.log.close()
    again = await node(server.url(name))
    await again.publish("later")
    await until(lambda: fresh.engine.applied == again.engine.applied)
    assert await fresh.ids() == ["before", "after", "later"]


async def test_a_record_that_nobody_can_read_is_passed_over_by_watchers_and_scans(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    writer, reader = await node(server.url(name)), await node(server.url(name), "other")
    read_with_care(reader.log)
    seen: list[str] = []
    reader.log.watch(lambda change: seen.extend(f"{each.space}/{each.key}" for each in change.records))
    batch = Batch()
    for space in sorted(RECORD_READERS):
        batch.put(space, "node/garbage", b"\xff\x00")
    batch.put("other", "fine", b"1")
    await writer.log.commit(batch)
    await until(lambda: "other/fine" in seen)
    unread = {space for space, _ in reader.log.records.found}
    assert {"topics", "groups", "claims", "leases", "schedules", "runs/live", "commands", "memory"} <= unread
    assert not [each for each in seen if each.startswith(("topics", "groups", "leases"))]
    assert [record async for record in reader.log.scan("topics")] == []
    # and what is written over it stands
    batch = Batch()
    batch.put("topics", "node/garbage", b'{"topic":"node/garbage"}', expect=0)
    await reader.log.commit(batch)
    assert [record.key async for record in reader.log.scan("topics")] == ["node/garbage"]
    assert await reader.log.get("set_aside", "topics/node/garbage") is not None
