"""What a user of FastAPI, Celery or Django expects of plain `def`: it may block, wherever it is declared."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

from mainspring import App, Context, Effect, Event
from mainspring.app import HandlerCall, Next
from mainspring.runs import EffectContext
from tests.expectations.conftest import Start

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Charge(Effect[str]):
    cents: int


def shop(threads: list[str]) -> App:
    """Everything here is a plain function, and notes the thread in which it runs."""
    app = App("shop")

    def note(what: str) -> None:
        in_thread = threading.current_thread().name.startswith("mainspring-handler-")
        threads.append(what if in_thread else f"{what} on the loop")

    @app.on_start
    def open_database() -> None:
        note("start")

    @app.on_stop
    def close_database() -> None:
        note("stop")

    @app.query("Price.Get")
    def price(data: str, ctx: Context) -> int:
        note("query")
        ctx.sleep(0.001)
        return len(data) * 100

    @app.command("Order.Place")
    def place(data: str, ctx: Context) -> dict[str, Any]:
        note("command")
        cents = ctx.send("query", "Price.Get", data)
        published = ctx.publish("orders", {"sku": data, "cents": cents})
        ctx.emit("Order.Placed", data)
        return {"cents": cents, "topic": published.topic}

    @app.on("Order.Placed")
    def placed(data: str, ctx: Context) -> None:
        note("listener")
        ctx.publish("placed", data)

    @app.consumer("orders")
    def bill(event: Event[dict[str, Any]]) -> None:
        note("consumer")
        known = event.ask("query", "Price.Get", event.payload["sku"])
        event.publish("bills", known)
        event.start_run(checkout, known, id=f"checkout-{event.payload['sku']}")
        thank.enqueue(event.payload["sku"])  # type: ignore[unused-coroutine]

    @app.task
    def thank(sku: str) -> None:
        note("task")
        done.append(f"thanked for {sku}")

    @app.handles(Charge)
    def charge(effect: Charge, ctx: EffectContext) -> str:
        note("effect")
        ctx.remember({"cents": effect.cents})
        return f"{ctx.key}: {effect.cents}"

    @app.run
    async def checkout(cents: int, perform: Any) -> str:
        return str(await perform(Charge(cents)))

    @app.every("50ms")
    def tidy() -> None:
        note("schedule")
        done.append("tidied")

    done: list[str] = []
    app.state.done = done
    return app


async def test_plain_functions_run_in_threads_and_what_they_call_gives_its_result(start: Start) -> None:
    threads: list[str] = []
    app = shop(threads)
    async with start(app) as node:
        assert await node.command("Order.Place", "pen") == {"cents": 300, "topic": "orders"}
        await node.comes("bills", 300)
        await node.comes("placed", "pen")
        assert (await node.outcome("checkout-pen")).value == "checkout-pen#00000000: 300"
        await node.until(lambda: {"thanked for pen", "tidied"} <= set(app.state.done))
    everything = ["start", "command", "query", "listener", "consumer", "task", "effect", "schedule", "stop"]
    assert set(threads) == set(everything)


async def test_a_plain_function_that_raises_fails_like_any_other(start: Start) -> None:
    app, attempts = App("shop"), list[int]()

    @app.consumer("orders", group="billing", backoff="10ms")
    def bill(event: Event[str]) -> None:
        attempts.append(event.attempt)
        event.publish("bills", event.payload)
        if event.attempt < 3:
            raise OSError("the bank is closed")

    async with start(app) as node:
        await node.publish("orders", "o-1")
        assert await node.comes("bills", "o-1") == ["o-1"]
        assert attempts == [1, 2, 3]


async def test_context_variables_travel_along_and_stay_with_their_call(start: Start) -> None:
    app = App("shop")

    @app.middleware
    async def for_whom(call: HandlerCall, next: Next) -> Any:
        tenant.set(f"customer of {call.name}")
        return await next(call)

    def whose() -> str:
        return tenant.get()

    @app.command("Order.Place")
    def place(data: None, ctx: Context) -> list[Any]:
        before = tenant.get()
        tenant.set("changed")
        return [before, ctx.send("query", "Order.Whose"), tenant.get()]

    @app.query("Order.Whose")
    def get(data: None, ctx: Context) -> str:
        return tenant.get()  # another call, with a context of its own

    @app.consumer("orders", group="billing")
    def bill(event: Event[None]) -> None:
        event.publish("bills", tenant.get())

    @app.task
    def thank() -> str:
        return tenant.get()

    @app.run
    async def checkout(perform: Any) -> str:
        return str(await perform.step(whose))

    async with start(app) as node:
        for _ in range(2):
            answer = await node.command("Order.Place")
            assert answer == ["customer of Order.Place", "customer of Order.Whose", "changed"]
        await node.publish("orders", None)
        await node.comes("bills", "customer of billing")
        assert await (await thank.enqueue()).result() == "customer of thank"
        assert (await node.outcome(await node.start_run("checkout"))).value == "customer of whose"
    assert tenant.get() == "nobody"


async def test_many_plain_functions_that_wait_for_each_other_do_not_use_up_the_threads(start: Start) -> None:
    app = App("shop")

    @app.query("Deep.Ask")
    def ask(data: int, ctx: Context) -> int:
        return 1 + int(ctx.send("query", "Deep.Ask", data - 1)) if data else 0

    async with start(app, handler_threads=2) as node:
        assert await node.query("Deep.Ask", 20) == 20
