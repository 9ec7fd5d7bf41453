"""What belongs together happens together: replies, events, runs and acknowledgements, over any crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, Ask, Effect, Event, Fail, Publish, Sleep
from mainspring.runs import RunConflict
from mainspring.testing import simulate


def durable_shop() -> tuple[App, list[str]]:
    app, runs = App("shop"), []

    @app.command("Order.Place", durable=True)
    async def place(data: dict, ctx: Any) -> dict:
        runs.append(data["id"])
        await ctx.publish("orders", {"id": data["id"]}, key=data["id"])
        await ctx.publish("mails", {"to": data["id"]})
        if data.get("slow"):
            await ctx.sleep(60)
        if data.get("refuse"):
            raise Fail(409, "sold out")
        if data.get("crash"):
            raise RuntimeError("a defect")
        return {"ok": True}

    return app, runs


async def test_a_durable_handlers_events_come_with_its_reply() -> None:
    app, _ = durable_shop()
    async with simulate(app) as world:
        await world.begin("command", "Order.Place", {"id": "a", "slow": True})
        await world.advance("59s")
        assert world.events("orders") == []
        await world.advance("2s")
        assert world.events("orders").payloads == [{"id": "a"}]
        assert world.events("mails").payloads == [{"to": "a"}]


async def test_a_crash_before_the_reply_leaves_no_event_and_the_command_runs_again() -> None:
    app, runs = durable_shop()
    async with simulate(app) as world:
        await world.begin("command", "Order.Place", {"id": "a", "slow": True})
        await world.advance("30s")
        await world.crash_and_restart()
        assert world.events("orders") == []
        await world.advance("2m")
        assert world.events("orders").payloads == [{"id": "a"}]
        await world.crash_and_restart()
        await world.advance("2m")
        assert world.events("orders").payloads == [{"id": "a"}]
    assert runs == ["a", "a"]


@pytest.mark.parametrize("how", ["refuse", "crash"])
async def test_a_durable_handler_that_fails_has_published_nothing(how: str) -> None:
    app, _ = durable_shop()
    async with simulate(app) as world:
        with pytest.raises(Fail):
            await world.command("Order.Place", {"id": "a", how: True})
        await world.advance("1m")
        assert world.events("orders") == []


async def test_a_delayed_event_of_a_durable_handler_is_stored_once_although_it_runs_twice() -> None:
    app = App("shop")

    @app.command("Order.Remind", durable=True)
    async def remind(data: Any, ctx: Any) -> None:
        await ctx.publish("reminders", data, delay="1s")
        await ctx.sleep(60)

    async with simulate(app) as world:
        await world.begin("command", "Order.Remind", {"id": "a"})
        await world.advance("30s")
        await world.crash_and_restart()
        await world.advance("5m")
        assert world.events("reminders").payloads == [{"id": "a"}]


async def test_a_plain_handlers_events_are_there_before_its_reply() -> None:
    app = App("shop")

    @app.command("Order.Place")
    async def place(data: dict, ctx: Any) -> dict:
        where = await ctx.publish("orders", data)
        return {"offset": where.offset}

    async with simulate(app) as world:
        assert await world.command("Order.Place", {"id": "a"}) == {"offset": 1}


def pipeline() -> App:
    app = App("pipeline")
    app.state.done = []

    @app.consumer("orders", group="billing", max_attempts=100)
    async def bill(event: Event[dict]) -> None:
        if event.payload.get("slow"):
            await asyncio.sleep(60)
        event.start_run(checkout, event.payload["id"])
        event.publish("billed", {"id": event.payload["id"]}, key=event.key)
        if event.payload.get("fail") and event.attempt < 3:
            raise ValueError("not yet")

    @app.run
    async def checkout(id: str, perform: Any) -> str:
        await perform(Sleep(hours=1))
        app.state.done.append(id)
        return id

    return app


async def test_a_run_an_event_and_the_acknowledgement_are_one_commit() -> None:
    app = pipeline()
    async with simulate(app) as world:
        await world.publish("orders", {"id": "a", "slow": True})
        await world.advance("30s")
        await world.crash_and_restart()
        assert (world.runs(), world.events("billed")) == ([], [])
        await world.advance("61s")
        commits = world.node.log.commits
        await world.crash_and_restart()
        await world.advance("3h")
        assert [(run.id, run.value) for run in world.runs()] == [("orders/billing/0/1", "a")]
        assert world.events("billed").payloads == [{"id": "a"}]
        assert commits
    assert app.state.done == ["a"]


async def test_a_consumer_that_fails_has_started_and_published_nothing() -> None:
    app = pipeline()
    async with simulate(app) as world:
        await world.publish("orders", {"id": "a", "fail": True})
        assert (world.runs(), world.events("billed")) == ([], [])
        await world.advance("10s")
        assert [run.program for run in world.runs()] == ["checkout"]
        assert world.events("billed").payloads == [{"id": "a"}]


@pytest.mark.seeds(12)
async def test_each_event_starts_exactly_one_run_however_often_the_node_dies(mainspring_seed: int) -> None:
    app = pipeline()
    async with simulate(app) as world:
        for n in range(30):
            await world.publish("orders", {"id": f"o-{n}", "slow": world.random.random() < 0.05})
            if world.random.random() < 0.3:
                await world.advance(world.random.choice([0, 0.001, 0.02, 30]))
                await world.crash_and_restart(down=world.random.choice([0, "1m"]))
        await world.advance("1d")
        assert world.dead_letters("orders") == []
        assert sorted(run.value for run in world.runs()) == sorted(f"o-{n}" for n in range(30))
        assert sorted(event.payload["id"] for event in world.events("billed")) == sorted(f"o-{n}" for n in range(30))
    assert sorted(app.state.done) == sorted(f"o-{n}" for n in range(30))


async def test_a_run_that_exists_already_is_left_alone_and_the_event_is_acknowledged() -> None:
    app, started = App("ids"), []

    @app.run
    async def work(n: int, perform: Any) -> int:
        started.append(n)
        return n

    @app.run
    async def other(n: int, perform: Any) -> int:
        return n

    @app.consumer("n", max_attempts=1)
    async def start(event: Event[dict]) -> None:
        event.start_run(event.payload["program"], event.payload["n"], id="same")

    async with simulate(app) as world:
        await world.publish("n", {"program": "work", "n": 1})
        await world.publish("n", {"program": "work", "n": 1})
        await world.advance("1s")
        assert (started, world.lag("n", "ids.start")) == ([1], 0)
        await world.publish("n", {"program": "other", "n": 3})
        await world.advance("1s")
        (letter,) = world.dead_letters("n")
        assert letter.reason.startswith(RunConflict.__name__)


async def test_arguments_that_no_journal_can_keep_refuse_the_event_with_the_reason() -> None:
    app = App("ids")

    @app.run
    async def work(thing: Any, perform: Any) -> None: ...

    @app.consumer("n", max_attempts=1)
    async def start(event: Event[Any]) -> None:
        event.start_run(work, object())

    async with simulate(app) as world:
        await world.publish("n", {})
        await world.advance("1s")
        assert "Unserialisable" in world.dead_letters("n")[0].reason


async def test_many_consumers_of_one_partition_settle_side_by_side() -> None:
    app = App("busy")

    @app.run
    async def work(n: int, perform: Any) -> int:
        return n

    @app.consumer("n", concurrency=20)
    async def start(event: Event[int]) -> None:
        if event.payload % 7 == 3 and event.attempt == 1:
            raise ValueError("once more")
        if event.payload % 5 == 0:
            event.start_run(work, event.payload)

    @app.consumer("n", group="doomed", concurrency=5, max_attempts=1)
    async def doomed(event: Event[int]) -> None:
        event.publish("seen", event.payload)
        if event.payload % 2:
            raise ValueError("a dead letter between settlements")

    async with simulate(app) as world:
        for n in range(100):
            await world.publish("n", n)
        await world.advance("1m")
        assert sorted(run.value for run in world.runs()) == list(range(0, 100, 5))
        assert sorted(world.events("seen").payloads) == list(range(0, 100, 2))
        assert len(world.dead_letters("n")) == 50
        assert {group.group: group.partitions[0].lag for group in world.groups("n")} == {"busy.start": 0, "doomed": 0}


class Charge(Effect[None]):
    cents: int


def without_ids(tree: str) -> list[str]:
    return [line.removesuffix("  <--").rpartition("  ")[0] for line in tree.splitlines()]


async def test_one_tree_spans_command_event_run_effect_and_beat() -> None:
    app = App("tree")
    app.handles(Charge)(lambda effect: None)

    @app.command("Order.Place")
    async def place(data: dict, ctx: Any) -> dict:
        await ctx.publish("orders", data)
        return {}

    @app.consumer("orders")
    async def bill(event: Event[dict]) -> None:
        event.start_run(checkout, id="r-1")

    @app.run
    async def checkout(perform: Any) -> None:
        await perform(Charge(5))
        await perform(Ask("Stock.Take", {}, kind="command"))
        await perform(Publish("receipts", {}))

    @app.command("Stock.Take")
    async def take(data: dict, ctx: Any) -> dict:
        return {}

    @app.enzyme("/topics/orders", match="prefix")
    def count(signal: str, target: str | None, stage: Any) -> None:
        stage.write("/seen", True)

    app.beats_from("orders")
    async with simulate(app) as world:
        await world.command("Order.Place", {"id": "a"})
        await world.advance("1s")
        (first,) = [
            message for message in world.messages if message.type == "Order.Place" and message.kind == "command"
        ]
        shown = without_ids(world.trace(first.id))
        assert world.read("/seen") is True
        await world.crash_and_restart()
        assert without_ids(world.trace("r-1")) == [
            "run checkout",
            "  effect Charge",
            "  effect Ask",
            "  effect Publish",
        ]
    assert shown == [
        "command Order.Place",
        "  event orders",
        "    run checkout",
        "      effect Charge",
        "      effect Ask",
        "        command Stock.Take",
        "          reply Stock.Take",
        "      event receipts",
        "      event Run.Completed",
        "    beat signal",
        "  reply Order.Place",
    ]
