"""Durable runs on the memory engine under a virtual clock: a restart is a new runtime on the same log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring.log import ABSENT, Append, Batch, Log, LogUnavailable, MemoryEngine, Put
from mainspring.loop import VirtualClock
from mainspring.runs import (
    BadRunId,
    Cancelled,
    Effect,
    Failed,
    NotFinished,
    Now,
    Random,
    RunConflict,
    RunError,
    Signal,
    Sleep,
    StoredFailure,
    UnknownRun,
    Unserialisable,
    Uuid,
    Value,
    Version,
    WaitSignal,
    end,
    resume,
)
from tests.support.runs import Boom, Hop, World, memory_log

HOUR = 3_600_000


@dataclass
class Order:
    id: str
    items: list[dict[str, Any]]


class Charge(Effect[Order]):
    order: Order


class Anything(Effect[Any]):
    value: Any


async def add(count: int, perform: Any) -> int:
    total = 0
    for n in range(count):
        total += await perform(Hop(n))
    return total


async def nap(hours: int, perform: Any) -> str:
    await perform(Hop(1))
    await perform(Sleep(hours=hours))
    await perform(Hop(2))
    return "rested"


async def listener(perform: Any) -> list[Any]:
    return [await perform(WaitSignal("news")) for _ in range(3)]


class Nodes:
    """Runtimes on one log: `boot` is a (re)start, `kill` the death of the one before."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.clock = VirtualClock(wall_ms=1_000_000)
        self.booted: list[World] = []

    async def boot(self, *, programs: tuple[Any, ...] = (add, nap, listener), **settings: Any) -> World:
        world = World(clock=self.clock, log=self.log, **settings)
        for program in programs:
            world.runtime.register(program, program.__name__)
        await world.runtime.start_service()
        self.booted.append(world)
        return world


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    log = await memory_log()
    yield Nodes(log)
    await log.close()


async def ended(world: World, run_id: str) -> Any:
    await world.runtime.settle()
    return (await world.runtime.durable.find(run_id)).outcome_now()


# -- journal and restart


async def test_every_answer_is_in_the_journal_before_the_program_goes_on(nodes: Nodes) -> None:
    world = await nodes.boot()
    seen: list[int] = []

    async def program(perform: Any) -> None:
        for n in range(3):
            await perform(Hop(n))
            seen.append(len(await_journal()))

    def await_journal() -> Any:
        return nodes.log.engine._records.get("journal/runs", {})  # type: ignore[attr-defined]

    world.runtime.start(program, durable=True, id="a")
    await world.runtime.settle()
    assert seen == [1, 2, 3]


async def test_a_run_goes_on_after_a_restart_without_doing_anything_twice(nodes: Nodes) -> None:
    first = await nodes.boot()
    first.runtime.start(nap, 2, durable=True, id="a")
    await first.runtime.elapse(HOUR)
    second = await nodes.boot()
    await second.runtime.elapse(HOUR - 1)
    assert await ended(second, "a") is None
    await second.runtime.elapse(1)
    assert await ended(second, "a") == Value("rested")
    assert [n for _, n in first.hops + second.hops] == [1, 2]


async def test_a_sleep_of_months_costs_one_row(nodes: Nodes) -> None:
    world = await nodes.boot(recovery_ms=10**12)
    world.runtime.start(nap, 24 * 90, durable=True, id="a")
    await world.runtime.settle()
    journal = (await world.runtime.durable.history("a")).journal
    assert [(entry.effect, entry.answered) for entry in journal] == [("Hop", True), ("Sleep", False)]
    await world.runtime.elapse(24 * 90 * HOUR)
    assert await ended(world, "a") == Value("rested")
    assert [entry.effect for entry in (await world.runtime.durable.history("a")).journal] == ["Hop", "Sleep", "Hop"]


async def test_a_sleep_that_was_over_while_nothing_ran_ends_at_once(nodes: Nodes) -> None:
    first = await nodes.boot()
    first.runtime.start(nap, 1, durable=True, id="a")
    await first.runtime.settle()
    nodes.clock.advance(5 * HOUR)
    second = await nodes.boot()
    assert await ended(second, "a") == Value("rested")


async def test_the_same_id_gives_the_same_run(nodes: Nodes) -> None:
    world = await nodes.boot()
    run = world.runtime.start(nap, 1, durable=True, id="a")
    assert world.runtime.start(nap, 1, durable=True, id="a") is run
    await world.runtime.elapse(HOUR)
    again = world.runtime.start(nap, 1, durable=True, id="a")
    await world.runtime.settle()
    assert (again.outcome_now(), len(world.hops)) == (Value("rested"), 2)
    later = await nodes.boot()
    again = later.runtime.start(nap, 1, durable=True, id="a")
    await later.runtime.settle()
    assert (again.outcome_now(), later.hops) == (Value("rested"), [])


