"""A consumer with an inbox, as a process: `python consumer.py URL TOPIC FILE CRASHES`.

Books each event's number in its own database. With CRASHES it kills itself after so many bookings, between its commit
and the acknowledgement. Ends when everything was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys

from mainspring.client import TimedOut, connect
from mainspring.outbox.inbox import Inbox


async def consume(url: str, topic: str, file: str, crash_after: int) -> None:
    inbox = Inbox("billing")
    booked = 0
    async with connect(url) as bus, bus.subscribe(topic, group="billing", max_inflight=8) as events:
        while True:
            try:
                event = await events.get(timeout=0.1)
            except TimedOut:
                if await bus.lag(topic, "billing"):
                    continue
                return
            connection = sqlite3.connect(file)
            with connection:
                if inbox.first_time(connection, event):
                    connection.execute("INSERT INTO booked VALUES (?)", (event.payload,))
                    booked += 1
            connection.close()
            if crash_after and booked == crash_after:
                os.kill(os.getpid(), signal.SIGKILL)
            await event.ack()


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
