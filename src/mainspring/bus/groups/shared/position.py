"""Where a group stands in one partition that several nodes work on.

The **shared record** says what no node has: the next offset that none has taken (the cursor), and the events below it
that are free, because a node returned them or died. What nodes have taken is in their **claims**, one record each. An
event is in exactly one of these places, or settled. Every commit that moves an event changes both places at once, under
the versions they had; so two nodes can never have the same event.

`Position.open` is what this node has taken and not settled, with the same states as on a node that is alone. Where the
group as a whole stands follows from all the records; every node is shown all of them and so says the same.

A write whose answer was lost may have happened, or may happen yet. Until the log says which (every claim carries the
number of the write it came from), what it would take is not delivered, and what it would return is not delivered
either. Each later write expects the same versions, so at most one of them can ever happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mainspring.bus.groups.position import (
    NEW,
    OpenEvent,
    Position,
    PositionRecord,
    PositionWrite,
    UnsettledEvent,
    UnsettledFields,
    pack,
)
from mainspring.bus.groups.shared.records import ClaimRecord
from mainspring.bus.topics.tail import ReadyEvent
from mainspring.log import ABSENT


class TakenEvent(msgspec.Struct, frozen=True, gc=False):
    """An event that is being taken: its state, and its body where that was read.

    `at_once`: a member has room for it, so it counts as delivered with the write that takes it.
    """

    state: UnsettledEvent
    ready: ReadyEvent | None
    at_once: bool = True


class ClaimWrite(msgspec.Struct, frozen=True):
    """A write of this node's claim that is under way or in doubt, and what it does once it is stored."""

    outcome: PositionWrite
    taken: Mapping[int, TakenEvent] = {}
    returned: tuple[int, ...] = ()
    settled: frozenset[int] = frozenset()


class Claim(msgspec.Struct, frozen=True):
    """A node's claim as the log holds it."""

    version: int
    record: ClaimRecord
    lowest: int | None


