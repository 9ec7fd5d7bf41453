"""The live chat in a real Chromium: two people talk, the history is there, and markup stays text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.chromium import ARGUMENTS, chromium
from tests.support.dashboard_site import PATIENCE_MS, call, url_of
from tests.support.paths import ROOT
from tests.support.serving import Serving

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        yield found
        found.close()


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[str]:
    """The address of a node that was started with the example's one command."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with Serving("examples.live_chat:app", folder=tmp_path, env={"PYTHONPATH": path}) as node:
        yield url_of(node)


class Visitor:
    """Somebody in front of a window. What the browser complains about is kept."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.goto(f"{url}/chat/")

    def join(self, name: str) -> Visitor:
        self.page.get_by_label("Your name").fill(name)
        self.page.get_by_role("button", name="Join").click()
        return self

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_role("button", name="Send").click()

    def sees(self, *lines: tuple[str, str]) -> None:
        """Exactly these names and texts, in this order."""
        shown = self.page.get_by_role("list", name="Messages").get_by_role("listitem")
        expect(shown).to_have_count(len(lines), timeout=PATIENCE_MS)
        for number, (name, text) in enumerate(lines):
            expect(shown.nth(number).locator("b")).to_have_text(name)
            assert shown.nth(number).evaluate("line => line.lastChild.data") == text

    def sees_here(self, *names: str) -> None:
        here = self.page.get_by_role("list", name="Here").get_by_role("listitem")
        expect(here).to_have_text(list(names), timeout=PATIENCE_MS)


@pytest.fixture
def visitor(browser: Browser, chat: str) -> Iterator[Callable[[], Visitor]]:
    """Opens windows, each of a person of its own; at the end no browser may have complained."""
    opened: list[Visitor] = []

    def open_one() -> Visitor:
        opened.append(Visitor(browser.new_context(), chat))
        return opened[-1]

    yield open_one
    for each in opened:
        each.context.close()
    assert [complaint for each in opened for complaint in each.complaints] == []


def test_two_people_talk_and_see_each_other(visitor: Callable[[], Visitor]) -> None:
    ada, ben = visitor().join("ada"), visitor().join("ben")
    ada.sees_here("ada (you)", "ben")
    ben.sees_here("ben (you)", "ada")
    ada.say("hello")
    ben.sees(("ada", "hello"))
    ben.say("hello yourself")
    for each in (ada, ben):
        each.sees(("ada", "hello"), ("ben", "hello yourself"))
    ben.page.close()
    ada.sees_here("ada (you)")


def test_the_history_is_there_after_a_reload_and_for_who_comes_late(visitor: Callable[[], Visitor]) -> None:
    ada = visitor().join("ada")
    said = [("ada", f"message {n}") for n in range(5)]
    for _, text in said:
        ada.say(text)
    ada.sees(*said)
    ada.page.reload()
    ada.sees(*said)
    ben = visitor().join("ben")
    ben.sees(*said)
    ben.say("what did I miss?")
    for each in (ada, ben):
        each.sees(*said, ("ben", "what did I miss?"))


def test_markup_is_text_in_messages_and_in_names(visitor: Callable[[], Visitor]) -> None:
    ada, eve = visitor().join("ada"), visitor().join("<b onclick=alert(3)>eve</b>")
    eve.say(MARKUP)
    ada.sees(("<b onclick=alert(3)>eve</b>", MARKUP))
    ada.say("&amp; that was it")
    for each in (ada, eve):
        each.sees(("<b onclick=alert(3)>eve</b>", MARKUP), ("ada", "&amp; that was it"))
        assert each.page.locator("#said img, #said script, #said [onclick], #here *[onclick]").count() == 0
    ada.sees_here("ada (you)", "<b onclick=alert(3)>eve</b>")


def test_closed_tabs_are_forgotten(visitor: Callable[[], Visitor], chat: str) -> None:
    ada, ben = visitor().join("ada"), visitor().join("ben")
    ada.sees_here("ada (you)", "ben")
    ben.page.close()
    ada.sees_here("ada (you)")
    deadline = time.monotonic() + PATIENCE_MS / 1000
    members: list[int] = []
    while sorted(members) != [0, 1] and time.monotonic() < deadline:
        groups: Any = call(chat, "/groups?topic=chat.said")[1]["groups"]
        members = [group["members"] for group in groups]
    assert sorted(members) == [0, 1]
    assert {group["ttlMs"] for group in groups} == {60_000}  # then the one without a member goes
    ada.say("still here")
    ada.sees(("ada", "still here"))


@pytest.mark.parametrize("payload", [{"name": "eve"}, {"name": "", "text": "x"}, {"name": "eve", "text": "x" * 2_001}])
def test_what_is_no_message_reaches_no_page(chat: str, payload: dict[str, str]) -> None:
    status, problem = call(chat, "/topics/chat.said/events", {"payload": payload})
    assert (status, problem["code"]) == (422, "schema_mismatch")
