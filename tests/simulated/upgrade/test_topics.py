"""Settings of topics while two programs run side by side: the newer one decides, whoever starts last."""

from __future__ import annotations

import msgspec

from mainspring import App
from tests.support.upgrade import Site, story


def old() -> App:
    app = App("shop")
    app.topic("orders", retention="1d", max_attempts=3)
    return app


def new() -> App:
    app = App("shop")
    app.topic("orders", retention="7d", partitions=2)
    app.topic("refunds", max_attempts=9)
    return app


DAY_MS = 86_400_000


@story
async def test_an_old_node_that_starts_again_changes_no_setting_back(site: Site) -> None:
    b = await site.start("b", old())
    assert b.core.bus.topics.get("orders").config.retention_ms == DAY_MS
    a = await site.start("a", new())
    await b.stop()
    b = await site.start("b", old())
    for node in (a, b):
        orders = node.core.bus.topics.get("orders").config
        assert (orders.retention_ms, orders.partitions) == (7 * DAY_MS, 2)
        assert orders.max_attempts == 3, "only the old one mentions it"
        assert node.core.bus.topics.get("refunds").config.max_attempts == 9


@story
async def test_after_a_rollback_the_old_settings_are_in_force_again(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    await a.stop()
    await b.stop()
    b = await site.start("b", old())
    orders = b.core.bus.topics.get("orders").config
    assert orders.retention_ms == DAY_MS
    assert orders.partitions == 2, "partitions only grow"


@story
async def test_what_was_set_by_hand_and_is_not_mentioned_stays(site: Site) -> None:
    a = await site.start("a", new())
    by_hand = msgspec.structs.replace(a.core.bus.topics.get("orders").config, retention_count=77)
    await a.core.bus.put_topic(by_hand)
    b = await site.start("b", old())
    await a.stop()
    a = await site.start("a", new())
    assert (
        a.core.bus.topics.get("orders").config.retention_count
        == b.core.bus.topics.get("orders").config.retention_count
        == 77
    )
