"""Deciding a commit in memory: from batches to the content of one journal entry.

`MongoLogState` is what this node holds of the log at its position in the journal, without asking the server. Every
engine follows the whole journal, so it can keep the ends of all partitions, and the versions and marks that were asked
for once, up to date by itself. When the server has moved on meanwhile, a plan's entry finds its place in the journal
taken and is planned again: the state may be old, it cannot be wrong. Records and events of entries that are not yet in
their collections are kept here too, and given to readers.

Everything a batch may expect is known before (the state, and what the server was asked for), so planning is one
pass without waiting. A batch that is refused is taken back, and its neighbours do not notice. Whether the plan may
happen is decided by the journal: it was made for one position, and its entry has only that one place to go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from mainspring.log.contract import (
    ABSENT,
    Append,
    Batch,
    BatchPlanner,
    KeptRecord,
    KeptTail,
    Mark,
    Place,
    Put,
    Receipt,
    Refused,
    Remove,
    Restorable,
    Result,
    StoredEvent,
    event_bytes,
    groups,
    not_storable,
    tail_conflict,
    within_bytes,
)
from mainspring.log.engines.mongo.documents import (
    Body,
    Effects,
    JournalEntry,
    JournalEvent,
    JournalMark,
    JournalRecord,
    JournalRemoval,
    PartitionStanding,
)

RECENT_BYTES: Final = 24 << 20  # of events kept for readers at the end of a partition
OVERHEAD_BYTES: Final = 400  # what a kept event takes beside its own bytes
_offset: Final = attrgetter("offset")
MOST_KNOWN: Final = 100_000  # versions and marks; beyond this the oldest are asked for again
Partition = tuple[str, int]
Present = dict[Partition, dict[int, int]]  # of partitions to remove from: size by offset of what may be hit

MOST_BYTES: Final = 8 << 20  # of one entry; a document holds 16 MiB


# -- what this node holds in memory


@dataclass(slots=True, eq=False)
class MongoPartition:
    """One partition after the entry `commit`, the last that changed it. `recent` holds all its events from
    `recent_from` on."""

    standing: PartitionStanding
    commit: int = 0
    removals: int = 0  # how many there were
    recent: list[StoredEvent] = field(default_factory=list)
    recent_from: int = 1

    def held(self, start: int) -> Iterator[StoredEvent] | None:
        """All events from here on, when they are all in memory."""
        if max(start, self.standing.below) < self.recent_from:
            return None
        return islice(self.recent, bisect_left(self.recent, start, key=_offset), None)

    def head(self) -> int | None:
        """The first readable offset, when that is known without asking."""
        now = self.standing
        first = max(now.below, 1)
        if now.events == now.tail + 1 - first:
            return first  # no holes
        if not now.events:
            return now.tail + 1
        held = self.held(1)
        return None if held is None else next((event.offset for event in held), now.tail + 1)


class MongoLogState:
    """`recent_bytes` is how much of the newest events is kept."""

    def __init__(
        self,
        position: int,
        version: int,
        standings: Sequence[tuple[PartitionStanding, int]],
        recent_bytes: int = RECENT_BYTES,
    ) -> None:
        self._most_recent_bytes = recent_bytes
        self.position: int = position  # number of the last entry that is known here
        self.applied: int = position  # everything up to here is in the collections
        self.version: int = version
        self.partitions: dict[tuple[str, int], MongoPartition] = {}
        self.versions: dict[Place, int] = {}
        self.marks: dict[Place, Mark | None] = {}
        self.pending: dict[Place, tuple[int, JournalRecord]] = {}  # by which entry
        self.forgotten: int = 0  # how often known versions and marks were dropped
        self._arrived: deque[tuple[MongoPartition, int, int]] = deque()  # offset and size of recent events, by age
        self._recent_bytes = 0
        for standing, commit in standings:
            place = (standing.topic, standing.partition)
            self.partitions[place] = MongoPartition(standing, commit, recent_from=standing.tail + 1)

    def absorb(self, entry: JournalEntry) -> None:
        """The next entry is known now."""
        assert entry.number == self.position + 1
        self.position = entry.number
        self.version = max(self.version, entry.body.version)
        for effects in entry.body.batches:
            self._keep_events(effects)
            for removed in effects.removed:
                self._drop_events(removed)
            for record in effects.records:
                place = (record.space, record.key)
                self.pending[place] = (entry.number, record)
                self.versions.pop(place, None)
                self.versions[place] = ABSENT if record.value is None else record.version
            for mark in effects.marks:
                self.marks.pop((mark.topic, mark.dedupe), None)
                self.marks[mark.topic, mark.dedupe] = mark
        for standing in entry.body.standings:
            state = self._partition(standing.topic, standing.partition)
            state.standing, state.commit = standing, entry.number

    def settle(self, entry: JournalEntry) -> None:
        """The entry is in the collections."""
        self.applied = entry.number
        for effects in entry.body.batches:
            for record in effects.records:
                place = (record.space, record.key)
                held = self.pending.get(place)
                if held is not None and held[0] == entry.number:
                    del self.pending[place]
        if self.applied == self.position:
            self.forgotten += _forget_oldest(self.versions) + _forget_oldest(self.marks)

    def changed(self, space: str) -> int:
        """The last entry that changed records of this space and is not in place; 0 when there is none.

        Who reads them need not wait for the others: on a slow server there are always some.
        """
        return max((number for (name, _), (number, _) in self.pending.items() if name == space), default=0)

    def forget_marks(self, now: int) -> None:
        for place in [place for place, mark in self.marks.items() if mark is not None and mark.until < now]:
            del self.marks[place]
        self.forgotten += 1

    # -- events at the end

    def _partition(self, topic: str, partition: int) -> MongoPartition:
        state = self.partitions.get((topic, partition))
        if state is None:
            state = self.partitions[topic, partition] = MongoPartition(PartitionStanding(topic, partition))
        return state

    def standing(self, place: Partition) -> PartitionStanding:
        state = self.partitions.get(place)
        return PartitionStanding(*place) if state is None else state.standing

    def _keep_events(self, effects: Effects) -> None:
        for event in effects.events:
            state = self._partition(event.topic, event.partition)
            state.recent.append(event.stored())
            size = event_bytes(event) + OVERHEAD_BYTES
            self._arrived.append((state, event.offset, size))
            self._recent_bytes += size
        if self._recent_bytes > self._most_recent_bytes:
            self._drop_oldest(self._most_recent_bytes * 3 // 4)

    def _drop_oldest(self, left: int) -> None:
        shortened: dict[MongoPartition, int] = {}
        while self._recent_bytes > left:
            state, offset, size = self._arrived.popleft()
            self._recent_bytes -= size
            shortened[state] = offset
        for state, offset in shortened.items():
            state.recent_from = max(state.recent_from, offset + 1)
            del state.recent[: bisect_left(state.recent, offset + 1, key=_offset)]

    def _drop_events(self, removed: JournalRemoval) -> None:
        state = self._partition(removed.topic, removed.partition)
        state.removals += 1
        if state.recent:
            gone = set(removed.offsets)
            state.recent = [e for e in state.recent if e.offset >= removed.below and e.offset not in gone]

    def recent(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> list[StoredEvent] | None:
        """The answer to a read, when this node holds it; None when the server must be asked."""
        state = self.partitions.get((topic, partition))
        if state is None or start > state.standing.tail or limit <= 0:
            return []
        held = state.held(start)
        if held is None:
            return None
        return within_bytes(islice(held, limit), max_bytes)


def _forget_oldest(known: dict[Place, int] | dict[Place, Mark | None]) -> bool:
    if len(known) <= MOST_KNOWN:
        return False
    for place in list(known)[: len(known) - MOST_KNOWN // 2]:
        del known[place]
    return True


# -- planning


class EntryPlan(BatchPlanner):
    """Made for one commit at one position, then thrown away."""

    def __init__(self, log_state: MongoLogState, present: Present) -> None:
        super().__init__()
        self._log_state = log_state
        self._present = present
        self._drafts: dict[Partition, PartitionStanding] = {}  # partitions as they will stand
        self._versions: dict[Place, int] = {}
        self._marks: dict[Place, JournalMark] = {}
        self._version = log_state.version
        self._effects = Effects()  # of the batch under way
        self.batches: list[Effects] = []

    def body(self) -> Body | None:
        """What goes into the journal; None when nothing does."""
        if not self.batches:
            return None
        # Refused batches leave drafts too: only partitions that stand otherwise than before count.
        standings = [draft for place, draft in self._drafts.items() if draft != self._log_state.standing(place)]
        return Body(self.batches, standings, self._version)

    def add(self, batch: Batch) -> Result:
        """The batch's receipt once the entry is stored, or why it takes no part in it."""
        self._effects = Effects()
        before = self._version
        result = self._decide(batch)
        if isinstance(result, Receipt) and (fault := _too_large(self._effects)):
            self._take_back()
            result = fault
        if not isinstance(result, Receipt):
            self._version = before
        elif self._effects:
            self.batches.append(self._effects)
        return result

    def restore(self, items: Sequence[Restorable]) -> Body:
        """What stores what another engine gave out. Raises `Refused`."""
        for item in items:
            if isinstance(item, KeptRecord):
                self._effects.records.append(JournalRecord(item.space, item.key, item.version, item.value))
                self._version = max(self._version, item.version)
            elif isinstance(item, Mark):
                self._effects.marks.append(JournalMark(*msgspec.structs.astuple(item)))
            else:
                self._restore(item)
        if fault := _too_large(self._effects):
            raise fault
        return Body([self._effects], list(self._drafts.values()), self._version)

    def _restore(self, item: StoredEvent | KeptTail) -> None:
        place = (item.topic, item.partition)
        draft = self._draft(place)
        if isinstance(item, KeptTail):
            tail = max(draft.tail, item.tail)
            self._drafts[place] = PartitionStanding(*place, tail, draft.events, draft.bytes, draft.below)
            return
        if item.offset <= draft.tail:
            raise Refused(f"offset {item.offset} of {item.topic!r} is not above the tail {draft.tail}")
        self._drafts[place] = _with_event(draft, item.offset, event_bytes(item))
        self._effects.events.append(JournalEvent(*msgspec.structs.astuple(item)))

    # -- events

    def _draft(self, place: Partition) -> PartitionStanding:
        return self._drafts.get(place) or self._log_state.standing(place)

    def _append(self, event: Append) -> tuple[int, int, bool]:
        if fault := not_storable(event):
            raise fault
        if event.dedupe is not None:
            marked_place = (event.topic, event.dedupe)
            mark = self._marks.get(marked_place) or self._log_state.marks.get(marked_place)
            if mark is not None and mark.until >= event.ts:
                return mark.partition, mark.offset, True
        place = (event.topic, event.partition)
        draft = self._draft(place)
        tail = draft.tail
        if event.expect is not None and event.expect != tail:
            raise tail_conflict(event, tail)
        offset, size = tail + 1, event_bytes(event)
        self._set(self._drafts, place, _with_event(draft, offset, size))
        if (present := self._present.get(place)) is not None:
            present[offset] = size
            self._undo.append(lambda: present.pop(offset))
        self._effects.events.append(
            JournalEvent(
                event.topic, event.partition, offset, event.id, event.ts, event.payload, event.key, event.headers
            )
        )
        if event.dedupe is not None:
            marked = JournalMark(event.topic, event.dedupe, event.partition, offset, event.dedupe_until)
            self._set(self._marks, (event.topic, event.dedupe), marked)
            self._effects.marks.append(marked)
        return event.partition, offset, False

    def _remove(self, remove: Remove) -> None:
        place = (remove.topic, remove.partition)
        if place not in self._log_state.partitions and place not in self._drafts:
            return
        draft = self._draft(place)
        below = max(0, min(remove.below, draft.tail + 1))
        offsets = tuple(sorted({offset for offset in remove.offsets if below <= offset <= draft.tail and offset > 0}))
        present = self._present[place]
        hit = {offset: present[offset] for offset in present if offset < below or offset in offsets}
        if not hit and below <= draft.below:
            return
        events, size = draft.events - len(hit), draft.bytes - sum(hit.values())
        left = PartitionStanding(*place, draft.tail, events, size, max(draft.below, below))
        self._set(self._drafts, place, left)
        self._undo.append(lambda: present.update(hit))
        for offset in hit:
            del present[offset]
        kept = tuple(offset for offset in offsets if offset in hit)
        self._effects.removed.append(JournalRemoval(remove.topic, remove.partition, below, kept))

    # -- records

    def _version_of(self, space: str, key: str) -> int:
        return self._versions.get((space, key), self._log_state.versions.get((space, key), ABSENT))

    def _write(self, space: str, key: str, value: bytes | None) -> int:
        place = (space, key)
        f"{space}{key}".encode()  # raises for lone surrogates
        if value is None and self._versions.get(place, self._log_state.versions.get(place)) == ABSENT:
            return ABSENT  # nothing to delete
        self._version += 1
        self._set(self._versions, place, ABSENT if value is None else self._version)
        self._effects.records.append(JournalRecord(space, key, self._version, None if value is None else bytes(value)))
        return self._version


