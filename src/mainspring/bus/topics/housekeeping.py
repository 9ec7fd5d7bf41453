"""What the bus does on its own from time to time: retention, compaction, forgetting dedupe marks, metrics ticks.

Of several nodes on one log, one at a time goes through the topics. Each writes its own metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from mainspring.bus.topics.compaction import Compaction
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.retention import Retention
from mainspring.cluster import Role
from mainspring.errors import MainspringError
from mainspring.log import Log
from mainspring.loop import Clock, Loop
from mainspring.settings import Settings

if TYPE_CHECKING:
    from mainspring.bus.groups.delivery import Delivery

logger: logging.Logger = logging.getLogger("mainspring.bus")


class Housekeeping:
    """Plans its rounds on the loop. The next round is planned when one has ended, so rounds never overlap."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        loop: Loop,
        delivery: Delivery,
        topics: TopicRegistry,
        settings: Settings,
        role: Role,
        write_metrics: Callable[[], None],
    ) -> None:
        """Of several nodes on one log, the one that has `role` goes through the topics."""
        self._loop = loop
        self._delivery = delivery
        self._topics = topics
        self._retention = Retention(log, clock)
        self._compaction = Compaction(log, clock, role)
        self._role = role
        self._interval_ms = settings.retention_interval_ms
        self._metrics_interval_ms = settings.metrics_interval_ms
        self._metrics = write_metrics
        self._timers: dict[str, Hashable] = {}
        self._stopped = False

    def start(self) -> None:
        self._plan("round", self._interval_ms, self._begin_round)
        if self._metrics_interval_ms:
            self._plan("metrics", self._metrics_interval_ms, self._write_metrics)

    def stop(self) -> None:
        self._stopped = True
        for timer in self._timers.values():
            self._loop.cancel(timer)

    def _plan(self, name: str, delay_ms: int, work: Callable[[None], None]) -> None:
        if not self._stopped:
            self._timers[name] = self._loop.schedule(delay_ms, work, None, ref=False)

    def _write_metrics(self, _: None) -> None:
        self._metrics()
        self._plan("metrics", self._metrics_interval_ms, self._write_metrics)

    def _begin_round(self, _: None) -> None:
        if self._role.held:
            self._delivery.run(self._round())
        else:
            self._plan("round", self._interval_ms, self._begin_round)

    async def _round(self) -> None:
        try:
            await self._retention.forget_dedupe()
        except MainspringError as error:
            logger.error("dedupe marks could not be forgotten: %s", error)
        for topic in self._topics.all():
            try:
                await self._retention.round(topic)
                await self._compaction.round(topic)
            except MainspringError as error:
                logger.error("housekeeping of topic %r: %s", topic.name, error)
        self._plan("round", self._interval_ms, self._begin_round)
