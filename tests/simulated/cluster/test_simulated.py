"""Whole nodes, simulated: three of them with one program on one log, in bad weather, from a seed.

Everything a node has is there (bus, consumers, schedules, runs, beats, durable commands, requests between nodes) except
its sockets. Time is virtual, so minutes of outages take moments. What must hold afterwards is the same as without any
trouble. SIMULATION_SEEDS=500 tries more weathers.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import App, Event
from mainspring.errors import MainspringError
from mainspring.kernel import Fail
from mainspring.log import SharedMemory
from mainspring.loop import VirtualClock, run_virtual
from mainspring.message import Message, Metadata, counted_ids, encode_data
from mainspring.node.core import Core
from mainspring.runs import Sleep
from mainspring.settings import Settings

LEASE_MS = 3_000
NAMES = ("a", "b", "c")


def program() -> App:
    app = App("shop")
    app.beats_from("orders")

    @app.consumer("orders", group="billing", concurrency=3)
    async def bill(event: Event[dict[str, int]]) -> None:
        await asyncio.sleep(0.05)
        event.publish("bills", {"n": event.payload["n"]})

    @app.every("5s")
    def tick(event: Event) -> None:  # type: ignore[type-arg]
        event.publish("ticks", {"of": event.offset})

    @app.command("Stock.Reserve", durable=True)
    async def reserve(data: dict[str, Any], ctx: Any) -> dict[str, Any]:
        await ctx.sleep(0.2)
        await ctx.publish("reserved", data)
        return data

    @app.run
    async def checkout(order: str, perform: Any) -> str:
        await perform(Sleep(ms=4_000))
        return order

    @app.enzyme("/topics/orders", match="prefix")
    def count(signal: str, target: str, stage: Any) -> None:
        stage.add("/count", 1)

    return app


class Life:
    """One life of one node."""

    def __init__(self, weather: Weather, name: str) -> None:
        self.engine = weather.shared.engine()
        self.name = name
        weather.lives += 1
        source = random.Random(f"{weather.seed}/{weather.lives}")
        self.core = Core(
            Settings(
                engine="memory",
                data=str(weather.folder / name),
                node=name,
                node_lease_ms=LEASE_MS,
                ack_timeout_ms=5_000,
                audit=False,
                metrics_interval_ms=0,
                slow_enzyme_ms=0,
                runs_recovery_ms=1_000,
                drain_ms=2_000,
            ),
            program(),
            clock=weather.clock,
            engine=self.engine,
            source=source,
            new_id=weather.new_id,
            message_ids=counted_ids(f"{name}{weather.lives}."),
        )
        self.state = "well"

    def kill(self) -> None:
        self.engine.cut_off = True
        self.core.loop.detach()
        self.state = "dead"

    def join_again(self) -> None:
        if self.state != "dead":
            self.engine.join_again()


class Weather:
    """The nodes, what the clients were told, and what happens to the nodes."""

    def __init__(self, clock: VirtualClock, seed: int, folder: Path) -> None:
        self.clock, self.seed, self.folder = clock, seed, folder
        self.random = random.Random(seed)
        self.shared = SharedMemory()
        self.lives = self.ids = 0
        self.nodes: dict[str, Life] = {}
        self.published: set[int] = set()
        self.runs: set[str] = set()
        self.commands: set[str] = set()

    def new_id(self) -> str:
        self.ids += 1
        return f"018bcfe5-6800-7000-8000-{self.ids:012x}"

    async def start(self, name: str) -> None:
        life = Life(self, name)
        await life.core.boot()
        self.nodes[name] = life

    async def anywhere(self, work: Callable[[Core], Any]) -> bool:
        """Something a client asks of any node, again elsewhere until somebody says that it is done."""
        for _ in range(200):
            life = self.nodes[self.random.choice(NAMES)]
            if life.state != "dead":
                try:
                    async with asyncio.timeout(8):
                        await work(life.core)
                    return True
                except (MainspringError, Fail, TimeoutError):
                    pass
            await asyncio.sleep(0.3)
        return False

    async def client(self, first: int, count: int) -> None:
        for n in range(first, first + count):
            payload = b'{"n":%d}' % n
            assert await self.anywhere(lambda core: core.bus.publish("orders", payload, id=f"order-{n}"))  # noqa: B023
            self.published.add(n)
            if n % 5 == 0:
                data = {"program": "checkout", "args": [f"o{n}"], "id": f"r{n}"}
                assert await self.anywhere(lambda core: core.kernel.ask("command", "Run.Start", data))  # noqa: B023
                self.runs.add(f"r{n}")
            if n % 4 == 0:
                assert await self.anywhere(lambda core: self._reserve(core, n))  # noqa: B023
                self.commands.add(f"c{n}")
            await asyncio.sleep(self.random.uniform(0, 0.6))

    async def _reserve(self, core: Core, n: int) -> None:
        """The same id every time: it is one command, however often it has to be sent."""
        metadata = Metadata(f"c{n}", self.clock.wall_ms(), timeout=7_000)
        answer = await core.kernel.exchange_request(
            Message("command", "Stock.Reserve", encode_data({"n": n}), metadata)
        )
        if answer.kind != "reply":
            data = msgspec.json.decode(bytes(answer.raw))
            raise Fail(data["code"], data["message"])

    async def trouble(self, name: str, rounds: int) -> None:
        """One node's: the troubles of several nodes overlap."""
        for _ in range(rounds):
            await asyncio.sleep(self.random.uniform(0.2, 6))
            life = self.nodes[name]
            what = self.random.choice(["kill", "cut", "long cut", "stop", "lose", "leave", "outage", "clock"])
            if what == "kill":
                life.kill()
                await asyncio.sleep(self.random.uniform(0, 5))
                await self.start(name)
            elif what == "leave":
                life.state = "dead"
                await life.core.drain()
                await self.start(name)
            elif what == "clock":
                self.clock.shift_wall(self.random.choice([-20_000, -500, 500, 20_000]))
            elif what == "lose":
                life.engine.lose_answers = True
                await asyncio.sleep(self.random.uniform(0.1, 2))
                life.engine.lose_answers = False
            elif what == "outage":
                lives = [each for each in self.nodes.values() if each.state != "dead"]
                for each in lives:
                    each.engine.cut_off = True
                await asyncio.sleep(self.random.uniform(0.1, 12))
                for each in lives:
                    each.join_again()
            else:
                life.engine.cut_off = True
                if what == "stop":
                    life.core.loop.detach()
                await asyncio.sleep(self.random.uniform(0.1, 2) if what == "cut" else 1.5 * LEASE_MS / 1000 + 0.5)
                if what == "stop":
                    life.core.loop.attach()
                life.join_again()

    async def stored(self, topic: str) -> list[Any]:
        return [msgspec.json.decode(event.payload) for event in await self.shared.state.read(topic, 0, 1, 100_000)]


