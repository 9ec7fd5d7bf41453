"""A request reaches a capability on another node."""

from __future__ import annotations

import pytest

from mainspring.cluster.peers import inbox
from mainspring.kernel import Context, Fail, Handler, handler_from
from tests.support.cluster import LEASE_MS, World, in_virtual_time, wait
from tests.support.kernels import Gate, kernel_node, named, refusing


@in_virtual_time
async def test_a_command_and_a_query_are_answered_by_the_node_that_handles_them(world: World) -> None:
    a = await kernel_node(world, "a")
    await kernel_node(world, "b", named("command", "Stock.Reserve", "b"), named("query", "Stock.Count", "b"))
    await wait(1)
    assert await a.ask("command", "Stock.Reserve", {"sku": 1}) == {"by": "b", "got": {"sku": 1}}
    assert await a.ask("query", "Stock.Count", [1, "ü"]) == {"by": "b", "got": [1, "ü"]}


@in_virtual_time
async def test_what_is_handled_here_is_not_sent_away(world: World) -> None:
    a = await kernel_node(world, "a", named("query", "Stock.Count", "a"))
    await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await wait(1)
    for _ in range(5):
        assert (await a.ask("query", "Stock.Count"))["by"] == "a"


@in_virtual_time
async def test_several_nodes_that_handle_a_type_take_turns(world: World) -> None:
    a = await kernel_node(world, "a")
    for name in ("b", "c", "d"):
        await kernel_node(world, name, named("query", "Stock.Count", name))
    await wait(1)
    by = [(await a.ask("query", "Stock.Count"))["by"] for _ in range(9)]
    assert {name: by.count(name) for name in "bcd"} == {"b": 3, "c": 3, "d": 3}


@in_virtual_time
async def test_a_type_nobody_handles_is_unknown_everywhere(world: World) -> None:
    a = await kernel_node(world, "a")
    await kernel_node(world, "b")
    await wait(1)
    with pytest.raises(Fail) as failure:
        await a.ask("query", "Stock.Count")
    assert (failure.value.code, failure.value.type) == (404, "Sys.RoutingError")


@in_virtual_time
async def test_a_refusal_comes_back_as_it_was_said(world: World) -> None:
    a = await kernel_node(world, "a")
    await kernel_node(world, "b", refusing("Stock.Reserve"))
    await wait(1)
    with pytest.raises(Fail) as failure:
        await a.ask("command", "Stock.Reserve")
    error = failure.value
    assert (error.code, error.message, error.remedy, error.type) == (
        409,
        "sold out",
        "come back tomorrow",
        "Stock.Reserve",
    )


@in_virtual_time
async def test_data_outside_the_schema_is_refused_by_the_node_that_knows_it(world: World) -> None:
    def count(data: int, ctx: Context) -> int:
        return data

    a = await kernel_node(world, "a")
    await kernel_node(world, "b", handler_from("query", "Stock.Count", count))
    await wait(1)
    with pytest.raises(Fail, match="Schema validation failed"):
        await a.ask("query", "Stock.Count", "seven")


@in_virtual_time
async def test_the_time_for_an_answer_is_counted_where_it_is_awaited(world: World) -> None:
    gate = Gate("Stock.Reserve")
    a = await kernel_node(world, "a")
    await kernel_node(world, "b", gate.handler)
    await wait(1)
    began = world.clock.now_ms()
    with pytest.raises(Fail) as failure:
        await a.ask("command", "Stock.Reserve", timeout=0.5)
    assert failure.value.code == 504
    assert world.clock.now_ms() - began == 500
    gate.open.set()
    await wait(10)
    assert a.kernel.liveness()["inFlight"] == 0


@in_virtual_time
async def test_a_node_that_dies_while_it_handles_a_request_ends_the_wait_with_a_clear_error(world: World) -> None:
    gate = Gate("Stock.Reserve")
    a = await kernel_node(world, "a")
    b = await kernel_node(world, "b", gate.handler)
    await wait(1)
    waiting = a.ask("command", "Stock.Reserve", timeout=60)
    await wait(1)
    assert gate.began == 1
    await b.kill()
    await wait(2 * LEASE_MS)
    with pytest.raises(Fail, match="node b, which handles this, is gone") as failure:
        await waiting
    assert (failure.value.code, failure.value.type) == (503, "Sys.Unreachable")
    assert "with the same id if it is durable" in failure.value.remedy


