"""Runtimes of several nodes on one shared log in one process, under virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainspring.log import Append, Log, Operation
from mainspring.loop import Clock
from mainspring.runs import Effect, Runtime, Sleep, WaitSignal, resume
from mainspring.runs.durable.records import LIVE, RUNS, RunRecord, decode_record
from tests.support.cluster import LEASE_MS, Member, World, in_virtual_time, wait

__all__ = [
    "LEASE_MS",
    "Hop",
    "Node",
    "Note",
    "Stop",
    "World",
    "add",
    "in_virtual_time",
    "listener",
    "nap",
    "node",
    "nodes",
    "noter",
    "outcomes_of",
    "owner_of",
    "wait",
]


class Hop(Effect[int]):
    """Answered with its own number, and counted."""

    n: int


class Note(Effect[None]):
    """Appends an event together with its answer."""

    n: int


class Stop(Effect[int]):
    """Answered when the test says so."""

    n: int


async def add(count: int, perform: Any) -> int:
    total = 0
    for n in range(count):
        total += await perform(Hop(n))
    return total


async def nap(hours: int, perform: Any) -> str:
    await perform(Hop(1))
    await perform(Sleep(hours=hours))
    await perform(Hop(2))
    return "rested"


async def listener(count: int, perform: Any) -> list[Any]:
    return [await perform(WaitSignal("news")) for _ in range(count)]


async def noter(count: int, perform: Any) -> int:
    for n in range(count):
        await perform(Note(n))
        await perform(Hop(n))
        await perform(Sleep(ms=100))
    return count


PROGRAMS = (add, nap, listener, noter)


class Skewed:
    """A clock whose idea of the date is its own."""

    def __init__(self, clock: Clock, ms: int) -> None:
        self._clock, self._ms = clock, ms

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def wall_ns(self) -> int:
        return self._clock.wall_ns() + self._ms * 1_000_000

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._ms


class Node:
    """One node: its membership, its runtime, and what its handlers were asked."""

    def __init__(self, member: Member, *, skew_ms: int = 0, **settings: Any) -> None:
        self.member = member
        self.log: Log = member.log
        self.engine = member.engine
        self.hops: list[tuple[str, int]] = []
        self.stopped: list[Any] = []
        self.runtime = Runtime(
            clock=Skewed(member.world.clock, skew_ms) if skew_ms else member.world.clock,
            loop=member.loop,
            log=member.log,
            cluster=member.cluster,
            on_failure=lambda error, run_id: None,
            **settings,
        )
        self.durable = self.runtime.durable
        self.runtime.handle(Hop, self._hop)
        self.runtime.handle(Note, self._note)
        self.runtime.handle(Stop, self._stop)

    def _hop(self, effect: Hop, ctx: Any) -> Any:
        self.hops.append((ctx.key, effect.n))
        return resume(effect.n)

    def _note(self, effect: Note, ctx: Any) -> None:
        ctx.batch.append(Append("notes", 0, f"{ctx.key}@{self.member.name}", 0, str(effect.n).encode()))

    def _stop(self, effect: Stop, ctx: Any) -> Any:
        self.stopped.append(ctx.later())
        return self.stopped[-1]

    def start(self, program: Any, *args: Any, id: str) -> Any:
        return self.runtime.start(program, *args, durable=True, id=id)

    def kill(self) -> None:
        self.member.kill()

    def freeze(self) -> None:
        self.member.stop()

    def thaw(self) -> None:
        self.member.go_on()

    async def leave(self) -> None:
        await self.runtime.stop_service()
        await self.member.leave()


async def node(world: World, name: str, programs: tuple[Callable[..., Any], ...] = PROGRAMS, **settings: Any) -> Node:
    made = Node(await world.node(name), **settings)
    for program in programs:
        made.runtime.register(program, program.__name__)
    await made.runtime.start_service()
    return made


async def nodes(world: World, *names: str, **settings: Any) -> list[Node]:
    made = [await node(world, name, **settings) for name in names]
    await wait(10)
    return made


async def owner_of(world: World, run_id: str) -> str | None:
    """The node that the log names as the run's owner."""
    found = await world.shared.state.get(LIVE, run_id)
    return None if found is None else decode_record(found.value).owner


async def outcomes_of(world: World) -> dict[str, RunRecord]:
    """Every finished run; and no run is both finished and not."""
    finished = {record.key: decode_record(record.value) async for record in world.shared.state.scan(RUNS)}
    unfinished = [record.key async for record in world.shared.state.scan(LIVE)]
    assert not finished.keys() & set(unfinished)
    return finished


def about_runs(operation: Operation) -> bool:
    return getattr(operation, "space", "").startswith(("runs", "journal"))
