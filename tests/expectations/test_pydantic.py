"""What a FastAPI user expects of Pydantic models: they stand wherever a type may stand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from mainspring import App, Context, Event, Fail
from mainspring.runs import Effect, EffectContext, Perform
from tests.expectations.conftest import Start


class Line(BaseModel):
    sku: str
    count: int = Field(gt=0)

    @field_validator("sku")
    @classmethod
    def is_lower(cls, sku: str) -> str:
        if sku != sku.lower():
            raise ValueError("a sku is lower case")
        return sku


class Order(BaseModel):
    lines: list[Line]
    ship_on: date | None = Field(default=None, alias="shipOn")


class Receipt(BaseModel):
    total: int
    ship_on: date | None = None


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"


Payment = Annotated[Card | Cash, Field(discriminator="kind")]


@dataclass
class Basket:
    order: Order
    name: str


class Price(Effect[Receipt]):
    order: Order


PEN = {"lines": [{"sku": "pen", "count": 2}], "shipOn": "2026-11-17"}


def count(order: Order) -> Receipt:
    return Receipt(total=sum(line.count for line in order.lines), ship_on=order.ship_on)


def shop() -> App:
    app = App("shop")

    @app.command("Order.Place")
    async def place(data: Order, ctx: Context) -> Receipt:
        await ctx.publish("orders", data)
        return count(data)

    @app.query("Order.Count")
    def counted(data: list[Line], ctx: Context) -> dict[str, Any]:
        return {"lines": data}

    @app.command("Order.Pay")
    async def pay(data: Payment, ctx: Context) -> str:
        return type(data).__name__

    @app.command("Basket.Check")
    async def check(data: Basket, ctx: Context) -> int:
        return count(data.order).total

    @app.query("Order.Broken")
    async def broken(data: dict[str, Any], ctx: Context) -> Receipt:
        return Receipt.model_construct(total="many")  # type: ignore[arg-type]

    @app.consumer("orders", max_attempts=1)
    async def confirm(event: Event[Order]) -> None:
        event.publish("confirmed", count(event.payload))

    @app.run
    async def checkout(order: Order, perform: Perform) -> Receipt:
        assert isinstance(order, Order)
        priced = await perform(Price(order))
        assert isinstance(priced, Receipt)
        return await perform.step(count, order)

    @app.handles(Price)
    def price(effect: Price, ctx: EffectContext) -> Receipt:
        return count(effect.order)

    return app


async def test_a_command_takes_and_gives_models(start: Start) -> None:
    async with start(shop()) as node:
        assert await node.command("Order.Place", PEN) == {"total": 2, "ship_on": "2026-11-17"}
        assert await node.command("Order.Place", Order.model_validate(PEN), reply=Receipt) == Receipt(
            total=2, ship_on=date(2026, 11, 17)
        )
        assert await node.query("Order.Count", PEN["lines"]) == {"lines": PEN["lines"]}
        assert await node.command("Order.Pay", {"kind": "cash"}) == "Cash"
        assert await node.command("Basket.Check", {"order": PEN, "name": "first"}) == 2


@pytest.mark.parametrize(
    ("type", "data", "text"),
    [
        ("Order.Place", {"lines": [{"sku": "pen", "count": 0}]}, "Input should be greater than 0 at $.lines[0].count"),
        ("Order.Place", {"lines": [{"sku": "Pen", "count": 1}]}, "a sku is lower case at $.lines[0].sku"),
        ("Order.Place", {}, "Field required at $.lines"),
        ("Order.Place", {"lines": [{}]}, "Field required (and 1 more) at $.lines[0].sku"),
        ("Order.Pay", {"kind": "secret"}, "Input tag should be one of 'card', 'cash'"),
        ("Basket.Check", {"order": {"lines": 1}, "name": ""}, "Input should be a valid array in lines at $.order"),
    ],
)
async def test_data_that_does_not_fit_is_422_with_the_place(
    start: Start, type: str, data: dict[str, Any], text: str
) -> None:
    async with start(shop()) as node:
        with pytest.raises(Fail) as refused:
            await node.command(type, data)
        assert refused.value.code == 422
        assert text in refused.value.message
        assert "secret" not in refused.value.message


async def test_a_reply_that_does_not_fit_is_the_handlers_fault(start: Start) -> None:
    async with start(shop()) as node:
        with pytest.raises(Fail) as refused:
            await node.query("Order.Broken", {})
        assert refused.value.code == 500


async def test_a_consumer_gets_models_and_publishes_them(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish("orders", Order.model_validate(PEN))
        await node.comes("confirmed", {"total": 2, "ship_on": "2026-11-17"})


async def test_an_event_that_does_not_fit_is_a_dead_letter_that_says_why(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish("orders", {"lines": [{"sku": "pen", "count": 0}]})
        letters = await node.until(lambda: node.dead_letters("orders"))
        assert letters[0]["reason"] == ("the payload does not fit: Input should be greater than 0 at $.lines[0].count")


async def test_a_run_keeps_models_in_its_journal(start: Start) -> None:
    async with start(shop) as node:
        run = await node.start_run("checkout", PEN)
        assert (await node.outcome(run)).value == {"total": 2, "ship_on": "2026-11-17"}


async def test_a_subscriber_reads_models(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish("orders", Order.model_validate(PEN))
        async with node.bus.subscribe("orders", group="reader", type=Order) as subscription:
            async for event in subscription:
                assert event.payload == Order.model_validate(PEN)
                await event.ack()
                break


async def test_a_schema_refuses_what_the_model_refuses_and_is_described(start: Start) -> None:
    app = App("shop")
    app.schema("lines")(Line)

    @app.command("Line.Add")
    async def add(data: Line, ctx: Context) -> Order:
        return Order(lines=[data])

    async with start(app) as node:
        await node.publish("lines", {"sku": "pen", "count": 1})
        with pytest.raises(Exception, match="count"):
            await node.publish("lines", {"sku": "pen", "count": 0})
        told = await node.query("Syscall.Describe", {"name": "Line.Add"})
        assert "exclusiveMinimum" in str(told)
        assert "'$defs': {'Line'" in str(told)


async def test_a_task_gets_models(start: Start) -> None:
    app = App("shop")
    done: list[Order] = []

    @app.task
    async def pack(order: Order) -> None:
        done.append(order)

    async with start(app) as node:
        await node.enqueue(pack, Order.model_validate(PEN))
        await node.until(lambda: done)
    assert done == [Order.model_validate(PEN)]


def test_programs_without_models_do_not_import_pydantic() -> None:
    code = "import mainspring, mainspring.testing, mainspring.client, sys; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
