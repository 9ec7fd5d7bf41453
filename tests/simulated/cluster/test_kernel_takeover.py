"""Durable commands outlive their node: a living one takes them over, and each has one outcome."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.kernel import Context, Fail, handler_from
from mainspring.kernel.durable.record import SPACE, StoredCommand, decode_command
from mainspring.log import Change
from mainspring.loop import VirtualClock, run_virtual
from mainspring.message import Message, Metadata, encode_data
from tests.support.cluster import LEASE_MS, World, in_virtual_time, wait
from tests.support.kernels import Gate, KernelNode, kernel_node, named


def command(id: str, type: str = "Stock.Reserve", data: Any = None) -> Message:
    return Message("command", type, encode_data(data), Metadata(id, 1_700_000_000_000, timeout=10 * LEASE_MS))


async def stored(world: World, id: str) -> StoredCommand | None:
    record = await world.shared.state.get(SPACE, id)
    return None if record is None else decode_command(record.value)


@in_virtual_time
async def test_a_command_of_a_node_that_died_is_finished_by_another(world: World) -> None:
    first, second = Gate("Stock.Reserve"), Gate("Stock.Reserve")
    second.open.set()
    a = await kernel_node(world, "a", durable=(first.handler,))
    b = await kernel_node(world, "b", durable=(second.handler,))
    await wait(1)
    a.kernel.exchange_request(command("c1"))
    await wait(1)
    assert first.began == 1
    await a.kill()
    await wait(2 * LEASE_MS)
    assert second.began == 1
    found = await stored(world, "c1")
    assert found is not None
    assert found.outcome is not None
    assert found.outcome.data == "through"
    assert await b.ask("query", "Syscall.Outcome", {"id": "c1"}) == {
        "id": "c1",
        "state": "done",
        "kind": "reply",
        "type": "Stock.Reserve",
        "data": "through",
    }


@in_virtual_time
async def test_a_command_of_a_living_node_is_left_alone(world: World) -> None:
    first, second = Gate("Stock.Reserve"), Gate("Stock.Reserve")
    a = await kernel_node(world, "a", durable=(first.handler,))
    a.kernel.exchange_request(command("c1"))
    await wait(1)
    await kernel_node(world, "b", durable=(second.handler,))
    c = await kernel_node(world, "c")
    await c.stop()
    await wait(3 * LEASE_MS)
    assert (first.began, second.began) == (1, 0)


@in_virtual_time
async def test_a_node_that_starts_later_takes_what_nobody_could(world: World) -> None:
    first, second = Gate("Stock.Reserve"), Gate("Stock.Reserve")
    second.open.set()
    a = await kernel_node(world, "a", durable=(first.handler,))
    await kernel_node(world, "b", named("query", "Other.Thing", "b"))
    a.kernel.exchange_request(command("c1"))
    await wait(1)
    await a.kill()
    await wait(2 * LEASE_MS)
    await kernel_node(world, "c", durable=(second.handler,))
    await wait(1)
    assert second.began == 1


@in_virtual_time
async def test_of_many_survivors_one_runs_each_command(world: World) -> None:
    doomed = Gate("Stock.Reserve")
    ran: list[tuple[str, str]] = []

    def counting(name: str) -> Any:
        def handle(data: Any, ctx: Context) -> str:
            ran.append((name, data))
            return name

        return handler_from("command", "Stock.Reserve", handle)

    a = await kernel_node(world, "a", durable=(doomed.handler,))
    for name in ("b", "c", "d"):
        await kernel_node(world, name, durable=(counting(name),))
    for number in range(50):
        a.kernel.exchange_request(command(f"c{number}", data=f"c{number}"))
    await wait(1)
    await a.kill()
    await wait(2 * LEASE_MS)
    assert sorted(data for _, data in ran) == sorted(f"c{number}" for number in range(50))


@in_virtual_time
async def test_a_stopped_node_stores_no_second_outcome_and_its_client_gets_the_one_that_counts(world: World) -> None:
    first, second = Gate("Stock.Reserve"), named("command", "Stock.Reserve", "b")
    a = await kernel_node(world, "a", durable=(first.handler,))
    await kernel_node(world, "b", durable=(second,))
    answer = a.kernel.exchange_request(command("c1"))
    await wait(1)
    a.member.stop()
    await wait(2 * LEASE_MS)
    first.open.set()
    a.member.go_on()
    await wait(LEASE_MS)
    found = await stored(world, "c1")
    assert found is not None
    assert found.outcome is not None
    assert found.outcome.data == {"by": "b", "got": None}
    assert (await answer).data == {"by": "b", "got": None}


@in_virtual_time
async def test_a_node_that_nobody_replaced_goes_on_with_its_own_commands_without_beginning_again(world: World) -> None:
    gate = Gate("Stock.Reserve")
    a = await kernel_node(world, "a", durable=(gate.handler,))
    await kernel_node(world, "b")
    answer = a.kernel.exchange_request(command("c1"))
    await wait(1)
    a.member.engine.cut_off = True
    await wait(2 * LEASE_MS)
    a.member.engine.join_again()
    await wait(LEASE_MS)
    gate.open.set()
    assert (await answer).data == "through"
    assert gate.began == 1


@in_virtual_time
async def test_the_same_command_sent_to_another_node_waits_for_the_first(world: World) -> None:
    gate, other = Gate("Stock.Reserve"), Gate("Stock.Reserve")
    a = await kernel_node(world, "a", durable=(gate.handler,))
    b = await kernel_node(world, "b", durable=(other.handler,))
    first = a.kernel.exchange_request(command("c1"))
    await wait(1)
    second = b.kernel.exchange_request(command("c1"))
    third = b.kernel.exchange_request(command("c1", data="something else"))
    await wait(1)
    assert (await third).data["code"] == 409
    gate.open.set()
    assert (await first).data == (await second).data == "through"
    assert (gate.began, other.began) == (1, 0)
    again = b.kernel.exchange_request(command("c1"))
    assert (await again).data == "through"


@in_virtual_time
async def test_a_durable_command_sent_through_another_node_survives_both(world: World) -> None:
    gate, other = Gate("Stock.Reserve"), Gate("Stock.Reserve")
    other.open.set()
    asker = await kernel_node(world, "asker")
    a = await kernel_node(world, "a", durable=(gate.handler,))
    await wait(1)
    waiting = asker.kernel.exchange_request(command("c1"))
    await wait(1)
    assert gate.began == 1
    await kernel_node(world, "b", durable=(other.handler,))
    await a.kill()
    await wait(2 * LEASE_MS)
    assert (await waiting).data["code"] == 503
    assert (await asker.ask("query", "Syscall.Outcome", {"id": "c1"}))["data"] == "through"


@in_virtual_time
async def test_lost_answers_run_a_durable_command_once(world: World) -> None:
    gate = Gate("Stock.Reserve")
    gate.open.set()
    a = await kernel_node(world, "a", durable=(gate.handler,))
    a.member.engine.lose_answers = True
    answer = a.kernel.exchange_request(command("c1"))
    await wait(10_000)
    assert (await answer).data == "through"
    assert gate.began == 1


@in_virtual_time
async def test_a_command_that_cannot_be_stored_is_not_accepted(world: World) -> None:
    gate = Gate("Stock.Reserve")
    a = await kernel_node(world, "a", durable=(gate.handler,))
    a.member.engine.cut_off = True
    with pytest.raises(Fail, match="not accepted"):
        await a.ask("command", "Stock.Reserve")
    a.member.engine.join_again()
    await wait(LEASE_MS)
    assert gate.began == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "open", "stop", "go on", "kill", "cut", "join", "lose", "keep"]),
        st.integers(0, 2),
        st.sampled_from([1, 500, LEASE_MS, 2 * LEASE_MS]),
    ),
    max_size=20,
)


class Outcomes:
    """What the log says became of each command."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def heard(self, change: Change) -> None:
        for record in change.records:
            if record.space == SPACE and record.version:
                outcome = decode_command(record.value).outcome
                if record.key in self.seen:
                    assert outcome is not None, "an outcome was taken back"
                    assert outcome.metadata.id == self.seen[record.key], "a second outcome"
                if outcome is not None:
                    self.seen[record.key] = outcome.metadata.id


