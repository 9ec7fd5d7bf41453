"""A node whose log is on a small real file system that fills up: `mount -t tmpfs`, so only where that is allowed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import App, connect
from mainspring.client import NodeRefused
from mainspring.testing import serving

BODY = "x" * 60_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def test_a_disk_that_fills_refuses_publishes_and_a_purge_makes_room(small_disk: Path) -> None:
    settings = {"engine": "sqlite", "data": str(small_disk / "data"), "disk_warn": "60%", "disk_reserve": "25%"}
    async with serving(App("shop"), **settings) as node, connect(node.url) as bus:
        await bus.publish("orders", 1, key="first")
        reading = await bus.subscribe("orders", group="g", from_="beginning").__aenter__()
        event = await anext(aiter(reading))
        stored = 0

        async def fill() -> None:
            nonlocal stored
            while stored < 2_000:  # far more than there is room for
                await bus.http.call("POST", "/topics/orders/events", {"payload": BODY}, limit_s=None)
                stored += 1

        with pytest.raises(NodeRefused) as refused:
            await fill()
        assert refused.value.code == "unavailable"
        assert 100 < stored < 800
        assert (await bus.http.call("GET", "/readyz")) == {"status": "ready", "disk": "full"}
        disk = (await bus.http.call("GET", "/stats"))["disk"]
        assert (disk["state"], disk["largest"][0]["topic"]) == ("full", "orders")
        assert disk["free"] > 0
        assert await event.ack()
        await bus.http.call("POST", "/groups/orders/g/seek", {"kind": "latest"})
        await reading.close()
        assert await bus.purge_topic("orders") == stored + 1
        place = await bus.publish("orders", "again", timeout="60s")  # tried again until the node has looked
        assert place > stored
        assert (await bus.http.call("GET", "/stats"))["disk"]["state"] != "full"
