"""What the person on call sees first, in a shop in which everything fails: every count, and that it goes down.

A user of Temporal, Sidekiq or Kafka UIs expects failed work on the first page and in the navigation, the lag of a group
over hours, and charts that know what was before the page, or the node's last restart.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, expect

from mainspring.bus.access.tokens import new_token
from tests.support.dashboard_site import Cluster, Dashboard, Opener, call, sent, serving, url_of
from tests.support.paths import ROOT
from tests.support.serving import Serving
from tests.support.shop_day import Packer
from tests.support.terminal import until

OFTEN = {"MAINSPRING_HISTORY_INTERVAL_MS": "200", "MAINSPRING_BEHIND_MS": "300"}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}


class FailingShop:
    """A node on which everything fails until it is mended."""

    def __init__(self, folder: Path, engine: str = "memory") -> None:
        folder.mkdir()
        self._mended = folder / "mended"
        env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])), **OFTEN}
        env["SHOP_MENDED"] = str(self._mended)
        self.node = Serving("tests.support.failing_shop:app", folder=folder, env=env, engine=engine)

    @property
    def url(self) -> str:
        return url_of(self.node)

    def mend(self) -> None:
        self._mended.touch()

    def publish(self, topic: str, *payloads: object) -> None:
        for payload in payloads:
            sent(self.url, "Bus.Publish", {"topic": topic, "payload": payload})


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[FailingShop]:
    shop = FailingShop(tmp_path / "shop")
    with shop.node:
        yield shop


def need(page: Dashboard, kind: str) -> Locator:
    return page.page.locator(f".needs > li[data-kind='{kind}']")


def badge(page: Dashboard, view: str) -> Locator:
    return page.page.locator(f".nav a[data-view='{view}'] .badge")


def test_a_new_node_helps_with_the_first_steps(tmp_path: Path, dashboard: Opener) -> None:
    with Serving(folder=tmp_path, env=OFTEN) as node:
        page = dashboard(url_of(node))
        page.see("This node is new")
        page.see("mainspring serve shop:app --reload")
        page.see("Nothing needs you")
        page.button("Publish it from here").click()
        page.row("Events", '{"text":"hi"}').wait_for()
        page.open("")
        page.see("Nothing needs you")
        expect(page.page.get_by_role("region", name="This node is new")).to_be_hidden()


def test_what_quotas_refused_and_a_disk_that_fills_are_on_the_first_page(tmp_path: Path, dashboard: Opener) -> None:
    env = {**OFTEN, "MAINSPRING_QUOTA_TOPICS": "1", "MAINSPRING_DISK_WARN": "100%"}
    with Serving(folder=tmp_path, env=env, engine="sqlite") as node:
        url = url_of(node)
        page = dashboard(url)
        statuses = [call(url, f"/topics/t{number}/events", {"payload": 1})[0] for number in range(3)]
        assert statuses == [201, 429, 429]
        page.see("Refused by quotas: topics 2.")
        expect(need(page, "disk")).to_contain_text(re.compile(r"\d [KMGT]B left"))
        expect(need(page, "disk").get_by_role("link", name="disk", exact=True)).to_have_attribute("href", "#/topics")


def test_failures_come_first_and_go_when_they_are_dealt_with(failing: FailingShop, dashboard: Opener) -> None:
    url = failing.url
    page = dashboard(url)
    page.see("Nothing needs you")
    for n in range(3):
        sent(url, "Run.Start", {"program": "checkout", "args": [n], "id": f"order-{n}"})
    failing.publish("orders", 1, 2)
    call(url, "/messages", {"kind": "command", "type": "Scale.Weigh", "data": {}})
    status, found = call(url, "/schedules")
    assert status == 200
    schedule = quote(found["schedules"][0]["name"], safe="")
    assert call(url, f"/schedules/{schedule}/run", method="POST")[0] == 200
    expect(need(page, "failed_runs")).to_contain_text("3 runs failed")
    expect(need(page, "failed_runs")).to_contain_text("the card has expired")
    expect(need(page, "failed_runs")).to_contain_text("mainspring runs retry --state failed")
    expect(need(page, "dead_letters")).to_contain_text("dead letters")
    expect(need(page, "capabilities")).to_contain_text("1 capability gave up")
    expect(need(page, "capabilities")).to_contain_text("the scale is broken")
    expect(need(page, "schedules")).to_contain_text("1 schedule failed")
    expect(badge(page, "runs")).to_have_text("3")
    expect(badge(page, "kernel")).to_have_text("1")
    until(lambda: badge(page, "").inner_text() == str(call(url, "/attention")[1]["count"]))
    top = page.page.get_by_role("region", name="Needs attention").bounding_box()
    chart = page.page.get_by_role("region", name="Events per second").bounding_box()
    assert top is not None
    assert chart is not None
    assert top["y"] < chart["y"]
    failing.mend()
    need(page, "failed_runs").get_by_role("link", name="order-0").click()
    page.see("the card has expired")
    for n in range(3):
        sent(url, "Run.Retry", {"id": f"order-{n}"})
    sent(url, "Syscall.Restart", {"capability": "Scale"})
    assert call(url, f"/schedules/{schedule}/run", method="POST")[0] == 200
    for letters in call(url, "/dlq")[1]["topics"]:
        call(url, f"/dlq/{letters['topic']}/drop", {"all": True})
    page.open("")
    page.see("Nothing needs you")
    for view in ("", "runs", "kernel", "deadletters"):
        expect(badge(page, view)).to_have_text("")


def test_dead_messages_are_seen_sent_again_and_dropped(failing: FailingShop, dashboard: Opener) -> None:
    page = dashboard(failing.url)
    for parcel in ("small", "large"):
        message = {"kind": "event", "type": "Parcel.Sent", "data": {"parcel": parcel}}
        message["metadata"] = {"id": parcel, "timestamp": 0}
        sent(failing.url, "Timer.Schedule", {"delay": 0, "message": message})
    expect(need(page, "dead_messages")).to_contain_text("2 messages reached nobody")
    need(page, "dead_messages").get_by_role("link", name="2 messages").click()
    expect(page.rows("Dead messages").filter(has_text="the post does not answer")).to_have_count(2)
    page.row("Dead messages", "small").click()
    detail = page.page.locator(".detail")
    expect(detail).to_contain_text("reached nobody")
    expect(detail.get_by_label("Traceback")).to_contain_text("failing_shop.py")
    page.button("Drop this one…").click()
    page.page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    page.toast("1 message dropped.")
    expect(page.rows("Dead messages").filter(has_text="the post does not answer")).to_have_count(1)
    failing.mend()
    page.button("Redrive all…").click()
    page.page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    page.toast("1 message sent again.")
    page.see("No dead messages")
    expect(badge(page, "kernel")).to_have_text("")


def test_a_group_that_is_behind_is_told_with_its_lag_over_time(failing: FailingShop, dashboard: Opener) -> None:
    url = failing.url
    failing.mend()
    failing.publish("orders", *range(9))
    with Packer(url):  # takes five orders and keeps them
        page = dashboard(url)
        expect(need(page, "groups")).to_contain_text("1 group is behind")
        expect(badge(page, "groups")).to_have_text("1")
        need(page, "groups").get_by_role("link", name="packing").click()
        detail = page.page.locator(".detail")
        expect(detail).to_contain_text("Members1")
        expect(detail).to_contain_text(re.compile("Oldest unacknowledgedpublished .* ago"))
        chart = detail.get_by_role("img", name=re.compile("Events behind of packing"))
        expect(chart).to_have_attribute("aria-label", re.compile(r"Now: behind (9|1\d)"))
        for label in ("6 h", "24 h", "7 d", "15 min"):
            detail.get_by_role("button", name=label).click()
            expect(detail.get_by_role("button", name=label)).to_have_attribute("aria-pressed", "true")
            expect(chart).to_have_attribute("aria-label", re.compile(r"Now: behind (9|1\d)"))
        phone = dashboard(url, "groups", **PHONE)
        row = phone.row("Groups", "packing")
        expect(row).to_contain_text("orders")
        assert phone.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert call(url, "/groups/orders/packing/seek", {"kind": "latest"})[0] == 200
    page.open("")
    page.see("Nothing needs you")


def test_a_chart_knows_what_was_before_the_node_was_restarted(tmp_path: Path, dashboard: Opener) -> None:
    shop = FailingShop(tmp_path / "shop", "sqlite")
    with shop.node:
        shop.publish("mail", *range(30))
        page = dashboard(shop.url, "topics/mail")
        chart = page.page.get_by_role("img", name=re.compile("Events per second of mail"))
        expect(chart).to_have_attribute("aria-label", re.compile("Highest: published per second [1-9]"))
        page.leave()
        shop.node.signal(signal.SIGTERM)
        shop.node.wait()
        shop.node.launch()
        page = dashboard(shop.url, "topics/mail")
        chart = page.page.get_by_role("img", name=re.compile("Events per second of mail"))
        expect(chart).to_have_attribute("aria-label", re.compile("Highest: published per second [1-9]"))
        page.button("7 d").click()
        expect(chart).to_have_attribute("aria-label", re.compile("Highest: published per second [0-9.]*[1-9]"))
        page.leave()


def test_a_node_that_is_killed_is_missed_until_it_is_back(pair: Cluster, dashboard: Opener) -> None:
    page = dashboard(url_of(pair.left))
    page.see("Nothing needs you")
    pair.right.kill()
    expect(need(page, "nodes")).to_contain_text("1 node is away")
    expect(badge(page, "nodes")).to_have_text("1")
    need(page, "nodes").get_by_role("link", name="right").click()
    page.see("right went without a goodbye")
    pair.right.launch()
    expect(badge(page, "nodes")).to_have_text("2")
    expect(badge(page, "")).to_have_text("")


def test_a_reader_is_told_what_it_may_know(tmp_path: Path, dashboard: Opener) -> None:
    admin, kept_admin = new_token("root", ["admin"], secrets.token_bytes(32))
    reader, kept_reader = new_token("clerk", ["subscribe:mail", "query:Order.Get"], secrets.token_bytes(32))
    (tmp_path / "tokens").write_text(f"{kept_admin.line()}\n{kept_reader.line()}\n")
    with serving(tmp_path / "node", MAINSPRING_TOKENS_FILE=str(tmp_path / "tokens")) as node:
        url = url_of(node)
        args = [{"id": "o-1", "card": "expired", "total": 1}]
        start = {"kind": "command", "type": "Run.Start", "data": {"program": "checkout", "args": args, "id": "o-1"}}
        assert call(url, "/messages", start, admin)[0] == 200
        page = dashboard(url, token=admin)
        expect(need(page, "failed_runs")).to_contain_text("1 run failed")
        assert call(url, "/attention", token=reader) == (200, {"count": 0, "needs": []})
        other = dashboard(url, token=reader)
        other.see("Nothing needs you")
        page.leave()
        other.leave()
