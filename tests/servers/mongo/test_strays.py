"""Documents that no node has written, in every collection: named and passed over, also by a node that starts."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.log import Append, Batch, DamagedRecord, Log, Put
from mainspring.node.stored_records import read_with_care
from tests.support.fixtures.mongo import OpenEngine

COLLECTIONS = ("events", "counters", "group_offsets", "topic_configs", "records", "marks", "stones", "meta")
STRAYS: tuple[dict[str, Any], ...] = (
    {},
    {"topic": "t", "partition": "x", "offset": None, "commit": 1, "nextOffset": "far"},
    {"space": 5, "key": 7, "version": "new", "value": 5, "crc": None, "commit": 10**6},
    {"space": "topics", "key": "stray", "version": 1, "value": b"\xff", "crc": 0},
    {"space": "groups", "key": "stray", "value": "text"},
)


async def test_a_stray_document_ends_no_node_and_keeps_none_from_starting(
    database: Any, open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    one = await open_engine()
    (done,) = await one.commit([Batch([Append("t", 0, "before", 1, b"1"), Put("topics", "t", b'{"topic":"t"}')])])
    for name in COLLECTIONS:
        for number, stray in enumerate(STRAYS):
            database[name].insert_one({"_id": f"stray-{name}-{number}", **stray})
    # where the next entry of the journal would be
    newest = max(int(each["_id"]) for each in database.commits.find({}, {"_id": 1}))
    database.commits.insert_one({"_id": f"{newest + 1:016d}", "hello": "world"})
    await one.commit([Batch([Append("t", 0, "after", 1, b"1")])])
    assert "written by no node" in caplog.text
    assert f"entry {newest + 1} of the journal" in caplog.text

    for engine in (one, await open_engine()):
        assert [event.id for event in await engine.read("t", 0, 1, 10)] == ["before", "after"]
        assert [mark async for mark in engine.marks()] == []
        assert "topics" in await engine.spaces()
        log = Log(engine)
        read_with_care(log)
        assert [record.key async for record in log.scan("topics")] == ["t"]
        assert ("topics", "stray") in log.records.found
        with pytest.raises(DamagedRecord):
            _ = [record async for record in engine.scan("topics")]
    (done,) = await one.commit([Batch([Append("t", 0, "later", 1, b"1")])])
    assert done.offsets == ((0, 3, False),)  # type: ignore[union-attr]
