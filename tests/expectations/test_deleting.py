"""What a user of Kafka or NATS expects of deleting and purging a topic."""

from __future__ import annotations

import pytest

from mainspring import App, Event
from mainspring.client import NodeRefused
from tests.expectations.conftest import Start


def shop() -> App:
    return App("shop")


async def topics(node: object) -> set[str]:
    found = await node.query("Bus.Topics")  # type: ignore[attr-defined]
    return {each["topic"] for each in found["topics"]}


async def test_a_purged_topic_is_empty_and_goes_on_behind_what_is_gone(start: Start) -> None:
    async with start(shop) as node:
        await node.bus.put_topic("orders", partitions=2)
        await node.publish_many("orders", range(10))
        async with node.bus.subscribe("orders", group="g") as reading:
            await anext(aiter(reading))
        assert await node.bus.purge_topic("orders") == 10
        assert await node.events("orders") == []
        assert await node.bus.lag("orders", "g") == 0
        assert await node.publish("orders", "next", key="k") > 1  # no offset is used twice
        await node.crash()
        await node.comes("orders", "next")
        assert await node.bus.purge_topic("orders") == 1
        assert await node.bus.purge_topic("orders") == 0


async def test_a_deleted_topic_is_gone_with_everything_that_belongs_to_it(start: Start) -> None:
    async with start(shop) as node:
        await node.bus.put_topic("orders", partitions=3, maxAttempts=1)
        places = [await node.bus.publish("orders", n, key=f"k{n}") for n in range(12)]
        last = max(place for place in places if place.partition == 0)
        await node.publish("orders", "later", delay="1h")
        await node.bus.schedule("again", "orders", "now and then", every="1h")
        await node.bus.http.call("POST", "/schemas/orders", {"schema": {"type": ["integer", "string"]}})
        async with node.bus.subscribe("orders", group="g") as reading:
            await (await anext(aiter(reading))).reject("no")
            await node.until(lambda: node.dead_letters("orders"))

        async def left() -> bool:
            return (await node.query("Bus.Groups", {"topic": "orders"}))["groups"][0]["members"] == 0

        await node.until(left)
        await node.bus.delete_topic("orders")
        assert not {"orders", "orders.DLQ"} & await topics(node)
        assert await node.bus.schedules() == []
        assert (await node.query("Bus.Groups"))["groups"] == []
        await node.crash()
        assert not {"orders", "orders.DLQ"} & await topics(node)
        with pytest.raises(NodeRefused) as refused:
            await node.bus.delete_topic("orders")
        assert refused.value.code == "unknown_topic"
        assert await node.publish("orders", {"any": "shape"}, key="k") > last  # a new one, with default settings
        [config] = [each for each in (await node.query("Bus.Topics"))["topics"] if each["topic"] == "orders"]
        assert config == {"topic": "orders", "partitions": 1}
        await node.crash()
        await node.comes("orders", {"any": "shape"})


async def test_a_topic_that_somebody_consumes_is_not_deleted(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders", group="billing")
    def bill(event: Event[int]) -> None:
        event.publish("billed", event.payload)

    async with start(app) as node:
        await node.publish("orders", 1)
        await node.comes("billed", 1)
        with pytest.raises(NodeRefused, match="'billing' of 'orders' has a member") as refused:
            await node.bus.delete_topic("orders")
        assert refused.value.code == "conflict"
        await node.publish("orders", 2)
        await node.comes("billed", 1, 2)


async def test_the_nodes_own_topics_stay(start: Start) -> None:
    async with start(shop) as node:
        for verb in (node.bus.delete_topic, node.bus.purge_topic):
            with pytest.raises(NodeRefused):
                await verb("system.metrics")
