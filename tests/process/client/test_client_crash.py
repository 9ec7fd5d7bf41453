"""A real node, killed without warning while clients are at work, and started again with its data."""

from __future__ import annotations

import asyncio

from mainspring.client import SyncClient, connect
from tests.support.client_node import Node, eventually


async def test_a_node_killed_while_events_are_published_stores_each_of_them_once(own_node: Node) -> None:
    async with connect(own_node.url, max_queued=200) as bus:
        publishing = asyncio.create_task(bus.publish_many("t", range(20_000)))
        for _ in range(3):
            await asyncio.sleep(0.15)
            own_node.kill()
            own_node.restart()
        assert await publishing == 20_000
        assert [event.payload async for event in bus.replay("t")] == list(range(20_000))


async def test_consumers_go_on_after_the_node_was_killed_and_miss_nothing(own_node: Node) -> None:
    seen: list[int] = []
    finished = asyncio.Event()

    async def consume(bus_url: str) -> None:
        async with connect(bus_url) as bus:
            async for event in bus.subscribe("t", group="g", max_inflight=16):
                seen.append(event.payload)
                await asyncio.sleep(0.001)
                await event.ack()
                if len(set(seen)) == 600:
                    finished.set()

    consumers = [asyncio.create_task(consume(own_node.url)) for _ in range(2)]
    async with connect(own_node.url) as bus:
        for start in range(0, 600, 200):
            await asyncio.gather(*(bus.publish("t", n) for n in range(start, start + 200)))
            own_node.kill()
            own_node.restart()
        await asyncio.wait_for(finished.wait(), 60)
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert set(seen) == set(range(600))


async def test_a_subscription_goes_on_where_its_group_was(own_node: Node) -> None:
    async with connect(own_node.url) as bus:

        async def acknowledged() -> bool:
            return await bus.lag("t", "g") == 5

        for n in range(10):
            await bus.publish("t", n)
        async with bus.subscribe("t", group="g", from_=1, max_inflight=4) as events:
            for n in range(5):
                event = await events.get(60)
                assert event.payload == n
                await event.ack()
            await eventually(acknowledged)  # an acknowledgement is stored within milliseconds, not at once
            own_node.kill()
            own_node.restart()
            assert [(await events.get(60)).payload for _ in range(4)] == [5, 6, 7, 8]


def test_a_blocking_client_survives_it_too(own_node: Node) -> None:
    with SyncClient(own_node.url) as bus:
        assert bus.publish("t", 1) == 1
        own_node.kill()
        own_node.restart()
        assert bus.publish("t", 2) == 2
        assert [event.payload for event in bus.replay("t")] == [1, 2]


async def test_an_orderly_stop_of_the_node_is_only_a_pause(own_node: Node) -> None:
    import signal

    async with connect(own_node.url) as bus:
        await bus.publish("t", 1)
        own_node.signal(signal.SIGTERM)
        publishing = asyncio.create_task(bus.publish("t", 2))
        assert await asyncio.to_thread(own_node.wait) == 0
        own_node.restart()
        assert await asyncio.wait_for(publishing, 30) == 2
