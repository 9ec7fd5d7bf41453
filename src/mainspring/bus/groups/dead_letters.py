"""Dead letters: events a group could not handle.

An event cannot be moved, because other groups still need it. So a copy goes to `<topic>.DLQ`, a notice to
`system.bus.dlq`, and for the group that failed it is settled. All three are one batch: the event is never lost, and
never dies twice. The copy keeps payload, key and headers; where it came from and why it died is added to its headers.

Sending a dead letter back is the same in reverse: the removal from `<topic>.DLQ` and what brings the event back are one
batch. It goes to the group that gave up and to no other: the event is open again in that group's position, with its id
and its place, and its attempts are counted anew. The log keeps a copy of it until the group has settled it, because
retention may have removed it from the topic. Only who asks for it publishes the event anew, for all groups.

The reasons are in docs/decisions/dead-letters.md.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.errors import BusError, Conflict, Unavailable, UnknownEvent, UnknownGroup
from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.group import MAX_OPEN, Group
from mainspring.bus.groups.position import COPIES, OpenEvent, Position, PositionWrite, encode_copy
from mainspring.bus.groups.registry import GroupRegistry
from mainspring.bus.groups.supply import Reopening, Supply
from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.protocol import EXPIRES, MAX_ID
from mainspring.bus.publishing.admission import Admission
from mainspring.bus.publishing.publisher import Placed, Publisher
from mainspring.bus.results import DeadLetter, DeadLetterFilter, Published
from mainspring.bus.topics.follow import read_on, sound
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, DamagedEvent, InDoubt, Log, StoredEvent
from mainspring.loop import Clock
from mainspring.telemetry import FAILURE, KeptError, failure_header

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
    FAILURE,
)
DAMAGED_HEADER: Final = "x-damaged"  # of what is left of a damaged event
REDRIVEN: Final = "x-redriven"  # of an event that was a dead letter: where that was
TIMED_OUT: Final = "not acknowledged in time"
MAX_PAGE: Final = 10_000
MOST_AT_ONCE: Final = 64  # letters that one commit moves
MOST_BYTES_AT_ONCE: Final = 256 << 10
REMEMBERED_MS: Final = 3_600_000  # far longer than a redrive that has read a letter takes to send it

ALL: Final = DeadLetterFilter()

_encode = msgspec.json.Encoder().encode
_decode_failure = msgspec.json.Decoder(KeptError).decode
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
            read = [(event, await self._read(position, event.offset)) for event in events]
        except MainspringError as error:
            logger.error("cannot write dead letters of %r: %s", group.topic.name, error)
            group.retry_dead_letters(position, events, resets, self._clock.now_ms())
            self._delivery.unlock(position)
            return
        if position.resets != resets:  # a seek took the events away meanwhile
            self._delivery.unlock(position)
            return
        self._submit(position, events, [(event, stored) for event, stored in read if stored is not None])

    async def _read(self, position: Position, offset: int) -> StoredEvent | None:
        """The event, or None when retention was faster."""
        if offset in position.copies:
            return await self._delivery.copy(position, offset)
        try:
            events = await self._log.read(position.group.topic.name, position.partition, offset, 1)
        except DamagedEvent as error:
            return _remains(error)
        return events[0] if events and events[0].offset == offset else None

    def _submit(
        self, position: Position, events: Sequence[OpenEvent], stored: Sequence[tuple[OpenEvent, StoredEvent]]
    ) -> None:
        group = position.group
        letters, notices = self._topics.find_or_add(group.topic.name + DEAD_LETTERS), self._topics.find_or_add(NOTICES)
        batch = Batch()
        for event, original in stored:
            reason = _reason(position, event)
            batch.append(self._letter(letters, group, event, reason, original))
            batch.append(self._notice(group, position, event, reason))
        write = self._delivery.put_position(batch, position, frozenset(event.offset for event in events))
        done = partial(self._on_decided, write, events, len(stored), position.resets)
        self._publisher.submit_batch(batch, (letters, notices) if stored else (), done, audited=False)  # as "dlq"

    def _letter(self, letters: Topic, group: Group, event: OpenEvent, reason: str, stored: StoredEvent) -> Append:
        headers = {} if stored.headers is None else _decode_headers(stored.headers)
        values = (
            stored.topic,
            str(stored.partition),
            str(stored.offset),
            stored.id,
            str(stored.ts),
            group.name,
            str(event.deliveries),
            reason,
        )
        headers.update(zip(ADDED, values, strict=False))
        headers.update(failure_header(event.failure, len(stored.payload)))
        return Append(
            topic=letters.name,
            partition=0,  # letters stand in one line, however many partitions the topic has
            id=self._new_id(),
            ts=self._clock.wall_ms(),
            payload=stored.payload,
            key=stored.key,
            headers=_encode(headers),
        )

    def _notice(self, group: Group, position: Position, event: OpenEvent, reason: str) -> Append:
        payload = {
            "topic": group.topic.name,
            "partition": position.partition,
            "offset": event.offset,
            "group": group.name,
            "attempts": event.deliveries,
            "reason": reason,
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
    """Reads the dead letters of topics, sends them back, and drops them."""

    def __init__(
        self,
        log: Log,
        topics: TopicRegistry,
        groups: GroupRegistry,
        supply: Supply,
        admission: Admission,
        publisher: Publisher,
        audit: Audit,
    ) -> None:
        self._log = log
        self._topics = topics
        self._groups = groups
        self._supply = supply
        self._admission = admission
        self._publisher = publisher
        self._audit = audit

    async def page(self, topic: str, *, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Of the original topic `topic`, from `offset` of its `.DLQ` topic on. Raises UnknownTopic."""
        self._topics.get(topic)
        entries = await read_on(self._log, topic + DEAD_LETTERS, 0, max(1, offset), min(limit, MAX_PAGE))
        return [read_letter(event) for event in sound(entries)]

    async def get(self, topic: str, offset: int) -> DeadLetter:
        """One; raises UnknownEvent."""
        letters = await self.page(topic, offset=offset, limit=1)
        if not letters or letters[0].offset != offset:
            raise UnknownEvent(f"topic {topic!r} has no dead letter {offset}")
        return letters[0]

    async def matching(
        self, topic: str, wanted: DeadLetterFilter = ALL, *, offset: int = 0
    ) -> AsyncIterator[DeadLetter]:
        """Those that fit, from `offset` of the `.DLQ` topic on, ascending. Raises UnknownTopic."""
        chosen, last = None, None
        if wanted.offsets is not None:
            chosen, offset, last = frozenset(wanted.offsets), max(offset, min(wanted.offsets)), max(wanted.offsets)
        left = wanted.limit
        while page := await self.page(topic, offset=offset):
            for letter in page:
                if left == 0 or (last is not None and letter.offset > last):
                    return
                if (chosen is None or letter.offset in chosen) and wanted.fits(letter):
                    left = None if left is None else left - 1
                    yield letter
            offset = page[-1].offset + 1

    async def count(self, topic: str) -> int:
        """How many there are now."""
        return sum(bounds.events for bounds in await self._log.bounds(topic + DEAD_LETTERS))

    # -- dropping

    async def drop(self, topic: str, wanted: DeadLetterFilter = ALL) -> int:
        """Forget dead letters, all or those that fit; how many."""
        dropped = 0
        for letters in _portions([letter async for letter in self.matching(topic, wanted)]):
            batch = Batch()
            _remove(batch, topic, letters)
            await self._commit("dropped", batch)
            dropped += len(letters)
            for letter in letters:
                self._note("drop", topic, letter)
        return dropped

    # -- sending back

    async def redrive(self, topic: str, wanted: DeadLetterFilter = ALL, *, to_all: bool = False) -> list[Published]:
        """Send dead letters back, all or those that fit: each to the group that gave up on it. Gives their places.

        With `to_all` each is published to its topic anew, and every group of the topic gets it. Each moves in one
        step: it is never lost and never in both places. Raises Conflict and UnknownGroup before anything has moved.
        What is left of damaged events cannot be sent, and stays.
        """
        letters = [letter async for letter in self.matching(topic, wanted)]
        if wanted.offsets is not None and (damaged := next((each for each in letters if is_damaged(each)), None)):
            raise Conflict(
                f"dead letter {damaged.offset} of {topic!r} is what is left of a damaged event",
                remedy="publish the event again from where you have it, then drop the letter",
            )
        letters = [letter for letter in letters if not is_damaged(letter)]
        if to_all:
            again = [await self._publish_again(topic, letter) for letter in letters]
            return [each for each in again if each is not None]
        by_position: dict[Position, list[DeadLetter]] = {}
        for letter in letters:
            by_position.setdefault(await self._position_of(topic, letter), []).append(letter)
        for position, chosen in by_position.items():
            if len(position.open) + len(chosen) > MAX_OPEN:
                raise Conflict(
                    f"group {position.group.name!r} may have {MAX_OPEN} unsettled events of a partition",
                    remedy="redrive fewer at a time: give a limit",
                )
        sent: list[Published] = []
        for position, chosen in by_position.items():
            for portion in _portions(chosen):
                sent += await self._reopen(topic, position, [letter.offset for letter in portion])
        return sent

    async def _position_of(self, topic: str, letter: DeadLetter) -> Position:
        """Where the letter goes back to. Raises UnknownGroup, Conflict and Unavailable."""
        group, offset = self._groups.find(topic, letter.group), letter.original_offset
        position = None if group is None else group.positions.get(letter.original_partition)
        if position is None or not offset or letter.original_topic != topic:
            raise UnknownGroup(
                f"dead letter {letter.offset} of {topic!r} has no group to go back to: "
                f"{letter.group!r} is not a group of the topic",
                remedy="send it to all groups, or drop it",
            )
        if await self._supply.is_open(position, offset):
            raise Conflict(
                f"group {letter.group!r} will get the event of dead letter {letter.offset} again by itself",
                remedy="drop the letter",
            )
        return position

    async def _reopen(self, topic: str, position: Position, offsets: list[int]) -> list[Published]:
        """One commit; without those that somebody else has sent or dropped meanwhile."""
        chosen: list[DeadLetter] = []

        async def prepare() -> Reopening | None:
            found = [letter async for letter in self.matching(topic, DeadLetterFilter(offsets=offsets))]
            if not found:
                return None
            chosen[:] = found
            batch = Batch()
            for letter in chosen:
                await self._position_of(topic, letter)  # raises Conflict when the group was moved meanwhile
                copy = _original(letter)
                batch.put(COPIES, position.copy_key(copy.offset), encode_copy(copy))
            _remove(batch, topic, chosen)
            return Reopening(tuple(letter.original_offset for letter in chosen), batch)

        try:
            if not await self._supply.reopen(position, prepare):
                return []
        except MainspringError as error:
            raise _not_now("sent back", error) from error
        for letter in chosen:
            self._note("redrive", topic, letter)
        return [
            Published(topic, letter.original_partition, letter.original_offset, letter.original_id, letter.original_ts)
            for letter in chosen
        ]

    async def _publish_again(self, topic: str, letter: DeadLetter) -> Published | None:
        """None: somebody else was faster."""
        try:
            await self.get(topic, letter.offset)
        except UnknownEvent:
            return None
        target = self._topics.open(topic)
        append = self._admission.own_event(target, bytes(letter.payload), letter.key, _headers_again(letter))
        # Two redrives may have read the same letter; the second one finds that it was sent. The mark is longer than any
        # id of a client, so that no client can take a letter away by publishing under its mark.
        append = msgspec.structs.replace(
            append,
            id=letter.original_id or append.id,
            dedupe=_place(letter).rjust(MAX_ID + 1, "/"),
            dedupe_until=append.ts + REMEMBERED_MS,
        )
        batch = Batch()
        batch.append(append)
        _remove(batch, topic, [letter])
        ((partition, offset, duplicate),) = await self._commit("sent back", batch, target)
        if duplicate:
            return None
        self._note("redrive", topic, letter)
        return Published(topic, partition, offset, append.id, append.ts)

    async def _commit(self, done: str, batch: Batch, *topics: Topic) -> Sequence[Placed]:
        try:
            return await self._publisher.commit_batch(batch, topics)
        except MainspringError as error:
            raise _not_now(done, error) from error

    def _note(self, action: str, topic: str, letter: DeadLetter) -> None:
        self._audit.note(action, self._topics.get(topic), letter.partition, letter.offset, 1, letter.group)


