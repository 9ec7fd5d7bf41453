"""A group: members that share a topic's events, each event leased to one of them at a time.

This is the state machine of delivery, without clocks, sockets or storage. Its inputs are joins, leaves,
acknowledgements, expired leases, events that were read; its outputs go to a `Host`: reads it needs, positions that
changed, events that died. `deliver` moves as many events as there is room for and is cheap when there is nothing to do.

Members share *within* a partition: the default topic has one partition, and a task queue wants many workers. So the
unit of ownership is the event, not the partition. What comes first goes first: waiting events (redeliveries) before new
ones, new ones by ascending offset; partitions take turns.

An event that must wait for one member while others have room (see `chooser.py`) is parked, a bounded number of them, so
that the others can go on. An event that no live member accepts is settled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Final

from mainspring.bus.errors import BadOffset
from mainspring.bus.groups.host import Host
from mainspring.bus.groups.member import Member, up_to
from mainspring.bus.groups.member_choice import Chooser
from mainspring.bus.groups.position import OpenEvent, Position
from mainspring.bus.protocol import json_text
from mainspring.bus.topics.tail import PartitionTail, ReadyEvent

TURN: Final = 64  # events of one partition before the next has its turn
PARKED: Final = 256  # events kept for members without room before the partition waits with them
MAX_OPEN: Final = 20_000  # unsettled events of one partition; a client that delays everything cannot fill the memory
PAGE: Final = 512  # events read at once
RETRY_MS: Final = 1_000  # when the log could not be read or written
COARSEST_CHECK_MS: Final = 1_000


class Group:
    """One group of one topic."""

    def __init__(self, topic: str, name: str, host: Host, *, ack_timeout_ms: int, max_attempts: int) -> None:
        self.topic = topic
        self.name = name
        self.ack_timeout_ms = ack_timeout_ms
        self.max_attempts = max_attempts  # 0: as often as it takes
        self.positions: dict[int, Position] = {}
        self.deleted = False  # while a subscription may still be about to join it
        self._host = host
        self._chooser = Chooser()
        self._turns: deque[Position] = deque()
        self._parked: list[tuple[Position, ReadyEvent, OpenEvent]] = []
        self._check_planned = 0
        self._leases_end = 0  # no lease ends before; 0: there is none
        self._ascending = True  # a member's first deliveries of a partition ascend

    @property
    def members(self) -> list[Member]:
        return self._chooser.members

    # -- partitions

    def add_position(self, tail: PartitionTail, cursor: int = 1) -> Position:
        head = b'{"type":"MESSAGE","topic":%b,"partition":%d,"group":%b,"offset":' % (
            json_text(self.topic),
            tail.partition,
            json_text(self.name),
        )
        position = self._new_position(tail, head, cursor)
        self.positions[tail.partition] = position
        self._turns.append(position)
        return position

    def _new_position(self, tail: PartitionTail, head: bytes, cursor: int) -> Position:
        return Position(tail, head, cursor)

    def seek(self, position: Position, cursor: int, skip_before: int = 0) -> None:
        """Move the whole group in this partition; what members held there is no longer theirs."""
        self._take_back(position)
        position.move(cursor, skip_before)
        self._host.changed(self, position)

    def _take_back(self, position: Position) -> None:
        """Nobody holds anything of this partition any more."""
        for member in self.members:
            for event in list(member.held.get(position.partition, {}).values()):
                self._let_go(position, member, event)
            self._chooser.woken(member)
        self._parked = [parked for parked in self._parked if parked[0] is not position]
        self._chooser.owners.release(position.open.values())

    # -- members

    def join(self, member: Member) -> None:
        self._chooser.join(member)
        self._unpark_if_not_choosy()

    def changed_member(self, member: Member) -> None:
        """Its window or filter is a new one."""
        self._chooser.changed()
        self._chooser.woken(member)
        self._unpark_if_not_choosy()

    def leave(self, member: Member, now: int) -> None:
        """What it held is given back at once."""
        self._chooser.leave(member)
        for partition, held in member.held.items():
            position = self.positions[partition]
            for event in list(held.values()):
                self._let_go(position, member, event)
                self._give_back(position, event, now)
        self._unpark_if_not_choosy()

    def woken(self, member: Member) -> None:
        """It may have room again (credits, or its peer reads again)."""
        self._chooser.woken(member)

    def _unpark_if_not_choosy(self) -> None:
        if self._parked and not self._chooser.choosy:
            parked, self._parked = self._parked, []
            for position, ready, event in parked:
                position.bodies[ready.offset] = ready
                position.wait(event)

    # -- what members say

    def ack(self, member: Member, partition: int, offset: int) -> None:
        """Settle `offset`, and in cumulative mode everything below it that this member holds and did not refuse."""
        position = self._delivered_position(partition, offset)
        held = member.held.get(partition)
        if not held:
            return
        plain = 0
        if member.ack_each:
            settled = [held[offset]] if offset in held else []
        else:
            settled = up_to(offset, held, in_order=self._ascending and not member.retries)
        for event in settled:
            if event.deliveries == 1 and event.key is None:  # `_let_go` and `_close`, for most
                del held[event.offset], position.open[event.offset]
                event.member = None
                plain += 1
            else:
                self._let_go(position, member, event)
                self._close(position, event)
        member.inflight -= plain
        self._host.inflight(-plain)
        if settled:
            self._host.settled(self, position, offset, len(settled))
            self._host.changed(self, position)
            self._chooser.woken(member)

    def nack(self, member: Member, partition: int, offset: int, reason: str, delay_ms: int, now: int) -> bool:
        """Refuse one event; it comes again, after `delay_ms` at the earliest. False: this member does not hold it."""
        position = self._delivered_position(partition, offset)
        event = member.held.get(partition, {}).get(offset)
        if event is None:
            return False
        event.nacked = True
        event.reason = reason[:1_000]
        self._let_go(position, member, event)
        self._give_back(position, event, now, delay_ms)
        self._chooser.woken(member)
        return True

    def extend(self, member: Member, partition: int, offset: int, deadline: int) -> None:
        """The lease ends at `deadline` (monotonic ms) instead."""
        self._delivered_position(partition, offset)
        event = member.held.get(partition, {}).get(offset)
        if event is not None:
            event.deadline = deadline
            self._lease_ends_at(deadline)

    def _delivered_position(self, partition: int, offset: int) -> Position:
        """The position, if this offset was ever given to the group (a backward seek does not unmake that)."""
        position = self.positions.get(partition)
        given = 0 if position is None else min(max(position.cursor - 1, position.floor), position.tail.offset)
        if position is not None and 0 < offset <= given:
            return position
        raise BadOffset(f"offset {offset} of partition {partition} was never delivered to group {self.name!r}")

    def _let_go(self, position: Position, member: Member, event: OpenEvent) -> None:
        """The lease ends."""
        del member.held[position.partition][event.offset]
        member.inflight -= 1
        if event.deliveries > 1:
            member.retries -= 1
        event.member = None
        self._host.inflight(-1)

    def _close(self, position: Position, event: OpenEvent) -> None:
        """The event is settled."""
        if position.open.pop(event.offset, None) is None:
            return
        if event.deliveries != 1:
            position.bodies.pop(event.offset, None)
        if event.key is not None:
            self._chooser.owners.taken_up(event)
            self._chooser.owners.closed(event.key)

    # -- leases that end without an answer

    def check(self, now: int) -> None:
        """End the leases whose time is up, let delayed events wait, and plan the next check."""
        self._check_planned = 0
        for position in self.positions.values():
            position.promote(now)
        if self._leases_end and self._leases_end <= now:
            self._leases_end = self._end_leases(now)
        due = min((position.delayed[0][0] for position in self.positions.values() if position.delayed), default=0)
        following = min(filter(None, (self._leases_end, due)), default=0)
        if following:
            self._check_at(following)

    def _end_leases(self, now: int) -> int:
        """End those whose time is up; when to look again."""
        earliest = 0
        for position in self.positions.values():
            for event in [e for e in position.open.values() if e.member is not None]:
                if event.deadline <= now:
                    self._expire(position, event, now)
                elif not earliest or event.deadline < earliest:
                    earliest = event.deadline
        # Leases end one by one; looking at all of them for each would be quadratic.
        return max(earliest, now + min(self.ack_timeout_ms // 10, COARSEST_CHECK_MS)) if earliest else 0

    def _lease_ends_at(self, deadline: int) -> None:
        if not self._leases_end or deadline < self._leases_end:
            self._leases_end = deadline
            self._check_at(deadline)

    def _expire(self, position: Position, event: OpenEvent, now: int) -> None:
        member = event.member
        assert isinstance(member, Member)
        self._let_go(position, member, event)
        self._give_back(position, event, now)
        self._chooser.woken(member)

    def _check_at(self, deadline: int) -> None:
        if not self._check_planned or deadline < self._check_planned:
            self._check_planned = deadline
            self._host.wake_at(self, deadline)

    def _give_back(self, position: Position, event: OpenEvent, now: int, delay_ms: int = 0) -> None:
        """A delivery failed: again later, or never again."""
        self._chooser.owners.held_back(event)
        if self.max_attempts and event.deliveries >= self.max_attempts:
            self._bury(position, event)
        elif delay_ms:
            position.delay(event, now + delay_ms)
            self._check_at(now + delay_ms)
        else:
            position.wait(event)
        self._host.changed(self, position)

    def restored(self, now: int) -> None:
        """The positions were read from the log: what had its last delivery before the node ended dies now."""
        if self.max_attempts:
            for position in self.positions.values():
                for event in position.open.values():
                    if event.deliveries >= self.max_attempts:
                        self._bury(position, event)
        self.check(now)

    def _bury(self, position: Position, event: OpenEvent) -> None:
        event.dying = True
        self._host.bury(self, position)

    def buried(self, position: Position, events: Iterable[OpenEvent], epoch: int) -> None:
        """Their dead letters are durable (or the events are gone)."""
        if position.epoch == epoch:
            for event in events:
                self._close(position, event)
            self._host.changed(self, position)

    def not_buried(self, position: Position, events: Iterable[OpenEvent], epoch: int, now: int) -> None:
        """Their dead letters could not be written; try again later."""
        if position.epoch == epoch:
            for event in events:
                event.dying = False
                position.delay(event, now + RETRY_MS)
            self._check_at(now + RETRY_MS)

    # -- delivery

    def deliver(self, now: int) -> None:
        """Give out what there is and what there is room for."""
        if not self._chooser.someone_has_room:
            return
        self._deliver_again(now)
        idle = 0
        while self._chooser.someone_has_room and idle < len(self._turns):
            position = self._turns[0]
            self._turns.rotate(-1)
            # What waits in a partition and could not go yet goes before anything new of it.
            ready = position.cursor <= position.tail.offset and not position.waiting and not self._is_unread(position)
            idle = 0 if ready and self._deliver_new(position, now) else idle + 1
        self._flush()

    def _deliver_again(self, now: int) -> None:
        """What was kept for a member without room, and what waits."""
        if self._parked:
            self._deliver_parked(now)
        for position in self._turns:
            if position.delayed:
                position.promote(now)
            if self._is_unread(position):
                self._fetch(position, position.unread[0])
            elif position.waiting:
                self._deliver_waiting(position, now)

    def _is_unread(self, position: Position) -> bool:
        """Whether others may have to wait for events whose keys are not known yet."""
        return bool(position.unread) and self._chooser.owners.active

    def _flush(self) -> None:
        for member in self.members:
            if member.unsent:
                member.flush()

    def _deliver_new(self, position: Position, now: int) -> bool:
        """Up to one turn's worth of this partition; whether anything moved."""
        before = position.cursor
        events = position.upcoming(min(TURN, MAX_OPEN - len(position.open)))
        if not events and before <= position.tail.offset and len(position.open) < MAX_OPEN:
            self._fetch(position, before)
        only = self._chooser.only_member
        if only is not None and not position.skip_before:
            self._lease_run(position, only, events, now)
        else:
            for ready in events:
                if not self._place(position, ready, None, now):
                    break
        if position.cursor != before:
            self._host.changed(self, position)
            return True
        return False

    def _deliver_waiting(self, position: Position, now: int) -> None:
        """Redeliveries, until there are no more or nobody has room."""
        while (event := position.next_waiting()) is not None:
            if self.max_attempts and event.deliveries >= self.max_attempts:  # its burial failed, or the limit is new
                self._bury(position, event)
                continue
            ready = position.bodies.get(event.offset) or position.tail.get(event.offset)
            if ready is None:
                self._fetch(position, event.offset)
                return
            if not self._place(position, ready, event, now):
                return
            self._host.changed(self, position)

    def _fetch(self, position: Position, start: int) -> None:
        if not position.fetching:
            position.fetching = True
            self._host.fetch(self, position, start, PAGE)

    def fetched(self, position: Position, epoch: int, start: int, events: list[ReadyEvent], end: int) -> None:
        """The log's answer: every event from `start` to `end` that still exists."""
        if position.epoch != epoch:
            return
        position.fetching = False
        present = {event.offset: event for event in events}
        gone = [e for e in position.open.values() if start <= e.offset <= end and e.offset not in present]
        for event in gone:
            if event.member is None and not event.dying:
                self._close(position, event)
        for offset in position.waiting:
            if offset in present:
                position.bodies[offset] = present[offset]
        if position.unread:
            self._read_keys(position, present, start, end)
        if start <= position.cursor <= end:
            position.ahead = [event for event in events if event.offset >= position.cursor]
            position.ahead_at = 0
            if not position.ahead:
                position.cursor = end + 1
        if gone or not position.ahead:
            self._host.changed(self, position)

    def _read_keys(self, position: Position, present: dict[int, ReadyEvent], start: int, end: int) -> None:
        """Of events that were restored with a delay: later ones of their keys wait for them, as before."""
        for offset in position.unread:
            event, ready = position.open.get(offset), present.get(offset)
            if event is not None and ready is not None:
                self._has_key(event, ready)
                if event.member is None and not event.dying:
                    self._chooser.owners.held_back(event)
        position.unread = [offset for offset in position.unread if not start <= offset <= end]

    def _has_key(self, event: OpenEvent, ready: ReadyEvent) -> None:
        """Its key matters now, also when it was opened before that was known."""
        if event.key is None and ready.key is not None and self._chooser.owners.active:
            event.key = ready.key
            self._chooser.owners.opened(ready.key)

    def not_fetched(self, position: Position, epoch: int, now: int) -> None:
        """The log could not be read; try again later."""
        if position.epoch == epoch:
            position.fetching = False
            self._check_at(now + RETRY_MS)

    def _place(self, position: Position, ready: ReadyEvent, event: OpenEvent | None, now: int) -> bool:
        """Lease the event to someone, park it or settle it. False: it must stay where it is, nobody has room."""
        if position.skip_before and event is None:
            if ready.ts < position.skip_before:
                position.cursor = ready.offset + 1
                return True
            position.skip_before = 0
        if not self._chooser.anyone_accepts(ready):
            if event is None:
                position.cursor = ready.offset + 1
            else:
                heapq.heappop(position.waiting)
                self._close(position, event)
            return True
        if event is not None:
            self._has_key(event, ready)
        member = self._chooser.choose(ready, event)
        if member is None and not (self._chooser.choosy and len(self._parked) < PARKED):
            return False
        if event is None:
            event = self._opened(position, ready)
        else:
            heapq.heappop(position.waiting)
        if member is None:
            self._parked.append((position, ready, event))
            self._ascending = False  # it goes out behind higher ones
        else:
            self._lease(position, member, ready, event, now)
        return True

    def _opened(self, position: Position, ready: ReadyEvent) -> OpenEvent:
        event = OpenEvent(ready.offset)
        position.open[ready.offset] = event
        position.cursor = ready.offset + 1
        self._has_key(event, ready)
        return event

    def _lease(self, position: Position, member: Member, ready: ReadyEvent, event: OpenEvent, now: int) -> None:
        event.member = member
        event.deadline = now + self.ack_timeout_ms
        event.deliveries += 1
        held = member.held.get(position.partition)
        if held is None:
            held = member.held[position.partition] = {}
        held[event.offset] = event
        member.inflight += 1
        if position.bodies:
            position.bodies.pop(event.offset, None)
        if event.deliveries > 1:
            member.retries += 1
            self._chooser.owners.taken_up(event)
        gate = member.gate
        if gate.credits is not None:
            gate.credits -= 1
        self._lease_ends_at(event.deadline)
        self._host.inflight(1)
        self._host.delivered(self, position, event.offset, event.deliveries, 1)
        member.deliver(position, ready, event.deliveries)

    def _lease_run(self, position: Position, member: Member, events: list[ReadyEvent], now: int) -> None:
        """First deliveries to a group's only member, which takes them in order: `_place` without the questions."""
        events = events[: member.room()]
        held = member.held.setdefault(position.partition, {})
        deadline = now + self.ack_timeout_ms
        if member.batch > 1:
            events = events[: member.batch - len(member.unsent)]
            leases = {ready.offset: OpenEvent(ready.offset, member, deadline, 1) for ready in events}
            position.open.update(leases)
            held.update(leases)
            member.deliver_together(position, events)
        else:
            for count, ready in enumerate(events, 1):
                position.open[ready.offset] = held[ready.offset] = OpenEvent(ready.offset, member, deadline, 1)
                member.deliver(position, ready, 1)
                if member.gate.paused:  # by what was just sent
                    events = events[:count]
                    break
        if events:
            position.cursor = events[-1].offset + 1
            member.inflight += len(events)
            if member.gate.credits is not None:
                member.gate.credits -= len(events)
            self._lease_ends_at(deadline)
            self._host.inflight(len(events))
            self._host.delivered(self, position, events[-1].offset, 1, len(events))

    def _deliver_parked(self, now: int) -> None:
        chooser = self._chooser
        kept = []
        stuck: set[str | None] = set()  # keys whose first parked event had to stay
        for position, ready, event in self._parked:
            if not chooser.anyone_accepts(ready):
                self._close(position, event)
                self._host.changed(self, position)
                continue
            # An event the others of its key wait for goes first, also when it was parked behind one of them.
            held_back = ready.key in stuck and not event.holds_key
            member = None if held_back else chooser.choose(ready, event)
            if member is None:
                kept.append((position, ready, event))
                if ready.key is not None and chooser.owners.active:
                    stuck.add(ready.key)
            else:
                self._lease(position, member, ready, event, now)
        self._parked = kept
