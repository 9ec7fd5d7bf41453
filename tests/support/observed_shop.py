"""A program with something of every part, in which one command leads through all of them."""

from __future__ import annotations

import logging
from typing import Any

from mainspring import App, Effect, Event, Fail, Publish, Sleep
from mainspring.kernel import RestartPolicy

logger = logging.getLogger("shop")


class Charge(Effect[int]):
    """Ask the bank; the handler waits."""

    cents: int


class Weigh(Effect[int]):
    """Look at the scales; the handler answers at once."""

    cents: int


def make_shop() -> App:
    """A new one for each test: a program can be served once at a time."""
    app = App("shop", restart=RestartPolicy(max_restarts=3, backoff_ms=1))

    @app.command("Order.Place")
    async def place(data: dict[str, int], ctx: Any) -> dict[str, str]:
        logger.info("place")
        if data["cents"] < 0:
            raise Fail(422, "an order costs something")
        await ctx.publish("orders", data)
        ctx.emit("Order.Placed", data)
        await ctx.send("query", "Stock.Count", data)
        return {}

    @app.query("Stock.Count")
    def count(data: dict[str, int], ctx: Any) -> int:
        logger.info("count")
        if data["cents"] == 13:
            raise ValueError("unlucky")
        return 1

    @app.on("Order.Placed")
    async def hear(data: Any, ctx: Any) -> None:
        logger.info("hear")

    @app.command("Mail.Write")
    async def write(data: Any, ctx: Any) -> None:
        await post.enqueue(data)

    @app.consumer("orders", max_attempts=1)
    async def bill(event: Event[dict[str, int]]) -> None:
        logger.info("bill")
        if event.payload["cents"] == 0:
            raise ValueError("nothing to pay")
        event.start_run(checkout, event.payload["cents"])
        event.publish("bills", event.payload)

    @app.handles(Charge)
    async def charge(effect: Charge) -> int:
        logger.info("charge")
        return effect.cents

    @app.handles(Weigh)
    def weigh(effect: Weigh) -> int:
        logger.info("weigh")
        return effect.cents

    @app.run
    async def checkout(cents: int, perform: Any) -> int:
        logger.info("checkout")
        paid: int = await perform(Charge(cents))
        await perform(Weigh(paid))
        await perform(Sleep(seconds=1))
        await perform(Publish("parcels", {"cents": paid}))
        logger.info("checked out")
        return paid

    @app.enzyme("/topics/parcels", match="prefix")
    def pack(signal: str, target: Any, stage: Any) -> None:
        logger.info("pack")
        stage.write("/packed", stage.read(signal)["payload"])
        stage.signal("/signals/packed")

    @app.enzyme("/signals/packed")
    async def ship(signal: str, target: Any, stage: Any) -> None:
        logger.info("ship")

    @app.enzyme("/signals/drop")
    def drop(signal: str, target: Any, stage: Any) -> None:
        logger.info("drop")
        raise ValueError("butter fingers")

    app.beats_from("parcels")

    @app.task
    async def post(data: Any) -> None:
        logger.info("post")

    @app.every("1h", name="sweep")
    async def sweep() -> None:
        logger.info("sweep")

    return app
