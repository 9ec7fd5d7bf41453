"""Schedules on a log that several nodes share: one fires, every node pauses, resumes and runs them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, Event
from tests.support.upgrade import LEASE_MS, Site, Upgraded, story, wait

NAME = "app/shop/tick"


def program() -> App:
    app = App("shop")

    @app.every("5s")
    def tick(event: Event) -> None:  # type: ignore[type-arg]
        event.publish("ticks", event.offset)

    return app


async def ask(node: Upgraded, type: str) -> Any:
    return await node.ask("command", type, {"name": NAME})


@story
async def test_any_node_pauses_resumes_and_runs_and_all_of_them_know(site: Site) -> None:
    nodes = [await site.start(name, program()) for name in ("a", "b", "c")]
    await wait(5_000)
    for turn, node in enumerate(nodes, 1):
        assert (await ask(node, "Bus.PauseSchedule"))["paused"]
        fired = len(await site.stored("ticks"))
        await wait(20_000)
        assert len(await site.stored("ticks")) == fired
        assert all(each.core.bus.schedules.get(NAME).paused for each in nodes)
        await ask(nodes[-turn], "Bus.RunSchedule")
        await wait(1_000)
        assert len(await site.stored("ticks")) == fired + 1
        assert "paused" not in await ask(nodes[turn % 3], "Bus.ResumeSchedule")
        await wait(10_000)
        assert len(await site.stored("ticks")) == fired + 3
        (last,) = {each.core.bus.schedules.get(NAME).last for each in nodes}
        assert last is not None
        assert last.result == "done"


@story
async def test_a_pause_outlives_every_node(site: Site) -> None:
    a = await site.start("a", program())
    await ask(a, "Bus.PauseSchedule")
    a.kill()
    b = await site.start("b", program())
    await wait(LEASE_MS * 10)
    assert await site.stored("ticks") == []
    assert b.core.bus.schedules.get(NAME).paused


@pytest.mark.parametrize("overlap", ["queue", "skip", "allow"])
@story
async def test_calls_overlap_on_no_two_nodes_unless_they_may(site: Site, overlap: Any) -> None:
    running = most = calls = 0

    def slow_program() -> App:
        app = App("shop")

        @app.every("5s", overlap=overlap)
        async def tick() -> None:
            nonlocal running, most, calls
            running += 1
            calls += 1
            most = max(most, running)
            await asyncio.sleep(12)
            running -= 1

        return app

    for name in ("a", "b", "c"):
        await site.start(name, slow_program())
    await wait(120_000)
    fired = len(await site.stored("schedules.shop.tick"))
    assert (most > 1) == (overlap == "allow")
    if overlap == "skip":
        assert 6 <= fired <= 8
    else:
        assert fired >= 23
        assert calls >= (9 if overlap == "queue" else 22)
