"""The room that a node on a real server watches, and what it still does when there is none left.

MongoDB says how full its server's file system is; a node on NATS watches the file system of its own copy of the log.
PostgreSQL does not say, and FerretDB, which stands for MongoDB where that is not installed, leaves it out: nothing
is watched there, as the how-to says. So what `mongod` documents is put into FerretDB's answer for the rest of the test.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pymongo.asynchronous.database import AsyncDatabase

from mainspring import App, connect
from mainspring.client import NodeRefused
from mainspring.testing import serving
from tests.support.processes import SERVERS, site

pytestmark = pytest.mark.servers


def say_how_full(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Where the server leaves it out, its answer has the file system's figures, as `mongod` gives them."""
    command = AsyncDatabase.command

    async def told(self: Any, asked: Any, *arguments: Any, **options: Any) -> Any:
        answer = await command(self, asked, *arguments, **options)
        if asked == "dbStats" and "fsTotalSize" not in answer:
            found = os.statvfs(folder)
            total = float(found.f_blocks * found.f_frsize)
            answer |= {"fsTotalSize": total, "fsUsedSize": total - found.f_bavail * found.f_frsize}
        return answer

    monkeypatch.setattr(AsyncDatabase, "command", told)


@pytest.mark.parametrize("kind", sorted(SERVERS))
async def test_without_room_a_node_refuses_publishes_and_takes_acknowledgements_and_deletions(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site(tmp_path, kind) as place:
        settings = {"engine": place.server.address, "data": str(tmp_path / "node"), "node": "one"}
        async with serving(App("shop"), **settings, disk_reserve="100%") as node, connect(node.url) as bus:
            watched = "disk" in await bus.http.call("GET", "/stats")
            if not watched:
                await bus.publish("orders", 0)
            assert watched or kind != "nats"
            if kind == "postgres":
                return
        say_how_full(monkeypatch, tmp_path)
        async with serving(App("shop"), **settings) as node, connect(node.url) as bus:
            await bus.publish_many("orders", range(3))
            disk = (await bus.http.call("GET", "/stats"))["disk"]
            whole = os.statvfs(tmp_path)
            assert disk["total"] == whole.f_blocks * whole.f_frsize
            assert 0 < disk["free"] <= disk["total"]
            assert disk["size"] > 0
        async with serving(App("shop"), **settings, disk_reserve="100%") as node, connect(node.url) as bus:
            with pytest.raises(NodeRefused) as refused:
                await bus.http.call("POST", "/topics/orders/events", {"payload": 4}, limit_s=None)
            assert refused.value.code == "unavailable"
            assert (await bus.http.call("GET", "/readyz"))["disk"] == "full"
            (need,) = (await bus.attention())["needs"]
            assert need["kind"] == "disk"
            async with bus.subscribe("orders", group="g", from_="beginning") as reading:
                assert await (await anext(aiter(reading))).ack()
            await bus.delete_group("orders", "g")
            assert await bus.purge_topic("orders") == (3 if watched else 4)
