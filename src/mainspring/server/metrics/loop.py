"""The loop: how much it does, what waits, and who kept it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.server.metrics.families import counter, gauge, gauges
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def families(observed: Observed) -> Iterator[Metric]:
    if observed.loop is None:
        return
    now = observed.loop.counters()
    yield counter("loop_turns", "Turns made.", now.turns)
    yield counter("loop_slices", "Slices: how often the loop got the processor from its host.", now.slices)
    yield counter("loop_failed_turns", "Turns that raised.", now.failed_turns)
    yield counter("loop_slow_turns", "Turns longer than slow_turn_ms.", now.slow_turns)
    yield gauges(
        "loop_lane_depth",
        "Turns that wait, by lane.",
        ["lane"],
        [
            (("system",), now.system_depth),
            (("user",), now.user_depth),
            (("completions",), now.completions_waiting),
        ],
    )
    yield gauge("loop_lag_seconds", "How long the oldest waiting turn has waited.", now.oldest_waiting_ms / 1e3)
    yield gauge("loop_longest_turn_seconds", "The longest turn since the start.", now.longest_turn_ns / 1e9)
    yield gauge("loop_timers_pending", "Timers that are set.", now.timers_pending)
    yield gauge("loop_holds", "Reasons besides turns and timers that keep the loop alive.", now.holds)
