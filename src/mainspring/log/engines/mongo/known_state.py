"""What this node knows of the log at its position in the journal, without asking the server.

Every engine follows the whole journal, so it can keep the ends of all partitions, and the versions and marks that
somebody asked for once, up to date by itself. A commit is planned against this. When the server has moved on meanwhile
the plan's entry finds its place in the journal taken, and is planned again: knowledge may be old, it cannot be wrong.

Records and events of entries that are not yet in their collections are kept here, and given to who asks for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from mainspring.log.contract import ABSENT, StoredEvent
from mainspring.log.engines.measure import event_bytes
from mainspring.log.engines.mongo.effects import Effects, Entry, Marked, Removed, Standing, Written

Place = tuple[str, str]  # (space, key) of a record, or (topic, dedupe) of a mark

RECENT_BYTES: Final = 24 << 20  # of events kept for readers at the end of a partition
OVERHEAD_BYTES: Final = 400  # what a kept event takes beside its own bytes
_offset: Final = attrgetter("offset")
MOST_KNOWN: Final = 100_000  # versions and marks; beyond this the oldest are asked for again


class Moment(msgspec.Struct, frozen=True, gc=False):
    """How a partition stood after the entry `commit`. The collections know it once that entry is in place."""

    tail: int
    events: int
    bytes: int
    below: int
    commit: int


class Slot:
    """One partition. `recent` holds all its events from `recent_from` on."""

    __slots__ = ("below", "bytes", "commit", "events", "recent", "recent_from", "removals", "tail")

    def __init__(self) -> None:
        self.tail: int = 0
        self.events: int = 0
        self.bytes: int = 0
        self.below: int = 0
        self.commit: int = 0  # the last entry that changed it
        self.removals: int = 0  # how many there were
        self.recent: list[StoredEvent] = []
        self.recent_from: int = 1

    def moment(self) -> Moment:
        return Moment(self.tail, self.events, self.bytes, self.below, self.commit)

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

    def stand(self, standing: Standing, commit: int) -> None:
        self.tail, self.events, self.bytes, self.below = (
            standing.tail,
            standing.events,
            standing.bytes,
            standing.below,
        )
        self.commit = commit


class Ledger:
    """`recent_bytes` is how much of the newest events is kept."""

    def __init__(
        self, position: int, version: int, standings: Sequence[tuple[Standing, int]], recent_bytes: int = RECENT_BYTES
    ) -> None:
        self._most_recent_bytes = recent_bytes
        self.position: int = position  # number of the last entry that is known here
        self.applied: int = position  # everything up to here is in the collections
        self.version: int = version
        self.slots: dict[tuple[str, int], Slot] = {}
        self.versions: dict[Place, int] = {}
        self.marks: dict[Place, Marked | None] = {}
        self.pending: dict[Place, tuple[int, Written]] = {}  # by which entry
        self.forgotten: int = 0  # how often known versions and marks were dropped
        self._arrived: deque[tuple[Slot, int, int]] = deque()  # slot, offset and size of what `recent` holds, by age
        self._recent_bytes = 0
        for standing, commit in standings:
            slot = self.slots[standing.topic, standing.partition] = Slot()
            slot.stand(standing, commit)
            slot.recent_from = standing.tail + 1

    def absorb(self, entry: Entry) -> None:
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
            self._slot(standing.topic, standing.partition).stand(standing, entry.number)

    def settle(self, entry: Entry) -> None:
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

    def _slot(self, topic: str, partition: int) -> Slot:
        slot = self.slots.get((topic, partition))
        if slot is None:
            slot = self.slots[topic, partition] = Slot()
        return slot

    def _keep_events(self, effects: Effects) -> None:
        for event in effects.events:
            slot = self._slot(event.topic, event.partition)
            slot.recent.append(event.stored())
            size = event_bytes(event) + OVERHEAD_BYTES
            self._arrived.append((slot, event.offset, size))
            self._recent_bytes += size
        if self._recent_bytes > self._most_recent_bytes:
            self._drop_oldest(self._most_recent_bytes * 3 // 4)

    def _drop_oldest(self, left: int) -> None:
        shortened: dict[Slot, int] = {}
        while self._recent_bytes > left:
            slot, offset, size = self._arrived.popleft()
            self._recent_bytes -= size
            shortened[slot] = offset
        for slot, offset in shortened.items():
            slot.recent_from = max(slot.recent_from, offset + 1)
            del slot.recent[: bisect_left(slot.recent, offset + 1, key=_offset)]

    def _drop_events(self, removed: Removed) -> None:
        slot = self._slot(removed.topic, removed.partition)
        slot.removals += 1
        if slot.recent:
            gone = set(removed.offsets)
            slot.recent = [e for e in slot.recent if e.offset >= removed.below and e.offset not in gone]

    def recent(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> list[StoredEvent] | None:
        """The answer to a read, when this node holds it; None when the server must be asked."""
        slot = self.slots.get((topic, partition))
        if slot is None or start > slot.tail or limit <= 0:
            return []
        held = slot.held(start)
        if held is None:
            return None
        found: list[StoredEvent] = []
        room = max_bytes
        for event in islice(held, limit):
            room -= event_bytes(event)
            if room < 0 and found:
                break
            found.append(event)
        return found


def _forget_oldest(known: dict[Place, int] | dict[Place, Marked | None]) -> bool:
    if len(known) <= MOST_KNOWN:
        return False
    for place in list(known)[: len(known) - MOST_KNOWN // 2]:
        del known[place]
    return True
