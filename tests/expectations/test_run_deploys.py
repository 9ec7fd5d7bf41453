"""What a user of Temporal expects of a deploy: no run is lost by it, whatever the new code does.

Code that does not fit a run's history blocks the run, with the reason; signals are kept; code that fits goes on by
itself; and many runs at once can be moved, restarted, failed or cancelled.
"""

from __future__ import annotations

from typing import Any

from mainspring import App, Perform, WaitSignal
from tests.expectations.conftest import Start
from tests.support.running_node import RunningNode


def reserve(order: str) -> str:
    return f"reserved {order}"


def check_fraud(order: str) -> str:
    return f"checked {order}"


def shop(version: str) -> App:
    app = App("shop")

    if version == "old":

        @app.run
        async def checkout(order: str, perform: Perform) -> str:
            reserved = await perform.step(reserve, order)
            paid: Any = await perform(WaitSignal("paid"))
            return f"{reserved}, {paid}"

    elif version == "careless":

        @app.run(name="checkout")
        async def checkout_with_check(order: str, perform: Perform) -> str:
            checked = await perform.step(check_fraud, order)
            reserved = await perform.step(reserve, order)
            paid: Any = await perform(WaitSignal("paid"))
            return f"{checked}, {reserved}, {paid}"

    elif version == "gated":

        @app.run(name="checkout")
        async def gated_checkout(order: str, perform: Perform) -> str:
            checked = "not checked"
            if await perform.version("fraud check") >= 2:
                checked = await perform.step(check_fraud, order)
            reserved = await perform.step(reserve, order)
            paid: Any = await perform(WaitSignal("paid"))
            return f"{checked}, {reserved}, {paid}"

    return app


async def deployed(node: RunningNode, *run_ids: str) -> None:
    """Runs of the old code meet code that does not fit."""
    for run_id in run_ids:
        await node.start_run("checkout", run_id, id=run_id)
    await node.until(lambda: waits(node, *run_ids))
    await node.restart(shop("careless"))
    for run_id in run_ids:
        await node.until(lambda run_id=run_id: is_in(node, run_id, "blocked"))


async def waits(node: RunningNode, *run_ids: str) -> bool:
    journals = [(await node.query("Run.History", {"id": run_id}))["journal"] for run_id in run_ids]
    return all(any(entry.get("answered") for entry in journal) for journal in journals)


async def is_in(node: RunningNode, run_id: str, state: str) -> bool:
    return (await node.run_state(run_id)).state == state


async def test_a_run_that_does_not_fit_is_blocked_says_why_and_goes_on_after_a_rollback(start: Start) -> None:
    async with start(shop("old")) as node:
        await deployed(node, "o1")
        state = await node.run_state("o1")
        assert state.error is not None
        assert "journal: reserve" in state.error["message"]
        assert "program: check_fraud" in state.error["message"]
        assert await node.signal("o1", "paid", "cash")
        await node.restart(shop("old"))
        assert (await node.outcome("o1")).value == "reserved o1, cash"


async def test_a_gate_takes_blocked_runs_the_old_way_and_new_ones_the_new_way(start: Start) -> None:
    async with start(shop("old")) as node:
        await deployed(node, "o1")
        await node.restart(shop("gated"))
        await node.start_run("checkout", "o2", id="o2")
        for run_id in ("o1", "o2"):
            await node.signal(run_id, "paid", "cash")
        assert (await node.outcome("o1")).value == "not checked, reserved o1, cash"
        assert (await node.outcome("o2")).value == "checked o2, reserved o2, cash"


async def test_many_blocked_runs_are_moved_to_the_code_of_now(start: Start) -> None:
    async with start(shop("old")) as node:
        await deployed(node, "o1", "o2")
        bulk = {"action": "retry", "state": "blocked", "program": "checkout", "keep": "fitting"}
        assert (await node.command("Run.Bulk", {**bulk, "program": "another"}))["count"] == 0
        assert await node.command("Run.Bulk", bulk) == {"count": 2, "refused": {}, "after": None}
        for run_id in ("o1", "o2"):
            await node.signal(run_id, "paid", "cash")
            assert (await node.outcome(run_id)).value == f"checked {run_id}, reserved {run_id}, cash"


async def test_many_blocked_runs_are_failed_retried_and_cancelled(start: Start) -> None:
    async with start(shop("old")) as node:
        await deployed(node, "o1", "o2")
        assert (await node.command("Run.Bulk", {"action": "fail", "state": "blocked"}))["count"] == 2
        state = await node.outcome("o1")
        assert (state.state, (state.error or {})["code"]) == ("failed", "replay_mismatch")
        assert (await node.command("Run.Bulk", {"action": "retry", "state": "failed", "keep": "nothing"}))["count"] == 2
        await node.signal("o1", "paid", "cash")
        assert (await node.outcome("o1")).value == "checked o1, reserved o1, cash"
        bulk = {"action": "cancel", "state": "running", "prefix": "o", "reason": "closed"}
        assert (await node.command("Run.Bulk", bulk))["count"] == 1
        assert (await node.outcome("o2")).reason == "closed"


async def test_a_run_whose_program_is_gone_says_what_it_waits_for_and_goes_on_when_it_is_back(start: Start) -> None:
    async with start(shop("old")) as node:
        await node.start_run("checkout", "o1", id="o1")
        await node.restart(shop("none"))
        assert (await node.query("Run.Outcome", {"id": "o1"}))["waitsFor"] == "program checkout"
        assert (await node.query("Run.List"))["runs"][0]["waitsFor"] == "program checkout"
        assert await node.signal("o1", "paid", "cash")
        await node.restart(shop("old"))
        assert (await node.outcome("o1")).value == "reserved o1, cash"


async def test_a_signal_to_a_run_that_has_not_started_is_kept_for_it(start: Start) -> None:
    async with start(shop("old")) as node:
        assert await node.signal("o1", "paid", "in advance")
        await node.restart()
        await node.start_run("checkout", "o1", id="o1")
        assert (await node.outcome("o1")).value == "reserved o1, in advance"
        assert not await node.signal("o1", "paid", "twice")