@in_virtual_time
async def test_a_node_that_is_gone_is_not_asked(world: World) -> None:
    a = await kernel_node(world, "a")
    b = await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await kernel_node(world, "c", named("query", "Stock.Count", "c"))
    await wait(1)
    await b.stop()
    await wait(1)
    assert {(await a.ask("query", "Stock.Count"))["by"] for _ in range(6)} == {"c"}


@in_virtual_time
async def test_a_request_that_meets_a_stopping_node_goes_to_another(world: World) -> None:
    a = await kernel_node(world, "a")
    b = await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await kernel_node(world, "c", named("query", "Stock.Count", "c"))
    await wait(1)
    b.kernel.exchange.closing = True
    assert {(await a.ask("query", "Stock.Count"))["by"] for _ in range(6)} == {"c"}


@in_virtual_time
async def test_without_a_log_a_request_fails_at_once_and_nothing_was_done(world: World) -> None:
    gate = Gate("Stock.Reserve")
    a = await kernel_node(world, "a")
    await kernel_node(world, "b", gate.handler)
    await wait(1)
    a.member.engine.cut_off = True
    with pytest.raises(Fail) as failure:
        await a.ask("command", "Stock.Reserve")
    assert failure.value.code == 503
    assert failure.value.remedy == "nothing was done: try again"
    a.member.engine.join_again()
    await wait(100)
    assert gate.began == 0


@in_virtual_time
async def test_a_lost_answer_of_the_log_does_not_send_a_request_twice(world: World) -> None:
    gate = Gate("Stock.Reserve")
    gate.open.set()
    a = await kernel_node(world, "a")
    b = await kernel_node(world, "b", gate.handler)
    await wait(1)
    a.member.engine.lose_answers = b.member.engine.lose_answers = True
    assert await a.ask("command", "Stock.Reserve") == "through"
    await wait(LEASE_MS)
    assert gate.began == 1


@in_virtual_time
async def test_an_answer_waits_for_the_log_to_come_back(world: World) -> None:
    gate = Gate("Stock.Reserve")
    a = await kernel_node(world, "a")
    b = await kernel_node(world, "b", gate.handler)
    await wait(1)
    waiting = a.ask("command", "Stock.Reserve", timeout=60)
    await wait(1)
    b.member.engine.cut_off = True
    gate.open.set()
    await wait(LEASE_MS / 3)
    assert not waiting.done()
    b.member.engine.join_again()
    assert await waiting == "through"


@in_virtual_time
async def test_a_node_that_was_fenced_tells_its_clients_and_serves_again(world: World) -> None:
    gate = Gate("Stock.Reserve")
    a = await kernel_node(world, "a")
    await kernel_node(world, "b", gate.handler, named("query", "Stock.Count", "b"))
    await wait(1)
    waiting = a.ask("command", "Stock.Reserve", timeout=600)
    await wait(1)
    a.member.engine.cut_off = True
    await wait(2 * LEASE_MS)
    a.member.engine.join_again()
    with pytest.raises(Fail, match="cut off"):
        await waiting
    gate.open.set()
    await wait(LEASE_MS)
    assert (await a.ask("query", "Stock.Count"))["by"] == "b"


@in_virtual_time
async def test_inboxes_are_empty_when_everything_is_answered(world: World) -> None:
    a = await kernel_node(world, "a")
    b = await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await wait(1)
    for number in range(300):
        await a.ask("query", "Stock.Count", number)
    await wait(10)
    for name in ("a", "b"):
        (bounds,) = await world.shared.state.bounds(inbox(name))
        assert bounds.events == 0
        assert bounds.tail == 300
    await b.kill()
    await wait(2 * LEASE_MS)
    assert all(bounds.events == 0 for bounds in await world.shared.state.bounds(inbox("b")))


@in_virtual_time
async def test_a_handler_may_ask_another_node(world: World) -> None:
    async def order(data: int, ctx: Context) -> str:
        found = await ctx.send("query", "Stock.Count", data)
        return f"ordered from {found['by']}"

    c = await kernel_node(world, "c")
    await kernel_node(world, "a", handler_from("command", "Shop.Order", order))
    await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await wait(1)
    assert await c.ask("command", "Shop.Order", 7) == "ordered from b"


