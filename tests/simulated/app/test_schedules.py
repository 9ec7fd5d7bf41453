"""Schedules of a program: never lost, never doubled, made up once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from mainspring import App, Event
from mainspring.durations import BadDuration, duration_ms
from mainspring.kernel import CapabilityError
from mainspring.node.core import BootFailure
from mainspring.testing import simulate


async def test_every_and_cron_call_when_they_say() -> None:
    app, at = App("clock"), []

    @app.every("5m")
    async def often() -> None:
        at.append(("often", world.now.strftime("%H:%M")))

    @app.cron("0 3 * * *")
    def nightly() -> None:
        at.append(("nightly", world.now.strftime("%d %H:%M")))

    async with simulate(app) as world:
        await world.advance("12m")
        assert at == [("often", "00:05"), ("often", "00:10")]
        at.clear()
        await world.advance("2d")
        assert [when for name, when in at if name == "nightly"] == ["01 03:00", "02 03:00"]


async def test_a_quarter_of_a_year_passes_in_a_moment() -> None:
    app, days = App("clock"), []

    @app.cron("30 2 * * mon")
    async def weekly() -> None:
        days.append(world.now.strftime("%a"))

    async with simulate(app) as world:
        await world.advance("91d")
    assert days == ["Mon"] * 13


async def test_a_crash_neither_loses_nor_doubles_a_call() -> None:
    app, at = App("clock"), []

    @app.every("1h")
    async def hourly() -> None:
        at.append(world.now.hour)

    async with simulate(app) as world:
        for _ in range(10):
            await world.advance("30m")
            await world.crash_and_restart()
            await world.advance("30m")
            await world.crash_and_restart()
    assert at == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


async def test_calls_missed_while_nothing_ran_are_made_up_once_and_the_grid_stays() -> None:
    app, at = App("clock"), []

    @app.every("1h")
    async def hourly() -> None:
        at.append(world.now.strftime("%H:%M"))

    async with simulate(app) as world:
        await world.advance("90m")
        await world.crash_and_restart(down="5h")
        await world.advance("1h")
    assert at == ["01:00", "06:30", "07:00"]


async def test_a_call_that_fails_is_tried_again() -> None:
    app, tries = App("clock"), []

    @app.every("1h")
    async def flaky() -> None:
        tries.append(world.now_ms)
        if len(tries) < 3:
            raise ConnectionError("not yet")

    async with simulate(app) as world:
        await world.advance("61m")
    assert len(tries) == 3


async def test_a_changed_schedule_counts_anew_and_one_that_is_gone_fires_no_more() -> None:
    def program(interval: str | None) -> App:
        app = App("clock")
        if interval is not None:
            app.every(interval, name="work")(lambda: calls.append(interval))
        return app

    calls: list[str] = []
    async with simulate(program("1h")) as world:
        await world.advance("61m")
        world._simulation.app = program("10m")
        await world.restart()
        await world.advance("11m")
        assert calls == ["1h", "10m"]
        world._simulation.app = program(None)
        await world.restart()
        await world.advance("1d")
        assert (calls, world.schedules()) == (["1h", "10m"], [])


async def test_what_a_call_publishes_is_stored_with_its_being_done() -> None:
    app, calls = App("clock"), []

    @app.every("1h")
    async def report(event: Event[Any]) -> None:
        calls.append(event.attempt)
        event.publish("reports", {"call": len(calls)})
        if len(calls) == 1:
            raise RuntimeError("the printer is on fire")

    async with simulate(app) as world:
        await world.advance("90m")
        assert calls == [1, 2]
        assert world.events("reports").payloads == [{"call": 2}]


def test_what_cannot_be_a_schedule_is_refused_where_it_is_declared() -> None:
    app = App("clock")
    with pytest.raises(BadDuration):
        app.every("5 minutes")(lambda: None)
    with pytest.raises(CapabilityError, match=r"test_schedules.py:\d+\): a cron line has five fields"):
        app.cron("0 3 * *", name="n")(lambda: None)
    with pytest.raises(CapabilityError, match="or the event of its firing"):
        app.every("5m", name="n")(lambda event, needed: None)
    with pytest.raises(CapabilityError, match="at least 10 ms"):
        app.every("1ms", name="n")(lambda: None)
    with pytest.raises(CapabilityError, match="Mars/Olympus"):
        app.cron("0 3 * * *", name="n", timezone="Mars/Olympus")(lambda: None)
    with pytest.raises(CapabilityError, match="queue, skip or allow"):
        app.every("5m", name="n", overlap="never")(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match="cannot name a schedule"):
        app.every("5m")(lambda: None)


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        (" 5m ", 300_000),
        (1.5, 1_500),
        (0, 0),
        (timedelta(minutes=1), 60_000),
    ],
)
def test_durations_are_written_as_people_do(given: Any, ms: int) -> None:
    assert duration_ms(given) == ms


@pytest.mark.parametrize("given", ["", "5", "m", "-5m", "5m!", float("nan"), -1, True, None])
def test_what_is_not_a_duration_is_refused(given: Any) -> None:
    with pytest.raises(BadDuration, match="is not a duration"):
        duration_ms(given)


async def test_a_program_opens_what_it_needs_before_anything_is_handled_and_closes_it_at_the_end() -> None:
    story: list[str] = []

    @asynccontextmanager
    async def life(app: App) -> AsyncIterator[None]:
        story.append("opened")
        app.state.factor = 2
        yield
        story.append("closed")

    app = App("hooks", lifespan=life)

    @app.on_start
    async def first() -> None:
        story.append("started")
        app.state.offset = 1

    @app.on_stop
    def last(same: App) -> None:
        assert same is app
        story.append("stopped")

    @app.query("Sum.Of")
    async def sum_of(n: int, ctx: Any) -> int:
        return n * app.state.factor + app.state.offset

    async with simulate(app) as world:
        assert await world.query("Sum.Of", 20) == 41
    assert story == ["opened", "started", "stopped", "closed"]


async def test_a_start_function_that_fails_fails_the_boot_and_the_lifespan_is_left() -> None:
    story: list[str] = []

    @asynccontextmanager
    async def life(app: App) -> AsyncIterator[None]:
        story.append("opened")
        yield
        story.append("closed")

    app = App("hooks", lifespan=life)

    @app.on_start
    async def fail() -> None:
        raise ConnectionError("no database")

    with pytest.raises(BootFailure, match="no database"):
        async with simulate(app):
            pass
    assert story == ["opened", "closed"]
