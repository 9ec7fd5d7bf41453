"""What a user of Celery, Temporal or Kafka expects when somebody sets the machine's clock back by hours:

- what waits for a delay (a delayed event, a retry, a sleep) waits for that delay, while the node runs;
- after a restart it waits for at most its own delay once more;
- an event for a time of day waits for that time of day; an interval goes on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import App, Event, Perform, Sleep
from mainspring.loop import VirtualClock
from mainspring.testing import World, simulate

SET_BACK_MS = 3 * 3_600_000


class Shop:
    """Handles orders at the second attempt, and sleeps in a run."""

    def __init__(self) -> None:
        self.app = App("shop")
        self.handled: list[Any] = []
        self.ticks = 0

        @self.app.consumer("orders", max_attempts=2, backoff="1m", max_backoff="1m")
        async def bill(event: Event[Any]) -> None:
            if event.attempt == 1 and event.payload == "retried":
                raise ValueError("not yet")
            self.handled.append(event.payload)

        @self.app.run
        async def sleeping(perform: Perform) -> str:
            await perform(Sleep("1m"))
            return "slept"

        @self.app.every("30s")
        async def tick() -> None:
            self.ticks += 1


def set_back(world: World) -> None:
    clock = world.node.clock
    assert isinstance(clock, VirtualClock)
    clock.shift_wall(-SET_BACK_MS)


@pytest.mark.parametrize(("restarts", "within"), [(False, "31s"), (True, "61s")])
async def test_what_waits_for_a_delay_does_not_wait_for_the_clock(restarts: bool, within: str) -> None:
    shop = Shop()
    async with simulate(shop.app) as world:
        await world.publish("orders", "retried")
        await world.publish("orders", "delayed", delay="1m")
        run = await world.start_run("sleeping")
        await world.advance("30s")
        set_back(world)
        if restarts:
            await world.crash_and_restart()
        ticks = shop.ticks
        await world.advance(within)
        assert sorted(shop.handled) == ["delayed", "retried"]
        assert (await world.outcome(run, within="0s")).value == "slept"
        if restarts:
            assert shop.ticks > ticks


async def test_an_event_for_a_time_of_day_waits_for_it() -> None:
    shop = Shop()
    async with simulate(shop.app) as world:
        await world.publish("orders", "at noon", not_before=world.now_ms + 60_000)
        await world.advance("30s")
        set_back(world)
        await world.crash_and_restart()
        await world.advance(timedelta(milliseconds=SET_BACK_MS))
        assert shop.handled == []
        await world.advance("31s")
        assert shop.handled == ["at noon"]
