"""Shows which processes live, from their heartbeats.

    mainspring serve
    python examples/heartbeat_monitor.py

It consumes `heartbeat.received` in the group `monitor`, from now on, and reports a process that missed three
heartbeats. Several monitors share the work; start a second one with another group to see everything twice.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TypedDict

from mainspring.client import Event, connect

TOPIC = "heartbeat.received"
EVERY_S = float(os.environ.get("HEARTBEAT_EVERY_S", "3"))


class Heartbeat(TypedDict):
    pid: int
    name: str
    ts: int


async def main() -> None:
    seen: dict[int, tuple[str, float]] = {}

    async def note(event: Event[Heartbeat]) -> None:
        beat = event.payload
        if beat["pid"] not in seen:
            print(f"{beat['name']} ({beat['pid']}) lives", flush=True)
        seen[beat["pid"]] = (beat["name"], time.monotonic())

    async with connect() as bus:
        consumer = bus.consume(TOPIC, note, group="monitor", from_="latest", max_inflight=32, type=Heartbeat)
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                for pid, (name, last) in list(seen.items()):
                    if time.monotonic() - last > 3 * EVERY_S:
                        print(f"{name} ({pid}) is silent", flush=True)
                        del seen[pid]
        finally:
            await consumer.stop()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("stopped")
