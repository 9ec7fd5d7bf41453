"""Finding a run among thousands, as in Temporal: the newest first, filters, counts, what each waits for, bulk."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import App
from mainspring.client import BadArgument
from mainspring.runs import Effect, Sleep, WaitEvent, WaitSignal
from mainspring.testing import simulate
from tests.expectations.conftest import Start


class Charge(Effect[str]):
    """Take money."""

    card: str


def shop() -> App:
    app = App("shop")

    @app.handles(Charge, max_attempts=2, backoff="10h", max_backoff="10h")
    async def charge(effect: Charge) -> str:
        raise ConnectionError("the bank is closed")

    @app.run(name="checkout")
    async def checkout(order: dict[str, Any], perform: Any) -> Any:
        match order.get("waits"):
            case "sleep":
                await perform(Sleep("1h"))
            case "event":
                await perform(WaitEvent("parcels", timeout="3h"))
            case "bank":
                await perform(Charge("c-1"))
            case "child":
                async with perform.group() as group:
                    group.spawn(approval, "board")
        if order.get("fails"):
            raise LookupError(f"nobody sells {order['id']}")
        return await perform(WaitSignal("paid", timeout="2h"))

    @app.run(name="approval")
    async def approval(by: str, perform: Any) -> Any:
        return await perform(WaitSignal("approved"))

    return app


async def test_the_newest_run_comes_first_and_pages_follow() -> None:
    async with simulate(shop()) as world:
        for n in range(60):
            started = ("approval", f"o-{n}") if n % 3 else ("checkout", {"id": f"o-{n}", "fails": True})
            await world.start_run(*started, id=f"{n * 7 % 60:02}")
            await world.advance("1m" if n < 50 else "5d")
        expected = [f"{n * 7 % 60:02}" for n in reversed(range(60))]
        async with world.client() as bus:
            assert [run.id async for run in bus.runs()] == expected
            failed = [run.id async for run in bus.runs(state="failed")]
            assert failed == [f"{n * 7 % 60:02}" for n in reversed(range(0, 60, 3))]
            recent = [run.id async for run in bus.runs(since=timedelta(days=12))]
            assert recent == expected[:2]
            before = [run.id async for run in bus.runs(until=timedelta(days=12), state="failed")]
            assert before == failed
            assert [run.id async for run in bus.runs(text="nobody sells o-57")] == [expected[2]]


async def test_runs_are_found_by_program_id_and_text(start: Start) -> None:
    async with start(shop) as node:
        await node.start_run("checkout", {"id": "o-1", "fails": True}, id="order-1")
        await node.start_run("checkout", {"id": "o-2", "customer": "Ada"}, id="order-2")
        await node.start_run("approval", "board", id="paper-1")
        await node.outcome("order-1")

        async def found(**which: Any) -> list[str]:
            return [run.id async for run in node.bus.runs(**which)]

        assert await found() == ["paper-1", "order-2", "order-1"]
        assert await found(program="approval") == ["paper-1"]
        assert await found(prefix="order") == ["order-2", "order-1"]
        assert await found(ids=["order-1", "paper-1", "nobody"]) == ["paper-1", "order-1"]
        assert await found(text="lookuperror") == ["order-1"]
        assert await found(text="nobody sells") == ["order-1"]
        assert await found(text="ADA") == ["order-2"]
        assert await found(text="nothing of the kind") == []
        assert await node.bus.count_runs() == {"failed": 1, "running": 2}
        assert await node.bus.count_runs(program="checkout") == {"failed": 1, "running": 1}
        assert await node.bus.count_runs(text="ada") == {"running": 1}
        counts = (await node.query("Run.Count"))["counts"]
        assert {"program": "checkout", "state": "failed", "count": 1} in counts


async def test_a_list_says_what_each_run_waits_for() -> None:
    async with simulate(shop()) as world:
        now = world.now_ms
        for waits in ("signal", "sleep", "event", "bank", "child"):
            await world.start_run("checkout", {"waits": waits}, id=waits)
        await world.settle()
        async with world.client() as bus:
            hour = 3_600_000
            waiting = {run.id: (run.waits_for, run.waits_until) async for run in bus.runs()}
            assert waiting == {
                "signal": ("signal paid", now + 2 * hour),
                "sleep": ("sleep", now + hour),
                "event": ("event of parcels", now + 3 * hour),
                "bank": ("Charge, attempt 2", None),
                "child": ("its children", None),
                "child~1": ("signal approved", None),
            }
            roots = (await bus.query("Run.List", {"roots": True}))["runs"]
            assert "child~1" not in [run["id"] for run in roots]
            assert [run.id async for run in bus.runs(prefix="child~")] == ["child~1"]
            await bus.signal("signal", "paid", 1)
            await bus.outcome("signal")
            assert (await bus.run_info("signal")).waits_for is None


async def test_a_selection_and_a_filter_are_changed_in_bulk(start: Start) -> None:
    async with start(shop) as node:
        for n in range(4):
            await node.start_run("checkout", {"id": f"o-{n}", "fails": n > 1}, id=f"o-{n}")
        await node.outcome("o-3")
        await node.outcome("o-2")
        assert await node.bus.change_runs("signal", ids=["o-0"], name="paid", value=5) == {}
        assert (await node.outcome("o-0")).value == 5
        assert await node.bus.change_runs("fork", state="failed", text="o-3") == {}
        assert await node.bus.change_runs("cancel", program="checkout", state="running", reason="closed") == {}
        refused = await node.bus.change_runs("retry", ids=["o-0", "o-2"])
        assert list(refused) == ["o-0"]
        with pytest.raises(BadArgument, match="say which runs"):
            await node.bus.change_runs("cancel")