async def test_starting_an_id_before_recovery_found_it_joins_the_unfinished_run(nodes: Nodes) -> None:
    first = await nodes.boot()
    first.runtime.start(nap, 1, durable=True, id="a")
    await first.runtime.settle()
    world = World(clock=nodes.clock, log=nodes.log)
    world.runtime.register(nap, "nap")
    run = world.runtime.start(nap, 1, durable=True, id="a")
    await world.runtime.elapse(HOUR)
    assert run.outcome_now() == Value("rested")
    assert [n for _, n in world.hops] == [2]


async def test_an_id_belongs_to_its_program(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.start(nap, 1, durable=True, id="a")
    with pytest.raises(RunConflict):
        world.runtime.start(add, 1, durable=True, id="a")
    await world.runtime.elapse(HOUR)
    run = world.runtime.start(add, 1, durable=True, id="a")
    await world.runtime.settle()
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, RunConflict)


@pytest.mark.parametrize("bad", ["", "a#b", "a~1", "a\nb", "x" * 201, 7])
async def test_odd_ids_are_refused(nodes: Nodes, bad: Any) -> None:
    world = await nodes.boot()
    with pytest.raises(BadRunId):
        world.runtime.start(add, 1, durable=True, id=bad)


async def test_runs_without_an_id_get_one_of_their_own(nodes: Nodes) -> None:
    world = await nodes.boot()
    runs = [world.runtime.start(add, 1, durable=True) for _ in range(3)]
    await world.runtime.settle()
    assert len({run.id for run in runs}) == 3
    assert all(run.outcome_now() == Value(0) for run in runs)


async def test_time_chance_and_identity_are_the_same_when_executed_again(nodes: Nodes) -> None:
    seen: list[Any] = []

    async def program(perform: Any) -> None:
        seen.append((await perform(Now()), await perform(Random()), await perform(Uuid())))
        await perform(Sleep(hours=1))

    for _ in range(3):
        world = await nodes.boot(programs=(program,))
        if not seen:
            world.runtime.start(program, durable=True, id="a")
        await world.runtime.elapse(60_000)
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]


async def test_handlers_get_the_same_key_when_an_effect_is_performed_again(nodes: Nodes) -> None:
    keys: list[str] = []

    def never(effect: Anything, ctx: Any) -> Any:
        keys.append(ctx.key)
        return ctx.later()

    async def program(perform: Any) -> None:
        await perform(Hop(1))
        await perform(Anything(1))

    for _ in range(2):
        world = await nodes.boot(programs=(program,))
        world.runtime.handle(Anything, never)
        if not keys:
            world.runtime.start(program, durable=True, id="a")
        await world.runtime.settle()
    assert keys == ["a#00000001", "a#00000001"]


async def test_what_a_handler_remembered_is_there_when_it_is_asked_again(nodes: Nodes) -> None:
    recalled: list[Any] = []

    def handler(effect: Anything, ctx: Any) -> Any:
        recalled.append(ctx.recall())
        ctx.remember({"attempt": len(recalled)})
        return ctx.later()

    async def program(perform: Any) -> None:
        await perform(Anything(1))

    for _ in range(3):
        world = await nodes.boot(programs=(program,))
        world.runtime.handle(Anything, handler)
        if not recalled:
            world.runtime.start(program, durable=True, id="a")
        await world.runtime.settle()
    assert recalled == [None, {"attempt": 1}, {"attempt": 2}]


async def test_an_outcome_is_stored_before_it_is_announced(nodes: Nodes) -> None:
    world = await nodes.boot()
    states: list[Any] = []
    world.runtime.on_outcome(
        lambda run, outcome: states.append(nodes.log.engine._records["runs"][run.id].value)  # type: ignore[attr-defined]
    )
    world.runtime.start(add, 2, durable=True, id="a")
    await world.runtime.settle()
    assert b'"state":"done"' in states[0]


