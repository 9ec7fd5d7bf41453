"""Where a group stands in one partition that several nodes work on.

The **shared record** says what nobody has: the next offset that no node has taken (the cursor), and the events below it
that are free, because a node gave them back or died. What nodes have taken is in their **claims**, one record each. An
event is in exactly one of these places, or settled. Every commit that moves an event changes both places at once, under
the versions they had; so two nodes can never have the same event.

`open` is what this node has taken and not settled, with the same states as on a node that is alone. Where the group as
a whole stands follows from all the records; every node hears of all of them and so says the same.

A write whose answer was lost is an **intent** that may have happened, or may happen yet. Until the log says which
(every claim carries the number of the write it came from), what it would take is not delivered, and what it would give
back is not delivered either. Each later write expects the same versions, so at most one of them can ever happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mainspring.bus.groups.delivery import Written
from mainspring.bus.groups.position import OpenEvent, Position, PositionRecord
from mainspring.bus.groups.shared.records import ClaimRecord
from mainspring.bus.groups.unsettled import Packed, Unsettled, lowest, pack, unpack
from mainspring.bus.topics.tail import PartitionTail, ReadyEvent
from mainspring.log import ABSENT


class Taking(msgspec.Struct, frozen=True, gc=False):
    """An event that is being taken: what is known of it, and its body where that was read.

    `at_once`: a member has room for it, so it counts as delivered with the write that takes it.
    """

    known: Unsettled
    ready: ReadyEvent | None
    at_once: bool = True
    given_back: bool = False  # somebody had it before


class Intent(msgspec.Struct, frozen=True):
    """What a write does once it is stored."""

    taken: Mapping[int, Taking]
    returned: tuple[int, ...] = ()
    settled: frozenset[int] = frozenset()
    written: Written = msgspec.field(default_factory=Written)


class Claim(msgspec.Struct, frozen=True):
    """A node's claim as the log holds it."""

    version: int
    record: ClaimRecord
    lowest: int | None


class SharedPosition(Position):
    """One group in one partition, as one of several nodes sees it."""

    __slots__ = (
        "claims",
        "free",
        "generation",
        "intents",
        "last_committed",
        "leaving",
        "moved",
        "next_offset",
        "own_epoch",
        "tries",
        "vanished",
        "version",
        "wait_until",
    )

    def __init__(self, tail: PartitionTail, head: bytes, cursor: int = 1) -> None:
        super().__init__(tail, head, cursor)
        self.version: int = ABSENT  # of the shared record
        self.generation: int = 0
        self.next_offset: int = cursor  # the shared record's cursor; this node may know that nothing is there
        self.last_committed: int = 0
        self.free: dict[int, Unsettled] = {}
        self.vanished: set[int] = set()  # free events that do not exist any more
        self.claims: dict[int, Claim] = {}  # by epoch, this node's own as well
        self.own_epoch: int = 0  # of this node when it last wrote its claim
        self.leaving: dict[int, OpenEvent] = {}  # to be given back with the next write
        self.intents: dict[int, Intent] = {}  # by number: under way, or in doubt
        self.moved: bool = False  # the group was sent elsewhere, or lost what it held here
        self.wait_until: int = 0  # monotonic ms before which nothing is written: the last write failed
        self.tries: int = 0

    # -- what the log says

    def saw_shared(self, record: PositionRecord, version: int) -> bool:
        """The shared record was written; whether that is news."""
        if version <= self.version:
            return False
        if self.version == ABSENT or record.generation != self.generation:
            self.moved = self.moved or self.version != ABSENT
            self.durable = self.committed()  # a group that waited beyond the tail has not settled what was not there
            self.cursor = record.cursor
            self.ahead.clear()
            self.ahead_at = 0
        else:
            self.cursor = max(self.cursor, record.cursor)
        self.version, self.generation, self.stored = version, record.generation, True
        self.next_offset, self.skip_before = record.cursor, record.skip_before
        self.last_committed = max(self.last_committed, record.last_committed)
        self.free = unpack(record)
        self.vanished.intersection_update(self.free)
        return True

    def saw_shared_deleted(self) -> None:
        """The group was deleted; who still has members of it begins it again."""
        self.version, self.stored, self.moved = ABSENT, False, True
        self.free.clear()
        self.claims.clear()

    def saw_claim(self, epoch: int, record: ClaimRecord, version: int) -> bool:
        known = self.claims.get(epoch)
        if known is not None and version <= known.version:
            return False
        self.claims[epoch] = Claim(version, record, lowest(record))
        return True

    def forget_bodies(self) -> None:
        """Bodies are only kept for what may be delivered from here."""
        self.bodies = {
            offset: body for offset, body in self.bodies.items() if offset in self.open or offset in self.free
        }

    def look(self) -> None:
        """Say anew where the group as a whole stands; when all records of a commit are known."""
        firsts = [claim.lowest for claim in self.claims.values() if claim.record.generation == self.generation]
        below = min([self.next_offset, *self.free, *(first for first in firsts if first is not None)])
        self.durable = max(self.durable, self.last_committed, below - 1)
        self.floor = max(self.floor, self.last_committed)

    def claim_version(self, epoch: int) -> int:
        claim = self.claims.get(epoch)
        return ABSENT if claim is None else claim.version

    def taken_elsewhere(self, own: int) -> int:
        """How many events other nodes have; they lease what they take at once."""
        return sum(
            claim.record.count()
            for epoch, claim in self.claims.items()
            if epoch != own and claim.record.generation == self.generation
        )

    # -- what a write says

    def held(
        self,
        to_wall: int,
        *,
        without: frozenset[int] = frozenset(),
        taken: Mapping[int, Taking] = {},
        leaving: Mapping[int, OpenEvent] = {},
    ) -> Packed:
        """The content of this node's claim, `leaving` where the write does not give it back yet."""
        events = {
            offset: as_unsettled(event, to_wall)
            for offset, event in (*self.open.items(), *leaving.items())
            if offset not in without
        }
        for offset, taking in taken.items():
            known = taking.known
            if taking.at_once:
                known = msgspec.structs.replace(known, deliveries=known.deliveries + 1)
            events[offset] = known
        return pack(events)

    def free_after(
        self, to_wall: int, taken: Iterable[int], passed: Iterable[int], dead: Iterable[ClaimRecord]
    ) -> Packed:
        """The free events when this node has taken, passed on and given back, and the dead have lost everything."""
        free = dict(self.free)
        for offset in (*taken, *self.vanished):
            free.pop(offset, None)
        for offset in passed:
            free[offset] = Unsettled()
        for offset, event in self.leaving.items():
            free[offset] = as_unsettled(event, to_wall)
        for record in dead:
            if record.generation == self.generation:
                free.update(unpack(record))
        return pack(free)

    def leave(self, event: OpenEvent) -> None:
        """Give it back with the next write; from now on it is not this node's to deliver."""
        self.open.pop(event.offset, None)
        event.dying = False
        self.leaving[event.offset] = event

    def clear(self) -> None:
        super().clear()
        self.leaving.clear()
        for intent in self.intents.values():
            intent.written.happened = False
        self.intents.clear()
        self.moved = False


def as_unsettled(event: OpenEvent, to_wall: int) -> Unsettled:
    return Unsettled(event.deliveries, event.nacked, event.due + to_wall if event.due else 0, event.reason)
