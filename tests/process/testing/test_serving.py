"""A real node inside a test: reachable in every way, gone afterwards, and able to take up what another one left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mainspring import App, Context, connect
from mainspring.bus import BadFrame, TopicConfig
from mainspring.bus.topics.config import AccessList
from mainspring.node.core import BootFailure
from mainspring.testing import serving


def program() -> App:
    app = App("shop")

    @app.command("Order.Place")
    async def place(order: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.publish("orders", order)
        return order

    return app


async def test_a_served_program_is_reached_over_http_websocket_and_lines() -> None:
    async with serving(program()) as node:
        reader, writer = await asyncio.open_unix_connection(node.kernel_socket)
        metadata = {"id": "1", "timestamp": 0}
        message = {"kind": "command", "type": "Order.Place", "data": {"id": "o-1"}, "metadata": metadata}
        writer.write(json.dumps(message).encode() + b"\n")
        assert json.loads(await reader.readline())["data"] == {"id": "o-1"}
        writer.close()
        async with connect(node.url) as bus:
            assert [event.payload async for event in bus.replay("orders")] == [{"id": "o-1"}]
        async with aiohttp.ClientSession() as browser, browser.get(f"{node.http}/topics/orders") as answer:
            assert answer.status == 200
    assert not node.kernel_socket.exists()


async def test_a_second_node_serves_what_the_first_has_left(tmp_path: Path) -> None:
    for number in (1, 2):
        async with serving(program(), engine="sqlite", data=str(tmp_path)) as node, connect(node.url) as bus:
            await bus.publish("orders", number)
            assert [event.payload async for event in bus.replay("orders")] == list(range(1, number + 1))


# -- topics and pages that a program declares


async def test_a_declared_topic_keeps_what_was_set_by_hand(tmp_path: Path) -> None:
    app = program()
    app.topic("orders", partitions=2, retention="7d", max_attempts=3)
    by_hand = TopicConfig(topic="orders", partitions=4, retention_ms=1, subscribe_acl=AccessList(("billing",)))
    async with serving(app, engine="sqlite", data=str(tmp_path)) as node:
        known = node.node.bus.topics.get("orders").config
        assert (known.partitions, known.retention_ms, known.max_attempts) == (2, 604_800_000, 3)
        await node.node.bus.put_topic(by_hand)
    async with serving(app, engine="sqlite", data=str(tmp_path)) as node:
        known = node.node.bus.topics.get("orders").config
        assert (known.partitions, known.retention_ms, known.max_attempts) == (4, 604_800_000, 3)
        assert known.subscribe_acl == by_hand.subscribe_acl


def test_a_topic_that_cannot_be_is_refused_where_it_is_declared() -> None:
    with pytest.raises(BadFrame, match="partitions"):
        App("shop").topic("orders", partitions=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    page = tmp_path / "page"
    (page / "sub").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html><title>chat</title>")
    (page / "chat.js").write_text("export {};")
    (page / "sub" / "index.html").write_text("<!doctype html><title>sub</title>")
    (page / ".secret").write_text("hidden")
    (tmp_path / "outside.txt").write_text("not for everybody")
    (page / "way-out.txt").symlink_to(tmp_path / "outside.txt")
    return page


async def test_pages_of_a_program_are_served_with_a_strict_policy(folder: Path) -> None:
    app = program()
    app.pages("/chat", folder)
    async with serving(app) as node, aiohttp.ClientSession(node.http) as browser:
        async with browser.get("/chat") as page:
            assert (page.url.path, page.content_type) == ("/chat/", "text/html")
            assert "chat" in await page.text()
            assert "script-src 'self'" in page.headers["Content-Security-Policy"]
            assert page.headers["X-Content-Type-Options"] == "nosniff"
        async with browser.get("/chat/chat.js") as script:
            assert script.content_type == "text/javascript"
        (folder / "chat.js").write_text("export const changed = true;")
        async with browser.get("/chat/chat.js") as script:
            assert "changed" in await script.text()
        async with browser.get("/chat/sub/") as inner:
            assert "sub" in await inner.text()


@pytest.mark.parametrize(
    "name", ["nothing.js", ".secret", "way-out.txt", "..%2foutside.txt", "sub/..%2f..%2foutside.txt", "sub", "%00"]
)
async def test_nothing_but_the_files_of_the_folder_is_served(folder: Path, name: str) -> None:
    app = program()
    app.pages("/chat", folder)
    async with serving(app) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(node.http.rpartition(":")[2]))
        writer.write(f"GET /chat/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.split(b" ")[1] == b"404"
        assert b"not for everybody" not in answer


@pytest.mark.parametrize("path", ["/", "chat", "/topics", "/topics/chat", "/dashboard/x", "/client.js"])
async def test_pages_do_not_take_paths_the_node_needs(folder: Path, path: str) -> None:
    app = program()
    app.pages(path, folder)
    with pytest.raises(BootFailure, match="pages cannot be served"):
        async with serving(app):
            pass


async def test_pages_from_a_folder_that_is_none_fail_the_boot(tmp_path: Path) -> None:
    app = program()
    app.pages("/chat", tmp_path / "nowhere")
    with pytest.raises(BootFailure, match="there is no folder"):
        async with serving(app):
            pass
