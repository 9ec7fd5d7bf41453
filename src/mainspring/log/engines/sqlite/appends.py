"""Batches that only append: packed once by the node that writes them, stored by every node as they are.

Nearly all events come in batches that expect nothing and only append. What becomes of such a batch follows from where
its partitions end. So a node that sends a commit to the others packs each run of such batches into the chunks that the
log's file will hold, with the offsets the events will have. A node that stores the commit compares where its partitions
end with where the writer thought they did; if that is the same, the chunks go into the file without a look at any
event. If it is not (another node's commit came in between), the batches are taken out of the chunks and decided here,
like any other.

Marks need no decision: they are inserted as new, and if one is there already the whole commit is decided again with a
lookup (`writer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

import msgspec

from mainspring.log.contract import MAX_INT, MIN_INT, Append, Operation, Receipt, Refused
from mainspring.log.engines.sqlite.chunks import Chunk, EventRow, PackedEvents, check_types, pack_pieces
from mainspring.log.engines.sqlite.schema import MAX_OFFSET, OFFSET_BITS, mark_checksum

FEW_EVENTS: Final = 64  # fewer cost less as they are: what comes together gets one chunk
EVENT_BYTES: Final = 32  # what an event takes in a run beside its texts and bytes, at most, without a mark
MARK_BYTES: Final = 32  # and a mark

PartitionPlace = tuple[str, int]  # topic, partition
PartitionEnd = tuple[int, int]  # the partition's number in the file, and its tail


class RunPlace(NamedTuple):
    """What a run appends to a partition whose number in the file is `id` and that ends with the offset `tail`."""

    topic: str
    partition: int
    id: int
    tail: int
    chunks: list[PackedEvents]

    @property
    def base(self) -> int:
        return self.id << OFFSET_BITS

    @property
    def last(self) -> int:
        return self.chunks[-1].last

    def is_sound(self) -> bool:
        """Whether the chunks follow the tail and each other, and hold what they say."""
        tail = self.tail
        for chunk in self.chunks:
            if chunk.first != tail + 1 or chunk.events < 1 or chunk.last - chunk.first != chunk.events - 1:
                return False
            if chunk.last > MAX_OFFSET or not self._stored(chunk).is_sound():
                return False
            tail = chunk.last
        return bool(self.chunks)

    def rows(self) -> list[EventRow]:
        return [row for chunk in self.chunks for row in self._stored(chunk).rows()]

    def _stored(self, chunk: PackedEvents) -> Chunk:
        return Chunk(self.base + chunk.first, chunk.crc, chunk.sums, chunk.data)


class RunMark(NamedTuple):
    """The dedupe of the event that is `nth` in a run."""

    nth: int
    dedupe: str
    until: int
    checksum: int


class AppendRun(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Batches that only append, in the chunks they become.

    `sizes` has the number of events of each batch; it is left out where each has one. `order` has for each event the
    index of its place; it is left out where there is one place.
    """

    places: list[RunPlace]
    sizes: list[int] = []
    order: list[int] = []
    marks: list[RunMark] = []

    def count_events(self) -> int:
        return sum([chunk.events for place in self.places for chunk in place.chunks])

    def count_batches(self) -> int:
        return len(self.sizes) or self.count_events()

    def is_sound(self) -> bool:
        """Whether its parts fit each other. Nobody sends another one; who gets it must not fall over it."""
        count = self.count_events()
        if not self.places or not all(place.is_sound() for place in self.places):
            return False
        if len({(place.topic, place.partition) for place in self.places}) < len(self.places):
            return False
        if self.sizes and (min(self.sizes) < 1 or sum(self.sizes) != count):
            return False
        if not all(0 <= mark.nth < count for mark in self.marks):
            return False
        if not self.order:
            return len(self.places) == 1
        found = [self.order.count(index) for index in range(len(self.places))]
        return len(self.order) == count and found == [place.last - place.tail for place in self.places]

    def offsets(self) -> Sequence[int]:
        """Of each event, in the order of the batches."""
        if not self.order:
            return range(self.places[0].tail + 1, self.places[0].last + 1)
        tails = [place.tail for place in self.places]
        found = []
        for index in self.order:
            tails[index] += 1
            found.append(tails[index])
        return found

    def receipts(self) -> list[Receipt]:
        """Of each batch, where it became as it was decided."""
        offsets = self.offsets()
        if self.order:
            partitions = [self.places[index].partition for index in self.order]
            entries = [(partition, offset, False) for partition, offset in zip(partitions, offsets, strict=True)]
        else:
            partition = self.places[0].partition
            entries = [(partition, offset, False) for offset in offsets]
        if not self.sizes:
            return [Receipt((entry,)) for entry in entries]
        following = iter(entries)
        return [Receipt(tuple(islice(following, size))) for size in self.sizes]

    def batches(self) -> list[list[Operation]]:
        """What was packed."""
        marks = {mark.nth: mark for mark in self.marks}
        rows = [iter(place.rows()) for place in self.places]
        events = []
        for nth, index in enumerate(self.order or [0] * self.count_events()):
            place = self.places[index]
            _, ts, id, payload, key, headers = next(rows[index])
            mark = marks.get(nth)
            dedupe, until = (None, 0) if mark is None else (mark.dedupe, mark.until)
            events.append(Append(place.topic, place.partition, id, ts, payload, key, headers, dedupe, until))
        following = iter(events)
        return [list(islice(following, size)) for size in self.sizes or [1] * len(events)]

    def mark_values(self) -> list[object]:
        """Topic, dedupe, position, until and checksum of each mark, flat."""
        if not self.marks:
            return []
        offsets, order = self.offsets(), self.order
        values: list[object] = []
        for nth, dedupe, until, checksum in self.marks:
            place = self.places[order[nth] if order else 0]
            values += (place.topic, dedupe, place.base + offsets[nth], until, checksum)
        return values


