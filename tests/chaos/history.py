"""What happened in a round of faults, and what must never have happened.

Clients write down what they were told while it goes on; when the faults are over and everything has drained, each node
is asked what the log holds. `violations` compares the two. It knows nothing of nodes, engines or faults: a history is
right or wrong whoever made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Confirmed:
    """An event whose publisher was told that it is stored."""

    id: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Stored:
    """An event as a node shows it."""

    id: str
    partition: int
    offset: int
    payload: Any = None


@dataclass
class History:
    """Of one topic `work`, a group inside the nodes, a group outside, runs and a schedule.

    `settled` holds the ids of the work events named by `done`, where every acknowledgement of the inner group wrote one
    event in its own commit. `steps` are (run, step) of effects that wrote an event together with their answer.
    `firings` are the offset and the wall time of each event of a schedule with interval `every_ms` and phase `phase_ms`
    that was acknowledged.
    """

    confirmed: list[Confirmed] = field(default_factory=list)
    work: dict[str, list[Stored]] = field(default_factory=dict)  # by node
    settled: list[str] = field(default_factory=list)
    received: set[str] = field(default_factory=set)  # by the group outside
    lags: dict[str, int] = field(default_factory=dict)  # "node group": events not settled at the end
    expected_runs: set[str] = field(default_factory=set)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)  # by node: run id to outcome
    steps: list[tuple[str, int]] = field(default_factory=list)
    firings: list[tuple[int, int]] = field(default_factory=list)
    every_ms: int = 1_000
    phase_ms: int = 0

    def violations(self) -> list[str]:
        """Every broken promise, in words; empty when all were kept."""
        return [
            *self._nodes_agree(),
            *self._nothing_confirmed_is_lost(),
            *self._offsets_are_used_once(),
            *self._each_event_is_settled_once(),
            *self._everything_was_delivered(),
            *self._groups_drained(),
            *self._runs_have_one_outcome(),
            *self._schedule_fires_once(),
        ]

    def _any_view(self) -> list[Stored]:
        return next(iter(self.work.values()), [])

    def _nodes_agree(self) -> Iterable[str]:
        views = {node: {(one.partition, one.offset): one.id for one in view} for node, view in self.work.items()}
        first = next(iter(views.values()), {})
        for node, view in views.items():
            if view != first:
                differing = sorted(set(view.items()) ^ set(first.items()))[:3]
                yield f"node {node} shows other events than the first node, for example {differing}"

    def _nothing_confirmed_is_lost(self) -> Iterable[str]:
        places = {(one.partition, one.offset): one.id for one in self._any_view()}
        for one in self.confirmed:
            found = places.get((one.partition, one.offset))
            if found is None:
                yield f"event {one.id} was confirmed at {one.partition}:{one.offset} and is not there"
            elif found != one.id:
                yield f"event {one.id} was confirmed at {one.partition}:{one.offset}, where {found} is"

    def _offsets_are_used_once(self) -> Iterable[str]:
        view = self._any_view()
        yield from _twice("offset", ((one.partition, one.offset) for one in view))
        yield from _twice(
            "confirmed offset",
            {(one.partition, one.offset, one.id): (one.partition, one.offset) for one in self.confirmed}.values(),
        )
        yield from _twice("event id", (one.id for one in view))
        for partition in {one.partition for one in view}:
            offsets = sorted(one.offset for one in view if one.partition == partition)
            if offsets != list(range(1, len(offsets) + 1)):
                yield f"partition {partition} has holes: {len(offsets)} events up to offset {offsets[-1]}"

    def _each_event_is_settled_once(self) -> Iterable[str]:
        yield from _twice("acknowledgement", self.settled)
        ids = {one.id for one in self._any_view()}
        if missing := ids - set(self.settled):
            yield f"{len(missing)} events were never settled, for example {sorted(missing)[0]}"
        if unknown := set(self.settled) - ids:
            yield f"{len(unknown)} events were settled that are not stored, for example {sorted(unknown)[0]}"

    def _everything_was_delivered(self) -> Iterable[str]:
        missing = {one.id for one in self._any_view()} - self.received
        if missing:
            yield f"{len(missing)} events never reached the group outside, for example {sorted(missing)[0]}"

    def _groups_drained(self) -> Iterable[str]:
        for where, lag in sorted(self.lags.items()):
            if lag:
                yield f"{where} still has {lag} events to settle"

    def _runs_have_one_outcome(self) -> Iterable[str]:
        yield from _twice("effect", self.steps)
        first: Mapping[str, Any] = next(iter(self.outcomes.values()), {})
        for node, outcomes in self.outcomes.items():
            for run in sorted(self.expected_runs):
                if run not in outcomes:
                    yield f"run {run} has no outcome on node {node}"
                elif outcomes[run] != first.get(run):
                    yield f"run {run} ended as {outcomes[run]} on node {node} and as {first.get(run)} elsewhere"

    def _schedule_fires_once(self) -> Iterable[str]:
        yield from _twice("acknowledgement of firing", (offset for offset, _ in self.firings))
        due: dict[int, dict[int, int]] = {}
        for offset, at in self.firings:
            due.setdefault((at - self.phase_ms) // self.every_ms, {})[offset] = at
        for number, at_offsets in due.items():
            if len(at_offsets) > 1:
                yield f"due time {number} fired {len(at_offsets)} times: {at_offsets} (offset: time)"


def _twice(what: str, items: Iterable[Any]) -> Iterable[str]:
    for item, count in Counter(items).items():
        if count > 1:
            yield f"{what} {item} happened {count} times"
