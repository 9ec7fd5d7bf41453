"""Rows that no node has written, in every table: named and passed over, also by a node that starts."""

from __future__ import annotations

import asyncio
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest

from mainspring.log import Append, Batch, DamagedRecord, Log, LogUnavailable, Put
from mainspring.node.stored_records import read_with_care
from tests.servers.postgres.conftest import OpenEngine
from tests.support.client_node import eventually
from tests.support.victim import OPS, attacked

BODIES = (
    b"",
    b"\x00\x00\x00\x00",
    b"\xff" * 20,
    zlib.crc32(b"\x92\x91\x00\x90").to_bytes(4, "big") + b"\x92\x91\x00\x90",
)


async def put_strays(sql: Any, schema: str) -> None:
    """Something odd in every table, beside what nodes wrote."""
    for name, number in ((b"\xff\xfe", 0), (b"odd", -1), (b"", 3)):
        await sql.execute(f"INSERT INTO {schema}.partitions VALUES ($1, $2, 5, -7, -7)", name, number)
    await sql.execute(f"INSERT INTO {schema}.partitions VALUES ('odder', 0, -5, 0, 0)")
    for number, body in enumerate(BODIES):
        row = (b"t", 0, 1_000 + number, 900, 1, 1, 1, body)
        await sql.execute(f"INSERT INTO {schema}.chunks VALUES ($1, $2, $3, $4, $5, $6, $7, $8)", *row)
        await sql.execute(f"INSERT INTO {schema}.chunks VALUES ('\\xff', -1, $1, 1, 1, 1, 1, $2)", number, body)
    crc = zlib.crc32(b"\xff", zlib.crc32(b"stray", zlib.crc32(b"topics")))
    for space, key, value, sum in (
        (b"\xff", b"k", b"v", 0),
        (b"topics", b"\xff\xfe", b"v", 0),
        (b"topics", b"damaged", b"v", 5),
        (b"topics", b"stray", b"\xff", crc),
        (b"groups", b"\xc3", b"v", 0),
        (b"", b"", b"", 0),
    ):
        await sql.execute(f"INSERT INTO {schema}.records VALUES ($1, $2, 1, $3, $4)", space, key, value, sum)
    for topic, text in ((b"\xff", b"a"), (b"t", b"\xff"), (b"\xff", b"\xff")):
        await sql.execute(f"INSERT INTO {schema}.marks VALUES ($1, $2, -1, -1, 1)", topic, text)
    for body in (b"", b"\xff", b"{}", b"[" * 5_000):
        await sql.execute(f"INSERT INTO {schema}.outgoing (body) VALUES ($1)", body)
    # where the next commit would be
    await sql.execute(
        f"INSERT INTO {schema}.commits SELECT max(number) + 1, 'stray', max(version), '\\xc1ff' FROM {schema}.commits"
    )


async def test_a_stray_row_ends_no_node_and_keeps_none_from_starting(
    address: str, open_engine: OpenEngine, sql: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await open_engine(), await open_engine()
    failed: list[BaseException] = []
    for engine in (one, two):
        engine.on_failure(failed.append)
    await one.commit([Batch([Append("t", 0, "before", 1, b"1"), Put("topics", "t", b'{"topic":"t"}')])])
    await put_strays(sql, address.rpartition("=")[2])
    await one.commit([Batch([Append("t", 0, "after", 1, b"1")])])
    assert "was written by no node" in caplog.text
    for engine in (one, two, await open_engine()):
        await engine.commit([Batch([Put("other", "k", b"1")])])
        assert [event.id for event in await engine.read("t", 0, 1, 10)] == ["before", "after"]
        assert await engine.bounds("t")
        assert "t" in await engine.topics()
        assert not {"odd", "odder"} & set(await engine.topics())
        assert "topics" in await engine.spaces()
        _ = [mark async for mark in engine.marks()]
        log = Log(engine)
        read_with_care(log)
        assert [record.key async for record in log.scan("topics")] == ["t"]
        assert {("topics", "stray"), ("topics", "damaged")} <= set(log.records.found)
        with pytest.raises(DamagedRecord):
            _ = [record async for record in engine.scan("topics")]
    (done,) = await one.commit([Batch([Append("t", 0, "later", 1, b"1")])])
    assert done.offsets == ((0, 3, False),)  # type: ignore[union-attr]
    assert not failed


async def test_gets_that_are_asked_together_fail_one_by_one(address: str, open_engine: OpenEngine, sql: Any) -> None:
    engine = await open_engine()
    await engine.commit([Batch([Put("s", f"k{n}", b"%d" % n) for n in range(200)])])
    await sql.execute(f"UPDATE {address.rpartition('=')[2]}.records SET crc = crc + 1 WHERE key = 'k7'")
    found = await asyncio.gather(*(engine.get("s", f"k{n}") for n in range(201)), return_exceptions=True)
    assert isinstance(found[7], DamagedRecord)
    assert found[200] is None
    values = [found[n].value for n in range(200) if n != 7]  # type: ignore[union-attr]
    assert values == [b"%d" % n for n in range(200) if n != 7]


async def test_gets_that_wait_when_the_log_is_closed_are_told(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    asked = [asyncio.ensure_future(engine.get("s", f"k{n}")) for n in range(300)]
    await asyncio.sleep(0)
    await engine.close()
    assert all(
        each is None or isinstance(each, LogUnavailable)
        for each in await asyncio.gather(*asked, return_exceptions=True)
    )
    await engine.open()
    assert await engine.get("s", "k") is None


async def test_a_node_boots_and_serves_beside_them(address: str, sql: Any, tmp_path: Path) -> None:
    schema = address.rpartition("=")[2]
    with attacked(tmp_path, engine=address) as node:
        assert node.ask("POST", "/topics/t/events", {"payload": 1}, OPS).status == 201
        await put_strays(sql, schema)

        async def moved() -> bool:
            return not await sql.fetchval(f"SELECT count(*) FROM {schema}.outgoing")

        for _ in range(2):  # while it runs, and after it has started again
            assert node.ask("POST", "/topics/t/events", {"payload": 2}, OPS).status == 201
            assert node.ask("GET", "/topics", token=OPS).status == 200
            await eventually(moved)  # set aside, so that they hold up nothing
            node.signal(signal.SIGTERM)
            assert node.wait() == 0
            node.restart()
        assert [event["payload"] for event in node.ask("GET", "/topics/t/events", token=OPS).json["events"]] == [
            1,
            2,
            2,
        ]
        errors = node.errors()
        assert "the record 'stray' in 'topics' cannot be read" in errors
        assert "a row of partitions was written by no node" in errors
