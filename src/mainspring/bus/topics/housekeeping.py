"""What the bus does on its own from time to time: retention, compaction, forgetting dedupe marks, metrics ticks.

Of several nodes on one log, one at a time goes through the topics. Each writes its own metrics.

Retention removes what a topic no longer keeps, by age, number and size, oldest first. All three say where the partition
should begin; the furthest wins. Events are removed in steps so that publishers get their turns in between. Offsets are
never used again, and a group whose next event is gone goes on behind the gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainspring.bus.topics.compaction import Compaction
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.cluster import Role
from mainspring.errors import MainspringError
from mainspring.log import Bounds, Log
from mainspring.loop import Clock, Loop
from mainspring.settings import Settings

if TYPE_CHECKING:
    from mainspring.bus.groups.delivery import Delivery
    from mainspring.bus.groups.registry import GroupRegistry

logger: logging.Logger = logging.getLogger("mainspring.bus")

PAGE = 1_000


@dataclass(eq=False)
class Housekeeping:
    """Plans its rounds on the loop. The next round is planned when one has ended, so rounds never overlap.

    Of several nodes on one log, the one that has `role` goes through the topics.
    """

    log: Log
    clock: Clock
    loop: Loop
    delivery: Delivery
    topics: TopicRegistry
    settings: Settings
    role: Role
    write_metrics: Callable[[], None]
    groups: GroupRegistry

    def __post_init__(self) -> None:
        self._compaction = Compaction(self.log, self.clock, self.role)
        self._timers: dict[str, Hashable] = {}
        self._stopped = False

    def start(self) -> None:
        self._plan("round", self.settings.retention_interval_ms, self._begin_round)
        if self.settings.metrics_interval_ms:
            self._plan("metrics", self.settings.metrics_interval_ms, self._write_metrics)

    def stop(self) -> None:
        self._stopped = True
        for timer in self._timers.values():
            self.loop.cancel(timer)

    def _plan(self, name: str, delay_ms: int, work: Callable[[None], None]) -> None:
        if not self._stopped:
            self._timers[name] = self.loop.schedule(delay_ms, work, None, ref=False)

    def _write_metrics(self, _: None) -> None:
        self.write_metrics()
        self._plan("metrics", self.settings.metrics_interval_ms, self._write_metrics)

    def _begin_round(self, _: None) -> None:
        if self.role.held:
            self.delivery.run(self._round())
        else:
            self._plan("round", self.settings.retention_interval_ms, self._begin_round)

    async def _round(self) -> None:
        try:
            await self.log.forget_dedupe(self.clock.wall_ms())  # ids are remembered for the dedupe window only
        except MainspringError as error:
            logger.error("dedupe marks could not be forgotten: %s", error)
        for topic in self.topics.all():
            try:
                await self._remove_old(topic)
                await self._compaction.round(topic)
            except MainspringError as error:
                logger.error("housekeeping of topic %r: %s", topic.name, error)
        await self._expire_groups()
        self._plan("round", self.settings.retention_interval_ms, self._begin_round)

    async def _expire_groups(self) -> None:
        await self.groups.end_unused()
        if self.settings.group_expiry_ms:
            try:
                await self.groups.expire(self.clock.wall_ms(), self.settings.group_expiry_ms)
            except MainspringError as error:
                logger.error("groups that nobody uses could not be deleted: %s", error)

    async def _remove_old(self, topic: Topic) -> None:
        """Retention of one topic."""
        config = topic.config
        if not (config.retention_ms or config.retention_count or config.retention_bytes):
            return
        for bounds in await self.log.bounds(topic.name):
            if bounds.head <= bounds.tail:
                below = await self._first_kept(topic, bounds)
                if below > bounds.head:
                    await self.log.trim(topic.name, bounds.partition, below)
                    topic.tails[bounds.partition].kept_from = below

    async def _first_kept(self, topic: Topic, bounds: Bounds) -> int:
        config = topic.config
        below = bounds.head
        if config.retention_ms:
            oldest = self.clock.wall_ms() - config.retention_ms
            below = max(below, await self.log.offset_at(topic.name, bounds.partition, oldest))
        too_many = max(0, bounds.events - config.retention_count) if config.retention_count else 0
        too_large = max(0, bounds.bytes - config.retention_bytes) if config.retention_bytes else 0
        if too_many or too_large:
            below = max(below, await self._after(topic, bounds, too_many, too_large))
        return below

    async def _after(self, topic: Topic, bounds: Bounds, events: int, size: int) -> int:
        """The first offset behind this many events and bytes, counted from the head; holes do not count."""
        start = bounds.head
        while events > 0 or size > 0:
            outlines = await self.log.outline(topic.name, bounds.partition, start, PAGE)
            if not outlines:
                return start
            for outline in outlines:
                if events <= 0 and size <= 0:
                    return outline.offset
                events -= 1
                size -= outline.bytes
                start = outline.offset + 1
        return start
