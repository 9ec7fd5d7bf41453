"""Whole nodes with different programs on one log in one process, under virtual time: an upgrade as a story."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mainspring import App
from mainspring.log import SharedMemory, SharedMemoryEngine
from mainspring.loop import VirtualClock, run_virtual
from mainspring.message import counted_ids
from mainspring.node.core import Core
from mainspring.settings import Settings

LEASE_MS = 3_000


class Upgraded:
    """One life of one node, with one program."""

    def __init__(self, site: Site, name: str, program: App | None) -> None:
        self.name, self.site = name, site
        self.engine: SharedMemoryEngine = site.shared.engine()
        site.lives += 1
        self.core = Core(
            Settings(
                engine="memory",
                data=str(site.folder / name),
                node=name,
                node_lease_ms=LEASE_MS,
                audit=False,
                metrics_interval_ms=0,
                slow_enzyme_ms=0,
                runs_recovery_ms=1_000,
                drain_ms=2_000,
            ),
            program,
            clock=site.clock,
            engine=self.engine,
            source=random.Random(site.lives),
            new_id=site.new_id,
            message_ids=counted_ids(f"{name}{site.lives}."),
        )

    async def ask(self, kind: str, type: str, data: Any) -> Any:
        return await self.core.kernel.ask(kind, type, data, timeout=5)

    async def publish(self, topic: str, payload: Any) -> None:
        """As a client of this node does."""
        await self.core.bus.publish(topic, msgspec.json.encode(payload))

    async def stop(self) -> None:
        await self.core.drain()

    def kill(self) -> None:
        """The process is gone: it writes nothing, hears nothing and turns no more."""
        self.engine.cut_off = True
        self.core.loop.detach()

    @property
    def schedules(self) -> dict[str, str | int | None]:
        """What fires, by the names the program gave, and when."""
        found = self.core.bus.schedules.all()
        return {each.name.rpartition("/")[2]: each.every or each.cron for each in found}


class Site:
    """The log, and whoever is started on it."""

    def __init__(self, clock: VirtualClock, folder: Path) -> None:
        self.clock, self.folder = clock, folder
        self.shared = SharedMemory()
        self.lives = self.ids = 0

    def new_id(self) -> str:
        self.ids += 1
        return f"018bcfe5-6800-7000-8000-{self.ids:012x}"

    async def start(self, name: str, program: App | None) -> Upgraded:
        node = Upgraded(self, name, program)
        await node.core.boot()
        await wait(100)
        return node

    async def stored(self, topic: str) -> list[Any]:
        return [msgspec.json.decode(event.payload) for event in await self.shared.state.read(topic, 0, 1, 100_000)]


async def wait(ms: float) -> None:
    await asyncio.sleep(ms / 1000)


def story(test: Callable[..., Any]) -> Callable[..., None]:
    """Make a plain test of a coroutine that takes a Site (and fixtures)."""

    @functools.wraps(test)
    def run(tmp_path: Path, **fixtures: Any) -> None:
        clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)

        async def tell() -> None:
            await test(Site(clock, tmp_path), **fixtures)

        run_virtual(tell(), clock=clock)

    parameters = list(inspect.signature(test).parameters.values())[1:]
    place = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([place, *parameters])  # type: ignore[attr-defined]
    del run.__wrapped__
    return run
