"""Beats: how many, how long, and what was in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.server.metrics.families import counter, counters, gauge, histograms
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def families(observed: Observed) -> Iterator[Metric]:
    heartbeat = observed.heartbeat
    if heartbeat is None:
        return
    tally = heartbeat.tally
    yield counter("beats", "Beats that happened.", tally.beats)
    yield counter("beats_failed", "Beats that did not happen and are tried again.", tally.failed)
    yield counter("beats_signals", "Signals worked on.", tally.signals)
    calls = [((result,), float(count)) for result, count in tally.results.items()]
    text = "Entries of agendas by result; failed and fatal are faults of enzymes."
    yield counters("beats_calls", text, ["result"], calls)
    yield counter("beats_staged", "Values that beats made visible.", tally.staged)
    yield counter("beats_emitted", "Signals that enzymes emitted.", tally.emitted)
    diagnostics = [((code,), float(count)) for code, count in tally.diagnostics.items()]
    yield counters("beats_diagnostics", "What a person should know of beats, by code.", ["code"], diagnostics)
    yield histograms("beat_seconds", "Time from the start of a beat until it was durable.", (), [((), tally.ns)])
    yield gauge("beats_next", "The number of the next beat.", heartbeat.next_beat)
    yield gauge("beats_waiting", "Signals that wait for the next beat.", heartbeat.waiting)
    yield gauge("beats_paused", "1 while signals wait by order.", heartbeat.paused)
