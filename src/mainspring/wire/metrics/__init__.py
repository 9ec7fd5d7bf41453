"""The node's numbers in Prometheus' text format.

Nothing is counted here. The parts keep their own counters, and these modules read them when a scraper asks, so that the
numbers in GET /stats, in `system.metrics` and here can never disagree, and counting costs the same whether anybody
looks or not. One module per part; the names are part of the public face, and docs/reference/metrics.md lists them.

Labels come from what a program declares (types, capabilities, effects, enzymes' results, routes) and from topics and
groups, of which a bounded number is named. Nothing a client sends can make a new label.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.wire.metrics import beats, bus, cluster, kernel, log, loop, process, runs, wire
from mainspring.wire.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def exposition(observed: Observed, accept: str = "") -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics for a scraper that accepts it, else the classic format."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(observed))
    process.register(registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector:
    """Reads one node at the moment of the scrape."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        for part in (process, loop, log, bus, kernel, runs, beats, wire, cluster):
            yield from part.families(self._observed)


__all__ = ["exposition"]
