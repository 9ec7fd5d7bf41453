"""`outcome` waits, as `handle.result()` of Temporal does: for ever unless it is given a timeout, which then holds.

The node may be slow, away, or without its log for a while. The verb is the same in a program, a client and SyncClient.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from mainspring.client import NodeVerbs, Place, RunInfo, TimedOut, connect
from mainspring.errors import Fail
from mainspring.loop import VirtualClock
from mainspring.runs import Value
from tests.support.scripted_node import ScriptedNode, virtually


class _SlowNode(NodeVerbs):
    """Answers a question only after some have failed with these codes."""

    run_check = 1.0

    def __init__(self, clock: VirtualClock, *codes: int) -> None:
        self.clock = clock
        self.codes = list(codes)

    async def _ask(
        self, kind: str, type: str, data: Any, timeout: Any, reply: Any, id: Any = None, retry: Any = None
    ) -> Any:
        if not self.codes:
            return RunInfo(id=data["id"], program="p", state="done", created=0, updated=0, value=7)
        code = self.codes.pop(0)
        if code == 504:
            await asyncio.sleep(timeout)
        raise Fail(code, "Request timed out" if code == 504 else "refused")

    async def insist(self, work: Callable[[], Awaitable[Any]]) -> Any:
        return await work()

    async def publish(self, topic: str, payload: Any, **options: Any) -> Place:
        raise NotImplementedError

    def follow(self, topic: str, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def test_a_slow_answer_and_a_log_that_is_away_are_waited_for() -> None:
    async def main(clock: VirtualClock) -> None:
        node = _SlowNode(clock, 504, 503, 504, 504)
        assert await node.outcome("r") == Value(7)
        assert clock.now_ms() > 90_000

    virtually(main)


def test_a_run_that_is_not_there_is_an_error_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        with pytest.raises(Fail, match="refused"):
            await _SlowNode(clock, 404).outcome("r")

    virtually(main)


@pytest.mark.parametrize("timeout", [0, 0.2, 5, 45])
def test_a_timeout_holds_however_slow_the_node_is(timeout: float) -> None:
    async def main(clock: VirtualClock) -> None:
        begun = clock.now_ms()
        with pytest.raises(TimedOut, match="did not say in time how run r stands"):
            await _SlowNode(clock, *[504] * 100).outcome("r", timeout=timeout)
        assert clock.now_ms() - begun <= max(timeout, 1) * 1000 + 1

    virtually(main)


def test_a_timeout_holds_while_the_node_is_away() -> None:
    async def main(clock: VirtualClock) -> None:
        node = ScriptedNode()
        await node.start()
        async with connect(node.url, clock=clock, stall_check=0) as bus:
            await node.vanish()
            begun = clock.now_ms()
            with pytest.raises(TimedOut):
                await bus.outcome("r", timeout=20)
            assert clock.now_ms() - begun <= 21_000

    virtually(main)
