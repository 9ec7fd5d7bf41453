"""Following a topic without a group: events as they come, for readers that keep their own place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import cast

from mainspring.bus.topics.topic import Topic
from mainspring.log import DamagedEvent, Log, StoredEvent

logger: logging.Logger = logging.getLogger("mainspring.bus")

PAGE = 256
PAGE_BYTES = 1 << 20


Entry = StoredEvent | DamagedEvent
"""What lies at an offset. A damaged event says where it is."""


async def read_on(log: Log, topic: str, partition: int, start: int, limit: int) -> list[Entry]:
    """Events from `start` on; damaged ones that come before them stand in their place."""
    found: list[Entry] = []
    while True:
        try:
            return [*found, *await log.read(topic, partition, start, limit, PAGE_BYTES)]
        except DamagedEvent as error:
            found.append(error)
            if len(found) == limit:
                return found
            start = error.offset + 1


def sound(entries: list[Entry]) -> list[StoredEvent]:
    """Without the damaged ones, which are reported. (They come first: the log reads up to a damaged one.)"""
    count = 0
    for entry in entries:
        if not isinstance(entry, DamagedEvent):
            break
        logger.error("%s", entry)
        count += 1
    return cast(list[StoredEvent], entries[count:] if count else entries)


async def follow(
    log: Log,
    topic: Topic,
    after: Mapping[int, int] | None,
    stopped: Callable[[], bool],
    check: Callable[[], Awaitable[None]],
) -> AsyncIterator[list[Entry]]:
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
