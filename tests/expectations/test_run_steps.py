"""What a user of DBOS or Temporal expects of steps: ordinary functions, once per success, with attempts."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import App, EffectFailed, Perform, WaitSignal
from mainspring.runs import idempotency_key
from mainspring.testing import simulate
from tests.expectations.conftest import Start


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Receipt:
    order: Order
    key: str
    in_thread: bool


tried: list[str] = []


def charge(order: Order) -> Receipt:
    """Blocks, as the driver of a database does."""
    time.sleep(0)
    return Receipt(order, idempotency_key(), threading.current_thread() is not threading.main_thread())


async def ship(receipt: Receipt, carrier: str = "post") -> str:
    await asyncio.sleep(0)
    return f"{receipt.order.id} by {carrier}"


def shop() -> App:
    app = App("shop")

    @app.run
    async def checkout(order: Order, perform: Perform) -> list[Any]:
        receipt = await perform.step(charge, order)
        sent = await perform.step(ship, receipt, carrier="drone")
        return [type(receipt).__name__, receipt.order.cents, receipt.key, receipt.in_thread, sent]

    @app.run
    async def unsteady(perform: Perform) -> list[Any]:
        async def flaky() -> str:
            await app.publish("tries", "flaky")
            if len(tried) < 2:
                tried.append("flaky")
                raise ConnectionError("away")
            return "at last"

        async def slow() -> None:
            await app.publish("tries", "slow")
            await asyncio.Event().wait()

        async def wrong() -> None:
            await app.publish("tries", "wrong")
            raise ValueError("never right")

        seen = [await perform.step(flaky, max_attempts=3, backoff="10ms")]
        for function in (slow, wrong):
            try:
                await perform.step(function, max_attempts=2, timeout="20ms", backoff="10ms", retry_on=(OSError,))
            except EffectFailed as error:
                seen.append(str(error))
        return seen

    @app.run
    async def once(perform: Perform) -> str:
        async def charged() -> str:
            await app.publish("charges", "o-1")
            return "paid"

        paid = await perform.step(charged)
        await perform(WaitSignal("go on"))
        return paid

    return app


async def test_a_step_is_a_function_with_typed_arguments_and_result(start: Start) -> None:
    async with start(shop()) as node:
        run = await node.start_run("checkout", Order("o-1", 900), id="c-1")
        ended = await node.outcome(run)
        assert ended.value == ["Receipt", 900, "c-1#00000000", True, "o-1 by drone"]
        history = await node.query("Run.History", {"id": run})
        assert [entry["effect"] for entry in history["journal"]] == ["charge", "ship"]
        assert history["journal"][0]["args"] == {"order": {"id": "o-1", "cents": 900}}
        assert history["journal"][1]["args"]["carrier"] == "drone"


async def test_a_step_is_tried_again_but_only_for_what_is_worth_it(start: Start) -> None:
    tried.clear()
    async with start(shop()) as node:
        run = await node.start_run("unsteady")
        ended = await node.outcome(run)
        assert ended.value == [
            "at last",
            "the handler of slow did not answer within 20ms",
            "wrong failed: ValueError: never right",
        ]
        assert await node.events("tries") == ["flaky"] * 3 + ["slow"] * 2 + ["wrong"]
        history = await node.query("Run.History", {"id": run})
        assert [entry.get("attempts", 1) for entry in history["journal"]] == [3, 2, 1]


async def test_a_step_that_succeeded_is_not_done_again_after_a_crash(start: Start) -> None:
    async with start(shop) as node:
        run = await node.start_run("once")
        await node.comes("charges", "o-1")
        await node.crash()
        await node.signal(run, "go on")
        assert (await node.outcome(run)).value == "paid"
        assert await node.events("charges") == ["o-1"]


async def test_a_test_replaces_a_step(start: Start) -> None:
    app = shop()

    def fake(order: Order) -> Receipt:
        return Receipt(order, "fake", False)

    with app.replace_step(charge, fake):
        async with start(app) as node:
            ended = await node.outcome(await node.start_run("checkout", Order("o-1", 900)))
            assert ended.value[2] == "fake"
    async with start(app) as node:
        assert (await node.outcome(await node.start_run("checkout", Order("o-1", 1), id="c-2"))).value[2] != "fake"


async def test_a_lambda_needs_a_name_and_wrong_arguments_are_an_error_of_the_program() -> None:
    app = App("shop")

    @app.run
    async def odd(perform: Perform) -> list[Any]:
        seen = [await perform.step(lambda: 3, name="three")]
        for wrong in (lambda: perform.step(lambda: 3), lambda: perform.step(charge), lambda: perform.step(5)):
            try:
                await wrong()
            except Exception as error:
                seen.append(str(error))
        return seen

    async with simulate(app) as world:
        value = (await world.outcome(await world.start_run(odd))).value
    assert value[0] == 3
    assert ["lambda" in value[1], "missing a required argument" in value[2], "takes a function" in value[3]] == [
        True
    ] * 3


class Session:
    """Says nothing about its members, so it has no JSON form."""


async def test_a_step_whose_result_could_not_be_stored_is_refused_before_it_is_executed(start: Start) -> None:
    app, called = App("shop"), []

    def open_session() -> Session:
        called.append("open")
        return Session()

    @app.run
    async def checkout(perform: Perform) -> None:
        await perform.step(open_session)

    async with start(app) as node:
        ended = await node.outcome(await node.start_run(checkout))
        assert ended.state == "failed"
        place = f"{__file__}:{open_session.__code__.co_firstlineno}"
        text = f"the step open_session ({place}): the result has an unusable type: Session has no JSON form"
        assert text in (ended.error or {})["message"]
    assert not called


# -- attempts are counted over restarts


def counting() -> App:
    app = App("counting")

    @app.run
    async def failing(perform: Perform) -> str:
        async def fails() -> None:
            await app.publish("tries", 1)
            raise ConnectionError("away")

        try:
            await perform.step(fails, max_attempts=3, backoff="1s", max_backoff="1s")
        except EffectFailed as error:
            return str(error)
        return ""

    return app


async def test_attempts_go_on_counting_after_a_crash(start: Start) -> None:
    async with start(counting) as node:
        run = await node.start_run("failing")

        async def is_noted() -> bool:
            """The second attempt is over, and its end is stored: one that is under way would be made again."""
            journal = (await node.query("Run.History", {"id": run}))["journal"]
            return bool(journal) and len(journal[-1].get("failures", ())) >= 2

        await node.until(is_noted)
        await node.crash()
        assert (await node.outcome(run)).value == "fails failed: ConnectionError: away"
        assert len(await node.events("tries")) == 3


@pytest.mark.parametrize(("max_attempts", "lives"), [(1, 1 + 5), (2, 1 + 2)])
async def test_a_step_that_ends_its_process_again_and_again_fails(max_attempts: int, lives: int) -> None:
    """The first life is not counted: nothing is stored before a step is tried, unless it may have ended a process."""
    app, begun = App("deadly"), []

    async def kills() -> None:
        begun.append("kills")
        await asyncio.Event().wait()

    @app.run
    async def checkout(perform: Perform) -> str:
        try:
            await perform.step(kills, max_attempts=max_attempts)
        except EffectFailed as error:
            return error.type
        return ""

    async with simulate(app) as world:
        run = await world.start_run(checkout)
        for life in range(1, lives + 1):
            await world.until(lambda life=life: len(begun) == life)  # type: ignore[misc]
            await world.crash_and_restart()
        assert (await world.outcome(run)).value == "HandlerDied"
        assert len(begun) == lives
