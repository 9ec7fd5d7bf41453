"""The parts of a bus that is one of several on a log, put together.

On a node that is alone nothing of this exists.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.groups.position import SPACE as GROUPS
from mainspring.bus.groups.shared.change_feed import Heard, News
from mainspring.bus.groups.shared.delivery import ClaimingDelivery
from mainspring.bus.groups.shared.presence import Presence
from mainspring.bus.groups.shared.records import CLAIMS, MEMBERS
from mainspring.bus.groups.shared.registry import SharedGroups
from mainspring.bus.schedules.schedules import SPACE as SCHEDULES
from mainspring.bus.schedules.schedules import Schedules
from mainspring.bus.schemas.registry import SPACE as SCHEMAS
from mainspring.bus.schemas.registry import SchemaRegistry
from mainspring.bus.topics.registry import SPACE as TOPICS
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.cluster import Cluster
from mainspring.log import KeptRecord, Log
from mainspring.loop import Clock, Loop


class Sharing:
    """What a bus needs to work with others."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        loop: Loop,
        counters: BusCounters,
        audit: Audit,
        topics: TopicRegistry,
        cluster: Cluster,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._presence = Presence(log, loop, cluster, lambda topic, group: topics.attempts.get((topic, group), 0))
        topics.said_elsewhere = self._presence.max_attempts
        self.delivery: ClaimingDelivery = ClaimingDelivery(log, clock, loop, counters, audit, cluster=cluster)
        self.groups: SharedGroups = SharedGroups(
            log, clock, loop, topics, self.delivery, audit, self._presence, cluster
        )
        self._listeners: dict[str, Heard] = {
            GROUPS: self.groups.heard,
            CLAIMS: self.groups.heard_claim,
            MEMBERS: self.groups.heard_members,
        }
        self._news = News(log, loop, topics, self.delivery, self._listeners, self.groups.after)

    def listen(self, schemas: SchemaRegistry, schedules: Schedules, recheck: Callable[[str], None]) -> None:
        """Keep the news from now on. `recheck` is called with each topic whose settings are new."""

        def topic_heard(record: KeptRecord) -> None:
            topic = self._topics.heard(record)
            if topic is not None:
                self.delivery.adopt(topic)
                recheck(topic.name)

        self._listeners.update({TOPICS: topic_heard, SCHEMAS: schemas.heard, SCHEDULES: schedules.heard})
        self._news.listen()

    async def catch_up(self) -> None:
        """All tables are read: from now on the news are handed out as they come."""
        await self._news.catch_up(self._cluster.node)
        self.groups.begin_work()

    async def leave(self) -> None:
        """The node stops."""
        self._news.stop()
        await self._presence.leave()
