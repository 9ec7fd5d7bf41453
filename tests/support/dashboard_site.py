"""What the tests of the dashboard share: a node with the shop's program, a browser's page, requests past the page."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page, TimeoutError, expect

from tests.support.nats_server import NatsServer
from tests.support.paths import ROOT
from tests.support.serving import Serving

PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)

# Another view loads no page: what stands there until it comes is marked, so as not to be taken for it.
LEAVE = """(address) => {
    if (location.href !== new URL(address).href) document.querySelector("#view h1")?.setAttribute("data-left", "");
}"""


def serving(folder: Path, *arguments: str, engine: str = "memory", **env: str) -> Serving:
    """A node with the shop's program."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    often = {"MAINSPRING_METRICS_INTERVAL_MS": "200", "MAINSPRING_HISTORY_INTERVAL_MS": "200"}
    known = {"PYTHONPATH": path, "MAINSPRING_SLOW_TURN_MS": "60", **often}
    return Serving("tests.support.dashboard_shop:app", *arguments, folder=folder, env={**known, **env}, engine=engine)


def url_of(node: Serving) -> str:
    return f"http://127.0.0.1:{node.port}"


class Cluster:
    """A NATS server and two nodes on it, called left and right."""

    def __init__(self, server: NatsServer, left: Serving, right: Serving) -> None:
        self.server = server
        self.left = left
        self.right = right


class Tokens:
    """A node that wants tokens, and one token of each kind."""

    def __init__(self, url: str, admin: str, reader: str) -> None:
        self.url = url
        self.admin = admin
        self.reader = reader


def call(url: str, path: str, body: Any = None, token: str = "", method: str | None = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers, method=method)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def sent(url: str, type: str, data: Any) -> Any:
    """The data of the answer to a command."""
    status, reply = call(url, "/messages", {"kind": "command", "type": type, "data": data})
    assert status == 200, reply
    return reply["data"]


class Dashboard:
    """One page. What the browser complains about is kept, and looked at when the test ends."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.tolerated: tuple[str, ...] = ()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"a dialog said {dialog.message}"))

    def _listen(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.complaints.append(f"{said.text} ({said.location.get('url', '')})")

    def open(self, view: str = "") -> Dashboard:
        address = f"{self.url}/#/{view}"
        self.page.evaluate(LEAVE, address)
        self.page.goto(address)
        try:
            self.page.wait_for_selector("#view h1:not([data-left]), dialog[open]", state="attached")
        except TimeoutError as error:
            raise AssertionError(f"{view!r} did not open; the page says {self.page.inner_text('body')!r}") from error
        return self

    def leave(self) -> None:
        """Close the page, before its node ends. What it was asking then gets no answer."""
        self.tolerated = (*self.tolerated, "ERR_CONNECTION_REFUSED")
        self.page.close()

    def see(self, text: str) -> Locator:
        """Wait until the view says this."""
        found = self.page.locator("#view").get_by_text(text).first
        found.wait_for()
        return found

    def settle(self) -> Dashboard:
        """Wait until the view has what it asked for."""
        self.until("() => !document.getElementById('view').innerText.includes('Loading…')")
        return self

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
