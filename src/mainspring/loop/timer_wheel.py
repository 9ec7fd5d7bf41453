"""The timer wheel: many deadlines, cheap to set, cheap to forget.

Most timers are timeouts, and most timeouts are cancelled long before they are due. So the wheel does as little as
possible for a timer until somebody asks what is due next:

- `schedule` only files the entry under its id, and `cancel` only removes it from there. A timer that is cancelled
  before anyone looks has never been anywhere else.
- The first look (`has_ready`, `pop_ready`, `next_deadline`) places the new entries in the wheel. A level has 64 slots
  and a bitmap of the used ones, so the next used slot is one bit operation away, however much empty time lies before
  it. The level is the highest group of six bits in which the deadline differs from the cursor. Levels are made as
  needed: there is no furthest deadline, and milliseconds and nanoseconds work alike.
- The cursor is the instant up to which everything has been handed out. When it enters a slot of a high level, the
  entries of that slot move to lower levels, nearer to their exact place. Each entry moves at most once per level.
- Looking ahead must not move the cursor, or a timer set later for an earlier time would find it past. Where the next
  deadline is wanted from a crowded slot, the slot is split in place into 64 smaller ones, as far down as needed. When
  the cursor gets there, the split slot becomes the level below in one step.
- A slot is a dictionary by id, and the wheel remembers the slot of each placed entry, so cancelling removes it there
  and then: nothing dead is carried along, and memory follows what is pending.

Entries with equal deadlines always share one slot and keep their order there, which makes them first in, first out.
Deadlines behind the cursor are ready at once; the few there are wait in a heap, so that they too leave by deadline.

A heap for everything was left out because a cancelled timer stays in it until it reaches the top, and a calendar of
equal slots because its one width fits either milliseconds or hours. Leaving cancelled entries in their slots until the
cursor comes by was tried: it made cancelling a little cheaper and the garbage collector's work many times dearer.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from mainspring.loop.errors import DuplicateTimer

_BITS = 6
_SLOTS = 1 << _BITS
_MASK = _SLOTS - 1
_CROWDED = 32  # a slot with more entries is split rather than searched
_ROOMY = 4096  # bytes: a dictionary of this size was once crowded, and walking over its gaps is slow


class TimerEntry(msgspec.Struct, frozen=True):
    """One timer: an id unique among the pending, an absolute deadline, what to emit, and why it exists.

    The deadline is a plain integer in whatever unit the wheel's owner uses throughout. `kind` is `timeout`,
    `scheduled` or `retry`; the wheel does not look at it.
    """

    id: Hashable
    deadline: int
    message: Any = None
    kind: str = "scheduled"


_Slot: TypeAlias = dict[Hashable, TimerEntry]


class _Node:
    """64 slots, each empty, in use, or split into a further node; and the bitmap of those that are not empty."""

    __slots__ = ("bits", "slots")

    def __init__(self) -> None:
        self.bits = 0
        self.slots: list[_Slot | _Node | None] = [None] * _SLOTS


_deadline = attrgetter("deadline")


class TimerWheel:
    """Pending timers by deadline. `schedule` and `cancel` are O(1); nothing is ever ready early.

    Timers leave in order of their deadlines, equal deadlines in order of registration, also when nobody looked for a
    long time. The wheel has no clock: callers pass `now` in the unit of their deadlines. It is not thread-safe.
    """

    def __init__(self) -> None:
        self._fresh: dict[Hashable, TimerEntry] = {}  # scheduled, not yet placed
        self._placed: dict[Hashable, _Slot] = {}  # the slot of every entry that has one
        self._cursor = 0
        self._levels: list[_Node] = []  # what is due after the cursor
        self._current: _Slot = {}  # what is due exactly at the cursor
        self._past: _Slot = {}  # what is due before the cursor ...
        self._overdue: list[tuple[int, int, TimerEntry]] = []  # ... and its heap, by deadline and registration
        self._serials: dict[Hashable, int] = {}  # which item of the heap is the right one for an id
        self._serial = 0
        self._soonest: TimerEntry | None = None  # the last answer to "what is next", while it is right

    def __len__(self) -> int:
        return len(self._fresh) + len(self._placed)

    def __contains__(self, timer_id: object) -> bool:
        return timer_id in self._fresh or timer_id in self._placed

    def __iter__(self) -> Iterator[TimerEntry]:
        """The pending entries, in no particular order."""
        for timer_id, slot in self._placed.items():
            yield slot[timer_id]
        yield from self._fresh.values()

    def schedule(self, entry: TimerEntry) -> None:
        """Add a timer. A deadline in the past is ready at once. An id that is pending already is an error."""
        timer_id = entry.id
        fresh = self._fresh
        if timer_id in fresh or timer_id in self._placed:
            raise DuplicateTimer(f"timer {timer_id!r} is already pending", remedy="cancel it first, or use another id")
        if entry.deadline.__class__ is not int:
            raise TypeError(f"the deadline of timer {timer_id!r} must be an int, not {type(entry.deadline).__name__}")
        fresh[timer_id] = entry

    def cancel(self, timer_id: Hashable) -> bool:
        """Forget a timer. False when no such timer is pending: unknown, cancelled before, or already handed out."""
        if self._fresh.pop(timer_id, None) is not None:
            return True
        slot = self._placed.pop(timer_id, None)
        if slot is None:
            return False
        if slot.pop(timer_id) is self._soonest:
            self._soonest = None
        return True

    def has_ready(self, now: int) -> bool:
        """Whether `pop_ready(now)` would give an entry."""
        entry = self._first()
        return entry is not None and entry.deadline <= now

    def pop_ready(self, now: int) -> TimerEntry | None:
        """Hand out the earliest entry whose deadline is at or before `now`; None when there is none."""
        entry = self._first()
        if entry is None or entry.deadline > now:
            self._settle(now)
            return None
        if entry.deadline > self._cursor:
            self._move(entry.deadline)
        del self._placed.pop(entry.id)[entry.id]
        self._soonest = None
        return entry

    def take_ready(self, now: int) -> list[TimerEntry]:
        """Hand out all that is due at or before `now`, in the order `pop_ready` would."""
        ready: list[TimerEntry] = []
        placed = self._placed
        while (entry := self._first()) is not None and entry.deadline <= now:
            if entry.deadline > self._cursor:
                self._move(entry.deadline)
            self._soonest = None
            if entry.deadline < self._cursor:
                del placed.pop(entry.id)[entry.id]
                ready.append(entry)
                continue
            due, self._current = self._current, {}
            ready.extend(due.values())
            for timer_id in due:
                del placed[timer_id]
        self._settle(now)
        return ready

    def next_deadline(self) -> int | None:
        """The earliest pending deadline; None when nothing is pending."""
        entry = self._first()
        return None if entry is None else entry.deadline

    def _first(self) -> TimerEntry | None:
        if self._fresh:
            self._place_fresh()
        if self._soonest is None and self._placed:
            self._soonest = self._search()
        return self._soonest

    def _place_fresh(self) -> None:
        fresh = self._fresh
        self._place(fresh)
        soonest = self._soonest
        if soonest is not None:
            candidate = min(fresh.values(), key=_deadline)
            if candidate.deadline < soonest.deadline:
                self._soonest = candidate
        fresh.clear()

    def _place(self, entries: _Slot) -> None:
        """Put entries, given in order of registration, into the slots where they belong."""
        placed = self._placed
        slot: _Slot = {}
        low = high = 0  # timeouts of one length come in runs: the slot of the last entry often fits the next one
        for timer_id, entry in entries.items():
            deadline = entry.deadline
            if not low <= deadline < high:
                if deadline > self._cursor:
                    slot, low, high = self._slot_for(deadline)
                else:
                    slot = self._place_behind(entry)
                    low = high = 0
            slot[timer_id] = entry
            placed[timer_id] = slot

    def _slot_for(self, deadline: int) -> tuple[_Slot, int, int]:
        """The slot for a deadline after the cursor, and the range of deadlines it is for."""
        levels = self._levels
        level = ((deadline ^ self._cursor).bit_length() - 1) // _BITS
        while level >= len(levels):
            levels.append(_Node())
        node = levels[level]
        while True:
            shift = level * _BITS
            index = deadline >> shift & _MASK
            slot = node.slots[index]
            if slot is None:
                node.slots[index] = slot = {}
                node.bits |= 1 << index
            if isinstance(slot, dict):
                low = deadline >> shift << shift
                return slot, low, low + (1 << shift)
            node = slot
            level -= 1

    def _place_behind(self, entry: TimerEntry) -> _Slot:
        if entry.deadline == self._cursor:
            return self._current
        self._file_overdue(entry)
        return self._past

    def _file_overdue(self, entry: TimerEntry) -> None:
        overdue = self._overdue
        if len(overdue) > 2 * len(self._past) + _CROWDED:  # cancelled ones stay in a heap; here they are the most
            overdue[:] = filter(self._is_overdue, overdue)
            heapq.heapify(overdue)
        self._serial += 1
        self._serials[entry.id] = self._serial
        heapq.heappush(overdue, (entry.deadline, self._serial, entry))

    def _is_overdue(self, item: tuple[int, int, TimerEntry]) -> bool:
        """Whether an item of the heap still stands for a pending entry."""
        _, serial, entry = item
        if self._serials.get(entry.id) != serial:
            return False
        if entry.id in self._past:
            return True
        del self._serials[entry.id]
        return False

    def _search(self) -> TimerEntry | None:
        """The earliest pending entry."""
        overdue = self._overdue
        while overdue:
            if self._is_overdue(overdue[0]):
                return overdue[0][2]
            heapq.heappop(overdue)
        if self._current:
            self._current = self._orderly(self._current)
            return next(iter(self._current.values()))
        for level, node in enumerate(self._levels):
            if node.bits:
                found = self._search_node(node, level)
                if found is not None:
                    return found
        return None

    def _search_node(self, node: _Node, level: int) -> TimerEntry | None:
        while node.bits:
            lowest = node.bits & -node.bits
            index = lowest.bit_length() - 1
            slot = node.slots[index]
            if level > 0 and isinstance(slot, dict) and len(slot) > _CROWDED:
                node.slots[index] = slot = self._split(slot, level - 1)
            if isinstance(slot, _Node):
                found = self._search_node(slot, level - 1)
                if found is not None:
                    return found
            elif slot:
                node.slots[index] = slot = self._orderly(slot)
                if level == 0:
                    return next(iter(slot.values()))
                return min(slot.values(), key=_deadline)
            node.slots[index] = None
            node.bits ^= lowest
        return None

    def _split(self, slot: _Slot, level: int) -> _Node:
        node = _Node()
        parts: dict[int, _Slot] = {}
        placed = self._placed
        for timer_id, entry in slot.items():
            index = entry.deadline >> level * _BITS & _MASK
            part = parts.get(index)
            if part is None:
                parts[index] = node.slots[index] = part = {}
                node.bits |= 1 << index
            part[timer_id] = entry
            placed[timer_id] = part
        return node

    def _orderly(self, slot: _Slot) -> _Slot:
        """The same slot in a form whose first entry is found at once.

        Finding the first key of a plain dictionary means walking over the gaps that removed keys left before it.
        """
        if isinstance(slot, OrderedDict) or (len(slot) <= _CROWDED and slot.__sizeof__() <= _ROOMY):
            return slot
        orderly = OrderedDict(slot)
        placed = self._placed
        for timer_id in orderly:
            placed[timer_id] = orderly
        return orderly

    def _settle(self, now: int) -> None:
        """With nothing due up to `now`, let the cursor follow, so that new entries are placed near to where they go."""
        if now - self._cursor < _SLOTS:  # near enough
            return
        if self._placed:
            self._move(now)
        else:
            self._levels.clear()
            self._cursor = now

    def _move(self, to: int) -> None:
        """Move the cursor forward to an instant before which nothing is pending."""
        levels = self._levels
        level = ((self._cursor ^ to).bit_length() - 1) // _BITS
        self._cursor = to
        self._current = {}
        for lower in range(min(level, len(levels))):
            if levels[lower].bits:  # slots emptied by cancelling
                levels[lower] = _Node()
        while 0 <= level < len(levels):
            node = levels[level]
            index = to >> level * _BITS & _MASK
            slot = node.slots[index]
            passed = node.bits & ((2 << index) - 1)
            node.bits ^= passed
            while passed:
                lowest = passed & -passed
                node.slots[lowest.bit_length() - 1] = None
                passed ^= lowest
            if not isinstance(slot, _Node):
                if slot and level:
                    self._place(slot)
                elif slot:
                    self._current = slot
                return
            level -= 1
            levels[level] = slot