async def test_every_kind_of_ending_survives(nodes: Nodes) -> None:
    async def fails(perform: Any) -> None:
        await perform(Hop(1))
        raise Boom("on purpose")

    world = await nodes.boot(programs=(fails, add, nap))
    world.runtime.start(fails, durable=True, id="failed")
    world.runtime.start(add, 3, durable=True, id="value")
    cut = world.runtime.start(nap, 1, durable=True, id="cancelled")
    await world.runtime.settle()
    assert cut.cancel({"why": ["enough"]})
    assert cut.outcome_now() is None, "not announced before it is stored"
    await world.runtime.settle()
    assert cut.outcome_now() == Cancelled({"why": ["enough"]})
    later = await nodes.boot(programs=(fails, add, nap))
    assert await ended(later, "value") == Value(3)
    assert await ended(later, "cancelled") == Cancelled({"why": ["enough"]})
    failed = await ended(later, "failed")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StoredFailure)
    assert (failed.error.type, "on purpose" in str(failed.error)) == ("Boom", True)


async def test_cancel_before_the_beginning_is_stored(nodes: Nodes) -> None:
    world = await nodes.boot()
    run = world.runtime.start(add, 3, durable=True, id="a")
    assert run.cancel("early") is True
    assert run.cancel("again") is False
    await world.runtime.settle()
    assert run.outcome_now() == Cancelled("early")
    assert world.hops == []
    later = await nodes.boot()
    assert await ended(later, "a") == Cancelled("early")


