"""What a user of Kafka or NATS expects of a node that could not move for a while: nobody else pays for it.

An `async def` handler that blocks, or a process that was stopped, is not the fault of consumers that acknowledged in
time and of callers whose answers were ready: what has arrived is read before leases and timeouts are judged.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import connect
from mainspring.client import Client
from tests.support.serving import PATIENCE_S, Serving

PROGRAM = """
import asyncio
import time

from mainspring import App, Context

app = App("shop")

@app.command("Node.Block")
async def block(data: float, ctx: Context) -> None:
    time.sleep(data)

@app.query("Stock.Count")
async def count(data: float, ctx: Context) -> int:
    await asyncio.sleep(data)
    return 17
"""
EVENTS = 50
LEASE_MS = 1_000
STALL_S = 2.5

Stall = Callable[[Serving, Client], Awaitable[Any]]


async def blocked(node: Serving, bus: Client) -> None:
    await bus.command("Node.Block", STALL_S)


async def stopped(node: Serving, bus: Client) -> None:
    node.signal(signal.SIGSTOP)
    await asyncio.sleep(STALL_S)
    node.signal(signal.SIGCONT)


def serving(folder: Path) -> Serving:
    (folder / "shop.py").write_text(PROGRAM)
    return Serving("shop:app", folder=folder, engine="sqlite")


@pytest.mark.parametrize("stall", [blocked, stopped])
async def test_events_that_were_acknowledged_in_time_do_not_die_of_a_stall(tmp_path: Path, stall: Stall) -> None:
    with serving(tmp_path) as node:
        async with connect(f"ws://127.0.0.1:{node.port}") as bus, connect(f"ws://127.0.0.1:{node.port}") as other:
            await bus.put_topic("orders", ackTimeoutMs=LEASE_MS, maxAttempts=1)
            await bus.publish_many("orders", range(EVENTS))
            subscription = bus.subscribe("orders", group="billing", from_="beginning", max_inflight=EVENTS)
            events = [await subscription.get(PATIENCE_S) for _ in range(EVENTS)]
            stalling = asyncio.create_task(stall(node, other))
            await asyncio.sleep(0.2)  # as long as the work takes, well within the lease
            for event in events:
                await event.ack()
            await stalling

            async def settled() -> bool:
                (partition,) = (await bus.query("Bus.Offsets", {"topic": "orders"}))["partitions"]
                return bool(partition["groups"]["billing"]["lag"] == 0)

            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if await settled():
                        break
                    await asyncio.sleep(0.02)
            assert (await bus.query("Bus.DeadLetters", {"topic": "orders"}))["letters"] == []
            assert (await bus.query("Bus.Stats"))["redeliveries"] == 0


@pytest.mark.parametrize("stall", [blocked, stopped])
async def test_an_answer_that_was_ready_in_time_is_given_after_a_stall(tmp_path: Path, stall: Stall) -> None:
    with serving(tmp_path) as node:
        async with connect(f"ws://127.0.0.1:{node.port}") as bus, connect(f"ws://127.0.0.1:{node.port}") as other:
            began = time.monotonic()
            asking = asyncio.create_task(bus.query("Stock.Count", 0.5, timeout=1.0))
            await asyncio.sleep(0.1)
            await stall(node, other)
            assert time.monotonic() - began > STALL_S
            assert await asking == 17
