"""Running a scenario with a seed.

A run boots the machines, lets the clients take their steps while faults strike, ends all faults, waits until everything
has come to rest, and compares what was promised with what is there. Nothing of it depends on the machine it runs on:
the same seed and the same choice of steps give the same run, byte by byte.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from mainspring.app import App, HandlerCall, Next
from mainspring.client import Client
from mainspring.errors import Fail, MainspringError
from mainspring.testing.simulation.disk import Disk, LogServer, SqliteDisk
from mainspring.testing.simulation.drainers import DrainerMachine, OutboxDatabase
from mainspring.testing.simulation.faults import KINDS
from mainspring.testing.simulation.ledger import Ledger
from mainspring.testing.simulation.machines import NodeMachine, System, SystemNode
from mainspring.testing.simulation.processes import START_MS, SimulatedProcess
from mainspring.testing.simulation.scenario import PlannedStep, Scenario
from mainspring.testing.world import SeenEvent, stored_events

T = TypeVar("T")

LOOK_MS: Final = 250  # between two looks whether everything has come to rest
BOOT_MS: Final = 60_000
CALL_MS: Final = 60_000


@dataclass
class SeedResult:
    """What one run came to. `broken` are promises that were not kept; `digest` is of everything that happened."""

    seed: int
    broken: list[str]
    steps: list[PlannedStep]
    met: Counter[str]
    trace: list[str]
    digest: str


def run(scenario: type[Scenario], seed: int, steps: Sequence[int] | None = None) -> SeedResult:
    """One run; with `steps`, only these of its plan."""
    with _quiet():
        return _run(scenario, seed, steps)


def _run(scenario: type[Scenario], seed: int, steps: Sequence[int] | None) -> SeedResult:
    """Nothing of the run is referred to when this returns: it is garbage that can be collected."""
    running = ScenarioRun(scenario(), seed, steps)
    try:
        running.go()
    finally:
        running.system.close()
    return running.result()


class ScenarioRun:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, seed: int, chosen: Sequence[int] | None) -> None:
        self.scenario = scenario
        self.seed = seed
        planned = scenario.plan(seed)
        self.steps: list[PlannedStep] = [step for step in planned if chosen is None or step.number in chosen]
        self.system: System = System(str(seed), self._program, **scenario.settings)
        self.ledger: Ledger = self.system.ledger
        self._doing: list[asyncio.Task[None]] = []
        self._clients: list[Client] = []
        self._add_machines(scenario.node_count(seed))
        self.database: OutboxDatabase | None = None
        if count := scenario.drainer_count(seed):
            self.database = database = OutboxDatabase(self.system.folder)
            scenario.database = database.connection
            self.system.drainers += [
                DrainerMachine(self.system, f"drainer-{number + 1}", database) for number in range(count)
            ]

    def _add_machines(self, count: int) -> None:
        system, seed = self.system, self.seed
        if count == 1:
            system.add("node-1", self._disk())
            return
        server = LogServer(system.timeline, system.network, f"{seed}/server", system.met)
        for number in range(count):
            system.add(f"node-{number + 1}", server)

    def _disk(self) -> Disk:
        """Mostly a simulated one; for some seeds the real engine on a file."""
        system, seed = self.system, f"{self.seed}/disk"
        if self.scenario.uses_sqlite(self.seed):
            return SqliteDisk(system.timeline, seed, system.met, system.folder)
        return Disk(system.timeline, seed, system.met)

    def _program(self, life: str) -> App:
        """The scenario's app; every call of a consumer is written down."""
        app, ledger, note = self.scenario.program(), self.ledger, self.system.note
        most = {each.group: each.retries.max_attempts for each in app.consumers}

        @app.middleware
        async def observe(call: HandlerCall, next: Next) -> Any:
            if call.kind != "consumer":
                return await next(call)
            events = call.value if isinstance(call.value, list) else [call.value]
            for event in events:
                place = (event.topic, event.partition, event.offset)
                ledger.deliver(call.name, place, event.id, event.attempt, most.get(call.name) or 0)
                note(f"{life}: {call.name} is given {place} attempt {event.attempt}")
            first = events[0]
            with ledger.handling(life, call.name, (first.topic, first.partition, first.offset)):
                return await next(call)

        return app

    # -- the run

    def go(self) -> None:
        system, timeline = self.system, self.system.timeline
        for machine in system.machines:
            machine.boot()
        for number in range(self.scenario.clients):
            self._clients.append(system.client(f"client-{number + 1}"))
        if not timeline.run(lambda: all(machine.is_ready for machine in system.machines), BOOT_MS):
            self.ledger.breaks(f"the nodes did not boot: {system.trace[-3:]}")
            return
        for drainer in system.drainers:
            drainer.boot()
        for process, client in zip(system.clients, self._clients, strict=True):
            self._call(process, client.__aenter__())
        self._call(system.clients[0], self.scenario.start(self._clients[0]))
        for step in self.steps:
            timeline.after(step.at_ms, lambda step=step: self._take(step))  # type: ignore[misc]
        timeline.pass_ms(self.scenario.seconds * 1_000)
        system.heal()
        system.note("the faults are over")
        if self._comes_to_rest():
            end = Rest(self)
            self._call(self._process(), self._compare(end))
            self._call(self._process(), self.scenario.check(end))

    def _take(self, step: PlannedStep) -> None:
        if not step.is_fault:
            process, client = self.system.clients[step.client], self._clients[step.client]
            self._doing.append(process.spawn(self._operate(step, client)))
            return
        done = KINDS[step.name](self.system, step.random)
        if done:
            self.system.met[step.name] += 1
            self.system.note(f"fault {step.number}: {done}")

    async def _operate(self, step: PlannedStep, client: Client) -> None:
        note = self.system.note
        note(f"step {step.number}: client {step.client} begins {step.name}")
        try:
            await getattr(self.scenario, step.name)(client, step)
        except (MainspringError, Fail, TimeoutError) as error:
            note(f"step {step.number}: {type(error).__name__}: {error}")
        except Exception as error:
            self.ledger.breaks(f"{step.name} raised {type(error).__name__}: {error}")
        else:
            note(f"step {step.number}: done")

    # -- the end

    def _comes_to_rest(self) -> bool:
        limit_ms = self.system.timeline.now_ms + self.scenario.rest_seconds * 1_000
        while True:
            left = self._left()
            if not left:
                return True
            if self.system.timeline.now_ms > limit_ms:
                self.ledger.breaks(f"within {self.scenario.rest_seconds:g} s after the last fault, still: {left}")
                return False
            self.system.timeline.pass_ms(LOOK_MS)

    def _left(self) -> str:
        """What is left to do, in words."""
        machines = self.system.machines
        if not all(machine.is_ready for machine in machines):
            return "a node is not ready"
        if undone := [step for step, task in zip(self._operations(), self._doing, strict=True) if not task.done()]:
            return f"step {undone[0].number} ({undone[0].name}) is not done"
        if self.database is not None and (waiting := self.database.waiting()):
            return f"{waiting} rows of the outbox wait"
        for machine in machines:
            assert machine.process is not None
            assert machine.node is not None
            if left := self._call(machine.process, _left_at(machine.node)):
                return f"{machine.name}: {left}"
        return self._call(self._process(), self.scenario.left_to_do(Rest(self))) or ""

    def _operations(self) -> list[PlannedStep]:
        return [step for step in self.steps if not step.is_fault]

    def _process(self) -> SimulatedProcess:
        process = self.system.machines[0].process
        assert process is not None
        return process

    async def _compare(self, end: Rest) -> None:
        """What is promised to every program."""
        log = end.nodes[0].log
        for topic in await log.topics():
            views = {node.settings.node: await stored_events(node.log, topic) for node in end.nodes}
            heads = {bounds.partition: bounds.head for bounds in await log.bounds(topic)}
            found = end.nodes[0].bus.topics.find(topic)
            compacted = found is not None and found.config.compact
            self.ledger.compare(topic, views, heads, end.damaged, gaps=compacted)

    def _call(self, process: SimulatedProcess, work: Coroutine[Any, Any, T]) -> T | None:
        """Have this done in a process, while time passes."""
        task = process.spawn(work)
        if not self.system.timeline.run(task.done, CALL_MS):
            self.ledger.breaks(f"{getattr(work, '__qualname__', work)} did not end")
            return None
        try:
            return task.result()
        except Exception as error:
            self.ledger.breaks(f"{getattr(work, '__qualname__', work)} raised {type(error).__name__}: {error}")
            return None

    def result(self) -> SeedResult:
        system = self.system
        system.note(f"{system.timeline.turns} turns, {system.network.checksum}")
        broken = [*self.ledger.broken, *system.timeline.troubles]
        digest = hashlib.sha256("\n".join([*system.trace, *broken]).encode()).hexdigest()
        return SeedResult(self.seed, broken, self.steps, system.met, system.trace, digest)


