"""A group whose members are connected to several nodes.

On each node the group is the state machine it is on one (`group.py`), for the events that the node has taken. Before an
event can be leased to a member here, the node takes it: a commit that moves it from the shared record into the node's
claim. A node takes no more than its members have room for, so what it has is with somebody; and it gives back what no
member here can have any more (they left, are full or stalled), so that a member elsewhere gets it.

What a group does about filters it does here before it takes: an event that only members elsewhere accept is passed to
the free events, one that nobody accepts is settled. Where keys stick to members, one node at a time works on a
partition, and does there what it would do alone.
"""

from __future__ import annotations

import heapq
from typing import Final, Protocol

from mainspring.bus.groups.group import MAX_OPEN, PAGE, PARKED, Group
from mainspring.bus.groups.host import Host
from mainspring.bus.groups.member import Member
from mainspring.bus.groups.position import OpenEvent, Position
from mainspring.bus.groups.shared.position import Intent, SharedPosition, Taking
from mainspring.bus.groups.shared.presence import Presence
from mainspring.bus.groups.unsettled import Unsettled
from mainspring.bus.topics.tail import PartitionTail, ReadyEvent

MOST_AT_ONCE: Final = PAGE  # events taken with one commit
_NEW: Final = Unsettled()


class ClaimingHost(Host, Protocol):
    """What such a group needs from the bus."""

    def exchange(self, group: SharedGroup, position: SharedPosition, wanted: Exchange) -> None:
        """Write what is taken, passed on and given back."""

    def wake(self, group: Group) -> None: ...

    def to_wall(self) -> int:
        """What must be added to a monotonic time to make it epoch ms."""


class Exchange:
    """What one write changes between this node and the others."""

    __slots__ = ("commit", "cursor", "passed", "skip_before", "taken")

    def __init__(self, position: SharedPosition, *, commit: bool = False) -> None:
        self.commit: bool = commit  # write the commit, if nothing else
        self.taken: dict[int, Taking] = {}
        self.passed: list[int] = []
        self.cursor: int = position.cursor
        self.skip_before: int = position.skip_before

    def says_something(self, position: SharedPosition) -> bool:
        moved = self.cursor > position.next_offset or self.skip_before != position.skip_before
        return bool(self.commit or moved or self.taken or self.passed or position.leaving or position.vanished)


