"""Durable runs while an old and a new program run side by side: who has no code for a run leaves it alone."""

from __future__ import annotations

from typing import Any

from mainspring import App
from mainspring.runs import Sleep, Version, WaitSignal
from tests.support.upgrade import LEASE_MS, Site, Upgraded, story, wait


def old() -> App:
    app = App("shop")

    @app.run
    async def checkout(order: str, perform: Any) -> str:
        await perform(Sleep(ms=1_000))
        paid = await perform(WaitSignal("paid"))
        return f"{order} {paid}"

    return app


def new() -> App:
    """One more step in a known run, and one more run."""
    app = App("shop")

    @app.run
    async def checkout(order: str, perform: Any) -> str:
        if await perform(Version("gift", 2)) >= 2:
            await perform(Sleep(ms=500))
        await perform(Sleep(ms=1_000))
        paid = await perform(WaitSignal("paid"))
        return f"{order} {paid}, with a gift"

    @app.run
    async def refund(order: str, perform: Any) -> str:
        await perform(WaitSignal("agreed"))
        return f"{order} refunded"

    return app


def reworded() -> App:
    """Other code that performs the same effects."""
    app = App("shop")

    @app.run
    async def checkout(order: str, perform: Any) -> str:
        await perform(Sleep(ms=1_000))
        paid = await perform(WaitSignal("paid"))
        return f"{order}: {paid}!"

    return app


def careless() -> App:
    """As `new`, but the new step has no gate."""
    app = App("shop")

    @app.run
    async def checkout(order: str, perform: Any) -> str:
        await perform(Sleep(ms=500))
        await perform(Sleep(ms=1_000))
        paid = await perform(WaitSignal("paid"))
        return f"{order} {paid}, with a gift"

    return app


async def start(node: Upgraded, program: str, id: str) -> None:
    await node.ask("command", "Run.Start", {"program": program, "args": [id], "id": id})


async def signal(node: Upgraded, id: str, name: str, value: Any = None) -> None:
    await node.ask("command", "Run.Signal", {"id": id, "name": name, "value": value})


async def outcome(node: Upgraded, id: str) -> dict[str, Any]:
    found: dict[str, Any] = await node.ask("query", "Run.Outcome", {"id": id})
    return found


