"""Events, tasks, commands and queries that only the new program knows: old nodes leave them to those that do."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mainspring import App, Event
from mainspring.kernel import Fail
from tests.support.upgrade import LEASE_MS, Site, story, wait


class OldOrder(msgspec.Struct):
    n: int


def old() -> App:
    app = App("shop")

    @app.consumer("orders", max_attempts=3, backoff="50ms")
    def bill(event: Event[OldOrder]) -> None:
        event.publish("bills", event.payload.n)

    @app.command("Stock.Reserve", durable=True)
    async def reserve(data: dict[str, Any], ctx: Any) -> str:
        await ctx.publish("reserved", data)
        return "old"

    return app


def new() -> App:
    app = App("shop")

    @app.consumer("orders", max_attempts=3, backoff="50ms")
    def bill(event: Event[Any]) -> None:
        event.publish("bills", event.payload["n"])

    @app.consumer("orders", group="loyalty")
    def thank(event: Event[Any]) -> None:
        event.publish("thanks", event.offset)

    @app.task
    async def mail(to: str) -> None:
        await app.publish("mailed", to)

    @app.command("Mail.Send")
    async def send(data: dict[str, Any], ctx: Any) -> str:
        return str((await mail.enqueue(data["to"])).id)

    @app.command("Stock.Reserve", durable=True)
    async def reserve(data: dict[str, Any], ctx: Any) -> str:
        await ctx.publish("reserved", data)
        return "new"

    @app.command("Stock.Release", durable=True)
    async def release(data: dict[str, Any], ctx: Any) -> str:
        await ctx.sleep(1.0)
        await ctx.publish("released", data)
        return "done"

    @app.query("Stock.Count")
    async def count(data: dict[str, Any], ctx: Any) -> int:
        return 7

    return app


@story
async def test_a_group_whose_function_only_new_nodes_have_waits_for_them(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    await b.publish("orders", {"n": 1})
    await wait(500)
    await a.stop()
    await b.publish("orders", {"n": 2})
    await wait(60_000)
    a = await site.start("a", new())
    await wait(1_000)
    assert await site.stored("thanks") == [1, 2]
    assert sorted(await site.stored("bills")) == [1, 2]


@story
async def test_a_task_that_only_new_nodes_know_waits_for_them(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    await b.ask("command", "Mail.Send", {"to": "ada"})
    await wait(200)
    await b.publish("tasks.shop.mail", {"args": ["eve"]})
    await a.stop()
    await b.publish("tasks.shop.mail", {"args": ["bob"]})
    await wait(60_000)
    a = await site.start("a", new())
    await wait(1_000)
    assert sorted(await site.stored("mailed")) == ["ada", "bob", "eve"]


@story
async def test_what_only_new_nodes_handle_is_passed_on_to_them(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    assert await b.ask("query", "Stock.Count", {}) == 7
    assert await b.ask("command", "Stock.Release", {"sku": 1}) == "done"
    assert await b.ask("command", "Stock.Reserve", {"sku": 1}) == "old", "what it handles itself it does itself"
    await a.stop()
    with pytest.raises(Fail) as caught:
        await b.ask("query", "Stock.Count", {})
    assert caught.value.type == "Sys.RoutingError"
    a = await site.start("a", new())
    assert await b.ask("query", "Stock.Count", {}) == 7


@story
async def test_a_durable_command_that_only_new_nodes_know_waits_for_them(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    asked = asyncio.create_task(b.ask("command", "Stock.Release", {"sku": 1}))
    await wait(300)
    a.kill()
    await asyncio.wait([asked])
    await wait(3 * LEASE_MS)
    await b.stop()
    b = await site.start("b", old())
    assert await site.stored("released") == []
    await site.start("a", new())
    await wait(3_000)
    assert await site.stored("released") == [{"sku": 1}]
