"""An order service: taken, billed and shipped once, whatever crashes in between.

    python examples/order_service.py

    command Order.Place ──> topic orders ──> consumer bill ──> topic invoices ──> beats: sales ──> schedule report
                                                  └─────────> run ship ─────────> topic shipments

- Order.Place is a durable command: its answer and its event are one commit.
- `bill` acknowledges, invoices and starts the shipment in one commit. An order it cannot bill is tried again and then
  is a dead letter, which somebody repairs and sends again.
- `ship` is a durable run. When a later step fails, it undoes the earlier ones, also after a crash.
- Sales are summed up in beats, each invoice exactly once; a schedule reports them every morning.

The command above serves it on a node of its own, over HTTP, and stops that node in the middle of the work; a second
node goes on. `mainspring serve examples.order_service:app` serves it for longer, with a dashboard.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Annotated, Any, Literal

import aiohttp
import msgspec

from mainspring import App, Context, Effect, Event, Fail, Perform, Publish, Sleep, connect
from mainspring.client import Subscription
from mainspring.testing import serving

PRICES = {"tea": 450, "cup": 1200, "piano": 400_000}  # cents
PACKING_MS = 300

app = App("orders")
app.topic("orders", partitions=4, max_attempts=3)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


@app.schema("orders")
class Order(msgspec.Struct, frozen=True):
    id: Name
    customer: Name
    sku: Name
    pieces: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1

    @property
    def cents(self) -> int:
        return PRICES[self.sku] * self.pieces


@app.schema("invoices")
class Invoice(msgspec.Struct, frozen=True):
    order: str
    customer: str
    cents: int  # below zero: a credit note


@app.schema("shipments")
class Shipment(msgspec.Struct, frozen=True):
    order: str
    state: Literal["sent", "cancelled"]
    detail: str


class Placed(msgspec.Struct):
    id: str
    cents: int


# -- taking and billing


@app.command("Order.Place", durable=True)
async def place(order: Order, ctx: Context) -> Placed:
    """Take an order. The same order again is taken once."""
    if order.sku not in PRICES:
        raise Fail(404, f"we do not sell {order.sku}", remedy=f"we sell {', '.join(PRICES)}")
    await ctx.publish("orders", order, key=order.customer, id=f"order/{order.id}")
    return Placed(order.id, order.cents)


@app.consumer("orders", group="billing")
async def bill(event: Event[Order]) -> None:
    order = event.payload
    if order.customer not in outside.accounts:
        event.nack(f"{order.customer} has no account", delay="50ms")
        return
    event.publish("invoices", Invoice(order.id, order.customer, order.cents), key=order.customer)
    event.start_run(ship, order, id=f"ship-{order.id}")


# -- shipping


class Reserve(Effect[bool]):
    """Put goods aside; whether there were enough."""

    sku: str
    pieces: int


class Release(Effect[None]):
    """Put them back."""

    sku: str
    pieces: int


class Book(Effect[str | None]):
    """Book a carrier; the parcel's number, or None when nobody takes it."""

    order: str
    sku: str


@app.run
async def ship(order: Order, perform: Perform) -> str:
    """Send the goods, or undo what was done for them, last things first."""
    undo: list[Effect[Any]] = [Publish("invoices", Invoice(order.id, order.customer, -order.cents), key=order.customer)]
    failure = "sold out"
    if await perform(Reserve(order.sku, order.pieces)):
        undo.append(Release(order.sku, order.pieces))
        await perform(Sleep(ms=PACKING_MS))
        failure = "no carrier takes it"
        number = await perform(Book(order.id, order.sku))
        if number is not None:
            await perform(Publish("shipments", Shipment(order.id, "sent", number)))
            return "sent"
    for step in reversed(undo):
        await perform(step)
    await perform(Publish("shipments", Shipment(order.id, "cancelled", failure)))
    return "cancelled"


# The answer to an effect is stored after the handler has given it. A crash in between asks the handler again, with the
# same key; so whatever must not happen twice is told the key.


@app.handles(Reserve)
def reserve(effect: Reserve, ctx: Any) -> bool:
    return outside.take(ctx.key, effect.sku, effect.pieces)


