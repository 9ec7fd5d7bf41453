"""Following a topic without a group: events as they come, for readers that keep their own place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from mainspring.bus.topics.topic import Topic
from mainspring.log import DamagedEvent, Log, StoredEvent

PAGE = 256
PAGE_BYTES = 1 << 20


async def read_on(
    log: Log, topic: str, partition: int, start: int, limit: int, report: Callable[[DamagedEvent], None] | None = None
) -> list[StoredEvent]:
    """Events from `start` on; damaged ones are passed over, and given to `report`."""
    while True:
        try:
            return await log.read(topic, partition, start, limit, PAGE_BYTES)
        except DamagedEvent as error:
            if report is not None:
                report(error)
            start = error.offset + 1


async def follow(
    log: Log,
    topic: Topic,
    after: Mapping[int, int] | None,
    stopped: Callable[[], bool],
    check: Callable[[], Awaitable[None]],
) -> AsyncIterator[list[StoredEvent]]:
    """Lists of events, partition by partition; the topic's tails must be loaded.

    The reader is woken by new events and asks the log for them: nothing is kept for a reader that does not ask. Each
    time `check` may end it with an error: its rights may be others than at the beginning.
    """
    arrived = asyncio.Event()
    topic.followers.add(arrived)
    seen = after or {}
    place = {tail.partition: seen.get(tail.partition, tail.offset) + 1 for tail in topic.tails}
    try:
        while not stopped():
            arrived.clear()
            await check()
            moved = False
            for tail in topic.tails:
                start = place.get(tail.partition, 1)  # a new partition is followed from its beginning
                if start > tail.offset:
                    continue
                end = tail.offset
                events = await read_on(log, topic.name, tail.partition, start, PAGE)
                place[tail.partition] = events[-1].offset + 1 if events else end + 1
                moved = True
                if events:
                    yield events
            if not moved:
                await arrived.wait()
    finally:
        topic.followers.discard(arrived)
