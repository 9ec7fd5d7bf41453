"""What a token may ask of a program, of its runs and of the node: nothing, unless a scope says so.

As in Temporal, where each call is authorized, and unlike a bus whose tokens are about topics alone: a token that may
publish somewhere must not read the program's memory, its runs, or what went wrong on the node. Every attack is made on
a node that serves an innocent client meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring import App, Fail
from tests.support.access import Served, make_token, served

NONE, NONE_TOKEN = make_token("mallory", "publish:nowhere")
READER, READER_TOKEN = make_token("reader", "query:Memory.*", "query:Doc.Head")
PAYER, PAYER_TOKEN = make_token("payer", "command:Pay.*", "query:Syscall.Trace", "command:Timer.Schedule")
STARTER, STARTER_TOKEN = make_token("starter", "run:fulfil")
ORDERS, ORDERS_TOKEN = make_token("orders", "publish:orders.**", "subscribe:orders.**")
ROOT, ROOT_TOKEN = make_token("root", "admin")
TOKENS = tuple(each.line() for each in (NONE_TOKEN, READER_TOKEN, PAYER_TOKEN, STARTER_TOKEN, ORDERS_TOKEN, ROOT_TOKEN))
SECRET = "4242-SECRET"


def shop() -> App:
    app = App("shop")

    @app.command("Pay.Now", durable=True)
    async def pay(data: dict[str, Any], ctx: Any) -> dict[str, Any]:
        if data.get("declined"):
            raise Fail(402, f"declined card {SECRET}")
        return {"paid": data}

    @app.command("Ship.Now", durable=True)
    async def ship(data: dict[str, Any], ctx: Any) -> dict[str, Any]:
        raise RuntimeError(f"no address for {SECRET}")

    @app.query("Doc.Head")
    async def head(data: dict[str, Any], ctx: Any) -> str:
        return "head"

    @app.run
    async def fulfil(order: str, perform: Any) -> str:
        return order

    @app.run
    async def payroll(card: str, perform: Any) -> str:
        return card

    return app


@pytest.fixture
async def node() -> AsyncIterator[Served]:
    async with served(shop(), tokens=TOKENS) as running:
        await ask(running, ROOT, "command", "Memory.Set", {"key": "/cards/1", "value": SECRET})
        await ask(running, ROOT, "command", "Run.Start", {"program": "payroll", "args": [SECRET], "id": "pay-1"})
        await ask(running, ROOT, "command", "Run.Start", {"program": "fulfil", "args": ["pen"], "id": "ship-1"})
        await running.post("/topics/payroll/events", {"payload": SECRET}, ROOT)
        yield running


async def ask(node: Served, token: str, kind: str, type: str, data: Any = None, **more: Any) -> tuple[int, Any]:
    answer = await node.post("/messages", {"kind": kind, "type": type, "data": data or {}, **more}, token)
    assert (await node.get("/topics", ORDERS)).status == 200, "an innocent client is served meanwhile"
    return answer.status, answer.json


KERNEL = [
    ("query", "Memory.List", {}),
    ("query", "Memory.Get", {"key": "/cards/1"}),
    ("query", "Run.List", {}),
    ("query", "Run.History", {"id": "pay-1"}),
    ("query", "Run.Outcome", {"id": "pay-1"}),
    ("query", "Syscall.Outcome", {"id": "x"}),
    ("query", "Syscall.Trace", {"id": "pay-1"}),
    ("query", "Syscall.Actors", {}),
    ("query", "Syscall.Nodes", {}),
    ("query", "Syscall.Describe", {"capabilities": ["*"]}),
    ("query", "Beat.Read", {"path": "/x"}),
    ("query", "Timer.List", {}),
    ("query", "Doc.Head", {}),
    ("query", "No.Such", {}),
    ("command", "Memory.Set", {"key": "/x", "value": 1}),
    ("command", "Memory.Delete", {"key": "/cards/1"}),
    ("command", "Run.Start", {"program": "fulfil", "args": ["pen"]}),
    ("command", "Run.Cancel", {"id": "ship-1"}),
    ("command", "Pay.Now", {}),
    ("command", "Syscall.Shutdown", {}),
]


@pytest.mark.parametrize(("kind", "type", "data"), KERNEL)
async def test_a_token_without_a_scope_for_messages_asks_nothing(
    node: Served, kind: str, type: str, data: dict[str, Any]
) -> None:
    for token in (NONE, ORDERS):
        status, answer = await ask(node, token, kind, type, data)
        assert (status, answer["code"]) == (403, "forbidden"), type
        assert SECRET not in str(answer)


async def test_a_scope_allows_the_types_that_fit_its_pattern_and_no_others(node: Served) -> None:
    status, answer = await ask(node, READER, "query", "Memory.Get", {"key": "/cards/1"})
    assert (status, answer["data"]["value"]) == (200, SECRET)
    assert (await ask(node, READER, "query", "Doc.Head"))[0] == 200
    for kind, type in (("command", "Memory.Delete"), ("query", "Run.List"), ("command", "Pay.Now")):
        assert (await ask(node, READER, kind, type, {"key": "/cards/1"}))[0] == 403, type
    assert (await ask(node, PAYER, "command", "Pay.Now", {"sum": 1}))[0] == 200, "a command needs no admin"
    assert (await ask(node, PAYER, "command", "Ship.Now"))[0] == 403


async def test_an_outcome_is_told_to_those_who_may_send_the_command(node: Served) -> None:
    await ask(node, PAYER, "command", "Pay.Now", {"card": SECRET}, id="pay-17")
    status, answer = await ask(node, PAYER, "query", "Syscall.Outcome", {"id": "pay-17"})
    assert (status, answer["data"]["state"]) == (200, "done")
    await ask(node, ROOT, "command", "Ship.Now", {}, id="ship-17")
    for id in ("ship-17", "never-sent"):
        status, answer = await ask(node, PAYER, "query", "Syscall.Outcome", {"id": id})
        assert (status, answer["message"]) == (404, "no durable command with this id")


async def test_runs_are_used_by_program(node: Served) -> None:
    assert (await ask(node, STARTER, "command", "Run.Start", {"program": "fulfil", "args": ["ink"]}))[0] == 200
    assert (await ask(node, STARTER, "command", "Run.Start", {"program": "payroll", "args": ["x"]}))[0] == 403
    _, listed = await ask(node, STARTER, "query", "Run.List", {"limit": 1})
    assert [run["program"] for run in listed["data"]["runs"]] == ["fulfil"]
    assert (await ask(node, STARTER, "query", "Run.Programs"))[1]["data"]["programs"] == ["fulfil"]
    assert (await ask(node, STARTER, "query", "Run.History", {"id": "ship-1"}))[0] == 200
    refusals = [await ask(node, STARTER, "query", "Run.History", {"id": id}) for id in ("pay-1", "no-such-run")]
    assert [status for status, _ in refusals] == [403, 403], "whether there is such a run is not told"
    assert len({answer["message"] for _, answer in refusals}) == 1
    for type in ("Run.Cancel", "Run.Retry", "Run.Fail"):
        assert (await ask(node, STARTER, "command", type, {"id": "pay-1"}))[0] == 403, type
    assert (await ask(node, STARTER, "command", "Run.Signal", {"id": "pay-1", "name": "x"}))[0] == 403
    _, changed = await ask(node, STARTER, "command", "Run.Bulk", {"action": "cancel"})
    assert "pay-1" not in str(changed)


async def test_what_the_node_shows_of_itself_names_nothing_a_token_may_not_know(node: Served) -> None:
    await ask(node, ROOT, "command", "Ship.Now", {}, id="crash")
    for token in (NONE, ORDERS, READER):
        for path in ("/node", "/nodes", "/messages", "/stats", "/metrics"):
            answer = await node.get(path, token)
            text = answer.body.decode()
            assert answer.status == 200, path
            assert not any(word in text for word in (SECRET, "payroll", "Ship.Now", "Pay.Now")), (path, text)
        shown = (await node.get("/node", token)).json
        assert (shown["kernel"], shown["slowTurns"], shown["you"]["admin"]) == (None, [], False)
        assert (await node.get("/nodes", token)).json["nodes"] == []
    full = (await node.get("/node", ROOT)).json
    assert SECRET in str(full["kernel"]["faults"]) or full["kernel"]["actors"]
    assert {each["type"] for each in (await node.get("/messages?limit=1000", READER)).json["messages"]} <= {
        "Memory.Get",
        "Memory.List",
        "Doc.Head",
        "Memory.Set",
    }


async def test_a_trace_leaves_out_what_the_token_may_not_know(node: Served) -> None:
    await ask(node, PAYER, "command", "Pay.Now", {}, id="own")
    await ask(node, ROOT, "command", "Bus.Publish", {"topic": "payroll", "payload": 1}, id="foreign")
    status, answer = await ask(node, PAYER, "query", "Syscall.Trace", {"id": "own"})
    assert (status, {each["type"] for each in answer["data"]["messages"]}) == (200, {"Pay.Now"})
    for id in ("foreign", "nothing"):
        assert (await ask(node, PAYER, "query", "Syscall.Trace", {"id": id}))[0] == 404
    assert (await ask(node, ROOT, "query", "Syscall.Trace", {"id": "foreign"}))[0] == 200


async def test_types_are_listed_and_described_to_those_who_may_send_them(node: Served) -> None:
    _, listed = await ask(node, READER, "query", "Syscall.List")
    types = {each["type"] for each in listed["data"]["types"]}
    assert {"Memory.Get", "Doc.Head"} <= types
    assert not types & {"Pay.Now", "Ship.Now", "Memory.Set", "Syscall.Shutdown"}
    assert (await ask(node, READER, "query", "Syscall.Describe", {"name": "Doc.Head"}))[0] == 200
    for name in ("Pay.Now", "No.Such"):
        assert (await ask(node, READER, "query", "Syscall.Describe", {"name": name}))[0] == 404


@pytest.mark.parametrize(
    ("kind", "type", "data"),
    [
        ("command", "Memory.Delete", {"key": "/cards/1"}),
        ("command", "Bus.Publish", {"topic": "payroll", "payload": 1}),
        ("command", "Timer.Schedule", {"delay": 0, "message": {}}),
        ("event", "Pay.Done", {}),
    ],
)
async def test_a_timer_sends_nothing_that_its_maker_may_not_send(
    node: Served, kind: str, type: str, data: dict[str, Any]
) -> None:
    inner = {"kind": kind, "type": type, "data": data, "metadata": {"id": "later", "timestamp": 1}}
    assert (await ask(node, PAYER, "command", "Timer.Schedule", {"delay": 0, "message": inner}))[0] == 403
    own = {**inner, "kind": "command", "type": "Pay.Now", "data": {}}
    assert (await ask(node, PAYER, "command", "Timer.Schedule", {"delay": 0, "message": own}))[0] == 200


# --- Bus.* asks for the rights on the topic, as HTTP does


async def test_bus_messages_need_the_rights_on_the_topic(node: Served) -> None:
    publish = {"topic": "orders.eu", "payload": 1}
    assert (await ask(node, ORDERS, "command", "Bus.Publish", publish))[0] == 200
    assert (await ask(node, ORDERS, "query", "Bus.Read", {"topic": "orders.eu"}))[0] == 200
    refused = [
        ("command", "Bus.Publish", {**publish, "topic": "payroll"}),
        ("query", "Bus.Read", {"topic": "payroll"}),
        ("query", "Bus.Read", {"topic": "no-such-topic"}),
        ("query", "Bus.DeadLetters", {"topic": "payroll"}),
        ("query", "Bus.Offsets", {"topic": "payroll"}),
        ("query", "Bus.Groups", {"topic": "payroll"}),
        ("command", "Bus.CreateTopic", {"topic": "orders.eu"}),
        ("command", "Bus.Seek", {"topic": "payroll", "group": "g", "kind": "latest"}),
        ("command", "Bus.DeleteGroup", {"topic": "payroll", "group": "g"}),
        ("command", "Bus.PurgeTopic", {"topic": "payroll"}),
        ("command", "Bus.DeleteTopic", {"topic": "payroll"}),
        ("command", "Bus.Redrive", {"topic": "payroll"}),
        ("command", "Bus.DropDeadLetters", {"topic": "payroll", "all": True}),
        ("command", "Bus.Schedule", {"name": "s", "topic": "payroll", "every": 60_000}),
        ("command", "Bus.Unschedule", {"name": "no-such-schedule"}),
    ]
    for kind, type, data in refused:
        assert (await ask(node, ORDERS, kind, type, data))[0] == 403, type
    for type in ("Bus.Topics", "Bus.Groups", "Bus.Stats", "Bus.Schedules"):
        status, answer = await ask(node, ORDERS, "query", type)
        assert (status, "payroll" in str(answer)) == (200, False), type


async def test_headers_that_say_who_published_cannot_be_forged_by_a_message(node: Served) -> None:
    for token, agent in ((ORDERS, "orders"), (ROOT, "root")):
        forged = {"agent_id": "forged", "scopes": "admin", "sid": "x"}
        data = {"topic": "orders.forged", "payload": 1, "headers": forged}
        assert (await ask(node, token, "command", "Bus.Publish", data))[0] == 200
        event = (await node.get("/topics/orders.forged/events", ORDERS)).json["events"][-1]
        assert event["headers"]["agent_id"] == agent
        assert "scopes" not in event["headers"]
        assert event["headers"]["sid"] != "x"


async def test_refusals_do_not_slow_down_the_others(node: Served) -> None:
    body = {"kind": "query", "type": "Memory.List", "data": {}}
    answers = await asyncio.gather(*(node.post("/messages", body, NONE) for _ in range(200)))
    assert {answer.status for answer in answers} == {403}
    assert (await node.post("/topics/orders.x/events", {"payload": 1}, ORDERS)).status == 201
