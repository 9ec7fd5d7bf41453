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
