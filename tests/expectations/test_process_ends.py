"""What a user of Celery (`reject_on_worker_lost`) or Temporal expects of a handler that kills its process:

- the event comes again with its attempt counted, although the process could not say so;
- after `max_attempts` it is a dead letter that says what happened, and the process lives;
- the other events are handled meanwhile, and none of them loses its attempts to the one that kills;
- an ordinary crash, which no handler caused, costs an event in work one attempt and no more.

The end of a real process is in `tests/process/app/test_process_ends.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring import App, Context, Event, Perform
from mainspring.testing import World, simulate


class Shop:
    """Handles everything but `deadly`, with which it waits for its end."""

    def __init__(self, takes_s: float = 0.0, **options: Any) -> None:
        self.app = App("shop")
        self.handled: set[Any] = set()
        self.attempts: list[int] = []
        self.ending = False

        @self.app.consumer("orders", **options)
        async def bill(event: Event[Any]) -> None:
            if event.payload == "deadly":
                self.attempts.append(event.attempt)
                self.ending = True
                await asyncio.Event().wait()
            await asyncio.sleep(takes_s)
            self.handled.add(event.payload)

    async def live_on(self, world: World, *, lives: int = 20) -> int:
        """Let the process end whenever the deadly event is handled, until it lives; how often it ended."""
        for ended in range(lives):
            await world.until(lambda: self.ending or world.dead_letters("orders"), within="5m")
            if not self.ending:
                await world.advance("1m")
                return ended
            self.ending = False
            await world.crash_and_restart()
        raise AssertionError(f"the process still ends after {lives} lives; attempts {self.attempts}")


async def test_an_event_whose_handler_ends_the_process_is_a_dead_letter_in_the_end() -> None:
    shop = Shop(max_attempts=3)
    async with simulate(shop.app) as world:
        for payload in ("before", "deadly", "after"):
            await world.publish("orders", payload)
        ended = await shop.live_on(world)
        (letter,) = world.dead_letters("orders")
        assert (letter.attempts, letter.reason) == (3, "the process ended 3 times while this event was handled")
        assert world.lag("orders", "shop.bill") == 0
    assert shop.handled == {"before", "after"}
    assert shop.attempts[-3:] == [1, 2, 3]
    assert ended <= 4  # once before it is known that a handler may do it


async def test_events_that_are_handled_beside_it_keep_their_attempts() -> None:
    shop = Shop(takes_s=5.0, concurrency=8, max_attempts=4)
    async with simulate(shop.app) as world:
        for n in range(8):
            await world.publish("orders", "deadly" if n == 3 else n)
        await shop.live_on(world)
        assert [(letter.original_offset, letter.attempts) for letter in world.dead_letters("orders")] == [(4, 4)]
        assert world.lag("orders", "shop.bill") == 0
    assert shop.handled == {n for n in range(8) if n != 3}


async def test_later_events_of_its_key_wait_for_it_where_their_order_is_kept() -> None:
    app, begun, ended = App("shop"), [], 0

    @app.consumer("orders", concurrency=4, key_concurrency=1, max_attempts=9)
    async def bill(event: Event[Any]) -> None:
        begun.append(event.payload)
        if event.payload == "deadly" and ended < 4:
            await asyncio.Event().wait()

    async with simulate(app) as world:
        for payload in ("deadly", "after"):
            await world.publish("orders", payload, key="ada")
        await world.publish("orders", "beside", key="bob")
        while ended < 4:
            await world.advance("10m")
            await world.crash_and_restart()
            ended += 1
        await world.advance("10m")
        assert world.lag("orders", "shop.bill") == 0
    assert begun[-2:] == ["deadly", "after"]
    assert begun.count("after") == 1
    assert "beside" in begun[:3]


async def test_a_slow_event_of_another_group_keeps_its_attempts() -> None:
    shop, audited = Shop(max_attempts=5), []

    @shop.app.consumer("orders", max_attempts=5)
    async def audit(event: Event[Any]) -> None:
        await asyncio.sleep(30)
        audited.append(event.payload)

    async with simulate(shop.app) as world:
        await world.publish("orders", "deadly")
        await shop.live_on(world)
        await world.advance("5m")
        assert [letter.group for letter in world.dead_letters("orders")] == ["shop.bill"]
    assert set(audited) == {"deadly"}


async def test_behind_a_long_queue_it_is_found_too() -> None:
    shop = Shop(concurrency=50, max_attempts=4)

    @shop.app.command("Queue.Fill")
    async def fill(data: None, ctx: Any) -> None:
        await asyncio.gather(*(ctx.publish("orders", "deadly" if n == 2_500 else n) for n in range(3_000)))

    async with simulate(shop.app) as world:
        await world.command("Queue.Fill")
        await shop.live_on(world)
        assert len(world.dead_letters("orders")) == 1
        assert world.lag("orders", "shop.bill") == 0
    assert len(shop.handled) == 2_999


async def test_an_ordinary_crash_costs_one_attempt_and_a_stop_says_nothing_of_an_end() -> None:
    app, attempts = App("shop"), []

    @app.consumer("orders", max_attempts=4)
    async def bill(event: Event[Any]) -> None:
        attempts.append(event.attempt)
        await asyncio.sleep(60 if len(attempts) < 4 else 0)
        raise ValueError("no")

    async with simulate(app) as world:
        await world.publish("orders", 1)
        await world.advance("1s")
        await world.crash_and_restart()
        await world.advance("1s")
        await world.restart()
        await world.advance("1h")
        (letter,) = world.dead_letters("orders")
    assert attempts == [1, 2, 3, 4]
    assert letter.reason == "the process ended once while this event was handled; it was refused before: ValueError: no"


class Unfinished:
    """A durable command that waits for its end, beside slow work of other kinds."""

    def __init__(self) -> None:
        self.app = App("shop")
        self.ending = False
        self.begun = 0

        @self.app.command("Order.Place", durable=True)
        async def place(data: str, ctx: Context) -> str:
            if data == "deadly":
                self.begun += 1
                self.ending = True
                await asyncio.Event().wait()
            return data

        async def slow() -> str:
            await asyncio.sleep(30)
            return "done"

        @self.app.run
        async def checkout(perform: Perform) -> str:
            return await perform.step(slow, max_attempts=2)

        self.checkout = checkout


async def test_a_durable_command_that_ends_the_process_takes_no_attempts_from_a_slow_step_beside_it() -> None:
    shop = Unfinished()
    async with simulate(shop.app) as world:
        run = await world.start_run(shop.checkout, id="slow")
        await world.begin("command", "Order.Place", "deadly")
        for _ in range(20):
            await world.until(lambda: shop.ending or world.node.kernel.counters["faults"], within="1h")
            if not shop.ending:
                break
            shop.ending = False
            await world.crash_and_restart()
        assert shop.begun == 1 + 5
        assert (await world.outcome(run)).value == "done"
        (fault,) = world.node.kernel.exchange.recent_faults
        assert fault.data["message"] == "the process ended 5 times while this command ran"


async def test_an_orderly_stop_counts_for_nothing() -> None:
    shop = Unfinished()
    async with simulate(shop.app, drain_ms=100) as world:
        run = await world.start_run(shop.checkout)
        for _ in range(8):
            await world.advance("5s")
            await world.restart()
        assert (await world.outcome(run)).value == "done"
