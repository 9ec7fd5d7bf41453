"""Deciding a commit in memory: from batches to the content of one journal entry.

`MongoLogState` is what this node holds of the log at its position in the journal, without asking the server. Every
engine follows the whole journal, so it can keep the ends of all partitions, and the versions and marks that were asked
for once, up to date by itself. When the server has moved on meanwhile, a plan's entry finds its place in the journal
taken and is planned again: the state may be old, it cannot be wrong. Records and events of entries that are not yet in
their collections are kept here too, and given to readers.

Everything a batch may expect is known before (the state, and what `Lookups` asked the server for), so planning is one
pass without waiting. A batch that is refused is taken back, and its neighbours do not notice. Whether the plan may
happen is decided by the journal: it was made for one position, and its entry has only that one place to go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from mainspring.log.contract import (
    ABSENT,
    ANY_VERSION,
    Append,
    Batch,
    Delete,
    Guard,
    KeptRecord,
    KeptTail,
    Mark,
    Operation,
    Put,
    Receipt,
    Refused,
    Remove,
    Restorable,
    Result,
    StoredEvent,
    are_well_formed,
    event_bytes,
    not_storable,
    refusal_for,
    tail_conflict,
    version_conflict,
    within_bytes,
)
from mainspring.log.engines.mongo.journal import (
    Body,
    Effects,
    JournalEntry,
    JournalEvent,
    JournalMark,
    JournalRecord,
    JournalRemoval,
    PartitionStanding,
)

Place = tuple[str, str]  # (space, key) of a record, or (topic, dedupe) of a mark

RECENT_BYTES: Final = 24 << 20  # of events kept for readers at the end of a partition
OVERHEAD_BYTES: Final = 400  # what a kept event takes beside its own bytes
_offset: Final = attrgetter("offset")
MOST_KNOWN: Final = 100_000  # versions and marks; beyond this the oldest are asked for again
Partition = tuple[str, int]
Present = dict[Partition, dict[int, int]]  # of partitions to remove from: size by offset of what may be hit

MOST_BYTES: Final = 8 << 20  # of one entry; a document holds 16 MiB


# -- what this node holds in memory


class Moment(msgspec.Struct, frozen=True, gc=False):
    """How a partition stood after the entry `commit`. The collections know it once that entry is in place."""

    tail: int
    events: int
    bytes: int
    below: int
    commit: int


@dataclass(slots=True, eq=False)
class MongoPartition:
    """One partition. `recent` holds all its events from `recent_from` on."""

    tail: int = 0
    events: int = 0
    bytes: int = 0
    below: int = 0
    commit: int = 0  # the last entry that changed it
    removals: int = 0  # how many there were
    recent: list[StoredEvent] = field(default_factory=list)
    recent_from: int = 1

    def counts(self) -> tuple[int, int, int, int]:
        return self.tail, self.events, self.bytes, self.below

    def moment(self) -> Moment:
        return Moment(*self.counts(), self.commit)

    def held(self, start: int) -> Iterator[StoredEvent] | None:
        """All events from here on, when they are all in memory."""
        if max(start, self.below) < self.recent_from:
            return None
        return islice(self.recent, bisect_left(self.recent, start, key=_offset), None)

    def head(self) -> int | None:
        """The first readable offset, when that is known without asking."""
        first = max(self.below, 1)
        if self.events == self.tail + 1 - first:
            return first  # no holes
        if not self.events:
            return self.tail + 1
        held = self.held(1)
        return None if held is None else next((event.offset for event in held), self.tail + 1)

    def stand(self, standing: PartitionStanding, commit: int) -> None:
        self.tail, self.events, self.bytes, self.below = (
            standing.tail,
            standing.events,
            standing.bytes,
            standing.below,
        )
        self.commit = commit


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
        self.marks: dict[Place, JournalMark | None] = {}
        self.pending: dict[Place, tuple[int, JournalRecord]] = {}  # by which entry
        self.forgotten: int = 0  # how often known versions and marks were dropped
        self._arrived: deque[tuple[MongoPartition, int, int]] = (
            deque()
        )  # state, offset and size of what `recent` holds, by age
        self._recent_bytes = 0
        for standing, commit in standings:
            state = self.partitions[standing.topic, standing.partition] = MongoPartition()
            state.stand(standing, commit)
            state.recent_from = standing.tail + 1

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
            self._partition(standing.topic, standing.partition).stand(standing, entry.number)

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

    def forget_marks(self, now: int) -> None:
        for place in [place for place, mark in self.marks.items() if mark is not None and mark.until < now]:
            del self.marks[place]
        self.forgotten += 1

    # -- events at the end

    def _partition(self, topic: str, partition: int) -> MongoPartition:
        state = self.partitions.get((topic, partition))
        if state is None:
            state = self.partitions[topic, partition] = MongoPartition()
        return state

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
        if state is None or start > state.tail or limit <= 0:
            return []
        held = state.held(start)
        if held is None:
            return None
        return within_bytes(islice(held, limit), max_bytes)


def _forget_oldest(known: dict[Place, int] | dict[Place, JournalMark | None]) -> bool:
    if len(known) <= MOST_KNOWN:
        return False
    for place in list(known)[: len(known) - MOST_KNOWN // 2]:
        del known[place]
    return True


# -- planning


class _Draft:
    """A partition as it will stand."""

    __slots__ = ("below", "bytes", "events", "tail")

    def __init__(self, now: MongoPartition | None) -> None:
        self.tail, self.events, self.bytes, self.below = now.counts() if now else (0, 0, 0, 0)

    def counts(self) -> tuple[int, int, int, int]:
        return self.tail, self.events, self.bytes, self.below


class EntryPlan:
    """Made for one commit at one position, then thrown away."""

    def __init__(self, log_state: MongoLogState, present: Present) -> None:
        self._log_state = log_state
        self._present = present
        self._drafts: dict[Partition, _Draft] = {}
        self._versions: dict[Place, int] = {}
        self._marks: dict[Place, JournalMark] = {}
        self._version = log_state.version
        self._undo: list[Callable[[], object]] = []
        self.batches: list[Effects] = []

    def body(self) -> Body | None:
        """What goes into the journal; None when nothing does."""
        if not self.batches:
            return None
        standings = [
            PartitionStanding(*place, *draft.counts()) for place, draft in self._drafts.items() if self._moved(place)
        ]
        return Body(self.batches, standings, self._version)

    def add(self, batch: Batch) -> Result:
        """The batch's receipt once the entry is stored, or why it takes no part in it."""
        effects = Effects([], [], [], [])
        offsets: list[tuple[int, int, bool]] = []
        versions: list[int] = []
        self._undo.clear()
        before = self._version
        try:
            for operation in batch.operations:
                if isinstance(operation, Append):
                    offsets.append(self._append(operation, effects))
                elif isinstance(operation, Put):
                    versions.append(self._put(operation, effects))
                elif isinstance(operation, Delete):
                    self._delete(operation, effects)
                elif isinstance(operation, Guard):
                    self._check_version((operation.space, operation.key), operation.version)
                elif isinstance(operation, Remove):
                    self._remove(operation, effects)
                else:
                    raise Refused(f"{type(operation).__name__} is not an operation of the log", code="bad_operation")
            _check_size(effects)
        except (Refused, UnicodeEncodeError, TypeError, AttributeError) as error:
            for step in reversed(self._undo):
                step()
            self._version = before
            return refusal_for(error)
        if effects:
            self.batches.append(effects)
        return Receipt(tuple(offsets), tuple(versions))

    def _moved(self, place: Partition) -> bool:
        """Whether the partition stands otherwise than before; also refused batches leave drafts."""
        state = self._log_state.partitions.get(place)
        return self._drafts[place].counts() != (state.counts() if state else (0, 0, 0, 0))

    # -- events

    def _draft(self, place: Partition) -> _Draft:
        draft = self._drafts.get(place)
        if draft is None:
            draft = self._drafts[place] = _Draft(self._log_state.partitions.get(place))
        return draft

    def _append(self, event: Append, effects: Effects) -> tuple[int, int, bool]:
        if fault := not_storable(event):
            raise fault
        if event.dedupe is not None:
            mark = self._mark(event.topic, event.dedupe)
            if mark is not None and mark.until >= event.ts:
                return mark.partition, mark.offset, True
        place = (event.topic, event.partition)
        draft = self._draft(place)
        if event.expect is not None and event.expect != draft.tail:
            raise tail_conflict(event, draft.tail)
        offset, size = draft.tail + 1, event_bytes(event)
        self._remember(draft)
        draft.tail, draft.events, draft.bytes = offset, draft.events + 1, draft.bytes + size
        if (present := self._present.get(place)) is not None:
            present[offset] = size
            self._undo.append(lambda: present.pop(offset))
        effects.events.append(
            JournalEvent(
                event.topic, event.partition, offset, event.id, event.ts, event.payload, event.key, event.headers
            )
        )
        if event.dedupe is not None:
            marked = JournalMark(event.topic, event.dedupe, event.partition, offset, event.dedupe_until)
            _set(self._marks, (event.topic, event.dedupe), marked, self._undo)
            effects.marks.append(marked)
        return event.partition, offset, False

    def _remember(self, draft: _Draft) -> None:
        tail, events, bytes, below = draft.counts()

        def restore() -> None:
            draft.tail, draft.events, draft.bytes, draft.below = tail, events, bytes, below

        self._undo.append(restore)

    def _mark(self, topic: str, dedupe: str) -> JournalMark | None:
        place = (topic, dedupe)
        return self._marks.get(place) or self._log_state.marks.get(place)

    def _remove(self, remove: Remove, effects: Effects) -> None:
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
        self._remember(draft)
        self._undo.append(lambda: present.update(hit))
        for offset in hit:
            del present[offset]
        draft.events -= len(hit)
        draft.bytes -= sum(hit.values())
        draft.below = max(draft.below, below)
        kept = tuple(offset for offset in offsets if offset in hit)
        effects.removed.append(JournalRemoval(remove.topic, remove.partition, below, kept))

    # -- records

    def _check_version(self, place: Place, expect: int) -> None:
        if expect == ANY_VERSION:
            return
        actual = self._versions.get(place)
        if actual is None:
            actual = self._log_state.versions.get(place, ABSENT)
        if actual != expect:
            raise version_conflict(place[0], place[1], expect, actual)

    def _put(self, put: Put, effects: Effects) -> int:
        if fault := not_storable(put):
            raise fault
        place = (put.space, put.key)
        self._check_version(place, put.expect)
        self._version += 1
        _set(self._versions, place, self._version, self._undo)
        effects.records.append(JournalRecord(put.space, put.key, self._version, bytes(put.value)))
        return self._version

    def _delete(self, delete: Delete, effects: Effects) -> None:
        place = (delete.space, delete.key)
        delete.space.encode()
        delete.key.encode()
        self._check_version(place, delete.expect)
        if self._versions.get(place, self._log_state.versions.get(place)) == ABSENT:
            return  # nothing to delete
        self._version += 1
        _set(self._versions, place, ABSENT, self._undo)
        effects.records.append(JournalRecord(delete.space, delete.key, self._version, None))