def unreadable_run() -> Refused:
    return Refused("the events that were sent together do not fit each other", code="bad_operation")


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

    def size_in_run(self, batch: Sequence[Operation]) -> int:
        """How many bytes a batch takes in a run, at most; 0: it does not only append, or holds what cannot be stored.

        It is for those who refuse such a batch to say why.
        """
        size = 0
        try:
            for event in batch:
                if type(event) is not Append or event.expect is not None or self._end(event) is None:
                    return 0
                ts, id, key, headers, payload = event.ts, event.id, event.key, event.headers, event.payload
                if type(ts) is not int or not MIN_INT <= ts <= MAX_INT or type(event.partition) is not int:
                    return 0
                check_types(id, key, headers, payload)
                size += EVENT_BYTES + len(payload) + (len(id) if id.isascii() else len(id.encode()))
                if key is not None:
                    size += len(key.encode())
                if headers is not None:
                    size += len(headers)
                if event.dedupe is not None:
                    until = event.dedupe_until
                    if type(until) is not int or not MIN_INT <= until <= MAX_INT:
                        return 0
                    size += MARK_BYTES + len(event.dedupe.encode())
        except (TypeError, AttributeError, ValueError):
            return 0
        return size

    def decide(self, batches: Sequence[Sequence[Operation]], joins: Sequence[bool]) -> list[AppendRun | int]:
        """The next commit: its runs, and between them the indexes of the batches that go as they are.

        `joins` says of which `size_in_run` is above 0.
        """
        items: list[AppendRun | int] = []
        start = 0
        while start < len(batches):
            stop = start
            while stop < len(batches) and joins[stop]:
                stop += 1
            together = batches[start:stop]
            if sum(map(len, together)) >= FEW_EVENTS:
                items.append(self._run(together))
                start = stop
                continue
            for index in range(start, max(stop, start + 1)):
                items.append(index)
                self._pass_over(batches[index])
            start = max(stop, start + 1)
        return items

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
                self._ends[event.topic, event.partition] = (end[0], end[1] + 1)

    def _run(self, batches: Sequence[Sequence[Operation]]) -> AppendRun:
        rows: dict[PartitionPlace, list[EventRow]] = {}
        indexes: dict[PartitionPlace, int] = {}
        order: list[int] = []
        marks: list[RunMark] = []
        some: list[EventRow] = []
        topic, partition, id, tail, index = "", -1, 0, 0, 0
        for event in [event for batch in batches for event in batch]:
            assert type(event) is Append
            if event.partition != partition or event.topic != topic:
                place = topic, partition = event.topic, event.partition
                index = indexes.setdefault(place, len(indexes))
                some = rows.setdefault(place, [])
                end = self._ends[place]
                assert end is not None
                id, tail = end[0], end[1] + len(some)
            tail += 1
            some.append((tail, event.ts, event.id, event.payload, event.key, event.headers))
            if event.dedupe is not None:
                until = event.dedupe_until
                checksum = mark_checksum(topic, event.dedupe, (id << OFFSET_BITS) + tail, until)
                marks.append(RunMark(len(order), event.dedupe, until, checksum))
            order.append(index)
        sizes = list(map(len, batches))
        places = [self._packed(place, found) for place, found in rows.items()]
        return AppendRun(places, [] if max(sizes) == 1 else sizes, [] if len(places) == 1 else order, marks)

    def _packed(self, place: PartitionPlace, rows: list[EventRow]) -> RunPlace:
        end = self._ends[place]
        assert end is not None
        id, tail = end
        self._ends[place] = (id, tail + len(rows))
        return RunPlace(*place, id, tail, pack_pieces(id << OFFSET_BITS, rows))
