"""One way to write time: seconds, a timedelta or text, wherever Python code says how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import App, Context, Event
from mainspring.durations import BadDuration, Duration
from tests.expectations.conftest import Start


def shop() -> App:
    app = App("shop")
    app.topic("orders")

    @app.command("Order.Remind")
    async def remind(data: dict[str, Any], ctx: Context) -> None:
        await ctx.sleep(timedelta(milliseconds=10))
        await ctx.publish("reminders", data["order"], delay="20ms")

    @app.command("Order.Ask")
    async def ask(data: dict[str, Any], ctx: Context) -> int:
        return int(await ctx.send("query", "Stock.Count", {}, timeout="20s"))

    @app.query("Stock.Count")
    async def count(data: dict[str, Any], ctx: Context) -> int:
        return 3

    @app.consumer("orders", group="billing", backoff=timedelta(milliseconds=10), max_backoff=1)
    async def bill(event: Event[str]) -> None:
        if event.attempt == 1:
            event.nack("later", delay="10ms")
        else:
            event.publish("bills", await event.ask("query", "Stock.Count", {}, timeout=20))

    return app


@pytest.mark.parametrize("delay", [0.02, timedelta(milliseconds=20), "20ms"])
async def test_a_delay_is_seconds_a_timedelta_or_text(start: Start, delay: Duration) -> None:
    async with start(shop()) as node:
        assert await node.publish("orders", "o-1", delay=delay, timeout="20s") == 0  # it gets its offset later
        await node.comes("bills", 3)


async def test_handlers_and_clients_write_durations_alike(start: Start) -> None:
    async with start(shop()) as node:
        await node.command("Order.Remind", {"order": "o-1"}, timeout="20s")
        await node.comes("reminders", "o-1")
        assert await node.command("Order.Ask", timeout=timedelta(seconds=20)) == 3
        async with node.bus.subscribe("reminders", group="mailer") as events:
            event = await events.get(timeout="20s")
            assert await event.extend("1m")
            assert await event.nack(delay=0.01)
            assert (await events.get(timeout=timedelta(seconds=20))).attempt == 2


async def test_what_is_no_duration_is_refused_where_it_is_written(start: Start) -> None:
    app = shop()
    with pytest.raises(BadDuration, match="'soon' is not a duration"):
        app.every("soon")(lambda: None)
    async with start(app) as node:
        with pytest.raises(BadDuration, match="-1 is not a duration"):
            await node.publish("orders", "o-1", delay=-1)
