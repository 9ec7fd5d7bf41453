"""The node's numbers in Prometheus' text format.

Nothing is counted here. The parts keep their own counters, and these modules read them when a scraper asks, so that the
numbers in GET /stats, in `system.metrics` and here can never disagree, and counting costs the same whether anybody
looks or not. One module per part; the names are part of the public face, and docs/reference/metrics.md lists them.

Labels come from what a program declares (types, capabilities, effects, enzymes' results, routes) and from topics and
groups, of which a bounded number is named, and only those that whoever asks may read. Nothing a client sends can make a
new label.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from mainspring.server.metrics import beats, bus, cluster, kernel, log, loop, process, runs, wire
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def exposition(observed: Observed, accept: str, topics: Container[str]) -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics for a scraper that accepts it, else the classic format.

    Of the topics and their groups only these are named.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(observed, topics))
    process.register(registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector:
    """Reads one node at the moment of the scrape."""

    def __init__(self, observed: Observed, topics: Container[str]) -> None:
        self._observed = observed
        self._topics = topics

    def collect(self) -> Iterator[Metric]:
        for part in (process, loop, log):
            yield from part.families(self._observed)
        yield from bus.families(self._observed, self._topics)
        for part in (kernel, runs, beats, wire, cluster):
            yield from part.families(self._observed)


__all__ = ["exposition"]
