"""The node's numbers in Prometheus' text format.

Nothing is counted here. The bus keeps its own counters, and this module reads them when a scraper asks, so that the
numbers in GET /stats, in `system.metrics` and here can never disagree, and counting costs the same whether anybody
looks or not. The names are part of the public face; docs/reference/http.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from mainspring.bus import Bus, GroupInfo, Stats

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "mainspring_"

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


def exposition(bus: Bus, accept: str = "") -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics for a scraper that accepts it, else the classic format."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_BusCollector(bus))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _BusCollector:
    """Reads one bus at the moment of the scrape."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        yield InfoMetricFamily(f"{PREFIX}build", "The running version.", value={"version": version("mainspring")})
        yield from _counts(self._bus.stats())
        yield from _positions(self._bus.groups())
        ready = GaugeMetricFamily(f"{PREFIX}ready", "1 while the node takes requests.")
        ready.add_metric([], float(self._bus.readiness().ready))
        yield ready


def _counts(stats: Stats) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    published = CounterMetricFamily(f"{PREFIX}events_published", "Events stored.", labels=["topic"])
    delivered = CounterMetricFamily(f"{PREFIX}events_delivered", "Events sent to consumers.", labels=["topic"])
    for topic, count in sorted(stats.by_topic.items()):
        published.add_metric([topic], count.published)
        delivered.add_metric([topic], count.delivered)
    yield published
    yield delivered
    for name, field, text in _COUNTERS:
        counter = CounterMetricFamily(f"{PREFIX}{name}", text)
        counter.add_metric([], getattr(stats, field))
        yield counter
    for name, field, text in _GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}{name}", text)
        gauge.add_metric([], getattr(stats, field))
        yield gauge


def _positions(groups: Iterable[GroupInfo]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["topic", "group"]
    lag = GaugeMetricFamily(f"{PREFIX}group_lag_events", "Events the group has not settled yet.", labels=labels)
    inflight = GaugeMetricFamily(f"{PREFIX}group_inflight_events", "Events its members hold.", labels=labels)
    members = GaugeMetricFamily(f"{PREFIX}group_members", "Connections of the group.", labels=labels)
    for info in groups:
        name = [info.topic, info.group]
        lag.add_metric(name, sum(each.lag for each in info.partitions.values()))
        inflight.add_metric(name, sum(each.inflight for each in info.partitions.values()))
        members.add_metric(name, info.members)
    yield from (lag, inflight, members)
