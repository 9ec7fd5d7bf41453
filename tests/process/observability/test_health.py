"""/healthz and /readyz tell the truth, each about its own question."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mainspring.cluster import Alone
from mainspring.log import Batch, LogUnavailable, Result
from mainspring.loop import Loop, VirtualClock
from mainspring.server.health import STUCK_MS, NodeParts, readiness, stuck_ms
from tests.support.observability import Running


async def test_a_node_that_works_lives_and_is_ready(running: Running) -> None:
    assert await running.get("/healthz") == (200, '{"status":"ok"}')
    assert await running.get("/readyz") == (200, '{"status":"ready"}')


async def test_a_node_whose_log_cannot_write_lives_and_is_not_ready_until_it_can_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = running.node.log

    def refuse(batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        done([LogUnavailable("the disk is full", remedy="make room") for _ in batches])

    with monkeypatch.context() as patch:
        patch.setattr(log.engine, "submit", refuse)
        status, _ = await running.post("/topics/notes/events", {"payload": 1})
        assert status == 503
        status, text = await running.get("/readyz")
        assert status == 503
        assert "the disk is full" in json.loads(text)["message"]
        assert (await running.get("/healthz"))[0] == 200
        assert "mainspring_log_fault 1.0" in (await running.get("/metrics"))[1]
        assert "mainspring_ready 0.0" in (await running.get("/metrics"))[1]
    status, _ = await running.post("/topics/notes/events", {"payload": 1})
    assert status == 201
    assert (await running.get("/readyz"))[0] == 200


async def test_a_node_that_stops_is_not_ready_from_the_first_moment(running: Running) -> None:
    seen: list[int] = []
    async with running.session.get(running.address + "/readyz") as answer:  # keeps a connection that is served
        seen.append(answer.status)
    stopping = asyncio.ensure_future(running.node.drain())
    await asyncio.sleep(0)
    observed = NodeParts(running.node.bus, draining=lambda: running.node.draining)
    assert readiness(observed).reason == "stopping"
    await stopping
    assert seen == [200]
    assert not readiness(observed).ready


async def test_a_node_whose_loop_no_longer_turns_does_not_live(running: Running) -> None:
    """Nothing drives the loop any more, and something waits for it; the clock of the test is moved, not waited for."""
    clock = VirtualClock()
    loop = Loop(clock)
    observed = NodeParts(running.node.bus, loop=loop)
    loop.post(print, "never")
    assert stuck_ms(observed) == 0
    clock.advance(STUCK_MS - 1)
    assert stuck_ms(observed) == 0
    clock.advance(1)
    assert stuck_ms(observed) == STUCK_MS
    loop.tick()
    assert stuck_ms(observed) == 0


async def test_a_stuck_loop_is_told_over_http(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.server.http.operations.node.stuck_ms", lambda _: 31_000)
    status, text = await running.get("/healthz")
    told: dict[str, Any] = json.loads(text)
    assert (status, told["code"]) == (503, "stuck")
    assert "31000 ms" in told["message"]


async def test_a_node_that_may_have_lost_its_lease_is_not_ready(running: Running) -> None:
    class Silent(Alone):
        trouble = "its lease is not certain"

    observed = NodeParts(running.node.bus, cluster=Silent())
    assert not readiness(observed).ready
    assert "lease" in readiness(observed).reason
