"""Mistakes a type checker must find: every line marked `# wrong:`, and no other. Never run."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring import App, Context, Effect, Event, Perform, RestartPolicy, Sleep, SyncClient, connect, resume
from mainspring.testing import simulate


@dataclass
class Order:
    id: str
    cents: int


class Charge(Effect[str]):
    cents: int


app = App("typed", restart=RestartPolicy(restarts=1))  # wrong: no such field
app.consumer(5)  # wrong: a topic is text
app.consumer("orders", from_="somewhere")  # wrong: beginning, latest or an offset
app.consumer("orders", max_tries=5)  # wrong: no such option
app.topic("orders", partitions="four")  # wrong: a number
app.command("Order.Place", isolation="thread")  # wrong: task or process
app.schema("orders", compatibility="forwards")  # wrong: not a compatibility
app.handles(Order)  # wrong: not an effect
app.every()  # wrong: how often?
app.cron(3)  # wrong: a line of text
app.run("checkout")  # wrong: a function


@app.command("Order.Place")
async def place(order: Order, ctx: Context) -> Order:
    ctx.emit(order)  # wrong: a type first
    ctx.send("command", "Order.Count").result()  # wrong: a coroutine must be awaited
    return order


@app.consumer("orders")
async def bill(event: Event[Order]) -> None:
    number: int = event.payload  # wrong: it is an Order
    event.payload.price  # wrong: an Order has none # noqa: B018
    event.offset.lower()  # wrong: a number
    event.nack(5)  # wrong: a reason is text
    print(number)


@app.run
async def checkout(order: Order, perform: Perform) -> int:
    receipt: str = await perform(Charge(order.cents))
    number: int = await perform(Charge(order.cents))  # wrong: this effect gives text
    await perform(Charge("1"))  # wrong: cents are a number
    await perform(order)  # wrong: not an effect
    await perform(Sleep(fortnights=1))  # wrong: no such unit
    print(receipt)
    return number


@app.handles(Charge)
def charge(effect: Charge) -> resume:
    return effect.cents  # wrong: resume(...) it


@app.task
async def send_mail(order: Order, urgent: bool = False) -> None: ...


async def use() -> None:
    await send_mail.enqueue("wrong")  # wrong: an Order
    await send_mail.enqueue(Order("a", 1), urgnt=True)  # wrong: misspelt
    text: str = await (await send_mail.enqueue(Order("a", 1))).result()  # wrong: it returns an int
    many: str = await (await send_mail.enqueue_many([(Order("a", 1),)]))[0].result()  # wrong: they return an int
    print(text, many)
    await send_mail.options(ttl_ms=5).enqueue(Order("a", 1))  # wrong: no such option
    await place("order", None)  # wrong: a decorated function keeps its signature


async def over_the_wire() -> None:
    async with connect(7070) as bus:  # wrong: an address
        await bus.publish(1, {})  # wrong: a topic is text
        await bus.publish("orders", {}, kye="a")  # wrong: misspelt
        bus.subscribe("orders")  # wrong: which group?
        async for event in bus.subscribe("orders", group="g", type=Order):
            event.payload.price  # wrong: an Order has none # noqa: B018
        for other in bus.subscribe("orders", group="g"):  # wrong: this one is async
            print(other)
    with SyncClient() as blocking:
        blocking.publish("orders", {}, kye="a")  # wrong: misspelt
        blocking.subscribe("orders", group="g", stiky=True)  # wrong: misspelt


async def check() -> None:
    async with simulate("shop:app") as world:  # wrong: an App
        world.events("orders")[0].ofset  # wrong: misspelt # noqa: B018
        await world.advance(None)  # wrong: how long?
        world.runs().state  # wrong: a list # noqa: B018
