"""`Scenario`: a program, what its clients do while things break, and what must be true afterwards.

    class Shop(Scenario):
        def program(self) -> App:
            return shop_app()

        @operation
        async def order(self, client: Client, step: PlannedStep) -> None:
            await client.publish("orders", {"id": step.id}, id=step.id)
            self.placed.add(step.id)

        async def check(self, end: Rest) -> None:
            billed = [event.payload["id"] for event in await end.events("bills")]
            end.require(sorted(billed) == sorted(self.placed), f"billed {billed}")

A new object is made for each run, so what it remembers is of that run.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mainspring.app import App
from mainspring.client import Client
from mainspring.testing.simulation.faults import KINDS, ON_A_DISK, ON_A_SERVER, ON_AN_OUTBOX

if TYPE_CHECKING:
    from mainspring.testing.simulation.runner import Rest

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class PlannedStep:
    """One thing that a run does: an operation of a client, or a fault. `random` is its own, from the seed."""

    number: int
    at_ms: int
    name: str
    is_fault: bool
    client: int = 0
    seed: str = ""

    @property
    def id(self) -> str:
        """Text that no other step of the run has."""
        return f"s{self.number}"

    @property
    def random(self) -> random.Random:
        """The same numbers each time it is asked for."""
        return random.Random(f"{self.seed}/{self.number}")

    def __str__(self) -> str:
        what = f"fault: {self.name}" if self.is_fault else f"client {self.client}: {self.name}"
        return f"{self.number:3d}  {self.at_ms:6d} ms  {what}"


def operation(function: F | None = None, /, *, weight: int = 1) -> Any:
    """Mark what clients do: `async def name(self, client, step)`. One of `weight` 2 is done twice as often."""

    def mark(marked: F) -> F:
        marked.__operation_weight__ = weight  # type: ignore[attr-defined]
        return marked

    return mark if function is None else mark(function)


class Scenario:
    """Derive from this. The class attributes say how large a run is; the seed chooses among them."""

    nodes: ClassVar[Sequence[int]] = (1, 3)  # one node has a disk of its own; several share a log on a server
    clients: ClassVar[int] = 2
    drainers: ClassVar[Sequence[int]] = (0,)  # of the program's outbox, which is in `database`
    operations: ClassVar[int] = 20
    faults: ClassVar[Sequence[int]] = (1, 3, 5, 8)
    kinds: ClassVar[Sequence[str]] = tuple(KINDS)
    seconds: ClassVar[float] = 6.0  # in which steps are taken
    rest_seconds: ClassVar[float] = 240.0  # within which everything must come to rest afterwards
    sqlite: ClassVar[float] = 0.15  # of the runs with one node have the real SQLite engine on their disk
    settings: ClassVar[dict[str, Any]] = {}  # of every node
    database: sqlite3.Connection | None = None  # of the program, with the table of an `Outbox`, if there are drainers

    def program(self) -> App:
        """The app, anew for each life of each node. What it remembers is gone with that life."""
        raise NotImplementedError

    async def start(self, client: Client) -> None:
        """Before anything breaks."""

    async def left_to_do(self, end: Rest) -> str:
        """What is not finished yet, in words, beside what every program has: operations, events of groups, runs.

        No words: nothing. A run that does not come to rest says them.
        """
        return ""

    async def check(self, end: Rest) -> None:
        """When everything has come to rest: say with `end.require` what must be true."""

    # -- the plan of a run

    def node_count(self, seed: int) -> int:
        """How many nodes a run with this seed has."""
        return random.Random(f"{seed}/nodes").choice(self.nodes)

    def drainer_count(self, seed: int) -> int:
        """How many drainers a run with this seed has."""
        return random.Random(f"{seed}/drainers").choice(self.drainers)

    def uses_sqlite(self, seed: int) -> bool:
        """Whether a run of one node has the real SQLite engine on its disk; else one of the simulation's own."""
        return random.Random(f"{seed}/sqlite").random() < self.sqlite

    def plan(self, seed: int) -> list[PlannedStep]:
        """What a run with this seed does, in order: operations, and faults of a few kinds."""
        source = random.Random(f"{seed}/plan")
        weights = {name: getattr(getattr(type(self), name), "__operation_weight__", 0) for name in dir(type(self))}
        names = [name for name, weight in sorted(weights.items()) for _ in range(weight)]
        elsewhere = ON_A_SERVER if self.node_count(seed) == 1 else ON_A_DISK
        absent = {} if self.drainer_count(seed) else ON_AN_OUTBOX
        kinds = [kind for kind in self.kinds if kind not in elsewhere and kind not in absent]
        kinds = source.sample(kinds, min(len(kinds), source.randint(1, 5)))
        wanted = [(source.uniform(0, self.seconds), source.choice(names), False) for _ in range(self.operations)]
        if kinds:
            count = source.choice(self.faults)
            wanted += [(source.uniform(0, self.seconds), source.choice(kinds), True) for _ in range(count)]
        return [
            PlannedStep(number, int(at * 1_000), name, is_fault, source.randrange(self.clients), str(seed))
            for number, (at, name, is_fault) in enumerate(sorted(wanted))
        ]
