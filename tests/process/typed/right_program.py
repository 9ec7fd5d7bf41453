"""A program as its author's type checkers see it: everything here is right. Checked by mypy and pyright, never run.

Both check strictly: the line below is for pyright.
"""

# pyright: strict

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import msgspec

from mainspring import (
    App,
    Ask,
    Blob,
    BlockingContext,
    BlockingEvent,
    Client,
    Context,
    Effect,
    EffectFailed,
    Event,
    Fail,
    MainspringError,
    Perform,
    Publish,
    RestartPolicy,
    Retry,
    Sleep,
    SyncClient,
    TaskContext,
    WaitEvent,
    WaitSignal,
    connect,
    resume,
)
from mainspring.beats import RETRY, Stage
from mainspring.client import Event as Received
from mainspring.client import NodeRefused, Place, StoredEvent, Subscription
from mainspring.client.sync_client import SyncEvent
from mainspring.runs import Runtime
from mainspring.tasks import BlockingTaskHandle, TaskHandle
from mainspring.testing import simulate


@dataclass
class Order:
    id: str
    cents: int


class Receipt(msgspec.Struct):
    order: str
    paid: int


@asynccontextmanager
async def life(app: App) -> AsyncGenerator[None, None]:
    app.state.database = object()
    yield


app = App("typed", restart=RestartPolicy(max_restarts=1), lifespan=life)
app.topic("orders", partitions=4, retention="7d")


# Messages


@app.command("Order.Place", durable=True)
async def place(order: Order, ctx: Context) -> Receipt:
    await ctx.publish("orders", order, key=order.id)
    ctx.emit("Order.Placed", {"id": order.id})
    ctx.after(2.5, "command", "Order.Remind", {"id": order.id})
    if order.cents < 0:
        raise Fail(422, "negative")
    return Receipt(order.id, order.cents)


@app.query("Order.Count", description="How many there are.")
def count(data: None, ctx: Context) -> int:
    return 1


@app.query("Order.Picture", isolation="process")
async def picture(data: dict[str, str], ctx: Context) -> Blob:
    return Blob(b"bytes")


@app.on("Order.Placed")
async def placed(data: dict[str, str], ctx: Context) -> None: ...


# Decorated functions stay what they are.
async def called_directly(order: Order, ctx: Context) -> None:
    assert_type(await place(order, ctx), Receipt)
    assert_type(count(None, ctx), int)


# Topics and schedules


@app.command("Order.Print")
def print_order(order: Order, ctx: BlockingContext) -> str:
    return f"{order.id} of {len(ctx.send('query', 'Order.List'))}"


@app.consumer("orders", group="printing")
def print_event(event: BlockingEvent[Order]) -> None:
    assert_type(event.payload, Order)
    event.ask("command", "Order.Print", event.payload)["pages"]


@app.consumer("orders", group="billing", max_attempts=3, concurrency=2, backoff="1s", from_="latest")
async def bill(event: Event[Order]) -> None:
    assert_type(event.payload, Order)
    assert_type(event.key, str | None)
    assert_type(event.attempt, int)
    run_id = event.start_run(checkout, event.payload)
    assert_type(run_id, str)
    event.publish("billed", {"id": event.payload.id, "run": run_id}, key=event.key)
    event.nack("later", delay="10m")


@app.every("5m")
async def often() -> None: ...


@app.cron("0 3 * * *", name="sweep")
def nightly(event: Event[None]) -> None: ...


@app.schema("orders", compatibility="full")
@dataclass
class Stored:
    id: str


assert_type(Stored("a"), Stored)


