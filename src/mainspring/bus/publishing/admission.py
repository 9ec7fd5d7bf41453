"""Takes publish requests: may they, do they fit, where do they go.

Everything is checked before anything is stored, so that a refused request uses no offset. WebSocket frames and Python
or HTTP callers come through the same door.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final, Protocol

import msgspec

from mainspring.bus.access.access import Access, Caller, Who
from mainspring.bus.access.verified_headers import Seal, seal_of, sealed
from mainspring.bus.errors import (
    BadFrame,
    BusError,
    ExpectationFailed,
    RateLimited,
    TooLarge,
    Unavailable,
    bad_text,
)
from mainspring.bus.publishing.partitioning import partition_of
from mainspring.bus.publishing.publisher import Publisher, Ticket
from mainspring.bus.publishing.rate_limit import TokenBucket
from mainspring.bus.publishing.spans import TracedTicket, ending, traced
from mainspring.bus.schedules.schedules import Schedule, Schedules
from mainspring.bus.schemas.registry import SchemaRegistry
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.json_text import JsonRefused, check_json
from mainspring.log import Append, Batch, InDoubt, Operation, Receipt, Refused
from mainspring.loop import Clock
from mainspring.settings import Settings
from mainspring.telemetry import tracing

MAX_DELAY_MS: Final = 10 * 366 * 86_400_000  # ten years: beyond that a delay is a mistake in its unit

_sorted = msgspec.json.Encoder(order="sorted").encode


class Offered(Protocol):
    """One event of a request: what a PUBLISH frame, an event of a batch and a NewEvent have in common."""

    @property
    def payload(self) -> bytes | msgspec.Raw: ...
    @property
    def key(self) -> str | None: ...
    @property
    def headers(self) -> dict[str, str] | None: ...
    @property
    def id(self) -> str | None: ...
    @property
    def delay_ms(self) -> int | None: ...
    @property
    def not_before(self) -> int | None: ...


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A request that was taken: its events, and when each is due (0: at once). `due` is empty when all are at once."""

    topic: Topic
    appends: list[Append]
    due: list[int]

    def due_at(self, index: int) -> int:
        return self.due[index] if self.due else 0


