"""Retention: removes what a topic no longer keeps, by age, number and size, oldest first; and old dedupe marks.

All three say where the partition should begin; the furthest wins. Events are removed in steps so that publishers get
their turns in between. Offsets are never used again, and a group whose next event is gone goes on behind the gap.
"""

from __future__ import annotations

from mainspring.bus.topics.topic import Topic
from mainspring.log import Bounds, Log
from mainspring.loop import Clock

PAGE = 1_000


class Retention:
    """One round over one topic at a time; called by the bus's housekeeping."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    async def forget_dedupe(self) -> None:
        """An event's id is remembered for the dedupe window only."""
        await self._log.forget_dedupe(self._clock.wall_ms())

    async def round(self, topic: Topic) -> None:
        config = topic.config
        if not (config.retention_ms or config.retention_count or config.retention_bytes):
            return
        for bounds in await self._log.bounds(topic.name):
            if bounds.head <= bounds.tail:
                below = await self._first_kept(topic, bounds)
                if below > bounds.head:
                    await self._log.trim(topic.name, bounds.partition, below)

    async def _first_kept(self, topic: Topic, bounds: Bounds) -> int:
        config = topic.config
        below = bounds.head
        if config.retention_ms:
            oldest = self._clock.wall_ms() - config.retention_ms
            below = max(below, await self._log.offset_at(topic.name, bounds.partition, oldest))
        too_many = max(0, bounds.events - config.retention_count) if config.retention_count else 0
        too_large = max(0, bounds.bytes - config.retention_bytes) if config.retention_bytes else 0
        if too_many or too_large:
            below = max(below, await self._after(topic, bounds, too_many, too_large))
        return below

    async def _after(self, topic: Topic, bounds: Bounds, events: int, size: int) -> int:
        """The first offset behind this many events and bytes, counted from the head; holes do not count."""
        start = bounds.head
        while events > 0 or size > 0:
            outlines = await self._log.outline(topic.name, bounds.partition, start, PAGE)
            if not outlines:
                return start
            for outline in outlines:
                if events <= 0 and size <= 0:
                    return outline.offset
                events -= 1
                size -= outline.bytes
                start = outline.offset + 1
        return start
