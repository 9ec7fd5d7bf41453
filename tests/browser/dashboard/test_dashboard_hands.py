"""The dashboard by keyboard, in light and dark, and on a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.support.dashboard_site import Dashboard, Opener, sent
from tests.support.shop_day import Shop, aside

VIEWS = ("", "nodes", "topics", "topics/orders", "events?topic=orders", "groups/orders/packing", "deadletters/payments")
MORE_VIEWS = ("kernel", "kernel?tab=dead", "kernel?tab=ask", "timers", "trace", "runs/checkout-0003", "beats/1")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


def focused(page: Dashboard) -> str:
    said = page.page.evaluate(
        """() => {
            const here = document.activeElement;
            return here.getAttribute("aria-label") || here.textContent.trim() || here.id;
        }"""
    )
    return str(said)


# --- keyboard


def test_the_first_stop_skips_to_the_content(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "topics")
    page.page.keyboard.press("Tab")
    assert focused(page) == "Skip to content"
    page.page.keyboard.press("Enter")
    assert page.page.evaluate("document.activeElement.id") == "view"
    assert page.page.url.endswith("#/topics")
    page.page.keyboard.press("Tab")
    assert focused(page) == "Filter topics by name"


def test_letters_go_to_views_and_do_nothing_while_one_types(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop)
    for keys, heading in (
        ("gt", "Topics"),
        ("gk", "Kernel"),
        ("gb", "Beats"),
        ("gd", "Dead letters"),
        ("go", "Overview"),
    ):
        page.page.keyboard.type(keys)
        page.page.get_by_role("heading", name=heading, exact=True, level=1).wait_for()
    page.page.keyboard.type("gt")
    page.row("Topics", "orders").wait_for()
    page.page.keyboard.press("/")
    page.page.keyboard.type("gk")
    expect(page.page.get_by_label("Filter topics by name")).to_have_value("gk")
    page.see("0 topics")


def test_help_lists_the_keys_and_escape_closes_it(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop)
    page.page.keyboard.press("?")
    page.page.get_by_role("dialog", name="Keyboard").wait_for()
    page.page.keyboard.press("Escape")
    expect(page.page.get_by_role("dialog")).to_have_count(0)


def test_a_table_is_one_stop_and_arrows_move_in_it(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "events?topic=orders")
    page.rows("Events").first.wait_for()
    grid = page.page.get_by_role("grid", name="Events")
    grid.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.page.keyboard.press(key)
    active = grid.get_attribute("aria-activedescendant")
    assert active is not None
    assert page.page.locator(f"#{active}").get_attribute("aria-rowindex") == "3"
    page.page.keyboard.press("Enter")
    page.page.locator(".detail h2").wait_for()
    page.page.keyboard.press("Escape")
    expect(page.page.locator(".detail")).to_have_count(0)
    page.page.keyboard.press("End")
    page.row("Events", "o-0").wait_for()
    active = grid.get_attribute("aria-activedescendant")
    assert active is not None
    assert page.page.locator(f"#{active}").get_attribute("aria-rowindex") == grid.get_attribute("aria-rowcount")


def test_dead_letters_are_marked_with_the_space_bar(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "deadletters/payments")
    page.rows("Dead letters").first.wait_for()
    page.page.get_by_role("grid", name="Dead letters").focus()
    for key in ("ArrowDown", "Space", "ArrowDown", "Space"):
        page.page.keyboard.press(key)
    page.button("Redrive 2 marked").wait_for()


def test_closing_a_detail_leads_back_to_the_list_where_it_was(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "events?topic=orders")
    page.rows("Events").first.wait_for()
    grid = page.page.get_by_role("grid", name="Events")
    grid.focus()
    page.page.keyboard.press("End")
    page.page.keyboard.press("Enter")
    page.page.locator(".detail").get_by_role("heading", name="Event 1", exact=True).wait_for()
    assert page.page.evaluate("document.querySelector('.gb').scrollTop") > 0
    page.page.keyboard.press("Escape")
    expect(grid).to_be_focused()
    assert page.page.evaluate("document.querySelector('.gb').scrollTop") > 0


def test_a_row_that_is_not_here_yet_opens_when_it_comes(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "topics")
    held: list[Route] = []
    is_open = False
    page.page.route("**/topics/orders/events?*", lambda route: route.continue_() if is_open else held.append(route))
    page.open("events?topic=orders")
    page.rows("Events").nth(1).click()
    expect(page.page.locator(".detail")).to_have_count(0)
    is_open = True
    for route in held:
        route.continue_()
    page.page.locator(".detail h2").get_by_text("Event").wait_for()


def test_whoever_has_the_focus_keeps_it_while_numbers_change(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "topics/orders")
    link = page.page.get_by_role("table", name="Partitions").get_by_role("link").nth(1)
    link.focus()
    for _ in range(2):
        with page.page.expect_response("**/topics/orders/offsets"):
            page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # asks anew at once
    expect(link).to_be_focused()


def test_everything_that_takes_input_has_a_name(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop)
    for view in (*VIEWS, *MORE_VIEWS):
        page.open(view).settle()
        nameless = page.page.evaluate(
            """() => [...document.querySelectorAll("input, select, textarea, button, a, canvas, [role]")]
                .filter((each) => !["row", "rowgroup", "gridcell", "columnheader", "status"].includes(each.role))
                .filter((each) => each.offsetParent && !each.closest("[aria-hidden=true]"))
                .filter((each) => !(each.getAttribute("aria-label") || each.textContent.trim()))
                .filter((each) => !each.labels?.length)
                .map((each) => each.outerHTML.slice(0, 120))"""
        )
        assert nameless == [], view
        assert page.page.evaluate("document.querySelectorAll('h1').length") == 1, view


# --- light and dark


def test_the_page_follows_the_system_and_the_button_wins(shop: str, dashboard: Opener) -> None:
    paper = "() => getComputedStyle(document.body).backgroundColor"
    page = dashboard(shop, color_scheme="dark")
    dark = page.page.evaluate(paper)
    page.page.emulate_media(color_scheme="light")
    light = page.page.evaluate(paper)
    assert dark != light
    page.button("Switch to dark").click()
    assert page.page.evaluate(paper) == dark
    page.page.reload()
    page.page.wait_for_selector("#view h1")
    assert page.page.evaluate(paper) == dark
    page.page.keyboard.press("l")
    assert page.page.evaluate(paper) == light


# --- phone


@pytest.mark.parametrize("views", [VIEWS, MORE_VIEWS], ids=["bus", "rest"])
def test_on_a_phone_nothing_is_wider_than_the_screen(shop: str, dashboard: Opener, views: tuple[str, ...]) -> None:
    page = dashboard(shop, **PHONE)
    for view in views:
        page.open(view).settle()
        wide = page.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, (view, wide)


def test_on_a_phone_the_longest_names_break(shop: str, dashboard: Opener) -> None:
    name = "readings-of-the-third-corridor." + "x" * 200

    async def prepare() -> None:
        shopping = await Shop(shop).open()
        await shopping.post("/topics", {"topic": name, "maxAttempts": 1})
        await shopping.publish(name, [{"key": name, "headers": {name: name}, "payload": {name: [name]}}])
        await shopping.refuse_all(name, name, name, 1)
        await shopping.session.close()

    aside(prepare())
    sent(shop, "Run.Start", {"program": "approval", "id": name[:120]})
    page = dashboard(shop, "topics", **PHONE)
    for view in (
        f"topics/{name}",
        f"events?topic={name}&offset=1",
        f"groups/{name}/{name}",
        f"deadletters/{name}",
        f"runs/{name[:120]}",
    ):
        page.open(view).settle()
        wide = page.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, (view, wide)


def test_on_a_phone_what_is_opened_is_brought_into_view(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "runs", **PHONE)
    page.row("Runs", "year-end").tap()
    expect(page.page.locator(".detail").get_by_role("heading", name="year-end")).to_be_in_viewport()


def test_on_a_phone_an_event_is_opened_by_touch(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "events?topic=orders", **PHONE)
    page.rows("Events").nth(2).tap()
    page.page.locator(".detail").get_by_text('"currency"').or_(
        page.page.locator(".detail").get_by_text('"total"')
    ).first.wait_for()
    page.button("Close").tap()
    expect(page.page.locator(".detail")).to_have_count(0)


def test_on_a_phone_a_schedule_says_when_it_comes_next(shop: str, dashboard: Opener) -> None:
    page = dashboard(shop, "schedules", **PHONE)
    page.row("Schedules", "nightly-report").get_by_text("in ").wait_for()
