"""A node that is stopped in order, and what becomes of the runs that are in the middle of an effect."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import App, Ask, Effect, Perform
from mainspring.runs import Value
from mainspring.testing import simulate


class Charge(Effect[str]):
    cents: int


class Shop:
    """A program whose charging takes `seconds` each; `charged` is what was begun, `paid` what was done."""

    def __init__(self, seconds: float) -> None:
        self.app = App("shop")
        self.charged: list[int] = []
        self.paid: list[int] = []
        self.asked: int = 0

        @self.app.handles(Charge)
        async def charge(effect: Charge) -> str:
            self.charged.append(effect.cents)
            await asyncio.sleep(seconds)
            self.paid.append(effect.cents)
            return f"receipt {effect.cents}"

        @self.app.command("Stock.Reserve")
        async def reserve(data: dict[str, int], ctx: object) -> int:
            self.asked += 1
            await asyncio.sleep(seconds)
            return data["pieces"]

        @self.app.run
        async def checkout(perform: Perform) -> list[str]:
            return [await perform(Charge(100)), await perform(Charge(200))]

        @self.app.run
        async def stock(perform: Perform) -> int:
            pieces: int = await perform(Ask("Stock.Reserve", {"pieces": 3}))
            return pieces


async def test_a_handler_at_work_finishes_and_is_not_asked_again() -> None:
    shop = Shop(seconds=2)
    async with simulate(shop.app) as world:
        await world.start_run("checkout", id="c-1")
        await world.advance("1s")
        await world.restart(down="1m")
        outcome = await world.outcome("c-1")
        assert outcome == Value(["receipt 100", "receipt 200"])
    assert shop.charged == [100, 200]


async def test_a_handler_that_takes_longer_than_the_stop_is_asked_again() -> None:
    shop = Shop(seconds=20)
    async with simulate(shop.app) as world:
        await world.start_run("checkout", id="c-1")
        await world.advance("1s")
        await world.restart()
        outcome = await world.outcome("c-1")
        assert outcome == Value(["receipt 100", "receipt 200"])
    assert (shop.charged, shop.paid) == ([100, 100, 200], [100, 200])


@pytest.mark.parametrize("seconds", [2, 20])
async def test_a_run_does_not_fail_because_the_node_stops(seconds: float) -> None:
    shop = Shop(seconds)
    async with simulate(shop.app) as world:
        await world.start_run("stock", id="s-1")
        await world.advance("1s")
        await world.restart(down="1m")
        outcome = await world.outcome("s-1")
        assert outcome == Value(3)
    assert shop.asked == (1 if seconds < 5 else 2)
