"""Unfinished runs go with their log: from one node's own to one that several share, and back."""

from __future__ import annotations

from typing import Any

from mainspring.log import Append, Log, MemoryEngine
from mainspring.runs import Runtime, Sleep, Value, WaitSignal
from tests.support.cluster import Member
from tests.support.shared_runs import LEASE_MS, Node, Note, World, in_virtual_time, wait

DAY = 24 * 3_600_000


async def patient(perform: Any) -> list[Any]:
    heard = [await perform(WaitSignal("news", timeout="1d")) for _ in range(2)]
    await perform(Sleep(minutes=1))
    await perform(Note(1))
    return heard


async def on_its_own(engine: MemoryEngine, world: World, member: Member) -> Runtime:
    log = Log(engine)
    await log.open()
    runtime = Runtime(clock=world.clock, loop=member.loop, log=log)
    runtime.handle(Note, lambda effect, ctx: ctx.batch.append(Append("notes", 0, ctx.key, 0, b"1")))
    runtime.register(patient, "patient")
    await runtime.start_service()
    return runtime


async def shared_by(world: World, *names: str) -> list[Node]:
    made = [Node(await world.node(name)) for name in names]
    for each in made:
        each.runtime.register(patient, "patient")
        await each.runtime.start_service()
    await wait(10)
    return made


@in_virtual_time
async def test_a_run_begun_alone_goes_on_among_several_nodes(world: World) -> None:
    driver = Member(world, "driver")
    driver.loop.attach()
    runtime = await on_its_own(world.shared.state, world, driver)
    runtime.start(patient, durable=True, id="run")
    await wait(100)
    await runtime.stop_service()
    a, b = await shared_by(world, "a", "b")
    assert await a.durable.signal("run", "news", 1)
    await wait(10)
    assert await b.durable.signal("run", "news", 2)
    await wait(120_000)
    assert (await b.durable.find("run")).outcome_now() == Value([1, 2])
    assert len(await b.log.read("notes", 0, 1, 10)) == 1


@in_virtual_time
async def test_a_run_of_several_nodes_goes_on_alone(world: World) -> None:
    a, b = await shared_by(world, "a", "b")
    a.start(patient, id="run")
    await wait(10)
    assert await b.durable.signal("run", "news", 1)
    await wait(10)
    for each in (a, b):
        await each.leave()
    driver = Member(World(world.clock), "driver")
    driver.loop.attach()
    runtime = await on_its_own(world.shared.state, world, driver)
    await wait(LEASE_MS)
    assert await runtime.durable.signal("run", "news", 2)
    await wait(120_000)
    assert (await runtime.durable.find("run")).outcome_now() == Value([1, 2])
    journal = (await runtime.durable.history("run")).journal
    assert [entry.effect for entry in journal] == ["WaitSignal", "WaitSignal", "Sleep", "Note"]