def restoring(log_state: MongoLogState, items: Sequence[Restorable]) -> Body:
    """The entry that stores what another engine gave out. Raises `Refused`."""
    effects = Effects([], [], [], [])
    drafts: dict[Partition, _Draft] = {}
    version = log_state.version
    for item in items:
        if isinstance(item, KeptRecord):
            effects.records.append(JournalRecord(item.space, item.key, item.version, item.value))
            version = max(version, item.version)
        elif isinstance(item, Mark):
            effects.marks.append(JournalMark(item.topic, item.dedupe, item.partition, item.offset, item.until))
        else:
            _restore_into(log_state, drafts, item, effects)
    _check_size(effects)
    standings = [PartitionStanding(*place, *draft.counts()) for place, draft in drafts.items()]
    return Body([effects], standings, version)


def _restore_into(
    log_state: MongoLogState, drafts: dict[Partition, _Draft], item: StoredEvent | KeptTail, effects: Effects
) -> None:
    place = (item.topic, item.partition)
    if place not in drafts:
        drafts[place] = _Draft(log_state.partitions.get(place))
    draft = drafts[place]
    if isinstance(item, KeptTail):
        draft.tail = max(draft.tail, item.tail)
        return
    if item.offset <= draft.tail:
        raise Refused(f"offset {item.offset} of {item.topic!r} is not above the tail {draft.tail}")
    draft.tail, draft.events, draft.bytes = item.offset, draft.events + 1, draft.bytes + event_bytes(item)
    effects.events.append(
        JournalEvent(item.topic, item.partition, item.offset, item.id, item.ts, item.payload, item.key, item.headers)
    )


