"""A handler that raises is asked again, as often as was said; the program sees one answer or one error."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from mainspring import App, Effect
from mainspring.kernel import CapabilityError
from mainspring.log import Append
from mainspring.runs import Failed
from mainspring.testing import simulate


class Charge(Effect[str]):
    cents: int


def shop(outage: int, **options: Any) -> tuple[App, list[int]]:
    """A program whose bank is away for so many attempts; and when each attempt was made."""
    app = App("shop")
    attempts: list[int] = []

    @app.handles(Charge, **options)
    async def charge(effect: Charge, ctx: Any) -> str:
        attempts.append(ctx.now_ms())
        ctx.batch.append(Append("charges", 0, ctx.key, 0, b"%d" % len(attempts)))
        if len(attempts) <= outage:
            raise ConnectionError("the bank is away")
        return f"{effect.cents} by {ctx.key}"

    @app.run
    async def checkout(cents: int, perform: Any) -> str:
        receipt: str = await perform(Charge(cents))
        return receipt

    return app, attempts


def pauses(attempts: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(attempts)]


async def test_it_is_asked_again_with_growing_pauses_until_it_answers() -> None:
    app, attempts = shop(4, max_attempts=6, backoff="2s", max_backoff="5s")
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("1m")
        assert world.run("c").value == "12 by c#00000000"
        assert pauses(attempts) == [2_000, 4_000, 5_000, 5_000]


async def test_what_failed_attempts_wrote_is_taken_back() -> None:
    app, _ = shop(2, max_attempts=3)
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("1m")
        assert [event.payload for event in await world.events("charges")] == [3]


async def test_the_last_error_fails_the_run() -> None:
    app, attempts = shop(10, max_attempts=3)
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("1m")
        assert world.run("c").state == "failed"
        assert len(attempts) == 3


async def test_without_asking_for_more_one_error_fails_the_run() -> None:
    app, attempts = shop(1)
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("1m")
        assert world.run("c").state == "failed"
        assert len(attempts) == 1


async def test_a_run_that_is_cancelled_between_attempts_is_not_asked_for_again() -> None:
    app, attempts = shop(10, max_attempts=10, backoff="10s")
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("1s")
        await world.command("Run.Cancel", {"id": "c"})
        await world.advance("10m")
        assert world.run("c").state == "cancelled"
        assert len(attempts) == 1


@pytest.mark.parametrize("outage", [2, 3])
async def test_a_crash_between_attempts_goes_on_with_the_next(outage: int) -> None:
    app, attempts = shop(outage, max_attempts=3, backoff="10s")
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("15s")  # two attempts
        await world.crash_and_restart()
        await world.advance("1m")
        assert world.run("c").value == ("12 by c#00000000" if outage == 2 else None)
        assert len(attempts) == 3


async def test_a_run_that_is_retried_begins_with_the_first_attempt() -> None:
    app, attempts = shop(5, max_attempts=3, backoff="10s")
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("1m")
        assert world.run("c").state == "failed"
        await world.command("Run.Retry", {"id": "c"})
        await world.advance("1m")
        assert world.run("c").value == "12 by c#00000000"
        assert len(attempts) == 6


async def test_a_node_that_stops_does_not_wait_for_the_next_attempt() -> None:
    app, attempts = shop(1, max_attempts=3, backoff="1h", max_backoff="1h")
    async with simulate(app) as world:
        await world.start_run("checkout", 12, id="c")
        await world.advance("1s")
        await world.restart()
        await world.advance("1m")
        assert world.run("c").value == "12 by c#00000000"
        assert pauses(attempts) == [1_000], "neither the hour nor what a stop may take at most"


async def test_the_time_limit_is_for_one_attempt() -> None:
    app = App("shop")
    begun: list[int] = []

    @app.handles(Charge, max_attempts=3, backoff="10s", timeout="1m")
    async def charge(effect: Charge, ctx: Any) -> str:
        begun.append(ctx.now_ms())
        await asyncio.Event().wait()
        return ""

    @app.run
    async def checkout(perform: Any) -> str:
        return str(await perform(Charge(1)))

    async with simulate(app) as world:
        outcome = await world.outcome(await world.start_run(checkout))
        assert isinstance(outcome, Failed)
        assert "did not answer within 1m" in str(outcome.error)
        assert pauses(begun) == [70_000, 80_000]


async def test_a_plain_function_may_be_asked_again_too() -> None:
    app = App("shop")
    asked: list[str] = []

    @app.handles(Charge, max_attempts=2)
    def charge(effect: Charge) -> str:
        asked.append("again")
        if len(asked) == 1:
            raise ConnectionError
        return "paid"

    @app.run
    async def checkout(perform: Any) -> str:
        receipt: str = await perform(Charge(1))
        return receipt

    async with simulate(app) as world:
        await world.start_run("checkout", id="c")
        await world.advance("5s")
        assert world.run("c").value == "paid"


def test_less_than_one_attempt_is_refused() -> None:
    with pytest.raises(CapabilityError, match="max_attempts is 0"):
        App("shop").handles(Charge, max_attempts=0)(lambda effect: "")
