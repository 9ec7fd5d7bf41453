"""What a user of Celery, BullMQ or Inngest expects of limits: a second, at a time, of one key, of all workers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from mainspring import App, Event
from mainspring.durations import BadDuration
from mainspring.testing import simulate
from tests.expectations.conftest import Start


class AtATime:
    """Counts how many are inside at a time, in all and by key."""

    def __init__(self) -> None:
        self.inside: Counter[str | None] = Counter()
        self.most = 0
        self.most_of_a_key = 0
        self._lock = threading.Lock()

    def enter(self, key: str | None) -> None:
        with self._lock:
            self.inside[key] += 1
            self.most = max(self.most, self.inside.total())
            self.most_of_a_key = max(self.most_of_a_key, self.inside[key])

    def leave(self, key: str | None) -> None:
        with self._lock:
            self.inside[key] -= 1


@pytest.mark.parametrize(
    ("rate", "count", "least_s"),
    [("10/s", 30, 2.9), ("30/m", 10, 18), ("1/h", 3, 7_200), ("150/s", 300, 1.95), ("1000/s", 2_000, 1.98)],
)
async def test_a_rate_is_kept_and_not_missed(rate: str, count: int, least_s: float) -> None:
    app, times = App("shop"), []

    @app.consumer("orders", rate=rate, concurrency=10)
    async def bill(event: Event[int]) -> None:
        times.append(world.now_ms)

    async with simulate(app) as world:
        for number in range(count):
            await world.publish("orders", number)
        await world.until(lambda: len(times) == count)
    took_s = (times[-1] - times[0]) / 1_000
    assert least_s <= took_s <= least_s * 1.05
    if count < 100:
        assert all(later > earlier for earlier, later in pairwise(times))


async def test_nothing_is_held_while_it_waits_for_its_turn() -> None:
    app = App("shop")

    @app.consumer("orders", rate="1/h", concurrency=10, max_attempts=1)
    async def bill(event: Event[int]) -> None:
        event.publish("bills", [event.payload, event.attempt])

    async with simulate(app) as world:
        for number in range(3):
            await world.publish("orders", number)
        for _ in range(5):
            await world.restart()
            await world.advance("1h30m")
        assert world.events("bills").payloads == [[0, 1], [1, 1], [2, 1]]


async def test_everything_is_handled_under_a_rate(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders", rate="50/s", concurrency=10)
    def bill(event: Event[int]) -> None:
        event.publish("bills", event.payload)

    async with start(app) as node:
        await node.publish_many("orders", range(10))
        await node.comes("bills", *range(10))


async def keys_stay_in_order(start: Start, app: App, counted: AtATime, seen: list[tuple[Any, int]]) -> None:
    """24 orders of four customers: each customer's are handled one by one, as they were published."""
    async with start(app) as node:
        for number in range(24):
            await node.publish("orders", number, key=f"c-{number % 4}")
        await node.comes("bills", *range(24))
    assert counted.most_of_a_key == 1
    for key in range(4):
        assert [payload for name, payload in seen if name == f"c-{key}"] == list(range(key, 24, 4))


async def test_events_of_one_key_are_handled_one_at_a_time_and_in_order_while_others_go_on(start: Start) -> None:
    app, counted, seen = App("shop"), AtATime(), []

    @app.consumer("orders", concurrency=8, key_concurrency=1, backoff="10ms")
    async def bill(event: Event[int]) -> None:
        counted.enter(event.key)
        await asyncio.sleep(0.002)
        counted.leave(event.key)
        if event.payload == 4 and event.attempt == 1:
            raise ValueError("once more")
        seen.append((event.key, event.payload))
        event.publish("bills", event.payload)

    await keys_stay_in_order(start, app, counted, seen)


async def test_plain_functions_keep_the_order_of_a_key_too(start: Start) -> None:
    app, counted, seen = App("shop"), AtATime(), []

    @app.consumer("orders", concurrency=8, key_concurrency=1)
    def bill(event: Event[int]) -> None:
        counted.enter(event.key)
        seen.append((event.key, event.payload))
        counted.leave(event.key)
        event.publish("bills", event.payload)

    await keys_stay_in_order(start, app, counted, seen)


async def test_so_many_of_a_key_at_a_time(start: Start) -> None:
    app, counted = App("shop"), AtATime()

    @app.consumer("orders", concurrency=8, key_concurrency=2)
    async def bill(event: Event[int]) -> None:
        counted.enter(event.key)
        await asyncio.sleep(0.005)
        counted.leave(event.key)
        event.publish("bills", event.payload)

    async with start(app) as node:
        for number in range(20):
            await node.publish("orders", number, key="c-1")
        await node.comes("bills", *range(20))
    assert counted.most == counted.most_of_a_key == 2


async def test_a_group_handles_so_many_at_a_time(start: Start) -> None:
    app, counted = App("shop"), AtATime()

    @app.consumer("orders", concurrency=8, group_concurrency=3)
    async def bill(event: Event[int]) -> None:
        counted.enter(None)
        await asyncio.sleep(0.002)
        counted.leave(None)
        event.publish("bills", event.payload)

    async with start(app) as node:
        await node.publish_many("orders", range(40))
        await node.comes("bills", *range(40))
    assert counted.most == 3


async def test_workers_outside_the_node_count_for_the_group() -> None:
    app, entered, leave = App("shop"), [], asyncio.Event()

    @app.consumer("orders", group="billing", concurrency=8, group_concurrency=3)
    async def bill(event: Event[int]) -> None:
        entered.append(event.payload)
        await leave.wait()

    async with (
        simulate(app) as world,
        world.client() as bus,
        bus.subscribe("orders", group="billing", max_inflight=100) as events,
    ):
        for number in range(20):
            await world.publish("orders", number)
        await world.advance("10s")
        held = [event async for event in _here(events)]
        assert held
        assert len(entered) + len(held) == 3
        for event in held:
            await event.ack()
        await world.advance("10s")
        held = [event async for event in _here(events)]
        assert len(entered) + len(held) == 3
        leave.set()


async def _here(events: Any) -> AsyncIterator[Any]:
    while (event := events.get_nowait()) is not None:
        yield event


def test_a_rate_that_is_none_is_refused() -> None:
    app = App("shop")
    with pytest.raises(BadDuration, match="is not a rate"):

        @app.consumer("orders", rate="fast")
        async def bill(event: Event[int]) -> None: ...
