"""Runs: how many begin and how they end, the effects they perform, and the leases that durable ones stand on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.server.metrics.families import counter, counters, gauge
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def families(observed: Observed) -> Iterator[Metric]:
    runtime = observed.runtime
    if runtime is None:
        return
    counts = runtime.counts()
    started = [((kind,), float(count)) for kind, count in counts.begun.items()]
    yield counters("runs_started", "Runs that this node began to execute, or went on with.", ["kind"], started)
    outcomes = [(names, float(count)) for names, count in counts.outcomes.items()]
    yield counters("runs_outcomes", "Runs that ended: value, failed or cancelled.", ["kind", "outcome"], outcomes)
    yield counter(
        "runs_recovered", "Durable runs that went on after a restart or another node's end.", counts.recovered
    )
    yield gauge("runs_live", "Runs without an outcome that this node executes.", runtime.live)
    yield counter("runs_steps", "Steps of all programs.", runtime.steps)
    effects = [((name,), float(count)) for name, count in counts.effects.items()]
    text = "Effects asked of their handlers, by durable runs and by runs a message started."
    yield counters("runs_effects", text, ["effect"], effects)
    yield counter(
        "runs_late_answers", "Answers and endings that came for runs that were over.", runtime.late_completions
    )
    yield counter("runs_journal_writes", "Entries written for durable runs.", counts.journal_writes)
    yield counter("runs_leases_lost", "How often another node took this one's runs away.", counts.leases_lost)
