"""What other tools find in the database: the collections, fields, ids and indexes, read with a plain client."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from mainspring.bus.groups.position import PositionRecord, encode_position, record_key
from mainspring.bus.topics.config import encode_topic, parse_topic
from mainspring.log import (
    Append,
    Batch,
    DamagedEvent,
    DamagedRecord,
    EngineSetup,
    FormatError,
    Receipt,
    Remove,
    StoredEvent,
)
from mainspring.log.engines.mongo import FACTORY
from tests.support.fixtures.mongo import OpenEngine

EVENT_FIELDS = {
    "_id",
    "topic",
    "partition",
    "offset",
    "ts",
    "id",
    "key",
    "headers",
    "payload_sha256",
    "payload",
    "attempts",
    "size",
}


def keys(database: Any, name: str) -> dict[tuple[str, ...], bool]:
    found = database[name].index_information()
    return {tuple(field for field, _ in index["key"]): index.get("unique", False) for index in found.values()}


async def placed(engine: Any) -> None:
    """Everything committed is in the collections."""
    await engine.spaces()


async def test_events_are_documents_with_the_payload_as_a_value(open_engine: OpenEngine, database: Any) -> None:
    engine = await open_engine()
    payload = b'{"n":1,"tags":["a","b"],"price":1.5,"big":9007199254740993}'
    await engine.commit([Batch([Append("orders", 3, "id-1", 1234, payload, key="k", headers=b'{"agent":"a"}')])])
    await placed(engine)
    (document,) = database.events.find({})
    assert set(document) == EVENT_FIELDS
    assert document == {
        "_id": "orders:3:0000000000000001",
        "topic": "orders",
        "partition": 3,
        "offset": 1,
        "ts": 1234,
        "id": "id-1",
        "key": "k",
        "headers": {"agent": "a"},
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "payload": {"n": 1, "tags": ["a", "b"], "price": 1.5, "big": 9007199254740993},
        "attempts": 0,
        "size": len(payload) + len("id-1") + len("k") + len(b'{"agent":"a"}'),
    }


async def test_the_counter_holds_the_last_offset_given(open_engine: OpenEngine, database: Any) -> None:
    engine = await open_engine()
    await engine.commit([Batch([Append("a:b", 0, f"id-{n}", n, b"1") for n in range(3)])])
    await engine.commit([Batch([Remove("a:b", 0, below=9)])])
    await placed(engine)
    (counter,) = database.counters.find({})
    assert (counter["_id"], counter["nextOffset"]) == ("a:b:0", 3)
    assert database.events.count_documents({}) == 0


async def test_the_indexes_are_those_of_the_specification(open_engine: OpenEngine, database: Any) -> None:
    await open_engine()
    events = keys(database, "events")
    assert events[("topic", "partition", "offset")] is True
    assert events[("topic", "partition", "ts")] is False
    assert keys(database, "group_offsets")[("topic", "partition", "group")] is True


async def test_where_a_group_stands_is_a_document_of_group_offsets(open_engine: OpenEngine, database: Any) -> None:
    engine = await open_engine()
    record = PositionRecord("orders", "billing", 2, 41, 1234, 50, open=((43, 44),), retried=((45, 3, True, 9, "why"),))
    value = encode_position(record)[:-1] + b',"later":[[1,2],{"a.b":1}]}'
    key = record_key("orders", "billing", 2)
    await engine.commit([Batch()])
    batch = Batch()
    batch.put("groups", key, value)
    batch.put("groups", record_key("orders", "a:b", 0), b"no json")
    batch.put("groups", "of another kind", value)
    (receipt,) = await engine.commit([batch])
    assert isinstance(receipt, Receipt)
    await placed(engine)
    found = {document["_id"]: document for document in database.group_offsets.find({})}
    assert sorted(found) == ["orders:0:a%3Ab", "orders:2:billing"]
    seed = ("topic", "partition", "group", "lastCommitted", "updatedTs")
    assert [found["orders:2:billing"][name] for name in seed] == ["orders", 2, "billing", 41, 1234]
    assert [found["orders:0:a%3Ab"][name] for name in seed] == ["orders", 0, "a:b", 0, 0]
    kept = await engine.get("groups", key)
    assert kept is not None
    assert kept.value == value
    assert [record.key async for record in engine.scan("groups")] == sorted(
        [key, record_key("orders", "a:b", 0), "of another kind"]
    )
    assert await engine.spaces() == ["groups"]


async def test_a_topic_s_settings_are_a_document_of_topic_configs(open_engine: OpenEngine, database: Any) -> None:
    engine = await open_engine()
    config = parse_topic(
        b'{"topic":"orders","partitions":4,"retentionMs":1000,"maxAttempts":5,"publishACL":{"allow":["a"]}}'
    )
    batch = Batch()
    batch.put("topics", "orders", encode_topic(config))
    batch.put("topics", "plain", b'{"topic":"plain"}')
    await engine.commit([batch])
    await placed(engine)
    found = {document["_id"]: document for document in database.topic_configs.find({})}
    shown = {
        name: found["orders"][name] for name in ("topic", "partitions", "retentionMs", "maxAttempts", "publishACL")
    }
    assert shown == {
        "topic": "orders",
        "partitions": 4,
        "retentionMs": 1000,
        "maxAttempts": 5,
        "publishACL": {"allow": ["a"]},
    }
    assert found["plain"]["partitions"] == 1
    batch = Batch()
    batch.put("topics", "orders", b'{"topic":"orders","partitions":8}')
    await engine.commit([batch])
    await placed(engine)
    changed = database.topic_configs.find_one({"_id": "orders"})
    assert changed["partitions"] == 8
    assert "retentionMs" not in changed


PAYLOADS = [
    b'{"a":1}',
    b'{"a": 1}',
    b'{"a":1,"a":2}',
    b'{"$set":{"x.y":1}}',
    b'{"":[]}',
    b"[[1,[2]],[]]",
    b"[1,[2]]",
    b'{"z":{},"_id":0.5}',
    b'[{"a":[[1]]}]',
    b"-0.0",
    b'{"a":-0.0,"b":"2026-01-02"}',
    b"18446744073709551616",
    b'{"n":9223372036854775808,"m":-9223372036854775808}',
    b"1e400",
    b"1E5",
    b"0.1",
    b"null",
    b" null ",
    b"true",
    b'"text"',
    b'"\\u00e9"',
    '"é😀"'.encode(),
    b'{"a\\u0000b":1}',
    b'"a\\u0000b"',
    b"",
    b"not json",
    b"\xff\xfe",
    b"[" * 70 + b"]" * 70,
    b'{"a":' * 65 + b"1" + b"}" * 65,
    b'"' + b"x" * 3_000_000 + b'"',
]


async def test_every_payload_comes_back_byte_for_byte_from_the_collection(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    events = [
        Append("t", 0, f"id-{n}", n, payload, headers=payload if n % 2 and len(payload) < 1000 else None)
        for n, payload in enumerate(PAYLOADS)
    ]
    (receipt,) = await engine.commit([Batch(events)])  # type: ignore[arg-type]
    assert isinstance(receipt, Receipt)
    await placed(engine)
    other = await open_engine()  # has nothing in memory
    found = await other.read("t", 0, 1, 100, max_bytes=1 << 30)
    assert found == [
        StoredEvent("t", 0, n + 1, event.id, event.ts, event.payload, event.key, event.headers)
        for n, event in enumerate(events)
    ]
    assert await other.outline("t", 0, 1, 100) == await engine.outline("t", 0, 1, 100)


async def test_a_value_that_the_server_refuses_does_not_hold_up_its_neighbours(
    open_engine: OpenEngine, database: Any
) -> None:
    engine = await open_engine()
    payloads = [b'{"n":1}', b"[[1]]", b'{"n":[[]]}', b'{"n":2}']
    await engine.commit([Batch([Append("t", 0, "id", 1, payload) for payload in payloads])])
    await placed(engine)
    values = [document["payload"] for document in database.events.find({}).sort("offset", 1)]
    assert (values[0], values[3]) == ({"n": 1}, {"n": 2})
    assert values[1] in ([[1]], None)  # by the server's taste
    assert [event.payload for event in await (await open_engine()).read("t", 0, 1, 10)] == payloads


async def test_damage_is_reported_and_never_served(open_engine: OpenEngine, database: Any) -> None:
    engine = await open_engine()
    batch = Batch([Append("t", 0, f"id-{n}", n, b'{"n":%d}' % n) for n in range(1, 4)])
    batch.put("s", "a", b"1")
    batch.put("s", "b", b"2")
    await engine.commit([batch])
    await placed(engine)
    database.events.update_one({"offset": 2}, {"$set": {"payload": {"n": 7}}})
    database.records.update_one({"key": "a"}, {"$set": {"value": b"7"}})
    other = await open_engine()
    assert [event.offset for event in await other.read("t", 0, 1, 10)] == [1]
    with pytest.raises(DamagedEvent) as damaged:
        await other.read("t", 0, 2, 10)
    assert damaged.value.offset == 2
    assert [event.offset for event in await other.read("t", 0, 3, 10)] == [3]
    with pytest.raises(DamagedRecord):
        await other.get("s", "a")
    assert [record.key async for record in other.scan("s", after="a")] == ["b"]


async def test_a_batch_that_no_document_can_hold_is_refused(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    large = Append("t", 0, "large", 1, b'"' + b"x" * (9 << 20) + b'"')
    small = Append("t", 0, "small", 1, b"1")
    refused, stored = await engine.commit([Batch([large]), Batch([small])])
    assert not isinstance(refused, Receipt)
    assert refused.code == "too_large"
    assert stored == Receipt(((0, 1, False),))
    many = [Batch([Append("t", 0, f"m{n}", 1, b'"' + b"x" * (3 << 20) + b'"')]) for n in range(4)]
    assert await engine.commit(many) == [Receipt(((0, n + 2, False),)) for n in range(4)]


async def test_init_makes_what_is_missing_and_says_so(address: str, database: Any) -> None:
    done = await FACTORY.init(address, EngineSetup(Path()))
    assert "created the collection events" in done
    assert "created the unique index (topic, partition, offset) of events" in done
    assert await FACTORY.init(address, EngineSetup(Path())) == []
    assert "@" not in "".join(done)


async def test_a_database_of_something_else_is_left_alone(address: str, database: Any, open_engine: OpenEngine) -> None:
    database.events.insert_one({"of": "another program"})
    with pytest.raises(FormatError, match="not a log of Mainspring"):
        await open_engine()
    with pytest.raises(FormatError):
        await FACTORY.init(address, EngineSetup(Path()))
    assert database.list_collection_names() == ["events"]


async def test_a_log_of_another_format_is_refused(database: Any, open_engine: OpenEngine) -> None:
    await open_engine()
    database.meta.update_one({"_id": "format"}, {"$set": {"format": 2}})
    with pytest.raises(FormatError, match="format 2"):
        await open_engine()


async def test_a_node_that_meets_an_entry_of_a_newer_format_stops_writing(
    database: Any, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.commit([Batch([Append("t", 0, "a", 1, b"1")])])
    database.commits.insert_one(
        {"_id": "0000000000000002", "node": "new", "token": "new:1", "at": 0, "format": 2, "body": b"?"}
    )
    with pytest.raises(FormatError, match="upgrade this one"):
        await engine.commit([Batch([Append("t", 0, "b", 1, b"1")])])
