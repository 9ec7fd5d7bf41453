"""The bus's one way to the log.

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
from typing import Protocol

from mainspring.bus.audit import Audit
from mainspring.bus.counters import BusCounters
from mainspring.bus.topics.tail import PartitionTail
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, Log, Operation, Receipt, Result

Placed = tuple[int, int, bool]  # partition, offset, duplicate
Announce = Callable[[Batch, Topic], None]


class Ticket(Protocol):
    """Someone who waits for events to be durable."""

    def stored(self, placed: Sequence[Placed]) -> None: ...

    def failed(self, error: MainspringError) -> None: ...


class _Pending:
    """A batch being collected or under way, and who waits for which part of it."""

    __slots__ = ("announce", "appends", "audited", "batch", "bytes", "tickets", "topics")

    def __init__(self, announce: Announce, audited: bool = True) -> None:
        self.announce: Announce = announce
        self.audited = audited
        self.batch = Batch()
        self.appends: list[Append] = []
        self.tickets: list[tuple[Ticket, int, int]] = []
        self.topics: dict[str, Topic] = {}
        self.bytes = 0

    def add(self, topic: Topic, appends: Sequence[Append], ticket: Ticket | None) -> None:
        if topic.name not in self.topics:
            self.topics[topic.name] = topic
            if not topic.stored:
                self.announce(self.batch, topic)
        if ticket is not None:
            self.tickets.append((ticket, len(self.appends), len(appends)))
        self.appends.extend(appends)
        self.batch.operations.extend(appends)
        self.bytes += sum([len(append.payload) for append in appends])


class Publisher:
    """Collects, submits, answers. `appended` is called with every topic that has new events.

    `announce` stores a topic that is new, before its first event.
    """

    def __init__(
        self, log: Log, counters: BusCounters, audit: Audit, appended: Callable[[Topic], None], announce: Announce
    ) -> None:
        self._log = log
        self._counters = counters
        self._audit = audit
        self._appended = appended
        self._announce = announce
        self._open: _Pending | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.bytes_under_way: int = 0

    def publish(self, topic: Topic, appends: Sequence[Append], ticket: Ticket | None) -> None:
        """Events without an expectation; they share a batch with others of this slice."""
        pending = self._open
        if pending is None:
            pending = self._open = _Pending(self._announce)
            asyncio.get_running_loop().call_soon(self._flush)
        pending.add(topic, appends, ticket)

    def publish_alone(self, topic: Topic, appends: Sequence[Append], ticket: Ticket | None) -> None:
        """Events that may be refused."""
        self._flush()
        pending = _Pending(self._announce)
        pending.add(topic, appends, ticket)
        self._submit(pending)

    def submit(self, batch: Batch, topics: Sequence[Topic], ticket: Ticket, *, audited: bool = True) -> None:
        """A batch that belongs together, with events of these topics in it; `audited`: as published."""
        self._flush()
        pending = _Pending(self._announce, audited)
        for topic in topics:
            pending.add(topic, (), None)
        pending.appends = [operation for operation in batch.operations if isinstance(operation, Append)]
        pending.batch.operations.extend(batch.operations)
        pending.tickets.append((ticket, 0, len(pending.appends)))
        self._submit(pending)

    def prepare(self, topic: Topic, appends: Sequence[Append]) -> tuple[list[Operation], Callable[[Receipt], None]]:
        """Events that someone else's batch will store: what to put into it, and whom to tell with its receipt.

        The receipt's offsets must be those of these events alone, told in the log's own callback.
        """
        pending = _Pending(self._announce)
        pending.add(topic, appends, None)
        return pending.batch.operations, lambda receipt: self._show(pending, receipt.offsets)

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
        self.bytes_under_way += pending.bytes
        self._log.submit(pending.batch, lambda result: self._decided(pending, result))

    def _decided(self, pending: _Pending, result: Result) -> None:
        self._under_way -= 1
        self.bytes_under_way -= pending.bytes
        if isinstance(result, Receipt):
            placed = result.offsets
            self._show(pending, placed)
            for ticket, start, count in pending.tickets:
                ticket.stored(placed[start : start + count])
        else:
            for ticket, _, _ in pending.tickets:
                ticket.failed(result)
        if not self._under_way and self._open is None:
            self._idle.set()

    def _show(self, pending: _Pending, placed: Sequence[Placed]) -> None:
        """Let the tails know; the groups are woken in a later turn."""
        topics = pending.topics
        if len(topics) == 1:
            (topic,) = topics.values()
            if not topic.active:
                stored = [(partition, offset) for partition, offset, duplicate in placed if not duplicate]
                newest = dict(stored)
                counts = Counter([partition for partition, _ in stored]) if len(newest) > 1 else None
                for partition, offset in newest.items():
                    topic.tails[partition].advance(offset)
                    self._count(pending, topic, partition, offset, len(stored) if counts is None else counts[partition])
                self._told(topics)
                return
        for tail, (first, appends) in _runs(pending, placed).items():
            topic, last = topics[tail.topic], first + len(appends) - 1
            self._count(pending, topic, tail.partition, last, len(appends))
            if topic.active:
                tail.extend(first, appends)
            else:
                tail.advance(last)
        self._told(topics)

    def _count(self, pending: _Pending, topic: Topic, partition: int, offset: int, count: int) -> None:
        """So many events were stored, the last one at `offset`. What was there already is not counted again."""
        self._counters.published += count
        topic.published += count
        if pending.audited:
            self._audit.note("publish", topic, partition, offset, count)

    def _told(self, topics: dict[str, Topic]) -> None:
        for topic in topics.values():
            topic.stored = True
            self._appended(topic)


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
            run[1].append(append)
    return runs
