"""Several nodes on one log: who they are, who executes a run, and what happens on the page when one of them dies."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.support.dashboard_site import Cluster, Opener, sent, url_of
from tests.support.shop_day import Packer, Shop, aside

CHECKOUT = {"id": "o-1", "card": "valid", "total": 5, "wait_ms": 3_600_000}


def test_a_node_on_its_own_log_says_so_in_one_line(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "nodes")
    page.see("is alone: its log is in memory, which no other node can share.")
    page.see("nothing survives the process")
    page.rows("Nodes").first.click()
    detail = page.page.locator(".detail")
    expect(detail).to_contain_text(shop)
    expect(detail).to_contain_text("command Order.Place")
    expect(detail).not_to_contain_text("Epoch")


def test_two_nodes_their_engine_and_the_run_that_outlives_one_of_them(pair: Cluster, dashboard: Opener) -> None:
    left, right = url_of(pair.left), url_of(pair.right)
    page = dashboard(left, "nodes")
    page.see("2 nodes share the log in NATS JetStream. This page talks to left.")
    page.see("could be lost")
    page.see("one replica")
    expect(page.row("Nodes", "left")).to_contain_text("this page")
    roles = page.rows("Nodes").filter(has_text="housekeeping")
    expect(roles).to_have_count(1)
    page.row("Nodes", "right").click()
    detail = page.page.locator(".detail")
    expect(detail).to_contain_text("query Stock.Count")
    expect(detail).to_contain_text("just now")
    expect(detail.get_by_role("link")).to_have_attribute("href", right)

    sent(right, "Run.Start", {"program": "checkout", "args": [CHECKOUT], "id": "long"})
    page.open("runs/long")
    expect(page.row("Runs", "long")).to_contain_text("right")
    expect(detail).to_contain_text("Executed byright")
    pair.right.kill()
    expect(detail).to_contain_text("Executed byleft", timeout=30_000)
    detail.get_by_role("link", name="left").click()
    page.see("1 node shares the log")
    expect(page.rows("Nodes")).to_have_count(1)
    page.open("nodes/right")
    page.see("It is not on the log now")


def test_each_page_shows_the_numbers_of_its_own_node(pair: Cluster, dashboard: Opener) -> None:
    async def publish() -> None:
        shop = await Shop(url_of(pair.right)).open()
        for _ in range(3):
            await shop.publish("orders", [{"payload": n} for n in range(200)])
        await shop.session.close()

    aside(publish())
    page = dashboard(url_of(pair.left))
    page.see("left, one of 2 nodes on the log.")
    chart = page.page.get_by_role("img", name="Events per second")
    expect(chart).to_have_attribute("aria-label", re.compile("Highest: published per second 0,"))
    page.open("topics/orders")
    page.see("600 events stored")


def test_a_group_shows_what_members_at_other_nodes_hold(pair: Cluster, dashboard: Opener) -> None:
    async def prepare() -> None:
        shop = await Shop(url_of(pair.right)).open()
        await shop.publish("orders", [{"payload": n} for n in range(20)])
        await shop.session.close()

    aside(prepare())
    with Packer(url_of(pair.right)):
        page = dashboard(url_of(pair.left), "groups/orders/packing")
        leases = page.page.get_by_role("table", name="Leases").locator("tbody tr")
        expect(leases).to_have_count(5)
        expect(leases.first).to_contain_text("right")
        expect(page.row("Groups", "packing")).to_contain_text("20")
        members = page.page.get_by_role("table", name="Members").locator("tbody tr")
        expect(members).to_have_count(1)
        expect(members.first).to_contain_text("right")


def test_a_node_without_its_server_says_so_and_recovers(pair: Cluster, dashboard: Opener) -> None:
    page = dashboard(url_of(pair.left), "nodes")
    page.see("2 nodes share the log")
    page.tolerated = ("503",)
    notice = page.page.locator("#notice")
    expect(notice).to_be_hidden()
    pair.server.kill()
    expect(notice).to_contain_text("The node is not ready:", timeout=30_000)
    expect(page.page.locator(".state")).to_have_text("Not ready")
    page.see("2 nodes share the log")
    pair.server.start()
    expect(notice).to_be_hidden(timeout=30_000)
    expect(page.page.locator(".state")).to_have_text("Live")
