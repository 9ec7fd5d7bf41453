"""Random durable programs, killed at random moments: they end as if nothing had happened.

A process dies between any two turns of its asyncio loop: its log takes nothing any more, and a new runtime begins on
the same engine. Whatever the moments, the outcome, the journal and the exactly-once events must be those of an
undisturbed execution, no signal may be received twice, and every handler must have been asked for every effect at least
once and always with the same key.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.log import Append, Batch, Log, MemoryEngine
from mainspring.loop import VirtualClock
from mainspring.runs import Effect, Runtime, Sleep, Value, WaitSignal, resume

Instruction = tuple[str, Any]


class Ask(Effect[int]):
    n: int


class Slow(Effect[int]):
    n: int


class Write(Effect[int]):
    n: int


async def program(instructions: list[Any], perform: Any) -> list[Any]:
    answers: list[Any] = []
    for kind, given_value in instructions:
        if kind == "ask":
            answers.append(await perform(Ask(given_value)))
        elif kind == "slow":
            answers.append(await perform(Slow(given_value)))
        elif kind == "write":
            answers.append(await perform(Write(given_value)))
        elif kind == "sleep":
            answers.append(await perform(Sleep(ms=given_value)))
        elif kind == "signal":
            answers.append(await perform(WaitSignal("go")))
        else:
            async with perform.group() as group:
                children = [group.spawn(program, each) for each in given_value]
            answers.append([child.outcome_now().value for child in children])
    return answers


class MortalLog(Log):
    """A log whose process can die: from then on nothing is stored and nobody is answered."""

    alive = True

    def submit(self, batch: Batch, callback: Any) -> None:
        if self.alive:
            super().submit(batch, lambda result: callback(result) if self.alive else None)


class World:
    """One engine and one clock; processes come and go."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.clock = VirtualClock(wall_ms=1000)
        self.asked: dict[str, set[int]] = {}
        self.signals = 0

    async def boot(self) -> None:
        self.log = MortalLog(self.engine)
        await self.log.open()
        self.runtime = Runtime(clock=self.clock, log=self.log, recovery_ms=10**9, on_failure=lambda *_: None)
        self.runtime.register(program, "program")
        self.runtime.handle(Ask, self.ask)
        self.runtime.handle(Slow, self.slow)
        self.runtime.handle(Write, self.write)
        await self.runtime.start_service()
        self.run = self.runtime.start(program, self.instructions, durable=True, id="a")

    def ask(self, effect: Any, ctx: Any) -> Any:
        self.asked.setdefault(ctx.key, set()).add(effect.n)
        return resume(effect.n)

    async def slow(self, effect: Any, ctx: Any) -> Any:
        await asyncio.sleep(0)
        return self.ask(effect, ctx)

    def write(self, effect: Any, ctx: Any) -> Any:
        ctx.batch.append(Append("out", 0, ctx.key, ctx.wall_ms(), b"%d" % effect.n))
        return self.ask(effect, ctx)

    async def turn(self) -> None:
        self.runtime.run_until_idle()
        await asyncio.sleep(0)

    async def signal(self) -> None:
        await self.runtime.settle()
        self.signals += 1
        for record in await self.runtime.durable.store.runs(state="running"):
            await self.runtime.durable.signal(record.id, "go", self.signals)

    async def die(self) -> None:
        self.log.alive = False
        self.runtime.close()
        await self.boot()


def expected(instructions: list[Any]) -> list[Any]:
    """What an undisturbed execution returns; signals are only counted."""
    found: list[Any] = []
    for kind, given_value in instructions:
        if kind == "group":
            found.append([expected(each) for each in given_value])
        else:
            found.append({"sleep": None, "signal": "signal"}.get(kind, given_value))
    return found


def without_signals(instructions: list[Any], answers: Any) -> list[Any]:
    found = []
    for (kind, given_value), answer in zip(instructions, answers, strict=True):
        if kind == "group":
            found.append([without_signals(each, part) for each, part in zip(given_value, answer, strict=True)])
        else:
            found.append("signal" if kind == "signal" else answer)
    return found


def received(instructions: list[Any], answers: Any) -> list[list[int]]:
    """The signals each run received, in order."""
    own, of_children = [], []
    for (kind, given_value), answer in zip(instructions, answers, strict=True):
        if kind == "signal":
            own.append(answer)
        elif kind == "group":
            for each, part in zip(given_value, answer, strict=True):
                of_children += received(each, part)
    return [own, *of_children]


def writes(instructions: list[Any], run_id: str = "a") -> list[tuple[str, int]]:
    """The events an undisturbed execution leaves: id and number."""
    found, child = [], 0
    for index, (kind, given_value) in enumerate(instructions):
        if kind == "write":
            found.append((f"{run_id}#{index:08d}", given_value))
        if kind == "group":
            for each in given_value:
                child += 1
                found += writes(each, f"{run_id}~{child}")
    return found


simple = st.one_of(
    st.tuples(st.sampled_from(["ask", "slow", "write"]), st.integers(0, 9)),
    st.tuples(st.just("sleep"), st.sampled_from([0, 10, 100, 1000])),
    st.tuples(st.just("signal"), st.none()),
)
inner = st.lists(simple, max_size=4)
instruction = st.one_of(simple, st.tuples(st.just("group"), st.lists(inner, min_size=1, max_size=3)))
action = st.one_of(
    st.tuples(st.just("turns"), st.integers(1, 6)),
    st.tuples(st.just("elapse"), st.sampled_from([5, 50, 500])),
    st.tuples(st.just("signal"), st.none()),
    st.tuples(st.just("die"), st.none()),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(instruction, max_size=6), st.lists(action, max_size=14))
def test_a_run_ends_as_if_its_processes_had_not_died(
    instructions: list[Instruction], actions: list[tuple[str, Any]]
) -> None:
    asyncio.run(check(instructions, actions))


async def check(instructions: list[Instruction], actions: list[tuple[str, Any]]) -> None:
    world = World()
    world.instructions = [list(each) for each in instructions]
    await world.boot()
    for name, amount in actions:
        if name == "turns":
            for _ in range(amount):
                await world.turn()
        elif name == "elapse":
            await world.runtime.elapse(amount)
        elif name == "signal":
            await world.signal()
        else:
            await world.die()
    for _ in range(40):
        await world.runtime.elapse(1000)
        if world.run.outcome_now() is not None:
            break
        await world.signal()
    await world.runtime.settle()
    outcome = world.run.outcome_now()
    assert isinstance(outcome, Value), outcome
    assert without_signals(world.instructions, outcome.value) == expected(world.instructions)
    for signals in received(world.instructions, outcome.value):
        assert signals == sorted(set(signals)), "in order, none twice"
    events = await world.log.read("out", 0, 1, 1000)
    assert sorted((event.id, int(event.payload)) for event in events) == sorted(writes(world.instructions))
    assert all(len(numbers) == 1 for numbers in world.asked.values()), "a key belongs to one effect"
    journal = await world.runtime.durable.store.journal("a")
    assert all(entry.answered for entry in journal)
    assert len(journal) == len(world.instructions)
    assert [record async for record in world.log.scan("runs/live")] == []
    world.runtime.close()