class Lookups:
    """What must be asked of the server before a plan can be made."""

    def __init__(self, log_state: MongoLogState, batches: Iterable[Batch], *, removals: bool = True) -> None:
        """Without `removals` those are left out: what they hit has been asked for."""
        self._with_removals = removals
        self.records: dict[Place, None] = {}
        self.marks: dict[Place, None] = {}
        self.removals: dict[Partition, list[Remove]] = {}
        for batch in batches:
            for operation in batch.operations:
                self._ask(log_state, operation)

    def __bool__(self) -> bool:
        return bool(self.records or self.marks or self.removals)

    def _ask(self, log_state: MongoLogState, operation: Operation) -> None:
        if isinstance(operation, Append):
            if operation.dedupe is not None:
                place = (operation.topic, operation.dedupe)
                if place not in log_state.marks and are_well_formed(*place):
                    self.marks[place] = None
        elif isinstance(operation, Remove):
            if self._with_removals:
                self.removals.setdefault((operation.topic, operation.partition), []).append(operation)
        elif isinstance(operation, Guard) or (isinstance(operation, Put | Delete) and operation.expect != ANY_VERSION):
            place = (operation.space, operation.key)
            if place not in log_state.versions and are_well_formed(*place):
                self.records[place] = None


def size_of(batch: Batch) -> int:
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


def _check_size(effects: Effects) -> None:
    size = sum(map(event_bytes, effects.events))
    size += sum(len(record.value or b"") + len(record.key) for record in effects.records)
    if size > MOST_BYTES:
        raise Refused(
            f"a batch of {size} bytes is too large: this engine takes {MOST_BYTES}",
            remedy="send smaller payloads, or fewer in one batch",
            code="too_large",
        )


def _set(
    of: dict[Place, JournalMark] | dict[Place, int], place: Place, value: object, undo: list[Callable[[], object]]
) -> None:
    held: dict[Place, object] = of  # type: ignore[assignment]
    had, before = place in held, held.get(place)
    held[place] = value

    def restore() -> None:
        if had:
            held[place] = before
        else:
            del held[place]

    undo.append(restore)
