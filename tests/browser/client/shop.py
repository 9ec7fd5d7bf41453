"""A program for the JavaScript client: a command, a query and tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring import App, Context, Fail

app = App("shop")


@app.command("Order.Place")
async def place(order: dict[str, Any], ctx: Context) -> dict[str, Any]:
    if order["cents"] < 0:
        raise Fail(422, "negative")
    await ctx.publish("orders", order)
    return {"paid": order["cents"]}


@app.query("Order.Count")
def count(data: dict[str, Any], ctx: Context) -> int:
    return 7


@app.task
async def add(x: int, y: int, *, times: int = 1) -> int:
    return (x + y) * times


@app.task(max_attempts=1)
async def fail() -> None:
    raise ValueError("boom")


@app.task
async def wait_for_ever() -> None:
    await asyncio.Event().wait()
