"""`world.client()`: what the real client does, on virtual time, over crashes, awaited on any loop and in any thread."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from mainspring import App, Context, Event, Fail
from mainspring.bus.access import new_token
from mainspring.client import CannotConnect, Client, NodeRefused, TimedOut
from mainspring.testing import DidNotHappen, simulate
from mainspring.testing.one_node import START_MS


def shop() -> App:
    app = App("shop")

    @app.query("Stock.Count")
    async def count(data: dict[str, Any], ctx: Context) -> int:
        await asyncio.sleep(60)
        return 3

    @app.query("Price.Get")
    async def price(data: dict[str, Any], ctx: Context) -> int:
        await asyncio.sleep(20)
        return 100

    @app.every("5m")
    async def tick(event: Event[None]) -> None:
        event.publish("ticks", "tick")

    app.topic("ticks")
    return app


async def test_every_verb_of_the_client_works_while_it_is_awaited() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        assert isinstance(bus, Client)
        assert await bus.publish("orders", 1, key="a") == 1
        assert await bus.publish_many("orders", [2, 3]) == 2
        assert [event.payload async for event in bus.replay("orders")] == [1, 2, 3]
        assert await bus.lag("orders", "nobody") == 0
        await bus.put_topic("returns", partitions=2)
        assert await bus.schedule("nightly", "returns", None, cron="0 3 * * *") == START_MS + 3 * 3_600_000
        await bus.unschedule("nightly")
        async with bus.subscribe("orders", group="billing") as events:
            for expected in (1, 2, 3):
                event = await events.get()
                assert event.payload == expected
                assert await event.ack()
        await world.advance("1s")
        assert world.lag("orders", "billing") == 0


async def test_requests_take_virtual_time_and_overlap_when_they_are_awaited_together() -> None:
    async with simulate(shop(), request_timeout_ms=100_000) as world, world.client() as bus:
        begun = world.now
        assert await asyncio.gather(bus.query("Stock.Count"), bus.query("Price.Get")) == [3, 100]
        assert world.now - begun == timedelta(seconds=60)


async def test_a_reply_that_takes_too_long_is_a_timeout() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        begun = world.now
        with pytest.raises(Fail) as late:
            await bus.query("Stock.Count", timeout=5)
        assert (late.value.code, late.value.type) == (504, "Sys.Timeout")
        assert world.now - begun == timedelta(seconds=5)


async def test_an_event_that_is_awaited_alone_moves_time_to_its_moment() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        async for event in bus.follow("ticks"):
            assert event.payload == "tick"
            break
        assert world.now_ms % 300_000 < 1_000
        with pytest.raises(TimedOut):
            await bus.subscribe("orders", group="billing").get(timeout=3_600)


async def test_a_subscriber_in_the_background_sees_what_happens_and_does_not_move_time() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        seen: list[str] = []

        async def subscriber() -> None:
            async for event in bus.subscribe("ticks", group="screen"):
                seen.append(event.payload)
                await event.ack()

        background = asyncio.create_task(subscriber())
        begun = world.now
        await asyncio.sleep(0.01)  # real time: as a query of a database takes it
        assert world.now == begun
        await world.until(lambda: len(seen) == 3)
        assert world.now - begun >= timedelta(minutes=15)
        background.cancel()


async def test_the_client_outlives_crashes_and_restarts_of_the_node() -> None:
    async with simulate(shop()) as world, world.client() as bus, bus.subscribe("orders", group="billing") as events:
        await bus.publish("orders", "before")
        held = await events.get()
        await world.crash_and_restart(down="10s")
        assert not await held.ack()  # its lease ended with the connection
        assert (await events.get(timeout=60)).payload == "before"
        await world.restart()
        assert await bus.publish("orders", "after") == 2


async def test_what_is_published_while_the_node_is_away_waits_for_it() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        await world.crash_and_restart(down="1h")
        assert await bus.publish("orders", 1) == 1


async def test_a_wait_for_what_cannot_happen_ends_with_an_error() -> None:
    async with simulate(App("empty")) as world, world.client() as bus:
        with pytest.raises(DidNotHappen):
            await bus.subscribe("orders", group="billing").get()


async def test_a_wait_that_is_given_up_ends_on_the_other_side_too() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        events = bus.subscribe("orders", group="billing")
        waiting = asyncio.create_task(events.get())
        await asyncio.sleep(0)
        await world.settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await bus.publish("orders", 1)
        assert (await events.get()).payload == 1


async def test_a_consumer_runs_on_virtual_time() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        seen: list[int] = []

        async def handle(event: Any) -> None:
            await asyncio.sleep(3_600)
            seen.append(event.payload)

        consumer = bus.consume("orders", handle, group="billing")
        await bus.publish("orders", 1)
        await world.advance("2h")
        assert seen == [1]
        await consumer.stop()


async def test_requests_over_topics_are_answered() -> None:
    async with simulate(shop()) as world, world.client() as bus:

        async def double(event: Any) -> int:
            return int(event.payload) * 2

        bus.respond("doubles", double, group="doubler")
        assert await bus.request("doubles", 21) == 42


async def test_the_client_of_a_thread_with_a_loop_of_its_own_is_served() -> None:
    """As web frameworks call a program in their test clients."""
    async with simulate(shop()) as world, world.client() as bus:
        stored: list[int] = []

        async def route() -> None:
            stored.append(await bus.publish("orders", "from a thread"))
            stored.append(await bus.query("Price.Get"))

        thread = threading.Thread(target=asyncio.run, args=(route(),))
        thread.start()
        thread.join()
        assert stored == [1, 100]
        assert world.events("orders").payloads == ["from a thread"]


async def test_code_that_blocks_has_a_client_too() -> None:
    async with simulate(shop()) as world:
        with world.sync_client() as bus:
            assert bus.publish("orders", 1) == 1
            assert bus.query("Price.Get") == 100
            with bus.subscribe("orders", group="billing") as events:
                assert events.get().ack()
            assert [event.payload for event in bus.replay("orders")] == [1]


async def test_a_node_with_tokens_asks_for_one() -> None:
    token, known = new_token("web", ["publish:orders"], b"x" * 32)
    async with simulate(shop(), tokens=(known.line(),)) as world:
        with pytest.raises(CannotConnect):
            await world.client().__aenter__()
        async with world.client(token=token) as bus:
            await bus.publish("orders", 1)
            with pytest.raises(NodeRefused) as refused:
                await bus.publish("returns", 1)
            assert refused.value.code == "forbidden"


async def test_the_same_seed_gives_the_client_the_same_ids() -> None:
    async def story() -> list[str]:
        async with simulate(shop(), seed=7) as world, world.client() as bus:
            return [(await bus.publish("orders", number)).id for number in range(3)]

    assert await story() == await story()
