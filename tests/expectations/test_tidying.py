"""What an operator of Temporal, Kafka or RabbitMQ expects of tidying up: workflows, groups and dead letters that go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import App, Event, Fail, Perform, WaitSignal
from mainspring.client import NodeRefused
from mainspring.testing import simulate
from tests.expectations.conftest import Start
from tests.support.running_node import RunningNode

HOUR = timedelta(hours=1)


def shop() -> App:
    app = App("shop")

    @app.run
    async def pay(cents: int, perform: Perform) -> int:
        if cents < 0:
            raise ValueError("nothing to pay")
        if cents == 0:
            await perform(WaitSignal("paid"))
        return cents

    @app.run
    async def order(cents: int, perform: Perform) -> Any:
        async with perform.group() as group:
            group.spawn(pay, cents)
            if cents == 0:
                group.spawn(pay, 7)
        return "done"

    return app


async def ids(node: RunningNode) -> list[str]:
    return sorted([each.id async for each in node.bus.runs()])


async def audited(node: RunningNode, about: str) -> None:
    async def found() -> bool:
        return any(each.get("about") == about for each in await node.events("system.bus.audit"))

    await node.until(found)


async def test_a_finished_run_is_forgotten_with_its_children_and_its_id_is_free(start: Start) -> None:
    async with start(shop, audit=True) as node:
        await node.start_run("order", 5, id="o-1")
        assert (await node.outcome("o-1")).state == "done"
        assert await ids(node) == ["o-1", "o-1~1"]
        assert await node.bus.forget_run("o-1") == 2
        assert await ids(node) == []
        with pytest.raises(Fail) as gone:
            await node.bus.forget_run("o-1")
        assert gone.value.code == 404
        await audited(node, "run o-1")
        await node.crash()
        assert await ids(node) == []
        await node.start_run("order", 6, id="o-1")  # other arguments: it is another run
        assert (await node.outcome("o-1")).state == "done"


async def test_what_is_not_over_is_not_forgotten(start: Start) -> None:
    async with start(shop, audit=True) as node:
        await node.start_run("order", 0, id="o-1")

        async def second_child_is_over() -> bool:
            return "o-1~2" in await ids(node) and (await node.run_state("o-1~2")).state == "done"

        await node.until(second_child_is_over)
        for run, why in (("o-1", "is running"), ("o-1~2", "belongs to o-1")):
            with pytest.raises(Fail, match=why) as refused:
                await node.bus.forget_run(run)
            assert refused.value.code == 409
        assert await node.bus.forget_runs() == 0
        assert await ids(node) == ["o-1", "o-1~1", "o-1~2"]


async def test_runs_are_forgotten_by_state_program_prefix_and_age(start: Start) -> None:
    async with start(shop, audit=True) as node:
        for cents in (-1, 1, 2):
            await node.start_run("pay", cents, id=f"p{cents}")
            await node.outcome(f"p{cents}")
        await node.start_run("order", 3, id="o-1")
        await node.outcome("o-1")
        await node.start_run("pay", 0, id="waits")
        assert await node.bus.forget_runs(before=HOUR) == 0
        assert await node.bus.forget_runs(state="failed") == 1
        assert await node.bus.forget_runs(program="pay", prefix="p1") == 1
        assert await ids(node) == ["o-1", "o-1~1", "p2", "waits"]
        assert await node.bus.forget_runs(before=-HOUR) == 3
        assert await ids(node) == ["waits"]
        await audited(node, "3 runs")


async def test_many_runs_are_forgotten_page_by_page(start: Start) -> None:
    async with start(shop, audit=True) as node:
        for number in range(120):
            await node.start_run("pay", 1, id=f"p{number:03}")
        await node.outcome("p119")

        async def all_are_over() -> bool:
            return [each.id async for each in node.bus.runs(state="running")] == []

        await node.until(all_are_over)
        assert await node.bus.forget_runs(state="done") == 120
        assert await ids(node) == []


async def test_finished_runs_are_forgotten_by_themselves_when_a_retention_is_set(start: Start) -> None:
    async with start(shop, runs_retention_ms=300, runs_recovery_ms=100) as node:
        await node.start_run("pay", 0, id="waits")
        await node.start_run("order", 5, id="o-1")

        async def only_what_waits() -> bool:
            return await ids(node) == ["waits"]

        await node.until(only_what_waits)
        assert (await node.run_state("waits")).state == "running"


async def test_a_group_is_deleted_and_begins_anew(start: Start) -> None:
    async with start(shop, audit=True) as node:
        await node.publish_many("orders", range(3))
        async with node.bus.subscribe("orders", group="g") as reading:
            for _ in range(3):
                await (await anext(aiter(reading))).ack()
            with pytest.raises(NodeRefused) as used:
                await node.bus.delete_group("orders", "g")
            assert used.value.code == "conflict"

        async def is_deleted() -> bool:
            try:
                await node.bus.delete_group("orders", "g")
            except NodeRefused as error:
                return error.code == "unknown_group"
            return True

        await node.until(is_deleted)
        with pytest.raises(NodeRefused) as gone:
            await node.bus.delete_group("orders", "g")
        assert gone.value.code == "unknown_group"
        await audited(node, "group g")
        await node.crash()
        async with node.bus.subscribe("orders", group="g") as reading:
            assert (await anext(aiter(reading))).payload == 0


async def test_letters_are_dropped_one_by_filter_and_all(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders", group="billing", max_attempts=1)
    def bill(event: Event[int]) -> None:
        raise ValueError("small" if event.payload < 3 else "large")

    async with start(app, audit=True) as node:
        await node.publish_many("orders", range(6))

        async def all_died() -> bool:
            return len(await node.dead_letters("orders")) == 6

        await node.until(all_died)
        with pytest.raises(NodeRefused, match="which dead letters"):
            await node.bus.drop_dead_letters("orders")
        assert await node.bus.drop_dead_letters("orders", offsets=[1]) == 1
        assert await node.bus.drop_dead_letters("orders", reason="small") == 2
        assert await node.bus.drop_dead_letters("orders", before=HOUR) == 0
        assert await node.bus.drop_dead_letters("orders", all=True) == 3
        assert await node.dead_letters("orders") == []
        await audited(node, "3 dead letters")


async def groups(node: RunningNode, topic: str = "orders") -> dict[str, int]:
    """The groups of a topic, and how many members each has."""
    found = (await node.query("Bus.Groups", {"topic": topic}))["groups"]
    return {each["group"]: each["members"] for each in found}


async def test_a_group_with_a_time_to_live_goes_with_its_last_member(start: Start) -> None:
    async with start(shop, audit=True) as node:
        await node.publish_many("orders", range(3))
        async with node.bus.subscribe("orders", group="stays") as reading:
            await anext(aiter(reading))
        async with node.bus.subscribe("orders", group="tab", group_ttl="100ms") as reading:
            await anext(aiter(reading))  # what it holds goes, too
            assert (await groups(node))["tab"] == 1
            found = (await node.query("Bus.Groups", {"topic": "orders"}))["groups"]
            assert {each["group"]: each["ttlMs"] for each in found} == {"stays": 0, "tab": 100}

        async def is_gone() -> bool:
            return set(await groups(node)) == {"stays"}

        await node.until(is_gone)
        await audited(node, "group tab")
        async with node.bus.subscribe("orders", group="tab", group_ttl="100ms") as reading:
            assert (await anext(aiter(reading))).payload == 0  # it begins anew
        await node.until(is_gone)
        await node.crash()
        assert set(await groups(node)) == {"stays"}


async def test_such_a_group_goes_also_when_its_node_dies_with_it(start: Start) -> None:
    async with start(shop) as node:
        await node.bus.put_topic("orders", partitions=2)
        connection = await node.bus.subscribe("orders", group="tab", group_ttl="1s").__aenter__()
        await node.until(lambda: groups(node))
        await connection.close()
        await node.crash()

        async def is_gone() -> bool:
            return await groups(node) == {}

        await node.until(is_gone)
        await node.bus.delete_topic("orders")


async def test_a_short_reconnect_keeps_the_place_and_a_lasting_group_is_never_given_a_time() -> None:
    async with simulate(shop()) as world:
        bus = world.client()
        await bus.put_topic("orders")
        async with bus.subscribe("orders", group="tab", from_="latest", group_ttl="1m") as reading:
            await bus.publish("orders", 1)
            await (await anext(aiter(reading))).ack()
        async with bus.subscribe("orders", group="stays"):
            pass
        await world.advance("59s")
        await bus.publish("orders", 2)
        async with bus.subscribe("orders", group="tab", from_="latest", group_ttl="1m") as reading:
            assert (await anext(aiter(reading))).payload == 2
        async with bus.subscribe("orders", group="stays", group_ttl="1m"):
            pass
        await world.advance("61s")
        assert [each["group"] for each in (await world.query("Bus.Groups"))["groups"]] == ["stays"]
