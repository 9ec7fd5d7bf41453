"""What a user of Temporal expects of a client: start a workflow by its function, signal it, get a typed result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from mainspring import App, Fail, Perform, SyncClient, WaitSignal
from mainspring.client import StartedRun, TimedOut
from mainspring.runs import Cancelled, Failed, Outcome, StoredFailure, Value
from mainspring.testing import simulate
from tests.expectations.conftest import Start
from tests.support.running_node import RealNode

app = App("shop")


@dataclass
class Order:
    id: str
    cents: int = 100


@dataclass
class Receipt:
    order: str
    paid: int


@app.run(name="shop.checkout")
async def checkout(order: Order, perform: Perform) -> Receipt:
    paid: Any = await perform(WaitSignal("paid"))
    if paid is None:
        raise ValueError(f"{order.id} was not paid")
    return Receipt(order.id, paid)


async def test_a_run_is_started_by_its_function_and_gives_its_type(start: Start) -> None:
    async with start(app) as node:
        started = await node.bus.start_run(checkout, Order("o-1"), id="c-1")
        assert_type(started, StartedRun[Receipt])
        assert (started.id, str(started)) == ("c-1", "c-1")
        assert await node.bus.signal(started, "paid", 100)
        outcome = await node.bus.outcome(started)
        assert_type(outcome, Outcome[Receipt])
        assert outcome == Value(Receipt("o-1", 100))
        assert await node.bus.outcome("c-1", checkout) == outcome
        assert await node.bus.outcome("c-1") == Value({"order": "o-1", "paid": 100})
        assert not await node.bus.signal("c-1", "paid", 1)


async def test_a_failure_and_a_cancellation_are_outcomes(start: Start) -> None:
    async with start(app) as node:
        fails = await node.bus.start_run("shop.checkout", {"id": "o-1"})
        await node.bus.signal(fails, "paid", None)
        outcome = await node.bus.outcome(fails)
        assert isinstance(outcome, Failed)
        assert outcome.kind == "failed"
        assert isinstance(outcome.error, StoredFailure)
        assert (outcome.error.type, outcome.error.message) == ("ValueError", "o-1 was not paid")
        stops = await node.bus.start_run(checkout, Order("o-2"))
        assert await node.bus.cancel(stops, "changed my mind")
        assert await node.bus.outcome(stops) == Cancelled("changed my mind")
        assert not await node.bus.cancel(stops)


async def test_waiting_has_an_end_and_unknown_runs_are_errors(start: Start) -> None:
    async with start(app) as node:
        waits = await node.bus.start_run(checkout, Order("o-1"), id="c")
        with pytest.raises(TimedOut, match="run c is still running"):
            await node.bus.outcome(waits, timeout="100ms")
        with pytest.raises(Fail, match="no durable run"):
            await node.bus.outcome("nobody")
        with pytest.raises(Fail, match="other arguments"):
            await node.bus.start_run(checkout, Order("o-2"), id="c")


async def test_runs_are_listed_and_changed_in_bulk(start: Start) -> None:
    async with start(app) as node:
        for n in range(3):
            await node.bus.start_run(checkout, Order(f"o-{n}"), id=f"c-{n}")
        listed = [info async for info in node.bus.runs(state="running", program=checkout)]
        assert [(info.id, info.program) for info in listed] == [(f"c-{n}", "shop.checkout") for n in (2, 1, 0)]
        assert await node.bus.change_runs("cancel", state="running", program=checkout, reason="closed") == {}
        assert [info.id async for info in node.bus.runs(state="running")] == []
        await node.bus.retry_run("c-1")
        await node.bus.signal("c-1", "paid", 5)
        assert await node.bus.outcome("c-1", checkout) == Value(Receipt("o-1", 5))
        assert (await node.bus.run_info("c-1")).retries == 1


async def test_the_blocking_client_has_the_same_verbs(start: Start) -> None:
    def story(url: str) -> None:
        with SyncClient(url) as bus:
            started = bus.start_run(checkout, Order("o-1"))
            assert_type(started, StartedRun[Receipt])
            assert bus.signal(started, "paid", 7)
            assert bus.outcome(started, timeout=30) == Value(Receipt("o-1", 7))
            assert [info.state for info in bus.runs()] == ["done"]

    async with start(app) as node:
        if isinstance(node, RealNode):
            await asyncio.to_thread(story, node.url)


def test_the_blocking_client_of_a_simulation_has_them_too() -> None:
    with simulate(app) as world, world.sync_client() as bus:
        started = bus.start_run(checkout, Order("o-1"))
        bus.signal(started, "paid", 7)
        assert bus.outcome(started) == Value(Receipt("o-1", 7))
