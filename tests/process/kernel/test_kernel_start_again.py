"""A capability that failed too often: the node says so, and a person starts it again, over every face."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import ClientSession

from mainspring import App, Fail, RestartPolicy
from mainspring.bus.access import new_token
from mainspring.client import connect
from mainspring.testing import serving


def shop() -> App:
    app = App("shop")
    app.state.broken = True

    @app.command("Order.Place", restart=RestartPolicy(max_restarts=0))
    async def place(data: dict[str, Any], ctx: Any) -> str:
        if app.state.broken:
            raise KeyError("sku")
        return "placed"

    return app


async def given_up(bus: Any) -> None:
    with pytest.raises(Fail, match="KeyError"):
        await bus.command("Order.Place")
    with pytest.raises(Fail) as refused:
        await bus.command("Order.Place")
    assert refused.value.code == 503
    assert "mainspring actors restart Order" in refused.value.remedy


async def test_it_is_not_ready_says_why_and_can_be_started_again() -> None:
    app = shop()
    async with serving(app) as node, connect(node.url) as bus, ClientSession(node.http) as http:
        async with http.get("/readyz") as ready:
            assert ready.status == 200
        await given_up(bus)
        async with http.get("/readyz") as ready:
            assert ready.status == 503
            assert "capability Order failed too often" in (await ready.json())["message"]
        async with http.get("/healthz") as healthy:
            assert healthy.status == 200
        actors = (await bus.query("Syscall.Actors"))["actors"]
        assert {each["id"]: each["state"] for each in actors}["Order"] == "unhealthy"
        app.state.broken = False
        assert await bus.command("Syscall.Restart", {"capability": "Order"}) == {
            "capability": "Order",
            "restarted": True,
        }
        assert await bus.command("Order.Place") == "placed"
        async with http.get("/readyz") as ready:
            assert ready.status == 200
        assert not (await bus.command("Syscall.Restart", {"capability": "Order"}))["restarted"]
        with pytest.raises(Fail) as unknown:
            await bus.command("Syscall.Restart", {"capability": "Orders"})
        assert unknown.value.code == 404


async def test_starting_it_again_needs_the_right_to() -> None:
    admin, known_admin = new_token("ops", ["admin"], b"x" * 32)
    reader, known_reader = new_token("web", ["subscribe:**"], b"y" * 32)
    tokens = (known_admin.line(), known_reader.line())
    async with serving(shop(), tokens=tokens) as node, ClientSession(node.http) as http:
        asked = {"kind": "command", "type": "Syscall.Restart", "data": {"capability": "Order"}}
        for token, status in ((reader, 403), (admin, 200)):
            headers = {"Authorization": f"Bearer {token}"}
            async with http.post("/messages", json=asked, headers=headers) as answer:
                assert answer.status == status


async def test_the_command_line_lists_and_restarts() -> None:
    app = shop()
    async with serving(app) as node, connect(node.url) as bus:
        await given_up(bus)

        async def mainspring(*args: str) -> str:
            command = [sys.executable, "-m", "mainspring", "actors", *args, "--socket", str(node.kernel_socket)]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
            return done.stdout

        assert "unhealthy" in next(line for line in (await mainspring("list")).splitlines() if "Order" in line)
        rows = [json.loads(line) for line in (await mainspring("list", "--json")).splitlines()]
        assert rows[0]["id"] == "Order", "what the program brings comes first"
        app.state.broken = False
        assert await mainspring("restart", "Order") == "Order is started again\n"
        assert json.loads(await mainspring("restart", "Order", "--json")) == {"capability": "Order", "restarted": False}
        assert await bus.command("Order.Place") == "placed"
