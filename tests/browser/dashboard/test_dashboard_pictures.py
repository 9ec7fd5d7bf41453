"""The pictures in the documentation. `MAINSPRING_PICTURES=1` puts new ones there; otherwise they are only made.

For the documentation the shop is busy for two minutes first, so that the charts have something to show.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.dashboard_site import Cluster, Dashboard, Opener, serving, url_of
from tests.support.paths import ROOT
from tests.support.shop_day import Packer, Shop, order, spend

FOR_THE_DOCS = os.environ.get("MAINSPRING_PICTURES") == "1"
DOCS = ROOT / "docs" / "how-to" / "images"
BUSY_S = 130 if FOR_THE_DOCS else 1
MOST_BYTES = 150_000
SCREEN = {"viewport": {"width": 1200, "height": 760}}
PHONE = {"viewport": {"width": 390, "height": 760}, "color_scheme": "dark"}


async def consume(shop: Shop, topic: str, group: str, pause_s: float) -> None:
    async with shop.session.ws_connect(shop.url) as socket:
        subscribe = {"type": "SUBSCRIBE", "topic": topic, "group": group, "from": {"kind": "offset"}, "max_inflight": 8}
        await socket.send_json({**subscribe, "ack": "each"})
        async for said in socket:
            frame = json.loads(said.data)
            if frame["type"] == "MESSAGE":
                await asyncio.sleep(pause_s)
                place = {name: frame[name] for name in ("topic", "group", "partition", "offset")}
                await socket.send_json({"type": "ACK", **place})


async def be_busy(url: str, seconds: float) -> None:
    """Events at a rate that rises and falls, and groups that keep up more or less well."""
    shop = await Shop(url).open()
    chance = random.Random(11)
    pace = (("orders", "analytics", 0.0), ("mail.outbox", "mailer", 0.004), ("shipping.labels", "printer", 0.09))
    tasks = [asyncio.create_task(consume(shop, *each)) for each in pace]
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    swell = 6.0
    while loop.time() < end:
        swell = max(2.0, min(14.0, swell + chance.uniform(-1.1, 1.1)))
        for topic in ("orders", "mail.outbox", "shipping.labels", "inventory.changes"):
            await shop.publish(topic, [order(n, chance) for n in range(chance.randint(1, round(swell)))])
        await asyncio.sleep(0.25)
    for task in tasks:
        task.cancel()
    await shop.session.close()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    interval = "2000" if FOR_THE_DOCS else "200"
    with serving(tmp_path_factory.mktemp("busy"), "--node", "shop-1", MAINSPRING_HISTORY_INTERVAL_MS=interval) as node:
        url = url_of(node)

        def live() -> None:
            asyncio.run(spend(url))
            asyncio.run(be_busy(url, BUSY_S + (50 if FOR_THE_DOCS else 0)))

        work = threading.Thread(target=live)
        work.start()
        work.join(BUSY_S if FOR_THE_DOCS else None)
        with Packer(url):
            yield url
        work.join()


def picture(page: Dashboard, name: str, folder: Path) -> None:
    """A picture of what is on the screen; small enough for a repository."""
    page.page.wait_for_timeout(4_500 if FOR_THE_DOCS else 200)
    path = (DOCS if FOR_THE_DOCS else folder) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.page.screenshot(path=path)
    assert 5_000 < path.stat().st_size < MOST_BYTES


def test_the_overview(busy: str, dashboard: Opener, tmp_path: Path) -> None:
    page = dashboard(busy, viewport={"width": 1200, "height": 1040})
    page.page.get_by_role("region", name="Events per second").wait_for()
    picture(page, "dashboard-overview", tmp_path)


def test_an_event(busy: str, dashboard: Opener, tmp_path: Path) -> None:
    page = dashboard(busy, "events?topic=orders", **SCREEN)
    page.row("Events", "currency").click()
    page.page.locator(".detail").get_by_text('"currency"').wait_for()
    picture(page, "dashboard-events", tmp_path)


def test_a_run(busy: str, dashboard: Opener, tmp_path: Path) -> None:
    page = dashboard(busy, "runs/checkout-0003", color_scheme="dark", **SCREEN)
    expect(page.rows("Timeline")).to_have_count(4)
    picture(page, "dashboard-run", tmp_path)


def test_a_causation_tree(busy: str, dashboard: Opener, tmp_path: Path) -> None:
    page = dashboard(busy, "trace", **SCREEN)
    page.page.get_by_label("Message", exact=True).fill("Order.Place")
    page.button("Find").click()
    page.rows("Messages that passed lately").filter(has_text="Order.Placed").first.click()
    expect(page.page.get_by_role("treeitem")).not_to_have_count(0)
    picture(page, "dashboard-causation", tmp_path)


def test_the_nodes(pair: Cluster, dashboard: Opener, tmp_path: Path) -> None:
    page = dashboard(url_of(pair.left), "nodes/right", viewport={"width": 1200, "height": 560})
    page.see("2 nodes share the log")
    expect(page.page.locator(".detail")).to_contain_text("query Stock.Count")
    picture(page, "dashboard-nodes", tmp_path)


def test_a_phone(busy: str, dashboard: Opener, tmp_path: Path) -> None:
    page = dashboard(busy, **PHONE)
    page.page.get_by_role("region", name="Events per second").wait_for()
    picture(page, "dashboard-phone", tmp_path)
