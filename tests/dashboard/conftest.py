"""A node with a day behind it, and a real Chromium that looks at it.

Without Chromium the tests are skipped, except where CI is true: there it is installed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from day import Packer, aside, spend
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Playwright, TimeoutError, sync_playwright
from serving import Serving

from mainspring.bus.tokens import new_token

HERE = Path(__file__).parent
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 15_000


def chromium() -> str:
    """Where Chromium is; skips where there is none and nobody promised one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    if os.environ.get("CI") != "true":
        pytest.skip("Chromium is not installed: apt-get install chromium")
    subprocess.run(["apt-get", "update", "-q"], check=False)
    subprocess.run(["apt-get", "install", "-y", "-q", "chromium"], check=True)
    return "/usr/bin/chromium"


def serving(folder: Path, **env: str) -> Serving:
    """A node with the shop's program."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    known = {"PYTHONPATH": path, "MAINSPRING_METRICS_INTERVAL_MS": "200", "MAINSPRING_SLOW_TURN_MS": "60"}
    return Serving("shop:app", folder=folder, env={**known, **env})


def url_of(node: Serving) -> str:
    return f"http://127.0.0.1:{node.port}"


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
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


class Tokens:
    """A node that wants tokens, and one token of each kind."""

    def __init__(self, url: str, admin: str, reader: str) -> None:
        self.url = url
        self.admin = admin
        self.reader = reader


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    """A node with tokens: one may do everything, one may only read."""
    folder = tmp_path_factory.mktemp("guarded")
    admin, kept_admin = new_token("root", ["admin"], secrets.token_bytes(32))
    reader, kept_reader = new_token("watcher", ["subscribe:**"], secrets.token_bytes(32))
    (folder / "tokens").write_text(f"{kept_admin.line()}\n{kept_reader.line()}\n")
    with serving(folder, MAINSPRING_TOKENS_FILE=str(folder / "tokens")) as node:
        yield Tokens(url_of(node), admin, reader)


class Dashboard:
    """One page. What the browser complains about is kept, and looked at when the test ends."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.tolerated: tuple[str, ...] = ()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"a dialog said {dialog.message}"))

    def open(self, view: str = "") -> Dashboard:
        self.page.goto(f"{self.url}/#/{view}")
        try:
            self.page.wait_for_selector("#view h1, dialog[open]", state="attached")
        except TimeoutError as error:
            raise AssertionError(f"{view!r} did not open; the page says {self.page.inner_text('body')!r}") from error
        return self

    def see(self, text: str) -> Locator:
        """Wait until the view says this."""
        found = self.page.locator("#view").get_by_text(text).first
        found.wait_for()
        return found

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    def rows(self, label: str) -> Locator:
        return self.page.get_by_role("grid", name=label, exact=True).locator(".gr:not([hidden])")

    def row(self, label: str, text: str) -> Locator:
        return self.rows(label).filter(has_text=text).first

    def toast(self, text: str) -> None:
        self.page.locator(".toast").get_by_text(text).first.wait_for()

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait until a JavaScript condition holds."""
        self.page.wait_for_function(condition, arg=argument)


Opener = Callable[..., Dashboard]


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
