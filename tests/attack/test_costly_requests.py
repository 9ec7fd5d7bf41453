"""Nothing costs more than in proportion to what was sent: an operator expects one request to stop nobody else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.victim import NOBODY, OPS, PUBLISHER, READER, Victim, attacked

SHOP = """
from mainspring import App

app = App("shop")

@app.run
async def fulfil(order, perform):
    return order
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder: Path = tmp_path_factory.mktemp("node")
    (folder / "shop.py").write_text(SHOP)
    with attacked(folder, "shop:app") as victim:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}, "kind": {"enum": ["a", "b"]}}}
        assert victim.ask("POST", "/schemas/orders.paid", {"schema": schema}, OPS).status == 201
        yield victim


def _members(count: int) -> bytes:
    return b",".join(b'"k%d":0' % number for number in range(count))


# -- members given twice


@pytest.mark.parametrize("who", [NOBODY, PUBLISHER])
def test_a_body_with_many_members_and_one_of_them_twice(node: Victim, who: str) -> None:
    inner = _members(70_000)
    body = b'{"payload":{%b,"k0":0,"payload":0}}' % inner
    with node.spending_at_most(2.0):
        answer = node.ask("POST", "/topics/orders.x/events", body, who)
    assert answer.status in (201, 403)


def test_a_member_that_is_given_twice_is_refused_as_before(node: Victim) -> None:
    with node.spending_at_most(3.0):
        body = b'{"payload":1,%b,"payload":2}' % _members(70_000)
        assert node.ask("POST", "/topics/orders.x/events", body, PUBLISHER).status == 400
        body = b'{"payload":1,"key":"a","key":"b"}'
        answer = node.ask("POST", "/topics/orders.x/events", body, PUBLISHER)
    assert (answer.status, "twice" in answer.json["message"]) == (400, True)


def test_a_cloud_event_with_many_attributes(node: Victim) -> None:
    body = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,%b}' % _members(70_000)
    with node.spending_at_most(3.0):
        headers = {"Content-Type": "application/cloudevents+json"}
        assert node.ask("POST", "/topics/orders.x/events", body, PUBLISHER, headers=headers).status in (400, 201, 413)


# -- schemas


def _references(depth: int) -> dict[str, object]:
    """A schema that is twice as large with every definition."""
    definitions = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "object"}}}


def _nested(depth: int, leaf: object) -> dict[str, object]:
    """Every object has two members of the next kind: as many paths as a tree has leaves."""
    definitions = {
        f"d{level}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{level + 1}"}, "b": {"$ref": f"#/$defs/d{level + 1}"}},
        }
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": leaf}}


def _apart(depth: int) -> dict[str, object]:
    """References that cannot be merged."""
    definitions = {
        f"d{level}": {
            "additionalProperties": False,
            "properties": {f"p{level}": True},
            "allOf": [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}],
        }
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"additionalProperties": False}}}


def _anchored(depth: int) -> dict[str, object]:
    parts = [
        {"$anchor": f"d{level}", "allOf": [{"$ref": f"#d{level + 1}"}, {"$ref": f"#d{level + 1}"}]}
        for level in range(depth)
    ]
    return {"$ref": "#d0", "$defs": {str(n): part for n, part in enumerate([*parts, {"$anchor": f"d{depth}"}])}}


HOSTILE_SCHEMAS = {
    "references that double": _references(40),
    "references by anchors that double": _anchored(40),
    "references that cannot be merged": _apart(40),
    "paths that double": _nested(40, {"type": "string"}),
    "a long chain of references": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(10_000)} | {"d10000": True},
    },
    "thousands of patterns": {
        "properties": {f"p{n}": {"type": "string", "pattern": f"(x{n}[a-z]{{1,200}}){{1,20}}"} for n in range(2_000)}
    },
    "one large pattern": {"properties": {"n": {"type": "string", "pattern": "(((a{1,100}){1,100}){1,100}){1,100}"}}},
    "many required members": {
        "type": "object",
        "properties": {f"p{n}": {"type": "integer"} for n in range(8_000)},
        "required": [f"p{n}" for n in range(8_000)],
    },
    "many alternatives": {"oneOf": [{"required": ["a"], "properties": {"a": {"const": n}}} for n in range(4_000)]},
    "large enumerations": {
        "oneOf": [
            {"required": ["k"], "properties": {"k": {"enum": [f"{side}{n}" for n in range(20_000)]}}} for side in "ab"
        ]
    },
}


