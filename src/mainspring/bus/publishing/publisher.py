"""The bus's one way to the log: `submit` writes what `Admission.accept` has accepted.

What connections publish in one slice is collected in one batch, because a batch costs more than an event. Events that
carry an expectation need a batch of their own: it may be refused, and its neighbours must stand. The order of
submission is the order in which requests came, so that the order of one connection's events in a partition is the order
in which it sent them.

When a commit is durable, its requests are answered first and its events are shown to groups afterwards, in a turn of
their own: nobody sees a MESSAGE before the PUBLISHED of the same event.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.errors import BusError, ExpectationFailed, Unavailable
from mainspring.bus.results import Published
from mainspring.bus.topics.tail import PartitionTail
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.log import Append, AppendMany, Batch, InDoubt, Log, Prepared, Receipt, Refused, Result, Unmarked
from mainspring.loop import reject, resolve
from mainspring.telemetry import OpenSpan

Placed = tuple[int, int, bool]  # partition, offset, duplicate
OnDone = Callable[[Sequence[Placed] | MainspringError], None]  # where the events are, or why they are not stored
StoreTopic = Callable[[Batch, Topic], None]


class Accepted(msgspec.Struct, frozen=True):
    """Events of one request that may be stored: checked, with their ids and partitions.

    `due` says when each is due (epoch ms; 0: at once); it is empty when all are due at once. `expects`: one of them
    is only to be stored behind a certain offset. `at_times` are those that are due at a time of day, and not after a
    delay. `span` ends when the events are durable, or refused. `many` are the events instead of `appends`, where they
    go together. `unless`: all of them are there already, in partition 0, if this is remembered.
    """

    topic: Topic
    appends: list[Append]
    due: Sequence[int] = ()
    expects: bool = False
    span: OpenSpan | None = None
    at_times: frozenset[int] = frozenset()
    many: AppendMany | None = None
    unless: str | None = None

    def due_at(self, index: int) -> int:
        return self.due[index] if self.due else 0

    def published(self, placed: Sequence[Placed]) -> list[Published]:
        """Where each event went, as callers are told."""
        return [
            Published(append.topic, partition, offset, append.id, append.ts, duplicate, self.due_at(index))
            for index, (append, (partition, offset, duplicate)) in enumerate(zip(self.appends, placed, strict=True))
        ]


@dataclass(slots=True, eq=False)
class _Pending:
    """A batch being collected or under way, and who waits for which part of it."""

    store_topic: StoreTopic
    audited: bool = True
    batch: Batch = field(default_factory=Batch)
    appends: list[Append | AppendMany] = field(default_factory=list)
    waiting: list[tuple[OnDone, int, int]] = field(default_factory=list)
    topics: dict[str, Topic] = field(default_factory=dict)

    def add_topic(self, topic: Topic) -> None:
        if topic.name not in self.topics:
            self.topics[topic.name] = topic
            if not topic.stored:
                self.store_topic(self.batch, topic)

    def add_many(self, topic: Topic, many: AppendMany, on_done: OnDone | None) -> None:
        self.add_topic(topic)
        if on_done is not None:
            self.waiting.append((on_done, len(self.appends), 1))
        self.appends.append(many)
        self.batch.append_many(many)

    def add(self, topic: Topic, appends: Sequence[Append], on_done: OnDone | None) -> None:
        self.add_topic(topic)
        if on_done is not None:
            self.waiting.append((on_done, len(self.appends), len(appends)))
        self.appends.extend(appends)
        self.batch.operations.extend(appends)


@dataclass(eq=False)
class Publisher:
    """Collects, submits, answers.

    `appended` is called with every topic that has new events which someone waits for. `store_topic` stores a topic
    that is new, before its first event. `store_delayed` stores events of which some are due later; the owner sets it,
    because what is due is published here again.
    """

    log: Log
    counters: BusCounters
    audit: Audit
    appended: Callable[[Topic], None]
    store_topic: StoreTopic
    store_delayed: Callable[[Accepted, OnDone], None] = field(init=False)

    def __post_init__(self) -> None:
        self._open: _Pending | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # -- accepted events

    def submit(self, accepted: Accepted, on_done: OnDone | None = None) -> None:
        """Write the events, all or none; `on_done` is called when it is decided. Never raises."""
        if accepted.span is not None:
            on_done = partial(_end_span, accepted.span, on_done)
        if accepted.due:
            self.store_delayed(accepted, on_done or (lambda _: None))
        elif accepted.expects or accepted.unless is not None:
            self._flush()
            pending = _Pending(self.store_topic)
            if accepted.unless is not None:
                pending.batch.operations.append(Unmarked(accepted.topic.name, accepted.unless, accepted.appends[0].ts))
                on_done = partial(_unless_seen, len(accepted.appends), on_done or (lambda _: None))
            pending.add(accepted.topic, accepted.appends, on_done)
            self._submit(pending)
        else:
            if self._open is None:
                self._open = _Pending(self.store_topic)
                asyncio.get_running_loop().call_soon(self._flush)
            if accepted.many is not None:
                self._open.add_many(accepted.topic, accepted.many, on_done)
            else:
                self._open.add(accepted.topic, accepted.appends, on_done)

    async def store(self, accepted: Accepted) -> list[Published]:
        """`submit`, and wait until the events are durable. Raises BusError."""
        done: asyncio.Future[Sequence[Placed]] = asyncio.get_running_loop().create_future()
        self.submit(accepted, partial(_settle, done))
        try:
            return accepted.published(await done)
        except MainspringError as error:
            raise refusal(error) from error

    def prepare(self, accepted: Accepted) -> Prepared:
        """The events as part of someone else's batch."""
        pending = _Pending(self.store_topic)
        pending.add(accepted.topic, accepted.appends, None)

        def stored(receipt: Receipt) -> None:
            if accepted.span is not None:
                accepted.span.end()
            self._show(pending, receipt.offsets)

        return Prepared(pending.batch.operations, stored)

    # -- batches of the bus itself

    def submit_batch(self, batch: Batch, topics: Sequence[Topic], on_done: OnDone, *, audited: bool = True) -> None:
        """A batch that belongs together, with events of these topics in it; `audited`: as published."""
        self._flush()
        pending = _Pending(self.store_topic, audited)
        for topic in topics:
            pending.add_topic(topic)
        pending.appends = [operation for operation in batch.operations if isinstance(operation, Append)]
        pending.batch.operations.extend(batch.operations)
        pending.waiting.append((on_done, 0, len(pending.appends)))
        self._submit(pending)

    def commit_batch(self, batch: Batch, topics: Sequence[Topic]) -> asyncio.Future[Sequence[Placed]]:
        """`submit_batch` at once; wait for what this gives to learn where the events are."""
        done: asyncio.Future[Sequence[Placed]] = asyncio.get_running_loop().create_future()
        self.submit_batch(batch, topics, partial(_settle, done))
        return done

    async def idle(self) -> None:
        """Wait until everything published so far is decided."""
        self._flush()
        await self._idle.wait()

    def _flush(self) -> None:
        pending, self._open = self._open, None
        if pending is not None:
            self._submit(pending)

    def _submit(self, pending: _Pending) -> None:
        self._under_way += 1
        self._idle.clear()
        self.log.submit(pending.batch, lambda result: self._decided(pending, result))

    def _decided(self, pending: _Pending, result: Result) -> None:
        self._under_way -= 1
        if isinstance(result, Receipt):
            placed = result.offsets
            self._show(pending, placed)
            for on_done, start, count in pending.waiting:
                on_done(placed[start : start + count])
        else:
            for on_done, _, _ in pending.waiting:
                on_done(result)
        if not self._under_way and self._open is None:
            self._idle.set()

    def _show(self, pending: _Pending, placed: Sequence[Placed]) -> None:
        """Let the tails know; the groups are woken in a later turn."""
        topics = pending.topics
        if len(topics) == 1:
            (topic,) = topics.values()
            if not topic.active:
                for partition, (offset, count) in _ends(pending, placed).items():
                    topic.tails[partition].advance(offset)
                    self._count(pending, topic, partition, offset, count)
                self._wake_readers(topics)
                return
        for tail, (first, appends) in _runs(pending, placed).items():
            topic, last = topics[tail.topic], first + len(appends) - 1
            self._count(pending, topic, tail.partition, last, len(appends))
            if topic.active:
                tail.extend(first, appends)
            else:
                tail.advance(last)
        self._wake_readers(topics)

    def _count(self, pending: _Pending, topic: Topic, partition: int, offset: int, count: int) -> None:
        """So many events were stored, the last one at `offset`. What was there already is not counted again."""
        self.counters.published += count
        topic.published += count
        if pending.audited:
            self.audit.note("publish", topic, partition, offset, count)

    def _wake_readers(self, topics: dict[str, Topic]) -> None:
        for topic in topics.values():
            topic.stored = True
            if topic.active or topic.followers:
                self.appended(topic)


