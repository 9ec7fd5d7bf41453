"""Where a group stands in one partition.

Two things say it all: the **cursor**, the next offset that no member of the group was given yet, and the **open**
events below it, which were given to a member (or are kept for one) and are not settled. Everything else below the
cursor is settled. The commit follows from that: it is the offset before the first open one. So an acknowledgement out
of order needs no bookkeeping of its own, and a negatively acknowledged event holds back the commit simply by staying
open.

A backward seek opens events again that were committed once, and so does sending a dead letter back; the commit is never
lowered by that (`floor`). Of an event that was a dead letter the log keeps a **copy** until the group has settled it,
because the topic may have forgotten the event meanwhile.

What is stored of it (one record per topic, group and partition) survives a restart: how often an open event was
delivered, whether it was refused, until when it must wait, and why. Runs of events that were delivered once are stored
as ranges, so that a large window costs no more than a small one. An event counts as delivered once it is below the
stored cursor.

A function may end the process that calls it. When a node that was not stopped starts again, the events that its
functions may have had are noted (`ends`), and those that it may have handed out without having stored it are delivered
carefully (`careful_until`): first the attempt is stored, then the function is called.

The reasons are in docs/decisions/bus-delivery.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.bus.names import SEPARATOR
from mainspring.bus.protocol import json_text
from mainspring.bus.topics.tail import PartitionTail, ReadyEvent
from mainspring.log import StoredEvent
from mainspring.telemetry import KeptError

if TYPE_CHECKING:
    from mainspring.bus.groups.group import Group
    from mainspring.bus.groups.member import Member
    from mainspring.bus.groups.shared.position import SharedPosition

SPACE: Final = "groups"
COPIES: Final = "redriven"  # events that were dead letters and are open again, by position and offset
BYTES_PER_MS: Final = 2_000  # of one position's records: thousands of delayed events must not occupy the disk
STORE_AT_MOST_MS: Final = 300
SUSPECT: Final = 2  # ends of the process with an event, from which on it is handled alone
CAREFUL: Final = 1_000  # new events delivered carefully after an end; what was handed out beyond is among the next ones

Range = tuple[int, int]  # the first offset and the last
Retried = tuple[int, int, bool, int, str]  # offset, deliveries, refused, due (epoch ms), why
Ended = tuple[int, int, int]  # offset, how often the process ended meanwhile, deliveries when that was last noted


class OpenEvent(msgspec.Struct, eq=False):
    """An event below the cursor that is not settled.

    It is in exactly one state: leased (`member` is set), waiting (its offset is in `Position.waiting`), delayed (until
    `due`), parked (kept for a member without room) or dying (its dead letter is being written).
    """

    offset: int
    member: Member | None = None
    deadline: int = 0
    deliveries: int = 0
    nacked: bool = False
    reason: str = ""
    due: int = 0
    dying: bool = False
    key: str | None = None
    holds_key: bool = False  # later events of its key wait for it
    begun: bool = False  # its member said so
    failure: KeptError | None = None  # of its last attempt, for its dead letter

    def state(self, to_wall: int) -> UnsettledEvent:
        """What is stored of it; `to_wall` is what must be added to a monotonic time to make it epoch ms."""
        return UnsettledEvent(self.deliveries, self.nacked, self.due + to_wall if self.due else 0, self.reason)


class UnsettledEvent(msgspec.Struct, frozen=True, gc=False):
    """The state of an open event as records hold it. `due`: epoch ms before which it must not be delivered, or 0.

    `ended`: how often the process ended while it was handled; `noted`: its deliveries when that was last noted.
    """

    deliveries: int = 0
    refused: bool = False
    due: int = 0
    reason: str = ""
    ended: int = 0
    noted: int = 0

    def opened(self, offset: int) -> OpenEvent:
        """The event at `offset` in this state, this node's to deliver."""
        return OpenEvent(offset, deliveries=self.deliveries, nacked=self.refused, reason=self.reason)

    def after_end(self) -> UnsettledEvent:
        """The process that had it has ended: a delivery that was not noted yet counts."""
        if self.due or (self.ended and self.deliveries <= self.noted):
            return self
        deliveries = max(1, self.deliveries)
        return msgspec.structs.replace(self, deliveries=deliveries, ended=self.ended + 1, noted=deliveries)


NEW = UnsettledEvent()
REOPENED = UnsettledEvent(refused=True)
_ONCE = UnsettledEvent(1)


