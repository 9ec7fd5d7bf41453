"""Schemas and AsyncAPI over HTTP, on a whole node; the program's own declarations among them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from mainspring.app import App, Event
from mainspring.node import BootFailure
from tests.support.access import ALICE, LINES, ROOT, Served, served

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["sku"],
    "properties": {"sku": {"$ref": "#/$defs/Sku"}, "note": {"type": "string"}},
    "$defs": {"Sku": {"type": "integer", "minimum": 1}},
}


async def test_register_look_and_publish() -> None:
    async with served() as node:
        first = await node.post("/schemas/orders", {"schema": ORDER, "compatibility": "full"})
        assert (first.status, first.json["version"], first.json["compatibility"]) == (201, 1, "full")
        assert (await node.post("/schemas/orders", {"schema": ORDER})).status == 200
        assert (await node.get("/schemas")).json == {
            "schemas": [{"topic": "orders", "latest": 1, "compatibility": "full"}]
        }
        assert (await node.get("/schemas/orders/1")).json["schema"] == ORDER
        assert [each["version"] for each in (await node.get("/schemas/orders")).json["versions"]] == [1]
        assert (await node.post("/topics/orders/events", {"payload": {"sku": 3}})).status == 201
        refused = await node.post("/topics/orders/events", {"payload": {"sku": "secret"}})
        assert (refused.status, refused.json["code"], refused.json["path"]) == (422, "schema_mismatch", "/sku")
        assert refused.headers["Content-Type"].startswith("application/problem+json")
        assert b"secret" not in refused.body
        (event,) = (await node.get("/topics/orders/events")).json["events"]
        assert event["headers"] == {"x-schema-version": "1"}


async def test_a_batch_over_http_names_the_event_that_does_not_fit() -> None:
    async with served() as node:
        await node.post("/schemas/orders", {"schema": ORDER})
        lines = '{"payload":{"sku":1}}\n{"payload":{"sku":0}}\n'
        refused = await node.request(
            "POST", "/topics/orders/events", data=lines, headers={"Content-Type": "application/x-ndjson"}
        )
        assert (refused.status, refused.json["event"], refused.json["path"]) == (422, 1, "/sku")
        assert (await node.get("/topics/orders/events")).status == 404, "nothing was ever stored"


async def test_an_incompatible_schema_is_409_with_the_differences() -> None:
    async with served() as node:
        await node.post("/schemas/orders", {"schema": ORDER})
        stricter = {**ORDER, "required": ["sku", "note"]}
        asked = await node.post("/schemas/orders/check", {"schema": stricter})
        assert (asked.json["compatible"], asked.json["against"]) == (False, 1)
        refused = await node.post("/schemas/orders", {"schema": stricter})
        assert (refused.status, refused.json["code"]) == (409, "schema_incompatible")
        assert refused.json["differences"] == asked.json["differences"]
        assert "/note" in refused.json["differences"][0]
        assert (await node.post("/schemas/orders", {"schema": stricter, "compatibility": "forward"})).status == 201


async def test_a_payload_can_be_tried() -> None:
    async with served() as node:
        await node.post("/schemas/orders", {"schema": ORDER})
        assert (await node.post("/schemas/orders/check", {"payload": {"sku": 1}})).json == {"fits": True, "version": 1}
        told = (await node.post("/schemas/orders/check", {"payload": None})).json
        assert (told["fits"], told["path"]) == (False, "")
        assert (await node.post("/schemas/nobody/check", {"payload": 1})).status == 404
        assert (await node.post("/schemas/orders/check", {"payload": 1, "version": 9})).status == 404
        for wrong in ({}, {"payload": 1, "schema": {}}):
            assert (await node.post("/schemas/orders/check", wrong)).status == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"schema": {"type": "nonsense"}}, 422),
        ({"schema": {"$ref": "http://example.com/x.json"}}, 422),
        ({"schema": "text"}, 400),
        ({}, 400),
        ({"schema": {}, "compatibility": "sideways"}, 400),
        ({"schema": {}, "more": 1}, 400),
    ],
)
async def test_nonsense_is_refused_and_registers_nothing(body: Any, status: int) -> None:
    async with served() as node:
        refused = await node.post("/schemas/orders", body)
        assert (refused.status, bool(refused.json["message"])) == (status, True)
        assert (await node.get("/schemas/orders")).status == 404
        assert (await node.get("/schemas")).json == {"schemas": []}


async def test_a_schema_nested_too_deeply_is_refused() -> None:
    async with served() as node:
        deep = '{"schema":' + '{"not":' * 5_000 + "{}" + "}" * 5_001
        refused = await node.request("POST", "/schemas/orders", data=deep, headers={"Content-Type": "application/json"})
        assert refused.status == 400


async def test_with_tokens_an_admin_registers_and_others_see_what_is_theirs() -> None:
    async with served(tokens=LINES) as node:
        assert (await node.post("/schemas/orders", {"schema": ORDER}, ALICE)).status == 403
        for topic in ("orders", "payroll"):
            assert (await node.post(f"/schemas/{topic}", {"schema": ORDER}, ROOT)).status == 201
        assert [each["topic"] for each in (await node.get("/schemas", ALICE)).json["schemas"]] == ["orders"]
        for path in ("/schemas/payroll", "/schemas/payroll/1"):
            assert (await node.get(path, ALICE)).status == 403
        document = (await node.get("/asyncapi.json", ALICE)).json
        assert [each["address"] for each in document["channels"].values()] == ["orders"]
        assert document["servers"]["node"]["security"] == [{"$ref": "#/components/securitySchemes/token"}]


# -- the program


class Order(msgspec.Struct):
    sku: int
    first: str = ""


def shop() -> tuple[App, list[Any]]:
    app, seen = App("shop"), []

    app.schema("orders", compatibility="none")(Order)

    @app.upcaster("orders", 1)
    def split(payload: dict[str, Any]) -> dict[str, Any]:
        return {"sku": payload["sku"], "first": payload["name"].split()[0]}

    @app.consumer("orders", group="billing")
    async def bill(event: Event[Order]) -> None:
        seen.append((event.payload, event.headers["x-schema-version"]))

    @app.consumer("plain", group="g")
    async def plain(event: Event[Order]) -> None: ...

    return app, seen


async def test_a_program_declares_its_schemas_and_reads_old_events_as_new(tmp_path: Any) -> None:
    old = App("shop")
    old.schema("orders", compatibility="none")({"type": "object", "required": ["sku", "name"]})
    kept = {"engine": "sqlite", "data": str(tmp_path)}
    async with served(old, **kept) as node:
        await node.post("/topics/orders/events", {"payload": {"sku": 1, "name": "Ada Lovelace"}})
    app, seen = shop()
    async with served(app, **kept) as node:
        assert (await node.post("/topics/orders/events", {"payload": {"sku": "x"}})).status == 422
        await node.post("/topics/orders/events", {"payload": {"sku": 2}})
        events = (await node.get("/topics/orders/events")).json["events"]
        assert [event["payload"] for event in events] == [{"sku": 1, "first": "Ada"}, {"sku": 2}]
        async with node.socket() as socket:
            assert (await socket.subscribe("orders"))["type"] == "OK"
            assert (await socket.next())["envelope"]["payload"] == {"sku": 1, "first": "Ada"}
        document = (await node.get("/asyncapi.json")).json
        assert {each["address"] for each in document["channels"].values()} >= {"orders", "plain"}
    assert (Order(1, "Ada"), "2") in seen


async def test_a_program_whose_schema_breaks_the_promise_does_not_boot(tmp_path: Any) -> None:
    kept = {"engine": "sqlite", "data": str(tmp_path)}
    before = App("shop")
    before.schema("orders", compatibility="backward")({"type": "object"})
    async with served(before, **kept):
        pass
    after = App("shop")
    after.schema("orders")(Order)
    with pytest.raises(BootFailure) as refused:
        async with served(after, **kept):
            pass
    assert refused.value.code == "schema_incompatible"
    assert "/sku" in refused.value.message
    line = test_a_program_whose_schema_breaks_the_promise_does_not_boot.__code__.co_firstlineno + 7
    assert f"{__file__}:{line}: the schema of 'orders' cannot be registered" in refused.value.message


# -- AsyncAPI: the structure the specification asks for

KEY = re.compile(r"[A-Za-z0-9.\-_]+")


def resolve(document: Any, ref: str) -> Any:
    assert ref.startswith("#/"), ref
    found = document
    for step in ref[2:].split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found


def refs_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for each in value.values() for ref in refs_of(each)]
    return [ref for each in value for ref in refs_of(each)] if isinstance(value, list) else []


def check_structure(document: Any) -> None:
    assert document["asyncapi"] == "3.0.0"
    assert {"asyncapi", "info", "servers", "channels", "operations", "components", "defaultContentType"} >= set(
        document
    )
    assert all(isinstance(document["info"][name], str) for name in ("title", "version"))
    for server in document["servers"].values():
        assert server["host"]
        assert server["protocol"] in ("ws", "wss")
        assert "/" not in server["host"]
    addresses = [channel["address"] for channel in document["channels"].values()]
    assert len(addresses) == len(set(addresses))
    for section in ("channels", "operations", *(("components", name) for name in document["components"])):
        named = document[section] if isinstance(section, str) else document[section[0]][section[1]]
        assert all(KEY.fullmatch(key) for key in named), section
    for channel in document["channels"].values():
        assert channel["messages"]
        for message in channel["messages"].values():
            assert {"name", "contentType", "payload"} <= set(resolve(document, message["$ref"]))
    for operation in document["operations"].values():
        assert operation["action"] in ("send", "receive")
        channel = resolve(document, operation["channel"]["$ref"])
        assert channel in document["channels"].values()
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/"), "of its own channel"
            resolve(document, message["$ref"])
    for schema in document["components"]["schemas"].values():
        assert schema["schemaFormat"].startswith("application/schema+json;version=")
        assert isinstance(schema["schema"], (dict, bool))
    for ref in refs_of(document):
        resolve(document, ref)


async def every_kind(node: Served) -> None:
    await node.post("/schemas/orders", {"schema": ORDER})
    await node.post("/schemas/orders", {"schema": {**ORDER, "title": "Two"}})
    await node.post("/schemas/anything", {"schema": True})
    for topic in ("a%2Fb", "a_2f_b", "with:colon", "%D0%BA%D0%BB%D1%8E%D1%87", "plain"):
        assert (await node.post(f"/topics/{topic}/events", {"payload": 1})).status == 201


async def test_asyncapi_has_the_structure_it_must_have_whatever_topics_are_called() -> None:
    async with served() as node:
        await every_kind(node)
        document = (await node.get("/asyncapi.json")).json
        check_structure(document)
        addresses = {channel["address"] for channel in document["channels"].values()}
        assert addresses >= {"orders", "anything", "a/b", "a_2f_b", "with:colon", "ключ", "plain"}
        assert document["servers"]["node"]["host"] == node.url.removeprefix("http://")
        actions = {
            (operation["action"], resolve(document, operation["channel"]["$ref"])["address"])
            for operation in document["operations"].values()
        }
        assert {("send", "orders"), ("receive", "orders")} <= actions
        assert ("receive", "system.bus.audit") not in actions, "nobody publishes there"


async def test_schemas_in_asyncapi_mean_what_they_meant() -> None:
    async with served() as node:
        await every_kind(node)
        document = (await node.get("/asyncapi.json")).json
        channel = next(each for each in document["channels"].values() if each["address"] == "orders")
        messages = [resolve(document, each["$ref"]) for each in channel["messages"].values()]
        assert [each["headers"]["properties"]["x-schema-version"]["const"] for each in messages] == ["2", "1"]
        for message in messages:
            inside = {**document, "$ref": message["payload"]["$ref"] + "/schema"}
            validator = jsonschema_rs.validator_for(json.loads(json.dumps(inside)))
            assert validator.is_valid({"sku": 1})
            assert not validator.is_valid({"sku": 0})


async def test_an_empty_node_has_a_document_too() -> None:
    app, _ = shop()
    for program in (None, app):
        async with served(program) as node:
            check_structure((await node.get("/asyncapi.json")).json)