def _ends(pending: _Pending, placed: Sequence[Placed]) -> dict[int, tuple[int, int]]:
    """The last offset of each partition of the one topic, and how many events were stored there."""
    if pending.batch.more:
        ends: dict[int, tuple[int, int]] = {}
        for append, (partition, offset, duplicate) in zip(pending.appends, placed, strict=True):
            if not duplicate:
                count = len(append.ids) if isinstance(append, AppendMany) else 1
                ends[partition] = (offset + count - 1, ends.get(partition, (0, 0))[1] + count)
        return ends
    stored = [(partition, offset) for partition, offset, duplicate in placed if not duplicate]
    newest = dict(stored)
    if len(newest) == 1:
        return {partition: (offset, len(stored)) for partition, offset in newest.items()}
    counts = Counter([partition for partition, _ in stored])
    return {partition: (offset, counts[partition]) for partition, offset in newest.items()}


def _runs(pending: _Pending, placed: Sequence[Placed]) -> dict[PartitionTail, tuple[int, list[Append]]]:
    """The events that were stored, by partition: the first offset, and those that follow each other from there.

    Nobody else appends in the middle of a batch, so the offsets of a batch in one partition have no gaps.
    """
    runs: dict[PartitionTail, tuple[int, list[Append]]] = {}
    topics = pending.topics
    for append, (partition, offset, duplicate) in zip(pending.appends, placed, strict=True):
        if not duplicate:
            tail = topics[append.topic].tails[partition]
            run = runs.get(tail)
            if run is None:
                run = runs[tail] = (offset, [])
            if isinstance(append, AppendMany):
                run[1].extend(append.each())
            else:
                run[1].append(append)
    return runs


def refusal(error: MainspringError) -> BusError:
    """What a client is told when the log did not take its request."""
    if isinstance(error, BusError):
        return error
    if error.code == "log_damaged":
        return Unavailable(error.message, remedy=error.remedy)
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
    return Unavailable(
        f"the event may or may not be stored, so publish it again with the same id: {error.message}",
        remedy=error.remedy or "try again",
    )


def _unless_seen(count: int, on_done: OnDone, result: Sequence[Placed] | MainspringError) -> None:
    if isinstance(result, Refused) and result.code == "seen_before" and result.actual is not None:
        on_done([(0, offset, True) for offset in range(result.actual, result.actual + count)])
    else:
        on_done(result)


def _settle(done: asyncio.Future[Sequence[Placed]], result: Sequence[Placed] | MainspringError) -> None:
    if isinstance(result, MainspringError):
        reject(done, result)
    else:
        resolve(done, result)


def _end_span(span: OpenSpan, on_done: OnDone | None, result: Sequence[Placed] | MainspringError) -> None:
    span.end(result if isinstance(result, MainspringError) else None)
    if on_done is not None:
        on_done(result)
