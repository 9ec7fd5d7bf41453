"""Deciding a commit: from batches to the content of one journal entry.

Everything a batch may expect is known before (the ledger, and what `questions` asked the server for), so planning is
one pass without waiting. A batch that is refused is taken back, and its neighbours do not notice. Whether the plan may
happen is decided by the journal: it was made for one position, and its entry has only that one place to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mainspring.log.contract import (
    ABSENT,
    ANY_VERSION,
    Append,
    Batch,
    Delete,
    Guard,
    KeptRecord,
    Mark,
    Operation,
    Put,
    Receipt,
    Refused,
    Remove,
    Restorable,
    Result,
    StoredEvent,
    Tail,
)
from mainspring.log.engines.measure import event_bytes
from mainspring.log.engines.mongo.effects import Body, Effects, Event, Marked, Removed, Standing, Written
from mainspring.log.engines.mongo.known_state import Ledger, Place
from mainspring.log.engines.refusals import are_texts, moved_tail, moved_version, not_storable, refusal

Partition = tuple[str, int]
Present = dict[Partition, dict[int, int]]  # of partitions to remove from: size by offset of what may be hit

MOST_BYTES: Final = 8 << 20  # of one entry; a document holds 16 MiB


class _Draft:
    """A partition as it will stand."""

    __slots__ = ("below", "bytes", "events", "tail")

    def __init__(self, tail: int, events: int, bytes: int, below: int) -> None:
        self.tail, self.events, self.bytes, self.below = tail, events, bytes, below

    def state(self) -> tuple[int, int, int, int]:
        return self.tail, self.events, self.bytes, self.below


class Plan:
    """Made for one commit at one position, then thrown away."""

    def __init__(self, ledger: Ledger, present: Present) -> None:
        self._ledger = ledger
        self._present = present
        self._drafts: dict[Partition, _Draft] = {}
        self._versions: dict[Place, int] = {}
        self._marks: dict[Place, Marked] = {}
        self._version = ledger.version
        self._undo: list[Callable[[], object]] = []
        self.batches: list[Effects] = []

    def body(self) -> Body | None:
        """What goes into the journal; None when nothing does."""
        if not self.batches:
            return None
        standings = [Standing(*place, *draft.state()) for place, draft in self._drafts.items() if self._moved(place)]
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
                    raise Refused(f"{type(operation).__name__} is no operation of the log", code="bad_operation")
            _check_size(effects)
        except (Refused, UnicodeEncodeError, TypeError, AttributeError) as error:
            for step in reversed(self._undo):
                step()
            self._version = before
            return refusal(error)
        if effects:
            self.batches.append(effects)
        return Receipt(tuple(offsets), tuple(versions))

    def _moved(self, place: Partition) -> bool:
        """Whether the partition stands otherwise than before; also refused batches leave drafts."""
        slot = self._ledger.slots.get(place)
        before = (slot.tail, slot.events, slot.bytes, slot.below) if slot else (0, 0, 0, 0)
        return self._drafts[place].state() != before

    # -- events

    def _draft(self, place: Partition) -> _Draft:
        draft = self._drafts.get(place)
        if draft is None:
            slot = self._ledger.slots.get(place)
            draft = self._drafts[place] = (
                _Draft(slot.tail, slot.events, slot.bytes, slot.below) if slot else _Draft(0, 0, 0, 0)
            )
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
            raise moved_tail(event, draft.tail)
        offset, size = draft.tail + 1, event_bytes(event)
        self._remember(draft)
        draft.tail, draft.events, draft.bytes = offset, draft.events + 1, draft.bytes + size
        if (present := self._present.get(place)) is not None:
            present[offset] = size
            self._undo.append(lambda: present.pop(offset))
        effects.events.append(
            Event(event.topic, event.partition, offset, event.id, event.ts, event.payload, event.key, event.headers)
        )
        if event.dedupe is not None:
            marked = Marked(event.topic, event.dedupe, event.partition, offset, event.dedupe_until)
            _set(self._marks, (event.topic, event.dedupe), marked, self._undo)
            effects.marks.append(marked)
        return event.partition, offset, False

    def _remember(self, draft: _Draft) -> None:
        tail, events, bytes, below = draft.state()

        def restore() -> None:
            draft.tail, draft.events, draft.bytes, draft.below = tail, events, bytes, below

        self._undo.append(restore)

    def _mark(self, topic: str, dedupe: str) -> Marked | None:
        place = (topic, dedupe)
        return self._marks.get(place) or self._ledger.marks.get(place)

    def _remove(self, remove: Remove, effects: Effects) -> None:
        place = (remove.topic, remove.partition)
        if place not in self._ledger.slots and place not in self._drafts:
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
        effects.removed.append(Removed(remove.topic, remove.partition, below, kept))

    # -- records

    def _check_version(self, place: Place, expect: int) -> None:
        if expect == ANY_VERSION:
            return
        actual = self._versions.get(place)
        if actual is None:
            actual = self._ledger.versions.get(place, ABSENT)
        if actual != expect:
            raise moved_version(place[0], place[1], expect, actual)

    def _put(self, put: Put, effects: Effects) -> int:
        if fault := not_storable(put):
            raise fault
        place = (put.space, put.key)
        self._check_version(place, put.expect)
        self._version += 1
        _set(self._versions, place, self._version, self._undo)
        effects.records.append(Written(put.space, put.key, self._version, bytes(put.value)))
        return self._version

    def _delete(self, delete: Delete, effects: Effects) -> None:
        place = (delete.space, delete.key)
        delete.space.encode()
        delete.key.encode()
        self._check_version(place, delete.expect)
        if self._versions.get(place, self._ledger.versions.get(place)) == ABSENT:
            return  # nothing to delete
        self._version += 1
        _set(self._versions, place, ABSENT, self._undo)
        effects.records.append(Written(delete.space, delete.key, self._version, None))


def restoring(ledger: Ledger, items: Sequence[Restorable]) -> Body:
    """The entry that stores what another engine gave out. Raises `Refused`."""
    effects = Effects([], [], [], [])
    drafts: dict[Partition, _Draft] = {}
    version = ledger.version
    for item in items:
        if isinstance(item, KeptRecord):
            effects.records.append(Written(item.space, item.key, item.version, item.value))
            version = max(version, item.version)
        elif isinstance(item, Mark):
            effects.marks.append(Marked(item.topic, item.dedupe, item.partition, item.offset, item.until))
        else:
            _restore_into(ledger, drafts, item, effects)
    _check_size(effects)
    standings = [Standing(*place, *draft.state()) for place, draft in drafts.items()]
    return Body([effects], standings, version)


def _restore_into(ledger: Ledger, drafts: dict[Partition, _Draft], item: StoredEvent | Tail, effects: Effects) -> None:
    place = (item.topic, item.partition)
    if place not in drafts:
        slot = ledger.slots.get(place)
        drafts[place] = _Draft(slot.tail, slot.events, slot.bytes, slot.below) if slot else _Draft(0, 0, 0, 0)
    draft = drafts[place]
    if isinstance(item, Tail):
        draft.tail = max(draft.tail, item.tail)
        return
    if item.offset <= draft.tail:
        raise Refused(f"offset {item.offset} of {item.topic!r} is not above the tail {draft.tail}")
    draft.tail, draft.events, draft.bytes = item.offset, draft.events + 1, draft.bytes + event_bytes(item)
    effects.events.append(
        Event(item.topic, item.partition, item.offset, item.id, item.ts, item.payload, item.key, item.headers)
    )


class Questions:
    """What must be asked of the server before a plan can be made."""

    def __init__(self, ledger: Ledger, batches: Iterable[Batch], *, removals: bool = True) -> None:
        """Without `removals` those are left out: what they hit has been asked for."""
        self._with_removals = removals
        self.records: dict[Place, None] = {}
        self.marks: dict[Place, None] = {}
        self.removals: dict[Partition, list[Remove]] = {}
        for batch in batches:
            for operation in batch.operations:
                self._ask(ledger, operation)

    def __bool__(self) -> bool:
        return bool(self.records or self.marks or self.removals)

    def _ask(self, ledger: Ledger, operation: Operation) -> None:
        if isinstance(operation, Append):
            if operation.dedupe is not None:
                place = (operation.topic, operation.dedupe)
                if place not in ledger.marks and are_texts(*place):
                    self.marks[place] = None
        elif isinstance(operation, Remove):
            if self._with_removals:
                self.removals.setdefault((operation.topic, operation.partition), []).append(operation)
        elif isinstance(operation, Guard) or (isinstance(operation, Put | Delete) and operation.expect != ANY_VERSION):
            place = (operation.space, operation.key)
            if place not in ledger.versions and are_texts(*place):
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
    of: dict[Place, Marked] | dict[Place, int], place: Place, value: object, undo: list[Callable[[], object]]
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