def groups_of(batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Batches that go into one entry each time: in order, and not larger than a document may be."""
    return [batches[group.start : group.stop] for group in groups(map(_size_of, batches), MOST_BYTES)]


def _size_of(batch: Batch) -> int:
    """Roughly the bytes it takes in the journal."""
    size = 0
    for operation in batch.operations:
        size += 64
        if isinstance(operation, Append):
            size += len(operation.payload) + len(operation.headers or b"") + 3 * len(operation.key or "")
        elif isinstance(operation, Put):
            size += len(operation.value)
        elif isinstance(operation, Remove):
            size += 9 * len(operation.offsets)
    return size


def _too_large(effects: Effects) -> Refused | None:
    size = sum(map(event_bytes, effects.events))
    size += sum(len(record.value or b"") + len(record.key) for record in effects.records)
    if size <= MOST_BYTES:
        return None
    return Refused(
        f"a batch of {size} bytes is too large: this engine takes {MOST_BYTES}",
        remedy="send smaller payloads, or fewer in one batch",
        code="too_large",
    )


def _with_event(now: PartitionStanding, offset: int, size: int) -> PartitionStanding:
    """The partition with one more event at its end."""
    return PartitionStanding(now.topic, now.partition, offset, now.events + 1, now.bytes + size, now.below)