class Admission:
    """Checks and submits."""

    def __init__(
        self,
        clock: Clock,
        topics: TopicRegistry,
        publisher: Publisher,
        schedules: Schedules,
        access: Access,
        schemas: SchemaRegistry,
        settings: Settings,
        *,
        new_id: Callable[[], str],
        random: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._publisher = publisher
        self._schedules = schedules
        self._access = access
        self._schemas = schemas
        self._settings = settings
        self._new_id = new_id
        self._random = random
        self._most_bytes = settings.max_frame_bytes
        self.closed = False

    def publish(
        self,
        name: str,
        events: Sequence[Offered],
        ticket: Callable[[Accepted], Ticket],
        *,
        agent: Who,
        bucket: TokenBucket | None = None,
        expect: int | None = None,
    ) -> None:
        """Submit the events, all or none; `ticket` is made for what was accepted and hears of the rest.

        Raises BusError when the request is refused; then nothing was submitted.
        """
        if tracing.recorder is None:
            self._publish(name, events, ticket, agent, bucket, expect)
            return
        doing, carrying = traced(tracing.recorder, name, events)
        try:
            self._publish(name, carrying, lambda taken: TracedTicket(doing, ticket(taken)), agent, bucket, expect)
        except MainspringError as error:
            doing.end(error)
            raise

    def _publish(
        self,
        name: str,
        events: Sequence[Offered],
        ticket: Callable[[Accepted], Ticket],
        agent: Who,
        bucket: TokenBucket | None,
        expect: int | None,
    ) -> None:
        if self.closed:
            raise Unavailable("the node is stopping", remedy="publish again in a moment")
        topic = self._topics.open(name)
        self._access.check_now(topic.config, "publish", agent)
        self._check_rates(topic, bucket, len(events))
        now = self._clock.wall_ms()
        appends = self._appends(topic, events, now, expect, agent.sealed if isinstance(agent, Caller) else b"")
        delayed = any(event.delay_ms or event.not_before for event in events)
        due = [self._due(event, now) for event in events] if delayed else []
        accepted = Accepted(topic, appends, due)
        if due and any(due):
            if expect is not None:
                raise BadFrame("a delayed event has no place yet, so it cannot `expect` one")
            self._submit_delayed(accepted, ticket(accepted))
        elif expect is not None:
            self._publisher.publish_alone(topic, appends, ticket(accepted))
        else:
            self._publisher.publish(topic, appends, ticket(accepted))

    def prepare(self, name: str, event: Offered) -> tuple[list[Operation], Callable[[Receipt], None]]:
        """One event of the node's own program, to be stored in a batch of someone else's."""
        if self.closed:
            raise Unavailable("the node is stopping", remedy="publish again in a moment")
        topic = self._topics.open(name)
        self._access.check_now(topic.config, "publish", None)
        doing = None
        if tracing.recorder is not None:
            doing, (event,) = traced(tracing.recorder, name, (event,))
        (append,) = self._appends(topic, (event,), self._clock.wall_ms(), None, b"")
        operations, stored = self._publisher.prepare(topic, [append])
        return operations, stored if doing is None else ending(doing, stored)

    def scheduled(self, schedule: Schedule, who: Who) -> Schedule:
        """The schedule as it is kept: its payload fits the topic, its headers say who made it."""
        _check_all([bytes(schedule.payload)])
        headers = sealed(schedule.headers, who)
        schemas = self._schemas.of(schedule.topic)
        if schemas is not None:
            topic = self._topics.open(schedule.topic)
            stamp = schemas.check(bytes(schedule.payload), headers, tombstones=topic.config.compact)
            if stamp:
                headers = {**(headers or {}), **msgspec.json.decode(b"{%b}" % stamp)}
        return msgspec.structs.replace(schedule, headers=headers)

    def partition(self, key: str | None, partitions: int) -> int:
        if key is not None:
            return partition_of(key, partitions)
        return int(self._random() * partitions) if partitions > 1 else 0

    def _appends(
        self, topic: Topic, events: Sequence[Offered], now: int, expect: int | None, sealed: bytes
    ) -> list[Append]:
        """The events as they are stored. What is put on headers is joined once for all events that get the same."""
        payloads = [bytes(event.payload) for event in events]
        _check_all(payloads)
        schemas = self._schemas.of(topic.name)
        seals: Iterable[Seal]
        if schemas is None:
            seals = repeat(seal_of(sealed), len(events))
        else:
            seals = [seal_of(sealed, stamp) for stamp in schemas.check_all(events, tombstones=topic.config.compact)]
        name, partitions = topic.name, topic.config.partitions
        window = self._settings.dedupe_window_ms
        appends = []
        for event, payload, seal in zip(events, payloads, seals, strict=True):
            headers = seal.put_on(event.headers) if event.headers else seal.alone
            if len(payload) + (0 if headers is None else len(headers)) > self._most_bytes:
                raise TooLarge(f"an event may have {self._most_bytes} bytes", remedy="publish a reference")
            id, key, dedupe = event.id, event.key, None
            if id is None:
                id = self._new_id()
            elif window:
                dedupe = id
            partition = 0 if partitions == 1 else self.partition(key, partitions)
            appends.append(Append(name, partition, id, now, payload, key, headers, dedupe, now + window, expect))
        return appends

    def _due(self, event: Offered, now: int) -> int:
        due = max(event.not_before or 0, now + event.delay_ms if event.delay_ms else 0)
        if due > now + MAX_DELAY_MS:
            raise BadFrame("the event would wait for more than ten years", remedy="give milliseconds")
        return due if due > now else 0

    def _check_rates(self, topic: Topic, bucket: TokenBucket | None, count: int) -> None:
        if bucket is None and topic.bucket is None:
            return
        now = self._clock.now_ms()
        for limit in (bucket, topic.bucket):
            if limit is None or limit.take(count, now):
                continue
            whose = "this connection" if limit is bucket else f"topic {topic.name!r}"
            if count > limit.burst:
                raise RateLimited(
                    f"{whose} takes at most {limit.burst} events at once, not {count}", remedy="publish smaller batches"
                )
            wait_ms = limit.wait_ms(count)
            refused = RateLimited(f"{whose} takes no more events for now", remedy=f"try again in {wait_ms} ms")
            refused.retry_after_ms = wait_ms
            raise refused

    def _submit_delayed(self, accepted: Accepted, ticket: Ticket) -> None:
        batch = Batch()
        for append, due in zip(accepted.appends, accepted.due, strict=True):
            if due:
                self._schedules.delay(batch, append, due)
            else:
                batch.append(append)
        earliest = min(due for due in accepted.due if due)
        self._publisher.submit(batch, (accepted.topic,), _Delayed(self._schedules, earliest, accepted, ticket))


class _Delayed:
    """Puts the places of delayed events (partition, 0) between those of the others, then plans their firing."""

    def __init__(self, schedules: Schedules, earliest: int, accepted: Accepted, ticket: Ticket) -> None:
        self._schedules = schedules
        self._earliest = earliest
        self._accepted = accepted
        self._ticket = ticket

    def stored(self, placed: Sequence[tuple[int, int, bool]]) -> None:
        given = iter(placed)
        answer = [
            (append.partition, 0, False) if due else next(given)
            for append, due in zip(self._accepted.appends, self._accepted.due, strict=True)
        ]
        self._schedules.plan(self._earliest)
        self._ticket.stored(answer)

    def failed(self, error: MainspringError) -> None:
        self._ticket.failed(error)


def refusal(error: MainspringError) -> BusError:
    """What a client is told when the log did not take its request."""
    if isinstance(error, BusError):
        return error
    if isinstance(error, Refused):
        return ExpectationFailed(
            f"`expect` is not the partition's last offset: {error.message}",
            remedy="read what was published, then retry",
        )
    if isinstance(error, InDoubt):
        return Unavailable(
            f"it is not known whether the event was stored: {error.message}",
            remedy="publish it again with the same id; it is then stored once",
        )
    return Unavailable(f"the event could not be stored: {error.message}", remedy=error.remedy or "try again")


def _check_all(payloads: list[bytes]) -> None:
    """The event that is refused is named, where there are several."""
    for number, payload in enumerate(payloads):
        try:
            check_json(payload)
        except JsonRefused as refused:
            error = bad_text(refused)
            if len(payloads) > 1:
                error.message = f"event {number} of the batch: {error.message}"
                error.details = {"event": number}
            raise error from None


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    if headers is None:
        return None
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in headers.items()):
        raise BadFrame("headers are text")
    return dict(headers)


def check_sha256(payload: bytes, digest: str) -> None:
    """The SHA-256 of the payload as JSON with sorted keys and no spaces, in UTF-8, in hexadecimal."""
    _check_all([payload])
    if hashlib.sha256(_sorted(msgspec.json.decode(payload))).hexdigest() != digest.lower():
        raise BadFrame("payload_sha256 does not fit the payload", remedy="hash JSON with sorted keys and no spaces")
