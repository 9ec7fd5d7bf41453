"""What a FastAPI user expects of commands and queries."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import App, Context, Fail
from mainspring.client import NodeRefused
from tests.expectations.conftest import Start


def shop() -> App:
    app = App("shop")
    stock: dict[str, int] = {}

    @app.command("Stock.Add")
    async def add(data: dict[str, Any], ctx: Context) -> dict[str, int]:
        stock[data["sku"]] = stock.get(data["sku"], 0) + data["count"]
        return {"count": stock[data["sku"]]}

    @app.query("Stock.Count")
    async def count(data: dict[str, Any], ctx: Context) -> int:
        return stock.get(data["sku"], 0)

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Context) -> str:
        if not await ctx.send("query", "Stock.Count", {"sku": data["sku"]}):
            raise Fail(409, "sold out")
        await ctx.publish("orders", data)
        return "placed"

    return app


async def test_what_the_function_returns_is_the_reply(start: Start) -> None:
    async with start(shop()) as node:
        assert await node.command("Stock.Add", {"sku": "pen", "count": 2}) == {"count": 2}
        assert await node.query("Stock.Count", {"sku": "pen"}) == 2


async def test_what_a_command_published_is_stored_when_its_reply_is_there(start: Start) -> None:
    async with start(shop) as node:
        await node.command("Stock.Add", {"sku": "pen", "count": 1})
        assert await node.command("Order.Place", {"sku": "pen"}) == "placed"
        await node.crash()
        assert await node.events("orders") == [{"sku": "pen"}]


async def test_a_refusal_says_why(start: Start) -> None:
    async with start(shop()) as node:
        with pytest.raises((Fail, NodeRefused), match="sold out"):
            await node.command("Order.Place", {"sku": "pen"})
        assert await node.events("orders") == []
