"""What one write moves between this node and the others: which events it takes, passes on and returns.

A node takes no more than its members have room for, so what it has is with one of them. What a group does about filters
it does here, before it takes: an event that only remote members accept is passed to the free events, one that no member
accepts is settled.
"""

from __future__ import annotations

from typing import Final

from mainspring.bus.groups.group import MAX_OPEN, PAGE, PARKED
from mainspring.bus.groups.member import Member
from mainspring.bus.groups.position import NEW, SUSPECT
from mainspring.bus.groups.shared.position import SharedPosition, TakenEvent
from mainspring.bus.groups.shared.presence import Presence
from mainspring.bus.topics.tail import ReadyEvent

MOST_AT_ONCE: Final = PAGE  # events taken with one commit


class Transfer:
    """A write in the making."""

    __slots__ = ("commit", "cursor", "passed", "shared", "skip_before", "taken")

    def __init__(self, shared: SharedPosition, *, commit: bool = False) -> None:
        self.shared: SharedPosition = shared
        self.commit: bool = commit  # write the commit, if nothing else
        self.taken: dict[int, TakenEvent] = {}
        self.passed: list[int] = []  # new events for remote members
        self.cursor: int = shared.position.cursor
        self.skip_before: int = shared.position.skip_before

    def moves_something(self) -> bool:
        """Whether the shared record must be written."""
        shared = self.shared
        moved = self.cursor > shared.next_offset or self.skip_before != shared.position.skip_before
        return bool(self.commit or moved or self.taken or self.passed or shared.returning or shared.vanished)

    # -- together with other nodes

    def take(self, room: int, presence: Presence, now: int, to_wall: int) -> None:
        """Free events first, then new ones, as far as members here accept them and have room."""
        shared, position = self.shared, self.shared.position
        group, choice = position.group, position.group.choice
        room = min(room, MOST_AT_ONCE, MAX_OPEN - len(position.open))
        rooms = {member: member.window - member.inflight for member in choice.rotation()} if choice.selective else None
        wall = now + to_wall
        for offset, state in shared.free.items():
            if offset in shared.vanished:
                continue
            if group.max_attempts and state.deliveries >= group.max_attempts:
                self.taken[offset] = TakenEvent(state, None, at_once=False)
                continue
            if state.due > wall:
                group.check_at(now + state.due - wall)
                continue
            if room <= 0:
                return
            ready = position.body(offset)
            if ready is None:
                group.fetch(position, offset)
                return
            if group.is_expired(position, ready):
                shared.vanished.add(offset)  # settled
                continue
            if rooms is not None and not _take_room(rooms, ready):
                if not presence.anyone_accepts(group, ready):
                    shared.vanished.add(offset)  # settled
                continue
            self.taken[offset] = TakenEvent(state, ready, at_once=state.ended < SUSPECT)
            room -= 1
        if room > 0:
            self._take_new(room, rooms, presence)

    def _take_new(self, room: int, rooms: dict[Member, int] | None, presence: Presence) -> None:
        may_pass = PARKED - len(self.shared.free)
        for ready in self._upcoming(room if rooms is None else MOST_AT_ONCE):
            if not self._is_skipped(ready):
                if rooms is None or _take_room(rooms, ready):
                    if room <= 0:
                        return
                    self.taken[ready.offset] = TakenEvent(NEW, ready)
                    room -= 1
                elif presence.anyone_accepts(self.shared.position.group, ready):
                    if may_pass <= 0:
                        return
                    may_pass -= 1
                    self.passed.append(ready.offset)
            self.cursor = ready.offset + 1

    # -- the only node of this partition

    def take_in_order(self, room: int) -> None:
        """Everything free, also what is not due (its key waits for it), then what is new."""
        shared, position = self.shared, self.shared.position
        group = position.group
        for offset, state in shared.free.items():
            if offset in shared.vanished:
                continue
            ready = position.body(offset)
            if ready is None:
                self.taken.clear()
                group.fetch(position, offset)
                return
            if group.is_expired(position, ready):
                shared.vanished.add(offset)  # settled
                continue
            self.taken[offset] = TakenEvent(state, ready, at_once=False)
        parked = 0 if group.choice.most else PARKED  # what is kept here counts for the other nodes
        room = min(room + parked - len(group.parked), MOST_AT_ONCE, MAX_OPEN - len(position.open))
        if room <= 0 or not group.choice.someone_has_room or len(group.parked) >= PARKED:
            return
        for ready in self._upcoming(room):
            if not self._is_skipped(ready):
                self.taken[ready.offset] = TakenEvent(NEW, ready, at_once=False)
            self.cursor = ready.offset + 1

    # -- new events

    def _upcoming(self, most: int) -> list[ReadyEvent]:
        position = self.shared.position
        events = position.upcoming(most)
        if not events and position.cursor <= position.tail.offset:
            position.group.fetch(position, position.cursor)
        return events

    def _is_skipped(self, ready: ReadyEvent) -> bool:
        """Older than the time the group was sent to, or expired."""
        if self.skip_before and ready.ts < self.skip_before:
            return True
        self.skip_before = 0
        position = self.shared.position
        return position.group.is_expired(position, ready)


def _take_room(rooms: dict[Member, int], ready: ReadyEvent) -> bool:
    for member, room in rooms.items():
        if room > 0 and member.has_room() and member.accepts(ready):
            rooms[member] = room - 1
            return True
    return False
