"""A node with 1,000 topics and 100,000 events: the page holds what is seen, and fetches what is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from playwright.sync_api import Route, expect

from tests.support.dashboard_site import Opener, serving, url_of
from tests.support.shop_day import Shop, aside

TOPICS = 1_000
EVENTS = 100_000
BATCH = 10_000


async def grow(url: str) -> None:
    shop = await Shop(url).open()

    async def some(start: int) -> None:
        for n in range(start, TOPICS, 8):
            await shop.publish(f"sensor.{n:04d}", [{"payload": n}])

    await asyncio.gather(*(some(start) for start in range(8)))
    for start in range(0, EVENTS, BATCH):
        await shop.publish("readings", [{"payload": {"n": n}} for n in range(start, start + BATCH)])
    await shop.session.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("large"), MAINSPRING_METRICS_INTERVAL_MS="5000") as node:
        aside(grow(url_of(node)))
        yield url_of(node)


def test_a_thousand_topics_are_a_few_rows_of_the_page(large: str, dashboard: Opener) -> None:
    page = dashboard(large, "topics")
    page.see("1,001 topics.")
    assert page.rows("Topics").count() < 60
    grid = page.page.get_by_role("grid", name="Topics")
    expect(grid).to_have_attribute("aria-rowcount", "1002")
    grid.focus()
    page.page.keyboard.press("End")
    page.row("Topics", "sensor.0999").wait_for()
    assert page.rows("Topics").count() < 60
    page.page.get_by_label("Filter topics by name").fill("0500")
    expect(page.rows("Topics")).to_have_count(1)


def test_a_hundred_thousand_events_are_reached_with_a_few_requests(large: str, dashboard: Opener) -> None:
    page = dashboard(large, "events?topic=readings")
    page.see("100,000 events of readings")
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url) if "/events?" in request.url else None)
    grid = page.page.get_by_role("grid", name="Events")
    grid.focus()
    page.page.keyboard.press("End")
    page.row("Events", '{"n":0}').wait_for()
    grid.locator(".gb").evaluate("body => { body.scrollTop = body.scrollHeight / 2; }")
    page.row("Events", '{"n":50000}').wait_for()
    page.page.keyboard.press("Home")
    page.row("Events", '{"n":99999}').wait_for()
    assert len(asked) < 12
    assert page.rows("Events").count() < 80
    assert page.page.evaluate("document.querySelectorAll('*').length") < 2_000


def test_one_event_among_a_hundred_thousand_is_found(large: str, dashboard: Opener) -> None:
    page = dashboard(large, "events?topic=readings&q=%7B%22n%22%3A123%7D")
    page.see("All 100,000 read.")
    expect(page.rows("Events")).to_have_count(1)
    expect(page.rows("Events").first).to_contain_text("124")


def test_the_page_answers_keys_while_it_searches(large: str, dashboard: Opener) -> None:
    page = dashboard(large, "events?topic=readings")
    page.see("100,000 events of readings")
    held: list[Route] = []
    is_open = False
    page.page.route("**/events?*offset=1&*", lambda route: route.continue_() if is_open else held.append(route))
    page.page.get_by_label("Search").fill("nothing like this")
    page.page.keyboard.press("Enter")
    page.see("read…")
    page.page.get_by_role("grid", name="Events").focus()
    page.page.keyboard.press("?")
    page.page.get_by_role("dialog", name="Keyboard").wait_for()
    page.page.keyboard.press("Escape")
    is_open = True
    for route in held:
        route.continue_()
    page.see("All 100,000 read.")