@app.handles(Release)
def release(effect: Release, ctx: Any) -> None:
    outside.take(ctx.key, effect.sku, -effect.pieces)


@app.handles(Book)
def book(effect: Book, ctx: Any) -> str | None:
    return None if effect.sku == "piano" else f"parcel-{effect.order}"


class Outside:
    """What belongs to others and outlives our node: customers' accounts, and a warehouse that knows requests by key."""

    def __init__(self) -> None:
        self.accounts = {"ada", "ben"}
        self.shelf = {"tea": 10, "cup": 1, "piano": 1}
        self._asked: dict[str, bool] = {}

    def take(self, key: str, sku: str, pieces: int) -> bool:
        if key not in self._asked:
            self._asked[key] = self.shelf[sku] >= pieces
            self.shelf[sku] -= pieces if self._asked[key] else 0
        return self._asked[key]


outside = Outside()


# -- sales


app.beats_from("invoices")


@app.enzyme("/topics/invoices", match="prefix")
def sales(signal: str, target: str | None, stage: Any) -> None:
    invoice = stage.read(signal)["payload"]
    stage.add("/sales/cents", invoice["cents"])
    stage.add("/sales/orders", 1 if invoice["cents"] > 0 else -1)


@app.cron("0 6 * * *")
async def report(event: Event[Any]) -> None:
    """Every morning. Each report is stored together with the fact that this morning's is made."""
    found = {name: await event.ask("query", "Beat.Read", {"path": f"/sales/{name}"}) for name in ("orders", "cents")}
    event.publish("reports", {name: each["value"] or 0 for name, each in found.items()})


# -- a day at the shop, for real


async def send(shop: aiohttp.ClientSession, type: str, data: dict[str, Any], kind: str = "command") -> Any:
    """What `mainspring send` does, over HTTP."""
    async with shop.post("/messages", json={"kind": kind, "type": type, "data": data}) as answer:
        found = await answer.json()
        return found["data"] if answer.ok else found["detail"]


async def morning(shop: aiohttp.ClientSession) -> None:
    for order in (
        Order("o-1", "ada", "tea", 2),
        Order("o-1", "ada", "tea", 2),  # the network was slow, and somebody pressed the button again
        Order("o-2", "ben", "piano"),
        Order("o-3", "ben", "cup", 3),
        Order("o-4", "cyd", "tea"),
        Order("o-5", "ada", "lamp"),
        Order("o-6", "ada", "tea", 0),
    ):
        print(f"{order.id}: {await send(shop, 'Order.Place', msgspec.to_builtins(order))}")
    print("o-1 came twice and is one order: it will be billed and shipped once")


async def evening(shop: aiohttp.ClientSession, url: str) -> None:
    async with connect(url) as bus:
        shipments = bus.subscribe("shipments", group="desk", type=Shipment)
        for _ in ("o-1", "o-2", "o-3"):
            await tell(shipments)
        await bus.subscribe("orders.DLQ", group="desk").get()
        (letter,) = (await send(shop, "Bus.DeadLetters", {"topic": "orders"}, "query"))["letters"]
        print(f"dead letter: {letter['payload']['id']}, because {letter['reason']}")
        outside.accounts.add("cyd")
        print(f"sent again: {await send(shop, 'Bus.Redrive', {'topic': 'orders'})}")
        await tell(shipments)
        # A schedule's firing is an event like any other: this is what six o'clock does.
        await bus.publish("schedules.orders.report", {"schedule": "report"})
        print(f"report: {(await bus.subscribe('reports', group='desk').get()).payload}")


async def tell(shipments: Subscription[Shipment]) -> None:
    event = await shipments.get()
    print(f"shipment of {event.payload.order}: {event.payload.state}, {event.payload.detail}")
    await event.ack()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with serving(app, engine="sqlite", data=folder) as node, aiohttp.ClientSession(node.http) as shop:
            await morning(shop)
        print("the node stops, and another one starts")
        async with serving(app, engine="sqlite", data=folder) as node, aiohttp.ClientSession(node.http) as shop:
            await evening(shop, node.url)


if __name__ == "__main__":
    asyncio.run(main())
