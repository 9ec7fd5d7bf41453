"""The bus: events, acknowledgements, dead letters, and where the groups stand."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from mainspring.bus import GroupInfo, Stats
from mainspring.server.metrics.families import bounded, counter, counters, gauge, gauges
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric

_COUNTERS: Final = (
    ("acks", "acks", "Acknowledgements of consumers."),
    ("nacks", "nacks", "Events a consumer gave back."),
    ("redeliveries", "redeliveries", "Deliveries that were not the first."),
    ("dead_letters", "dlq", "Events a group gave up on."),
)
_GAUGES: Final = (
    ("inflight_events", "inflight", "Events delivered and not yet acknowledged."),
    ("connections", "connections", "WebSocket connections open now."),
)


def families(observed: Observed, topics: Container[str]) -> Iterator[Metric]:
    """Of the numbers of single topics, those of `topics`; totals count all."""
    bus = observed.bus
    groups = bus.groups.infos()
    yield from _counts(bus.stats(), topics)
    yield from _positions(info for info in groups if info.topic in topics)
    yield gauge("topics", "Topics the node keeps.", len(bus.topics.configs()))
    yield gauge("groups", "Groups of all topics.", len(groups))
    yield gauge("schedules", "Schedules that are set.", len(bus.schedules.all()))


def _counts(stats: Stats, topics: Container[str]) -> Iterator[Metric]:
    # In the order in which the node met the topics: a row that has a name keeps it.
    counts = [(topic, count) for topic, count in stats.by_topic.items() if topic in topics]
    published = [((topic,), float(count.published)) for topic, count in counts]
    delivered = [((topic,), float(count.delivered)) for topic, count in counts]
    yield counters("events_published", "Events stored.", ["topic"], bounded(published))
    yield counters("events_delivered", "Events sent to consumers.", ["topic"], bounded(delivered))
    for name, field, text in _COUNTERS:
        yield counter(name, text, getattr(stats, field))
    for name, field, text in _GAUGES:
        yield gauge(name, text, getattr(stats, field))


def _positions(groups: Iterable[GroupInfo]) -> Iterator[Metric]:
    labels = ["topic", "group"]
    names = [((info.topic, info.group), info) for info in groups]
    lag = [(name, float(sum(each.lag for each in info.partitions.values()))) for name, info in names]
    inflight = [(name, float(sum(each.inflight for each in info.partitions.values()))) for name, info in names]
    members = [(name, float(info.members)) for name, info in names]
    yield gauges("group_lag_events", "Events the group has not settled yet.", labels, bounded(lag))
    yield gauges("group_inflight_events", "Events its members hold.", labels, bounded(inflight))
    yield gauges("group_members", "Connections of the group.", labels, bounded(members))
