"""The bus's counters. Plain integers that the hot paths raise; a snapshot is a copy."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.bus.results import Stats, TopicCount
from mainspring.bus.topics.topic import Topic


class BusCounters:
    """Counted since the node started; `inflight` and `connections` are of now."""

    __slots__ = ("acks", "connections", "delivered", "dlq", "inflight", "nacks", "published", "redeliveries")

    def __init__(self) -> None:
        self.published: int = 0
        self.delivered: int = 0
        self.acks: int = 0
        self.nacks: int = 0
        self.redeliveries: int = 0
        self.dlq: int = 0
        self.inflight: int = 0
        self.connections: int = 0

    def snapshot(self, topics: Iterable[Topic]) -> Stats:
        return Stats(
            published=self.published,
            delivered=self.delivered,
            acks=self.acks,
            nacks=self.nacks,
            redeliveries=self.redeliveries,
            dlq=self.dlq,
            inflight=self.inflight,
            connections=self.connections,
            by_topic={
                topic.name: TopicCount(topic.published, topic.delivered)
                for topic in topics
                if topic.published or topic.delivered
            },
        )
