"""Beats while two programs run side by side: the newest program that has enzymes leads, so no signal meets old code."""

from __future__ import annotations

from typing import Any

from mainspring import App
from tests.support.upgrade import LEASE_MS, Site, Upgraded, story, wait


def program(*queries: str) -> App:
    app = App("shop")
    for query in queries:

        def count(signal: str, target: str, stage: Any, query: str = query) -> None:
            stage.add(f"/count{query}", 1)

        app.enzyme(query, name=query.strip("/"))(count)
    return app


def old() -> App:
    return program("/orders")


def new() -> App:
    return program("/orders", "/refunds")


async def signal(node: Upgraded, signal: str) -> None:
    await node.ask("command", "Beat.Signal", {"signal": signal})


async def count(node: Upgraded, what: str) -> Any:
    return (await node.ask("query", "Beat.Read", {"path": f"/count/{what}"}))["value"]


def leader(node: Upgraded) -> str:
    (name,) = (each.name for each in node.core.cluster.nodes() if "beats" in each.roles)
    return name


@story
async def test_a_newer_program_leads_as_soon_as_it_is_there(site: Site) -> None:
    b = await site.start("b", old())
    await signal(b, "/orders")
    await wait(500)
    assert leader(b) == "b"
    a = await site.start("a", new())
    await wait(500)
    assert leader(a) == leader(b) == "a"
    await signal(b, "/refunds")
    await signal(b, "/orders")
    await wait(500)
    for node in (a, b):
        assert (await count(node, "refunds"), await count(node, "orders")) == (1, 2)


@story
async def test_an_old_node_that_starts_again_does_not_lead(site: Site) -> None:
    b, c = await site.start("b", old()), await site.start("c", old())
    a = await site.start("a", new())
    await wait(500)
    for _ in range(2):
        await b.stop()
        b = await site.start("b", old())
    assert leader(c) == "a"
    await a.stop()
    await wait(500)
    assert leader(c) in "bc", "somebody leads while the new one is away"
    a = await site.start("a", new())
    await wait(500)
    assert leader(c) == "a"


@story
async def test_a_new_leader_that_dies_is_followed_by_another_new_node_or_by_an_old_one(site: Site) -> None:
    b, a, d = await site.start("b", old()), await site.start("a", new()), await site.start("d", new())
    await wait(500)
    first, second = (a, d) if leader(b) == "a" else (d, a)
    first.kill()
    await wait(2 * LEASE_MS)
    assert leader(b) == second.name
    second.kill()
    await wait(2 * LEASE_MS)
    assert leader(b) == "b"
    await signal(b, "/orders")
    await wait(500)
    assert await count(b, "orders") == 1


@story
async def test_a_node_without_enzymes_leads_only_where_nobody_has_any(site: Site) -> None:
    c = await site.start("c", None)
    await wait(500)
    assert leader(c) == "c"
    b = await site.start("b", old())
    e = await site.start("e", App("bakery"))
    await wait(500)
    assert leader(c) == leader(e) == "b"
    await signal(c, "/orders")
    await wait(500)
    assert await count(c, "orders") == 1
    await b.stop()
    await wait(500)
    assert leader(c) in "ce"


@story
async def test_no_signal_is_lost_or_counted_twice_while_leading_changes_hands(site: Site) -> None:
    b = await site.start("b", old())
    for n in range(60):
        await signal(b, "/orders")
        if n == 20:
            a = await site.start("a", new())
        if n == 40:
            await a.stop()
            a = await site.start("a", old())
        await wait(37)
    await wait(1_000)
    assert await count(a, "orders") == await count(b, "orders") == 60


@story
async def test_topics_that_only_the_new_program_takes_signals_from_wait_for_a_new_leader(site: Site) -> None:
    def feeding() -> App:
        app = new()
        app.beats_from("sales")

        @app.enzyme("/topics/sales", match="prefix")
        def sold(signal: str, target: str, stage: Any) -> None:
            stage.add("/count/sold", 1)

        return app

    b, a = await site.start("b", old()), await site.start("a", feeding())
    await a.publish("sales", 1)
    await wait(500)
    await a.stop()
    await b.publish("sales", 2)
    await wait(2_000)
    a = await site.start("a", feeding())
    await wait(1_000)
    assert await count(b, "sold") == 2
