"""The alarm for a consumer that is connected and does nothing while its backlog grows."""

from __future__ import annotations

import asyncio

from mainspring.client import Stall, connect
from mainspring.client.consumer import StallWatch
from tests.support.client_node import Node


def watch() -> StallWatch:
    return StallWatch("t", "g", patience_ms=90_000)


def test_nothing_settled_while_the_lag_grows_raises_the_alarm_once() -> None:
    one = watch()
    alarms = [one.check(30_000 * n, True, settled=5, lag=10 + n) for n in range(8)]
    assert alarms[:3] == [None, None, None]
    assert alarms[3] == Stall("t", "g", lag=13, for_ms=90_000)
    assert alarms[4:] == [None] * 4


def test_progress_ends_the_stall_and_another_one_raises_the_alarm_again() -> None:
    one = watch()
    for n in range(5):
        one.check(30_000 * n, True, settled=5, lag=10 + n)
    assert one.check(150_000, True, settled=6, lag=20) is None
    alarms = [one.check(180_000 + 30_000 * n, True, settled=6, lag=21 + n) for n in range(4)]
    assert [alarm is not None for alarm in alarms] == [False, False, True, False]


def test_an_idle_consumer_a_slow_one_and_one_without_a_connection_raise_none() -> None:
    idle, slow, away = watch(), watch(), watch()
    for n in range(20):
        assert idle.check(30_000 * n, True, settled=5, lag=0) is None
        assert slow.check(30_000 * n, True, settled=n, lag=1_000 * n) is None
        assert away.check(30_000 * n, False, settled=5, lag=n) is None


def test_a_backlog_that_shrinks_without_us_is_no_stall() -> None:
    one = watch()
    for n in range(20):
        assert one.check(30_000 * n, True, settled=0, lag=100 - n) is None


async def test_a_consumer_that_holds_its_window_and_does_nothing_is_reported(node: Node, name: str) -> None:
    alarms: asyncio.Queue[Stall] = asyncio.Queue()
    async with (
        connect(node.url, stall_check=0.05, stall_patience=0.2, on_stall=alarms.put_nowait) as bus,
        bus.subscribe(name, group="g", max_inflight=2) as events,
    ):
        await bus.publish(name, 0)
        held = await events.get(60)
        await asyncio.sleep(0.3)
        for n in range(10):
            await bus.publish(name, n)
        stall = await asyncio.wait_for(alarms.get(), 20)
        assert (stall.topic, stall.group) == (name, "g")
        assert stall.lag > 1
        await held.ack()
