"""Decides about publish requests: who may publish what, does it fit, where does it go.

Everything is checked before anything is stored, so that a refused request uses no offset. Every face of the bus comes
through `Admission.accept` and hands what it gives to `Publisher.submit`.

Where spans are recorded, one begins here and ends when the events are durable. Who publishes may have a span of its own
and say so in the events' headers; then the node's span, `append`, stands below it and the headers stay as they are.
Otherwise the node's span, `publish`, is the producer's: it is put into the headers, so that consumers go on from it.

The partition of a key is the protocol's hash, the same in every language: h starts at 0; for each UTF-16 code unit c,
h = 31 h + c, wrapped to 32 bits and read as signed; the partition is |h| modulo the number of partitions. It is Java's
`String.hashCode`. Half surrogate pairs count as the units they are. |-2^31| is 2^31, as in JavaScript. The empty key is
a key; only an absent one is keyless.

The reasons are in docs/decisions/bus-publishing.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from mainspring.bus.access.access import Access, Caller, VerifiedHeaders, Who, verified_headers
from mainspring.bus.errors import BadFrame, Forbidden, RateLimited, TooLarge, Unavailable, bad_text
from mainspring.bus.protocol import (
    EXPIRES,
    OF_AGENT,
    PAYLOAD_SHA256,
    REPLIES,
    REPLY_FOR,
    REPLY_TO,
    BatchEvent,
    LeanEvent,
    NamedEvent,
    OfferedEvent,
    PublishFrame,
)
from mainspring.bus.publishing.publisher import Accepted
from mainspring.bus.publishing.rate_limit import TokenBucket
from mainspring.bus.quotas import UNLIMITED, Quota
from mainspring.bus.results import NewEvent
from mainspring.bus.schemas.registry import SchemaRegistry
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.json_text import HALF_CHARACTER, JsonRefused, are_readable_parts, check_json
from mainspring.log import Append, AppendMany
from mainspring.loop import Clock
from mainspring.settings import Settings
from mainspring.telemetry import TRACEPARENT, OpenSpan, Recorder, messaging, tracing

if TYPE_CHECKING:
    from mainspring.bus.schedules.schedule import Schedule

E = TypeVar("E", PublishFrame, BatchEvent)

MAX_DELAY_MS: Final = 10 * 366 * 86_400_000  # ten years: beyond that a delay is a mistake in its unit

MOST_SCHEDULED_BYTES: Final = 1 << 20  # per second, by one schedule
MOST_HASHED: Final = 256  # characters of a key whose hash is remembered: long ones would fill the memory

_to_json = msgspec.json.Encoder().encode
_to_sorted_json = msgspec.json.Encoder(order="sorted").encode


@dataclass(eq=False)
class Admission:
    """Checks events, and gives them their ids and partitions."""

    clock: Clock
    topics: TopicRegistry
    access: Access
    schemas: SchemaRegistry
    settings: Settings
    _: KW_ONLY
    new_id: Callable[[], str]
    random: Callable[[], float]
    takes_many: bool = False  # whether the log does
    closed: str = ""  # why nothing is accepted any more
    refuses: str = ""  # why nothing is published now: it is closed, or there is no room
    remedy: str = ""

    def __post_init__(self) -> None:
        self._most_bytes = self.settings.max_frame_bytes
        self._most_key_bytes = self.settings.max_key_bytes
        self._dedupe_window_ms = self.settings.dedupe_window_ms
        self._new_ids: Callable[[int], list[str]] = getattr(self.new_id, "many", None) or (
            lambda count: [self.new_id() for _ in range(count)]
        )

    def accept_lean(
        self,
        name: str,
        events: Sequence[LeanEvent] | Sequence[NamedEvent],
        caller: Caller,
        bucket: TokenBucket | None,
        batch_id: str | None = None,
    ) -> Accepted | None:
        """`accept` for events that have nothing but payload and key, of a frame that was decoded.

        Those of a batch with an id have one, too. None where each must be looked at by itself, or where they are
        refused: `accept` says why.
        """
        topic = self.topics.find(name)
        if topic is None or topic.config.partitions > 1 or self.refuses or not self.takes_many:
            return None
        if tracing.recorder is not None or self.schemas.of(name) is not None:
            return None
        payloads = [bytes(event.payload) for event in events]
        keys: list[str | None] | None = [event.key for event in events]
        headers = verified_headers(caller.verified).alone
        room = self._most_bytes - len(headers or b"")
        if keys is not None and keys.count(None) == len(keys):
            keys = None
        else:
            longest = 4 * max([len(key) for key in keys or () if key is not None])  # bytes, at most
            if longest > self._most_key_bytes:
                return None
            room -= longest
        if max(map(len, payloads)) > room or not are_readable_parts(payloads):
            return None
        self.access.check_now(topic.config, "publish", caller)
        if bucket is not None or topic.bucket is not None:
            self._check_rates(topic, bucket, len(events))
        count, now = len(payloads), self.clock.wall_ms()
        ids = self._new_ids(count) if batch_id is None else [event.id for event in events]  # type: ignore[union-attr]
        dedupe = None if batch_id is None else self._batch_mark(batch_id, count, caller)
        all_headers: list[bytes | None] | None = None if headers is None else [headers] * count
        until = now + self._dedupe_window_ms
        many = AppendMany(name, 0, now, ids, payloads, keys, all_headers, dedupe, until)
        return Accepted(topic, [], many=many)

    def _batch_mark(self, batch_id: str, count: int, caller: Caller | None) -> str | None:
        """What a batch is remembered by; None where nothing is. With another number of events it is another batch."""
        return f"{_of_agent(caller)}{batch_id}#{count}" if self._dedupe_window_ms else None

    def accept(
        self,
        name: str,
        events: Sequence[OfferedEvent],
        who: Who,
        *,
        bucket: TokenBucket | None = None,
        expect: int | None = None,
        limited: bool = True,
        batch_id: str | None = None,
    ) -> Accepted:
        """The events as they are to be stored, all or none. Raises BusError when the request is refused.

        `bucket` limits the rate of the connection; `limited=False` leaves out every rate limit. A batch that is sent
        again with its `batch_id` is stored once.
        """
        span = None
        if tracing.recorder is not None:
            span, events = _begin_span(tracing.recorder, name, events)
        topic = self.topics.find(name)
        is_new = topic is None
        try:
            if self.refuses and (limited or self.closed):  # what the node's own program has begun ends
                raise Unavailable(self.refuses, remedy=self.remedy)
            if topic is not None:
                self.access.check_now(topic.config, "publish", who)
            else:  # what is refused leaves nothing behind
                self.access.check_now(self.topics.config_of(name), "publish", who)
                topic = self.topics.open(name, _quota_of(who))
            if limited and (bucket is not None or topic.bucket is not None):
                self._check_rates(topic, bucket, len(events))
            now = self.clock.wall_ms()
            due: Sequence[int] = ()
            at_times: frozenset[int] = frozenset()
            for event in events:
                if event.delay_ms or event.not_before or event.ttl_ms:
                    due = _due_times(events, now, expect)
                    at_times = frozenset(
                        n for n, each in enumerate(events) if (each.not_before or 0) > now + (each.delay_ms or 0)
                    )
                    events = _with_expiry(topic, events, now, due)
                    break
            if batch_id is not None:
                events = _members(events, batch_id, due)
            caller = who if isinstance(who, Caller) else None
            appends = self._appends(topic, events, now, expect, caller)
            if span is not None and len(appends) == 1:
                span.note("messaging.message.id", appends[0].id)
                span.note("messaging.destination.partition.id", str(appends[0].partition))
        except MainspringError as error:
            if is_new and topic is not None:
                self.topics.drop_unused(topic, _quota_of(who))
            if span is not None:
                span.end(error)
            raise
        if batch_id is not None and self.takes_many:
            return self._accept_named(topic, appends, self._batch_mark(batch_id, len(appends), caller), span)
        return Accepted(topic, appends, due, expect is not None, span, at_times)

    def _accept_named(self, topic: Topic, appends: list[Append], dedupe: str | None, span: OpenSpan | None) -> Accepted:
        """In one partition, the batch is remembered. In several, each event is; but it may have been one before."""
        if topic.config.partitions > 1:
            return Accepted(topic, appends, span=span, unless=dedupe)
        many = AppendMany(
            topic.name,
            0,
            appends[0].ts,
            [append.id for append in appends],
            [append.payload for append in appends],
            [append.key for append in appends],
            [append.headers for append in appends],
            dedupe,
            appends[0].dedupe_until,
        )
        return Accepted(topic, [], span=span, many=many)

    def close(self, why: str) -> None:
        """Accept nothing any more."""
        self.closed = self.refuses = why
        self.remedy = "publish again in a moment"

    def on_disk(self, why: str, remedy: str) -> None:
        """Publish nothing while the disk is nearly full; an empty text: there is room again."""
        if not self.closed:
            self.refuses, self.remedy = why, remedy

    def accept_schedule(self, schedule: Schedule, who: Who) -> Schedule:
        """The schedule as it is kept: its payload fits the topic, its headers say who made it.

        One made from outside goes on without its maker, so it may neither fire too often nor publish too much.
        """
        if isinstance(who, Caller) and schedule.every is not None:
            self._check_pace(schedule.every, len(bytes(schedule.payload)))
        event = NewEvent(bytes(schedule.payload), schedule.key, schedule.headers)
        caller = who if isinstance(who, Caller) else None
        is_new = self.topics.find(schedule.topic) is None
        topic = self.topics.open(schedule.topic, _quota_of(who))
        try:
            (append,) = self._appends(topic, (event,), 0, None, caller)
        except MainspringError:
            if is_new:
                self.topics.drop_unused(topic, _quota_of(who))
            raise
        headers = None if append.headers is None else msgspec.json.decode(append.headers)
        return msgspec.structs.replace(schedule, headers=headers, owner=None if caller is None else caller.agent)

    def _check_pace(self, every: int, size: int) -> None:
        least = self.settings.min_every_ms
        if every < least:
            raise BadFrame(f"`every` is {every} ms", remedy=f"give at least {least} ms, or lower min_every_ms")
        if size * 1_000 > MOST_SCHEDULED_BYTES * every:
            raise TooLarge(
                f"a schedule may publish {MOST_SCHEDULED_BYTES} bytes per second, not {size} every {every} ms",
                remedy="publish a reference, or less often",
            )

    def own_event(
        self,
        topic: Topic,
        payload: bytes,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ts: int | None = None,
    ) -> Append:
        """An event that the node itself makes: there is nothing to check."""
        return Append(
            topic=topic.name,
            partition=self._partition(key, topic.config.partitions),
            id=self.new_id(),
            ts=self.clock.wall_ms() if ts is None else ts,
            payload=payload,
            key=key,
            headers=_to_json(headers) if headers else None,
        )

    def _partition(self, key: str | None, partitions: int) -> int:
        if key is not None:
            return partition_of(key, partitions)
        return int(self.random() * partitions) if partitions > 1 else 0

    def _appends(
        self, topic: Topic, events: Sequence[OfferedEvent], now: int, expect: int | None, caller: Caller | None
    ) -> list[Append]:
        """The events as they are stored. What the node adds to headers is made once for all that get the same."""
        verified = b"" if caller is None else caller.verified
        if verified and caller is not None:
            events = self._checked_requests(topic, events, caller)
        payloads = [bytes(event.payload) for event in events]
        _check_payloads(payloads)
        schemas = self.schemas.of(topic.name)
        added: Iterable[VerifiedHeaders]
        if schemas is None:
            added = repeat(verified_headers(verified), len(events))
        else:
            stamps = schemas.check_all(events, tombstones=topic.config.compact)
            added = [verified_headers(verified, stamp) for stamp in stamps]
        prefix = _of_agent(caller)
        name, partitions = topic.name, topic.config.partitions
        window, most_bytes = self._dedupe_window_ms, self._most_bytes
        appends = []
        for event, payload, more in zip(events, payloads, added, strict=True):
            headers = more.added_to(event.headers) if event.headers else more.alone
            size = len(payload) + (0 if headers is None else len(headers))
            id, key, dedupe = event.id, event.key, None
            if key is not None:
                key_size = len(key) if key.isascii() else len(key.encode())
                if key_size > self._most_key_bytes:
                    raise TooLarge(f"a key may have {self._most_key_bytes} bytes, this one has {key_size}")
                size += key_size
            if size > most_bytes:
                raise TooLarge(f"an event may have {most_bytes} bytes", remedy="publish a reference")
            if id is None:
                id = self.new_id()
            elif window:
                dedupe = prefix + id
            partition = 0 if partitions == 1 else self._partition(key, partitions)
            appends.append(Append(name, partition, id, now, payload, key, headers, dedupe, now + window, expect))
        return appends

    def _checked_requests(self, topic: Topic, events: Sequence[OfferedEvent], caller: Caller) -> Sequence[OfferedEvent]:
        """The events; those that ask for a reply say whose it is, and ask for it where the asker may have it."""
        for event in events:
            if event.headers and REPLY_TO in event.headers:
                break
        else:
            return events
        return [
            event if not event.headers or REPLY_TO not in event.headers else self._request(topic, event, caller)
            for event in events
        ]

    def _request(self, topic: Topic, event: OfferedEvent, caller: Caller) -> NewEvent:
        """A responder publishes with its own rights where a request says: it must not do so for who may not."""
        headers = event.headers or {}
        place = headers[REPLY_TO]
        if not place.endswith(REPLIES):
            raise Forbidden(f"{place!r} is no topic for replies", remedy=f"let its name end with {REPLIES}")
        if place != topic.name + REPLIES:
            self.access.check_now(self.topics.config_of(place), "publish", caller)
        bound = {**headers, REPLY_FOR: f"{caller.agent}{OF_AGENT}{headers.get(REPLY_FOR, '')}"}
        return NewEvent(bytes(event.payload), event.key, bound, event.id)

    def _check_rates(self, topic: Topic, bucket: TokenBucket | None, count: int) -> None:
        now = self.clock.now_ms()
        for limit in (bucket, topic.bucket):
            if limit is None or limit.take(count, now):
                continue
            whose = "this connection" if limit is bucket else f"topic {topic.name!r}"
            if count > limit.burst:
                raise RateLimited(
                    f"{whose} takes at most {limit.burst} events at once, not {count}", remedy="publish smaller batches"
                )
            wait_ms = limit.wait_ms(count)
            remedy = f"try again in {wait_ms} ms"
            raise RateLimited(f"{whose} takes no more events for now", remedy=remedy, retry_after_ms=wait_ms)


def _of_agent(caller: Caller | None) -> str:
    """What ids that a proven agent gives are remembered with: they are its own."""
    return f"{caller.agent}{OF_AGENT}" if caller is not None and caller.verified else ""


def _members(events: Sequence[OfferedEvent], batch_id: str, due: Sequence[int]) -> Sequence[OfferedEvent]:
    """The events of a batch with an id, each with its own."""
    if due:
        raise BadFrame("a batch with a `batch_id` holds no delayed events", remedy="publish them with ids instead")
    return [
        event
        if event.id is not None
        else NewEvent(bytes(event.payload), event.key, event.headers, f"{batch_id}#{number}")
        for number, event in enumerate(events)
    ]


def _quota_of(who: Who) -> Quota:
    return who.quota if isinstance(who, Caller) else UNLIMITED


def _check_payloads(payloads: list[bytes]) -> None:
    """Raise BadFrame or BadJson unless everybody can read them; it names the event, where there are several."""
    for number, payload in enumerate(payloads):
        try:
            check_json(payload)
        except JsonRefused as refused:
            error = bad_text(refused)
            if len(payloads) > 1:
                error.message = f"event {number} of the batch: {error.message}"
                error.details = {"event": number}
            raise error from None


def _due_times(events: Sequence[OfferedEvent], now: int, expect: int | None) -> list[int]:
    """When each event is due, 0: at once; an empty list when all are due at once."""
    due = [max(event.not_before or 0, now + event.delay_ms if event.delay_ms else 0) for event in events]
    latest = max(due)
    if latest > now + MAX_DELAY_MS:
        raise BadFrame("the event would wait for more than ten years", remedy="give milliseconds")
    if latest <= now:
        return []
    if expect is not None:
        raise BadFrame("a delayed event has no place yet, so it cannot `expect` one")
    return [each if each > now else 0 for each in due]


def _with_expiry(topic: Topic, events: Sequence[OfferedEvent], now: int, due: Sequence[int]) -> Sequence[OfferedEvent]:
    """The events with a header that says when they expire, where they do."""
    if not any(event.ttl_ms for event in events):
        return events
    topic.has_expiring_events()
    known = []
    for number, event in enumerate(events):
        headers = event.headers
        if event.ttl_ms:
            stored = due[number] if due and due[number] else now
            headers = {**(headers or {}), EXPIRES: str(stored + event.ttl_ms)}
        known.append(NewEvent(bytes(event.payload), event.key, headers, event.id))
    return known


def _begin_span(recorder: Recorder, topic: str, events: Sequence[OfferedEvent]) -> tuple[OpenSpan, list[NewEvent]]:
    """A span for publishing these events, and the events with headers that carry the trace."""
    carried = next((event.headers for event in events if event.headers and TRACEPARENT in event.headers), None)
    one = events[0] if len(events) == 1 else None
    attributes = messaging(
        "publish" if carried is None else "append",
        "send",
        topic,
        message_id=None if one is None else one.id,
        key=None if one is None else one.key,
        count=None if one is not None else len(events),
    )
    name, kind = (f"publish {topic}", "PRODUCER") if carried is None else (f"append {topic}", "INTERNAL")
    span = recorder.begin(name, kind, attributes, parent=carried)
    return span, [
        NewEvent(
            bytes(event.payload),
            event.key,
            span.carried(event.headers),
            event.id,
            event.delay_ms or 0,
            event.not_before or 0,
            event.ttl_ms or 0,
        )
        for event in events
    ]


def check_event(event: NewEvent) -> None:
    """Raise BadFrame for what a frame could not say: a program may have made it."""
    try:
        (event.key or "").encode()
        (event.id or "").encode()
    except UnicodeEncodeError:
        raise BadFrame(HALF_CHARACTER) from None
    if event.id is not None and not 0 < len(event.id) <= 255:
        raise BadFrame("an event's id has 1 to 255 characters")
    if event.delay_ms < 0 or event.not_before < 0 or event.ttl_ms < 0:
        raise BadFrame("a delay is not negative")


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    if headers is None:
        return None
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in headers.items()):
        raise BadFrame("headers are text")
    return dict(headers)


def with_sha256(event: E) -> E:
    """The event with its digest as a header, if it has one."""
    digest = event.payload_sha256
    if digest is None:
        return event
    return msgspec.structs.replace(event, headers=sha256_headers(bytes(event.payload), event.headers, digest))


def sha256_headers(payload: bytes, headers: dict[str, str] | None, digest: str) -> dict[str, str]:
    """The headers of an event with its digest among them, from which the envelope gets it.

    It is the SHA-256 of the payload as JSON with sorted keys and no spaces, in UTF-8, in hexadecimal, and is checked.
    """
    _check_payloads([payload])
    if hashlib.sha256(_to_sorted_json(msgspec.json.decode(payload))).hexdigest() != digest.lower():
        raise BadFrame("payload_sha256 does not fit the payload", remedy="hash JSON with sorted keys and no spaces")
    return {**(headers or {}), PAYLOAD_SHA256: digest}


def key_hash(key: str) -> int:
    """The signed 32-bit hash of a key."""
    h = 0
    if key.isascii():
        for unit in key.encode("ascii"):
            h = 31 * h + unit & 0xFFFFFFFF
    else:
        units = memoryview(key.encode("utf-16-le", "surrogatepass"))
        for at in range(0, len(units), 2):
            h = 31 * h + (units[at] | units[at + 1] << 8) & 0xFFFFFFFF
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


# keys repeat; hashing a 20-character key in Python costs as much as decoding its frame
_remembered_hash = lru_cache(maxsize=65_536)(key_hash)


def partition_of(key: str, partitions: int) -> int:
    """The partition of `key` among `partitions`; 0 when there is at most one."""
    if partitions <= 1:
        return 0
    return abs(_remembered_hash(key) if len(key) <= MOST_HASHED else key_hash(key)) % partitions
