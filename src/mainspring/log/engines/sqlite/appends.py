"""Batches that only append: decided once by the node that writes them, stored by every node as they were decided.

Nearly all events come in batches that expect nothing and only append. What becomes of such a batch follows from where
its partitions end. So a node that sends a commit to the others decides it before, for each run of such batches: the
place of each event. A node that stores the commit compares where its partitions end with where the writer thought they
did; if that is the same, the events go into chunks as they are, without a step of planning for each. If it is not
(another node's commit came in between), the batches are decided here, like any other.

Marks need no decision: they are inserted as new, and if one is there already the whole commit is decided again with a
lookup (`writer.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Protocol

import msgspec

from mainspring.log.contract import MAX_INT, MIN_INT, Append, Operation
from mainspring.log.engines.sqlite.chunks import check_types
from mainspring.log.engines.sqlite.schema import MAX_OFFSET, OFFSET_BITS, mark_checksum

RUN_BYTES: Final = 16  # what a run says of an event takes, encoded, at most without marks

PartitionPlace = tuple[str, int]  # topic, partition
PartitionEnd = tuple[int, int, int, int | None]  # the partition's number in the file, its tail, and what was sent once
PartitionChange = tuple[str, int, PartitionEnd, PartitionEnd]  # topic, partition, its end before and after


class AppendRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """`count` batches from the one at index `first`, and the places of their events, in order.

    It holds where the partitions end before it (`before`) and leaves them as `after` says. A column that follows from
    the rest is left out: `positions` where they follow each other, `mark_checksums` where no event has a dedupe. Nodes
    that kept an event in a row of its own also sent `totals`, `checksums` and `highs`, which nobody reads any more.
    """

    first: int
    count: int
    before: dict[str, dict[int, PartitionEnd]]
    after: dict[str, dict[int, PartitionEnd]]
    totals: list[int]
    checksums: list[int]
    positions: list[int]
    highs: list[int | None]
    mark_checksums: list[int]

    def places(self) -> list[PartitionChange]:
        """Each partition with its end before and after."""
        after = self.after
        return [
            (topic, partition, end, after[topic][partition])
            for topic, partitions in self.before.items()
            for partition, end in partitions.items()
        ]

    def offsets(self, places: Sequence[PartitionChange]) -> Sequence[int]:
        """Of each event. `places` are those of this run."""
        if self.positions:
            return [position & MAX_OFFSET for position in self.positions]
        ((_, _, before, after),) = places
        return range(before[1] + 1, after[1] + 1)

    def _all_positions(self) -> Sequence[int]:
        """The place of each event in the file."""
        if self.positions:
            return self.positions
        ((_, _, before, after),) = self.places()
        base = before[0] << OFFSET_BITS
        return range(base + before[1] + 1, base + after[1] + 1)

    def mark_values(self, events: Sequence[Append]) -> Iterable[tuple[object, ...]]:
        """Topic, dedupe, position, until and checksum of each mark."""
        if not self.mark_checksums:
            return ()
        return zip(
            [event.topic for event in events],
            [event.dedupe for event in events],
            self._all_positions(),
            [event.dedupe_until for event in events],
            self.mark_checksums,
            strict=True,
        )


class KnownEnds(Protocol):
    """What this node knows of the log; it may be outdated."""

    def end_of(self, place: PartitionPlace) -> PartitionEnd | None:
        """Where a partition ends; None for one without events."""
        ...


class AppendDecider:
    """Decides the runs of what one node sends, commit after commit before any of them is stored."""

    def __init__(self, known: KnownEnds) -> None:
        self._known = known
        self._ends: dict[PartitionPlace, PartitionEnd | None] = {}

    def decide(self, batches: Sequence[Sequence[Operation]]) -> list[AppendRun]:
        """The runs among the batches of the next commit. What has values of the wrong type is in none."""
        try:
            return self._decide(batches)
        except (TypeError, AttributeError, ValueError):
            return []

    def _decide(self, batches: Sequence[Sequence[Operation]]) -> list[AppendRun]:
        runs: list[AppendRun] = []
        start = 0
        while start < len(batches):
            marked = _is_marked(batches[start])
            stop = start
            while stop < len(batches) and self._may_join(batches[stop], marked):
                stop += 1
            if stop > start:
                runs.append(self._run(start, batches[start:stop], marked))
                start = stop
            else:
                self._pass_over(batches[start])
                start += 1
        return runs

    def _may_join(self, batch: Sequence[Operation], marked: bool) -> bool:
        """Whether a batch only appends, to partitions that are known, with or without a mark for each event."""
        return bool(batch) and all(
            type(event) is Append
            and event.expect is None
            and (event.dedupe is not None) is marked
            and MIN_INT <= event.ts <= MAX_INT
            and MIN_INT <= event.dedupe_until <= MAX_INT
            and self._end(event) is not None
            for event in batch
        )

    def _end(self, event: Append) -> PartitionEnd | None:
        place = (event.topic, event.partition)
        try:
            return self._ends[place]
        except KeyError:
            end = self._ends[place] = self._known.end_of(place)
            return end

    def _pass_over(self, batch: Sequence[Operation]) -> None:
        """A batch that may be refused. Most are not, so what follows is decided as if it stood."""
        for event in batch:
            if isinstance(event, Append) and (end := self._end(event)) is not None:
                self._ends[event.topic, event.partition] = (end[0], end[1] + 1, 0, None)

    def _run(self, first: int, batches: Sequence[Sequence[Operation]], marked: bool) -> AppendRun:
        before: dict[str, dict[int, PartitionEnd]] = {}
        after: dict[str, dict[int, PartitionEnd]] = {}
        positions: list[int] = []
        mark_checksums: list[int] = []
        ends = self._ends
        place: PartitionPlace = ("", -1)
        id = tail = 0
        for event in chain.from_iterable(batches):
            assert type(event) is Append
            topic, partition = event.topic, event.partition
            if partition != place[1] or topic != place[0]:
                if place[0]:
                    ends[place] = (id, tail, 0, None)
                place = (topic, partition)
                end = ends[place]
                assert end is not None
                id, tail, _, _ = end
                before.setdefault(topic, {}).setdefault(partition, end)
            check_types(event.id, event.key, event.headers, event.payload)
            tail += 1
            position = (id << OFFSET_BITS) + tail
            positions.append(position)
            if event.dedupe is not None:
                mark_checksums.append(mark_checksum(topic, event.dedupe, position, event.dedupe_until))
        ends[place] = (id, tail, 0, None)
        for topic, partitions in before.items():
            after[topic] = {partition: end for partition in partitions if (end := ends[topic, partition])}
        if len(before) == 1 and len(after[next(iter(before))]) == 1:
            positions.clear()
        return AppendRun(first, len(batches), before, after, [], [], positions, [], mark_checksums)


def _is_marked(batch: Sequence[Operation]) -> bool:
    return bool(batch) and type(batch[0]) is Append and batch[0].dedupe is not None