class SharedPosition:
    """What one of several nodes knows of a position, besides what a node that is alone knows (`Position`)."""

    def __init__(self, position: Position) -> None:
        self.position: Position = position
        self.version: int = ABSENT  # of the shared record
        self.moves: int = 0  # how often the group was moved: the `generation` of the shared record
        self.next_offset: int = position.cursor  # the shared record's cursor; this node may know that nothing is there
        self.last_committed: int = 0
        self.free: dict[int, UnsettledEvent] = {}  # any node may take them
        self.vanished: set[int] = set()  # free events that do not exist any more, or that no member accepts
        self.claims: dict[int, Claim] = {}  # by epoch, this node's own as well
        self.returning: dict[int, OpenEvent] = {}  # to be returned to the group with the next write
        self.writes: dict[int, ClaimWrite] = {}  # by number: under way, or in doubt
        self.lost: bool = False  # the group was moved, or this node's claim was taken: nothing here is its own
        self.retry_at: int = 0  # monotonic ms before which nothing is written: the last write failed
        self.failures: int = 0  # writes in a row
        self.turn: tuple[int, int] | None = None  # the version at which there is something to take, and since when
        self.counting: set[int] = set()  # events whose next attempt is stored before it is made
        self._counted: tuple[int, dict[int, int]] = (ABSENT, {})  # by the version of this node's claim: deliveries

    # -- what the log says

    def on_record_changed(self, record: PositionRecord, version: int) -> bool:
        """The shared record was written; whether that is new."""
        if version <= self.version:
            return False
        position = self.position
        if self.version == ABSENT or record.generation != self.moves:
            self.lost = self.lost or self.version != ABSENT
            position.durable = position.committed()  # who waited beyond the tail has not settled what was not there
            position.cursor = record.cursor
            position.ahead.clear()
            position.ahead_at = 0
        else:
            position.cursor = max(position.cursor, record.cursor)
        self.version, self.moves, position.stored = version, record.generation, True
        self.next_offset, position.skip_before = record.cursor, record.skip_before
        self.last_committed = max(self.last_committed, record.last_committed)
        self.free = record.fields().events()
        self.vanished.intersection_update(self.free)
        return True

    def on_record_deleted(self) -> None:
        """The group was deleted; a node that still has members of it starts it again."""
        self.version, self.position.stored, self.lost = ABSENT, False, True
        self.free.clear()
        self.claims.clear()

    def on_claim_changed(self, epoch: int, record: ClaimRecord, version: int) -> bool:
        """A claim was written; whether that is new."""
        claim = self.claims.get(epoch)
        if claim is not None and version <= claim.version:
            return False
        self.claims[epoch] = Claim(version, record, record.lowest())
        return True

    def update(self) -> None:
        """Say anew where the group as a whole stands; when all records of a commit were shown."""
        position = self.position
        lowest = [claim.lowest for claim in self.claims.values() if claim.record.generation == self.moves]
        below = min([self.next_offset, *self.free, *(offset for offset in lowest if offset is not None)])
        position.durable = max(position.durable, self.last_committed, below - 1)
        position.floor = max(position.floor, self.last_committed)
        if position.ends:
            kept = position.open.keys() | self.returning.keys()
            position.ends = {offset: ends for offset, ends in position.ends.items() if offset in kept}

    def forget_bodies(self) -> None:
        """Bodies are only kept for what may be delivered from here."""
        position, free = self.position, self.free
        if len(position.bodies) > len(position.open) + len(free):
            position.bodies = {
                offset: body for offset, body in position.bodies.items() if offset in position.open or offset in free
            }

    def claim_version(self, epoch: int) -> int:
        claim = self.claims.get(epoch)
        return ABSENT if claim is None else claim.version

    def other_claims(self, own: int) -> list[ClaimRecord]:
        """What other nodes have; `own` is this node's epoch."""
        return [
            claim.record
            for epoch, claim in self.claims.items()
            if epoch != own and claim.record.generation == self.moves
        ]

    def unsettled(self) -> set[int]:
        """What some node has or any node may take."""
        claimed = [
            claim.record.fields().events() for claim in self.claims.values() if claim.record.generation == self.moves
        ]
        return set(self.free).union(*claimed)

    # -- what a write says

    def held(
        self,
        to_wall: int,
        *,
        without: frozenset[int] = frozenset(),
        taken: Mapping[int, TakenEvent] = {},
        returning: Mapping[int, OpenEvent] = {},
    ) -> UnsettledFields:
        """The content of this node's claim, `returning` where the write does not return it yet."""
        events = {
            offset: self._state(event, to_wall)
            for offset, event in (*self.position.open.items(), *returning.items())
            if offset not in without
        }
        if self.counting:
            opened = self.position.open
            self.counting = {each for each in self.counting if each in opened and opened[each].member is None}
            for offset in self.counting - without:
                events[offset] = msgspec.structs.replace(events[offset], deliveries=events[offset].deliveries + 1)
        for offset, event in taken.items():
            state = event.state
            if event.at_once:
                state = msgspec.structs.replace(state, deliveries=state.deliveries + 1)
            events[offset] = state
        return pack(events)

    def has_counted(self, event: OpenEvent, epoch: int) -> bool:
        """Whether this node's claim, as it is in the log, counts the next attempt; if not, the next write will."""
        claim = self.claims.get(epoch)
        if claim is not None:
            if self._counted[0] != claim.version:
                self._counted = (claim.version, {each[0]: each[1] for each in claim.record.retried})
            if self._counted[1].get(event.offset, 0) > event.deliveries:
                return True
        self.counting.add(event.offset)
        return False

    def free_after(
        self, to_wall: int, taken: Iterable[int], passed: Iterable[int], orphans: Iterable[ClaimRecord]
    ) -> UnsettledFields:
        """The free events when this node has taken, passed on and returned, and orphaned claims have lost theirs."""
        free = dict(self.free)
        for offset in (*taken, *self.vanished):
            free.pop(offset, None)
        for offset in passed:
            free[offset] = NEW
        for offset, event in self.returning.items():
            free[offset] = self._state(event, to_wall)
        for record in orphans:
            if record.generation == self.moves:
                events = record.fields().events()
                if record.in_process:
                    events = {offset: event.after_end() for offset, event in events.items()}
                free.update(events)
        return pack(free)

    def _state(self, event: OpenEvent, to_wall: int) -> UnsettledEvent:
        state = event.state(to_wall)
        if event.offset in self.position.ends:
            ended, noted = self.position.ends[event.offset]
            state = msgspec.structs.replace(state, ended=ended, noted=noted)
        return state

    # -- what becomes of this node's events

    def return_to_group(self, event: OpenEvent) -> None:
        """Any node may have it after the next write; from now on it is not this node's to deliver."""
        position = self.position
        position.group.choice.owners.release(event)
        position.open.pop(event.offset, None)
        event.dying = False
        self.returning[event.offset] = event

    def return_unleased(self) -> None:
        """Everything no member holds; what is dying stays until its letter is written."""
        position = self.position
        position.group.unpark(position)
        for event in list(position.open.values()):
            if event.member is None and not event.dying:
                self.return_to_group(event)

    def return_waiting(self) -> None:
        while (event := self.position.next_waiting()) is not None:
            self.return_to_group(event)

    def return_all(self) -> None:
        """The node stops: everything is returned, in any state."""
        self.position.group.end_leases(self.position)
        for event in list(self.position.open.values()):
            self.return_to_group(event)

    def on_stored(self, number: int, now: int, to_wall: int) -> list[OpenEvent]:
        """The claim of this write is in the log; earlier ones can never be. Gives the events that it took."""
        write = self.writes.pop(number, None)
        for earlier in [each for each in self.writes if each < number]:
            self.writes.pop(earlier).outcome.happened = False
        if write is None:
            return []
        write.outcome.happened = True
        for offset in write.returned:
            self.returning.pop(offset, None)
        position, group = self.position, self.position.group
        for offset in write.settled:
            self.returning.pop(offset, None)
        group.settle(position, write.settled, position.resets)  # who submitted the write may never be answered
        adopted: list[OpenEvent] = []
        for offset, taken in write.taken.items():
            state = taken.state
            due = state.due - to_wall if state.due else 0
            if state.ended:
                position.ends[offset] = (state.ended, state.noted)
            adopted.append(state.opened(offset))
            group.adopt(position, adopted[-1], taken.ready, due, now)
        return adopted

    def drop(self) -> None:
        """The group was moved, or what this node had taken is no longer its own."""
        self.position.group.end_leases(self.position)
        self.position.clear()
        self.returning.clear()
        self.counting.clear()
        for write in self.writes.values():
            write.outcome.happened = False
        self.writes.clear()
        self.lost = False
