"""What a FastAPI user expects of commands and queries."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from aiohttp import ClientSession

from mainspring import App, Context, Fail, RestartPolicy
from mainspring.client import SyncClient, connect
from mainspring.testing import serving
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


async def test_a_refusal_arrives_as_the_exception_it_was(start: Start) -> None:
    app = shop()

    @app.command("Basket.Buy")
    async def buy(data: dict[str, Any], ctx: Context) -> list[Any]:
        try:
            await ctx.send("command", "Order.Place", data)
        except Fail as refused:
            return [refused.code, refused.message, refused.type]
        return []

    async with start(app) as node:
        with pytest.raises(Fail) as refused:
            await node.command("Order.Place", {"sku": "pen"})
        assert (refused.value.code, refused.value.message, refused.value.type) == (409, "sold out", "Order.Place")
        assert await node.command("Basket.Buy", {"sku": "pen"}) == [409, "sold out", "Order.Place"]
        assert await node.events("orders") == []


async def test_an_exception_is_the_callers_error_and_the_next_request_is_served(start: Start) -> None:
    async with start(shop()) as node:
        for _ in range(10):
            with pytest.raises(Fail) as failed:
                await node.command("Stock.Add", {})
            assert (failed.value.code, failed.value.type) == (500, "Sys.ActorCrash")
            assert failed.value.message == "KeyError: 'sku'"
        assert await node.command("Stock.Add", {"sku": "pen", "count": 2}) == {"count": 2}


async def test_a_handler_that_asks_for_supervision_is_given_up_until_somebody_starts_it_again(start: Start) -> None:
    app, broken = App("shop"), [True]

    @app.command("Till.Open", restart=RestartPolicy(max_restarts=0))
    async def open_till(data: dict[str, Any], ctx: Context) -> str:
        if broken:
            raise OSError("the drawer is stuck")
        return "open"

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Context) -> str:
        return "placed"

    async with start(app) as node:
        codes = []
        for _ in range(2):
            with pytest.raises(Fail) as failed:
                await node.command("Till.Open")
            codes.append(failed.value.code)
        assert codes == [500, 503]
        assert await node.command("Order.Place") == "placed"
        broken.clear()
        await node.command("Syscall.Restart", {"capability": "Till"})
        assert await node.command("Till.Open") == "open"


async def test_requests_are_handled_side_by_side(start: Start) -> None:
    app, waiting = App("meeting"), list[asyncio.Future[None]]()

    @app.command("Meeting.Join")
    async def join(data: int, ctx: Context) -> int:
        """Nobody goes on before all twenty are there."""
        here = asyncio.get_running_loop().create_future()
        waiting.append(here)
        if len(waiting) == 20:
            for each in waiting:
                each.set_result(None)
        await here
        return data

    async with start(app) as node:
        asked = [node.command("Meeting.Join", number) for number in range(20)]
        assert await asyncio.gather(*asked) == list(range(20))


async def test_one_at_a_time_where_the_program_says_so(start: Start) -> None:
    app, at_work = App("till"), list[int]()

    @app.command("Till.Take", concurrency=1)
    async def take(data: int, ctx: Context) -> int:
        at_work.append(data)
        await ctx.sleep(0.01)
        most = len(at_work)
        at_work.remove(data)
        return most

    async with start(app) as node:
        assert await asyncio.gather(*(node.command("Till.Take", number) for number in range(10))) == [1] * 10


async def test_requests_with_the_same_key_are_handled_in_order(start: Start) -> None:
    app, ended = App("bank"), dict[str, list[int]]()

    @app.command("Account.Add", key="account")
    async def add(data: dict[str, Any], ctx: Context) -> None:
        await ctx.sleep(0.03 / (data["n"] + 1))  # a later one is quicker
        ended.setdefault(data["account"], []).append(data["n"])

    @app.command("Accounts.AddAll")
    async def add_all(data: list[dict[str, Any]], ctx: Context) -> None:
        await asyncio.gather(*(ctx.send("command", "Account.Add", each) for each in data))

    async with start(app) as node:
        wanted = [{"account": account, "n": number} for number in range(4) for account in ("ada", "grace")]
        await node.command("Accounts.AddAll", wanted)
        assert ended == {"ada": [0, 1, 2, 3], "grace": [0, 1, 2, 3]}


class TestServed:
    """What only a real node has: threads that really block, HTTP, a client without a loop."""

    @pytest.mark.process
    async def test_a_plain_function_that_blocks_holds_up_nobody(self) -> None:
        app, go_on = shop(), threading.Event()

        @app.command("Report.Make")
        def make(data: dict[str, Any], ctx: Context) -> str:
            go_on.wait()
            return "made"

        async with serving(app) as node, connect(node.url) as bus, ClientSession() as http:
            report = asyncio.create_task(bus.command("Report.Make"))
            await bus.command("Stock.Add", {"sku": "pen", "count": 1})
            async with http.get(f"{node.http}/healthz") as healthy:
                assert healthy.status == 200
            assert not report.done()
            go_on.set()
            assert await report == "made"

    @pytest.mark.process
    async def test_a_refusal_is_an_http_status_and_the_same_exception_without_a_loop(self) -> None:
        async with serving(shop()) as node, ClientSession() as http:
            asked = {"kind": "command", "type": "Order.Place", "data": {"sku": "pen"}}
            async with http.post(f"{node.http}/messages", json=asked) as answer:
                assert answer.status == 409

            def ask() -> Fail:
                with SyncClient(node.url) as bus, pytest.raises(Fail) as refused:
                    bus.command("Order.Place", {"sku": "pen"})
                return refused.value

            refused = await asyncio.to_thread(ask)
            assert (refused.code, refused.message) == (409, "sold out")


async def test_a_request_without_data_is_the_same_from_everywhere(start: Start) -> None:
    app, seen = App("shop"), []

    @app.query("Stock.Count")
    async def count(data: Any, ctx: Context) -> int:
        seen.append(data)
        return 1

    @app.query("Stock.Any")
    async def has_any(data: None, ctx: Context) -> bool:
        return data is None

    @app.query("Stock.Ask")
    async def ask(data: dict[str, Any], ctx: Context) -> bool:
        await ctx.send("query", "Stock.Count")
        found: bool = await ctx.send("query", "Stock.Any")
        return found

    async with start(app) as node:
        assert await node.bus.query("Stock.Count") == 1
        assert await node.bus.query("Stock.Any")
        assert await node.bus.query("Stock.Ask")
    assert seen == [{}, {}]
