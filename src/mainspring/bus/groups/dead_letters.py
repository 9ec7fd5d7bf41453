"""Dead letters: events a group could not handle.

An event cannot be moved, because other groups still need it. So a copy goes to `<topic>.DLQ`, a notice to
`system.bus.dlq`, and for the group that failed it is settled. All three are one batch: the event is never lost, and
never dies twice. The copy keeps payload, key and headers; where it came from and why it died is added to its headers.

Sending a dead letter back is the same in reverse: the copy on the original topic and the removal from `<topic>.DLQ` are
one batch. The event then comes to every group of the topic, like any new event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.groups.delivery import Delivery, Written
from mainspring.bus.groups.group import Group
from mainspring.bus.groups.position import OpenEvent, Position
from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.publishing.publisher import Placed, Publisher
from mainspring.bus.results import DeadLetter
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, DamagedEvent, Log, StoredEvent
from mainspring.loop import Clock

logger: logging.Logger = logging.getLogger("mainspring.bus")

NOTICES: Final = "system.bus.dlq"
ADDED: Final = (
    "x-original-topic",
    "x-original-partition",
    "x-original-offset",
    "x-original-id",
    "x-original-ts",
    "x-group",
    "x-attempts",
    "x-reason",
)
TIMED_OUT: Final = "not acknowledged in time"

_encode = msgspec.json.Encoder().encode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class Undertaker:
    """Writes dead letters for groups."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        delivery: Delivery,
        publisher: Publisher,
        counters: BusCounters,
        audit: Audit,
        *,
        new_id: Callable[[], str],
        topic: Callable[[str], Topic],
    ) -> None:
        self._log = log
        self._clock = clock
        self._delivery = delivery
        self._publisher = publisher
        self._counters = counters
        self._audit = audit
        self._new_id = new_id
        self._topic = topic

    def bury(self, group: Group, position: Position) -> None:
        """One burial per position at a time: its record is part of the batch and must not be overtaken."""
        if not position.burying:
            position.burying = True
            self._delivery.run(self._bury(group, position))

    async def _bury(self, group: Group, position: Position) -> None:
        epoch = position.epoch
        events = [event for event in position.open.values() if event.dying]
        try:
            found = [(event, await self._read(group.topic, position.partition, event.offset)) for event in events]
        except MainspringError as error:
            logger.error("cannot write dead letters of %r: %s", group.topic, error)
            group.not_buried(position, events, epoch, self._clock.now_ms())
            self._delivery.release(group, position)
            return
        if position.epoch != epoch:  # a seek took the events away meanwhile
            self._delivery.release(group, position)
            return
        self._submit(group, position, events, [(event, stored) for event, stored in found if stored is not None])

    async def _read(self, topic: str, partition: int, offset: int) -> StoredEvent | None:
        """The event, or None when retention was faster."""
        try:
            found = await self._log.read(topic, partition, offset, 1)
        except DamagedEvent as error:
            logger.error("%s", error)
            return None
        return found[0] if found and found[0].offset == offset else None

    def _submit(
        self,
        group: Group,
        position: Position,
        events: Sequence[OpenEvent],
        found: Sequence[tuple[OpenEvent, StoredEvent]],
    ) -> None:
        letters, notices = self._topic(group.topic + DEAD_LETTERS), self._topic(NOTICES)
        batch = Batch()
        for event, stored in found:
            batch.append(self._letter(letters, group, event, stored))
            batch.append(self._notice(group, position, event))
        without = frozenset(event.offset for event in events)
        written = self._delivery.put_position(batch, group, position, without)
        ticket = _Burial(self, group, position, events, len(found), written)
        self._publisher.submit(batch, (letters, notices) if found else (), ticket, audited=False)  # as "dlq"

    def _letter(self, letters: Topic, group: Group, event: OpenEvent, stored: StoredEvent) -> Append:
        headers = {} if stored.headers is None else _decode_headers(stored.headers)
        values = (
            stored.topic,
            str(stored.partition),
            str(stored.offset),
            stored.id,
            str(stored.ts),
            group.name,
            str(event.deliveries),
            event.reason or TIMED_OUT,
        )
        headers.update(zip(ADDED, values, strict=True))
        return Append(
            topic=letters.name,
            partition=0,  # one line of letters, whatever the topic's own partitions
            id=self._new_id(),
            ts=self._clock.wall_ms(),
            payload=stored.payload,
            key=stored.key,
            headers=_encode(headers),
        )

    def _notice(self, group: Group, position: Position, event: OpenEvent) -> Append:
        payload = {
            "topic": group.topic,
            "partition": position.partition,
            "offset": event.offset,
            "group": group.name,
            "attempts": event.deliveries,
            "reason": event.reason or TIMED_OUT,
        }
        return Append(NOTICES, 0, self._new_id(), self._clock.wall_ms(), _encode(payload))

    def decided(self, burial: _Burial, error: MainspringError | None) -> None:
        group, position, now = burial.group, burial.position, self._clock.now_ms()
        if error is None or burial.written.happened:
            self._counters.dlq += burial.count
            for event in burial.events:
                self._audit.note("dlq", self._topic(group.topic), position.partition, event.offset, 1, group.name)
            position.durable = max(position.durable, burial.written.settled)
            group.buried(position, burial.events, burial.epoch)
        else:
            logger.error("cannot write dead letters of %r: %s", group.topic, error)
            group.not_buried(position, burial.events, burial.epoch, now)
        self._delivery.release(group, position)
        self._delivery.wake(group)


class _Burial:
    """The ticket of one batch of dead letters."""

    def __init__(
        self,
        undertaker: Undertaker,
        group: Group,
        position: Position,
        events: Sequence[OpenEvent],
        count: int,
        written: Written,
    ) -> None:
        self._undertaker = undertaker
        self.group = group
        self.position = position
        self.events = events
        self.epoch: int = position.epoch
        self.count = count
        self.written = written

    def stored(self, placed: Sequence[Placed]) -> None:
        self._undertaker.decided(self, None)

    def failed(self, error: MainspringError) -> None:
        self._undertaker.decided(self, error)


def read_letter(event: StoredEvent) -> DeadLetter:
    """The event of a `.DLQ` topic with its story taken out of its headers; also when someone else wrote it."""
    headers = {} if event.headers is None else _decode_headers(event.headers)
    story = {name: headers.pop(name, "") for name in ADDED}
    return DeadLetter(
        topic=event.topic,
        partition=event.partition,
        offset=event.offset,
        id=event.id,
        ts=event.ts,
        key=event.key,
        headers=headers,
        payload=msgspec.Raw(event.payload),
        original_topic=story["x-original-topic"] or event.topic.removesuffix(DEAD_LETTERS),
        original_partition=_number(story["x-original-partition"]),
        original_offset=_number(story["x-original-offset"]),
        group=story["x-group"],
        attempts=_number(story["x-attempts"]),
        reason=story["x-reason"],
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
