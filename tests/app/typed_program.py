"""A program as its author's type checker sees it; checked by mypy in strict mode, never run.

Each `type: ignore` is a mistake that must be found: one that is not needed is an error of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mainspring import App, Ask, Context, Effect, Event, Fail, Perform, Publish, RestartPolicy, Sleep, resume
from mainspring.testing import simulate


@dataclass
class Order:
    id: str
    cents: int


@asynccontextmanager
async def life(app: App) -> AsyncIterator[None]:
    app.state.database = object()
    yield


app = App("typed", restart=RestartPolicy(max_restarts=1), lifespan=life)


@app.command("Order.Place", durable=True)
async def place(order: Order, ctx: Context) -> Order:
    await ctx.publish("orders", order, key=order.id)
    ctx.emit("Order.Placed", {"id": order.id})
    if order.cents < 0:
        raise Fail(422, "negative")
    return order


@app.query("Order.Count")
def count(data: None, ctx: Context) -> int:
    return 1


@app.on("Order.Placed")
async def placed(data: dict[str, str], ctx: Context) -> None: ...


@app.consumer("orders", group="billing", max_attempts=3, concurrency=2, backoff="1s", from_="latest")
async def bill(event: Event[Order]) -> None:
    order: Order = event.payload
    wrong: int = event.payload  # type: ignore[assignment]
    event.payload.price  # type: ignore[attr-defined] # noqa: B018
    run_id: str = event.start_run(checkout, order)
    event.publish("billed", {"id": order.id, "run": run_id, "wrong": wrong}, key=event.key)
    event.nack("later", delay="10m")


class Charge(Effect[str]):
    cents: int


@app.handles(Charge, timeout_ms=1_000)
async def charge(effect: Charge) -> resume:
    return resume(f"{effect.cents}")


@app.run
async def checkout(order: Order, perform: Perform) -> str:
    receipt: str = await perform(Charge(order.cents))
    wrong: int = await perform(Charge(order.cents))  # type: ignore[arg-type]
    await perform(Sleep(hours=1))
    await perform(Publish("receipts", receipt))
    await perform(Ask("Order.Count"))
    return f"{receipt} {wrong}"


@app.run(name="another")
async def other(perform: Perform) -> None: ...


@app.task(max_attempts=3)
async def send_mail(order: Order, urgent: bool = False) -> None: ...


@app.task
def plain(n: int) -> int:
    return n


async def enqueue() -> None:
    ident: str = await send_mail.enqueue(Order("a", 1), urgent=True)
    await send_mail.enqueue("wrong")  # type: ignore[arg-type]
    await send_mail.enqueue_in("1h", Order(ident, plain(1)))


@app.every("5m")
async def often() -> None: ...


@app.cron("0 3 * * *")
def nightly() -> None: ...


@app.on_start
async def begin() -> None: ...


@app.on_stop
def end(app: App) -> None: ...


@app.enzyme("/topics/orders", match="prefix")
def tally(signal: str, target: str | None, stage: Any) -> None: ...


app.consumer(5)  # type: ignore[arg-type]
app.consumer("orders", from_="somewhere")  # type: ignore[arg-type]


async def check() -> None:
    async with simulate(app, seed=1) as world:
        await world.advance("1h")
        first = world.events("orders")[0]
        offset: int = first.offset
        states: list[str] = [run.state for run in world.runs()]
        await world.crash_and_restart(down="1m")
        print(offset, states, await world.command("Order.Place", {"id": "a"}))
