"""The node goes away under the page: the page says so, keeps what it knows, and goes on when the node is back."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.dashboard_site import Opener, sent, serving, url_of
from tests.support.nats_server import free_port
from tests.support.serving import Serving
from tests.support.shop_day import Shop, aside

AWAY = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "WebSocket", "timed out")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    """A node with a log on disk and a port of its own, so that it can come back as the same one."""
    with serving(tmp_path / "node", "--port", str(free_port()), engine="sqlite") as started:
        yield started


def publish(url: str, topic: str, *payloads: object) -> None:
    async def go() -> None:
        shop = await Shop(url).open()
        await shop.publish(topic, [{"payload": payload} for payload in payloads])
        await shop.session.close()

    aside(go())


def test_a_killed_node_is_told_of_and_its_return_too(node: Serving, dashboard: Opener) -> None:
    url = url_of(node)
    publish(url, "ticker", {"n": 1})
    page = dashboard(url, "events?topic=ticker")
    page.tolerated = (*AWAY, "/groups/ticker/dashboard.")  # a follower that the killed node had not written down
    page.button("Follow").click()
    page.row("Events", '{"n":1}').wait_for()
    expect(page.page).to_have_url(re.compile("follow=1"))
    notice = page.page.locator("#notice")
    node.kill()
    expect(notice).to_contain_text("The node does not answer. What you see is from")
    expect(page.page.locator(".state")).to_have_text("Not reachable")
    page.row("Events", '{"n":1}').wait_for()  # what was known is still there
    page.page.keyboard.type("gt")
    expect(page.page.locator("#view")).to_contain_text("The node does not answer.")
    page.page.go_back()
    node.launch()
    page.toast("The node was started again.")
    expect(notice).to_be_hidden()
    expect(page.page.locator(".state")).to_have_text("Live")
    expect(page.button("Follow")).to_have_attribute("aria-pressed", "true")
    page.until(
        "url => fetch(url).then(a => a.json()).then(({groups}) => groups.some(g => g.members === 1))",
        f"{url}/groups?topic=ticker",
    )
    publish(url, "ticker", {"n": 2})
    page.row("Events", '{"n":2}').wait_for()
    page.open("")
    page.page.get_by_role("img", name="Events per second").wait_for()


def test_what_caused_an_event_is_known_after_a_restart(node: Serving, dashboard: Opener) -> None:
    url = url_of(node)
    sent(url, "Order.Place", {"id": "o-1", "customer": "c-1", "total": 5})
    node.kill()
    node.launch()
    page = dashboard(url, "events?topic=orders")
    page.tolerated = ("404",)
    page.row("Events", "o-1").click()
    page.page.get_by_role("link", name="What caused it").click()
    tree = page.page.get_by_role("tree", name="Causation tree").get_by_role("treeitem")
    expect(tree).to_have_count(2)
    expect(tree.nth(0)).to_contain_text("forgotten")
    expect(tree.nth(1)).to_contain_text("orders")
    page.see("this is what the log keeps")


def test_a_silent_node_is_not_taken_for_a_quiet_one(node: Serving, dashboard: Opener) -> None:
    page = dashboard(url_of(node), "kernel?tab=ask")
    page.tolerated = AWAY
    data = page.page.get_by_label("Data (JSON)")
    expect(data).to_have_value(re.compile('""'))  # the example of the first message is laid out
    data.fill('{"half": "written"')
    node.signal(signal.SIGSTOP)
    try:
        expect(page.page.locator("#notice")).to_contain_text("The node does not answer.")
    finally:
        node.signal(signal.SIGCONT)
    page.toast("The node answers again.")
    expect(page.page.locator("#notice")).to_be_hidden()
    expect(data).to_have_value('{"half": "written"')