@app.upcaster("orders", 1)
def raised(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


# Runs


class Charge(Effect[Receipt]):
    cents: int


@app.handles(Charge, timeout="1s", give_up_on=ValueError)
async def charge(effect: Charge) -> resume:
    return resume(Receipt("o", effect.cents))


def send(order: Order) -> bytes:
    return order.id.encode()


async def look_up(id: str, *, deep: bool = False) -> int:
    return len(id)


@app.run
async def checkout(order: Order, perform: Perform) -> str:
    receipt = await perform(Charge(order.cents))
    assert_type(receipt, Receipt)
    assert_type(await perform.step(send, order, max_attempts=3, timeout="30s"), bytes)
    assert_type(await perform.step(look_up, order.id, deep=True), int)
    assert_type(await perform.version("fees"), int)
    try:
        await perform(Sleep("1h"))
    except EffectFailed as error:
        assert_type(error.type, str)
    await perform(Publish("receipts", receipt))
    await perform(Ask("Order.Count"))
    await perform(WaitSignal("paid"))
    await perform(WaitEvent("payments", {"id": "c-1"}))
    async with perform.group() as group:
        group.spawn(other)
    return receipt.order


@app.run(name="another")
async def other(perform: Perform) -> None: ...


# Tasks


@app.task(max_attempts=3)
async def send_mail(order: Order, urgent: bool = False) -> int:
    return order.cents


@app.task
def plain(n: int) -> int:
    return n


async def enqueue() -> None:
    handle = await send_mail.enqueue(Order("a", 1), urgent=True)
    assert_type(handle, TaskHandle[int])
    assert_type(handle.id, str)
    assert_type(await handle.result(timeout="5s"), int)
    assert_type(await handle, int)
    assert_type(await handle.state(), str)
    assert_type(await (await plain.enqueue(1)).result(), int)
    assert_type(await send_mail.handle(handle.id).result(), int)
    await send_mail.options(delay="1h", priority="low").enqueue(Order("b", plain(1)))
    assert_type(await send_mail(Order("a", 1)), int)
    handles = await send_mail.enqueue_many([(Order("a", 1),), (Order("b", 2), True)])
    assert_type(handles, list[TaskHandle[int]])
    assert_type(await handles[0].result(), int)
    assert_type((await plain.options(delay="1h").enqueue_many([(1,)]))[0], TaskHandle[int])


def enqueue_in_a_plain_function() -> None:
    handle = send_mail.enqueue(Order("a", 1))
    assert_type(handle, BlockingTaskHandle[int])
    assert_type(handle.result(timeout="5s"), int)
    assert_type(plain.options(priority="high").enqueue(1).result(), int)
    assert_type([each.result() for each in plain.enqueue_many([(1,), (2,)])], list[int])


# Beats and hooks


@app.enzyme("/topics/orders", match="prefix")
def tally(signal: str, target: str | None, stage: Stage) -> object:
    stage.write("/orders", 1)
    return RETRY


@app.on_start
async def begin() -> None: ...


@app.on_stop
def finish(app: App) -> None: ...


# Clients


async def print_received(event: Received[Order]) -> None: ...


def by_hand() -> None:
    runtime = Runtime()
    runtime.handle(Charge, lambda effect, ctx: resume(f"{effect.cents} of {ctx.run_id}"))
    runtime.handle(Charge, lambda effect: effect.cents, max_attempts=3)


async def over_the_wire() -> None:
    async with connect("ws://127.0.0.1:7070", "token") as bus:
        assert_type(bus, Client)
        offset = await bus.publish("orders", {"sku": 1}, key="c-17", delay=2.5)
        assert_type(offset, Place)
        plain_number: int = offset
        assert_type(await bus.publish_many("orders", [1, 2, 3]), int)
        subscription = bus.subscribe("orders", group="billing", type=Order, from_=timedelta(hours=1))
        assert_type(subscription, Subscription[Order])
        async for event in subscription:
            assert_type(event, Received[Order])
            assert_type(event.payload, Order)
            await event.nack(delay=plain_number, reason="later")
        async for untyped in bus.subscribe("orders", group="billing"):
            assert_type(untyped.payload, Any)
        assert_type(await bus.command("Order.Place", {"id": "a"}, retry=Retry(3), reply=Receipt), Receipt)
        assert_type(await bus.query("Order.Count", reply=int), int)
        async for old in bus.replay("orders", type=Order):
            assert_type(old.payload, Order)
        async for new in bus.follow("orders", type=Order):
            assert_type(new, StoredEvent[Order])
        async for known in app.follow("orders", type=Order):
            assert_type(known.payload, Order)
        async with bus.consume("orders", print_received, group="printing") as consumer:
            assert_type(consumer.failures, int)
        try:
            await bus.put_topic("orders", partitions=8)
            assert_type(await bus.purge_topic("orders"), int)
            await bus.delete_topic("orders")
        except NodeRefused as refused:
            assert_type(refused.code, str)


def without_a_loop() -> None:
    with SyncClient() as bus:
        assert_type(bus.publish("orders", {"sku": 1}, key="c-17"), Place)
        for event in bus.subscribe("orders", group="billing", type=Order, max_inflight=1):
            assert_type(event, SyncEvent[Order])
            assert_type(event.payload.cents, int)
            assert_type(event.ack(), bool)
        assert_type(bus.lag("orders", "billing"), int)
        for stored in bus.replay("orders", since=timedelta(days=1)):
            assert_type(stored.offset, int)
        for followed in bus.follow("orders", type=Order):
            assert_type(followed.payload, Order)


@app.task(rate="10/s", timeout="30s", retry_on=OSError)
async def deliver(address: str) -> int:
    return TaskContext.current().attempt


@app.run
async def deliver_all(addresses: list[str], perform: Perform) -> int:
    started = [await perform.enqueue(deliver, address) for address in addresses]
    attempts = [await each.result() for each in started]
    assert_type(attempts, list[int])
    assert_type(await perform.task(plain, 3), int)
    return sum(attempts)


# Tests


async def check() -> None:
    async with simulate(app, seed=1) as world:
        await world.advance("1h")
        first = world.events("orders")[0]
        assert_type(first.offset, int)
        assert_type([run.state for run in world.runs()], list[str])
        await world.crash_and_restart(down="1m")
        assert_type(await world.command("Order.Place", {"id": "a"}), Any)
        try:
            await world.until(lambda: world.lag("orders", "billing") == 0, within="1m")
        except MainspringError as error:
            assert_type((error.code, error.remedy), tuple[str, str])
