"""The timer wheel: many deadlines, cheap to set, cheap to forget.

Most timers are timeouts, and most timeouts are cancelled long before they are due. So the wheel does as little as
possible for a timer until somebody asks what is due next:

- `schedule` only files the entry under its id, and `cancel` only removes it from there. A timer that is cancelled
  before anyone looks has never been anywhere else.
- The first look (`has_ready`, `pop_ready`, `next_deadline`) places the new entries in the wheel. A level has 64 slots
  and a bitmap of the occupied ones, so the next occupied slot is one bit operation away, however much empty time lies
  before it. The level is the highest group of six bits in which the deadline differs from the cursor. Levels are made
  as needed: there is no furthest deadline, and milliseconds and nanoseconds work alike.
- The cursor is the instant up to which everything has been handed out. When it enters a slot of a high level, the
  entries of that slot move to lower levels, nearer to their exact place. Each entry moves at most once per level.
- Looking ahead must not move the cursor, or a timer set later for an earlier time would find it past. Where the next
  deadline is wanted from a crowded slot, the slot is split in place into 64 smaller ones, as far down as needed. When
  the cursor gets there, the split slot becomes the level below in one step.
- A cancelled entry that was already placed stays in its slot as a ghost until the cursor or a look passes by. When
  ghosts outnumber pending entries everything is placed afresh, so memory follows what is pending, and the cost per
  cancel stays constant.

Entries with equal deadlines always share one slot and keep their order there, which makes them first in, first out.
Deadlines behind the cursor are ready at once; the few there are wait in a heap, so that they too leave by deadline.

A heap for everything was left out because a cancelled timer stays in it until it reaches the top, and a calendar of
equal slots because its one width fits either milliseconds or hours.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from mainspring.loop.errors import DuplicateTimer

_BITS = 6
_SLOTS = 1 << _BITS
_MASK = _SLOTS - 1
_CROWDED = 32  # a slot with more entries is split rather than searched
_SPARE_GHOSTS = 1024  # placing afresh is not worth it for fewer


class TimerEntry(msgspec.Struct, frozen=True):
    """One timer: an id unique among the pending, an absolute deadline, what to emit, and why it exists.

    The deadline is a plain integer in whatever unit the wheel's owner uses throughout. `kind` is `timeout`,
    `scheduled` or `retry` in the kernel; the wheel does not look at it.
    """

    id: Hashable
    deadline: int
    message: Any = None
    kind: str = "scheduled"


class _Node:
    """64 slots and the bitmap of those that hold something."""

    __slots__ = ("bits", "slots")

    def __init__(self) -> None:
        self.bits = 0
        self.slots: list[_Slot] = [None] * _SLOTS


_Slot: TypeAlias = list[TimerEntry] | deque[TimerEntry] | _Node | None


class TimerWheel:
    """Pending timers by deadline. `schedule` and `cancel` are O(1); nothing is ever ready early.

    Timers leave in order of their deadlines, equal deadlines in order of registration, also when nobody looked for a
    long time. The wheel has no clock: callers pass `now` in the unit of their deadlines. It is not thread-safe.
    """

    __slots__ = ("_current", "_cursor", "_fresh", "_ghosts", "_levels", "_live", "_overdue", "_serial", "_soonest")

    def __init__(self) -> None:
        self._fresh: dict[Hashable, TimerEntry] = {}  # scheduled, not yet placed
        self._live: dict[Hashable, TimerEntry] = {}  # placed and pending, in order of registration
        self._ghosts: set[int] = set()  # identities of entries cancelled after they were placed
        self._cursor = 0
        self._levels: list[_Node] = []  # slots of what is due after the cursor
        self._current: deque[TimerEntry] = deque()  # due exactly at the cursor
        self._overdue: list[tuple[int, int, TimerEntry]] = []  # a heap of what is due before the cursor
        self._serial = 0
        self._soonest: TimerEntry | None = None  # the last answer to "what is next"; right while it is pending

    def __len__(self) -> int:
        return len(self._fresh) + len(self._live)

    def __contains__(self, timer_id: object) -> bool:
        return timer_id in self._fresh or timer_id in self._live

    def __iter__(self) -> Iterator[TimerEntry]:
        """The pending entries in order of registration."""
        yield from self._live.values()
        yield from self._fresh.values()

    def schedule(self, entry: TimerEntry) -> None:
        """Add a timer. A deadline in the past is ready at once. An id that is pending already is an error."""
        timer_id = entry.id
        fresh = self._fresh
        if timer_id in fresh or timer_id in self._live:
            raise DuplicateTimer(f"timer {timer_id!r} is already pending", remedy="cancel it first, or use another id")
        if entry.deadline.__class__ is not int:
            raise TypeError(f"the deadline of timer {timer_id!r} must be an int, not {type(entry.deadline).__name__}")
        fresh[timer_id] = entry

    def cancel(self, timer_id: Hashable) -> bool:
        """Forget a timer. False when no such timer is pending: unknown, cancelled before, or already handed out."""
        if self._fresh.pop(timer_id, None) is not None:
            return True
        entry = self._live.pop(timer_id, None)
        if entry is None:
            return False
        self._ghosts.add(id(entry))
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
        self._hand_out(entry)
        return entry

    def take_ready(self, now: int) -> list[TimerEntry]:
        """Hand out all that is due at or before `now`, in the order `pop_ready` would."""
        ready: list[TimerEntry] = []
        while (entry := self._first()) is not None and entry.deadline <= now:
            self._hand_out(entry)
            ready.append(entry)
        self._settle(now)
        return ready

    def next_deadline(self) -> int | None:
        """The earliest pending deadline; None when nothing is pending."""
        entry = self._first()
        return None if entry is None else entry.deadline

    def _first(self) -> TimerEntry | None:
        if self._fresh:
            self._place_fresh()
        entry = self._soonest
        if entry is None or self._live.get(entry.id) is not entry:
            entry = self._soonest = self._search() if self._live else None
        return entry

    def _place_fresh(self) -> None:
        fresh, live, ghosts = self._fresh, self._live, self._ghosts
        if len(ghosts) > len(live) + _SPARE_GHOSTS or (
            # The very object may still lie in a slot as a ghost; filed again, it would come to life in its old place.
            ghosts and not ghosts.isdisjoint(map(id, fresh.values()))
        ):
            self._place_afresh()
        self._place(fresh.values())
        soonest = self._soonest
        if soonest is not None:
            candidate = min(fresh.values(), key=_deadline)
            if candidate.deadline < soonest.deadline:
                self._soonest = candidate
        live.update(fresh)
        fresh.clear()

    def _place_afresh(self) -> None:
        self._levels.clear()
        self._current.clear()
        self._overdue.clear()
        self._ghosts.clear()
        self._place(self._live.values())

    def _place(self, entries: Iterable[TimerEntry]) -> None:
        cursor, levels = self._cursor, self._levels
        for entry in entries:
            deadline = entry.deadline
            if deadline <= cursor:
                self._place_behind(entry)
                continue
            level = ((deadline ^ cursor).bit_length() - 1) // _BITS
            while level >= len(levels):
                levels.append(_Node())
            node = levels[level]
            while True:
                index = deadline >> level * _BITS & _MASK
                slot = node.slots[index]
                if slot is None:
                    node.slots[index] = [entry]
                    node.bits |= 1 << index
                    break
                if slot.__class__ is not _Node:
                    slot.append(entry)  # type: ignore[union-attr]
                    break
                node = slot
                level -= 1

    def _place_behind(self, entry: TimerEntry) -> None:
        if entry.deadline == self._cursor:
            self._current.append(entry)
        else:
            self._serial += 1
            heapq.heappush(self._overdue, (entry.deadline, self._serial, entry))

    def _search(self) -> TimerEntry | None:
        """The earliest pending entry, dropping the ghosts met on the way."""
        live, overdue, current = self._live, self._overdue, self._current
        while overdue:
            entry = overdue[0][2]
            if live.get(entry.id) is entry:
                return entry
            heapq.heappop(overdue)
        while current:
            entry = current[0]
            if live.get(entry.id) is entry:
                return entry
            current.popleft()
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
            found = self._search_slot(node, index, level)
            if found is not None:
                return found
            node.slots[index] = None
            node.bits ^= lowest
        return None

    def _search_slot(self, node: _Node, index: int, level: int) -> TimerEntry | None:
        live = self._live
        slot = node.slots[index]
        if isinstance(slot, _Node):
            return self._search_node(slot, level - 1)
        if level == 0:
            # One deadline only: the first one pending is the answer, and the dead before it leave for good.
            queue = slot if isinstance(slot, deque) else deque(slot or ())
            node.slots[index] = queue
            while queue:
                entry = queue[0]
                if live.get(entry.id) is entry:
                    return entry
                queue.popleft()
            return None
        pending = [entry for entry in slot or () if live.get(entry.id) is entry]
        if len(pending) > _CROWDED:
            node.slots[index] = split = _split(pending, level - 1)
            return self._search_node(split, level - 1)
        node.slots[index] = pending
        return min(pending, key=_deadline) if pending else None

    def _hand_out(self, entry: TimerEntry) -> None:
        """Remove the entry that `_first` found."""
        if entry.deadline > self._cursor:
            self._move(entry.deadline)
        if entry.deadline == self._cursor:
            current = self._current
            while current.popleft() is not entry:  # ghosts before it
                pass
            self._soonest = current[0] if current else None
        else:
            heapq.heappop(self._overdue)
            self._soonest = None
        del self._live[entry.id]

    def _settle(self, now: int) -> None:
        """With nothing due up to `now`, let the cursor follow, so that new entries are placed near to where they go."""
        if now <= self._cursor:
            return
        if self._live:
            self._move(now)
        else:
            if self._ghosts:
                self._place_afresh()
            self._cursor = now

    def _move(self, to: int) -> None:
        """Move the cursor forward to an instant before which nothing is pending."""
        levels = self._levels
        level = ((self._cursor ^ to).bit_length() - 1) // _BITS
        self._cursor = to
        self._current.clear()
        for lower in range(min(level, len(levels))):
            if levels[lower].bits:  # ghosts only
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
                if slot:
                    live = self._live
                    self._place([entry for entry in slot if live.get(entry.id) is entry])
                return
            level -= 1
            levels[level] = slot


def _split(entries: list[TimerEntry], level: int) -> _Node:
    node = _Node()
    slots = node.slots
    for entry in entries:
        index = entry.deadline >> level * _BITS & _MASK
        slot = slots[index]
        if slot is None:
            slots[index] = [entry]
            node.bits |= 1 << index
        else:
            slot.append(entry)  # type: ignore[union-attr]
    return node


def _deadline(entry: TimerEntry) -> int:
    return entry.deadline
