"""Web code that is a client of a node, tested with the test clients of its framework on virtual time."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from mainspring import App, Context, Sleep
from mainspring.client import Client, SyncClient
from mainspring.testing import simulate

fastapi = pytest.importorskip("fastapi")
pytest.importorskip("fastapi.testclient")
httpx = pytest.importorskip("httpx")


def shop() -> App:
    app = App("shop")

    @app.command("Order.Place")
    async def place(order: dict[str, Any], ctx: Context) -> str:
        await asyncio.sleep(10)
        await ctx.publish("orders", order)
        return "placed"

    @app.run
    async def remind(customer: str, perform: Any) -> str:
        await perform(Sleep(hours=24))
        return f"mail to {customer}"

    return app


site = fastapi.FastAPI()


def connection() -> Any:
    raise RuntimeError("each test gives its own")


Bus = Annotated[Any, fastapi.Depends(connection)]


@site.post("/orders")
async def post_order(order: dict[str, Any], bus: Bus) -> dict[str, Any]:
    answer = await bus.command("Order.Place", order)
    await bus.command("Run.Start", {"program": "remind", "args": [order["customer"]], "id": "r-1"})
    return {"answer": answer}


@site.get("/orders")
async def orders(bus: Bus) -> list[Any]:
    return [event.payload async for event in bus.replay("orders")]


@site.post("/blocking")
def blocking(order: dict[str, Any], bus: Bus) -> dict[str, Any]:
    return {"answer": bus.command("Order.Place", order)}


@site.websocket("/feed")
async def feed(socket: fastapi.WebSocket, bus: Bus) -> None:
    await socket.accept()
    async for event in bus.subscribe("orders", group="feed", from_="beginning"):
        await socket.send_json(event.payload)
        await event.ack()


def web(bus: Client | SyncClient) -> Any:
    site.dependency_overrides[connection] = lambda: bus
    return site


ORDER = {"sku": "pen", "customer": "ada"}


async def test_routes_are_called_on_the_tests_own_loop() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        transport = httpx.ASGITransport(web(bus))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
            begun = world.now_ms
            answers = await asyncio.gather(*(browser.post("/orders", json=ORDER) for _ in range(3)))
            assert [answer.json() for answer in answers] == [{"answer": "placed"}] * 3
            assert world.now_ms - begun < 40_000
            assert (await browser.get("/orders")).json() == [ORDER] * 3
        assert (await world.outcome("r-1")).value == "mail to ada"


def test_routes_are_called_in_the_thread_of_a_test_client() -> None:
    with simulate(shop()) as world:
        bus = asyncio.run(world.client().__aenter__())
        with fastapi.testclient.TestClient(web(bus)) as browser:
            assert browser.post("/orders", json=ORDER).json() == {"answer": "placed"}
            with browser.websocket_connect("/feed") as feed:
                assert feed.receive_json() == ORDER
        asyncio.run(world.advance("1d"))
        assert world.run("r-1").value == "mail to ada"


async def test_routes_that_block_use_the_blocking_client() -> None:
    async with simulate(shop()) as world:
        with world.sync_client() as bus:
            transport = httpx.ASGITransport(web(bus))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
                assert (await browser.post("/blocking", json=ORDER)).json() == {"answer": "placed"}
