"""What a FastAPI, Celery or Temporal user expects of middleware: one place for timing, logging, sessions, errors."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

from mainspring import App, Context, Event, Fail
from mainspring.app import HandlerCall, Next
from mainspring.kernel import CapabilityError
from mainspring.runs import Effect, EffectContext, Perform
from tests.expectations.conftest import Start

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Charge(Effect[str]):
    cents: int


def pack(sku: str) -> str:
    return f"packed {sku} for {tenant.get()}"


def shop() -> tuple[App, list[str]]:
    """An app with a handler of each kind, and what its middleware saw."""
    app, seen = App("shop"), []
    failures = {"orders": 1}

    @app.middleware
    async def watch(call: HandlerCall, next: Next) -> Any:
        token = tenant.set("ada")
        try:
            result = await next(call)
        except Exception as error:
            seen.append(f"{call.kind} {call.name} {call.attempt}: {type(error).__name__}")
            raise
        finally:
            tenant.reset(token)
        seen.append(f"{call.kind} {call.name} {call.attempt}: {result}")
        return result

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Context) -> str:
        if not data:
            raise Fail(409, "nothing to place")
        return tenant.get()

    @app.query("Order.Owner")
    def owner(data: dict[str, Any], ctx: Context) -> str:
        return tenant.get()

    @app.on("Order.Placed")
    async def placed(data: Any, ctx: Context) -> None: ...

    @app.command("Order.Tell")
    async def tell(data: Any, ctx: Context) -> None:
        ctx.emit("Order.Placed")

    @app.consumer("orders", group="billing", backoff="10ms")
    def bill(event: Event[Any]) -> None:
        if failures["orders"]:
            failures["orders"] -= 1
            raise KeyError("sku")
        event.publish("billed", tenant.get())

    @app.every("50ms", name="nightly")
    async def nightly() -> None: ...

    @app.task
    def send(to: str) -> str:
        return f"{to} by {tenant.get()}"

    @app.run
    async def checkout(perform: Perform) -> list[str]:
        return [await perform(Charge(5)), await perform.step(pack, "pen")]

    @app.handles(Charge)
    def charge(effect: Charge, ctx: EffectContext) -> str:
        return f"{effect.cents} from {tenant.get()}"

    return app, seen


async def test_it_surrounds_commands_queries_and_events(start: Start) -> None:
    app, seen = shop()
    async with start(app) as node:
        assert await node.command("Order.Place", {"sku": "pen"}) == "ada"
        assert await node.query("Order.Owner", {}) == "ada"
        with pytest.raises(Fail, match="nothing to place"):
            await node.command("Order.Place", {})
        await node.command("Order.Tell")
        await node.until(lambda: "event Order.Placed 1: None" in seen)
    assert "command Order.Place 1: ada" in seen
    assert "query Order.Owner 1: ada" in seen
    assert "command Order.Place 1: Fail" in seen


async def test_it_surrounds_each_attempt_of_a_consumer(start: Start) -> None:
    app, seen = shop()
    async with start(app) as node:
        await node.publish("orders", {"sku": "pen"})
        await node.comes("billed", "ada")
    found = [each for each in seen if each.startswith("consumer")]
    assert found == ["consumer billing 1: KeyError", "consumer billing 2: None"]


async def test_it_surrounds_each_batch_once_and_what_it_raises_refuses_all_of_it(start: Start) -> None:
    app, seen = App("shop"), []

    @app.middleware
    async def watch(call: HandlerCall, next: Next) -> Any:
        seen.append((call.kind, call.name, [event.payload for event in call.value], call.attempt))
        if call.attempt == 1:
            raise ConnectionError("not now")
        token = tenant.set("ada")
        try:
            return await next(call)
        finally:
            tenant.reset(token)

    @app.consumer("parcels", group="store", batch=2, wait="1m", backoff=0)
    def store(events: list[Event[int]]) -> None:
        for event in events:
            event.publish("stored", f"{event.payload} {event.attempt} {tenant.get()}")

    async with start(app) as node:
        await node.publish_many("parcels", [1, 2])
        await node.comes("stored", "1 2 ada", "2 2 ada")
    assert seen == [("consumer", "store", [1, 2], 1), ("consumer", "store", [1, 2], 2)]


async def test_it_surrounds_schedules_and_tasks(start: Start) -> None:
    app, seen = shop()
    async with start(app) as node:
        task = next(iter(app.tasks))
        await node.enqueue(task, "eve")
        await node.until(lambda: "task send 1: eve by ada" in seen)
        await node.until(lambda: "schedule nightly 1: None" in seen)


async def test_it_surrounds_effects_and_steps_of_runs(start: Start) -> None:
    app, seen = shop()
    async with start(app) as node:
        run = await node.start_run("checkout")
        assert (await node.outcome(run)).value == ["5 from ada", "packed pen for ada"]
    assert "effect Charge 1: 5 from ada" in seen
    assert "step pack 1: packed pen for ada" in seen


async def test_the_first_declared_is_the_outermost_and_any_may_answer(start: Start) -> None:
    app, seen = App("shop"), []

    @app.middleware
    async def outer(call: HandlerCall, next: Next) -> Any:
        seen.append("outer")
        return f"<{await next(call)}>"

    @app.middleware
    async def cache(call: HandlerCall, next: Next) -> Any:
        seen.append("cache")
        return "cached" if call.value.get("cached") else await next(call)

    @app.query("Price.Of")
    async def price(data: dict[str, Any], ctx: Context) -> str:
        seen.append("handler")
        return "5"

    async with start(app) as node:
        assert await node.query("Price.Of", {"cached": False}) == "<5>"
        assert await node.query("Price.Of", {"cached": True}) == "<cached>"
    assert seen == ["outer", "cache", "handler", "outer", "cache"]


def test_middleware_that_cannot_surround_anything_is_refused() -> None:
    def plain(call: HandlerCall, next: Next) -> Any: ...
    async def short(call: HandlerCall) -> Any: ...

    for function in (plain, short):
        with pytest.raises(CapabilityError, match="async function of a call and the next one"):
            App("shop").middleware(function)  # type: ignore[type-var]
