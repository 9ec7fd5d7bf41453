"""A node with a day behind it, and a real Chromium that looks at it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Playwright, sync_playwright

from mainspring.bus.access.tokens import new_token
from tests.support.chromium import ARGUMENTS, chromium
from tests.support.dashboard_site import Cluster, Dashboard, Opener, Tokens, serving, url_of
from tests.support.nats_server import NatsServer
from tests.support.shop_day import Packer, aside, spend


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """Its driver keeps this thread's event loop for itself, so it must not outlive the module that needs it."""
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    started = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
    yield started
    started.close()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node with a day behind it. Tests that change something change something of their own."""
    with serving(tmp_path_factory.mktemp("shop")) as node:
        url = url_of(node)
        aside(spend(url))
        with Packer(url):
            yield url


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    """A node with tokens: one may do everything, one may only read."""
    folder = tmp_path_factory.mktemp("guarded")
    admin, kept_admin = new_token("root", ["admin"], secrets.token_bytes(32))
    reader, kept_reader = new_token("watcher", ["subscribe:**", "query:**"], secrets.token_bytes(32))
    (folder / "tokens").write_text(f"{kept_admin.line()}\n{kept_reader.line()}\n")
    with serving(folder, MAINSPRING_TOKENS_FILE=str(folder / "tokens")) as node:
        yield Tokens(url_of(node), admin, reader)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes on one log. Silence is noticed soon."""
    server = NatsServer(tmp_path / "nats").start()
    with ExitStack() as ends:
        ends.callback(server.kill)
        engine = server.url("shop", patience=2, monitor=server.monitor)
        nodes = [
            serving(tmp_path / name, "--node", name, engine=engine, MAINSPRING_NODE_LEASE_MS="2000")
            for name in ("left", "right")
        ]
        yield Cluster(server, *map(ends.enter_context, nodes))


@pytest.fixture
def dashboard(browser: Browser) -> Iterator[Opener]:
    """Opens pages: `dashboard(url, view, **context options)`; at the end nothing may have been complained about."""
    opened: list[tuple[BrowserContext, Dashboard]] = []

    def opener(url: str, view: str = "", *, token: str = "", **options: Any) -> Dashboard:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 820}, **options})
        if token:
            context.add_init_script(f"sessionStorage.setItem('mainspring.token', '{token}')")
        page = Dashboard(context.new_page(), url)
        opened.append((context, page))
        return page.open(view)

    yield opener
    for context, page in opened:
        complaints = [each for each in page.complaints if not any(text in each for text in page.tolerated)]
        context.close()
        assert complaints == []
