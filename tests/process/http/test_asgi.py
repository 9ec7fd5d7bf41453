"""What somebody expects who mounts a node in an application: `api.mount("/ops", app.asgi)`.

Routes, WebSocket, streams, tokens and the dashboard are there as on the node's own port, in every worker. The tests of
single routes are those of the port: `conftest.py` runs them on both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mainspring import App, Context, connect
from mainspring.bus.access import new_token
from mainspring.client import CannotConnect, NodeConnection, NodeRefused
from tests.support.http_site import uvicorn_serving


def shop() -> App:
    app = App("shop")

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.publish("orders", data)
        return {"placed": data["sku"]}

    return app


@asynccontextmanager
async def mounted(app: App, **settings: Any) -> AsyncIterator[str]:
    """The app inside FastAPI, served by uvicorn; gives the address of the mount."""
    api = FastAPI(lifespan=lambda _: app.running(**{"engine": "memory", **settings}))
    api.mount("/ops", app.asgi)

    @api.get("/hello")
    async def hello() -> str:
        return "world"

    async with uvicorn_serving(api) as port:
        yield f"http://127.0.0.1:{port}/ops"


async def test_the_python_clients_work_below_a_path() -> None:
    async with mounted(shop()) as url, connect(url.replace("http", "ws")) as bus:
        assert await bus.command("Order.Place", {"sku": "pen"}) == {"placed": "pen"}
        assert await bus.publish("orders", {"sku": "cup"}) == 2
        found = []
        async for event in bus.follow("orders", since="beginning"):  # server-sent events
            found.append(event.payload["sku"])
            if len(found) == 2:
                break
        subscription = bus.subscribe("orders", group="g")
        assert found == ["pen", "cup"]
        assert [(await subscription.get(timeout=20)).payload["sku"] for _ in found] == found
        assert await bus.publish_many("many", range(5_000)) == 5_000
        with pytest.raises(NodeRefused, match="cannot name"):
            await bus.publish("no name!", 1)

        def blocking() -> Any:
            with NodeConnection(url) as connection:
                return connection.get("/topics")["topics"]

        assert {each["topic"] for each in await asyncio.to_thread(blocking)} >= {"orders", "many"}


async def test_a_stream_ends_when_its_reader_leaves() -> None:
    app = shop()
    async with mounted(app) as url, httpx.AsyncClient() as browser:
        await app.publish("orders", 1)
        async with browser.stream("GET", f"{url}/topics/orders/stream?from=beginning") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    break
        async with asyncio.timeout(20):
            while True:  # an open stream is a request that is not over
                metrics = (await browser.get(f"{url}/metrics")).text
                if re.search(r"http_requests_total\{.*stream.*\} 1\.0", metrics):
                    break
                await asyncio.sleep(0.02)


async def test_the_dashboard_finds_its_files_below_the_path() -> None:
    async with mounted(shop()) as url, httpx.AsyncClient(follow_redirects=True) as browser:
        page = await browser.get(url)
        assert str(page.url) == f"{url}/"  # with its slash, what it names lies below
        names = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
        assert "dashboard/main.js" in names
        seen, waiting = set(), [page.url.join(name) for name in names]
        while waiting:
            address = waiting.pop()
            if address in seen:
                continue
            seen.add(address)
            found = await browser.get(address)
            assert found.status_code == 200, address
            assert str(found.url).startswith(url)
            if address.path.endswith(".js"):
                waiting += [address.join(name) for name in re.findall(r'^import .* from "([^"]+)";', found.text, re.M)]
        assert httpx.URL(f"{url}/client.js") in seen
        assert (await browser.get(url.replace("/ops", "/hello"))).json() == "world"


async def test_tokens_are_asked_for_as_on_the_port() -> None:
    token, kept = new_token("ada", ["publish:orders"], b"\1" * 32)
    async with mounted(shop(), tokens=(kept.line(),)) as url, httpx.AsyncClient() as browser:
        assert (await browser.get(f"{url}/topics")).status_code == 401
        assert (await browser.get(f"{url}/healthz")).status_code == 200
        forged = {"X-Mainspring-Outside": "127.0.0.1"}
        assert (await browser.get(f"{url}/topics", headers=forged)).status_code == 401
        with pytest.raises(CannotConnect, match="token"):
            async with connect(url, connect_timeout=5):
                pass
        async with connect(url, token) as bus:
            assert await bus.publish("orders", 1) == 1
            with pytest.raises(NodeRefused) as refused:
                await bus.publish("others", 1)
            assert refused.value.code == "forbidden"


async def test_without_tokens_only_this_machine_is_let_in() -> None:
    app = shop()
    async with app.running(engine="memory"):
        for address, host, status in (
            ("203.0.113.9", "localhost", 403),
            ("127.0.0.1", "evil.example", 403),
            ("127.0.0.1", "localhost", 200),
            ("::1", "test", 200),
        ):
            transport = httpx.ASGITransport(app.asgi, client=(address, 1))
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as browser:
                assert (await browser.get("/topics")).status_code == status


def test_a_test_client_reaches_it() -> None:
    app = shop()
    api = FastAPI(lifespan=lambda _: app.running(engine="memory"))
    api.mount("/ops", app.asgi)
    with TestClient(api) as browser:
        sent = {"kind": "command", "type": "Order.Place", "data": {"sku": "pen"}}
        assert browser.post("/ops/messages", json=sent).json()["data"] == {"placed": "pen"}
        with browser.websocket_connect("/ops/") as socket:
            socket.send_json({"type": "PUBLISH", "topic": "orders", "payload": 1, "corr": 7})
            assert socket.receive_json()["type"] == "PUBLISHED"


async def test_it_is_an_application_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DATA", str(tmp_path))
    app = shop()
    async with uvicorn_serving(app.asgi) as port, connect(f"ws://127.0.0.1:{port}") as bus:
        assert await bus.command("Order.Place", {"sku": "pen"}) == {"placed": "pen"}
    assert app.node is None


async def test_a_worker_that_is_not_the_node_answers_for_it(tmp_path: Path) -> None:
    node, worker = shop(), shop()
    async with node.running(data=tmp_path), mounted(worker, engine="sqlite", data=tmp_path) as url:
        await node.publish("orders", 1)
        async with connect(url) as bus:
            assert await bus.publish("orders", 2) == 2
            assert (await bus.lag("orders", "nobody")) == 0
