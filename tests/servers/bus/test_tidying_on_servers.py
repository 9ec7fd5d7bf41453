"""Topics, groups, dead letters and finished runs that somebody removed are gone from the log on a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring import App, Perform, connect
from mainspring.client import Client
from mainspring.testing import serving
from tests.support.processes import SERVERS, site

pytestmark = pytest.mark.servers
PATIENCE_S = 60  # for what must come; never a measurement


def shop() -> App:
    app = App("shop")

    @app.run
    async def pay(cents: int, perform: Perform) -> int:
        return cents

    return app


async def is_left(bus: Client) -> bool:
    """Whether the group has given up on something, and its member is gone."""
    (group,) = (await bus.http.call("GET", "/groups?topic=orders"))["groups"]
    return group["members"] == 0 and bool([each async for each in bus.dead_letters("orders")])


@pytest.mark.parametrize("kind", sorted(SERVERS))
async def test_what_was_removed_is_gone_for_the_next_node_too(kind: str, tmp_path: Path) -> None:
    with site(tmp_path, kind) as place:
        settings = {"engine": place.server.address, "data": str(tmp_path / "node")}
        async with serving(shop(), node="one", audit=True, **settings) as node, connect(node.url) as bus:
            await bus.put_topic("orders", partitions=2, maxAttempts=1)
            await bus.publish_many("orders", range(6))
            await bus.schedule("again", "orders", "now and then", every="1h")
            async with bus.subscribe("orders", group="g", from_="beginning") as reading:
                await (await anext(aiter(reading))).reject("no")
            async with asyncio.timeout(PATIENCE_S):
                while not await is_left(bus):  # noqa: ASYNC110 (the node decides)
                    await asyncio.sleep(0.05)
            assert await bus.drop_dead_letters("orders", all=True) > 0
            await bus.delete_group("orders", "g")
            assert await bus.purge_topic("orders") == 6
            await bus.publish("orders", "last")
            await bus.delete_topic("orders")
            run = await bus.start_run("pay", 5, id="r-1")
            assert (await bus.outcome(run)).value == 5
            assert await bus.forget_runs(state="done") == 1
        async with serving(shop(), node="two", **settings) as node, connect(node.url) as bus:
            names = {each["topic"] for each in (await bus.http.call("GET", "/topics"))["topics"]}
            assert not {"orders", "orders.DLQ"} & names
            assert "orders" not in {each["topic"] for each in (await bus.http.call("GET", "/groups"))["groups"]}
            assert await bus.schedules() == []
            assert [each.id async for each in bus.runs()] == []
            told = (await bus.http.call("GET", "/topics/system.bus.audit/events?limit=1000"))["events"]
            assert len([each for each in told if each["payload"]["action"] == "deleted"]) >= 4