class SharedGroup(Group):
    """One group of one topic, on one of several nodes."""

    def __init__(self, topic: str, name: str, host: ClaimingHost, presence: Presence) -> None:
        super().__init__(topic, name, host, ack_timeout_ms=1, max_attempts=0)
        self._claiming = host
        self._presence = presence
        self._ascending = False  # free events may be lower than what a member already has

    def _new_position(self, tail: PartitionTail, head: bytes, cursor: int) -> SharedPosition:
        return SharedPosition(tail, head, cursor)

    def shared_positions(self) -> list[SharedPosition]:
        return [position for position in self.positions.values() if isinstance(position, SharedPosition)]

    # -- members

    def join(self, member: Member) -> None:
        super().join(member)
        self._presence.changed(self)

    def changed_member(self, member: Member) -> None:
        super().changed_member(member)
        self._presence.changed(self)

    def leave(self, member: Member, now: int) -> None:
        super().leave(member, now)
        self._presence.changed(self)
        self._claiming.wake(self)

    # -- what the log says

    def lost(self, position: SharedPosition) -> None:
        """The group was moved, or what this node had taken is no longer its own."""
        self._take_back(position)
        position.clear()

    def landed(self, position: SharedPosition, number: int, now: int) -> None:
        """The claim that this write made is in the log; earlier ones can never be."""
        intent = position.intents.pop(number, None)
        for earlier in [each for each in position.intents if each < number]:
            position.intents.pop(earlier).written.happened = False
        if intent is None:
            return
        intent.written.happened = True
        for offset in intent.returned:
            position.leaving.pop(offset, None)
        self._settle(position, intent)
        for offset, taking in intent.taken.items():
            self._adopt(position, offset, taking, now)

    def _settle(self, position: SharedPosition, intent: Intent) -> None:
        """What the write settled: who submitted it may never hear of it."""
        for offset in intent.settled:
            position.leaving.pop(offset, None)
            event = position.open.get(offset)
            if event is None:
                continue
            if self._parked:
                self._parked = [parked for parked in self._parked if parked[2] is not event]
            member = event.member
            if isinstance(member, Member):
                self._let_go(position, member, event)
                self._host.settled(self, position, offset, 1)
                self._chooser.woken(member)
            self._close(position, event)

    def _adopt(self, position: SharedPosition, offset: int, taking: Taking, now: int) -> None:
        known, owners = taking.known, self._chooser.owners
        event = OpenEvent(offset, deliveries=known.deliveries, nacked=known.refused, reason=known.reason)
        position.open[offset] = event
        if taking.ready is not None:
            position.bodies[offset] = taking.ready
            if owners.active and taking.ready.key is not None:
                event.key = taking.ready.key
                owners.opened(event.key)
                if taking.given_back:  # what is new of its key waits for it
                    owners.held_back(event)
        due = known.due - self._claiming.to_wall() if known.due else 0
        if self.max_attempts and event.deliveries >= self.max_attempts:
            self._bury(position, event)
        elif due > now:
            position.delay(event, due)
            self._check_at(due)
        else:
            position.wait(event)

    # -- delivery

    def deliver(self, now: int) -> None:
        """Give out what this node has; then give back, and take more."""
        self._deliver_again(now)
        self._flush()
        room = self._room()
        for position in self.shared_positions():
            room -= len(position.waiting) + sum(len(intent.taken) for intent in position.intents.values())
        for _ in range(len(self._turns)):
            turn = self._turns[0]
            self._turns.rotate(-1)
            if isinstance(turn, SharedPosition):
                room -= self._exchange(turn, room, now)

    def _room(self) -> int:
        """How many events members here could have now."""
        total = 0
        for member in self._chooser.rotation():
            free, credits = member.window - member.inflight, member.gate.credits
            if not member.gate.paused:
                total += max(0, free if credits is None else min(free, credits))
        return total

    def _exchange(self, position: SharedPosition, room: int, now: int) -> int:
        """One position's turn; how many events are being taken."""
        if position.burying or now < position.wait_until:
            return 0  # it comes again when the write is decided, or when its time has come
        alone = self._presence.may_take(self, position.partition, self._chooser.owners.active)
        if alone is False or not self.members:
            self._give_back_all(position)
        elif alone is None and not self._chooser.someone_has_room:
            self._give_back_waiting(position)
        wanted = Exchange(position)
        if self.members and alone is not False and not position.leaving:
            if alone is None:
                self._choose(position, wanted, room, now)
            elif not self._others_have_some(position):
                self._choose_in_order(position, wanted, room, now)
        if wanted.says_something(position):
            self._claiming.exchange(self, position, wanted)
        return len(wanted.taken)

    def _others_have_some(self, position: SharedPosition) -> bool:
        own = self._presence.epoch
        return any(
            epoch != own and claim.lowest is not None and claim.record.generation == position.generation
            for epoch, claim in position.claims.items()
        )

    def _give_back_waiting(self, position: SharedPosition) -> None:
        while (event := position.next_waiting()) is not None:
            heapq.heappop(position.waiting)
            self._give_up(position, event)

    def _give_back_all(self, position: SharedPosition) -> None:
        """Everything no member holds; what is dying stays until its letter is written."""
        self._parked = [parked for parked in self._parked if parked[0] is not position]
        for event in list(position.open.values()):
            if event.member is None and not event.dying:
                self._give_up(position, event)

    def surrender(self, position: SharedPosition) -> None:
        """The node stops: everything goes back, whatever its state."""
        self._take_back(position)
        for event in list(position.open.values()):
            self._give_up(position, event)

    def _give_up(self, position: SharedPosition, event: OpenEvent) -> None:
        if event.key is not None:
            self._chooser.owners.taken_up(event)
            self._chooser.owners.closed(event.key)
            event.key = None
        position.leave(event)

    # -- what to take

    def _choose(self, position: SharedPosition, wanted: Exchange, room: int, now: int) -> None:
        """Free events first, then new ones, as far as members here accept them and have room."""
        room = min(room, MOST_AT_ONCE, MAX_OPEN - len(position.open))
        rooms = {member: member.window - member.inflight for member in self._chooser.rotation()}
        choosy = self._chooser.choosy
        wall = now + self._claiming.to_wall()
        for offset, known in position.free.items():
            exhausted = self.max_attempts and known.deliveries >= self.max_attempts
            if offset in position.vanished:
                continue
            if known.due > wall and not exhausted:
                self._check_at(now + known.due - wall)
                continue
            if exhausted:
                wanted.taken[offset] = Taking(known, None, at_once=False)
                continue
            if room <= 0:
                return
            ready = position.bodies.get(offset) or position.tail.get(offset)
            if ready is None:
                self._fetch(position, offset)
                return
            if choosy and not _take_room(rooms, ready):
                if not self._someone_accepts(ready):
                    position.vanished.add(offset)  # nobody wants it any more: settled
                continue
            wanted.taken[offset] = Taking(known, ready)
            room -= 1
        if room > 0:
            self._choose_new(position, wanted, room, rooms if choosy else None)

    def _choose_new(
        self, position: SharedPosition, wanted: Exchange, room: int, rooms: dict[Member, int] | None
    ) -> None:
        events = self._upcoming(position, room if rooms is None else MOST_AT_ONCE)
        may_pass = PARKED - len(position.free)
        for ready in events:
            if not self._is_skipped(ready, wanted):
                if rooms is None or _take_room(rooms, ready):
                    if room <= 0:
                        return
                    wanted.taken[ready.offset] = Taking(_NEW, ready)
                    room -= 1
                elif self._someone_accepts(ready):
                    if may_pass <= 0:
                        return
                    may_pass -= 1
                    wanted.passed.append(ready.offset)
            wanted.cursor = ready.offset + 1

    def _choose_in_order(self, position: SharedPosition, wanted: Exchange, room: int, now: int) -> None:
        """Alone in this partition: everything free, also what is not due (its key waits for it), then what is new."""
        missing = None
        for offset, known in position.free.items():
            ready = position.bodies.get(offset) or position.tail.get(offset)
            if offset in position.vanished:
                continue
            if ready is None:
                missing = offset if missing is None else missing
            else:
                wanted.taken[offset] = Taking(known, ready, at_once=False, given_back=True)
        if missing is not None:
            wanted.taken.clear()
            self._fetch(position, missing)
            return
        room = min(room + PARKED - len(self._parked), MOST_AT_ONCE, MAX_OPEN - len(position.open))
        if room <= 0 or not self._chooser.someone_has_room or len(self._parked) >= PARKED:
            return
        for ready in self._upcoming(position, room):
            if not self._is_skipped(ready, wanted):
                wanted.taken[ready.offset] = Taking(_NEW, ready, at_once=False)
            wanted.cursor = ready.offset + 1

    def _upcoming(self, position: SharedPosition, most: int) -> list[ReadyEvent]:
        events = position.upcoming(most)
        if not events and position.cursor <= position.tail.offset:
            self._fetch(position, position.cursor)
        return events

    def _is_skipped(self, ready: ReadyEvent, wanted: Exchange) -> bool:
        """Older than the time the group was sent to."""
        if wanted.skip_before and ready.ts < wanted.skip_before:
            return True
        wanted.skip_before = 0
        return False

    def _someone_accepts(self, ready: ReadyEvent) -> bool:
        return self._chooser.anyone_accepts(ready) or self._presence.someone_else_accepts(self, ready)

    # -- the parts of the one-node machine that differ

    def _place(self, position: Position, ready: ReadyEvent, event: OpenEvent | None, now: int) -> bool:
        """Lease it to someone here. What nobody here can have now goes back, unless its key sticks to this node."""
        assert event is not None
        assert isinstance(position, SharedPosition)
        if self._presence.may_take(self, position.partition, self._chooser.owners.active) is not None:
            return super()._place(position, ready, event, now)
        if not self._someone_accepts(ready):
            return super()._place(position, ready, event, now)
        member = self._chooser.choose(ready, event)
        if member is None:
            if not self._chooser.choosy:
                return False
            heapq.heappop(position.waiting)
            self._give_up(position, event)
            position.bodies[ready.offset] = ready
        else:
            heapq.heappop(position.waiting)
            self._lease(position, member, ready, event, now)
        return True

    def _lease(self, position: Position, member: Member, ready: ReadyEvent, event: OpenEvent, now: int) -> None:
        position.bodies.pop(event.offset, None)
        super()._lease(position, member, ready, event, now)

    def fetched(self, position: Position, epoch: int, start: int, events: list[ReadyEvent], end: int) -> None:
        if position.epoch != epoch:
            return
        assert isinstance(position, SharedPosition)
        super().fetched(position, epoch, start, events, end)
        present = {event.offset: event for event in events}
        for offset in position.free:
            if start <= offset <= end:
                if offset in present:
                    position.bodies[offset] = present[offset]
                else:
                    position.vanished.add(offset)

    def restored(self, now: int) -> None:
        """Nothing was under way here: what former nodes had is taken over like that of any node that is gone."""


def _take_room(rooms: dict[Member, int], ready: ReadyEvent) -> bool:
    for member, room in rooms.items():
        if room > 0 and member.has_room() and member.accepts(ready):
            rooms[member] = room - 1
            return True
    return False
