"""How the page and its files are served."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

import mainspring
from mainspring.server.http.pages import CONTENT_TYPES, Dashboard
from mainspring.server.http.problem import problems

FILES = Path(mainspring.__file__).parent / "dashboard"


@pytest.fixture
async def site() -> AsyncIterator[aiohttp.ClientSession]:
    app = web.Application(middlewares=[problems])
    dashboard = Dashboard()
    dashboard.add_to(app)
    app.router.add_get("/", dashboard.page)
    runner = web.AppRunner(app)
    await runner.setup()
    listening = web.TCPSite(runner, "127.0.0.1", 0)
    await listening.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
        yield session
    await runner.cleanup()


async def test_the_page_is_guarded_by_a_strict_policy(site: aiohttp.ClientSession) -> None:
    async with site.get("/") as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


async def test_a_file_the_browser_has_is_not_sent_again(site: aiohttp.ClientSession) -> None:
    async with site.get("/dashboard/main.js") as first:
        etag, body = first.headers["ETag"], await first.read()
        assert first.headers["Cache-Control"] == "no-cache"
    assert body
    async with site.get("/dashboard/main.js", headers={"If-None-Match": f'"other", {etag}'}) as again:
        assert (again.status, await again.read()) == (304, b"")
    async with site.get("/dashboard/main.js", headers={"If-None-Match": '"other"'}) as changed:
        assert changed.status == 200
    async with site.head("/dashboard/main.js") as head:
        assert (head.status, await head.read()) == (200, b"")


@pytest.mark.parametrize("compress", ["gzip", "identity"])
async def test_every_file_is_served_with_its_type(site: aiohttp.ClientSession, compress: str) -> None:
    for path in sorted(each for each in FILES.rglob("*") if each.suffix in CONTENT_TYPES):
        name = path.relative_to(FILES).as_posix()
        async with site.get(f"/dashboard/{name}", headers={"Accept-Encoding": compress}) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPES[path.suffix]
            assert await answer.read() == path.read_bytes()


@pytest.mark.parametrize("name", ["nothing.js", "../node.py", "..%2Fwire%2Fwebsocket.py", "%2e%2e/node.py", "css", ""])
async def test_nothing_else_is_served(site: aiohttp.ClientSession, name: str) -> None:
    async with site.get(f"/dashboard/{name}") as answer:
        assert answer.status == 404


def test_the_files_name_no_foreign_address_and_build_no_markup() -> None:
    for path in FILES.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        addresses = [found for found in re.findall(r"https?://[\w.]+", text) if found != "http://www.w3.org"]
        assert addresses == [], path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )


def test_colours_can_be_read_in_light_and_dark() -> None:
    """At least 4.5 to 1 between texts and what they stand on (WCAG 2.2, AA)."""
    tokens = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", (FILES / "css" / "tokens.css").read_text()))
    pairs = [(ink, ground) for ink in ("ink", "ink-2", "ink-3") for ground in ("paper", "panel", "sunken")]
    pairs += [(ink, "panel") for ink in ("blue", "teal", "violet", "brass", "red", "green")]
    pairs += [(ink, f"{ink}-soft") for ink in ("blue", "brass", "red", "green")]
    for ink, ground in pairs:
        for one, other in zip(tokens[ink].split(", "), tokens[ground].split(", "), strict=True):
            assert contrast(one, other) >= 4.5, (ink, ground, one, other, contrast(one, other))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
