"""A program on several nodes: what a consumer acknowledges, publishes and begins is one commit, wherever it runs.

Each acknowledgement writes an event of its own to `done` in the same commit. So an event that was acknowledged twice,
or not at all, can be counted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, Effect, Event, resume
from mainspring.log import SharedMemory
from mainspring.loop import VirtualClock, VirtualEventLoop
from mainspring.node.core import Core
from mainspring.settings import Settings
from tests.support.bus import WALL_MS

LEASE_MS = 3_000
_numbers = itertools.count()


class Charge(Effect[str]):
    order: int


def program(charged: list[int]) -> App:
    app = App("shop")

    @app.handles(Charge)
    def charge(effect: Charge) -> Any:
        charged.append(effect.order)
        return resume("paid")

    @app.run
    async def checkout(order: int, perform: Any) -> str:
        return f"{order} {await perform(Charge(order))}"

    @app.consumer("orders", group="billing", concurrency=4, max_attempts=50)
    async def bill(event: Event[int]) -> None:
        await asyncio.sleep(0.02)
        event.publish("done", {"order": event.payload}, id=f"done-{next(_numbers)}")
        event.start_run(checkout, event.payload, id=f"order-{event.payload}")

    @app.every("1s")
    async def tick(event: Event[Any]) -> None:
        event.publish("ticks", event.ts, id=f"tick-{next(_numbers)}")

    return app


class Shop:
    """Nodes that run the program on one log."""

    def __init__(self, clock: VirtualClock, folder: Path) -> None:
        self.clock = clock
        self.folder = folder
        self.shared = SharedMemory()
        self.charged: list[int] = []
        self.nodes: list[Core] = []
        self.ids = itertools.count(1)

    async def add(self) -> Core:
        name = f"node-{len(self.nodes) + 1}"
        settings = Settings(
            data=str(self.folder / name), node=name, node_lease_ms=LEASE_MS, metrics_interval_ms=0, audit=False
        )
        core = Core(
            settings,
            program(self.charged),
            clock=self.clock,
            engine=self.shared.engine(),
            source=random.Random(len(self.nodes)),
            new_id=lambda: f"018bcfe5-6800-7000-8000-{next(self.ids):012x}",
        )
        await core.boot()
        self.nodes.append(core)
        return core

    async def kill(self, core: Core) -> None:
        core.log.engine.cut_off = True  # type: ignore[attr-defined]
        self.shared.engines.remove(core.log.engine)  # type: ignore[arg-type]
        core.loop.detach()
        self.nodes.remove(core)

    async def stored(self, topic: str) -> list[Any]:
        return [json.loads(event.payload) for event in await self.shared.state.read(topic, 0, 1, 10_000)]

    async def settled(self, count: int) -> None:
        for _ in range(400):
            await asyncio.sleep(0.25)
            if len(await self.stored("done")) >= count and len(self.charged) >= count:
                return


def in_shop(test: Callable[[Shop], Coroutine[Any, Any, None]], folder: Path) -> None:
    clock = VirtualClock(1_000, wall_ms=WALL_MS)

    async def story() -> None:
        shop = Shop(clock, folder)
        await shop.add()
        await shop.add()
        try:
            await test(shop)
        finally:
            for node in shop.nodes:
                node.log.engine.cut_off = node.log.engine.lose_answers = False  # type: ignore[attr-defined]
                node.log.engine.join_again()  # type: ignore[attr-defined]
                await node.drain()

    with asyncio.Runner(loop_factory=lambda: VirtualEventLoop(clock)) as runner:
        runner.run(story())


async def publish(shop: Shop, first: int, count: int) -> None:
    for n in range(first, first + count):
        await shop.nodes[n % len(shop.nodes)].bus.publish("orders", b"%d" % n)


async def check(shop: Shop, count: int) -> None:
    await shop.settled(count)
    await asyncio.sleep(2)
    done = Counter(each["order"] for each in await shop.stored("done"))
    assert done == dict.fromkeys(range(count), 1), "each event is acknowledged once"
    assert Counter(shop.charged).keys() == set(range(count)), "each run has done its work"
    for node in shop.nodes:
        (offsets,) = await node.bus.groups.offsets("orders")
        assert offsets.groups["billing"].last_committed == count
    ticks = await shop.stored("ticks")
    assert len({ts // 1_000 for ts in ticks}) == len(ticks), "no schedule fires twice for one due time"


def test_consumers_of_both_nodes_share_the_work(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        await publish(shop, 0, 40)
        await check(shop, 40)

    in_shop(story, tmp_path)


def test_a_node_that_dies_half_way_leaves_nothing_half_done(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        await publish(shop, 0, 30)
        await asyncio.sleep(0.03)
        await shop.kill(shop.nodes[0])
        await check(shop, 30)

    in_shop(story, tmp_path)


def test_a_node_that_stops_in_order_hands_over_without_waiting_for_its_lease(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        await publish(shop, 0, 40)
        leaving = shop.nodes.pop(0)
        await leaving.drain()
        before = shop.clock.now_ms()
        await check(shop, 40)
        assert shop.clock.now_ms() - before < LEASE_MS
        assert [record.key async for record in shop.shared.state.scan("claims")] == [
            record.key
            async for record in shop.shared.state.scan("claims")
            if record.key.endswith(f"{shop.nodes[0].cluster.epoch:020d}")
        ]

    in_shop(story, tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_lost_answers_and_cuts_acknowledge_nothing_twice(tmp_path: Path, seed: int) -> None:
    async def story(shop: Shop) -> None:
        chance = random.Random(seed)
        published = 0
        for _ in range(25):
            engine: Any = chance.choice(shop.nodes).log.engine
            trouble = chance.choice(["lose", "lose", "cut", "none"])
            engine.lose_answers = trouble == "lose"
            engine.cut_off = trouble == "cut"
            await asyncio.sleep(chance.choice([0.01, 0.05, 0.3, 1.5]))
            engine.lose_answers = False
            engine.join_again()
            await publish(shop, published, 3)
            published += 3
        await check(shop, published)

    in_shop(story, tmp_path)