def _not_now(done: str, error: MainspringError) -> BusError:
    """What is told when the log did not take a change. To ask again is harmless: what has moved is here no more."""
    if isinstance(error, BusError):
        return error
    return Unavailable(
        f"the dead letters may or may not be {done}, so ask again; none is {done} twice: {error.message}",
        remedy="try again" if isinstance(error, InDoubt) else error.remedy or "try again",
    )


def _reason(position: Position, event: OpenEvent) -> str:
    """Why the event died: what was said last, and how often the process ended."""
    ended, _ = position.ends.get(event.offset, (0, 0))
    if not ended:
        return event.reason or TIMED_OUT
    times = "once" if ended == 1 else f"{ended} times"
    said = f"; it was refused before: {event.reason}" if event.reason else ""
    return f"the process ended {times} while this event was handled{said}"


def _remove(batch: Batch, topic: str, letters: Sequence[DeadLetter]) -> None:
    if letters:
        batch.remove(topic + DEAD_LETTERS, letters[0].partition, offsets=tuple(letter.offset for letter in letters))


def _portions(letters: Sequence[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """As many as one commit may move."""
    portion: list[DeadLetter] = []
    size = 0
    for letter in letters:
        size += len(letter.payload)
        if portion and (len(portion) >= MOST_AT_ONCE or size > MOST_BYTES_AT_ONCE):
            yield portion
            portion, size = [], len(letter.payload)
        portion.append(letter)
    if portion:
        yield portion


def _place(letter: DeadLetter) -> str:
    return f"{letter.topic}/{letter.partition}/{letter.offset}"


def _original(letter: DeadLetter) -> StoredEvent:
    """The event that died, as it was, except that its headers say that it comes back."""
    return StoredEvent(
        letter.original_topic,
        letter.original_partition,
        letter.original_offset,
        letter.original_id,
        letter.original_ts,
        bytes(letter.payload),
        letter.key,
        _encode(_headers_again(letter)),
    )


def _headers_again(letter: DeadLetter) -> dict[str, str]:
    """Those of the event; it has no more time limit, because somebody wants it handled now."""
    headers = {name: value for name, value in letter.headers.items() if name != EXPIRES}
    return {**headers, REDRIVEN: _place(letter)}


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
        original_id=story["x-original-id"],
        original_ts=_number(story["x-original-ts"]),
        group=story["x-group"],
        attempts=_number(story["x-attempts"]),
        reason=story["x-reason"],
        failure=_read_failure(story[FAILURE]),
    )


def _read_failure(text: str) -> KeptError | None:
    try:
        return _decode_failure(text) if text else None
    except msgspec.MsgspecError:  # of somebody else
        return None


def is_damaged(letter: DeadLetter) -> bool:
    """Whether the letter is what is left of an event that the log could not read any more."""
    return DAMAGED_HEADER in letter.headers


def _remains(error: DamagedEvent) -> StoredEvent:
    """What a dead letter says of a damaged event: its payload in base64, because it may be no JSON any more."""
    left = error.remains or StoredEvent(error.topic, error.partition, error.offset, "", 0, b"")
    try:
        headers = {} if left.headers is None else _decode_headers(left.headers)
    except (msgspec.DecodeError, UnicodeDecodeError):
        headers = {}
    payload = {"damaged": True, "payload_base64": base64.b64encode(left.payload).decode()}
    headers[DAMAGED_HEADER] = "true"
    return msgspec.structs.replace(left, payload=_encode(payload), headers=_encode(headers))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
