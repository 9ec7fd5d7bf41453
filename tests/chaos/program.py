"""What the nodes run while things break around them.

Every acknowledgement of `work` writes one event to `done` in its own commit, every effect of a run one to `steps`
together with its answer: so what was committed can be counted afterwards.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from typing import Any

import msgspec

from mainspring import App, Effect, Event, resume
from mainspring.log import Append
from mainspring.loop import MonotonicClock

_WRONG_NS = int(os.environ.get("CHAOS_CLOCK_MS", "0")) * 1_000_000  # this machine's clock is wrong by so much


def _wrong_ns(_: object) -> int:
    return time.time_ns() + _WRONG_NS


def _wrong_ms(_: object) -> int:
    return _wrong_ns(None) // 1_000_000


setattr(MonotonicClock, "wall_ns", _wrong_ns)  # noqa: B010 - as a machine with such a clock would
setattr(MonotonicClock, "wall_ms", _wrong_ms)  # noqa: B010

app = App("chaos")
app.topic("work", partitions=3, max_attempts=1_000)
app.topic("steps")


class Step(Effect[None]):
    run: str
    number: int


@app.handles(Step)
def step(effect: Step, ctx: Any) -> Any:
    payload = msgspec.json.encode({"run": effect.run, "step": effect.number})
    ctx.batch.append(Append("steps", 0, f"{effect.run}/{effect.number}/{ctx.wall_ms()}", ctx.wall_ms(), payload))
    return resume()


@app.consumer("work", group="workers", concurrency=8, max_attempts=1_000)
async def work(event: Event[dict[str, Any]]) -> None:
    await asyncio.sleep(0.005)  # real work takes time, and faults find it half done
    # An id of its own each time: the id an event is given otherwise would hide a second acknowledgement.
    event.publish("done", {"work": event.id}, id=uuid.uuid4().hex)
    if run := event.payload.get("run"):
        event.start_run(job, run, id=run)


@app.run
async def job(name: str, perform: Any) -> str:
    for number in range(3):
        await perform(Step(name, number))
    return f"{name} done"


@app.every("1s")
async def tick(event: Event[Any]) -> None:
    event.publish("ticks", {"offset": event.offset, "at": event.ts}, id=uuid.uuid4().hex)
