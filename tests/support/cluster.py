"""Several nodes on one log in one process, under virtual time: each can be cut off, killed, stopped and started."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

from mainspring.cluster import About, Membership
from mainspring.errors import MainspringError
from mainspring.log import Batch, Log, SharedMemory, SharedMemoryEngine
from mainspring.loop import Loop, VirtualClock, run_virtual

LEASE_MS = 9_000
_ids = itertools.count(1)


class Member:
    """One node's membership, and what its parts heard."""

    def __init__(self, world: World, name: str, **options: Any) -> None:
        self.world, self.name = world, name
        self.engine: SharedMemoryEngine = world.shared.engine()
        self.log = Log(self.engine)
        self.loop = Loop(world.clock)
        self.deaths: list[int] = []
        self.fenced: list[int] = []
        self.roles: list[tuple[str, bool]] = []
        self.about = About()
        options = {"lease_ms": LEASE_MS, **options}
        self.cluster = Membership(
            self.log,
            self.loop,
            node=name,
            new_id=lambda: f"id-{next(_ids)}",
            about=lambda: self.about,
            **options,
        )
        self.cluster.on_death(self.deaths.append)
        self.cluster.on_fenced(self.fenced.append)

    async def start(self) -> Member:
        self.loop.attach()
        await self.log.open()
        await self.cluster.join()
        return self

    async def leave(self) -> None:
        await self.cluster.leave()
        await self.log.close()
        self.loop.detach()

    def kill(self) -> None:
        """The process is gone: it writes nothing, hears nothing and turns no more."""
        self.engine.cut_off = True
        self.loop.detach()
        self.ending = asyncio.get_running_loop().create_task(self.cluster._tasks.cancel())

    def stop(self) -> None:
        """As SIGSTOP does: nothing runs, and what was sent is waiting."""
        self.engine.cut_off = True
        self.loop.detach()

    def go_on(self) -> None:
        """As SIGCONT does. Timers that are due come before the news, as the worst case."""
        self.loop.attach()
        asyncio.get_running_loop().call_later(0.001, self.engine.join_again)

    def want(self, role: str) -> Any:
        wanted = self.cluster.role(role)
        wanted.on_change(lambda held: self.roles.append((role, held)))
        return wanted

    async def write(self, value: str = "x", guard: Any = None) -> bool:
        """Store something under the guard; whether the log let it happen."""
        batch = Batch()
        (guard or self.cluster).guard(batch)
        batch.put("test", "place", value.encode())
        try:
            await self.log.commit(batch)
        except MainspringError:
            return False
        return True


class World:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.shared = SharedMemory()
        self.members: list[Member] = []

    async def node(self, name: str, **options: Any) -> Member:
        member = Member(self, name, **options)
        self.members.append(member)
        return await member.start()

    async def nodes(self, *names: str) -> list[Member]:
        return [await self.node(name) for name in names]


async def wait(ms: float) -> None:
    await asyncio.sleep(ms / 1000)


def in_virtual_time(test: Callable[..., Any]) -> Callable[..., None]:
    """Make a plain test of a coroutine that takes a World (and fixtures)."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        clock = VirtualClock(1_000, wall_ms=1_700_000_000_000)

        async def story() -> None:
            await test(World(clock), *arguments, **fixtures)

        run_virtual(story(), clock=clock)

    parameters = list(inspect.signature(test).parameters.values())[1:]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
