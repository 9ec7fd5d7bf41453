"""Who executes a run, and who goes on with it when that node is gone."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from mainspring.log import Batch, Delete
from mainspring.runs import Cancelled, Effect, Value, WaitSignal
from mainspring.runs.cluster.placement import PROGRAMS as PROGRAM_SPACE
from tests.support.shared_runs import (
    LEASE_MS,
    Hop,
    Stop,
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
async def test_a_run_is_executed_where_it_was_started_and_known_everywhere(world: World) -> None:
    a, b = await nodes(world, "a", "b")
    run = a.start(add, 3, id="sum")
    assert await run.outcome() == Value(3)
    assert b.hops == []
    await wait(1)
    assert (await b.durable.find("sum")).outcome_now() == Value(3)
    assert [record.id for record in await b.durable.store.runs()] == ["sum"]
    assert len((await b.durable.history("sum")).journal) == 3


@in_virtual_time
async def test_a_handle_on_another_node_hears_the_outcome_without_looking_for_it(world: World) -> None:
    a, b = await nodes(world, "a", "b", recovery_ms=10 * HOUR)
    a.start(nap, 1, id="sleeper")
    await wait(100)
    watched = await b.durable.find("sleeper")
    same = b.start(nap, 1, id="sleeper")
    await wait(HOUR + 10)
    assert watched.outcome_now() == same.outcome_now() == Value("rested")
    assert b.hops == []


@in_virtual_time
async def test_one_id_started_everywhere_at_once_is_one_run(world: World) -> None:
    three = await nodes(world, "a", "b", "c")
    runs = [each.start(add, 5, id="same") for each in three]
    assert [await run.outcome() for run in runs] == [Value(10)] * 3
    assert sorted(n for each in three for _, n in each.hops) == [0, 1, 2, 3, 4]
    assert len(await outcomes_of(world)) == 1


@in_virtual_time
async def test_runs_of_a_dead_node_go_on_spread_over_the_living(world: World) -> None:
    a, b, c = await nodes(world, "a", "b", "c")
    for n in range(60):
        a.start(nap, 1, id=f"run-{n}")
    await wait(100)
    a.kill()
    await wait(1.5 * LEASE_MS)
    owners = Counter([await owner_of(world, f"run-{n}") for n in range(60)])
    assert set(owners) == {"b", "c"}
    assert min(owners.values()) > 10, "neither has nearly all"
    await wait(HOUR)
    outcomes = await outcomes_of(world)
    assert len(outcomes) == 60
    assert all(record.state == "done" for record in outcomes.values())
    assert [n for _, n in a.hops] == [1] * 60
    assert Counter(n for each in (b, c) for _, n in each.hops) == {2: 60}, "what was answered stays answered"


@in_virtual_time
async def test_a_node_that_leaves_in_order_is_followed_at_once(world: World) -> None:
    a, _ = await nodes(world, "a", "b")
    a.start(nap, 1, id="run")
    await wait(100)
    await a.leave()
    await wait(10)
    assert await owner_of(world, "run") == "b"


@in_virtual_time
async def test_a_node_that_starts_later_takes_what_a_whole_dead_cluster_left(world: World) -> None:
    (a,) = await nodes(world, "a")
    a.start(nap, 1, id="run")
    await wait(100)
    a.kill()
    await wait(5 * LEASE_MS)
    b = await node(world, "b")
    await wait(2 * LEASE_MS)
    assert await owner_of(world, "run") == "b"
    await wait(HOUR)
    assert (await b.durable.find("run")).outcome_now() == Value("rested")


@in_virtual_time
async def test_a_stopped_node_cannot_write_an_answer_or_an_outcome_after_it_was_replaced(world: World) -> None:
    a, b = await nodes(world, "a", "b")

    async def stop(perform: Any) -> str:
        await perform(Stop(1))
        return "ended"

    for each in (a, b):
        each.runtime.register(stop, "stop")
    await wait(10)
    run = a.start(stop, id="run")
    await wait(10)
    a.freeze()
    await wait(2 * LEASE_MS)
    assert await owner_of(world, "run") == "b"
    a.stopped[0].resume(1)  # the answer came while the process was stopped
    a.thaw()
    await wait(LEASE_MS)
    assert await owner_of(world, "run") == "b"
    assert (await b.durable.history("run")).journal == []
    b.stopped[0].resume(2)
    await wait(10)
    (entry,) = (await a.durable.history("run")).journal
    assert bytes(entry.value) == b"2"
    assert run.outcome_now() == Value("ended"), "the handle on the first node hears of it"
    assert len(await outcomes_of(world)) == 1


class Charge(Effect[str]):
    """Fails where its node does not."""


@in_virtual_time
async def test_a_stopped_node_tries_nothing_again_after_it_was_replaced(world: World) -> None:
    """The pause between two attempts is over when it wakes; its lease is, too."""
    a, b = await nodes(world, "a", "b")
    tried: list[str] = []

    async def charge(perform: Any) -> str:
        paid: str = await perform(Charge())
        return paid

    def fail(effect: Charge, ctx: Any) -> Any:
        tried.append(f"a {ctx.attempt}")
        raise ConnectionError

    def succeed(effect: Charge, ctx: Any) -> str:
        tried.append(f"b {ctx.attempt}")
        return "paid"

    for each, handler in ((a, fail), (b, succeed)):
        each.runtime.handle(Charge, handler, max_attempts=5, backoff=LEASE_MS / 1000)
        each.runtime.register(charge, "charge")
    await wait(10)
    run = a.start(charge, id="run")
    await wait(10)
    assert tried == ["a 1"]
    a.freeze()
    await wait(3 * LEASE_MS)
    assert tried == ["a 1", "b 2"]
    a.thaw()
    await wait(3 * LEASE_MS)
    assert tried == ["a 1", "b 2"]
    assert run.outcome_now() == Value("paid")


@in_virtual_time
async def test_a_step_whose_answer_was_stored_before_the_stop_is_not_followed_by_another(world: World) -> None:
    a, b = await nodes(world, "a", "b")

    async def hops(perform: Any) -> int:
        await perform(Stop(1))
        return int(await perform(Hop(1)))

    for each in (a, b):
        each.runtime.register(hops, "hops")
    await wait(10)
    run = a.start(hops, id="run")
    await wait(10)
    commit = a.engine.commit

    async def stop_behind_it(batches: Any) -> Any:
        """It is stored, and the process is stopped before it reads the answer."""
        results = await commit(batches)
        a.engine.commit = commit
        a.freeze()
        await wait(3 * LEASE_MS)
        a.thaw()
        return results

    a.engine.commit = stop_behind_it
    a.stopped[0].resume(1)
    await wait(4 * LEASE_MS)
    assert (a.hops, [n for _, n in b.hops]) == ([], [1])
    assert run.outcome_now() == Value(1)


@in_virtual_time
async def test_a_node_that_was_cut_off_comes_back_and_is_used_again(world: World) -> None:
    a, b = await nodes(world, "a", "b")
    run = a.start(nap, 1, id="run")
    await wait(100)
    a.engine.cut_off = True
    started = a.start(add, 3, id="begun while cut off")
    await wait(2 * LEASE_MS)
    assert await owner_of(world, "run") == "b"
    assert started.outcome_now() is None
    a.engine.join_again()
    await wait(LEASE_MS)
    assert started.outcome_now() == Value(3), "what could not be written down is begun under the new lease"
    b.kill()
    await wait(2 * LEASE_MS)
    assert await owner_of(world, "run") == "a"
    await wait(HOUR)
    assert run.outcome_now() == Value("rested")


@in_virtual_time
async def test_the_last_node_takes_its_own_runs_back(world: World) -> None:
    a, b = await nodes(world, "a", "b")
    run = a.start(nap, 1, id="run")
    await wait(100)
    b.kill()
    await a.log.commit(Batch([Delete("leases", "node/a")]))  # what another node did as its last deed
    await wait(3 * LEASE_MS)
    assert await owner_of(world, "run") == "a"
    await wait(HOUR)
    assert run.outcome_now() == Value("rested")


@in_virtual_time
async def test_clocks_that_disagree_by_days_change_nothing_about_who_owns_a_run(world: World) -> None:
    a = await node(world, "a", skew_ms=-48 * HOUR)
    b = await node(world, "b", skew_ms=+48 * HOUR)
    a.start(listener, 1, id="run")
    for _ in range(20):
        await wait(LEASE_MS)
        assert await owner_of(world, "run") == "a"
    a.kill()
    await wait(1.5 * LEASE_MS)
    assert await owner_of(world, "run") == "b"
    await b.durable.signal("run", "news", "hello")
    await wait(10)
    assert (await b.durable.find("run")).outcome_now() == Value(["hello"])


@in_virtual_time
async def test_a_run_goes_to_a_node_that_has_its_program(world: World) -> None:
    a = await node(world, "a")
    b = await node(world, "b", programs=(add,))
    c = await node(world, "c")
    await wait(10)
    for n in range(10):
        a.start(nap, 1, id=f"run-{n}")
    await wait(100)
    a.kill()
    await wait(2 * LEASE_MS)
    assert {await owner_of(world, f"run-{n}") for n in range(10)} == {"c"}
    assert b.runtime.live == 0
    assert len(c.runtime.runs()) == 10


@in_virtual_time
async def test_a_run_whose_program_no_living_node_has_stays_and_is_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a = await node(world, "a")
    b = await node(world, "b", programs=(add,))
    a.start(nap, 1, id="run")
    await wait(100)
    a.kill()
    with caplog.at_level(logging.WARNING, logger="mainspring.runs"):
        await wait(5 * LEASE_MS)
    assert [record for record in caplog.records if "no living node has program nap" in record.getMessage()]
    assert (await b.durable.store.record("run")).state == "running"
    waiting = await b.durable.store.record("run")
    assert b.durable.ownership.waits_for(waiting) == "program nap"
    b.runtime.register(nap, "nap")
    await wait(LEASE_MS)
    assert await owner_of(world, "run") == "b"


@in_virtual_time
async def test_a_run_can_be_started_tried_again_and_forked_where_its_program_is_unknown(world: World) -> None:
    a = await node(world, "a")
    b = await node(world, "b", programs=())
    await wait(10)
    run = b.start("add", 4, id="far")
    await b.durable.written(run)
    assert await run.outcome() == Value(6)
    assert len(a.hops) == 4
    forked = await b.durable.fork("far", 2, "fork")
    assert await forked.outcome() == Value(6)
    assert len(a.hops) == 6
    a.start(listener, 1, id="cut")
    await wait(10)
    assert await b.durable.cancel("cut", "enough")
    await wait(10)
    assert (await b.durable.find("cut")).outcome_now() == Cancelled("enough")
    again = await b.durable.retry("cut")
    await b.durable.signal("cut", "news", 1)
    assert await again.outcome() == Value([1])


@in_virtual_time
async def test_what_dead_nodes_could_execute_is_forgotten(world: World) -> None:
    a, b = await nodes(world, "a", "b")
    assert len([record async for record in b.log.scan(PROGRAM_SPACE)]) == 2
    a.kill()
    await wait(5 * LEASE_MS)
    assert len([record async for record in b.log.scan(PROGRAM_SPACE)]) == 1


async def parent(perform: Any) -> list[Any]:
    async with perform.group() as group:
        children = [group.spawn(child, n) for n in range(3)]
    return [await each for each in children]


async def child(n: int, perform: Any) -> int:
    await perform(Hop(n))
    return int(await perform(WaitSignal("go"))) * 10 + n


@in_virtual_time
async def test_children_go_with_their_parent(world: World) -> None:
    a, b, c = [await node(world, name, programs=(parent, child)) for name in "abc"]
    a.start(parent, id="p")
    await wait(100)
    a.kill()
    await wait(2 * LEASE_MS)
    owners = {await owner_of(world, run_id) for run_id in ("p", "p~1", "p~2", "p~3")}
    assert len(owners) == 1
    assert owners <= {"b", "c"}
    assert b.hops == c.hops == []
    for n in (1, 2, 3):
        assert await b.durable.signal(f"p~{n}", "go", n)
    await wait(100)
    assert (await c.durable.find("p")).outcome_now() == Value([10, 21, 32])
    assert len(await outcomes_of(world)) == 4
