"""The beats of a node, without the node."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mainspring.beats import BeatsProgram, BeatsService
from mainspring.log import Append, Batch, Log, MemoryEngine
from mainspring.loop import Loop, MonotonicClock


def counting() -> tuple[BeatsProgram, asyncio.Event]:
    program = BeatsProgram()
    done = asyncio.Event()

    @program.enzyme("/topics/orders", match="prefix")
    def count(signal: str, target: str | None, stage: Any) -> None:
        path = f"/seen/{stage.read(signal)['payload']}"
        stage.write(path, (stage.read(path) or 0) + 1)
        stage.signal("/done")

    @program.enzyme("/done")
    async def finished(signal: str, target: str | None, stage: Any) -> None:
        done.set()

    program.beats_from("orders")
    return program, done


async def publish(log: Log, *payloads: int) -> None:
    events = [Append("orders", 0, f"id-{payload}", 0, json.dumps(payload).encode()) for payload in payloads]
    await log.commit(Batch(list(events)))


async def test_events_of_a_topic_become_beats_once_and_across_restarts() -> None:
    log, loop = Log(MemoryEngine()), Loop(MonotonicClock())
    await log.open()
    loop.attach()
    await publish(log, 1, 2)
    for told in (False, True):
        program, done = counting()
        service = BeatsService(log, loop, program, look_ms=5)
        await service.start()
        await asyncio.wait_for(done.wait(), 30)
        done.clear()
        await publish(log, 3 if told else 4)
        if told:
            service.published("orders")
            service.published("other")
        await asyncio.wait_for(done.wait(), 30)
        await service.stop()
        if not told:
            await publish(log, 5)
    seen = service.heartbeat
    assert seen.paths("/seen") == [f"/seen/{n}" for n in range(1, 6)]
    assert [seen.read(path) for path in seen.paths("/seen")] == [1] * 5
    assert (await seen.areplay()).identical
    loop.detach()
    await log.close()


async def test_without_work_there_are_no_beats() -> None:
    log, loop = Log(MemoryEngine()), Loop(MonotonicClock())
    await log.open()
    loop.attach()
    program, _ = counting()
    service = BeatsService(log, loop, program, look_ms=1)
    await service.start()
    for _ in range(20):
        await asyncio.sleep(0.001)
    service.heartbeat.signal("/later", beat=50)
    await service.stop()
    assert service.heartbeat.next_beat == 1
    again = BeatsService(log, loop)
    await again.heartbeat.open()
    assert again.heartbeat.waiting_later, "what waits is durable after a stop"
    loop.detach()
    await log.close()
