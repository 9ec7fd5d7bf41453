"""HTTP and WebSocket on one port see the same topics and ask the same question about origins."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from mainspring.server.http.access import claimed_agent
from mainspring.server.websocket import add_websocket
from mainspring.settings import Settings
from tests.support.http_site import Site, serve


@pytest.fixture
async def both() -> AsyncIterator[Site]:
    def add(app: web.Application, bus: Any) -> None:
        add_websocket(app, bus, Settings(), claimed_agent)

    async with serve(besides=add) as served:
        yield served


async def test_what_is_published_here_is_delivered_there(both: Site) -> None:
    async with both.session.ws_connect(both.url("/")) as socket:
        await socket.send_str(json.dumps({"type": "SUBSCRIBE", "topic": "t", "group": "g"}))
        assert (await socket.receive_json())["type"] == "OK"
        answer = await both.post("/topics/t/events", b'{"payload":{"a" : 1},"key":"k","headers":{"h":"v"}}')
        message = await socket.receive_str(timeout=60)
        assert b'{"a" : 1}' in message.encode()
        envelope = json.loads(message)["envelope"]
        assert (envelope["id"], envelope["key"], envelope["headers"]) == (answer.json["id"], "k", {"h": "v"})
        await socket.send_str(json.dumps({"type": "PUBLISH", "topic": "t", "payload": 2}))
        await socket.receive_json(timeout=60)
    assert [event["payload"] for event in await both.events("t")] == [{"a": 1}, 2]
    read = (await both.get("/topics/t/events/0/1")).json
    assert read == {name: value for name, value in envelope.items() if name != "attempts"}
    assert (await both.get("/stats")).json["connections"] == 0


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_handshake_from_a_foreign_page_is_403(both: Site, origin: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await both.session.ws_connect(both.url("/"), headers={"Origin": origin})
    assert refused.value.status == 403


async def test_a_handshake_from_the_nodes_own_page_is_let_in(both: Site) -> None:
    async with both.session.ws_connect(both.url("/"), headers={"Origin": f"http://127.0.0.1:{both.port}"}) as socket:
        await socket.send_str("not json")
        assert (await socket.receive_json())["code"] == "bad_json"


async def test_only_the_websocket_is_at_the_root(both: Site) -> None:
    answer = await both.get("/")
    assert answer.status in (404, 426)
    assert (await both.post("/", {"payload": 1})).status == 405