@pytest.mark.parametrize("name", HOSTILE_SCHEMAS)
@pytest.mark.parametrize("mode", ["backward", "full"])
def test_asking_about_a_hostile_schema(node: Victim, name: str, mode: str) -> None:
    body = {"schema": HOSTILE_SCHEMAS[name], "compatibility": mode}
    with node.spending_at_most(4.0):
        answer = node.ask("POST", "/schemas/orders.paid/check", body, READER)
    assert answer.status in (200, 400, 403, 413, 422), answer.body


def test_registering_a_hostile_schema_where_there_is_none(node: Victim) -> None:
    with node.spending_at_most(8.0):
        for number, schema in enumerate(HOSTILE_SCHEMAS.values()):
            answer = node.ask("POST", f"/schemas/orders.new{number}", {"schema": schema}, OPS)
            assert answer.status in (201, 400, 413, 422), answer.body
            node.ask("POST", f"/topics/orders.new{number}/events", {"payload": {"a": 1, "n": "x", "k": "a1"}}, OPS)


def test_comparing_two_schemas_of_the_same_hostile_kind(node: Victim) -> None:
    assert node.ask("POST", "/schemas/orders.deep", {"schema": _nested(40, {"type": "string"})}, OPS).status == 201
    with node.spending_at_most(4.0):
        answer = node.ask("POST", "/schemas/orders.deep", {"schema": _nested(40, {"type": "integer"})}, OPS)
    assert answer.status == 409
    assert answer.json["differences"]


# -- long lists of what is asked for


@pytest.mark.parametrize("type", ["Run.List", "Run.Count"])
def test_naming_many_runs(node: Victim, type: str) -> None:
    def ask(kind: str, type: str, data: object) -> int:
        return node.ask("POST", "/messages", {"kind": kind, "type": type, "data": data}, OPS).status

    assert ask("command", "Run.Start", {"program": "fulfil", "args": ["pen"], "id": f"r-{type}"}) == 200
    ids = [f"{number:x}" for number in range(40_000)] + [f"r-{type}"] * 40_000
    with node.spending_at_most(4.0):
        assert ask("query", type, {"ids": ids}) == 200


@pytest.mark.parametrize("verb", ["cancel", "retry", "discard"])
def test_naming_many_calls_of_a_task(node: Victim, verb: str) -> None:
    for topic in ("results", "control", "mail"):
        assert node.ask("POST", "/topics", {"topic": f"tasks.shop.{topic}"}, OPS).status in (200, 201)
    lines, headers = b'{"payload":{"args":[1]}}\n' * 2_000, {"Content-Type": "application/x-ndjson"}
    assert node.ask("POST", "/topics/tasks.shop.mail/events", lines, OPS, headers=headers).status == 201
    ids = [f"{number:x}" for number in range(300_000)]
    with node.spending_at_most(5.0, grows_mb=400):
        answer = node.ask("POST", f"/tasks/shop.mail/{verb}", {"ids": ids}, OPS)
    assert (answer.status, answer.json["count"], len(answer.json["refused"])) == (200, 0, 300_000)


# -- bodies that grow when they are read


@pytest.mark.parametrize("token", [None, NOBODY, PUBLISHER])
def test_a_small_body_that_unpacks_to_gigabytes(node: Victim, token: str | None) -> None:
    bomb = gzip.compress(b"0" * (32 << 20), 9) * 64
    with node.spending_at_most(1.0, grows_mb=100):
        headers = {"Content-Encoding": "gzip"}
        answer = node.ask("POST", "/topics/orders.x/events", bomb, token, headers=headers)
    assert answer.status in (400, 401, 403, 413)


def test_compressed_bodies_are_read_as_before(node: Victim) -> None:
    body = json.dumps({"payload": "x" * 100_000}).encode()
    answer = node.ask(
        "POST", "/topics/orders.x/events", gzip.compress(body), PUBLISHER, headers={"Content-Encoding": "gzip"}
    )
    assert answer.status == 201, answer.body
