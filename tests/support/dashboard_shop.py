"""A small shop, for looking at a node that does something: commands, events, durable runs, beats, and a weak actor."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from mainspring import App, Fail, RestartPolicy
from mainspring.runs import Effect, Sleep, WaitSignal

app = App("shop")


class Order(msgspec.Struct):
    """An order of one customer."""

    id: str
    customer: str
    total: int


class Placed(msgspec.Struct):
    """What is answered to an order."""

    id: str
    state: str


class Sku(msgspec.Struct):
    """One article."""

    sku: str


@app.command("Order.Place", description="Take an order, reserve its goods, and tell the warehouse.")
async def place(order: Order, ctx: Any) -> Placed:
    if order.total <= 0:
        raise Fail(422, "an order costs something", remedy="give a total above 0")
    await ctx.send("command", "Stock.Reserve", {"sku": order.id})
    await ctx.publish("orders", {"id": order.id, "total": order.total}, key=order.customer)
    ctx.emit("Order.Placed", {"id": order.id})
    return Placed(order.id, "placed")


@app.command("Stock.Reserve", description="Put goods aside.")
async def reserve(data: Sku, ctx: Any) -> dict[str, str]:
    ctx.emit("Stock.Changed", {"sku": data.sku})
    return {"sku": data.sku}


@app.query("Stock.Count", description="How many of an article there are.")
async def stock(data: Sku, ctx: Any) -> int:
    return len(data.sku)


@app.on("Order.Placed")
async def noticed(data: Any, ctx: Any) -> None:
    """The warehouse hears of orders."""


@app.command("Label.Print", description="Print a label; the printer is old.", restart=RestartPolicy())
async def label(data: Sku, ctx: Any) -> None:
    raise RuntimeError("the printer is out of paper")


@app.command("Scale.Weigh", description="Weigh a parcel.", restart=RestartPolicy(max_restarts=0))
async def weigh(data: Sku, ctx: Any) -> int:
    if data.sku == "elephant":
        raise OverflowError("the scale is broken")
    return 1


@app.query("Report.Build", description="Count everything; takes its time.")
async def report(data: Sku, ctx: Any) -> str:
    await ctx.sleep(3600)
    return "done"


class Charge(Effect[str]):
    """Take money."""

    card: str
    amount: int


class Ship(Effect[dict[str, Any]]):
    """Send goods."""

    order: str


@app.handles(Charge)
async def charge(effect: Charge, ctx: Any) -> str:
    if effect.card == "expired":
        raise Fail(402, "the card has expired")
    return f"receipt for {effect.amount}"


@app.handles(Ship)
async def ship(effect: Ship, ctx: Any) -> dict[str, Any]:
    return {"carrier": "post", "order": effect.order, "parcels": [{"weight_g": 420}, {"weight_g": 1310}]}


@app.run(name="checkout")
async def checkout(order: dict[str, Any], perform: Any) -> dict[str, Any]:
    receipt = await perform(Charge(order["card"], order["total"]))
    await perform(Sleep(ms=order.get("wait_ms", 60)))
    parcel = await perform(Ship(order["id"]))
    await perform(Sleep(ms=order.get("wait_ms", 60)))
    return {"receipt": receipt, "parcel": parcel}


@app.run(name="approval")
async def approval(perform: Any) -> Any:
    await perform(Charge("valid", 1))
    return await perform(WaitSignal("approved"))


@app.run(name="year_end")
async def year_end(perform: Any) -> str:
    time.sleep(0.4)  # noqa: ASYNC251 (a program with a mistake: everybody waits)
    return str(await perform(Charge("valid", 1)))


@app.enzyme("/signals/image/thumbnail", name="resize")
def resize(signal: str, target: str, stage: Any) -> None:
    stage.write(f"/thumbnails{target}", {"of": target, "width": 320, "height": 180})
    stage.signal("/signals/index/update", target)


@app.enzyme("/signals/index/update", name="index")
def index(signal: str, target: str, stage: Any) -> None:
    known = stage.read("/index") or []
    stage.write("/index", [*known, target][-5:])


app.bind("/photos", "resize")
app.bind("/photos", "index")
