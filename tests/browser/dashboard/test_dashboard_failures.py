"""A shop in which things fail: why each failed, which runs there are and what they wait for, and setting them right."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.dashboard_site import Dashboard, Opener, call, sent, url_of
from tests.support.paths import ROOT
from tests.support.serving import Serving

PHONE = {"viewport": {"width": 390, "height": 780}}
TRACEBACK = "reach_the_bank"
ZONE = {"timezone_id": "Asia/Kolkata"}  # five and a half hours ahead: no whole hour is right by chance


def start(url: str, program: str, id: str, *args: Any) -> None:
    sent(url, "Run.Start", {"program": program, "id": id, "args": list(args)})


def until(url: str, type: str, data: Any, holds: Any) -> Any:
    while True:
        _, reply = call(url, "/messages", {"kind": "query", "type": type, "data": data})
        if holds(reply["data"]):
            return reply["data"]
        time.sleep(0.05)  # another process decides


def by_state(counted: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counted["counts"]:
        found[each["state"]] = found.get(each["state"], 0) + each["count"]
    return found


def all_wait(data: Any) -> bool:
    return all("waitsUntil" in run for run in data["runs"])


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node with failures of every kind."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    folder = tmp_path_factory.mktemp("trouble")
    with Serving("tests.support.troubled_shop:app", folder=folder, env={"PYTHONPATH": path}, engine="memory") as node:
        url = url_of(node)
        call(url, "/topics", {"topic": "stock", "partitions": 3})
        for n in range(30):
            call(url, "/topics/stock/events", {"payload": {"n": n}, "key": f"k-{n}"})
        call(url, "/topics/orders/events", {"payload": {"card": "stolen"}})
        call(url, "/messages", {"kind": "command", "type": "Label.Print", "data": {}})
        for n in range(3):
            start(url, "checkout", f"order-{n}", {"card": "stolen", "n": n})
        for n in range(3, 6):
            start(url, "checkout", f"order-{n}", {"card": "good", "customer": "Ada"})
        start(url, "board", "board-1")
        until(url, "Run.Count", {"state": "failed"}, lambda data: sum(each["count"] for each in data["counts"]) == 3)
        until(url, "Run.List", {"prefix": "board-1~"}, lambda data: len(data["runs"]) == 2)
        until(url, "Run.List", {"ids": [f"order-{n}" for n in (3, 4, 5)]}, all_wait)
        until(url, "Bus.DeadLetters", {"topic": "orders"}, lambda data: data.get("letters"))
        yield url


def traceback_of(page: Dashboard) -> Any:
    return page.page.locator(".detail").get_by_label("Traceback").first


# --- why it failed


def test_a_dead_letter_and_a_fault_show_their_traceback(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "deadletters/orders")
    page.row("Dead letters", "the bank does not know stolen").click()
    expect(traceback_of(page)).to_contain_text(TRACEBACK)
    expect(page.page.locator(".detail .failure")).to_contain_text("ConnectionError: the bank does not know stolen")
    page.open("kernel?tab=faults")
    page.row("Faults", "the bank does not know printer").click()
    expect(traceback_of(page)).to_contain_text("troubled_shop.py")
    page.page.locator(".detail").get_by_role("link", name="What caused it").wait_for()


def test_a_failed_run_says_why_first_and_shows_its_attempts(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "runs/order-0")
    detail = page.page.locator(".detail")
    expect(detail.locator(".failure").first).to_contain_text("Why it failed")
    expect(traceback_of(page)).to_contain_text('await perform(Charge(order["card"]))')
    steps = page.rows("Timeline")
    expect(steps).to_have_count(3)  # two attempts, and the effect that failed with the third
    expect(steps.nth(0)).to_contain_text("attempt 1: ConnectionError")
    expect(steps.nth(2)).to_contain_text("Charge: ConnectionError")
    steps.nth(1).click()
    expect(detail.locator(".step")).to_contain_text("1. Charge, attempt 2")
    expect(detail.locator(".step").get_by_label("Traceback")).to_contain_text(TRACEBACK)


# --- finding runs


def test_runs_come_newest_first_with_counts_and_what_they_wait_for(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "runs?program=checkout", **ZONE)
    ids = page.rows("Runs").filter(has_text="order-")
    expect(ids).to_have_count(6)
    found = [re.findall(r"order-\d", text)[0] for text in ids.all_inner_texts()]
    assert found == [f"order-{n}" for n in range(5, -1, -1)]
    _, reply = call(trouble, "/messages", {"kind": "query", "type": "Run.List", "data": {"ids": ["order-3"]}})
    ends = time.gmtime(reply["data"]["runs"][0]["waitsUntil"] / 1000 + 5.5 * 3600)
    until_then = re.compile(rf"signal paid until (\d\d \w+ )?{time.strftime('%H:%M', ends)}")
    expect(page.row("Runs", "order-3")).to_contain_text(until_then)
    expect(page.row("Runs", "order-1")).to_contain_text("ConnectionError: the bank does not know stolen")
    states = page.page.get_by_role("group", name="Runs by state")
    expect(states.get_by_role("button", name="failed 3")).to_be_visible()
    states.get_by_role("button", name="failed 3").click()
    expect(page.rows("Runs")).to_have_count(3)


def test_runs_are_found_by_program_text_and_time(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "runs?program=checkout")
    expect(page.rows("Runs")).to_have_count(6)
    page.page.get_by_label("Search").fill("ada")
    page.button("Filter").click()
    expect(page.rows("Runs")).to_have_count(3)
    page.open("runs?text=ada&program=checkout")  # the address says all of it
    expect(page.rows("Runs")).to_have_count(3)
    page.page.get_by_label("Began within").select_option("15 min")
    expect(page.rows("Runs")).to_have_count(3)
    page.page.get_by_label("Search").fill("nothing of the kind")
    page.button("Filter").click()
    page.see("No runs")


def test_a_tree_of_runs_is_walked(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "runs/board-1")
    family = page.page.locator(".detail .family li")
    expect(family).to_have_count(3)
    expect(family.nth(1)).to_contain_text("signal approved")
    family.nth(2).get_by_role("link", name="board-1~2").click()
    expect(page.page.locator(".detail").get_by_role("heading", name="board-1~2")).to_be_visible()
    page.page.locator(".detail").get_by_role("link", name="board-1", exact=True).first.wait_for()


# --- setting runs right


def test_a_run_that_waits_is_signalled(trouble: str, dashboard: Opener) -> None:
    start(trouble, "approval", "paper-1", "ada")
    page = dashboard(trouble, "runs/paper-1")
    page.page.locator(".detail").get_by_role("button", name="Signal…").click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog.get_by_label("Name")).to_have_value("approved")
    dialog.get_by_label("Value (JSON)").fill('{"by": "ada"}')
    dialog.get_by_role("button", name="Signal").click()
    page.toast("paper-1 has the signal approved.")
    expect(page.page.locator(".detail").get_by_text("done", exact=True)).to_be_visible()


def test_marked_runs_are_changed_together(trouble: str, dashboard: Opener) -> None:
    for n in range(4):
        start(trouble, "approval", f"mark-{n}", "ada")
    page = dashboard(trouble, "runs?prefix=mark-")
    for n in (0, 2):
        page.row("Runs", f"mark-{n}").get_by_role("checkbox").click()
    page.button("Cancel 2 marked…").click()
    page.page.get_by_role("dialog").get_by_label("Reason").fill("closed")
    page.page.get_by_role("dialog").get_by_role("button", name="Cancel 2 runs").click()
    page.toast("2 runs cancelled.")
    until(trouble, "Run.Count", {"prefix": "mark-"}, lambda data: by_state(data) == {"cancelled": 2, "running": 2})


def test_all_that_fit_a_filter_are_changed_with_progress(trouble: str, dashboard: Opener) -> None:
    for n in range(60):  # more than one page
        start(trouble, "approval", f"bulk-{n:02}", "ada")
    page = dashboard(trouble, "runs?prefix=bulk-&state=running")
    page.see("60 runs, 50 of them here, newest first.")
    page.page.evaluate(
        """() => {
            const bulk = document.querySelector(".bulk");
            window.told = [];
            const observer = new MutationObserver(() => window.told.push(bulk.innerText));
            observer.observe(bulk, {subtree: true, childList: true, characterData: true});
        }"""
    )
    page.button("Signal all 60…").click()
    page.page.get_by_role("dialog").get_by_label("Name").fill("approved")
    page.page.get_by_role("dialog").get_by_role("button", name="Signal 60 runs").click()
    page.toast("60 runs signalled.")
    assert page.page.evaluate("() => window.told.some((text) => text.includes('50 of 60 signalled'))")
    done = {"prefix": "bulk-", "state": "done"}
    until(trouble, "Run.Count", done, lambda data: [each["count"] for each in data["counts"]] == [60])


# --- events


def test_all_partitions_of_a_topic_are_one_list_by_time(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "events?topic=stock", **ZONE)
    page.see("30 events of stock in all 3 partitions, newest first.")
    page.row("Events", '{"n":29}').wait_for()
    expect(page.page.locator(".gr.missing:not([hidden])")).to_have_count(0)
    times = page.rows("Events").locator("time").evaluate_all("all => all.map((each) => each.dateTime)")
    assert len(times) > 10
    assert times == sorted(times, reverse=True)
    assert {text.strip()[0] for text in page.rows("Events").all_inner_texts()} == {"0", "1", "2"}
    page.page.get_by_label("Search").fill('"n": 1')
    page.button("Go").click()
    page.see('11 events with “"n": 1” in stock, all 3 partitions.')
    page.row("Events", '{"n":17}').click()
    expect(page.page).to_have_url(re.compile(r"at=\d%3A\d+"))


def test_a_view_that_is_left_while_it_reads_asks_no_more(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "runs")
    asked: list[Any] = []
    page.page.route("**/topics/stock/events?*", lambda route: asked.append(route))  # nobody answers
    with page.page.expect_request("**/topics/stock/events?*"):
        page.open("events?topic=stock")
    page.open("runs")  # a page that asks again and again at once would never get here
    page.rows("Runs").first.wait_for()
    assert len(asked) <= 3  # one for each partition


def test_times_are_local_and_utc_is_in_the_tooltip(trouble: str, dashboard: Opener) -> None:
    page = dashboard(trouble, "events?topic=stock", **ZONE)
    shown = page.rows("Events").first.locator("time")
    utc = shown.get_attribute("datetime") or ""
    assert utc.endswith("Z")
    hour, minute = int(utc[11:13]), int(utc[14:16])
    local = (hour * 60 + minute + 330) % 1440
    expect(shown).to_contain_text(f"{local // 60:02}:{local % 60:02}:")
    assert utc in (shown.get_attribute("title") or "")
    page.rows("Events").first.click()
    detail = page.page.locator(".detail time").first
    expect(detail).to_contain_text(f" {local // 60:02}:{local % 60:02}:")
    expect(detail).to_have_attribute("title", utc)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_on_a_phone(trouble: str, dashboard: Opener, scheme: str) -> None:
    page = dashboard(trouble, "runs?state=failed", color_scheme=scheme, **PHONE)
    page.rows("Runs").first.click()
    traceback_of(page).wait_for()
    page.open("runs?state=running")
    expect(page.row("Runs", "its children")).to_contain_text("board-1")
    for view in ("", "nodes", "groups", "runs/order-0", "runs/board-1", "events?topic=stock", "deadletters/orders"):
        page.open(view)
        wide = page.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, view
