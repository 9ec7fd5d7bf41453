"""What a user of Celery beat, APScheduler, Temporal schedules or cron expects of schedules.

A crash neither stops nor doubles them. They follow the clocks of a time zone. It is said what happens when the call
before is not finished. Somebody can pause one (and a deployment does not start it again), resume it, and run it now.
One sees when it ran last, how that went and how long it took, and when it runs next.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import App, Event
from mainspring.testing import simulate
from tests.expectations.conftest import Start
from tests.support.running_node import RunningNode


def report() -> App:
    app = App("report")

    @app.every("50ms")
    async def tick(event: Event[None]) -> None:
        event.publish("ticks", "tick")

    return app


def midnight(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000


async def schedule(node: RunningNode, name: str) -> dict[str, Any]:
    (found,) = [each for each in await node.bus.schedules() if each["name"] == name]
    return found


async def last(node: RunningNode, name: str) -> dict[str, Any]:
    """How the last call went; waits for one."""

    async def known() -> Any:
        return (await schedule(node, name)).get("last")

    return dict(await node.until(known))


async def test_a_schedule_goes_on_after_a_crash(start: Start) -> None:
    async with start(report) as node:
        await node.until(lambda: node.events("ticks"))
        await node.crash()
        before = len(await node.events("ticks"))

        async def more() -> bool:
            return len(await node.events("ticks")) > before

        await node.until(more)


async def test_a_schedule_that_somebody_paused_stays_paused_when_the_program_starts_again(start: Start) -> None:
    name = "app/report/tick"
    async with start(report) as node:
        await node.until(lambda: node.events("ticks"))
        await node.bus.pause_schedule(name)
        await node.crash()
        assert (await schedule(node, name))["paused"]
        fired = len(await node.events("schedules.report.tick"))
        await node.bus.run_schedule(name)
        assert len(await node.events("schedules.report.tick")) == fired + 1, "only what was asked for"
        assert await node.bus.resume_schedule(name) > 0

        async def goes_on() -> bool:
            return len(await node.events("schedules.report.tick")) > fired + 1

        await node.until(goes_on)


async def test_run_now_calls_the_function(start: Start) -> None:
    app, calls = App("shop"), []

    @app.cron("0 3 1 1 *")
    def stocktaking() -> None:
        calls.append("called")

    async with start(app) as node:
        before = (await schedule(node, "app/shop/stocktaking"))["nextMs"]
        await node.bus.run_schedule("app/shop/stocktaking")
        await node.until(lambda: calls)
        now = await schedule(node, "app/shop/stocktaking")
        assert (now["nextMs"], now["lastMs"] > 0) == (before, True)


async def test_one_sees_how_the_last_call_went_also_after_a_restart(start: Start) -> None:
    app = App("shop")

    @app.cron("0 3 1 1 *")
    async def good() -> None:
        await asyncio.sleep(0.02)

    @app.cron("0 3 1 1 *", max_attempts=1)
    def bad() -> None:
        raise KeyError("sku")

    async with start(app) as node:
        for each in ("good", "bad"):
            await node.bus.run_schedule(f"app/shop/{each}")
        done, failed = await last(node, "app/shop/good"), await last(node, "app/shop/bad")
        assert (done["result"], done["attempt"]) == ("done", 1)
        assert done["durationMs"] >= 20
        assert done["atMs"] > 0
        assert (failed["result"], failed["reason"]) == ("failed", "KeyError: 'sku'")
        await node.restart()
        assert (await last(node, "app/shop/good"), await last(node, "app/shop/bad")) == (done, failed)


@pytest.mark.parametrize("overlap", ["queue", "skip", "allow"])
async def test_what_happens_when_the_call_before_is_not_finished(start: Start, overlap: Any) -> None:
    app, running, most, over, gate = App("shop"), 0, 0, 0, asyncio.Event()

    @app.every("30ms", overlap=overlap)
    async def slow() -> None:
        nonlocal running, most, over
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        over += 1

    async with start(app) as node:
        topic = "schedules.shop.slow"
        if overlap == "skip":
            skipped = await last(node, "app/shop/slow")
            assert skipped["result"] == "skipped"
            assert "to settle" in skipped["reason"]
            await node.until(lambda: running)
            assert len(await node.events(topic)) == 1
        elif overlap == "queue":

            async def three_fired() -> bool:
                return len(await node.events(topic)) >= 3

            await node.until(three_fired)
        else:
            await node.until(lambda: running >= 3)
        await node.bus.pause_schedule("app/shop/slow")
        fired = len(await node.events(topic))
        gate.set()
        await node.until(lambda: over == fired)
        assert (most == 1) == (overlap != "allow")


async def test_a_declared_schedule_that_is_forgotten_comes_back_at_the_next_start(start: Start) -> None:
    async with start(report) as node:
        assert (await schedule(node, "app/report/tick"))["declared"]
        await node.bus.unschedule("app/report/tick")
        assert await node.bus.schedules() == []
        await node.restart()
        assert [each["name"] for each in await node.bus.schedules()] == ["app/report/tick"]


async def test_a_client_schedules_in_a_time_zone_with_jitter(start: Start) -> None:
    async with start(App("shop")) as node:
        options: dict[str, Any] = {"timezone": "America/New_York", "jitter": "5m", "overlap": "skip"}
        following = await node.bus.schedule("late", "t", 1, cron="0 3 * * *", **options)
        known = await schedule(node, "late")
        assert known["nextMs"] == following
        assert 0 <= following - known["dueMs"] <= 300_000
        assert (known["timezone"], known["jitter"], known["overlap"]) == ("America/New_York", 300_000, "skip")
        assert "declared" not in known


async def test_a_time_of_day_is_that_of_the_time_zone() -> None:
    """02:30 does not exist on 31 March 2024 in Berlin, and exists twice on 27 October."""
    app, at = App("clock"), []

    @app.cron("30 2 * * *", timezone="Europe/Berlin")
    def nightly() -> None:
        at.append(world.now.strftime("%m-%d %H:%M"))

    async with simulate(app, start_ms=midnight("2024-03-30")) as world:
        await world.advance("3d")
        assert at == ["03-30 01:30", "03-31 01:00", "04-01 00:30"]
    at.clear()
    async with simulate(app, start_ms=midnight("2024-10-26")) as world:
        await world.advance("3d")
        assert at == ["10-26 00:30", "10-27 00:30", "10-28 01:30"]


async def test_changing_how_calls_overlap_does_not_move_the_next_time() -> None:
    def program(**options: Any) -> App:
        app = App("clock")
        app.every("1h", name="work", **options)(lambda: None)
        return app

    async with simulate(program()) as world:
        await world.advance("20m")
        (before,) = world.schedules()
        world._simulation.app = program(overlap="allow")
        await world.restart()
        (after,) = world.schedules()
        assert (after.overlap, after.next_ms) == ("allow", before.next_ms)
