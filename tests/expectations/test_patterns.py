"""What a user of NATS, RabbitMQ or Redis expects of a subscription by pattern."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring import App, Event, SyncClient
from mainspring.client import BadArgument, NodeRefused, TimedOut
from mainspring.client import Event as Delivered
from mainspring.kernel import CapabilityError
from mainspring.node.core import BootFailure
from mainspring.testing import serving, simulate
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
        await app.publish("orders.old", "o-1")

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


# -- clients


async def test_a_client_subscribes_to_a_pattern_and_new_topics_join_by_themselves(start: Start) -> None:
    async with start(App("shop")) as node:
        await node.publish("orders.eu", "o-1")
        await node.publish("parcels.eu", "no order")
        async with node.bus.subscribe("orders.*", group="billing", from_="beginning") as events:
            first = await events.get(30)
            assert (first.topic, first.group, first.payload) == ("orders.eu", "billing", "o-1")
            assert await first.ack()
            await node.publish("orders.us", "o-2")
            second = await events.get(30)
            assert (second.topic, second.payload, second.attempt) == ("orders.us", "o-2", 1)
            await second.nack(reason="later")
            again = await events.get(30)
            assert (again.topic, again.attempt) == ("orders.us", 2)
            await again.ack()
            await node.publish("orders.eu", "o-3")
            third = await events.get(30)
            assert (third.topic, third.payload) == ("orders.eu", "o-3")
            with pytest.raises(BadArgument, match="many topics"):
                await events.seek("beginning")
        async with node.bus.subscribe("orders.eu", group="billing") as events:  # what was not settled is back
            assert (await events.get(30)).payload == "o-3"


async def test_a_client_consumes_a_pattern_over_a_crash_of_the_node(start: Start) -> None:
    async with start(empty) as node:
        handled: list[str] = []

        async def handle(event: Delivered[str]) -> None:
            handled.append(f"{event.topic} {event.payload}")

        consumer = node.bus.consume("orders.**", handle, group="billing")
        await node.publish("orders", "o-1")
        await node.publish("orders.eu.west", "o-2")
        await node.until(lambda: len(handled) >= 2)
        await consumer.stop()
        await node.crash()
        consumer = node.bus.consume("orders.**", handle, group="billing")
        await node.publish("orders.asia", "o-3")
        await node.until(lambda: "orders.asia o-3" in handled)
        await consumer.stop()
    assert set(handled) == {"orders o-1", "orders.eu.west o-2", "orders.asia o-3"}


def empty() -> App:
    return App("shop")


async def test_a_client_follows_a_pattern(start: Start) -> None:
    async with start(App("shop")) as node:
        await node.publish("orders.eu", "o-1")
        await node.publish("parcels.eu", "no order")
        seen = []
        async for event in node.bus.follow("orders.*", since="beginning"):
            seen.append(f"{event.topic} {event.payload}")
            if len(seen) == 1:
                await node.publish("orders.us", "o-2")
                await node.publish("orders.eu", "o-3")
            if len(seen) == 3:
                break
        assert sorted(seen) == ["orders.eu o-1", "orders.eu o-3", "orders.us o-2"]


@pytest.mark.process
async def test_a_blocking_client_does_so_too() -> None:
    async with serving(App("shop"), engine="memory") as node:

        def consume() -> list[str]:
            with SyncClient(node.url) as client:
                client.publish("orders.eu", "o-1")
                with client.subscribe("orders.*", group="billing", from_="beginning") as events:
                    first = events.get("30s")
                    first.ack()
                    client.publish("orders.us", "o-2")
                    second = events.get("30s")
                followed = client.follow("orders.*", since="beginning")
                return [first.topic, second.topic, *sorted([next(followed).topic, next(followed).topic])]

        assert await asyncio.to_thread(consume) == ["orders.eu", "orders.us", "orders.eu", "orders.us"]


async def test_a_stream_of_a_pattern_goes_on_where_it_was(start: Start) -> None:
    async with start(App("shop")) as node:
        await node.publish("orders.eu", "o-1")
        stream = node.bus.http.follow("orders.*", {"from": "beginning"})
        cursors = [await anext(stream), await anext(stream)]
        await stream.aclose()  # type: ignore[attr-defined]
        assert cursors[1] == ("orders.eu=0:1", cursors[1][1])
        await node.publish("orders.us", "o-2")
        stream = node.bus.http.follow("orders.*", {"cursor": cursors[1][0]})
        found = [envelope async for _, envelope in _two(stream)]
        assert [each.topic for each in found if each] == ["orders.us"]


async def _two(stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    for _ in range(2):
        yield await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_what_a_client_may_not_read_is_no_part_of_its_pattern() -> None:
    def check(topic: str, action: str, who: dict[str, Any]) -> bool:
        return topic != "orders.secret"

    async with simulate(App("shop", checker=check)) as world:
        await world.publish("orders.secret", "o-1")
        await world.publish("orders.eu", "o-2")
        async with world.client() as bus, bus.subscribe("orders.*", group="x", from_="beginning") as events:
            assert (await events.get(30)).topic == "orders.eu"
            with pytest.raises(TimedOut):
                await events.get("1s")


async def test_what_cannot_be_a_pattern_is_refused_by_the_node(start: Start) -> None:
    async with start(App("shop")) as node:
        with pytest.raises(NodeRefused, match="is not a pattern"):
            async with node.bus.subscribe("ord*", group="billing"):
                pass