async def story(weather: Weather) -> None:
    for name in NAMES:
        await weather.start(name)
    clients = [asyncio.create_task(weather.client(100 * k, 30)) for k in range(2)]
    await asyncio.gather(*clients, *(weather.trouble(name, 4) for name in NAMES))
    for life in weather.nodes.values():  # an outage may have caught a node whose own trouble was over
        life.join_again()
    await asyncio.sleep(60)

    expected = Counter(weather.published)
    assert Counter(each["n"] for each in await weather.stored("orders")) == expected, (
        "an order was stored twice, or lost"
    )
    assert Counter(each["n"] for each in await weather.stored("bills")) == expected, "a bill was written twice, or not"
    reserved = Counter(f"c{each['n']}" for each in await weather.stored("reserved"))
    assert reserved == Counter(weather.commands), "a command's event is missing or there twice"
    ticks = Counter(each["of"] for each in await weather.stored("ticks"))
    assert max(ticks.values()) == 1, "a tick was handled twice"
    for life in weather.nodes.values():
        core = life.core
        assert core.cluster.trouble == ""
        for id in sorted(weather.runs):
            found = await core.kernel.ask("query", "Run.Outcome", {"id": id})
            assert found.get("value") == "o" + id[1:], (life.name, found)
        count = await core.kernel.ask("query", "Beat.Read", {"path": "/count"})
        assert count["value"] == len(weather.published), life.name
        (partition,) = await core.bus.groups.offsets("orders")
        billing = partition.groups["billing"]
        assert (billing.last_committed, billing.inflight) == (len(weather.published), 0), life.name
    roles = Counter(role for node in weather.nodes["a"].core.cluster.nodes() for role in node.roles)
    assert set(roles.values()) == {1}
    for life in weather.nodes.values():
        await life.core.drain()


SEEDS = range(int(os.environ.get("SIMULATION_SEEDS", "12")))


@pytest.mark.parametrize("seed", SEEDS)
def test_three_nodes_in_bad_weather_do_everything_once(seed: int, tmp_path: Path) -> None:
    clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)

    async def tell() -> None:
        await story(Weather(clock, seed, tmp_path))

    run_virtual(tell(), clock=clock)