class UnsettledFields(msgspec.Struct, frozen=True):
    """The fields of a record that hold unsettled events: ranges never delivered, ranges delivered once, others.

    Most events were delivered once or never, and follow each other; as ranges a large window costs no more than a small
    one.
    """

    fresh: tuple[Range, ...] = ()
    open: tuple[Range, ...] = ()
    retried: tuple[Retried, ...] = ()
    ended: tuple[Ended, ...] = ()

    def events(self) -> dict[int, UnsettledEvent]:
        """By ascending offset."""
        events = {offset: NEW for first, last in self.fresh for offset in range(first, last + 1)}
        events.update({offset: _ONCE for first, last in self.open for offset in range(first, last + 1)})
        for offset, deliveries, refused, due, reason in self.retried:
            events[offset] = UnsettledEvent(deliveries, refused, due, reason)
        for offset, ended, noted in self.ended:
            events[offset] = msgspec.structs.replace(events[offset], ended=ended, noted=noted)
        return dict(sorted(events.items()))


NOTHING = UnsettledFields()


class PositionRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The stored form. `open`: ranges delivered once. `retried`, `ended`: see the types.

    Where several nodes share the group, `cursor` is the next offset that no node has taken, the unsettled events are
    those that any node may take, `fresh` among them were never delivered, and every move raises `generation`.
    """

    topic: str
    group: str
    partition: int
    last_committed: int
    updated_ts: int
    cursor: int
    open: tuple[Range, ...] = ()
    retried: tuple[Retried, ...] = ()
    skip_before: int = 0
    generation: int = 0
    fresh: tuple[Range, ...] = ()
    ended: tuple[Ended, ...] = ()

    def fields(self) -> UnsettledFields:
        return UnsettledFields(self.fresh, self.open, self.retried, self.ended)


class PositionWrite:
    """A position's record as part of a batch: up to where everything is settled once the batch is stored.

    `happened` is what the change feed of a shared log says about the batch; it says so even when the batch's own answer
    was lost. None: the feed has not said yet, or there is none because no other node shares the log.
    """

    __slots__ = ("copies", "happened", "position", "settled")

    def __init__(self, position: Position, settled: int = 0, copies: Collection[int] = ()) -> None:
        self.position: Position = position
        self.settled: int = settled
        self.copies: Collection[int] = copies  # deleted with the batch
        self.happened: bool | None = None

    def stored(self) -> None:
        """The batch is durable."""
        position = self.position
        position.durable = max(position.durable, self.settled)
        position.stored = True
        position.copies.difference_update(self.copies)


class Position:
    """One group in one partition."""

    __slots__ = (
        "ahead",
        "ahead_at",
        "bodies",
        "careful_until",
        "copies",
        "cursor",
        "delayed",
        "dirty",
        "durable",
        "ends",
        "fetching",
        "floor",
        "group",
        "head",
        "open",
        "partition",
        "resets",
        "shared",
        "skip_before",
        "store_after",
        "stored",
        "tail",
        "unread",
        "waiting",
        "write_locked",
    )

    def __init__(self, group: Group, tail: PartitionTail, cursor: int = 1) -> None:
        self.group: Group = group
        self.partition: int = tail.partition
        self.tail: PartitionTail = tail
        self.head: bytes = b'{"type":"MESSAGE","topic":%b,"partition":%d,"group":%b,"offset":' % (
            json_text(group.topic.name),
            tail.partition,
            json_text(group.name),
        )  # how every MESSAGE frame of this position begins
        self.cursor: int = cursor
        self.floor: int = 0
        self.skip_before: int = 0  # events with an older `ts` are settled unseen; 0 once the first one was not older
        self.open: dict[int, OpenEvent] = {}  # by ascending offset
        self.waiting: list[int] = []  # heap of offsets to be delivered again
        self.delayed: list[tuple[int, int]] = []  # heap of (due, offset)
        self.unread: list[int] = []  # offsets of delayed events, restored without their keys
        self.bodies: dict[int, ReadyEvent] = {}  # read for `waiting`
        self.copies: set[int] = set()  # offsets of events that were dead letters, and of which the log has a copy
        self.ends: dict[int, tuple[int, int]] = {}  # by offset: how often the process ended, deliveries when noted
        self.careful_until: int = 0  # events below may have been handed out before the process ended
        self.ahead: list[ReadyEvent] = []  # read for the cursor
        self.ahead_at: int = 0
        self.fetching: bool = False
        self.resets: int = 0  # how often the open events were dropped; reads and writes from before are ignored
        self.dirty: bool = False  # it changed since it was last stored
        self.write_locked: bool = False  # a batch with its record is under way; a second one could overtake it
        self.durable: int = 0  # `settled` of the stored record
        self.stored: bool = False
        self.store_after: int = 0  # a large record is written less often
        self.shared: SharedPosition  # set and used by the supply of a shared log, by nothing else

    def settled(self, without: Collection[int] = ()) -> int:
        """Everything up to here is settled, also what does not exist yet when the group waits beyond the tail.

        `without` are open events to be counted as settled.
        """
        if without:
            below = next((offset for offset in self.open if offset not in without), self.cursor)
        else:
            below = next(iter(self.open)) if self.open else self.cursor
        return max(self.floor, below - 1)

    def committed(self) -> int:
        """What is durably settled and exists: the group's `lastCommitted`."""
        return min(self.durable, max(self.tail.offset, 0))

    def inflight(self) -> int:
        """How many events are leased to someone."""
        return sum(1 for event in self.open.values() if event.member is not None)

    def upcoming(self, most: int) -> list[ReadyEvent]:
        """Up to so many new events from the cursor on, as far as they are in memory."""
        ahead = self.ahead
        if ahead:
            while self.ahead_at < len(ahead) and ahead[self.ahead_at].offset < self.cursor:
                self.ahead_at += 1
            if self.ahead_at < len(ahead):
                return ahead[self.ahead_at : self.ahead_at + most]
            ahead.clear()
            self.ahead_at = 0
        tail = self.tail
        at = self.cursor - tail.first
        return tail.events[at : at + most] if 0 <= at < len(tail.events) else []

    def body(self, offset: int) -> ReadyEvent | None:
        """What is known of an event below the cursor, as far as it is in memory."""
        return self.bodies.get(offset) or (None if offset in self.copies else self.tail.get(offset))

    def wait(self, event: OpenEvent) -> None:
        event.member = None
        heapq.heappush(self.waiting, event.offset)

    def delay(self, event: OpenEvent, due: int) -> None:
        event.member = None
        event.due = due
        heapq.heappush(self.delayed, (due, event.offset))

    def promote(self, now: int) -> None:
        """Delayed events whose time has come wait now."""
        while self.delayed and self.delayed[0][0] <= now:
            due, offset = heapq.heappop(self.delayed)
            event = self.open.get(offset)
            if event is not None and event.due == due and event.member is None and not event.dying:
                event.due = 0
                heapq.heappush(self.waiting, offset)

    def next_waiting(self) -> OpenEvent | None:
        while self.waiting:
            event = self.open.get(self.waiting[0])
            if event is not None and event.member is None and not event.due and not event.dying:
                return event
            heapq.heappop(self.waiting)
        return None

    def move(self, cursor: int, skip_before: int = 0) -> None:
        """Start again at `cursor`. Forward settles what is skipped; backward never lowers the commit."""
        self.floor = min(self.settled(), max(self.tail.offset, 0))
        self.durable = self.committed()  # a group that waited beyond the tail has not settled what was not there
        self.clear()
        self.cursor = cursor
        self.skip_before = skip_before

    def reopen(self, offsets: Iterable[int]) -> None:
        """Settled events wait again, with their attempts counted anew; only an ACK of exactly them settles them."""
        self.floor = max(self.floor, min(self.settled(), max(self.tail.offset, 0)))
        for offset in offsets:
            self.open[offset] = event = OpenEvent(offset, nacked=True)
            self.wait(event)
        self.open = dict(sorted(self.open.items()))

    def clear(self) -> None:
        """Forget every event that is under way."""
        self.resets += 1
        self.open.clear()
        self.waiting.clear()
        self.delayed.clear()
        self.unread.clear()
        self.bodies.clear()
        self.ahead.clear()
        self.ahead_at = 0
        self.fetching = False

    # -- stored form

    def record(
        self, wall_ms: int, to_wall: int, without: Collection[int] = (), reopened: Iterable[int] = ()
    ) -> PositionRecord:
        """`to_wall` is what must be added to a monotonic time to make it epoch ms."""
        ranges: list[Range] = []
        retried: list[Retried] = [(offset, 0, True, 0, "") for offset in reopened]
        start = end = -1
        for offset, event in self.open.items():
            if offset in without:
                continue
            if event.deliveries == 1 and not event.nacked and not event.due:
                if offset != end + 1:
                    if start >= 0:
                        ranges.append((start, end))
                    start = offset
                end = offset
            else:
                due = event.due + to_wall if event.due else 0
                retried.append((offset, event.deliveries, event.nacked, due, event.reason))
        if start >= 0:
            ranges.append((start, end))
        return PositionRecord(
            topic=self.group.topic.name,
            group=self.group.name,
            partition=self.partition,
            last_committed=min(self.settled(without), max(self.tail.offset, 0)),
            updated_ts=wall_ms,
            cursor=self.cursor,
            open=tuple(ranges),
            retried=tuple(retried),
            skip_before=self.skip_before,
            ended=self._ended({each[0] for each in retried}) if self.ends else (),
        )

    def _ended(self, retried: set[int]) -> tuple[Ended, ...]:
        """Of events that are not open any more nothing is kept; one that is written as delivered once needs nothing."""
        self.ends = {offset: ends for offset, ends in self.ends.items() if offset in self.open}
        return tuple((offset, *ends) for offset, ends in self.ends.items() if offset in retried)

    def written(self, now: int, size: int) -> None:
        """Its record goes to the log now; a large one may be written again only after a while."""
        self.store_after = now + min(size // BYTES_PER_MS, STORE_AT_MOST_MS)

    def restore(self, record: PositionRecord, to_wall: int, set_back: int = 0) -> None:
        """What was under way when the record was written waits to be delivered again.

        If the clock was set back since then, what is delayed waits for as long as it had to when that was written.
        """
        self.cursor = record.cursor
        self.floor = record.last_committed
        self.skip_before = record.skip_before
        self.stored = True
        for offset, state in record.fields().events().items():
            event = state.opened(offset)
            self.open[offset] = event
            if state.ended:
                self.ends[offset] = (state.ended, state.noted)
            if state.due:
                self.delay(event, state.due - to_wall - set_back)
                self.unread.append(offset)
            else:
                self.wait(event)
        self.durable = self.settled()

    def note_end(self) -> None:
        """The process ended without having been stopped, and its functions may have had these events."""
        for offset, event in self.open.items():
            ended, noted = self.ends.get(offset, (0, 0))
            if event.deliveries > noted and not event.due:
                self.ends[offset] = (ended + 1, event.deliveries)
        self.careful_until = min(self.cursor + CAREFUL, self.tail.offset + 1)

    def note_lost(self, event: OpenEvent) -> None:
        """The connection of the process that had it is lost: it counts unless it was in doubt and had not begun."""
        ended, _ = self.ends.get(event.offset, (0, 0))
        if event.begun or not ended:
            self.ends[event.offset] = (ended + 1, event.deliveries)
        event.begun = False

    def is_careful(self) -> bool:
        """Whether there are events that the process before this one may have had when it ended."""
        return self.cursor < self.careful_until or any(offset in self.open for offset in self.ends)

    def handles_suspect(self) -> bool:
        """Whether a member has, or is about to have, an event with which the process ended."""
        found = [self.open[offset] for offset in self.ends if offset in self.open]
        return any(event.member is not None or event.offset in self.waiting for event in found) and bool(
            self.group.members
        )

    def hold(self, offsets: Collection[int]) -> None:
        """Deliver these not before `wait`."""
        self.waiting = [offset for offset in self.waiting if offset not in offsets]
        heapq.heapify(self.waiting)

    @property
    def key(self) -> str:
        """Of its record."""
        return record_key(self.group.topic.name, self.group.name, self.partition)

    def copy_key(self, offset: int) -> str:
        """Of the record with the copy of an event."""
        return f"{self.key}{SEPARATOR}{offset:020d}"


def pack(events: Mapping[int, UnsettledEvent]) -> UnsettledFields:
    new: list[int] = []
    once: list[int] = []
    retried: list[Retried] = []
    ended: list[Ended] = []
    for offset in sorted(events):
        event = events[offset]
        if event == NEW:
            new.append(offset)
        elif event == _ONCE:
            once.append(offset)
        else:
            retried.append((offset, event.deliveries, event.refused, event.due, event.reason))
            if event.ended:
                ended.append((offset, event.ended, event.noted))
    return UnsettledFields(_ranges(new), _ranges(once), tuple(retried), tuple(ended))


def _ranges(offsets: Iterable[int]) -> tuple[Range, ...]:
    """Ascending offsets as ranges."""
    ranges: list[Range] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return tuple(ranges)


def record_key(topic: str, group: str, partition: int) -> str:
    return f"{topic}{SEPARATOR}{group}{SEPARATOR}{partition:06d}"


encode_copy: Callable[[StoredEvent], bytes] = msgspec.msgpack.Encoder().encode
decode_copy: Callable[[bytes], StoredEvent] = msgspec.msgpack.Decoder(StoredEvent).decode
encode_position: Callable[[PositionRecord], bytes] = msgspec.json.Encoder().encode
decode_position: Callable[[bytes], PositionRecord] = msgspec.json.Decoder(PositionRecord).decode
