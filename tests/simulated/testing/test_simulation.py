"""`simulate`: the same test does the same every time, on any loop, and a crash is one line."""

from __future__ import annotations

import asyncio
import random
from dataclasses import asdict
from typing import Any

import pytest

from mainspring import App, Effect, Event, Fail, Publish, Sleep, WaitEvent, resume
from mainspring.loop import VirtualEventLoop
from mainspring.testing import DidNotHappen, World, simulate


class Charge(Effect[str]):
    card: str


def shop() -> App:
    app = App("shop")
    app.state.charged = []

    @app.command("Order.Place")
    async def place(data: dict, ctx: Any) -> dict:
        await ctx.publish("orders", data, key=data["id"])
        return {"luck": random.random()}

    @app.consumer("orders", group="billing")
    async def bill(event: Event[dict]) -> None:
        event.start_run(checkout, event.payload["id"])

    @app.handles(Charge)
    async def charge(effect: Charge) -> Any:
        app.state.charged.append(effect.card)
        return resume(f"receipt for {effect.card}")

    @app.run
    async def checkout(card: str, perform: Any) -> str:
        receipt = await perform(Charge(card))
        await perform(Sleep(hours=24))
        await perform(Publish("receipts", {"text": receipt}))
        return receipt

    @app.run
    async def waits(perform: Any) -> Any:
        return (await perform(WaitEvent("orders", {"id": "wanted"})))["payload"]

    @app.enzyme("/count/*")
    def count(signal: str, target: str | None, stage: Any) -> None:
        stage.write("/count", (stage.read("/count") or 0) + 1)

    @app.command("Never.Answers")
    async def never(data: Any, ctx: Any) -> None:
        await asyncio.get_running_loop().create_future()

    return app


async def story(world: World) -> list[Any]:
    """One of everything, and all that can be seen of it afterwards."""
    luck = await world.command("Order.Place", {"id": "o-1"})
    await world.advance("1h")
    await world.crash_and_restart(down="3h")
    await world.publish("orders", {"id": "wanted"})
    await world.signal("/count/x")
    await world.advance("25h")
    topics = [asdict(event) for topic in ("orders", "receipts") for event in world.events(topic)]
    return [luck, topics, [asdict(run) for run in world.runs()], world.read("/count"), world.random.random()]


async def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    async def told(seed: int) -> list[Any]:
        async with simulate(shop(), seed=seed) as world:
            return await story(world)

    first, again, other = await told(1), await told(1), await told(2)
    assert first == again
    assert first != other
    assert first[2] == other[2]  # what happened is the same; ids and chance differ


async def test_a_run_goes_on_after_a_crash_between_two_effects_and_no_effect_is_done_twice() -> None:
    app = shop()
    async with simulate(app) as world:
        await world.command("Order.Place", {"id": "o-1"})
        (begun,) = world.runs("checkout")
        assert begun.state == "running"
        for _ in range(3):
            await world.advance("1h")
            await world.crash_and_restart()
        outcome = await world.outcome(begun.id)
        assert outcome.value == "receipt for o-1"  # type: ignore[union-attr]
        assert world.events("receipts").payloads == [{"text": "receipt for o-1"}]
        assert world.now.isoformat() == "2026-01-02T00:00:00+00:00"
    assert app.state.charged == ["o-1"]


async def test_a_run_waits_for_an_event_over_a_crash() -> None:
    async with simulate(shop()) as world:
        id = await world.start_run("waits", id="w")
        await world.publish("orders", {"id": "other"})
        await world.crash_and_restart()
        assert world.run(id).state == "running"
        await world.publish("orders", {"id": "wanted"})
        assert world.run(id).value == {"id": "wanted"}


async def test_what_was_not_committed_is_gone_after_a_crash_and_nothing_of_the_old_life_runs_on() -> None:
    app, story = App("mortal"), []

    @app.consumer("n")
    async def slow(event: Event[int]) -> None:
        try:
            story.append(f"begun {event.attempt}")
            await asyncio.sleep(60)
            story.append("done")
        finally:
            story.append("left")

    async with simulate(app) as world:
        await world.publish("n", 1)
        await world.advance("1s")
        await world.crash_and_restart()
        assert story == ["begun 1", "begun 2"]
        await world.advance("2m")
        assert story == ["begun 1", "begun 2", "done", "left"]


async def test_a_request_that_is_never_answered_times_out_in_virtual_time() -> None:
    async with simulate(shop()) as world:
        before = world.now_ms
        with pytest.raises(Fail) as caught:
            await world.command("Never.Answers", None)
        assert caught.value.code == 504
        assert world.now_ms - before == 30_000


async def test_until_waits_in_virtual_time_and_says_when_it_did_not_happen() -> None:
    async with simulate(shop()) as world:
        await world.command("Order.Place", {"id": "o-1"})
        found = await world.until(lambda: world.events("receipts"))
        assert len(found) == 1
        with pytest.raises(DidNotHappen, match="within 2h"):
            await world.until(lambda: False, within="2h")


async def test_time_passes_exactly_as_far_as_it_is_told() -> None:
    async with simulate(shop(), start_ms=1_000) as world:
        for _ in range(10):
            await world.advance(0.001)
            await world.settle()
        assert world.now_ms == 1_010
        await world.advance_to(world.now.replace(year=1971))
        assert world.now.year == 1971


async def test_messages_are_remembered_over_all_lives() -> None:
    async with simulate(shop()) as world:
        await world.command("Order.Place", {"id": "a"})
        await world.crash_and_restart()
        await world.command("Order.Place", {"id": "b"})
        assert [data["id"] for data in world.said("Order.Place") if "id" in data] == ["a", "b"]


async def test_events_may_also_be_awaited() -> None:
    async with simulate(shop()) as world:
        await world.publish("orders", {"id": "a"})
        assert (await world.events("orders")) == world.events("orders")
        assert world.events("nothing") == []


def test_a_world_is_used_without_asyncio_too() -> None:
    with simulate(shop()) as world:
        with pytest.raises(StopIteration):
            world.command("Order.Place", {"id": "a"}).send(None)
        assert world.events("orders").payloads == [{"id": "a"}]


def test_it_runs_on_every_kind_of_loop() -> None:
    async def main() -> int:
        async with simulate(shop()) as world:
            await world.command("Order.Place", {"id": "a"})
            await asyncio.sleep(0)  # the test's own loop is as it was
            return len(world.events("orders"))

    assert asyncio.run(main()) == 1
    with asyncio.Runner(loop_factory=VirtualEventLoop) as runner:
        assert runner.run(main()) == 1
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == 1


async def test_the_global_chance_of_the_test_is_left_as_it_was() -> None:
    random.seed(5)
    wanted = random.random()
    random.seed(5)
    async with simulate(shop(), seed=1) as world:
        await world.command("Order.Place", {"id": "a"})
    assert random.random() == wanted
