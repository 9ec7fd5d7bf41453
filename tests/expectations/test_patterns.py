"""What a user of NATS, RabbitMQ or Redis expects of a subscription by pattern."""

from __future__ import annotations

import pytest

from mainspring import App, Event
from mainspring.kernel import CapabilityError
from mainspring.node.core import BootFailure
from mainspring.testing import simulate
from tests.expectations.conftest import Start


def shop() -> App:
    app = App("shop")

    @app.consumer("orders.*", max_attempts=1)
    async def bill(event: Event[str]) -> None:
        if event.payload == "bad":
            raise ValueError("no")
        event.publish("billed", f"{event.topic} {event.payload}")

    return app


async def test_topics_that_exist_and_topics_that_appear_later_are_consumed(start: Start) -> None:
    async with start(shop) as node:
        await node.publish("orders.eu", "o-1")
        await node.publish("orders.us", "o-2")
        await node.publish("orders.eu.west", "two segments do not fit")
        await node.comes("billed", "orders.eu o-1", "orders.us o-2")
        await node.crash()
        await node.publish("orders.us", "o-3")
        await node.publish("orders.asia", "o-4")
        await node.comes("billed", "orders.eu o-1", "orders.us o-2", "orders.us o-3", "orders.asia o-4")


async def test_dead_letters_are_no_orders(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders.**", max_attempts=1)
    def bill(event: Event[str]) -> None:
        event.publish("billed", f"{event.topic} {event.payload}")
        if event.payload == "bad":
            raise ValueError("no")

    async with start(app) as node:
        await node.publish("orders", "bad")
        await node.until(lambda: node.dead_letters("orders"))
        await node.publish("orders", "good")
        await node.comes("billed", "orders good")


async def test_a_pattern_may_name_dead_letters(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders.eu", max_attempts=1)
    async def bill(event: Event[str]) -> None:
        raise ValueError("no")

    @app.consumer("orders.*.DLQ")
    async def mourn(event: Event[str]) -> None:
        event.publish("mourned", event.payload)

    async with start(app) as node:
        await node.publish("orders.eu", "o-1")
        await node.comes("mourned", "o-1")


async def test_each_topic_has_a_group_of_its_own_and_max_attempts_count_over_a_restart() -> None:
    async with simulate(shop()) as world:
        await world.publish("orders.eu", "bad")
        await world.publish("orders.us", "good")
        await world.until(lambda: world.events("billed"))
        await world.restart()
        assert [letter.attempts for letter in world.dead_letters("orders.eu")] == [1]
        groups = {each.topic: each.group for each in world.groups() if each.topic.startswith("orders.")}
        assert groups == {"orders.eu": "shop.bill", "orders.us": "shop.bill"}


async def test_latest_skips_what_was_there_and_nothing_that_comes_later() -> None:
    late, seen = App("shop"), []

    @late.consumer("orders.*", from_="latest")
    async def bill(event: Event[str]) -> None:
        seen.append(f"{event.topic} {event.payload}")

    @late.on_start
    async def before(app: App) -> None:
        assert app.publisher is not None
        await app.publisher("orders.old", "o-1")

    async with simulate(late) as world:
        await world.publish("orders.old", "o-2")
        await world.publish("orders.new", "o-3")
        await world.advance("1s")
        assert sorted(seen) == ["orders.new o-3", "orders.old o-2"]


async def test_a_batch_of_each_topic(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders.*", batch=10, wait="20ms")
    async def store(events: list[Event[str]]) -> None:
        assert len({event.topic for event in events}) == 1
        for event in events:
            event.publish("stored", event.payload)

    async with start(app) as node:
        for number in range(6):
            await node.publish(f"orders.{number % 3}", f"o-{number}")
        await node.comes("stored", *(f"o-{number}" for number in range(6)))


def test_what_cannot_be_a_pattern_is_refused_where_it_is_written() -> None:
    app = App("shop")
    with pytest.raises(CapabilityError, match="is not a pattern"):

        @app.consumer("ord*")
        async def bill(event: Event[str]) -> None: ...


@pytest.mark.parametrize("other", ["orders.eu", "orders.**", "orders.*"])
def test_one_group_for_a_pattern_and_a_topic_that_fits_is_refused_at_boot(other: str) -> None:
    app = App("shop")

    @app.consumer("orders.*", group="billing")
    async def bill(event: Event[str]) -> None: ...

    @app.consumer(other, group="billing")
    async def bill_more(event: Event[str]) -> None: ...

    with pytest.raises(BootFailure, match="declared twice"), simulate(app):
        pass
