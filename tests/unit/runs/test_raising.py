"""The contract of an App in a bare runtime: failures are raised in programs, with and without a journal."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from mainspring.log import Log, MemoryEngine
from mainspring.loop import VirtualClock
from mainspring.runs import (
    ChildFailed,
    Effect,
    EffectFailed,
    Failed,
    Join,
    Runtime,
    Sleep,
    Spawn,
    Value,
    WaitEvent,
    WaitSignal,
)
from mainspring.runs.effects import Ask, journal_arguments


class Odd(Effect[int]):
    n: int


def answer(effect: Odd, ctx: Any) -> Any:
    if effect.n < 0:
        raise ValueError(f"{effect.n} is negative")
    return effect.n or ctx.later()


async def child(n: int, perform: Any) -> int:
    return int(await perform(Odd(n)))


async def tries(perform: Any) -> list[Any]:
    seen: list[Any] = []
    try:
        await perform(Odd(-1))
    except EffectFailed as error:
        seen.append(str(error))
    try:
        async with perform.group() as group:
            group.spawn(child, -2)
            await perform(Odd(0))  # has no answer, so the child interrupts it
    except ChildFailed as error:
        seen.append((error.type, error.message))
    try:
        async with perform.group() as group:
            group.spawn(child, -3)
            for _ in range(10):
                await perform(Odd(7))
    except ChildFailed as error:
        seen.append((error.type, error.message))
    return seen


SEEN = ["Odd failed: ValueError: -1 is negative", ("ValueError", "-2 is negative"), ("ValueError", "-3 is negative")]


async def test_failures_are_raised_without_a_journal() -> None:
    runtime = Runtime(clock=VirtualClock(), contract="app")
    runtime.handle(Odd, answer)
    run = runtime.start(tries)
    runtime.run_until_idle()
    assert run.outcome_now() == Value(SEEN)


async def test_failures_are_raised_with_a_journal_and_again_on_replay() -> None:
    log = Log(MemoryEngine())
    await log.open()
    for _ in range(2):
        runtime = Runtime(clock=VirtualClock(), contract="app", log=log)
        runtime.handle(Odd, answer)
        runtime.register(tries, "tries")
        await runtime.start_service()
        run = runtime.start(tries, durable=True, id="a")
        await runtime.settle()
        value: Any = run.outcome_now()
        assert [tuple(each) if isinstance(each, list) else each for each in value.value] == SEEN
        await runtime.stop_service()
    await log.close()


async def test_the_strict_contract_ends_the_run() -> None:
    runtime = Runtime(clock=VirtualClock())
    runtime.handle(Odd, answer)
    run = runtime.start(tries)
    runtime.run_until_idle()
    outcome = run.outcome_now()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ValueError)


@pytest.mark.parametrize(
    ("effect", "journaled"),
    [
        (WaitSignal("paid"), '{"name":"paid","timeout_ms":null}'),
        (WaitSignal("paid", timeout="1h"), '{"name":"paid","timeout_ms":3600000}'),
        (WaitEvent("t", {"a": 1}, timeout=2), '{"topic":"t","filter":{"a":1},"timeout_ms":2000}'),
        (Ask("A.B", {"x": 1}, timeout=0.5), '{"type":"A.B","data":{"x":1},"kind":"command","timeout_ms":500}'),
    ],
)
def test_effects_with_durations_are_journaled_as_before(effect: Effect[Any], journaled: str) -> None:
    assert journal_arguments(effect).decode() == journaled


async def test_a_durable_program_in_generator_form_spawns_children() -> None:
    log = Log(MemoryEngine())
    await log.open()
    runtime = Runtime(clock=VirtualClock(), log=log)
    runtime.handle(Odd, answer)

    def owner() -> Any:
        yield Odd(1)
        run = yield Spawn(child, (5,))
        outcome = yield Join(run)
        return outcome.value

    run = runtime.start(owner, durable=True, id="a")
    await runtime.settle()
    assert run.outcome_now() == Value(5)
    await log.close()


@pytest.mark.parametrize(
    ("sleep", "ms"),
    [
        (Sleep(5), 5_000),
        (Sleep(0.25), 250),
        (Sleep("1h30m"), 5_400_000),
        (Sleep(timedelta(days=2)), 172_800_000),
        (Sleep(ms=5), 5),
        (Sleep("1s", ms=5, minutes=1), 61_005),
        (Sleep(-1), 0),
        (Sleep(math.nan), 0),
        (Sleep(timedelta(seconds=-1)), 0),
    ],
)
def test_a_sleep_takes_seconds_a_timedelta_or_text(sleep: Sleep, ms: int) -> None:
    assert sleep.total_ms == ms
    assert journal_arguments(sleep) == b'{"ms":%d}' % ms
