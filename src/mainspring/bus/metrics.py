"""The bus's counters. Plain integers that the hot paths raise; a snapshot is a copy."""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.bus.answers import Stats, TopicCount
from mainspring.bus.topic_state import TopicState


class Counters:
    """Counted since the node started; `inflight` and `connections` are of now."""

    __slots__ = ("acks", "connections", "delivered", "dlq", "inflight", "nacks", "published", "redeliveries")

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.acks = 0
        self.nacks = 0
        self.redeliveries = 0
        self.dlq = 0
        self.inflight = 0
        self.connections = 0

    def snapshot(self, topics: Iterable[TopicState]) -> Stats:
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