async def test_end_completes_a_durable_run(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.handle(Hop, lambda effect, ctx: end(99))
    run = world.runtime.start(add, 3, durable=True, id="a")
    await world.runtime.settle()
    assert run.outcome_now() == Value(99)
    later = await nodes.boot()
    assert await ended(later, "a") == Value(99)


# -- values


async def test_values_come_back_as_their_declared_types(nodes: Nodes) -> None:
    seen: list[Any] = []

    async def program(order: Order, perform: Any) -> Order:
        charged = await perform(Charge(order))
        seen.append((order, charged))
        await perform(Sleep(hours=1))
        return charged

    for _ in range(2):
        world = await nodes.boot(programs=(program,))
        world.runtime.handle(Charge, lambda effect, ctx: resume(Order(effect.order.id, [{"paid": True}])))
        if not seen:
            world.runtime.start(program, Order("17", [{"n": 1}]), durable=True, id="a")
        await world.runtime.settle()
    assert seen[0] == seen[1] == (Order("17", [{"n": 1}]), Order("17", [{"paid": True}]))
    await world.runtime.elapse(HOUR)
    third = await nodes.boot(programs=(program,))
    assert await ended(third, "a") == Value(Order("17", [{"paid": True}]))


async def test_a_program_sees_what_a_replay_would_see(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.handle(Anything, lambda effect, ctx: resume({"pair": (1, 2)}))

    async def program(perform: Any) -> Any:
        return await perform(Anything(1))

    run = world.runtime.start(program, durable=True)
    await world.runtime.settle()
    assert run.outcome_now() == Value({"pair": [1, 2]})


@pytest.mark.parametrize(
    ("argument", "path"),
    [
        ({"items": [1, {"price": float("nan")}]}, "argument['items'][1]['price']"),
        ({"when": object()}, "argument['when']"),
        ([1, {2}], "argument[1]"),
        ({"raw": b"bytes"}, "argument['raw']"),
        ({1: "number"}, "argument[1]"),
        (["\ud800"], "argument[0]"),
        (Order("1", [{"f": lambda: None}]), "argument.items[0]['f']"),
        (float("inf"), "argument"),
    ],
)
async def test_arguments_that_cannot_be_stored_are_refused_with_their_path(
    nodes: Nodes, argument: Any, path: str
) -> None:
    async def program(argument, perform):  # type: ignore[no-untyped-def]
        pass

    world = await nodes.boot(programs=(program,))
    with pytest.raises(Unserialisable) as caught:
        world.runtime.start(program, argument, durable=True, id="a")
    assert caught.value.path == path
    with pytest.raises(UnknownRun):
        await world.runtime.durable.history("a")
    assert world.runtime.live == 0


async def test_arguments_of_the_wrong_type_or_number_are_refused(nodes: Nodes) -> None:
    world = await nodes.boot()
    with pytest.raises(Unserialisable, match="count"):
        world.runtime.start(add, "three", durable=True)
    with pytest.raises(TypeError):
        world.runtime.start(add, durable=True)
    with pytest.raises(TypeError):
        world.runtime.start(add, 1, 2, durable=True)
    with pytest.raises(TypeError):
        world.runtime.start(add, 1, id="not durable")
    assert world.runtime.live == 0


async def test_effects_and_answers_that_cannot_be_stored_fail_the_run(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.handle(Anything, lambda effect, ctx: resume(object()))

    async def bad_effect(perform: Any) -> None:
        await perform(Anything({"deep": [object()]}))

    async def bad_answer(perform: Any) -> None:
        await perform(Anything(1))

    async def bad_value(perform: Any) -> Any:
        return {"x": {1, 2}}

    runs = [world.runtime.start(each, durable=True) for each in (bad_effect, bad_answer, bad_value)]
    await world.runtime.settle()
    texts = [str(run.outcome_now().error) for run in runs]  # type: ignore[union-attr]
    assert "Anything.value['deep'][0]" in texts[0]
    assert "answer of Anything" in texts[1]
    assert "return value['x']" in texts[2]


async def test_an_answer_of_another_type_than_declared_fails_before_the_program_sees_it(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.handle(Hop, lambda effect, ctx: resume("text"))
    run = world.runtime.start(add, 1, durable=True)
    await world.runtime.settle()
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert "Hop" in str(outcome.error)


# -- changed programs


def changed(*effects: Any) -> Any:
    async def program(perform: Any) -> list[Any]:
        return [await perform(effect) for effect in effects]

    program.__name__ = program.__qualname__ = "changing"
    return program


async def stopped_in_the_middle(nodes: Nodes) -> None:
    """A run that has answered Hop(1) and Hop(2) and sleeps."""
    program = changed(Hop(1), Hop(2), Sleep(hours=1), Hop(3))
    world = await nodes.boot(programs=(program,))
    world.runtime.start(program, durable=True, id="a")
    await world.runtime.settle()


@pytest.mark.parametrize(
    ("effects", "says"),
    [
        ((Hop(1), Hop(7), Sleep(hours=1)), ["effect 1", "n: 2 in the journal, 7 in the program"]),
        ((Hop(1), Sleep(hours=1), Hop(2)), ["effect 1", "journal: Hop", "program: Sleep"]),
        ((Hop(1),), ["effect 1", "program: returned", "journal: Hop"]),
        ((Hop(1), Hop(2), Sleep(hours=2)), ["effect 2", "ms: 3600000 in the journal, 7200000 in the program"]),
    ],
)
async def test_the_first_difference_blocks_the_run_with_a_diff_and_keeps_the_journal(
    nodes: Nodes, effects: Any, says: list[str]
) -> None:
    await stopped_in_the_middle(nodes)
    before = (await nodes.booted[0].runtime.durable.history("a")).journal
    world = await nodes.boot(programs=(changed(*effects),))
    await world.runtime.settle()
    history = await world.runtime.durable.history("a")
    assert (history.run.state, world.failures) == ("blocked", [])
    assert history.run.error is not None
    text = history.run.error["message"]
    assert all(part in text for part in says), text
    assert [bytes(entry.args) for entry in history.journal] == [bytes(entry.args) for entry in before]
    repaired = await nodes.boot(programs=(changed(Hop(1), Hop(2), Sleep(hours=1), Hop(3)),))
    await repaired.runtime.elapse(HOUR)
    assert await ended(repaired, "a") == Value([1, 2, None, 3])
    assert repaired.hops == [("a#00000003", 3)]


async def test_a_version_gate_lets_old_runs_go_the_old_way_and_new_ones_the_new_way(nodes: Nodes) -> None:
    async def gated(perform: Any) -> list[Any]:
        first = await perform(Hop(1))
        if await perform(Version("second", 2)) >= 2:
            middle = await perform(Hop(22))
        else:
            middle = await perform(Hop(2))
        await perform(Sleep(hours=1))
        again = await perform(Version("second", 2))
        return [first, middle, again]

    gated.__name__ = gated.__qualname__ = "changing"
    await stopped_in_the_middle(nodes)
    for _ in range(2):  # also when executed once more
        world = await nodes.boot(programs=(gated,))
        world.runtime.start(gated, durable=True, id="new")
        await world.runtime.elapse(1000)
    await world.runtime.elapse(HOUR)
    assert await ended(world, "a") == Value([1, 2, 1])
    assert await ended(world, "new") == Value([1, 22, 2])


async def test_a_gate_can_be_removed_when_its_old_side_is_gone(nodes: Nodes) -> None:
    with_gate = changed(Hop(1), Version("x", 3), Hop(2), Sleep(hours=1))
    world = await nodes.boot(programs=(with_gate,))
    world.runtime.start(with_gate, durable=True, id="a")
    await world.runtime.settle()
    without = changed(Hop(1), Hop(2), Sleep(hours=1))
    world = await nodes.boot(programs=(without,))
    await world.runtime.elapse(HOUR)
    assert await ended(world, "a") == Value([1, 2, None])


async def test_a_run_of_an_unknown_program_waits_until_it_is_registered(nodes: Nodes) -> None:
    await stopped_in_the_middle(nodes)
    world = await nodes.boot(programs=(add,), recovery_ms=1000)
    await world.runtime.elapse(5000)
    assert await ended(world, "a") is None
    world.runtime.register(changed(Hop(1), Hop(2), Sleep(hours=1), Hop(3)), "changing")
    await world.runtime.elapse(HOUR)
    assert await ended(world, "a") == Value([1, 2, None, 3])


# -- exactly once


class Write(Effect[int]):
    n: int


def exactly_once(effect: Write, ctx: Any) -> Any:
    ctx.batch.append(Append("out", 0, ctx.key, ctx.wall_ms(), b"%d" % effect.n))
    return resume(effect.n)


async def test_an_answer_and_the_handlers_writes_are_stored_together(nodes: Nodes) -> None:
    receipts: list[Any] = []

    def handler(effect: Write, ctx: Any) -> Any:
        ctx.after_commit(receipts.append)
        return exactly_once(effect, ctx)

    async def program(perform: Any) -> int:
        return await perform(Write(1)) + await perform(Write(2))

    world = await nodes.boot(programs=(program,))
    world.runtime.handle(Write, handler)
    world.runtime.start(program, durable=True, id="a")
    assert await ended(world, "a") == Value(3)
    events = await nodes.log.read("out", 0, 1, 10)
    assert [(event.id, event.payload) for event in events] == [("a#00000000", b"1"), ("a#00000001", b"2")]
    assert [receipt.offsets for receipt in receipts] == [((0, 1, False),), ((0, 2, False),)]


async def test_a_refused_write_of_a_handler_fails_only_its_run(nodes: Nodes) -> None:
    await nodes.log.commit(Batch([Put("things", "taken", b"1")]))

    def handler(effect: Write, ctx: Any) -> Any:
        ctx.batch.put("things", "taken", b"2", expect=ABSENT)
        return resume(effect.n)

    async def program(perform: Any) -> int:
        return await perform(Write(1))

    world = await nodes.boot(programs=(program, add))
    world.runtime.handle(Write, handler)
    world.runtime.start(program, durable=True, id="a")
    world.runtime.start(add, 3, durable=True, id="b")
    outcome = await ended(world, "a")
    assert isinstance(outcome, Failed)
    assert await ended(world, "b") == Value(3)


async def test_a_run_without_a_journal_has_no_batch(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.handle(Write, exactly_once)

    def program() -> Any:
        yield Write(1)

    run = world.runtime.start(program)
    world.runtime.run_until_idle()
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, RunError)


# -- signals


async def test_signals_are_received_in_order_once_and_also_after_a_restart(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.start(listener, durable=True, id="a")
    await world.runtime.settle()
    assert await world.runtime.durable.signal("a", "news", 1)
    await world.runtime.settle()
    world = await nodes.boot()
    await world.runtime.settle()
    assert await world.runtime.durable.signal("a", "news", {"two": 2})
    assert await world.runtime.durable.signal("a", "other", "kept")
    world = await nodes.boot()
    await world.runtime.settle()
    assert await world.runtime.durable.signal("a", "news", 3)
    assert await ended(world, "a") == Value([1, {"two": 2}, 3])
    assert await world.runtime.durable.signal("a", "news", 4) is False


async def test_a_signal_sent_but_not_received_before_a_crash_is_not_lost(nodes: Nodes) -> None:
    async def late_listener(perform: Any) -> Any:
        await perform(Sleep(hours=1))
        return await perform(WaitSignal("news"))

    world = await nodes.boot(programs=(late_listener,))
    world.runtime.start(late_listener, durable=True, id="a")
    await world.runtime.settle()
    await world.runtime.durable.signal("a", "news", "early")
    world = await nodes.boot(programs=(late_listener,))
    await world.runtime.elapse(HOUR)
    assert await ended(world, "a") == Value("early")


async def test_waiting_for_a_signal_gives_up_in_time_also_over_a_restart(nodes: Nodes) -> None:
    async def impatient(perform: Any) -> Any:
        return await perform(WaitSignal("news", timeout="1h"))

    world = await nodes.boot(programs=(impatient,))
    world.runtime.start(impatient, durable=True, id="a")
    await world.runtime.elapse(HOUR / 2)
    world = await nodes.boot(programs=(impatient,))
    await world.runtime.elapse(HOUR / 2 - 1)
    assert await ended(world, "a") is None
    await world.runtime.elapse(1)
    assert await ended(world, "a") == Value(None)


async def test_runs_signal_each_other(nodes: Nodes) -> None:
    async def sender(perform: Any) -> bool:
        return await perform(Signal("b", "news", "hello"))

    async def receiver(perform: Any) -> Any:
        return await perform(WaitSignal("news"))

    world = await nodes.boot(programs=(sender, receiver))
    world.runtime.start(receiver, durable=True, id="b")
    await world.runtime.settle()
    world.runtime.start(sender, durable=True, id="a")
    assert await ended(world, "a") == Value(True)
    assert await ended(world, "b") == Value("hello")


# -- one log, one node


async def test_runs_of_a_log_that_leases_were_kept_on_go_on_at_once_and_the_leases_are_removed(nodes: Nodes) -> None:
    one = await nodes.boot(node="one")
    one.runtime.start(nap, 1, durable=True, id="a")
    await one.runtime.settle()
    lease = {"node": "one", "until": nodes.clock.wall_ms() + HOUR}
    fenced = {"node": "gone", "until": 0, "fenced_by": "one"}
    old = [Put("leases", f"runs/{each['node']}", json.dumps(each).encode()) for each in (lease, fenced)]
    await nodes.log.commit(Batch([*old, Put("leases", "node/one", b"{}")]))  # as former versions left them
    two = await nodes.boot(node="two")
    await two.runtime.elapse(HOUR)
    assert await ended(two, "a") == Value("rested")
    assert [n for _, n in one.hops + two.hops] == [1, 2]
    assert [record.key async for record in nodes.log.scan("leases")] == ["node/one"]


async def test_an_idle_node_writes_nothing(nodes: Nodes) -> None:
    world = await nodes.boot(recovery_ms=1_000)
    world.runtime.start(nap, 2, durable=True, id="a")
    await world.runtime.settle()
    commits = nodes.log.commits
    await world.runtime.elapse(HOUR)
    assert nodes.log.commits == commits


async def test_a_node_that_stops_leaves_its_runs_to_the_next(nodes: Nodes) -> None:
    one = await nodes.boot(node="one")
    run = one.runtime.start(nap, 1, durable=True, id="a")
    await one.runtime.settle()
    await one.runtime.stop_service()
    assert run.outcome_now() is None
    two = await nodes.boot(node="two")
    await two.runtime.elapse(HOUR)
    assert await ended(two, "a") == Value("rested")


async def test_a_run_that_waits_for_its_program_hears_signals_and_its_handles_hear_the_outcome(nodes: Nodes) -> None:
    one = await nodes.boot()
    one.runtime.start(listener, durable=True, id="a")
    one.runtime.start(nap, 5, durable=True, id="b")
    await one.runtime.settle()
    two = await nodes.boot(programs=())
    listening, napping = await two.runtime.durable.find("a"), await two.runtime.durable.find("b")
    for n in range(3):
        assert await two.runtime.durable.signal("a", "news", n)
    assert await two.runtime.durable.cancel("b", "before it went on")
    await two.runtime.settle()
    assert [listening.outcome_now(), napping.outcome_now()] == [None, Cancelled("before it went on")]
    two.runtime.register(listener, "listener")
    two.runtime.register(nap, "nap")
    await two.runtime.settle()
    assert listening.outcome_now() == Value([0, 1, 2])
    again = await two.runtime.durable.retry("b")
    await two.runtime.elapse(5 * HOUR)
    assert again.outcome_now() == Value("rested"), "the wish to cancel went with the outcome"


async def test_a_signal_to_a_child_that_its_parent_has_not_begun_again_yet_is_received(nodes: Nodes) -> None:
    async def parent(perform: Any) -> Any:
        await perform(Hop(0))
        return await perform.join(perform.spawn(listener))

    one = await nodes.boot(programs=(parent, listener))
    one.runtime.start(parent, durable=True, id="a")
    await one.runtime.settle()
    assert await one.runtime.durable.signal("a~1", "news", 0)
    await one.runtime.settle()
    two = await nodes.boot(programs=(parent, listener))
    assert two.runtime.get("a") is not None
    assert two.runtime.get("a~1") is None, "the parent has not taken a step"
    assert await two.runtime.durable.signal("a~1", "news", 1)
    await two.runtime.settle()
    assert await two.runtime.durable.signal("a~1", "news", 2)
    assert await ended(two, "a~1") == Value([0, 1, 2])


# -- by hand


async def test_fork_begins_with_the_first_answers_of_another_run(nodes: Nodes) -> None:
    world = await nodes.boot()
    world.runtime.start(add, 4, durable=True, id="a")
    await world.runtime.settle()
    world.hops.clear()
    world.runtime.handle(Hop, lambda effect, ctx: world.hop(effect, ctx) and resume(100))
    fork = await world.runtime.durable.fork("a", at=2, new_id="b")
    await world.runtime.settle()
    assert fork.outcome_now() == Value(0 + 1 + 100 + 100)
    assert [n for _, n in world.hops] == [2, 3]
    record = (await world.runtime.durable.history("b")).run
    assert (record.forked_from, record.forked_at) == ("a", 2)
    with pytest.raises(RunError):
        await world.runtime.durable.fork("a", at=5)
    with pytest.raises(RunConflict):
        await world.runtime.durable.fork("a", at=1, new_id="b")


async def test_retry_goes_on_where_a_run_failed(nodes: Nodes) -> None:
    world = await nodes.boot()
    healthy = world.hop

    def sick(effect: Hop, ctx: Any) -> Any:
        healthy(effect, ctx)
        if effect.n == 2:
            raise Boom("not now")
        return resume(effect.n)

    world.runtime.handle(Hop, sick)
    world.runtime.start(add, 4, durable=True, id="a")
    assert isinstance(await ended(world, "a"), Failed)
    world.runtime.handle(Hop, healthy)
    run = await world.runtime.durable.retry("a")
    await world.runtime.settle()
    assert run.outcome_now() == Value(6)
    assert [n for _, n in world.hops] == [0, 1, 2, 2, 3]
    assert (await world.runtime.durable.history("a")).run.retries == 1
    with pytest.raises(NotFinished):
        await world.runtime.durable.retry("a")
    with pytest.raises(UnknownRun):
        await world.runtime.durable.retry("nobody")


async def test_finished_runs_are_forgotten_when_their_time_is_up(nodes: Nodes) -> None:
    world = await nodes.boot(retention_ms=HOUR, recovery_ms=60_000)
    world.runtime.start(add, 3, durable=True, id="old")
    world.runtime.start(nap, 100, durable=True, id="busy")
    await world.runtime.elapse(HOUR / 2)
    world.runtime.start(add, 3, durable=True, id="young")
    await world.runtime.elapse(HOUR / 2 + 120_000)
    assert [run.id for run in await world.runtime.durable.store.runs()] == ["busy", "young"]
    assert await world.runtime.durable.store.journal("old") == []


async def test_many_old_runs_are_forgotten_in_steps(nodes: Nodes) -> None:
    world = await nodes.boot(retention_ms=HOUR, recovery_ms=60_000)
    forgotten: list[int] = []
    world.runtime.durable.recovery.on_forgotten.append(forgotten.append)
    for n in range(250):
        world.runtime.start(add, 1, durable=True, id=f"old-{n:03}")
    await world.runtime.elapse(HOUR + 70_000)
    assert await world.runtime.durable.store.runs() == []
    assert forgotten == [100, 100, 50]


async def test_a_long_journal_is_removed_in_steps_and_its_run_is_not_retried_meanwhile(nodes: Nodes) -> None:
    world = await nodes.boot()
    steps = 2_500
    world.runtime.start(add, steps, durable=True, id="long")
    await world.runtime.settle()
    durable, sizes = world.runtime.durable, []
    commit, refused = nodes.log.commit, []

    async def watched(batch: Batch) -> Any:
        sizes.append(len(batch.operations))
        receipt = await commit(batch)
        if (await durable.store.runs())[:1]:
            try:
                await durable.fork("long", 1)
            except NotFinished as error:
                refused.append(error)
        return receipt

    nodes.log.commit = watched  # type: ignore[method-assign]
    assert await durable.forget("long") == 1
    assert max(sizes) <= 1_003
    assert refused
    assert await durable.store.journal("long") == []
    assert await durable.store.runs() == []


async def test_runs_can_be_listed_by_state_and_prefix(nodes: Nodes) -> None:
    world = await nodes.boot()
    for n in range(5):
        world.runtime.start(add, 1, durable=True, id=f"add-{n}")
    world.runtime.start(nap, 1, durable=True, id="nap-1")
    await world.runtime.settle()
    listed = world.runtime.durable.store.runs
    assert [run.id for run in await listed(state="running")] == ["nap-1"]
    assert [run.id for run in await listed(prefix="add-", after="add-1", limit=2)] == ["add-2", "add-3"]


# -- children


async def test_durable_children_are_found_again_by_their_parent(nodes: Nodes) -> None:
    async def child(n: int, perform: Any) -> int:
        await perform(Hop(n))
        await perform(Sleep(hours=n))
        return n

    async def parent(perform: Any) -> list[int]:
        async with perform.group() as group:
            children = [group.spawn(child, n) for n in (1, 2, 3)]
        return [each.outcome_now().value for each in children]

    world = await nodes.boot(programs=(parent, child))
    world.runtime.start(parent, durable=True, id="a")
    await world.runtime.elapse(1.5 * HOUR)
    first_hops = [n for _, n in world.hops]
    world = await nodes.boot(programs=(parent, child))
    await world.runtime.elapse(2 * HOUR)
    assert await ended(world, "a") == Value([1, 2, 3])
    assert (first_hops, world.hops) == ([1, 2, 3], [])
    assert [run.id for run in await world.runtime.durable.store.runs()] == ["a", "a~1", "a~2", "a~3"]


async def test_durable_joins_and_intervals_survive_a_restart(nodes: Nodes) -> None:
    ticks: list[int] = []

    async def tick(perform: Any) -> None:
        ticks.append(await perform(Now()))

    async def worker(perform: Any) -> str:
        await perform(Sleep(minutes=35))
        raise Boom("worker")

    async def parent(perform: Any) -> str:
        async with perform.group() as group:
            every = group.every(600, tick, overlap="skip")
            outcome = await perform.join(perform.spawn(worker))
            every.cancel()
        return type(outcome).__name__

    programs = (parent, worker, tick)
    world = await nodes.boot(programs=programs)
    world.runtime.start(parent, durable=True, id="a")
    for _ in range(4):
        await world.runtime.elapse(900_000)
        world = await nodes.boot(programs=programs)
    assert await ended(world, "a") == Value("Failed")
    assert [(tick - 1_000_000) // 60_000 for tick in ticks] == [10, 20, 30]


@pytest.mark.slow
async def test_cancelling_a_durable_parent_cancels_its_children_for_good(nodes: Nodes) -> None:
    async def parent(perform: Any) -> None:
        async with perform.group() as group:
            group.spawn(nap, 5)

    world = await nodes.boot(programs=(parent, nap))
    run = world.runtime.start(parent, durable=True, id="a")
    await world.runtime.settle()
    assert run.cancel("stop")
    await world.runtime.settle()
    world = await nodes.boot(programs=(parent, nap))
    await world.runtime.elapse(10 * HOUR)
    assert [run.state for run in await world.runtime.durable.store.runs()] == ["cancelled", "cancelled"]


# -- trouble


async def test_answers_wait_for_a_log_that_cannot_write(nodes: Nodes) -> None:
    world = await nodes.boot()
    engine = nodes.log.engine
    assert isinstance(engine, MemoryEngine)
    apply, broken = engine._decide, [True]
    engine._decide = lambda batch: LogUnavailable("disk full") if broken[0] else apply(batch)  # type: ignore[method-assign]
    run = world.runtime.start(add, 3, durable=True, id="a")
    await world.runtime.elapse(1000)
    assert (run.outcome_now(), world.hops) == (None, [])
    broken[0] = False
    await world.runtime.elapse(10_000)
    assert run.outcome_now() == Value(3)


async def test_stopping_in_the_middle_of_a_coroutine_handler_leaves_the_run_unfinished(nodes: Nodes) -> None:
    async def handler(effect: Hop, ctx: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    world = await nodes.boot()
    world.runtime.handle(Hop, handler)
    world.runtime.start(add, 1, durable=True, id="a")
    await world.runtime.settle()
    await world.runtime.stop_service()
    for _ in range(5):
        await asyncio.sleep(0)
    world = await nodes.boot()
    assert await ended(world, "a") == Value(0)


async def test_a_durable_run_needs_a_log_and_an_asyncio_loop() -> None:
    with pytest.raises(RunError, match="log"):
        World().runtime.start(add, 1, durable=True)


async def test_a_signal_between_durable_runs_is_sent_once_however_often_the_sender_is_executed(nodes: Nodes) -> None:
    async def sender(perform: Any) -> None:
        for n in range(3):
            assert await perform(Signal("b", "news", n))
        await perform(Sleep(hours=1))

    world = await nodes.boot(programs=(sender, listener))
    world.runtime.start(listener, durable=True, id="b")
    await world.runtime.settle()
    world.runtime.start(sender, durable=True, id="a")
    await world.runtime.settle()
    assert await ended(world, "b") == Value([0, 1, 2])
    world = await nodes.boot(programs=(sender, listener))
    await world.runtime.elapse(HOUR)
    assert await ended(world, "a") == Value(None)
    assert [record async for record in nodes.log.scan("runs/signals")] == []
    world.runtime.start(listener, durable=True, id="c")
    await world.runtime.settle()
    with pytest.raises(RunError, match="durable"):
        world.runtime.signal("c", "news", 1)
