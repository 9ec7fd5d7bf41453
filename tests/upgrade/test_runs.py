"""Durable runs while an old and a new program run side by side: who has no code for a run leaves it alone."""

from __future__ import annotations

from typing import Any

from mainspring import App
from mainspring.runs import Sleep, Version, WaitSignal

from .world import Site, Upgraded, story, wait


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
async def test_a_new_program_that_does_not_fit_the_journal_still_fails_the_run(site: Site) -> None:
    """Nobody has the old code any more: the difference is told, and a repaired program goes on."""
    b = await site.start("b", old())
    await start(b, "checkout", "o1")
    await wait(2_000)
    await b.stop()
    a = await site.start("a", careless())
    await wait(2_000)
    found = await outcome(a, "o1")
    assert found["state"] == "failed"
    await a.stop()
    a = await site.start("a", new())
    await a.ask("command", "Run.Retry", {"id": "o1"})
    await signal(a, "o1", "paid", "cash")
    await wait(2_000)
    assert (await outcome(a, "o1"))["value"] == "o1 cash, with a gift"
