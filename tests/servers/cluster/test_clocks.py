"""Machines whose clocks disagree: an id is stored once, and nothing is removed before its time.

Whoever uses a queue of several brokers expects that one machine with a wrong clock neither stores a message twice nor
throws away what others have just written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mainspring.bus import TopicConfig
from mainspring.log import LogClock
from mainspring.loop import MonotonicClock, VirtualClock
from mainspring.node.core import Core
from mainspring.settings import Settings
from tests.support.processes import SERVERS, Server
from tests.support.shared_runs import Skewed

MINUTE = 60_000
StartNode = Callable[..., Awaitable[Core]]


@pytest.fixture(scope="module", params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
async def start(server: Server, tmp_path: Path) -> AsyncIterator[StartNode]:
    """Starts a node whose machine's clock is wrong by some minutes."""
    nodes: list[Core] = []

    async def make(name: str, skew_ms: int, **settings: object) -> Core:
        chosen = Settings(engine=server.address, data=str(tmp_path / name), node=name, **settings)  # type: ignore[arg-type]
        core = Core(chosen, clock=Skewed(MonotonicClock(), skew_ms))
        await core.boot()
        nodes.append(core)
        return core

    yield make
    for core in reversed(nodes):
        await core.drain()


async def test_an_id_is_stored_once_whatever_the_clocks_of_the_machines_say(start: StartNode) -> None:
    right = await start("right", 0)
    ahead = await start("ahead", 11 * MINUTE)
    behind = await start("behind", -11 * MINUTE)
    first = await right.bus.publish("orders", b"1", id="o-1")
    for node in (ahead, behind, right):
        again = await node.bus.publish("orders", b"1", id="o-1")
        assert (again.duplicate, again.offset) == (True, first.offset)
    assert abs(ahead.clock.wall_ms() - right.clock.wall_ms()) < MINUTE
    assert abs(behind.clock.wall_ms() - right.clock.wall_ms()) < MINUTE


async def test_retention_goes_by_one_clock(start: StartNode) -> None:
    """The node that removes what is old is the one whose clock is 20 minutes ahead."""
    ahead = await start("remover", 20 * MINUTE, retention_interval_ms=50)
    behind = await start("writer", -20 * MINUTE, retention_interval_ms=50)
    await ahead.bus.topics.put(TopicConfig("kept", retention_ms=10 * MINUTE))
    await ahead.bus.topics.put(TopicConfig("short", retention_ms=1))
    for n in range(3):
        await behind.bus.publish("kept", b"%d" % n)
        await behind.bus.publish("short", b"%d" % n)

    async def left(topic: str) -> int:
        return sum(bounds.events for bounds in await ahead.log.bounds(topic))

    async with asyncio.timeout(30):
        while await left("short"):  # noqa: ASYNC110 - what is too old goes: retention does run
            await asyncio.sleep(0.02)
    assert await left("kept") == 3


class Servers:
    """Says a time that is wrong by `ms`, by a clock that moves by hand."""

    def __init__(self, clock: VirtualClock, ms: int) -> None:
        self.clock, self.ms = clock, ms

    async def time_ms(self) -> int:
        self.clock.advance(10)
        return self.clock.now_ms() + self.ms - 5


async def test_small_differences_change_nothing_and_a_jump_of_the_servers_is_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = VirtualClock(0, 5_000_000)
    servers = Servers(own, 9_000_000)
    clock = LogClock(own)
    assert clock.wall_ms() == 5_000_000
    await clock.ask(servers)
    assert clock.wall_ms() - clock.now_ms() == 9_000_000
    own.shift_wall(-3_600_000)  # somebody sets this machine's clock
    servers.ms += 3
    await clock.ask(servers)
    assert clock.wall_ms() - clock.now_ms() == 9_000_000
    caplog.clear()
    servers.ms -= 60_000
    await clock.ask(servers)
    assert clock.wall_ms() - clock.now_ms() == 9_000_000 + 3 - 60_000
    assert "set their clocks" in caplog.text
