"""What a user of Temporal or DBOS expects of durable runs."""

from __future__ import annotations

from typing import Any

from mainspring import App, Effect, Perform, Publish, Sleep, WaitSignal
from tests.expectations.conftest import Start


class Charge(Effect[str]):
    order: str


def shop() -> App:
    app = App("shop")

    @app.handles(Charge)
    async def charge(effect: Charge) -> str:
        await app.publish("charges", effect.order)
        return f"receipt of {effect.order}"

    @app.run
    async def checkout(order: str, perform: Any) -> str:
        receipt: str = await perform(Charge(order))
        await perform(Sleep(ms=20))
        decision = await perform(WaitSignal("decision"))
        await perform(Publish("decided", decision))
        return receipt

    return app


async def test_a_run_goes_on_where_it_was_after_a_crash(start: Start) -> None:
    async with start(shop) as node:
        run = await node.start_run("checkout", "o-1", id="checkout-1")
        await node.comes("charges", "o-1")
        await node.crash()
        assert await node.signal(run, "decision", "ship")
        ended = await node.outcome(run)
        assert (ended.state, ended.value) == ("done", "receipt of o-1")
        assert await node.events("charges") == ["o-1"]
        assert await node.events("decided") == ["ship"]


async def test_a_run_says_how_far_it_is(start: Start) -> None:
    app = App("mailing")

    @app.run
    async def newsletter(readers: int, perform: Perform) -> int:
        for reader in range(readers):
            await perform(Publish("letters", reader))
            await perform.progress({"sent": reader + 1, "of": readers})
        await perform(WaitSignal("done"))
        return readers

    async with start(app) as node:
        run = await node.start_run("newsletter", 3)
        await node.until(lambda: progress(node, run, {"sent": 3, "of": 3}))
        await node.restart()
        assert await progress(node, run, {"sent": 3, "of": 3})
        await node.signal(run, "done")
        assert (await node.outcome(run)).value == 3
        assert (await node.query("Run.History", {"id": run}))["progress"] == {"sent": 3, "of": 3}


async def progress(node: Any, run: str, expected: Any) -> bool:
    return bool((await node.query("Run.Outcome", {"id": run})).get("progress") == expected)


async def test_a_run_that_waits_can_be_cancelled(start: Start) -> None:
    async with start(shop()) as node:
        run = await node.start_run("checkout", "o-1")
        assert await node.cancel(run, "changed my mind")
        ended = await node.outcome(run)
        assert (ended.state, ended.reason) == ("cancelled", "changed my mind")
