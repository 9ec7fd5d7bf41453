"""Schemas of topics: nothing that does not fit is stored, versions stay compatible, old events are raised when read."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest

from mainspring.bus import BadSchema, Caller, Forbidden, SchemaIncompatible, SchemaMismatch, UnknownSchema
from tests.support.access import make_token
from tests.support.bus import BEGINNING, Peer, World, in_virtual_time, settle

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["sku", "lines"],
    "properties": {
        "sku": {"type": "string", "maxLength": 8},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"qty": {"type": "integer"}}}},
    },
}
GOOD = {"sku": "a", "lines": [{"qty": 1}]}
NEXT = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}


def publish(payload: Any, topic: str = "orders", **fields: Any) -> dict[str, Any]:
    return {"type": "PUBLISH", "topic": topic, "payload": payload, **fields}


async def headers_of(world: World, topic: str = "orders") -> list[dict[str, str]]:
    await settle(0.2)
    return [json.loads(event.headers or b"{}") for event in await world.log.read(topic, 0, 1, 100)]


@in_virtual_time
async def test_what_fits_is_stored_with_its_version_and_what_does_not_is_not(world: World) -> None:
    await world.bus.register_schema("orders", ORDER)
    peer = world.connect()
    await peer.publish("orders", GOOD)
    answer = await peer.ask(publish({"sku": "a", "lines": [{"qty": 1}, {"qty": "secret"}]}, corr=7))
    assert (answer["type"], answer["code"], answer["path"]) == ("ERROR", "schema_mismatch", "/lines/1/qty")
    assert (answer["corr"], answer["topic"], answer["version"]) == (7, "orders", 1)
    assert "secret" not in json.dumps(answer), "a payload never stands in an error"
    missing = await peer.ask(publish({"sku": "a"}))
    assert (missing["path"], "lines" in missing["message"]) == ("", True)
    assert await world.stored("orders") == [GOOD]
    assert await headers_of(world) == [{"x-schema-version": "1"}]


@in_virtual_time
async def test_a_batch_is_refused_as_a_whole_and_the_event_is_named(world: World) -> None:
    await world.bus.register_schema("orders", ORDER)
    events = [{"payload": GOOD}, {"payload": {"sku": "too long to be one", "lines": []}}]
    answer = await world.connect().ask({"type": "PUBLISH_BATCH", "topic": "orders", "events": events})
    assert (answer["code"], answer["event"], answer["path"]) == ("schema_mismatch", 1, "/sku")
    assert await world.stored("orders") == []


@in_virtual_time
async def test_topics_without_a_schema_take_anything(world: World) -> None:
    await world.bus.register_schema("orders", ORDER)
    await world.connect().publish("other", 1, headers={"x-schema-version": "whatever"})
    assert await headers_of(world, "other") == [{"x-schema-version": "whatever"}]


@in_virtual_time
async def test_a_producer_may_stay_at_an_older_version_for_a_while(world: World) -> None:
    await world.bus.register_schema("orders", ORDER, compatibility="none")
    await world.bus.register_schema("orders", {"type": "string"})
    peer = world.connect()
    await peer.publish("orders", GOOD, headers={"x-schema-version": "1", "ct": "json"})
    await peer.publish("orders", "text")
    assert (await peer.ask(publish(GOOD)))["version"] == 2
    assert (await peer.ask(publish("text", headers={"x-schema-version": "1"})))["version"] == 1
    for unknown in ("0", "3", "-1", "x", "", "1.0", "²", "9" * 50):
        answer = await peer.ask(publish("text", headers={"x-schema-version": unknown}))
        assert answer["code"] == "schema_mismatch", unknown
    assert await headers_of(world) == [{"x-schema-version": "1", "ct": "json"}, {"x-schema-version": "2"}]


@in_virtual_time
async def test_every_way_to_publish_is_checked(world: World) -> None:
    await world.bus.register_schema("orders", ORDER)
    peer = world.connect()
    with pytest.raises(SchemaMismatch):
        await world.bus.publish("orders", b"1")
    with pytest.raises(SchemaMismatch):
        world.bus.prepare("orders", b"1", key=None, headers=None, id="x")
    assert (await peer.ask(publish(1, delay_ms=1000)))["code"] == "schema_mismatch"
    schedule = {"type": "SCHEDULE", "name": "s", "topic": "orders", "payload": 1, "every": 1000}
    assert (await peer.ask(schedule))["code"] == "schema_mismatch"
    assert (await peer.ask({**schedule, "payload": GOOD}))["type"] == "OK"
    await peer.publish("orders", GOOD, delay_ms=500)
    await settle(1.5)
    assert await headers_of(world) == [{"x-schema-version": "1"}] * 2


@in_virtual_time
async def test_the_stamp_and_the_seal_stand_side_by_side(world: World) -> None:
    await world.bus.register_schema("orders", ORDER)
    caller = Caller("alice", sid="s", scopes=make_token("alice", "publish:**")[1].scopes)
    peer = Peer(world.bus, caller, world.journal)  # type: ignore[arg-type]
    await peer.publish("orders", GOOD)
    await peer.publish("orders", GOOD, headers={"agent_id": "root", "ct": "json", "x-schema-version": "1"})
    seal = {"agent_id": "alice", "sid": "s", "x-schema-version": "1"}
    assert await headers_of(world) == [seal, {**seal, "ct": "json"}]


@in_virtual_time
async def test_the_stamp_leaves_other_headers_alone_where_nothing_is_proven(world: World) -> None:
    await world.bus.register_schema("orders", ORDER)
    await world.connect("bob").publish("orders", GOOD, headers={"agent_id": "alice", "ct": "json"})
    assert await headers_of(world) == [{"agent_id": "alice", "ct": "json", "x-schema-version": "1"}]


@in_virtual_time
async def test_a_tombstone_passes_in_a_compacted_topic_only(world: World) -> None:
    await world.bus.register_schema("orders", ORDER)
    peer = world.connect()
    assert (await peer.ask(publish(None, key="k")))["code"] == "schema_mismatch"
    await world.create("orders", compact=True)
    await peer.publish("orders", None, key="k")


# -- registering


@in_virtual_time
async def test_schemas_survive_a_restart(world: World) -> None:
    await world.bus.register_schema("orders", ORDER, compatibility="full")
    await world.bus.register_schema("orders", NEXT)
    await world.kill()
    told = world.bus.schemas.get("orders")
    assert (told.version, told.compatibility, told.schema) == (2, "full", NEXT)
    assert (await world.connect().ask(publish(1)))["code"] == "schema_mismatch"


@in_virtual_time
async def test_the_same_schema_again_is_the_version_that_is_there(world: World) -> None:
    first, is_new = await world.bus.register_schema("orders", ORDER)
    again, is_new_again = await world.bus.register_schema("orders", dict(reversed(ORDER.items())))
    assert (first.version, is_new, again.version, is_new_again) == (1, True, 1, False)
    changed, _ = await world.bus.register_schema("orders", ORDER, compatibility="none")
    assert (changed.version, changed.compatibility) == (1, "none")
    await world.kill()
    assert world.bus.schemas.get("orders").compatibility == "none"


STRICTER = {**ORDER, "required": ["sku", "lines", "note"]}


@pytest.mark.parametrize(
    ("mode", "old", "new", "taken"),
    [
        ("backward", ORDER, STRICTER, False),
        ("backward", STRICTER, ORDER, True),
        ("forward", ORDER, STRICTER, True),
        ("forward", STRICTER, ORDER, False),
        ("full", ORDER, STRICTER, False),
        ("full", STRICTER, ORDER, False),
        ("full", ORDER, NEXT, True),
        ("none", ORDER, {"type": "null"}, True),
    ],
)
def test_a_new_version_keeps_what_the_topic_promises(mode: Any, old: Any, new: Any, taken: bool) -> None:
    @in_virtual_time
    async def story(world: World) -> None:
        await world.bus.register_schema("orders", old, compatibility=mode)
        assert (await world.bus.schemas.check("orders", new)).compatible is taken
        if taken:
            assert (await world.bus.register_schema("orders", new))[0].version == 2
            return
        with pytest.raises(SchemaIncompatible) as refused:
            await world.bus.register_schema("orders", new)
        assert refused.value.details["differences"]
        assert "/note" in refused.value.message
        assert refused.value.remedy
        assert world.bus.schemas.get("orders").version == 1

    story()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objct"},
        {"properties": 3},
        {"pattern": "("},
        {"pattern": "(?=lookahead)"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": "http://127.0.0.1:9/dialect"},
        {"required": "sku"},
        7,
        "text",
    ],
    ids=json.dumps,
)
def test_what_is_no_usable_schema_is_refused(schema: Any) -> None:
    @in_virtual_time
    async def story(world: World) -> None:
        with pytest.raises(BadSchema):
            await world.bus.register_schema("orders", schema)
        with pytest.raises(UnknownSchema):
            world.bus.schemas.get("orders")

    story()


def test_a_pattern_made_to_be_slow_is_not() -> None:
    @in_virtual_time
    async def story(world: World) -> None:
        await world.bus.register_schema("orders", {"type": "string", "pattern": "^(a+)+$"})
        answer = await world.connect().ask(publish("a" * 100_000 + "!"))
        assert answer["code"] == "schema_mismatch"

    story()


@in_virtual_time
async def test_two_who_register_at_once_get_one_version_and_one_conflict(world: World) -> None:
    results = await asyncio.gather(
        world.bus.register_schema("orders", {"type": "string"}),
        world.bus.register_schema("orders", {"type": "null"}),
        return_exceptions=True,
    )
    assert [getattr(each, "code", "stored") for each in results] == ["stored", "conflict"]
    assert len(world.bus.schemas.all()[0].versions) == 1


@in_virtual_time
async def test_registering_needs_the_right_to(world: World) -> None:
    await world.create("orders", publishACL=["alice"])
    with pytest.raises(Forbidden):
        await world.bus.register_schema("orders", ORDER, agent="bob")
    publisher = Caller("alice", scopes=make_token("alice", "publish:**")[1].scopes)
    with pytest.raises(Forbidden, match="register schemas"):
        await world.bus.register_schema("orders", ORDER, agent=publisher)
    await world.bus.register_schema("orders", ORDER, agent=Caller("root", scopes=make_token("root", "admin")[1].scopes))


# -- Python types


class Line(msgspec.Struct):
    qty: int


class Order(msgspec.Struct):
    sku: str
    lines: list[Line] = []


@dataclass
class OrderData:
    sku: str
    lines: list[Line]


class OrderDict(TypedDict):
    sku: str
    lines: list[Line]


@pytest.mark.parametrize("kind", [Order, OrderData, OrderDict])
def test_a_python_type_is_a_schema(kind: Any) -> None:
    @in_virtual_time
    async def story(world: World) -> None:
        await world.bus.register_schema("orders", kind)
        peer = world.connect()
        await peer.publish("orders", GOOD)
        bad = {"sku": "a", "lines": [{"qty": 1}, {"qty": "x"}]}
        answers = [await peer.ask(publish(bad))]
        await world.kill()
        peer = world.connect()
        await peer.publish("orders", GOOD)
        answers.append(await peer.ask(publish(bad)))  # now by its JSON Schema: the type is gone with its process
        assert [(each["code"], each["path"]) for each in answers] == [("schema_mismatch", "/lines/1/qty")] * 2

    story()


# -- upcasters


def split(payload: dict[str, Any]) -> dict[str, Any]:
    first, _, last = payload.pop("name").partition(" ")
    return {**payload, "first": first, "last": last}


def mark(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "marked": True}


async def three_versions(world: World) -> None:
    """One event of each version, and one from before the first schema."""
    peer = world.connect()
    await peer.publish("people", {"name": "Old Timer"})
    await world.bus.register_schema("people", {"type": "object", "required": ["name"]}, compatibility="none")
    await peer.publish("people", {"name": "Ada Lovelace"}, headers={"ct": "json"})
    await world.bus.register_schema("people", {"type": "object", "required": ["first"]})
    await peer.publish("people", {"first": "Alan", "last": "Turing"})
    await world.bus.register_schema("people", {"type": "object", "required": ["first", "marked"]})
    await peer.publish("people", {"first": "Grace", "last": "Hopper", "marked": True})


RAISED = [
    ({"name": "Old Timer"}, None),
    ({"first": "Ada", "last": "Lovelace", "marked": True}, "3"),
    ({"first": "Alan", "last": "Turing", "marked": True}, "3"),
    ({"first": "Grace", "last": "Hopper", "marked": True}, "3"),
]


def seen(envelopes: list[dict[str, Any]]) -> list[tuple[Any, str | None]]:
    return [(each["payload"], each.get("headers", {}).get("x-schema-version")) for each in envelopes]


@in_virtual_time
async def test_old_events_are_raised_when_read_and_stay_as_they_were_in_the_log(world: World) -> None:
    await three_versions(world)
    stored = await world.log.read("people", 0, 1, 10)
    world.bus.topics.add_upcaster("people", 1, split)
    world.bus.topics.add_upcaster("people", 2, mark)
    reader = world.connect()
    await reader.subscribe("people", "g", BEGINNING)
    envelopes = [frame["envelope"] for frame in await reader.messages()]
    assert seen(envelopes) == RAISED
    assert envelopes[1]["headers"]["ct"] == "json"
    read = await world.bus.read("people", 0, 1, 10)
    assert [json.loads(event.payload) for event in read] == [payload for payload, _ in RAISED]
    assert await world.log.read("people", 0, 1, 10) == stored


@in_virtual_time
async def test_a_live_group_gets_raised_events_from_memory_too(world: World) -> None:
    world.bus.topics.add_upcaster("people", 1, split)
    await world.bus.register_schema("people", {"type": "object"}, compatibility="none")
    reader = world.connect()
    await reader.subscribe("people", "g")
    await world.connect().publish("people", {"name": "Ada Lovelace"})
    assert seen([(await reader.message())["envelope"]]) == [({"first": "Ada", "last": "Lovelace"}, "2")]


@in_virtual_time
async def test_a_missing_step_ends_the_chain_and_the_header_says_where(world: World) -> None:
    await three_versions(world)
    world.bus.topics.add_upcaster("people", 1, split)
    reader = world.connect()
    await reader.subscribe("people", "g", BEGINNING)
    envelopes = [frame["envelope"] for frame in await reader.messages()]
    assert seen(envelopes)[1] == ({"first": "Ada", "last": "Lovelace"}, "2")


@in_virtual_time
async def test_a_step_that_fails_changes_nothing_and_loses_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await three_versions(world)
    world.bus.topics.add_upcaster("people", 1, split)
    world.bus.topics.add_upcaster("people", 2, lambda payload: payload["nobody knows"])
    reader = world.connect()
    await reader.subscribe("people", "g", BEGINNING)
    with caplog.at_level(logging.ERROR):
        envelopes = [frame["envelope"] for frame in await reader.messages()]
    assert seen(envelopes)[1:3] == [({"name": "Ada Lovelace"}, "1"), ({"first": "Alan", "last": "Turing"}, "2")]
    assert "version 2" in caplog.text


@in_virtual_time
async def test_one_step_per_version(world: World) -> None:
    world.bus.topics.add_upcaster("people", 1, split)
    for version in (1, 0, -1):
        with pytest.raises(BadSchema):
            world.bus.topics.add_upcaster("people", version, mark)