async def _left_at(node: SystemNode) -> str:
    for info in node.bus.groups.infos():
        lag = sum(each.lag for each in info.partitions.values())
        if lag and not info.topic.startswith("schedules."):
            return f"group {info.group!r} of {info.topic!r} has {lag} events to settle"
    for record in await node.runtime.durable.store.runs():
        if record.state in ("running", "blocked"):
            return f"run {record.id} is {record.state}"
    return ""


class Rest:
    """The system when everything has come to rest, as `Scenario.check` sees it."""

    def __init__(self, run: ScenarioRun) -> None:
        self._run = run
        self.faults: frozenset[str] = frozenset(step.name for step in run.steps if step.is_fault)

    @property
    def machines(self) -> list[NodeMachine]:
        """The machines that nodes run on, over all their lives."""
        return self._run.system.machines

    @property
    def nodes(self) -> list[SystemNode]:
        """The nodes as they are now, for what this face does not offer."""
        return [machine.node for machine in self.machines if machine.node is not None]

    @property
    def began_ms(self) -> int:
        """The time of day when the run began: epoch ms."""
        return START_MS

    @property
    def damaged(self) -> set[tuple[str, int, int]]:
        """Events whose bytes rotted: topic, partition and offset."""
        return {place for machine in self.machines for place in getattr(machine.storage, "damaged", ())}

    def require(self, kept: object, promise: str) -> None:
        """Unless it was kept, the run fails with this promise."""
        if not kept:
            self._run.ledger.breaks(promise)

    async def events(self, topic: str) -> list[SeenEvent]:
        """The stored events of a topic, by partition and offset."""
        return await stored_events(self.nodes[0].log, topic)


@contextmanager
def _quiet() -> Iterator[None]:
    """What nodes log about faults is no news here. Garbage is collected once, when the run is over."""
    disabled, numbers = logging.root.manager.disable, random.getstate()
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        gc.enable()
        random.setstate(numbers)
        logging.disable(disabled)
