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
from functools import partial
from typing import Final

import msgspec

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.errors import UnknownEvent
from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.group import Group
from mainspring.bus.groups.position import OpenEvent, Position, PositionWrite
from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.protocol import MAX_ID
from mainspring.bus.publishing.admission import Admission
from mainspring.bus.publishing.publisher import Placed, Publisher, refusal
from mainspring.bus.results import DeadLetter, Published
from mainspring.bus.topics.follow import read_on
from mainspring.bus.topics.registry import TopicRegistry
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
MAX_PAGE: Final = 10_000
REMEMBERED_MS: Final = 3_600_000  # far longer than a redrive that has read a letter takes to send it

_encode = msgspec.json.Encoder().encode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class DeadLetterWriter:
    """Writes dead letters for groups."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        delivery: Delivery,
        publisher: Publisher,
        counters: BusCounters,
        audit: Audit,
        topics: TopicRegistry,
        new_id: Callable[[], str],
    ) -> None:
        self._log = log
        self._clock = clock
        self._delivery = delivery
        self._publisher = publisher
        self._counters = counters
        self._audit = audit
        self._topics = topics
        self._new_id = new_id

    def write(self, position: Position) -> None:
        """Write the letters of the position's dying events, now or when the write lock is free again (`unlock`)."""
        if not position.write_locked:
            position.write_locked = True
            self._delivery.run(self._write(position))

    async def _write(self, position: Position) -> None:
        group, resets = position.group, position.resets
        events = [event for event in position.open.values() if event.dying]
        try:
            read = [(event, await self._read(group.topic.name, position.partition, event.offset)) for event in events]
        except MainspringError as error:
            logger.error("cannot write dead letters of %r: %s", group.topic.name, error)
            group.retry_dead_letters(position, events, resets, self._clock.now_ms())
            self._delivery.unlock(position)
            return
        if position.resets != resets:  # a seek took the events away meanwhile
            self._delivery.unlock(position)
            return
        self._submit(position, events, [(event, stored) for event, stored in read if stored is not None])

    async def _read(self, topic: str, partition: int, offset: int) -> StoredEvent | None:
        """The event, or None when retention was faster."""
        try:
            events = await self._log.read(topic, partition, offset, 1)
        except DamagedEvent as error:
            logger.error("%s", error)
            return None
        return events[0] if events and events[0].offset == offset else None

    def _submit(
        self, position: Position, events: Sequence[OpenEvent], stored: Sequence[tuple[OpenEvent, StoredEvent]]
    ) -> None:
        group = position.group
        letters, notices = self._topics.find_or_add(group.topic.name + DEAD_LETTERS), self._topics.find_or_add(NOTICES)
        batch = Batch()
        for event, original in stored:
            batch.append(self._letter(letters, group, event, original))
            batch.append(self._notice(group, position, event))
        write = self._delivery.put_position(batch, position, frozenset(event.offset for event in events))
        done = partial(self._on_decided, write, events, len(stored), position.resets)
        self._publisher.submit_batch(batch, (letters, notices) if stored else (), done, audited=False)  # as "dlq"

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
            partition=0,  # letters stand in one line, however many partitions the topic has
            id=self._new_id(),
            ts=self._clock.wall_ms(),
            payload=stored.payload,
            key=stored.key,
            headers=_encode(headers),
        )

    def _notice(self, group: Group, position: Position, event: OpenEvent) -> Append:
        payload = {
            "topic": group.topic.name,
            "partition": position.partition,
            "offset": event.offset,
            "group": group.name,
            "attempts": event.deliveries,
            "reason": event.reason or TIMED_OUT,
        }
        return Append(NOTICES, 0, self._new_id(), self._clock.wall_ms(), _encode(payload))

    def _on_decided(
        self,
        write: PositionWrite,
        events: Sequence[OpenEvent],
        count: int,
        resets: int,
        result: Sequence[Placed] | MainspringError,
    ) -> None:
        position, group = write.position, write.position.group
        if not isinstance(result, MainspringError) or write.happened:
            self._counters.dlq += count
            for event in events:
                self._audit.note("dlq", group.topic, position.partition, event.offset, 1, group.name)
            write.stored()
            group.settle(position, [event.offset for event in events], resets)
        else:
            logger.error("cannot write dead letters of %r: %s", group.topic.name, result)
            group.retry_dead_letters(position, events, resets, self._clock.now_ms())
        self._delivery.unlock(position)
        self._delivery.wake(group)


class DeadLetterQueue:
    """Reads the dead letters of topics, and sends them back."""

    def __init__(self, log: Log, topics: TopicRegistry, admission: Admission, publisher: Publisher) -> None:
        self._log = log
        self._topics = topics
        self._admission = admission
        self._publisher = publisher

    async def page(self, topic: str, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Of the original topic `topic`, from `offset` of its `.DLQ` topic on. Raises UnknownTopic."""
        self._topics.get(topic)
        events = await read_on(self._log, topic + DEAD_LETTERS, 0, max(1, offset), min(limit, MAX_PAGE))
        return [read_letter(event) for event in events]

    async def get(self, topic: str, offset: int) -> DeadLetter:
        """One; raises UnknownEvent."""
        letters = await self.page(topic, offset=offset, limit=1)
        if not letters or letters[0].offset != offset:
            raise UnknownEvent(f"topic {topic!r} has no dead letter {offset}")
        return letters[0]

    async def redrive(self, topic: str, offsets: Sequence[int] | None = None) -> list[Published]:
        """Publish dead letters (all, or those at `offsets`) to their topic again and take them out of the `.DLQ` topic.

        Each moves in one step: it is never lost and never in both places. Gives where they are now.
        """
        if offsets is not None:
            letters = [await self.get(topic, offset) for offset in offsets]
            return [await self._send_back(topic, letter) for letter in letters]
        sent: list[Published] = []
        start = 1
        while letters := await self.page(topic, offset=start):
            sent += [await self._send_back(topic, letter) for letter in letters]
            start = letters[-1].offset + 1
        return sent

    async def _send_back(self, topic: str, letter: DeadLetter) -> Published:
        target = self._topics.open(topic)
        append = self._admission.own_event(target, bytes(letter.payload), letter.key, letter.headers)
        # Two redrives may have read the same letter; the second one finds that it was sent. The mark is longer than any
        # id of a client, so that no client can take a letter away by publishing under its mark.
        letter_id = f"{topic}{DEAD_LETTERS}/{letter.partition}/{letter.offset}".rjust(MAX_ID + 1, "/")
        append = msgspec.structs.replace(append, dedupe=letter_id, dedupe_until=append.ts + REMEMBERED_MS)
        batch = Batch()
        batch.append(append)
        batch.remove(topic + DEAD_LETTERS, letter.partition, offsets=(letter.offset,))
        try:
            ((partition, offset, _),) = await self._publisher.commit_batch(batch, (target,))
        except MainspringError as error:
            raise refusal(error) from error
        return Published(topic, partition, offset, append.id, append.ts)


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
