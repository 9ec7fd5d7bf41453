"""Signals, cancellations, waiting and looking from any node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from mainspring.log import Append, Batch, Delete
from mainspring.runs import Cancelled, Signal, Sleep, Value, WaitEvent, WaitSignal
from mainspring.runs.durable.records import JOURNAL, SIGNALS
from tests.support.shared_runs import (
    LEASE_MS,
    Node,
    World,
    add,
    in_virtual_time,
    listener,
    nap,
    node,
    nodes,
    outcomes_of,
    owner_of,
    wait,
)

HOUR = 3_600_000


@in_virtual_time
async def test_signals_from_several_nodes_arrive_once_each_in_the_order_of_the_log(world: World) -> None:
    a, b, c = await nodes(world, "a", "b", "c", recovery_ms=10 * HOUR)
    run = a.start(listener, 6, id="run")
    await wait(10)
    for n in range(2):
        assert await b.durable.signal("run", "news", f"b{n}")
        assert await c.durable.signal("run", "news", f"c{n}")
        assert await a.durable.signal("run", "news", f"a{n}")
    await wait(10)
    assert run.outcome_now() == Value(["b0", "c0", "a0", "b1", "c1", "a1"])
    assert not await b.durable.signal("run", "news", "late")


@in_virtual_time
async def test_signals_are_received_in_the_order_they_came_whatever_the_senders_clocks_say(world: World) -> None:
    a = await node(world, "a")
    late = await node(world, "late", skew_ms=+HOUR)
    early = await node(world, "early", skew_ms=-HOUR)
    a.start(listener, 3, id="run")
    await wait(10)
    a.kill()
    for n, sender in enumerate((late, early, late)):
        assert await sender.durable.signal("run", "news", n)
    await wait(2 * LEASE_MS)
    assert (await late.durable.find("run")).outcome_now() == Value([0, 1, 2])


@in_virtual_time
async def test_a_signal_whose_answer_was_lost_is_sent_once(world: World) -> None:
    a, b = await nodes(world, "a", "b")
    run = a.start(listener, 2, id="run")
    await wait(10)
    b.engine.lose_answers = True
    world.clock.on_move(lambda: setattr(b.engine, "lose_answers", False))
    assert await b.durable.signal("run", "news", "first")
    assert await b.durable.signal("run", "news", "second")
    await wait(1_000)
    assert run.outcome_now() == Value(["first", "second"])
    left = [record.value async for record in b.log.scan(SIGNALS)]
    assert left == [b"", b""], "what was received leaves an empty row until its run is forgotten"


@in_virtual_time
async def test_signals_that_were_sent_before_a_take_over_are_received_after_it_and_those_received_are_not(
    world: World,
) -> None:
    a, b = await nodes(world, "a", "b")
    a.start(listener, 3, id="run")
    await wait(10)
    assert await b.durable.signal("run", "news", 1)
    await wait(10)
    a.kill()
    assert await b.durable.signal("run", "news", 2)
    await wait(2 * LEASE_MS)
    assert await owner_of(world, "run") == "b"
    assert await b.durable.signal("run", "news", 3)
    await wait(10)
    assert (await b.durable.find("run")).outcome_now() == Value([1, 2, 3])


async def sleeps_then_listens(perform: Any) -> list[Any]:
    await perform(Sleep(hours=1))
    return [await perform(WaitSignal("news", timeout=1)) for _ in range(2)]


@in_virtual_time
async def test_a_signal_that_waits_in_a_run_is_received_once_when_the_run_comes_back_to_its_node(world: World) -> None:
    a, b = await nodes(world, "a", "b")
    for each in (a, b):
        each.runtime.register(sleeps_then_listens, "sleeps_then_listens")
    run = a.start(sleeps_then_listens, id="run")
    await wait(100)
    assert await b.durable.signal("run", "news", "early")
    await wait(100)
    b.kill()
    await a.log.commit(Batch([Delete("leases", "node/a")]))  # what another node did as its last deed
    await wait(3 * LEASE_MS)
    assert await owner_of(world, "run") == "a"
    await wait(2 * HOUR)
    assert run.outcome_now() == Value(["early", None])


@in_virtual_time
async def test_a_cancellation_from_another_node_takes_effect_at_once(world: World) -> None:
    a, b = await nodes(world, "a", "b", recovery_ms=10 * HOUR)
    run = a.start(nap, 5, id="run")
    await wait(10)
    assert await b.durable.cancel("run", "enough")
    await wait(10)
    assert run.outcome_now() == Cancelled("enough")
    assert not await b.durable.cancel("run", "again")
    again = await b.durable.retry("run")
    await wait(10)
    assert again.outcome_now() is None, "the wish to cancel went with the outcome"
    assert await owner_of(world, "run") == "b"
    await wait(6 * HOUR)
    assert again.outcome_now() == Value("rested")


@in_virtual_time
async def test_a_cancellation_that_finds_the_owner_dead_is_kept_for_the_next(world: World) -> None:
    a, b = await nodes(world, "a", "b")
    a.start(nap, 5, id="run")
    await wait(10)
    a.kill()
    assert await b.durable.cancel("run", "enough")
    await wait(2 * LEASE_MS)
    assert (await outcomes_of(world))["run"].state == "cancelled"


@in_virtual_time
async def test_a_cancellation_on_a_node_that_loses_the_run_is_made_where_the_run_goes_on(world: World) -> None:
    """It was never answered, and held up every later cancellation on that node."""
    a, _ = await nodes(world, "a", "b")
    a.start(nap, 5, id="run")
    await wait(10)
    a.freeze()
    asked = asyncio.create_task(a.durable.cancel("run", "enough"))
    await wait(3 * LEASE_MS)
    assert await owner_of(world, "run") == "b"
    a.thaw()
    await wait(LEASE_MS)
    assert asked.done()
    assert asked.result()
    assert (await outcomes_of(world))["run"].state == "cancelled"


@in_virtual_time
async def test_runs_on_different_nodes_signal_each_other_exactly_once(world: World) -> None:
    async def sender(perform: Any) -> bool:
        return bool(await perform(Signal("receiver", "news", "hello")))

    a, b = await nodes(world, "a", "b")
    for each in (a, b):
        each.runtime.register(sender, "sender")
    b.start(listener, 1, id="receiver")
    await wait(10)
    a.engine.lose_answers = True
    a.start(sender, id="sender")
    await wait(100)
    a.engine.lose_answers = False
    await wait(5_000)
    outcomes = await outcomes_of(world)
    assert bytes(outcomes["receiver"].value) == b'["hello"]'
    assert bytes(outcomes["sender"].value) == b"true"


class Topic:
    """The events of one topic, as a node's bus would give them."""

    def __init__(self, node: Node) -> None:
        self._log = node.log

    async def position(self, topic: str) -> Any:
        bounds = await self._log.bounds(topic)
        return bounds[0].tail if bounds else 0

    async def follow(self, topic: str, position: int) -> AsyncIterator[Mapping[str, Any]]:
        while True:
            for event in await self._log.read(topic, 0, position + 1, 10):
                position = event.offset
                yield {"payload": event.payload.decode()}
            await wait(50)


