"""Requests, replies and publish ids between agents that do not trust each other.

As NATS users know it from `allow_responses` and private inboxes: who may ask a question must not be able to make the
responder write elsewhere, nobody reads the answers to others, and nobody uses up the ids of others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring.client import connect
from tests.support.access import Served, make_token, served

ASKER, ASKER_TOKEN = make_token("asker", "publish:quotes", "subscribe:quotes.replies")
MALLORY, MALLORY_TOKEN = make_token("mallory", "publish:quotes", "subscribe:quotes.**", "publish:invoices")
QUOTER, QUOTER_TOKEN = make_token("quoter", "subscribe:quotes", "publish:quotes.replies", "publish:payroll")
SHOP, SHOP_TOKEN = make_token("shop", "publish:invoices", "subscribe:invoices")
ROOT, ROOT_TOKEN = make_token("root", "admin")
TOKENS = tuple(each.line() for each in (ASKER_TOKEN, MALLORY_TOKEN, QUOTER_TOKEN, SHOP_TOKEN, ROOT_TOKEN))


@pytest.fixture
async def node() -> AsyncIterator[Served]:
    async with served(tokens=TOKENS) as running:
        yield running


def address(node: Served) -> str:
    return node.url.replace("http", "ws", 1)


async def quote(event: Any) -> dict[str, Any]:
    return {"quote for": event.payload}


async def test_a_request_is_answered_with_the_documented_scopes(node: Served) -> None:
    async with connect(address(node), token=QUOTER) as responder, connect(address(node), token=ASKER) as asker:
        answering = responder.respond("quotes", quote, group="quoters")
        assert await asker.request("quotes", "a pen", timeout=20) == {"quote for": "a pen"}
        async with connect(address(node), token=ROOT) as admin:
            assert await admin.request("quotes", "ink", timeout=20) == {"quote for": "ink"}
        await answering.stop()


async def test_a_reply_is_read_by_the_asker_alone(node: Served) -> None:
    async with connect(address(node), token=QUOTER) as responder, connect(address(node), token=ASKER) as asker:
        answering = responder.respond("quotes", quote, group="quoters")
        async with node.socket(MALLORY) as thief:
            assert (await thief.subscribe("quotes.replies", "ears"))["type"] == "OK"
            await asker.request("quotes", "SECRET", timeout=20)
            [stored] = (await node.get("/topics/quotes.replies/events", ROOT)).json["events"]
            assert stored["headers"]["x-reply-for"].startswith("asker;")
            spying = {"header": ["x-reply-for", stored["headers"]["x-reply-for"]]}
            assert (await thief.subscribe("quotes.replies", "spy", filter=spying))["type"] == "OK"
            own = {"payload": 1, "headers": {"x-reply-to": "quotes.replies", "x-reply-for": "me"}}
            assert (await node.post("/topics/quotes/events", own, MALLORY)).status == 201
            first = await thief.next()
            assert first["envelope"]["headers"]["x-reply-for"] == "mallory;me", "its own, and nothing before it"
        read = await node.get("/topics/quotes.replies/events", MALLORY)
        assert b"SECRET" not in read.body
        assert (await node.get("/topics/quotes.replies/events/0/1", MALLORY)).status == 404
        assert (await node.get("/topics/quotes.replies/events/0/1", ASKER)).status == 200
        message = {"kind": "query", "type": "Bus.Read", "data": {"topic": "quotes.replies"}}
        assert b"SECRET" not in (await node.post("/messages", message, MALLORY)).body
        assert (await node.get("/dlq/quotes.replies", MALLORY)).status == 403
        await answering.stop()


@pytest.mark.parametrize("place", ["payroll", "payroll.replies", "quotes"])
async def test_a_responder_publishes_nowhere_where_the_asker_may_not(node: Served, place: str) -> None:
    body = {"payload": {"give": "me a raise"}, "headers": {"x-reply-to": place, "x-reply-for": "x"}}
    assert (await node.post("/topics/quotes/events", body, MALLORY)).status == 403
    message = {"kind": "command", "type": "Bus.Publish", "data": {"topic": "quotes", **body}}
    assert (await node.post("/messages", message, MALLORY)).status == 403
    async with node.socket(MALLORY) as socket:
        refused = await socket.publish("quotes", 1, headers=body["headers"])
        assert refused["code"] == "forbidden"
        batch = {"type": "PUBLISH_BATCH", "topic": "quotes", "events": [{"payload": 1}, body]}
        assert (await socket.ask(batch))["code"] == "forbidden"
    assert (await node.get("/topics/quotes/events", ROOT)).status == 404, "nothing was stored"


async def test_nobody_uses_up_the_publish_ids_of_others(node: Served) -> None:
    event = {"payload": "forged", "id": "invoice-2026-17"}
    assert (await node.post("/topics/invoices/events", event, MALLORY)).status == 201
    real = {"payload": "real", "id": "invoice-2026-17"}
    first = (await node.post("/topics/invoices/events", real, SHOP)).json
    assert "duplicate" not in first
    again = (await node.post("/topics/invoices/events", real, SHOP)).json
    assert (again["duplicate"], again["offset"]) == (True, first["offset"]), "its own second try is harmless"
    events = (await node.get("/topics/invoices/events", SHOP)).json["events"]
    assert [each["payload"] for each in events] == ["forged", "real"]
    assert [each["headers"]["agent_id"] for each in events] == ["mallory", "shop"]


async def test_nobody_uses_up_the_batch_ids_of_others(node: Served) -> None:
    def batch(*payloads: str) -> dict[str, Any]:
        events = [{"id": f"i{n}", "payload": payload} for n, payload in enumerate(payloads)]
        return {"type": "PUBLISH_BATCH", "batch_id": "b", "topic": "invoices", "events": events}

    async with node.socket(MALLORY) as mallory, node.socket(SHOP) as shop, node.socket(ASKER) as asker:
        assert (await mallory.ask(batch("forged", "forged")))["offsets"] == [[0, 1], [0, 2]]
        assert (await asker.ask(batch("forged", "forged")))["code"] == "forbidden", "also what is stored is not told"
        for _ in range(2):
            assert (await shop.ask(batch("real", "real")))["offsets"] == [[0, 3], [0, 4]]
    events = (await node.get("/topics/invoices/events", SHOP)).json["events"]
    assert [each["payload"] for each in events] == ["forged", "forged", "real", "real"]
    assert [each["headers"]["agent_id"] for each in events] == ["mallory", "mallory", "shop", "shop"]
