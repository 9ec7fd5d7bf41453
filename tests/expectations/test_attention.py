"""What the person on call expects: one question tells what needs them, and every count goes down when it is dealt with.

| who | knows it as |
|---|---|
| Temporal | failed workflows on the first page |
| Kafka | consumer groups that are behind, by time and not only by number |
| Sidekiq, Celery Flower | the dead set, failed tasks, and a number that shrinks |
| Grafana | the last minutes, hours and days of a rate |
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, Event, Fail, Perform
from mainspring.client import NodeRefused
from tests.expectations.conftest import Start
from tests.support.running_node import RunningNode

mended = False


def shop() -> App:
    app = App("shop")

    @app.run
    async def checkout(card: str, perform: Perform) -> str:
        if card == "expired" and not mended:
            raise Fail(402, "card declined")
        return card

    @app.consumer("orders", max_attempts=1)
    async def bill(event: Event[Any]) -> None:
        if event.payload == "broken":
            raise ValueError("cannot be billed")

    @app.command("Label.Print")
    async def label(data: dict[str, Any], ctx: Any) -> None:
        raise MemoryError("the printer is out of memory")

    return app


async def needs(node: RunningNode) -> dict[str, int]:
    found = await node.bus.attention()
    assert found["count"] == sum(each["count"] for each in found["needs"])
    assert all(each["remedy"].startswith("mainspring ") and each["examples"] for each in found["needs"])
    return {each["kind"]: each["count"] for each in found["needs"]}


async def test_an_idle_node_needs_nobody(start: Start) -> None:
    async with start(shop()) as node:
        assert await node.bus.attention() == {"count": 0, "needs": []}
        assert await node.query("Syscall.Attention") == {"count": 0, "needs": []}


async def test_failed_runs_are_counted_until_they_are_retried(start: Start) -> None:
    global mended
    mended = False
    async with start(shop()) as node:
        for n in range(3):
            await node.start_run("checkout", "expired" if n else "good", id=f"r-{n}")
            await node.outcome(f"r-{n}")
        assert await needs(node) == {"failed_runs": 2}
        (found,) = (await node.bus.attention())["needs"]
        assert {each["name"] for each in found["examples"]} == {"r-1", "r-2"}
        assert found["examples"][0]["of"] == "checkout"
        assert "card declined" in found["examples"][0]["text"]
        mended = True
        await node.command("Run.Retry", {"id": "r-1"})
        await node.until(lambda: _is(node, {"failed_runs": 1}))


async def test_dead_letters_are_counted_until_they_are_dropped(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish_many("orders", ["good", "broken", "broken"])
        await node.until(lambda: _is(node, {"dead_letters": 2}))
        (found,) = (await node.bus.attention())["needs"]
        assert found["examples"] == [{"name": "orders", "text": "2"}]
        await node.bus.drop_dead_letters("orders", limit=1)
        assert await needs(node) == {"dead_letters": 1}
        await node.bus.drop_dead_letters("orders", all=True)
        assert await needs(node) == {}


async def test_a_group_is_behind_when_its_oldest_event_waits_for_long(start: Start) -> None:
    async with start(shop(), behind_ms=1, history_interval_ms=100) as node:
        await node.publish("mail", "first")
        async with node.bus.subscribe("mail", group="post") as reading:
            event = await anext(aiter(reading))
            await node.until(lambda: _is(node, {"groups": 1}))
            (found,) = (await node.bus.attention())["needs"]
            assert (found["examples"][0]["name"], found["examples"][0]["of"]) == ("post", "mail")
            (group,) = (await node.bus.http.call("GET", "/groups", params={"topic": "mail"}))["groups"]
            assert group["oldest"] == event.ts
            alone = await node.bus.http.call("GET", "/groups/mail/post")
            assert (alone["oldest"], alone["lag"], alone["members"]) == (event.ts, 1, 1)
            await event.ack()
            await node.until(lambda: _is(node, {}))


async def test_calls_that_run_long_or_are_retried_later_are_not_behind_and_those_nobody_takes_are(start: Start) -> None:
    app = App("shop")
    done = asyncio.Event()

    @app.task(concurrency=1)
    async def render() -> None:
        await done.wait()

    @app.task(backoff="1h", max_backoff="1h")
    async def flaky() -> None:
        raise OSError("later")

    async with start(app, behind_ms=1, history_interval_ms=100) as node:
        first = await render.enqueue()
        await flaky.enqueue()

        async def both_begun() -> bool:
            states = {each["task"]: (each["running"], each["retrying"]) for each in await node.bus.tasks()}
            return states == {"shop.render": (1, 0), "shop.flaky": (0, 1)}

        await node.until(both_begun)
        assert await needs(node) == {}
        for _ in range(10):  # more than a worker holds
            await render.enqueue()
        await node.until(lambda: _is(node, {"groups": 1}))
        done.set()
        await first.result("30s")
        await node.until(lambda: _is(node, {}))


async def test_the_lag_of_a_group_is_known_over_time_and_after_a_restart(start: Start) -> None:
    async with start(shop, history_interval_ms=100) as node:
        await node.publish_many("mail", range(5))
        async with node.bus.subscribe("mail", group="post") as reading:
            await anext(aiter(reading))

            async def measured() -> bool:
                points = await node.bus.history("15m", topic="mail", group="post")
                return any(point["lag"] == 5 and point["oldestMs"] > 0 for point in points)

            await node.until(measured)
            assert (await node.bus.history("7d"))[-1]["lag"] == 5
        await node.restart()
        await node.until(measured)
        published = await node.bus.history("15m", topic="mail")
        assert max(point["published"] for point in published) > 0
        times = [point["t"] for point in await node.bus.history()]
        assert times == sorted(times)
        with pytest.raises(NodeRefused):
            await node.bus.history("1y")  # type: ignore[arg-type]
        with pytest.raises(NodeRefused):
            await node.bus.history(topic="mail", group="nobody")


async def _is(node: RunningNode, wanted: dict[str, int]) -> bool:
    return await needs(node) == wanted
