"""A group: members that share a topic's events, each event leased to one of them at a time.

This is the state machine of delivery, without clocks, sockets or storage. Its inputs are joins, leaves,
acknowledgements, expired leases, events that were read; its outputs go to `Delivery`: reads it needs, positions that
changed, dead letters to write. Where new events come from is the business of its `Supply`: the end of each partition,
or what this node has taken from a log that it shares.

Members share *within* a partition: the default topic has one partition, and a task queue wants many workers. So the
unit of ownership is the event, not the partition. What comes first goes first: waiting events (redeliveries) before new
ones, new ones by ascending offset; partitions take turns.

An event that must wait for one member while others have room (see `member_choice.py`) is parked, a bounded number of
them, so that the others can go on. An event that no live member accepts is settled.

A lease is given by `_lease` and `_lease_run`, and ended by `end_lease`. What becomes of the event then is a second
decision: it is closed (settled), it is redelivered by this group (`redeliver`), or, where nodes share the group, it is
returned to all of them (the supply's `return_to_group`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.bus.errors import BadOffset
from mainspring.bus.groups.member import Member, up_to
from mainspring.bus.groups.member_choice import MemberChoice
from mainspring.bus.groups.position import OpenEvent, Position
from mainspring.bus.topics.tail import PartitionTail, ReadyEvent
from mainspring.loop import Clock
from mainspring.telemetry import KeptError, error_keeping

if TYPE_CHECKING:
    from mainspring.bus.groups.delivery import Delivery
    from mainspring.bus.groups.supply import Supply
    from mainspring.bus.topics.topic import Topic

TURN: Final = 64  # events of one partition before the next has its turn
PARKED: Final = 256  # events kept for members without room before the partition waits with them
MAX_OPEN: Final = 20_000  # unsettled events of one partition; a client that delays everything cannot fill the memory
PAGE: Final = 512  # events read at once
RETRY_MS: Final = 1_000  # when the log could not be read or written
COARSEST_CHECK_MS: Final = 1_000
DAMAGED: Final = "the stored event is damaged"


class LeaseView(msgspec.Struct, frozen=True, gc=False):
    """One event a group was given and has not settled.

    `state` is leased, waiting (to be delivered again), delayed or dying (its dead letter is being written). `until` is
    the end of the lease or of the delay (epoch ms), 0 where there is none; `reason` is why it was refused. `epoch` is
    that of another node that has it; 0: this node, or none.
    """

    partition: int
    offset: int
    state: str
    deliveries: int
    until: int
    key: str | None = None
    reason: str = ""
    epoch: int = 0


class Group:
    """One group of one topic."""

    def __init__(self, topic: Topic, name: str, delivery: Delivery, supply: Supply) -> None:
        self.topic = topic
        self.name = name
        self.ack_timeout_ms: int = 1
        self.max_attempts: int = 0  # 0: as often as it takes
        self.positions: dict[int, Position] = {}
        self.deleted = False  # while a subscription may still be about to join it
        self.choice: MemberChoice = MemberChoice()
        self.turns: deque[Position] = deque()
        self.parked: list[tuple[Position, ReadyEvent, OpenEvent]] = []
        self._delivery = delivery
        self._supply = supply
        self._check_planned = 0
        self._leases_end = 0  # no lease ends before; 0: there is none
        self._ascending = True  # a member's first deliveries of a partition ascend

    @property
    def members(self) -> list[Member]:
        return self.choice.members

    def add_position(self, tail: PartitionTail, cursor: int = 1) -> Position:
        """The group in a partition that it was not in before."""
        position = Position(self, tail, cursor)
        self._supply.add_position(position)
        self.positions[tail.partition] = position
        self.turns.append(position)
        return position

    # -- members

    def join(self, member: Member) -> None:
        self.topic.active[self] = None
        self.choice.join(member)
        self._members_changed()

    def changed_member(self, member: Member) -> None:
        """Its window or filter is a new one."""
        self.choice.on_members_changed()
        self.choice.recheck_room(member)
        self._members_changed()

    def leave(self, member: Member, now: int) -> None:
        """What it held is delivered again at once."""
        self.choice.leave(member)
        for partition, held in member.held.items():
            position = self.positions[partition]
            for event in list(held.values()):
                self.end_lease(position, event)
                self.redeliver(position, event, now)
        self._members_changed()
        if self.members:
            self._delivery.wake(self)
        else:
            self.topic.deactivate(self)

    def _members_changed(self) -> None:
        if self.parked and not self.choice.selective:
            parked, self.parked = self.parked, []
            for position, ready, event in parked:
                position.bodies[ready.offset] = ready
                position.wait(event)
        self._supply.on_members_changed(self)

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
            if event.deliveries == 1 and event.key is None:  # `end_lease` and `close`, for most
                del held[event.offset], position.open[event.offset]
                event.member = None
                plain += 1
            else:
                self.end_lease(position, event)
                self.close(position, event)
        member.inflight -= plain
        self._delivery.inflight(-plain)
        if settled:
            self._delivery.settled(position, offset, len(settled))
            self._delivery.changed(position)
            self.choice.recheck_room(member)

    def nack(
        self,
        member: Member,
        partition: int,
        offset: int,
        reason: str,
        delay_ms: int | None,
        now: int,
        failure: BaseException | KeptError | None = None,
    ) -> bool:
        """Refuse one event; it comes again, after `delay_ms` at the earliest. False: this member does not hold it.

        `delay_ms` None: it does not come again, but is a dead letter. `failure` is kept with a dead letter.
        """
        position = self._delivered_position(partition, offset)
        event = member.held.get(partition, {}).get(offset)
        if event is None:
            return False
        event.nacked = True
        event.reason = reason[:1_000]
        self.end_lease(position, event)
        self.redeliver(position, event, now, delay_ms)
        if event.dying and failure is not None:
            event.failure = _kept(failure)
        self.choice.recheck_room(member)
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

    # -- leases that end

    def end_lease(self, position: Position, event: OpenEvent) -> None:
        """Its member no longer holds the event; what becomes of it is decided separately."""
        member = event.member
        assert member is not None
        del member.held[position.partition][event.offset]
        member.inflight -= 1
        if event.deliveries > 1:
            member.retries -= 1
        if event.key is not None:
            self.choice.owners.leased(event.key, -1)
        event.member = None
        self._delivery.inflight(-1)

    def end_leases(self, position: Position) -> None:
        """Members no longer hold anything of this partition, and nothing is kept for them."""
        for member in self.members:
            for event in list(member.held.get(position.partition, {}).values()):
                self.end_lease(position, event)
            self.choice.recheck_room(member)
        self.unpark(position)
        for event in position.open.values():
            self.choice.owners.release(event)

    def unpark(self, position: Position) -> None:
        """Keep nothing of this partition for members without room."""
        if self.parked:
            self.parked = [parked for parked in self.parked if parked[0] is not position]

    def close(self, position: Position, event: OpenEvent) -> None:
        """The event is settled."""
        if position.open.pop(event.offset, None) is None:
            return
        if event.deliveries != 1:
            position.bodies.pop(event.offset, None)
        if event.key is not None:
            self.choice.owners.release(event)

    def settle(self, position: Position, offsets: Iterable[int], resets: int) -> None:
        """A batch that settles these events is durable; `resets` are the position's of when it was made."""
        if position.resets != resets:
            return
        for offset in offsets:
            event = position.open.get(offset)
            if event is None:
                continue
            member = event.member
            if member is not None:
                self.end_lease(position, event)
                self._delivery.settled(position, offset, 1)
                self.choice.recheck_room(member)
            elif self.parked:
                self.parked = [parked for parked in self.parked if parked[2] is not event]
            self.close(position, event)
        self._delivery.changed(position)

    def redeliver(self, position: Position, event: OpenEvent, now: int, delay_ms: int | None = 0) -> None:
        """A delivery failed: the event comes again, or becomes a dead letter when this was its last attempt."""
        self.choice.owners.hold_back(event)
        if delay_ms is None and not self.topic.has_dead_letters:
            delay_ms = RETRY_MS
        if delay_ms is None or self._is_exhausted(event):
            self._write_dead_letter(position, event)
        elif delay_ms:
            position.delay(event, now + delay_ms)
            self.check_at(now + delay_ms)
        else:
            position.wait(event)
        self._delivery.changed(position)

    def reopen(self, position: Position, offsets: Iterable[int]) -> None:
        """Settled events come again."""
        position.reopen(offsets)
        self._ascending = False  # they may be lower than what a member already has
        self._delivery.wake(self)

    def check(self, now: int) -> None:
        """End the leases whose time is up, let delayed events wait, and plan the next check."""
        self._check_planned = 0
        for position in self.positions.values():
            position.promote(now)
        if self._leases_end and self._leases_end <= now:
            self._leases_end = self._end_expired_leases(now)
        due = min((position.delayed[0][0] for position in self.positions.values() if position.delayed), default=0)
        following = min(filter(None, (self._leases_end, due)), default=0)
        if following:
            self.check_at(following)

    def _end_expired_leases(self, now: int) -> int:
        """End those whose time is up; when to look again."""
        earliest = 0
        for position in self.positions.values():
            for event in list(position.open.values()):
                member = event.member
                if member is None:
                    continue
                if event.deadline <= now:
                    self.end_lease(position, event)
                    self.redeliver(position, event, now)
                    self.choice.recheck_room(member)
                elif not earliest or event.deadline < earliest:
                    earliest = event.deadline
        # Leases end one by one; looking at all of them for each would be quadratic.
        return max(earliest, now + min(self.ack_timeout_ms // 10, COARSEST_CHECK_MS)) if earliest else 0

    def _lease_ends_at(self, deadline: int) -> None:
        if not self._leases_end or deadline < self._leases_end:
            self._leases_end = deadline
            self.check_at(deadline)

    def check_at(self, deadline: int) -> None:
        """Look at delays and leases at this monotonic ms, if not earlier."""
        if not self._check_planned or deadline < self._check_planned:
            self._check_planned = deadline
            self._delivery.wake_at(self, deadline)

    # -- dead letters

    def _is_exhausted(self, event: OpenEvent) -> bool:
        return bool(self.max_attempts) and event.deliveries >= self.max_attempts

    def _write_dead_letter(self, position: Position, event: OpenEvent) -> None:
        event.dying = True
        self._delivery.write_dead_letters(position)

    def retry_dead_letters(self, position: Position, events: Iterable[OpenEvent], resets: int, now: int) -> None:
        """The dead letters of these events could not be written; try again later."""
        if position.resets == resets:
            for event in events:
                event.dying = False
                position.delay(event, now + RETRY_MS)
            self.check_at(now + RETRY_MS)

    def on_restored(self, now: int) -> None:
        """The positions were read from the log: what had its last attempt before the node ended dies now."""
        for position in self.positions.values():
            for event in position.open.values():
                if self._is_exhausted(event):
                    self._write_dead_letter(position, event)
        self.check(now)

    # -- delivery

    def adopt(self, position: Position, event: OpenEvent, ready: ReadyEvent | None, due: int, now: int) -> None:
        """Deliver an event that this node took from the others; `due`: not before."""
        position.open[event.offset] = event
        self._ascending = False  # it may be lower than what a member already has
        if ready is not None:
            position.bodies[event.offset] = ready
            self._note_key(event, ready)
        if self._is_exhausted(event):
            self.choice.owners.hold_back(event)
            self._write_dead_letter(position, event)
        elif due > now:
            self.choice.owners.hold_back(event)
            position.delay(event, due)
            self.check_at(due)
        else:  # its turn comes by its offset; an earlier one of its key that is delayed holds it back
            position.wait(event)

    def deliver_again(self, now: int) -> None:
        """What was kept for a member without room, and what waits."""
        if self.parked:
            self._deliver_parked(now)
        for position in self.turns:
            if position.delayed:
                position.promote(now)
            if self.lacks_keys(position):
                self.fetch(position, position.unread[0])
            elif position.waiting:
                self._deliver_waiting(position, now)

    def lacks_keys(self, position: Position) -> bool:
        """Whether other events may have to wait for events whose keys have not been read yet."""
        return bool(position.unread) and self.choice.owners.active

    def flush(self) -> None:
        """Send the MESSAGES frames that are not full."""
        for member in self.members:
            if member.unsent:
                member.flush()

    def deliver_new(self, position: Position, now: int) -> bool:
        """Up to one turn's worth of this partition; whether anything moved."""
        before = position.cursor
        events = position.upcoming(min(TURN, MAX_OPEN - len(position.open)))
        if not events and before <= position.tail.offset and len(position.open) < MAX_OPEN:
            self.fetch(position, before)
        only = self.choice.only_member
        if position.tail.expiring:
            self._place_unexpired(position, events, now)
        elif only is not None and not position.skip_before:
            self._lease_run(position, only, events, now)
        else:
            for ready in events:
                if not self._place(position, ready, None, now):
                    break
        if position.cursor != before:
            self._delivery.changed(position)
            return True
        return False

    def is_expired(self, position: Position, ready: ReadyEvent) -> bool:
        """Whether the event is settled because its time is over."""
        return position.tail.expiring and self._delivery.is_expired(position, ready)

    def _place_unexpired(self, position: Position, events: list[ReadyEvent], now: int) -> None:
        for ready in events:
            if self.is_expired(position, ready):
                position.cursor = ready.offset + 1
            elif not self._place(position, ready, None, now):
                break

    def _deliver_waiting(self, position: Position, now: int) -> None:
        """Redeliveries, until there are no more or no member has room."""
        while (event := position.next_waiting()) is not None:
            if self._is_exhausted(event):  # its dead letter could not be written, or the limit is new
                self._write_dead_letter(position, event)
                continue
            ready = position.body(event.offset)
            if ready is None:
                self.fetch(position, event.offset)
                return
            if self.is_expired(position, ready):
                self.close(position, event)
            elif (event.deliveries and not self._supply.may_redeliver(position, event)) or not self._place(
                position, ready, event, now
            ):
                return
            self._delivery.changed(position)

    def fetch(self, position: Position, start: int) -> None:
        """Have a page of events read from `start` on; the answer is `fetched` or `not_fetched`."""
        if not position.fetching:
            position.fetching = True
            self._delivery.fetch(position, start)

    def fetched(
        self,
        position: Position,
        resets: int,
        start: int,
        events: list[ReadyEvent],
        end: int,
        damaged: Sequence[int] = (),
    ) -> None:
        """The log's answer: every event from `start` to `end` that still exists, and which of them are `damaged`."""
        if position.resets != resets:
            return
        position.fetching = False
        if damaged:
            self._pass_damaged(position, damaged)
        present = {event.offset: event for event in events}
        gone = [e for e in position.open.values() if start <= e.offset <= end and e.offset not in present]
        for event in gone:
            if event.member is None and not event.dying:
                self.close(position, event)
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
            self._delivery.changed(position)
        self._supply.on_fetched(position, present, start, end)

    def _pass_damaged(self, position: Position, offsets: Sequence[int]) -> None:
        """No member can be given these: what is left of them becomes dead letters. They come before other events."""
        for offset in offsets:
            event = position.open.get(offset)
            if event is None and offset >= position.cursor and self._supply.takes_unclaimed:
                event = position.open[offset] = OpenEvent(offset)
                position.cursor = offset + 1
            if event is not None and event.member is None and not event.dying and self.topic.has_dead_letters:
                event.reason = DAMAGED
                self._write_dead_letter(position, event)
        self._delivery.changed(position)

    def _read_keys(self, position: Position, present: dict[int, ReadyEvent], start: int, end: int) -> None:
        """Of events that were restored with a delay: later ones of their keys wait for them, as before."""
        for offset in position.unread:
            event, ready = position.open.get(offset), present.get(offset)
            if event is not None and ready is not None:
                self._note_key(event, ready)
                if event.member is None and not event.dying:
                    self.choice.owners.hold_back(event)
        position.unread = [offset for offset in position.unread if not start <= offset <= end]

    def _note_key(self, event: OpenEvent, ready: ReadyEvent) -> None:
        """Its key matters once a member is sticky, also when the event was opened before that."""
        if event.key is None and ready.key is not None and self.choice.owners.active:
            self.choice.owners.take(event, ready.key)

    def not_fetched(self, position: Position, resets: int, now: int) -> None:
        """The log could not be read; try again later."""
        if position.resets == resets:
            position.fetching = False
            self.check_at(now + RETRY_MS)

    def _place(self, position: Position, ready: ReadyEvent, event: OpenEvent | None, now: int) -> bool:
        """Lease the event to a member, park it or settle it. False: it must stay where it is, no member has room."""
        if position.skip_before and event is None:
            if ready.ts < position.skip_before:
                position.cursor = ready.offset + 1
                return True
            position.skip_before = 0
        choice = self.choice
        if not choice.anyone_accepts(ready):
            if event is None:
                position.cursor = ready.offset + 1
                return True
            if not self._supply.accepted_remotely(self, ready):
                heapq.heappop(position.waiting)
                self.close(position, event)
                return True
        if event is not None:
            self._note_key(event, ready)
        member = choice.choose(ready, event)
        if member is None:
            if not choice.selective:
                return False
            if event is not None and self._supply.return_unplaced(position, event, ready):
                return True
            if len(self.parked) >= PARKED:
                return False
        if event is None:
            event = self._opened(position, ready)
        else:
            heapq.heappop(position.waiting)
        if member is None:
            self.parked.append((position, ready, event))
            self._ascending = False  # it goes out behind higher ones
        else:
            self._lease(position, member, ready, event, now)
        return True

    def _opened(self, position: Position, ready: ReadyEvent) -> OpenEvent:
        event = OpenEvent(ready.offset)
        position.open[ready.offset] = event
        position.cursor = ready.offset + 1
        self._note_key(event, ready)
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
            self.choice.owners.let_pass(event)
        if event.key is not None:
            self.choice.owners.leased(event.key, 1)
        gate = member.gate
        if gate.credits is not None:
            gate.credits -= 1
        self._lease_ends_at(event.deadline)
        self._delivery.inflight(1)
        self._delivery.delivered(position, event.offset, event.deliveries, 1)
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
            self._delivery.inflight(len(events))
            self._delivery.delivered(position, events[-1].offset, 1, len(events))

    def _deliver_parked(self, now: int) -> None:
        choice = self.choice
        kept = []
        stuck: set[str | None] = set()  # keys whose first parked event had to stay
        for position, ready, event in self.parked:
            unwanted = not choice.anyone_accepts(ready) and not self._supply.accepted_remotely(self, ready)
            if unwanted or self.is_expired(position, ready):
                self.close(position, event)
                self._delivery.changed(position)
                continue
            # An event the others of its key wait for goes first, also when it was parked behind one of them.
            held_back = ready.key in stuck and not event.holds_key
            member = None if held_back else choice.choose(ready, event)
            if member is None:
                if self._supply.return_unplaced(position, event, ready):
                    continue
                kept.append((position, ready, event))
                if ready.key is not None and choice.owners.active:
                    stuck.add(ready.key)
            else:
                self._lease(position, member, ready, event, now)
        self.parked = kept

    # -- looking at it

    def leases(self, clock: Clock, limit: int) -> list[LeaseView]:
        """The open events by partition and offset, at most so many of each partition.

        Read on request; nothing is kept for it. Where several nodes share the group, the claims of the others say what
        they have and how often it was delivered, not until when.
        """
        wall = clock.wall_ms()
        to_wall = wall - clock.now_ms()
        views: list[LeaseView] = []
        for number, position in sorted(self.positions.items()):
            here = [_view(number, event, to_wall) for event in list(position.open.values())[:limit]]
            there = self._supply.remote_leases(position, wall)
            views += sorted([*here, *there], key=lambda view: view.offset)[:limit]
        return views


def _view(partition: int, event: OpenEvent, to_wall: int) -> LeaseView:
    if event.dying:
        state, until = "dying", 0
    elif event.member is not None:
        state, until = "leased", event.deadline
    elif event.due:
        state, until = "delayed", event.due
    else:
        state, until = "waiting", 0
    return LeaseView(
        partition, event.offset, state, event.deliveries, until + to_wall if until else 0, event.key, event.reason
    )


def _kept(failure: BaseException | KeptError) -> KeptError:
    return error_keeping.received(failure) if isinstance(failure, KeptError) else error_keeping.keep(failure)
