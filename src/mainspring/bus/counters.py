"""The bus's counters. Plain integers that the hot paths raise; a snapshot is a copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mainspring.bus.results import DiskState, Stats, TopicCount
from mainspring.bus.topics.topic import Topic


class BusCounters(msgspec.Struct, gc=False):
    """Counted since the node started; `inflight` and `connections` are of now."""

    published: int = 0
    delivered: int = 0
    acks: int = 0
    nacks: int = 0
    redeliveries: int = 0
    dlq: int = 0
    expired: int = 0
    damaged: int = 0  # events that a group could not be given
    inflight: int = 0
    connections: int = 0

    def snapshot(self, topics: Iterable[Topic], refused: Mapping[str, int], disk: DiskState | None) -> Stats:
        by_topic = {
            topic.name: TopicCount(topic.published, topic.delivered)
            for topic in topics
            if topic.published or topic.delivered
        }
        of_quotas = dict(refused) if refused else msgspec.UNSET
        return Stats(**msgspec.structs.asdict(self), refused=of_quotas, by_topic=by_topic, disk=disk or msgspec.UNSET)
