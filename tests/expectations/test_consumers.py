"""What a user of Celery or Kafka expects of consumers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from aiohttp import ClientSession

from mainspring import App, BlockingEvent, Context, Event, connect
from mainspring.testing import serving, simulate
from tests.expectations.conftest import Start


def shop() -> App:
    app = App("shop")

    @app.consumer("orders", group="billing", backoff="10ms")
    async def bill(event: Event[dict[str, Any]]) -> None:
        event.publish("bills", event.payload["id"])

    return app


def failing(times: int) -> tuple[App, list[int]]:
    app, attempts = App("shop"), []

    @app.consumer("orders", group="billing", backoff="10ms", max_attempts=3)
    async def bill(event: Event[str]) -> None:
        attempts.append(event.attempt)
        if len(attempts) <= times:
            raise ValueError("the bank is closed")
        event.publish("bills", event.payload)

    return app, attempts


async def test_every_event_is_handled_once_also_over_a_crash(start: Start) -> None:
    async with start(shop) as node:
        await node.publish_many("orders", [{"id": number} for number in range(20)])
        await node.crash()
        await node.comes("bills", *range(20))


async def test_an_event_that_failed_comes_again(start: Start) -> None:
    app, attempts = failing(2)
    async with start(app) as node:
        await node.publish("orders", "o-1")
        await node.comes("bills", "o-1")
        assert attempts == [1, 2, 3]


async def test_what_never_works_is_a_dead_letter_that_says_why_and_can_be_redriven(start: Start) -> None:
    app, attempts = failing(3)
    async with start(app) as node:
        await node.publish("orders", "o-1")
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert "the bank is closed" in letter["reason"]
        assert await node.redrive("orders") == 1
        await node.comes("bills", "o-1")
        assert attempts == [1, 2, 3, 1]


async def test_a_dead_letter_goes_back_to_the_group_that_gave_up_and_to_all_only_if_told(start: Start) -> None:
    app, charged, mailed = App("shop"), [], list[str]()

    @app.consumer("orders")
    def charge(event: Event[str]) -> None:
        charged.append(event.payload)

    @app.consumer("orders", max_attempts=1)
    def mail(event: Event[str]) -> None:
        mailed.append(event.payload)
        if len(mailed) <= 2:
            raise ConnectionError("no mail server")

    async with start(app) as node:
        await node.publish("orders", "o-1")
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert letter["group"] == "shop.mail"
        await node.until(lambda: charged == ["o-1"])
        assert await node.bus.redrive("orders") == 1
        await node.until(lambda: len(mailed) == 2)
        await node.until(lambda: node.dead_letters("orders"))
        await node.publish("orders", "o-2")
        await node.until(lambda: charged == ["o-1", "o-2"])  # behind it, nothing came of the first redrive
        assert await node.bus.redrive("orders", to_all=True) == 1
        await node.until(lambda: charged == ["o-1", "o-2", "o-1"])
        await node.until(lambda: sorted(mailed) == ["o-1", "o-1", "o-1", "o-2"])
        assert await node.dead_letters("orders") == []


def blocking_shop() -> App:
    app = App("shop")

    @app.consumer("orders", concurrency=4)
    def bill(event: Event[int]) -> None:
        event.publish("bills", event.payload)

    return app


async def test_what_a_plain_function_publishes_is_stored_once_over_a_crash(start: Start) -> None:
    async with start(blocking_shop) as node:
        await node.publish_many("orders", range(20))
        await node.crash()
        await node.comes("bills", *range(20))


async def test_the_lease_of_a_plain_function_is_kept_as_long_as_it_runs() -> None:
    app, attempts = App("shop"), []

    @app.query("Slow.Get")
    async def slow(data: Any, ctx: Context) -> None:
        await asyncio.sleep(3_600)

    @app.consumer("orders")
    def bill(event: BlockingEvent[int]) -> None:
        attempts.append(event.attempt)
        event.ask("query", "Slow.Get", timeout="2h")
        event.publish("bills", event.payload)

    async with simulate(app) as world:
        await world.publish("orders", 1)
        await world.until(lambda: world.events("bills"))
        assert attempts == [1]


@pytest.mark.process
async def test_a_plain_function_that_blocks_holds_up_nobody() -> None:
    app, go_on = App("shop"), threading.Event()

    @app.consumer("orders")
    def bill(event: Event[int]) -> None:
        go_on.wait()
        event.publish("bills", event.payload)

    @app.consumer("orders")
    async def note(event: Event[int]) -> None:
        event.publish("notes", event.payload)

    async with serving(app) as node, connect(node.url) as bus, ClientSession() as http:
        await bus.publish("orders", 1)
        async with bus.subscribe("notes", group="test") as notes:
            assert (await notes.get()).payload == 1
        async with http.get(f"{node.http}/healthz") as healthy:
            assert healthy.status == 200
        go_on.set()
        async with bus.subscribe("bills", group="test") as bills:
            assert (await bills.get()).payload == 1
