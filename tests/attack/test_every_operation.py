"""No operation and no message, whichever there are, tells a token without rights what is there.

Everything is found by asking the node itself: each operation of its OpenAPI document and each type of message is sent
twice, about something that is there and about something that is not. Both are answered alike, nothing is named, and
nothing changes. So what is added later is attacked, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from mainspring import App, Context, Event, Perform, WaitSignal
from tests.support.access import Reply, Served, make_token, served
from tests.support.client_node import eventually

NONE, NONE_TOKEN = make_token("mallory", "publish:nowhere")
ASKER, ASKER_TOKEN = make_token("asker", "query:Doc.Head", "run:other")
ROOT, ROOT_TOKEN = make_token("root", "admin")
SECRET = "4242-SECRET"

THERE = {
    "topic": "quiet.payroll",
    "group": "quiet-group",
    "schedule": "quiet-schedule",
    "name": "quiet-schedule",
    "task": "quiet.mail",
    "call": "quiet-id",
    "id": "quiet-id",
    "key": "/quiet/card",
    "path": "/quiet/card",
    "program": "quiet_run",
    "capability": "Quiet",
    "version": 1,
    "partition": 0,
    "offset": 1,
}
NOT_THERE = {
    name: value.replace("quiet", "noisy").replace("Quiet", "Noisy") if isinstance(value, str) else value
    for name, value in THERE.items()
}


def program() -> App:
    app = App("quiet")

    @app.consumer("quiet.payroll", group="quiet-group", max_attempts=1)
    def pay(event: Event[Any]) -> None:
        raise ValueError(f"no account for {SECRET}")

    @app.task(max_attempts=1)
    def mail(card: str) -> str:
        return card

    @app.command("Quiet.Pay", durable=True)
    def pay_now(data: Any, ctx: Context) -> str:
        return SECRET

    @app.query("Doc.Head")
    def head(data: Any, ctx: Context) -> str:
        return "head"

    @app.run
    async def quiet_run(card: str, perform: Perform) -> str:
        return str(await perform(WaitSignal("go")))

    return app


@pytest.fixture
async def node() -> AsyncIterator[Served]:
    """A node that has one of everything."""
    tokens = tuple(each.line() for each in (NONE_TOKEN, ASKER_TOKEN, ROOT_TOKEN))
    async with served(program(), tokens=tokens) as here:
        schedule = {"name": "quiet-schedule", "topic": "quiet.payroll", "payload": SECRET, "every": 3_600_000}
        for path, body in (
            ("/schemas/quiet.payroll", {"schema": {"type": "string"}}),
            ("/topics/quiet.payroll/events", {"payload": SECRET}),
            ("/topics/tasks.quiet.mail/events", {"payload": {"args": [SECRET]}, "id": "quiet-id"}),
            ("/schedules", schedule),
        ):
            assert (await here.post(path, body, ROOT)).status == 201, path
        for type, data in (
            ("Run.Start", {"program": "quiet_run", "args": [SECRET], "id": "quiet-id"}),
            ("Memory.Set", {"key": "/quiet/card", "value": SECRET}),
            ("Quiet.Pay", {}),
        ):
            assert (await say(here, ROOT, "command", type, data)).status == 200, type

        async def one_of_everything() -> bool:
            letters = (await here.get("/dlq", ROOT)).json["topics"]
            (task,) = (await here.get("/tasks", ROOT)).json["tasks"]
            return [each["count"] for each in letters] == [1] and task["done"] == 1

        await eventually(one_of_everything)
        yield here


async def say(node: Served, token: str, kind: str, type: str, data: Any) -> Reply:
    body = {"kind": kind, "type": type, "data": data, "id": "quiet-id" if type == "Quiet.Pay" else None}
    return await node.post("/messages", {name: value for name, value in body.items() if value is not None}, token)


def sample(schema: Mapping[str, Any], document: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
    """A value that the schema takes, with these names where it has members for them."""
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    for choices in ("oneOf", "anyOf"):
        if choices in schema:
            return sample(schema[choices][0], document, names)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object" or "properties" in schema:
        wanted = {*schema.get("required", ()), *(names.keys() & schema.get("properties", {}).keys())}
        return {each: names.get(each, sample(schema["properties"][each], document, names)) for each in sorted(wanted)}
    return {"string": "x", "integer": 60_000, "number": 1, "boolean": True, "array": []}.get(schema.get("type", ""), 1)


def alike(answer: Reply) -> tuple[int, str]:
    """What an answer says, whichever names it was asked with."""
    said = answer.json if answer.body else {}
    said.pop("metadata", None)  # ids and times
    said.get("error", {}).pop("metadata", None)
    return answer.status, re.sub("(?i)quiet|noisy", "X", json.dumps(said))


async def send(node: Served, token: str, method: str, path: str, operation: Any, document: Any, names: Any) -> Reply:
    query = {
        each["name"]: names[each["name"]]
        for each in operation.get("parameters", ())
        if each["in"] == "query" and each["name"] in names
    }
    contents = operation.get("requestBody", {}).get("content", {})
    body = sample(contents["application/json"]["schema"], document, names) if contents else None
    url = re.sub(r"\{(\w+)\}", lambda part: str(names[part[1]]), path)
    return await node.request(method.upper(), url, token, params=query, json=body)


@pytest.mark.parametrize("token", [NONE, ASKER], ids=["none", "asker"])
async def test_no_operation_tells_what_is_there(node: Served, token: str) -> None:
    document = (await node.get("/openapi.json", ROOT)).json
    before = await shown(node)
    count = 0
    for path, operations in document["paths"].items():
        for method in operations.keys() & {"get", "post", "put", "delete"}:
            if path in ("/messages", "/openapi.json"):
                continue
            count += 1
            given = (node, token, method, path, operations[method], document)
            answers = [await send(*given, names) for names in (THERE, NOT_THERE)]
            assert answers[0].status in (200, 400, 403), (method, path, answers[0].body)
            if "{" in path or method != "get":
                assert alike(answers[0]) == alike(answers[1]), (method, path)
            text = answers[1].body.decode()
            assert "quiet" not in text.lower(), (method, path, text)
            assert SECRET not in text + answers[0].body.decode(), (method, path)
    assert count > 45
    assert await shown(node) == before, "nothing has changed"


async def shown(node: Served) -> list[Any]:
    paths = ("/schedules", "/dlq/quiet.payroll", "/schemas/quiet.payroll", "/tasks/quiet.mail/calls")
    return [(await node.get(path, ROOT)).json for path in paths]


@pytest.mark.parametrize("token", [NONE, ASKER], ids=["none", "asker"])
async def test_no_message_tells_what_is_there(node: Served, token: str) -> None:
    described = (await say(node, ROOT, "query", "Syscall.Describe", {"capabilities": ["*"]})).json["data"]["schemas"]
    before = await shown(node)
    assert len(described) > 60
    for type, about in described.items():
        if type == "Doc.Head":
            continue
        kind, schema = about["kind"], about["input"]
        asked = [sample(schema, schema, names) for names in (THERE, NOT_THERE)]
        answers = [
            await say(node, token, kind, type, asked[0]),
            await say(node, token, kind, type.replace("Quiet", "Noisy"), asked[1]),
        ]
        assert answers[0].status in (200, 403, 404, 422), (type, answers[0].body)
        assert asked[0] == asked[1] or alike(answers[0]) == alike(answers[1]), type
        text = answers[1].body.decode()
        assert "quiet" not in text.lower(), (type, text)
        assert SECRET not in text + answers[0].body.decode(), type
    assert await shown(node) == before, "nothing has changed"
