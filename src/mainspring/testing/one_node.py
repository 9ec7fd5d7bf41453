"""`simulate`: the whole program on virtual time, with a log in memory, from a seed.

    async with simulate(app, seed=1) as world:
        await world.send("command", "Order.Place", {"id": "o-1", "total": 3})
        await world.advance("24h")
        await world.crash_and_restart()
        assert world.events("orders").payloads == [...]

It boots the same core that a node boots, without its sockets. Ids, random numbers and time come from the seed, so the
same test does the same every time, byte by byte.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from mainspring.app import App
from mainspring.client import NodeVerbs
from mainspring.log import Batch, MemoryEngine, Result
from mainspring.loop import VirtualClock
from mainspring.message import counted_ids
from mainspring.node import Core
from mainspring.settings import Settings
from mainspring.testing import seeds
from mainspring.testing.driving import LoopDriver, Process
from mainspring.testing.world import World


class MortalEngine:
    """One life's handle of the one engine of a simulation: what a crash leaves behind.

    When the node is killed its handle dies: whatever the old life still tries to write is never stored and never
    answered, as if the process were gone. Reads pass through.
    """

    name = "memory"

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self.alive = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """The engine stays: another life may follow."""

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        if not self.alive:
            await asyncio.get_running_loop().create_future()
        return await self._engine.commit(batches)

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        if self.alive:
            self._engine.submit(batches, done)


class SimulatedNode(Core):
    """A node that listens when a client wants it to, on a Unix socket: what is written there is there at once."""

    async def listen(self, path: str) -> None:
        """Serve WebSocket and HTTP as a node does."""
        from aiohttp import web  # only simulations with a client pay for a web server

        from mainspring.node import web_runner
        from mainspring.server import Connections

        patient = dataclasses.replace(self.settings, header_timeout_ms=_DAY_MS, keep_alive_ms=_DAY_MS)
        connections = Connections(patient)  # virtual time passes while nobody has anything to say
        runner = web_runner(self, self._new_id, connections=connections, heartbeat_ms=_DAY_MS)
        await self._undo_later(runner.setup, runner.cleanup)
        self._site = web.UnixSite(runner, path)
        await self._site.start()

    async def _stop_intake(self) -> None:
        if hasattr(self, "_site"):
            await self._site.stop()


START_MS: Final = 1_767_225_600_000  # 1 January 2026, 00:00 UTC: a date people recognise in a failing test
_DAY_MS: Final = 86_400_000


def simulate(app: App, seed: int | None = None, *, start_ms: int = START_MS, **settings: Any) -> Simulation:
    """Run the app in a simulation, as `async with` or `with`. See the module's text.

    `start_ms` is the time of day at the beginning (epoch ms). `settings` are those of a node, by name.
    """
    return Simulation(app, seed, start_ms, settings)


class Simulation:
    """One simulated node over all its lives."""

    def __init__(self, app: App, seed: int | None, start_ms: int, settings: dict[str, Any]) -> None:
        self.app = app
        self.seed: int = seeds.seed_for(seed)
        self.clock: VirtualClock = VirtualClock(start_ms, wall_ms=start_ms)
        self._given_seed = seed
        self._settings = settings
        self._engine = MemoryEngine()
        self._lives = 0
        self.driver: LoopDriver = LoopDriver(self.clock)
        self._dead: list[Process] = []
        self._clients: Process | None = None

    # -- as a context

    def open(self) -> World:
        """Boot; what `with` does."""
        self._chance = random.getstate()
        random.seed(self.seed)  # a program that calls `random` itself is repeatable, too
        self._folder = tempfile.TemporaryDirectory(prefix="mainspring-")
        self.world: World = World(self)
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self.world

    def close(self) -> None:
        """Stop in order; what leaving the `with` block does."""
        try:
            self.stop()
        finally:
            self._end()

    def _end(self) -> None:
        if self._clients is not None:
            self._clients.close()
        for process in self._dead:
            process.close()
        self._dead.clear()
        self._folder.cleanup()
        random.setstate(self._chance)

    def __enter__(self) -> World:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            seeds.explain(error, self.seed, self._given_seed)
        self.close()

    async def __aenter__(self) -> World:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # -- lives

    def start(self) -> None:
        """Boot a new life on the log of the one before."""
        self._lives += 1
        self.process: Process = Process(self.driver)
        self._handle = MortalEngine(self._engine)
        source = random.Random(f"{self.seed}/{self._lives}")
        try:
            self.process.run(self._boot(source))
        except BaseException:
            self.process.close()
            raise

    async def _boot(self, source: random.Random) -> None:
        self.core: SimulatedNode = SimulatedNode(
            self._node_settings(),
            self.app,
            clock=self.clock,
            engine=self._handle,
            source=source,
            new_id=seeds.Ids(source, self.clock.wall_ms),
            message_ids=counted_ids(f"m{self.seed}.{self._lives}"),
        )
        booting = asyncio.get_running_loop().create_task(self.core.boot())
        await booting
        if self._clients is not None:
            await self.core.listen(self._socket)
        self.core.kernel.observe(self.world.messages.append)
        self.app.node = self._in_process
        self.core.tasks_port.caller = self.process.call

    def _in_process(self) -> NodeVerbs:
        """`app.publish` in a handler is on the node's loop already; in a test the node has to run meanwhile."""
        from mainspring.testing.client import simulated_verbs

        return simulated_verbs(self.core.in_process(), self.process)

    def _node_settings(self) -> Settings:
        """What a node does by the clock, for people to look at, is left out: months must pass quickly."""
        quiet: dict[str, Any] = {
            "engine": "memory",
            "data": self._folder.name,
            "audit": False,
            "metrics_interval_ms": 0,
            "history_interval_ms": 0,
            "ping_interval_ms": _DAY_MS,
            "retention_interval_ms": _DAY_MS,
            "runs_recovery_ms": _DAY_MS,
            "slow_enzyme_ms": 0,
        }
        return Settings(**{**quiet, **self._settings})

    def stop(self) -> None:
        """End a life in order."""
        try:
            self.process.run(self.core.drain())
        finally:
            self.process.close()

    def crash(self, down_ms: int) -> None:
        """End a life at once and begin the next after a while."""
        self._handle.alive = False
        self.core.loop.detach()  # none of its timers may ever fire
        self.process.kill()
        self._dead.append(self.process)
        Path(self._socket).unlink(missing_ok=True)
        self.let_pass(down_ms)
        self.start()

    def let_pass(self, ms: int) -> None:
        """Let time pass for all but the node."""
        until_ns = self.clock.now_ns() + ms * 1_000_000
        while self.clock.now_ns() < until_ns:
            self.driver.step(until_ns)

    # -- clients

    def clients(self) -> tuple[Process, str]:
        """The process of the test's clients, and the path of the socket where the node serves them."""
        if self._clients is None:
            self._clients = Process(self.driver)
            self.process.run(self.core.listen(self._socket))
        return self._clients, self._socket

    @property
    def _socket(self) -> str:
        return f"{self._folder.name}/bus.sock"


__all__ = ["Simulation", "simulate"]
