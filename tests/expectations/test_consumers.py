"""What a user of Celery or Kafka expects of consumers."""

from __future__ import annotations

from typing import Any

from mainspring import App, Event
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