@in_virtual_time
async def test_events_of_the_kernel_stay_on_their_node(world: World) -> None:
    heard: list[str] = []

    def on_event(name: str):  # type: ignore[no-untyped-def]
        def handle(data: str, ctx: Context) -> None:
            heard.append(f"{name} {data}")

        return handler_from("event", "Stock.Changed", handle)

    a = await kernel_node(world, "a", on_event("a"))
    await kernel_node(world, "b", on_event("b"))
    await wait(1)
    a.kernel.emit("Stock.Changed", "now")
    await wait(LEASE_MS)
    assert heard == ["a now"]


@in_virtual_time
async def test_any_node_describes_what_the_others_handle(world: World) -> None:
    def count(data: int, ctx: Context) -> int:
        """How many there are."""
        return data

    a = await kernel_node(world, "a", named("command", "Shop.Order", "a"))
    await kernel_node(world, "b", handler_from("query", "Stock.Count", count))
    await wait(1)
    one = await a.ask("query", "Syscall.Describe", {"name": "Stock.Count"})
    assert (one["name"], one["kind"], one["node"], one["description"]) == (
        "Stock.Count",
        "query",
        "b",
        "How many there are.",
    )
    assert one["input"]["type"] == "integer"
    everything = (await a.ask("query", "Syscall.Describe", {"capabilities": ["*"]}))["schemas"]
    assert everything["Stock.Count"]["node"] == "b"
    assert "node" not in everything["Shop.Order"]
    some = (await a.ask("query", "Syscall.Describe", {"capabilities": ["Stock.Count", "No.Such"]}))["schemas"]
    assert list(some) == ["Stock.Count"]
    listed = (await a.ask("query", "Syscall.List", {}))["types"]
    assert {"type": "Stock.Count", "kind": "query", "description": "", "node": "b"} in listed
    with pytest.raises(Fail, match="no such message type"):
        await a.ask("query", "Syscall.Describe", {"name": "No.Such"})


@in_virtual_time
async def test_what_a_silent_node_handles_is_still_named(world: World) -> None:
    a = await kernel_node(world, "a")
    b = await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await wait(1)
    await b.kill()
    found = await a.ask("query", "Syscall.Describe", {"name": "Stock.Count"})
    assert found == {"name": "Stock.Count", "kind": "query", "node": "b"}


@in_virtual_time
async def test_any_node_tells_who_is_there(world: World) -> None:
    a = await kernel_node(world, "a")
    await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await wait(1)
    found = (await a.ask("query", "Syscall.Nodes", {}))["nodes"]
    assert [(node["name"], node["here"], node["serves"]) for node in found] == [
        ("a", True, []),
        ("b", False, ["query:Stock.Count"]),
    ]


@in_virtual_time
async def test_a_node_that_is_stopping_still_asks_others_for_its_own_handlers(
    world: World,
) -> None:
    async def order(data: int, ctx: Context) -> str:
        await ctx.sleep(1)
        found = await ctx.send("query", "Stock.Count", data)
        return f"ordered from {found['by']}"

    a = await kernel_node(world, "a", handler_from("command", "Shop.Order", order))
    await kernel_node(world, "b", named("query", "Stock.Count", "b"))
    await wait(1)
    begun = a.ask("command", "Shop.Order", 7)
    await wait(1)
    a.kernel.exchange.closing = True
    assert await begun == "ordered from b"


@in_virtual_time
async def test_an_event_is_heard_where_it_happened_and_by_who_wants_it_from_everywhere(world: World) -> None:
    heard: list[str] = []

    def hearing(name: str, everywhere: bool) -> Handler:
        def hear(data: int, ctx: Context) -> None:
            heard.append(f"{name} {data}")

        return handler_from("event", "Stock.Changed", hear, everywhere=everywhere)

    a = await kernel_node(world, "a", hearing("a", True))
    await kernel_node(world, "b", hearing("b here", False), hearing("b", True))
    c = await kernel_node(world, "c", hearing("c here", False))
    await wait(1_000)
    a.kernel.emit("Stock.Changed", 1)
    await wait(1_000)
    assert sorted(heard) == ["a 1", "b 1"]
    heard.clear()
    c.kernel.emit("Stock.Changed", 2)
    await wait(1_000)
    assert sorted(heard) == ["a 2", "b 2", "c here 2"]
    listed = (await c.ask("query", "Syscall.List", {}))["types"]
    assert not any(each["type"] == "Stock.Changed" for each in listed)  # events are not asked
