"""A handler that ends its process, on a log that several nodes share: the node that takes over counts it."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring import App, Event
from tests.support.upgrade import LEASE_MS, Site, Upgraded, story, wait


def shop(attempts: list[int], handled: set[Any], **options: Any) -> App:
    app = App("shop")

    @app.consumer("orders", group="billing", max_attempts=3, **options)
    async def bill(event: Event[Any]) -> None:
        if event.payload == "deadly":
            attempts.append(event.attempt)
            await asyncio.Event().wait()
        handled.add(event.payload)

    return app


def has_event(node: Upgraded) -> bool:
    held = node.core.bus.groups.get("orders", "billing").positions[0].open
    return any(event.member is not None for event in held.values())


@story
async def test_a_node_that_takes_over_counts_what_ended_the_one_before(site: Site) -> None:
    attempts: list[int] = []
    handled: set[Any] = set()
    nodes: list[Upgraded] = [await site.start(name, shop(attempts, handled)) for name in ("a", "b")]
    for payload in ("before", "deadly", "after"):
        await nodes[0].publish("orders", payload)
    for expected in (1, 2, 3):
        while len(attempts) < expected:
            await wait(100)
            assert site.clock.now_ms() < 300_000
        (holder,) = [node for node in nodes if has_event(node)]
        holder.kill()
        nodes[nodes.index(holder)] = await site.start(holder.name, shop(attempts, handled))
    await wait(LEASE_MS * 3)
    (letter,) = await nodes[0].core.bus.dead_letters.page("orders")
    assert (letter.attempts, letter.reason) == (3, "the process ended 3 times while this event was handled")
    assert (attempts, handled) == ([1, 2, 3], {"before", "after"})
    for node in nodes:
        await node.stop()


@story
async def test_events_that_are_handled_beside_it_keep_their_attempts(site: Site) -> None:
    attempts: list[int] = []
    handled: set[Any] = set()

    def program() -> App:
        app = App("shop")

        @app.consumer("orders", group="billing", max_attempts=3, concurrency=8)
        async def bill(event: Event[Any]) -> None:
            if event.payload == "deadly":
                attempts.append(event.attempt)
                await asyncio.Event().wait()
            await asyncio.sleep(5)
            handled.add(event.payload)

        return app

    nodes: list[Upgraded] = [await site.start(name, program()) for name in ("a", "b")]
    for n in range(8):
        await nodes[0].publish("orders", "deadly" if n == 3 else n)
    for expected in (1, 2, 3):
        while len(attempts) < expected:
            await wait(100)
            assert site.clock.now_ms() < 300_000, (attempts, handled)
        (holder,) = [node for node in nodes if _has_deadly(node)]
        holder.kill()
        nodes[nodes.index(holder)] = await site.start(holder.name, program())
    await wait(LEASE_MS * 3 + 60_000)
    letters = await nodes[0].core.bus.dead_letters.page("orders")
    assert [(letter.original_offset, letter.attempts) for letter in letters] == [(4, 3)]
    assert handled == {n for n in range(8) if n != 3}
    for node in nodes:
        await node.stop()


def _has_deadly(node: Upgraded) -> bool:
    event = node.core.bus.groups.get("orders", "billing").positions[0].open.get(4)
    return event is not None and event.member is not None


@story
async def test_a_node_that_was_stopped_begins_with_nothing_before_its_lease_is_certain(site: Site) -> None:
    """The events lie in the node, behind the one that its function handles."""
    begun: list[tuple[str, int]] = []

    def program(name: str) -> App:
        app = App("shop")

        @app.consumer("orders", group="billing", concurrency=1, max_inflight=4)
        async def bill(event: Event[Any]) -> None:
            begun.append((name, event.payload))
            await asyncio.sleep(2 * LEASE_MS / 1000 if name == "a" else 0)

        @app.command("Order.Place", durable=True, concurrency=1)
        async def place(data: int, ctx: Any) -> int:
            begun.append((name, data))
            await asyncio.sleep(2 * LEASE_MS / 1000 if name == "a" else 0)
            return data

        return app

    a = await site.start("a", program("a"))
    for n in range(4):
        await a.publish("orders", n)
    asked = [
        asyncio.ensure_future(a.core.kernel.ask("command", "Order.Place", n, id=f"place-{n}", timeout=60))
        for n in (10, 11)
    ]
    await wait(100)
    assert sorted(begun) == [("a", 0), ("a", 10)]
    a.engine.cut_off = True
    a.core.loop.detach()
    b = await site.start("b", program("b"))
    await wait(LEASE_MS * 1.5)
    assert sorted(each for each in begun if each[0] == "b") == [("b", n) for n in (0, 1, 2, 3, 10, 11)]
    a.core.loop.attach()
    await wait(LEASE_MS)  # what it was stopped at ends, and it does not know yet that it was replaced
    a.engine.join_again()
    await wait(LEASE_MS * 3)
    assert sorted(each for each in begun if each[0] == "a") == [("a", 0), ("a", 10)]
    assert await asyncio.gather(*asked) == [10, 11], "it hears of the outcome"
    await a.publish("orders", 4)
    await wait(1_000)
    assert begun[-1][1] == 4
    for node in (a, b):
        await node.stop()
