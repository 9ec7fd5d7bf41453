"""What a user of Temporal expects of queries and updates: a query reads a live run, an update changes it for good."""

from __future__ import annotations

import pytest

from mainspring import App, Fail, Perform, WaitSignal
from tests.expectations.conftest import Start


def shop() -> App:
    app = App("shop")

    @app.run
    async def basket(owner: str, perform: Perform) -> list[str]:
        items: list[str] = []
        state = "open"

        @perform.query
        def contents() -> dict[str, object]:
            return {"owner": owner, "items": list(items), "state": state}

        def not_empty(item: str) -> None:
            if not item:
                raise ValueError("an item has a name")

        @perform.update(validate=not_empty)
        def add(item: str) -> int:
            if item in items:
                raise ValueError(f"{item} is there already")
            items.append(item)
            return len(items)

        await perform(WaitSignal("close"))
        state = "closed"
        await perform(WaitSignal("pay"))
        return items

    return app


async def test_a_query_reads_and_an_update_changes_a_live_run(start: Start) -> None:
    async with start(shop()) as node:
        await node.start_run("basket", "ada", id="b")
        assert await node.bus.query_run("b", "contents") == {"owner": "ada", "items": [], "state": "open"}
        assert await node.bus.update_run("b", "add", "pen") == 1
        assert await node.bus.update_run("b", "add", "ink", reply=int) == 2
        with pytest.raises(Fail, match="ink is there already"):
            await node.bus.update_run("b", "add", "ink")
        with pytest.raises(Fail, match="an item has a name"):
            await node.bus.update_run("b", "add", "")
        assert (await node.bus.query_run("b", "contents"))["items"] == ["pen", "ink"]
        journal = (await node.query("Run.History", {"id": "b"}))["journal"]
        assert not any(entry.get("answered") for entry in journal), "nobody moved the run"


async def test_updates_are_there_again_after_a_crash_at_the_place_where_they_were_made(start: Start) -> None:
    async with start(shop) as node:
        await node.start_run("basket", "ada", id="b")
        await node.bus.update_run("b", "add", "pen")
        await node.signal("b", "close")
        await node.until(lambda: is_closed(node))
        await node.bus.update_run("b", "add", "ink")
        await node.crash()
        await node.until(lambda: is_closed(node))
        assert (await node.bus.query_run("b", "contents"))["items"] == ["pen", "ink"]
        await node.bus.update_run("b", "add", "paper")
        await node.restart()
        await node.signal("b", "pay")
        assert (await node.outcome("b")).value == ["pen", "ink", "paper"]


async def is_closed(node: object) -> bool:
    return (await node.bus.query_run("b", "contents"))["state"] == "closed"  # type: ignore[attr-defined]


async def test_what_cannot_be_asked_says_why(start: Start) -> None:
    async with start(shop()) as node:
        await node.start_run("basket", "ada", id="b")
        with pytest.raises(Fail, match="404 run b has no query price"):
            await node.bus.query_run("b", "price")
        with pytest.raises(Fail, match="the arguments do not fit add"):
            await node.bus.update_run("b", "add", 7, 8)
        with pytest.raises(Fail, match="no durable run"):
            await node.bus.query_run("nobody", "contents")
        await node.cancel("b")
        with pytest.raises(Fail, match="409 run b is cancelled and cannot be asked"):
            await node.bus.query_run("b", "contents")