@story
async def test_a_run_that_only_the_new_program_has_waits_while_no_new_node_is_there(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    await start(b, "refund", "r1")
    await wait(2_000)
    await a.stop()
    await wait(10_000)
    found = await outcome(b, "r1")
    assert found["state"] == "running"
    a = await site.start("a", new())
    await signal(b, "r1", "agreed")
    await wait(2_000)
    assert (await outcome(b, "r1"))["value"] == "r1 refunded"


@story
async def test_a_run_of_the_old_code_goes_on_with_the_new(site: Site) -> None:
    b = await site.start("b", old())
    await start(b, "checkout", "o1")
    await wait(2_000)
    a = await site.start("a", new())
    await b.stop()
    await wait(2_000)
    await signal(a, "o1", "paid", "cash")
    await wait(2_000)
    assert (await outcome(a, "o1"))["value"] == "o1 cash, with a gift"


@story
async def test_a_run_of_the_new_code_is_left_alone_by_old_nodes(site: Site) -> None:
    """Also while the only new node is away for a moment, or for longer than its lease."""
    b, a = await site.start("b", old()), await site.start("a", new())
    for n in range(6):
        await start(a, "checkout", f"o{n}")
    await wait(200)
    await start(a, "checkout", "late")  # its gate is all there is in its journal
    await wait(20)
    await a.stop()
    await wait(3 * LEASE_MS)
    for n in range(6):
        await signal(b, f"o{n}", "paid", "cash")
    await signal(b, "late", "paid", "cash")
    await wait(3_000)
    assert [(await outcome(b, f"o{n}"))["state"] for n in range(6)] == ["running"] * 6
    assert "waits" in str(await outcome(b, "o0")), "people are told why"
    a = await site.start("a", new())
    await wait(4_000)
    for id in (*(f"o{n}" for n in range(6)), "late"):
        assert (await outcome(b, id)).get("value") == f"{id} cash, with a gift"


@story
async def test_a_run_goes_to_the_node_that_has_its_code_also_when_the_change_has_no_gate(site: Site) -> None:
    b, c = await site.start("b", old()), await site.start("c", old())
    a = await site.start("a", careless())
    for n in range(8):
        await start(b, "checkout", f"old{n}")
        await start(a, "checkout", f"new{n}")
    await wait(2_000)
    d = await site.start("d", careless())
    b.kill()
    await a.stop()
    await wait(2 * LEASE_MS)
    for n in range(8):
        await signal(c, f"old{n}", "paid", "cash")
        await signal(c, f"new{n}", "paid", "cash")
    await wait(3_000)
    for n in range(8):
        assert (await outcome(c, f"old{n}")).get("value") == f"old{n} cash"
        assert (await outcome(d, f"new{n}")).get("value") == f"new{n} cash, with a gift"


@story
async def test_after_a_whole_rollback_runs_of_the_newer_code_go_on_if_they_can(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", reworded())
    await start(a, "checkout", "o1")
    await wait(2_000)
    await a.stop()
    await wait(5_000)
    assert "waits" in str(await outcome(b, "o1")), "the new node may come back"
    a = await site.start("a", old())
    await signal(a, "o1", "paid", "cash")
    await wait(4_000)
    assert (await outcome(b, "o1"))["value"] == "o1 cash", "it did not: somebody started the old program in its place"


@story
async def test_a_newer_code_that_comes_again_after_a_rollback_is_newer_again(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    await a.stop()
    await b.stop()
    b = await site.start("b", old())
    a = await site.start("a", new())
    await start(a, "checkout", "o1")
    await wait(200)
    await a.stop()
    await wait(3 * LEASE_MS)
    assert (await outcome(b, "o1"))["state"] == "running"
    a = await site.start("a", new())
    await signal(b, "o1", "paid", "cash")
    await wait(4_000)
    assert (await outcome(b, "o1"))["value"] == "o1 cash, with a gift"


@story
async def test_starting_a_run_again_on_an_old_node_does_not_take_it(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    await start(a, "checkout", "o1")
    await wait(200)
    a.kill()
    await wait(2 * LEASE_MS)
    await start(b, "checkout", "o1")
    await wait(2_000)
    assert (await outcome(b, "o1"))["state"] == "running"
    await site.start("a", new())
    await signal(b, "o1", "paid", "cash")
    await wait(4_000)
    assert (await outcome(b, "o1"))["value"] == "o1 cash, with a gift"


async def blocked(site: Site) -> Upgraded:
    """A node whose program does not fit the journal of the run `o1`, which nobody else has code for."""
    b = await site.start("b", old())
    await start(b, "checkout", "o1")
    await wait(2_000)
    await b.stop()
    a = await site.start("a", careless())
    await wait(2_000)
    found = await outcome(a, "o1")
    assert (found["state"], found["error"]["code"]) == ("blocked", "replay_mismatch")
    await signal(a, "o1", "paid", "cash")
    return a


@story
async def test_a_run_that_does_not_fit_the_new_program_goes_on_when_it_is_repaired(site: Site) -> None:
    a = await blocked(site)
    await a.stop()
    a = await site.start("a", new())
    await wait(2_000)
    assert (await outcome(a, "o1"))["value"] == "o1 cash, with a gift"


@story
async def test_a_run_that_does_not_fit_the_new_program_goes_to_a_node_that_has_the_old_one(site: Site) -> None:
    a = await blocked(site)
    await site.start("b", old())
    await wait(20_000)
    assert (await outcome(a, "o1"))["value"] == "o1 cash"


@story
async def test_a_blocked_run_is_moved_from_any_node(site: Site) -> None:
    a = await blocked(site)
    c = await site.start("c", careless())
    await c.ask("command", "Run.Bulk", {"action": "retry", "state": "blocked", "keep": "fitting"})
    await wait(5_000)
    assert (await outcome(a, "o1"))["value"] == "o1 cash, with a gift"
