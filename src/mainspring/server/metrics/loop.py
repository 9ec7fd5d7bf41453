"""The loop: how much it does, what waits, and what blocked it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.loop import Watchdog
from mainspring.server.metrics.families import counter, counters, gauge, gauges
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
    if observed.watchdog is not None:
        yield from _blocked(observed.watchdog)


def _blocked(watchdog: Watchdog) -> Iterator[Metric]:
    totals = watchdog.totals.copy()  # another thread adds to it
    times = [((kind,), total.times) for kind, total in totals.items()]
    seconds = [((kind,), total.duration_ms / 1e3) for kind, total in totals.items()]
    text = "How often work blocked the loop for longer than slow_turn_ms."
    yield counter("loop_slow_turns", text, watchdog.times_blocked)
    yield counters("loop_blocked", "How often the loop was blocked, by what kind of work.", ["kind"], times)
    yield counters("loop_blocked_seconds", "How long the loop was blocked, by what kind of work.", ["kind"], seconds)