async def story(world: World, plan: list[tuple[str, int, int]]) -> None:
    outcomes = Outcomes()
    door = world.shared.engine()
    await door.open()
    door.watch(outcomes.heard)
    gates = [Gate("Stock.Reserve") for _ in range(3)]
    nodes: list[KernelNode] = [await kernel_node(world, f"n{n}", durable=(gates[n].handler,)) for n in range(3)]
    state = ["well"] * 3
    sent = 0
    answers = []
    for what, n, ms in plan:
        member = nodes[n].member
        if what == "send" and state[n] in ("well", "cut"):
            sent += 1
            answers.append((f"c{sent}", nodes[n].kernel.exchange_request(command(f"c{sent}"))))
        elif what == "open":
            gates[n].open.set()
        elif what == "stop" and state[n] == "well":
            member.stop()
            state[n] = "stopped"
        elif what == "go on" and state[n] == "stopped":
            member.go_on()
            state[n] = "well"
        elif what == "cut" and state[n] == "well":
            member.engine.cut_off, state[n] = True, "cut"
        elif what == "join" and state[n] == "cut":
            member.engine.join_again()
            state[n] = "well"
        elif what == "kill" and state[n] != "dead" and state.count("dead") < 2:
            await nodes[n].kill()
            state[n] = "dead"
        elif what in ("lose", "keep"):
            member.engine.lose_answers = what == "lose"
        await wait(ms)
    for n, node in enumerate(nodes):
        node.member.engine.lose_answers = False
        if state[n] == "stopped":
            node.member.go_on()
        elif state[n] == "cut":
            node.member.engine.join_again()
        gates[n].open.set()
    await wait(6 * LEASE_MS)
    async for record in world.shared.state.scan(SPACE):
        assert decode_command(record.value).outcome is not None, f"{record.key} has no outcome"
    for id, answer in answers:
        if answer.done() and answer.result().kind == "reply":
            assert id in outcomes.seen, "somebody was told of an outcome that the log does not have"


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(steps)
def test_every_accepted_command_has_exactly_one_outcome_whatever_happens_to_the_nodes(
    plan: list[tuple[str, int, int]],
) -> None:
    clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)

    async def tell() -> None:
        await story(World(clock), plan)

    run_virtual(tell(), clock=clock)