@in_virtual_time
async def test_a_run_that_waits_for_an_event_goes_on_waiting_elsewhere_from_the_same_place(world: World) -> None:
    async def waiter(perform: Any) -> Any:
        return (await perform(WaitEvent("orders")))["payload"]

    a, b = await nodes(world, "a", "b")
    for each in (a, b):
        each.runtime.register(waiter, "waiter")
        each.runtime.connect(events=Topic(each))
    await b.log.commit(Batch([Append("orders", 0, "0", 0, b"before")]))
    a.start(waiter, id="run")
    await wait(100)
    a.kill()
    await b.log.commit(Batch([Append("orders", 0, "1", 0, b"between")]))
    await wait(2 * LEASE_MS)
    assert (await b.durable.find("run")).outcome_now() == Value("between")


@in_virtual_time
async def test_a_sleep_costs_one_row_in_the_end(world: World) -> None:
    (a,) = await nodes(world, "a")
    a.start(nap, 1, id="run")
    await wait(HOUR + 1_000)
    assert [record.key async for record in a.log.scan(JOURNAL)] == ["run#00000000", "run#00000001", "run#00000002"]


@in_virtual_time
async def test_finished_runs_are_forgotten_by_one_node_when_their_time_is_up(world: World) -> None:
    a, b = await nodes(world, "a", "b", retention_ms=60_000, recovery_ms=1_000)
    a.start(add, 2, id="old")
    b.start(listener, 1, id="heard")
    await wait(10)
    await a.durable.signal("heard", "news", 1)
    await wait(50_000)
    assert len(await outcomes_of(world)) == 2
    await wait(20_000)
    for space in ("runs", "runs/done", "journal/runs", "runs/signals"):
        assert [record.key async for record in a.log.scan(space)] == []
