"""Deciding a commit: from batches to the rows that one transaction writes.

`KnownState` is what this node knows of the log at one commit: where the partitions end, and the versions of records
that were asked for once. It holds no events and no records. The node that plans has the log's lock and has read all
commits before, so that what it knows is the newest; what it does not know it has asked, under the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mainspring.log.contract import (
    ABSENT,
    Append,
    Batch,
    BatchPlanner,
    KeptRecord,
    KeptTail,
    Mark,
    Place,
    Receipt,
    Refused,
    Remove,
    Restorable,
    Result,
    StoredEvent,
    event_bytes,
    not_storable,
    tail_conflict,
)
from mainspring.log.engines.postgres.tables import CommitEffects, CommitRecord, DraftEvent

MOST_KNOWN: Final = 100_000  # versions; beyond this the oldest are asked for again

Partition = tuple[str, int]


class KnownState:
    """The log at commit `number`, whose token is `token`."""

    def __init__(self, number: int, token: str, version: int, tails: dict[Partition, int]) -> None:
        self.number: int = number
        self.token: str = token
        self.version: int = version  # the last one given
        self.tails: dict[Partition, int] = tails
        self.versions: dict[Place, int] = {}

    def absorb(self, number: int, token: str, version: int, effects: Sequence[CommitEffects], *, own: bool) -> None:
        """The next commit is known now."""
        self.number, self.token, self.version = number, token, version
        versions = self.versions
        for each in effects:
            for topic, partition, _, last in each.appended:
                self.tails[topic, partition] = last
            for record in each.records:
                place = (record.space, record.key)
                if own or place in versions:
                    versions[place] = ABSENT if record.value is None else record.version

    def forget_oldest(self) -> None:
        """Between commits only: a plan relies on what it asked for."""
        if len(self.versions) > MOST_KNOWN:
            for place in list(self.versions)[: len(self.versions) - MOST_KNOWN // 2]:
                del self.versions[place]


class PartitionDraft:
    """A partition as it will stand. `stored` is the size by offset of stored events that may be removed."""

    __slots__ = ("events", "gone", "stored", "tail")

    def __init__(self, tail: int, stored: dict[int, int]) -> None:
        self.tail: int = tail
        self.events: list[DraftEvent] = []  # new ones
        self.gone: dict[int, int] = {}
        self.stored: dict[int, int] = stored

    def take_back(self) -> None:
        self.events.pop()
        self.tail -= 1

    def remove(self, below: int, offsets: set[int]) -> set[int]:
        """Which events this hits; they are gone."""
        hit = {offset: size for offset, size in self.stored.items() if offset < below or offset in offsets}
        for offset in hit:
            del self.stored[offset]
        self.gone |= hit
        left = [event for event in self.events if event[0] >= below and event[0] not in offsets]
        both = set(hit) | ({event[0] for event in self.events} - {event[0] for event in left})
        self.events = left
        return both


class CommitPlan(BatchPlanner):
    """Made for one commit, then thrown away. `stored` is of the partitions that the batches remove from."""

    def __init__(self, known: KnownState, marks: dict[Place, Mark], stored: dict[Partition, dict[int, int]]) -> None:
        super().__init__()
        self._known = known
        self._stored_marks = marks
        self._stored = stored
        self.drafts: dict[Partition, PartitionDraft] = {}
        self.new_marks: dict[Place, Mark] = {}
        self.version: int = known.version
        self.effects: list[CommitEffects] = []
        self._versions: dict[Place, int] = {}
        self._touched: dict[Partition, int] = {}  # partitions with new events not yet in `effects`: the tail before
        self._records: list[CommitRecord] = []  # of the batch under way
        self._removed: list[tuple[str, int, int, tuple[int, ...]]] = []

    def add(self, batch: Batch) -> Result:
        """The batch's receipt once the plan is stored, or why it takes no part in it."""
        for operation in batch.operations:
            if type(operation) is not Append:
                self._note_effects()  # what came before is a change of its own
                break
        before = self.version
        result = self._decide(batch)
        if not isinstance(result, Receipt):
            self.version = before
            self._records, self._removed = [], []
        elif self._records or self._removed:
            self._note_effects()
        return result

    def finish(self) -> list[CommitEffects]:
        """What goes into the commit's row; empty when nothing happens."""
        self._note_effects()
        return self.effects

    def _note_effects(self) -> None:
        appended = [
            (*place, tail + 1, self.drafts[place].tail)
            for place, tail in self._touched.items()
            if self.drafts[place].tail > tail
        ]
        effects = CommitEffects(appended, self._records, self._removed)
        self._touched, self._records, self._removed = {}, [], []
        if effects:
            self.effects.append(effects)

    def restore(self, items: Sequence[Restorable]) -> None:
        """What another engine gave out. Raises `Refused`."""
        for item in items:
            if isinstance(item, KeptRecord):
                self._records.append(CommitRecord(item.space, item.key, item.version, item.value))
                self.version = max(self.version, item.version)
            elif isinstance(item, Mark):
                self.new_marks[item.topic, item.dedupe] = item
            else:
                self._restore(item)

    def _restore(self, item: StoredEvent | KeptTail) -> None:
        place = (item.topic, item.partition)
        draft = self._draft(place)
        self._touched.setdefault(place, draft.tail)
        if isinstance(item, KeptTail):
            draft.tail = max(draft.tail, item.tail)
            return
        if item.offset <= draft.tail:
            raise Refused(f"offset {item.offset} of {item.topic!r} is not above the tail {draft.tail}")
        draft.tail = item.offset
        event = (item.id, item.ts, item.payload, item.key, item.headers)
        draft.events.append((item.offset, event_bytes(item), event))

    # -- events

    def _draft(self, place: Partition) -> PartitionDraft:
        draft = self.drafts.get(place)
        if draft is None:
            draft = self.drafts[place] = PartitionDraft(self._known.tails.get(place, 0), self._stored.get(place, {}))
        return draft

    def _append(self, event: Append) -> tuple[int, int, bool]:
        if fault := not_storable(event):
            raise fault
        dedupe, topic, partition = event.dedupe, event.topic, event.partition
        if dedupe is not None:
            marked = (topic, dedupe)
            mark = self.new_marks.get(marked) or self._stored_marks.get(marked)
            if mark is not None and mark.until >= event.ts:
                return mark.partition, mark.offset, True
        place = (topic, partition)
        draft = self.drafts.get(place) or self._draft(place)
        tail = draft.tail
        if event.expect is not None and event.expect != tail:
            raise tail_conflict(event, tail)
        if place not in self._touched:
            self._touched[place] = tail
        draft.tail = offset = tail + 1
        stored = (event.id, event.ts, event.payload, event.key, event.headers)
        draft.events.append((offset, event_bytes(event), stored))
        self._undo.append(draft.take_back)
        if dedupe is not None:
            self._set(self.new_marks, (topic, dedupe), Mark(topic, dedupe, partition, offset, event.dedupe_until))
        return partition, offset, False

    def _remove(self, remove: Remove) -> None:
        place = (remove.topic, remove.partition)
        if place not in self._known.tails and place not in self.drafts:
            return
        draft = self._draft(place)
        below = max(0, min(remove.below, draft.tail + 1))
        offsets = {offset for offset in remove.offsets if below <= offset <= draft.tail and offset > 0}
        before = (draft.events, dict(draft.stored), dict(draft.gone))

        def restore() -> None:
            draft.events, draft.stored, draft.gone = before

        hit = draft.remove(below, offsets)
        if hit:
            self._undo.append(restore)
            self._removed.append((*place, below, tuple(sorted(offsets & hit))))

    # -- records

    def _version_of(self, space: str, key: str) -> int:
        place = (space, key)
        found = self._versions.get(place)
        return self._known.versions.get(place, ABSENT) if found is None else found

    def _write(self, space: str, key: str, value: bytes | None) -> int:
        f"{space}{key}".encode()  # raises for lone surrogates
        place = (space, key)
        if value is None and self._versions.get(place, self._known.versions.get(place)) == ABSENT:
            return ABSENT
        if value is not None:
            self.version += 1
        version = ABSENT if value is None else self.version
        self._set(self._versions, place, version)
        self._records.append(CommitRecord(space, key, version, value))
        return version
