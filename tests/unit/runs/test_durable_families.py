"""What people do to durable runs with children: try again, branch off, forget."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mainspring.log import Batch, Log, Put
from mainspring.loop import VirtualClock
from mainspring.runs import Cancelled, Failed, Sleep, Value, WaitSignal
from tests.support.runs import Boom, Hop, World

HOUR = 3_600_000


async def child(n: int, perform: Any) -> int:
    answer: int = await perform(Hop(n))
    return answer


async def joins(perform: Any) -> int:
    first, second = perform.spawn(child, 1), perform.spawn(child, 2)
    total = sum([(await perform.join(first)).value, (await perform.join(second)).value])
    return total + int(await perform(Hop(10)))


async def groups(perform: Any) -> int:
    async with perform.group() as group:
        for n in (1, 2, 3):
            group.spawn(child, n)
    return int(await perform(Hop(10)))


async def outer(perform: Any) -> int:
    async with perform.group() as group:
        group.spawn(groups)
    return int(await perform(Hop(20)))


async def waits(perform: Any) -> str:
    perform.spawn(child, 1)
    await perform(Sleep(hours=100))
    return "rested"


async def told(perform: Any) -> list[Any]:
    return [await perform(WaitSignal("news")) for _ in range(2)]


PROGRAMS = (child, joins, groups, outer, waits, told)


async def booted(log: Log, clock: VirtualClock, **settings: Any) -> World:
    world = World(clock=clock, log=log, **settings)
    for program in PROGRAMS:
        world.runtime.register(program, program.__name__)
    await world.runtime.start_service()
    return world


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(wall_ms=1_000_000)


def numbers(world: World) -> list[int]:
    return [n for _, n in world.hops]


async def test_a_fork_rests_on_the_children_its_answers_rest_on(log: Log, clock: VirtualClock) -> None:
    world = await booted(log, clock)
    for program, done in ((joins, {1: [10], 2: [10], 3: []}), (groups, {1: [10], 2: []})):
        world.runtime.start(program, durable=True, id=program.__name__)
        await world.runtime.settle()
        for at, performed in done.items():
            world.hops.clear()
            clock.move_to(clock.now_ms() + 1)
            fork = await world.runtime.durable.fork(program.__name__, at, f"{program.__name__}-{at}")
            await world.runtime.settle()
            assert fork.outcome_now() == Value(13 if program is joins else 10)
            assert numbers(world) == performed, f"{program.__name__} from {at}"


async def test_a_fork_from_the_beginning_has_children_of_its_own(log: Log, clock: VirtualClock) -> None:
    world = await booted(log, clock)
    world.runtime.start(joins, durable=True, id="a")
    await world.runtime.settle()
    world.hops.clear()
    fork = await world.runtime.durable.fork("a", 0, "b")
    await world.runtime.settle()
    assert fork.outcome_now() == Value(13)
    assert numbers(world) == [1, 2, 10]


@pytest.mark.parametrize("program", [groups, outer])
async def test_a_retry_tries_again_the_child_that_failed_the_run(log: Log, clock: VirtualClock, program: Any) -> None:
    world = await booted(log, clock)
    healthy = world.hop

    def sick(effect: Hop, ctx: Any) -> Any:
        if effect.n == 2:
            raise Boom("not now")
        return healthy(effect, ctx)

    world.runtime.handle(Hop, sick)
    world.runtime.start(program, durable=True, id="a")
    await world.runtime.settle()
    assert isinstance((await world.runtime.durable.find("a")).outcome_now(), Failed)
    world.runtime.handle(Hop, healthy)
    world.hops.clear()
    run = await world.runtime.durable.retry("a")
    await world.runtime.settle()
    assert run.outcome_now() == Value(20 if program is outer else 10)
    assert 2 in numbers(world)
    assert {record.state for record in await world.runtime.durable.store.runs()} == {"done"}


async def test_a_cancelled_run_is_tried_again_with_the_children_it_took_along(log: Log, clock: VirtualClock) -> None:
    world = await booted(log, clock)
    run = world.runtime.start(outer, durable=True, id="a")
    world.runtime.handle(Hop, lambda effect, ctx: ctx.later())
    await world.runtime.settle()
    run.cancel({"why": "a mistake"})
    await world.runtime.settle()
    assert run.outcome_now() == Cancelled({"why": "a mistake"})
    world.runtime.handle(Hop, world.hop)
    again = await world.runtime.durable.retry("a")
    await world.runtime.settle()
    assert again.outcome_now() == Value(20)


async def naps(perform: Any) -> None:
    await perform(Sleep(hours=100))


async def cancels_one(perform: Any) -> None:
    perform.spawn(naps)
    other = perform.spawn(naps)
    await perform(Hop(5))
    other.cancel("enough")
    await perform(Sleep(hours=100))


@pytest.mark.parametrize("by_a_former_version", [False, True])
async def test_a_retry_goes_on_with_the_children_that_the_run_took_along_and_no_others(
    log: Log, clock: VirtualClock, by_a_former_version: bool
) -> None:
    world = await booted(log, clock)
    world.runtime.register(cancels_one, "cancels_one")
    run = world.runtime.start(cancels_one, durable=True, id="a")
    await world.runtime.settle()
    run.cancel("enough")
    await world.runtime.settle()
    records = {each.id: each for each in await world.runtime.durable.store.runs()}
    assert {run_id: each.ended_with for run_id, each in records.items()} == {"a": "", "a~1": "a", "a~2": ""}
    if by_a_former_version:  # it did not say which run took a child along
        for each in records.values():
            each.ended_with = None
            await log.commit(Batch([Put("runs", each.id, msgspec.json.encode(each))]))
    await world.runtime.durable.retry("a")
    await world.runtime.settle()
    retries = {each.id: each.retries for each in await world.runtime.durable.store.runs()}
    assert retries == {"a": 1, "a~1": 1, "a~2": 1 if by_a_former_version else 0}


async def test_a_child_is_remembered_as_long_as_its_parent_may_need_it(log: Log, clock: VirtualClock) -> None:
    first = await booted(log, clock, retention_ms=HOUR, recovery_ms=HOUR // 4)
    first.runtime.start(waits, durable=True, id="a")
    await first.runtime.elapse(3 * HOUR)
    first.runtime.close()
    second = await booted(log, clock, retention_ms=HOUR, recovery_ms=HOUR // 4)
    await second.runtime.elapse(98 * HOUR)
    assert numbers(first) == [1]
    assert numbers(second) == [], "the child's work is not done a second time"
    assert (await second.runtime.durable.find("a")).outcome_now() == Value("rested")
    await second.runtime.elapse(3 * HOUR)
    assert await second.runtime.durable.store.runs() == []


async def test_signals_that_are_sent_at_once_all_arrive(log: Log, clock: VirtualClock) -> None:
    world = await booted(log, clock)
    run = world.runtime.start(told, durable=True, id="a")
    await world.runtime.settle()
    signal = world.runtime.durable.signal
    assert await asyncio.gather(signal("a", "news", 1), signal("a", "news", 2)) == [True, True]
    await world.runtime.settle()
    assert run.outcome_now() == Value([1, 2])
    assert await signal("a", "news", 3) is False


async def test_a_cancellation_is_durable_when_it_is_answered(log: Log, clock: VirtualClock) -> None:
    first = await booted(log, clock)
    first.runtime.start(waits, durable=True, id="a")
    await first.runtime.settle()
    assert await first.runtime.durable.cancel("a", "enough") is True
    first.runtime.close()
    second = await booted(log, clock)
    assert (await second.runtime.durable.find("a")).outcome_now() == Cancelled("enough")
    assert await second.runtime.durable.cancel("a", "again") is False
