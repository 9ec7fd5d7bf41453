"""`mainspring top` looks into every part."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.cli.node.top import Sample, _inside, report, take
from mainspring.cli.support.node_options import NodeOptions
from mainspring.loop import MonotonicClock, VirtualClock
from tests.support.metrics import busy
from tests.support.observability import Running


async def test_it_says_of_each_part_what_it_does_what_waits_and_what_failed(running: Running) -> None:
    before = await look(running)
    await busy(running)
    told = report(await look(running), before)
    parts = {each["part"]: each for each in told["parts"]}
    assert list(parts) == ["loop", "log", "kernel", "runs", "beats"]
    assert all(each["perSecond"] > 0 for each in parts.values())
    assert parts["kernel"]["failed"] == 1
    assert parts["beats"]["failed"] == 1
    assert parts["runs"]["failed"] == parts["loop"]["failed"] == 0
    assert told["ready"]
    assert told["version"]
    assert _inside(told["parts"]) is not None


async def test_a_node_that_was_restarted_has_no_rate_until_the_next_look(running: Running) -> None:
    await busy(running)
    late = await look(running)
    clock = VirtualClock(late.at_ms + 1_000)
    young = Sample(clock.now_ms(), 0, "", True, late.stats, {}, [], {}, dict.fromkeys(late.sums, 0.0))
    assert {each["perSecond"] for each in report(young, late)["parts"]} == {None}


async def look(running: Running) -> Sample:
    def ask() -> Any:
        with NodeOptions(running.address).connect() as connection:
            return take(connection, MonotonicClock())

    found: Sample = await asyncio.to_thread(ask)
    return found
