"""Schemas while two programs run side by side: each program publishes in the version that it knows."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mainspring import App, Event
from mainspring.bus import SchemaMismatch
from mainspring.runs import Publish
from tests.support.upgrade import Site, Upgraded, story, wait


class OldOrder(msgspec.Struct):
    n: int


class NewOrder(msgspec.Struct):
    n: int
    currency: str


def program(order: type, made: Any, *, old: bool) -> App:
    """Publishes an order in every way a program can."""
    app = App("shop")
    app.schema("orders", compatibility="forward")(order)

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Any) -> None:
        await ctx.publish("orders", made(1))

    @app.command("Sure.Place", durable=True)
    async def place_surely(data: dict[str, Any], ctx: Any) -> None:
        await ctx.publish("orders", made(2))

    @app.consumer("wishes", group="old" if old else "new")
    def fulfil(event: Event[Any]) -> None:
        event.publish("orders", made(3))

    @app.run
    async def later(perform: Any) -> None:
        await perform(Publish("orders", made(4)))

    return app


def old() -> App:
    return program(OldOrder, OldOrder, old=True)


def new() -> App:
    return program(NewOrder, lambda n: NewOrder(n, "EUR"), old=False)


async def place_all(node: Upgraded) -> None:
    await node.ask("command", "Order.Place", {})
    await node.ask("command", "Sure.Place", {})
    await node.publish("wishes", None)
    await node.ask("command", "Run.Start", {"program": "later", "args": []})
    await wait(1_000)


async def versions(site: Site) -> list[tuple[int, str]]:
    events = await site.shared.state.read("orders", 0, 1, 100)
    found = [(msgspec.json.decode(each.payload), msgspec.json.decode(each.headers or b"{}")) for each in events]
    return sorted((payload["n"], headers["x-schema-version"]) for payload, headers in found)


@story
async def test_an_old_node_goes_on_publishing_what_it_knows(site: Site) -> None:
    b = await site.start("b", old())
    await place_all(b)
    assert await versions(site) == [(n, "1") for n in (1, 2, 3, 4)]
    a = await site.start("a", new())
    assert a.core.bus.schemas.get("orders").version == 2
    await b.ask("command", "Order.Place", {})
    await b.ask("command", "Sure.Place", {})
    await b.publish("wishes", None)
    await b.ask("command", "Run.Start", {"program": "later", "args": []})
    await wait(3_000)
    found = await versions(site)
    assert found.count((1, "1")) == 2
    assert found.count((2, "1")) == 2
    assert found.count((3, "1")) == 2
    assert found.count((3, "2")) == 2, "the new group sees both wishes"
    assert found.count((4, "1")) == 2


@story
async def test_an_old_node_that_starts_again_registers_nothing_new(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    await b.stop()
    b = await site.start("b", old())
    assert [each.latest.version for each in b.core.bus.schemas.all()] == [2]
    await b.ask("command", "Order.Place", {})
    await a.ask("command", "Order.Place", {})
    assert await versions(site) == [(1, "1"), (1, "2")]


@story
async def test_what_a_client_publishes_is_held_to_the_latest_version_on_every_node(site: Site) -> None:
    b, a = await site.start("b", old()), await site.start("a", new())
    for node in (a, b):
        with pytest.raises(SchemaMismatch):
            await node.publish("orders", {"n": 1})
        await node.publish("orders", {"n": 1, "currency": "EUR"})


@story
async def test_two_nodes_that_register_the_same_new_schema_at_once_both_start(site: Site) -> None:
    await site.start("c", old())
    a, b = await asyncio.gather(site.start("a", new()), site.start("b", new()))
    assert a.core.bus.schemas.get("orders").version == b.core.bus.schemas.get("orders").version == 2