@in_virtual_time
async def test_the_durable_timers_of_a_node_that_dies_are_fired_by_another(world: World) -> None:
    a = await kernel_node(world, "a", named("command", "Stock.Count", "a"))
    b = await kernel_node(world, "b", named("command", "Stock.Count", "b"))
    await wait(1)
    inner = {"kind": "command", "type": "Stock.Count", "data": 7, "metadata": {"id": "later", "timestamp": 0}}
    request = {"delay": 10 * LEASE_MS, "message": inner, "durable": True}
    first = (await a.ask("command", "Timer.Schedule", request))["timerId"]
    second = (await a.ask("command", "Timer.Schedule", {**request, "message": {**inner, "data": 8}}))["timerId"]
    shown = (await b.ask("query", "Timer.List", {}))["timers"]
    assert [(each["timerId"], each["elsewhere"]) for each in shown] == [(first, True), (second, True)]
    assert await b.ask("command", "Timer.Cancel", {"timerId": first}) == {"cancelled": True}
    await a.kill()
    seen: list[Any] = []
    b.kernel.observe(lambda message: seen.append(message.data) if message.type == "Stock.Count" else None)
    await wait(11 * LEASE_MS)
    assert seen == [8, {"by": "b", "got": 8}]
    assert (await b.ask("query", "Timer.List", {}))["total"] == 0
