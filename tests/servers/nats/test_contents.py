"""What is on the server or on the disk is not what it should be: said clearly, or made again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import nats
import pytest

from mainspring.log import (
    Append,
    Batch,
    DamagedEvent,
    FormatError,
    InDoubt,
    LogGone,
    LogLocked,
    LogMissing,
    LogUnavailable,
    open_engine,
)
from mainspring.log.engines.nats.encoding import StreamEnvelope, encode_envelope
from tests.support.fixtures.nats import OpenNode, everything, until, until_equal
from tests.support.log_file import damage_event
from tests.support.nats_server import NatsServer


async def test_a_stream_of_that_name_that_is_not_ours_is_left_alone(
    server: NatsServer, name: str, tmp_path: Path
) -> None:
    client = await nats.connect(server.host)
    try:
        await client.jetstream().add_stream(name=f"MAINSPRING_{name}", subjects=[f"foreign.{name}"])
        with pytest.raises(FormatError, match="not a log of Mainspring"):
            await open_engine(server.url(name), tmp_path).open()
        await client.jetstream().publish(f"foreign.{name}", b"still works")
    finally:
        await client.close()


async def test_a_log_made_by_a_newer_version_is_refused(server: NatsServer, name: str, tmp_path: Path) -> None:
    client = await nats.connect(server.host)
    try:
        await client.jetstream().add_stream(
            name=f"MAINSPRING_{name}", subjects=[f"mainspring.journal.{name}"], metadata={"mainspring_format": "9"}
        )
        with pytest.raises(FormatError, match="format 9"):
            await open_engine(server.url(name), tmp_path).open()
    finally:
        await client.close()


async def test_a_replica_that_is_removed_while_it_is_open_ends_the_node(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one = await node(server.url(name))
    await one.publish("x")
    failed: list[Exception] = []
    one.engine.on_failure(failed.append)
    one.engine.replica.path.unlink()
    await until(lambda: bool(failed))
    assert isinstance(failed[0], LogGone)
    with pytest.raises(LogUnavailable, match="while it was in use"):
        await one.publish("y")


NEWER = b"MSJ\x03" + encode_envelope(StreamEnvelope("a newer node", 1, "commit", b"in another way"))[4:]


async def test_a_message_of_a_newer_version_stops_an_older_node(server: NatsServer, name: str, node: OpenNode) -> None:
    one = await node(server.url(name))
    await one.publish("x")
    failed: list[Exception] = []
    one.engine.on_failure(failed.append)
    await one.engine.link.client.jetstream().publish(one.engine.address.subject, NEWER)
    await until(lambda: bool(failed))
    assert isinstance(failed[0], FormatError)
    assert "version of the newest node" in failed[0].remedy
    with pytest.raises(LogUnavailable, match="format 3"):
        await one.publish("y")
    assert await one.ids() == ["x"]
    await one.log.close()
    with pytest.raises(FormatError, match="format 3"):
        await node(server.url(name))


async def test_a_replica_of_another_stream_is_put_aside(
    server: NatsServer, name: str, node: OpenNode, tmp_path: Path
) -> None:
    one = await node(server.url(name))
    await one.publish("old")
    await one.log.close()
    await _delete_stream(server, name)
    other = await node(server.url(name), "other")
    await other.publish("new")
    again = await node(server.url(name))
    assert await again.ids() == ["new"]
    assert (tmp_path / "a" / "replica.sqlite3.replaced-1").exists()  # it may be the last copy


async def test_a_stream_that_is_gone_is_not_begun_anew(
    server: NatsServer, name: str, node: OpenNode, tmp_path: Path
) -> None:
    one = await node(server.url(name))
    await one.publish("precious")
    await one.log.close()
    await _delete_stream(server, name)
    with pytest.raises(LogMissing, match="has seen 1 messages"):
        await node(server.url(name))
    (tmp_path / "a" / "replica.sqlite3").unlink()
    assert await (await node(server.url(name))).ids() == []


async def test_a_stream_replaced_under_a_running_node_ends_it(server: NatsServer, name: str, node: OpenNode) -> None:
    one = await node(server.url(name, patience=1))
    await one.publish("x")
    failed: list[Exception] = []
    one.engine.on_failure(failed.append)
    await _delete_stream(server, name)
    await node(server.url(name), "other")
    await until(lambda: bool(failed))
    assert "made anew" in str(failed[0])


async def test_a_server_that_lost_what_it_had_acknowledged_is_noticed(
    own_server: NatsServer, name: str, node: OpenNode, tmp_path: Path
) -> None:
    """As after a loss of power: the server has an older state than the node."""
    one, two = await node(own_server.url(name), "a"), await node(own_server.url(name), "b")
    for n in range(5):
        await one.publish(f"kept{n}")
    await two.log.close()
    own_server.stop()
    _copy(own_server.place / "store", tmp_path / "backup")
    own_server.start()
    await one.publish("lost1")
    await one.publish("lost2")
    await one.log.close()
    own_server.stop()
    own_server.wipe()
    _copy(tmp_path / "backup", own_server.place / "store")
    own_server.start()
    other = await node(own_server.url(name), "b")
    for n in range(5):
        await other.publish(f"other{n}")  # the same numbers, other messages
    again = await node(own_server.url(name), "a")
    assert await everything(again.log) == await everything(other.log)
    assert (tmp_path / "a" / "replica.sqlite3.replaced-1").exists()


@pytest.mark.parametrize("damage", ["noise", "cut", "text", "newer"])
async def test_a_replica_that_cannot_be_used_is_made_again(
    server: NatsServer, name: str, node: OpenNode, tmp_path: Path, damage: str
) -> None:
    one = await node(server.url(name))
    for n in range(50):
        await one.publish(f"e{n}")
    expected = await everything(one.log)
    await one.log.close()
    file = tmp_path / "a" / "replica.sqlite3"
    if damage == "noise":
        file.write_bytes(b"\x5a" * 50_000)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    elif damage == "text":
        file.write_text("not a database")
    else:
        with closing(sqlite3.connect(file)) as other:
            other.execute("INSERT INTO format VALUES (99)")
            other.commit()
    assert await everything((await node(server.url(name))).log) == expected


async def test_a_damaged_event_is_not_served_and_the_next_start_makes_the_replica_again(
    server: NatsServer, name: str, node: OpenNode, tmp_path: Path
) -> None:
    one = await node(server.url(name))
    await one.log.commit(Batch([Append("t", 0, "x", 1, b"precious")]))
    await one.log.close()
    damage_event(tmp_path / "a" / "replica.sqlite3", "x")
    damaged = await node(server.url(name))
    with pytest.raises(DamagedEvent):
        await damaged.log.read("t", 0, 1, 10)
    await damaged.log.close()
    sound = await node(server.url(name))
    assert [event.payload for event in await sound.log.read("t", 0, 1, 10)] == [b"precious"]


async def test_a_full_disk_under_the_replica_is_waited_out(
    server: NatsServer, name: str, node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has stored the batch, so it is in doubt for its writer, not lost."""
    one, other = await node(server.url(name, patience=0.5)), await node(server.url(name), "other")
    await one.publish("before")
    disk = one.engine.replica.writer

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(disk, "_store", full)
    with pytest.raises(InDoubt, match="could not yet apply"):
        await one.publish("during")
    await until(lambda: len(other.heard) == 2)
    assert await one.ids() == ["before"]
    monkeypatch.undo()
    await until_equal(one, other)
    assert await everything(one.log) == await everything(other.log)
    assert await one.ids() == ["before", "during"]
    assert await one.publish("after") == 3


async def test_a_replica_damaged_under_a_running_node_ends_it_and_is_made_again(
    server: NatsServer, name: str, node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await node(server.url(name, patience=1))
    await one.publish("before")
    failed: list[Exception] = []
    one.engine.on_failure(failed.append)

    def damaged(*_: object) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    monkeypatch.setattr(one.engine.replica.writer, "_store", damaged)
    with pytest.raises(InDoubt):
        await one.publish("during")
    assert "malformed" in str(failed[0])
    await one.log.close()
    again = await node(server.url(name))
    assert await again.ids() == ["before", "during"]


async def test_two_engines_in_one_directory_are_refused(server: NatsServer, name: str, node: OpenNode) -> None:
    await node(server.url(name))
    with pytest.raises(LogLocked):
        await node(server.url(name))


async def _delete_stream(server: NatsServer, name: str) -> None:
    """With all that would tell a newcomer that there was a log."""
    client = await nats.connect(server.host)
    await client.jetstream().delete_stream(f"MAINSPRING_{name}")
    await client.jetstream().delete_object_store(f"MAINSPRING_{name}")
    await client.close()


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)
