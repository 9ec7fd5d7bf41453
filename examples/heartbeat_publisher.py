"""A process that says every three seconds that it lives.

    mainspring serve
    python examples/heartbeat_publisher.py [NAME]

Each heartbeat is an event of `heartbeat.received` with the key `proc:<pid>`, so that those of one process stay in
order. Start several; `heartbeat_monitor.py` shows them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from mainspring.client import connect

TOPIC = "heartbeat.received"
EVERY_S = float(os.environ.get("HEARTBEAT_EVERY_S", "3"))


async def main() -> None:
    pid, name = os.getpid(), sys.argv[1] if len(sys.argv) > 1 else "example"
    async with connect() as bus:
        while True:
            offset = await bus.publish(
                TOPIC, {"pid": pid, "name": name, "ts": round(time.time() * 1000)}, key=f"proc:{pid}"
            )
            print(f"heartbeat {offset} of {name} ({pid})", flush=True)
            await asyncio.sleep(EVERY_S)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("stopped")
