"""How a number becomes a metric: one call for each family, with its name, its text and its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mainspring.telemetry import Histogram

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "mainspring_"
MOST_ROWS: Final = 1_000  # of one family with a topic in it; a scraper and its dashboards take no more
OTHERS: Final = "(others)"  # what the rest is called; no topic can have this name

Row = tuple[tuple[str, ...], float]


def counter(name: str, text: str, value: float) -> Metric:
    """One number that only grows."""
    return counters(name, text, (), [((), value)])


def counters(name: str, text: str, labels: Iterable[str], rows: Iterable[Row]) -> Metric:
    """Numbers that only grow, one for each row; the name gets its `_total` when it is written."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(PREFIX + name, text, labels=list(labels))
    for names, value in rows:
        family.add_metric(list(names), value)
    return family


def gauge(name: str, text: str, value: float) -> Metric:
    """One number of now."""
    return gauges(name, text, (), [((), value)])


def gauges(name: str, text: str, labels: Iterable[str], rows: Iterable[Row]) -> Metric:
    """Numbers of now, one for each row."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    for names, value in rows:
        family.add_metric(list(names), value)
    return family


def histograms(
    name: str, text: str, labels: Iterable[str], rows: Iterable[tuple[tuple[str, ...], Histogram]]
) -> Metric:
    """Sizes or durations, counted by how large they were."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(PREFIX + name, text, labels=list(labels))
    for names, histogram in rows:
        family.add_metric(list(names), histogram.buckets(), histogram.sum)
    return family


def bounded(rows: Iterable[Row]) -> list[Row]:
    """At most so many rows, in their order; the rest is one row more, whose number is their sum."""
    known = list(rows)
    if len(known) <= MOST_ROWS:
        return known
    rest = sum(value for _, value in known[MOST_ROWS:])
    return [*known[:MOST_ROWS], ((OTHERS,) * len(known[0][0]), rest)]
