"""What a user of RabbitMQ (`expiration`), SQS or Celery (`expires=`) expects of a time limit:

- `ttl=` on whatever publishes: an event that nobody handled in time is not handled later;
- it is still there for readers, and it is counted;
- an option that does not exist is an error, not silence.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from mainspring import App, Event, Perform, Publish
from mainspring.client import New, NodeRefused, connect
from mainspring.errors import MainspringError
from mainspring.testing import serving, simulate


def _shop() -> tuple[App, list[Any]]:
    app, seen = App("shop"), []

    @app.consumer("offers")
    async def show(event: Event[Any]) -> None:
        if event.payload == "slow":
            await asyncio.sleep(60)
        seen.append(event.payload)

    @app.command("Offer.Make", concurrency=1)
    async def make(data: dict, ctx: Any) -> None:
        await ctx.publish("offers", data["text"], ttl=data["ttl"])

    @app.command("Offer.Keep", durable=True)
    async def keep(data: dict, ctx: Any) -> None:
        await ctx.publish("offers", data["text"], ttl=data["ttl"])

    @app.consumer("drafts")
    async def publish(event: Event[Any]) -> None:
        event.publish("offers", event.payload, ttl="10s")

    return app, seen


async def test_an_event_that_nobody_handled_in_time_is_not_handled_later() -> None:
    app, seen = _shop()
    async with simulate(app) as world:
        await world.publish("offers", "slow")
        await world.publish("offers", "old", ttl="10s")
        await world.publish("offers", "still good", ttl=timedelta(hours=1))
        await world.publish("offers", "for ever")
        await world.command("Offer.Make", {"text": "made", "ttl": 30})
        await world.command("Offer.Keep", {"text": "kept", "ttl": "30s"})
        await world.publish("drafts", "draft")
        await world.advance("2m")
        assert seen == ["slow", "still good", "for ever"]
        assert world.events("offers").payloads == ["slow", "old", "still good", "for ever", "made", "kept", "draft"]
        assert world.events("offers")[1].headers["x-expires"].isdigit()
        assert (world.lag("offers", "shop.show"), world.dead_letters("offers")) == (0, [])
        assert (await world.query("Bus.Stats", {}))["expired"] == 4


async def test_time_passes_while_nothing_runs_and_a_delay_comes_first() -> None:
    app, seen = _shop()
    async with simulate(app) as world:
        await world.publish("offers", "slow")
        await world.publish("offers", "old", ttl="90s")
        await world.publish("offers", "later", delay=180, ttl="10s")
        await world.crash_and_restart(down="2m")
        await world.advance("10m")
    assert seen == ["slow", "later"]


async def test_an_event_that_failed_is_not_tried_again_when_its_time_is_over() -> None:
    app, attempts = App("shop"), []

    @app.consumer("offers", max_attempts=10, backoff="1s")
    async def show(event: Event[Any]) -> None:
        attempts.append(event.attempt)
        raise ValueError("no")

    async with simulate(app) as world:
        await world.publish("offers", 1, ttl="5s")
        await world.advance("1h")
        assert (world.lag("offers", "shop.show"), world.dead_letters("offers")) == (0, [])
    assert attempts == [1, 2, 3]


async def test_over_the_wire_and_an_unknown_option_is_an_error() -> None:
    async with serving() as node, connect(node.url) as bus:
        await bus.http.call("POST", "/topics/offers/events", {"payload": "oldest", "ttl_ms": 1})
        await bus.command("Bus.Publish", {"topic": "offers", "payload": "ancient", "ttlMs": 1})
        await bus.publish("offers", "old", ttl="1ms")
        await bus.publish_many("offers", [New("older", ttl=0.001), New("good", ttl="1h"), "for ever"])
        published = time.time()
        while time.time() < published + 0.01:  # noqa: ASYNC110 - the clock is what this waits for
            await asyncio.sleep(0.001)
        async with bus.subscribe("offers", group="g") as events:
            first, second = await events.get(30), await events.get(30)
            assert (first.payload, second.payload) == ("good", "for ever")
            assert await first.ack()
            assert await second.ack()
        stats = await bus.http.call("GET", "/stats")
        assert stats["expired"] == 4
        for wrong in ({"ttl_ms": 0}, {"ttl_ms": -1}, {"ttl_ms": "1s"}, {"ttl": 5}):
            with pytest.raises(NodeRefused, match="ttl"):
                await bus.http.call("POST", "/topics/offers/events", {"payload": 1, **wrong})
        with pytest.raises(TypeError, match="ttl_ms"):
            await bus.publish("offers", 1, ttl_ms=5)  # type: ignore[call-arg]
        with pytest.raises(MainspringError, match="not a duration"):
            await bus.publish("offers", 1, ttl="soon")


async def test_a_run_publishes_events_that_expire() -> None:
    app = App("shop")

    @app.run
    async def sell(perform: Perform) -> None:
        await perform(Publish("offers", "short", ttl="1s"))
        await perform(Publish("offers", "long", ttl="1h"))
        await perform(Publish("offers", "for ever"))

    async with simulate(app) as world, world.client() as bus:
        await bus.outcome(await bus.start_run(sell))
        await world.advance("1m")
        async with bus.subscribe("offers", group="buyers", from_="beginning") as events:
            assert [(await events.get(30)).payload for _ in range(2)] == ["long", "for ever"]
    with pytest.raises(TypeError, match="ttl_ms"):
        Publish("offers", "short", ttl_ms=5)  # type: ignore[call-arg]
