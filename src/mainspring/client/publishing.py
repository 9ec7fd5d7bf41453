"""Outgoing events: collected into batches, kept until the node confirmed them, sent again after a reconnect.

Nothing waits on purpose. What is published in one slice leaves together at its end, in batches; only when many batches
of a topic are under way, the rest waits for the next answer. So a lone event goes out at once, and a flood makes full
batches by itself. Events of a topic are stored in the order they were put, except around a refusal: an event that was
refused and is sent again comes behind those that were under way at the time.

Every event has an id that stays the same when it is sent again, and the node stores an id once. That holds for as long
as the node remembers ids (`dedupe_window_ms`). An event that was sent longer ago than that and never confirmed is in
doubt; it is reported as `Uncertain` and not sent again, because it could be stored twice.

Remembering an id for each event costs the node more than storing the event. So a batch of events whose ids nobody but
this client knows has an id itself, that of its first event, and the node remembers only that. Such a batch is sent
again as it was, with the same events: the node knows it as a whole.

The node takes a batch or refuses all of it. When it refuses one of several events, they are sent one by one, so that
each gets its own answer. If the batch may have been stored before (it was sent, and the connection was lost), that
would store them twice; then they are in doubt.

This module knows neither sockets nor tasks: frames go to `send`, results to the events' tickets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from mainspring.client.errors import ClientError, NodeRefused, Uncertain
from mainspring.client.frames import ErrorFrame, batch_frame, encode, expecting_frame
from mainspring.durations import Duration
from mainspring.loop import reject, wake
from mainspring.retries import Backoff

MAX_BATCH_EVENTS: Final = 256
MAX_BATCH_BYTES: Final = 256 << 10
UNDER_WAY: Final = 16  # batches of one topic that are not answered; enough to keep a node busy
RETRY: Final = Backoff(100, 5_000)  # when the node cannot store now (`unavailable`, `rate_limited`)
TRY_AGAIN: Final = frozenset({"unavailable", "rate_limited"})
WHOLE_TOPIC: Final = frozenset({"forbidden", "unauthorized"})  # true for every event of the batch


class Outgoing:
    """One event on its way. Subclasses say whom to tell."""

    __slots__ = ("alone", "event", "expect", "id", "own_id", "sent_ms")

    id: str
    own_id: bool  # the node must remember it by itself: somebody may publish the event again with this id
    event: bytes  # JSON of the event
    expect: int | None
    sent_ms: int  # monotonic, of the first time it was sent; -1: it never was
    alone: bool

    def __init__(self, id: str, event: bytes, expect: int | None = None) -> None:
        self.id = id
        self.event = event
        self.expect = expect
        self.own_id = True
        self.sent_ms = -1
        self.alone = expect is not None

    def placed(self, partition: int, offset: int) -> None:
        """It is durable."""

    def failed(self, error: ClientError) -> None:
        """It is not stored (or in doubt, if `error` is Uncertain)."""

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return False


class _SentBatch:
    """Events that were sent together. As long as they may have been stored, they stay together."""

    __slots__ = ("events", "id", "in_doubt", "number")

    def __init__(self, events: list[Outgoing], number: int, id: str) -> None:
        self.events = events
        self.number = number
        self.id = id  # empty: the node remembers each event
        self.in_doubt = False  # it may be stored


class _Lane:
    """The events of one topic, in order."""

    __slots__ = ("again", "json", "paused_ms", "retries", "topic", "under_way", "waiting")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.json = encode(topic)
        self.again: list[_SentBatch] = []  # to be sent again before those that wait, oldest first
        self.waiting: deque[Outgoing] = deque()
        self.under_way: dict[int, _SentBatch] = {}  # by corr, oldest first
        self.paused_ms = 0
        self.retries = RETRY.series()


class Publishing:
    """All lanes of one client. `now_ms` is monotonic; `new_corr` numbers requests; `send` takes a frame."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        new_corr: Callable[[], int],
        send: Callable[[bytes], None],
        *,
        dedupe_window_ms: int,
    ) -> None:
        self._batches = 0
        self._now_ms = now_ms
        self._new_corr = new_corr
        self._send = send
        self._window_ms = dedupe_window_ms
        self._lanes: dict[str, _Lane] = {}
        self._of_corr: dict[int, _Lane] = {}
        self._open = False
        self._batch_bytes = MAX_BATCH_BYTES
        self.count: int = 0  # events that are not decided
        self.bytes: int = 0

    def put(self, topic: str, event: Outgoing) -> None:
        """Take an event; `flush` sends it."""
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = _Lane(topic)
        lane.waiting.append(event)
        self.count += 1
        self.bytes += len(event.event)

    # -- the connection

    def opened(self) -> None:
        """A new connection: first decide about what was under way on the old one."""
        self._open = True
        oldest = self._now_ms() - self._window_ms
        for lane in self._lanes.values():
            lane.paused_ms = 0
            old = [batch for batch in lane.again if any(0 <= event.sent_ms < oldest for event in batch.events)]
            lane.again = [batch for batch in lane.again if batch not in old]
            doubtful = [event for batch in old for event in batch.events]
            late = [event for event in lane.waiting if 0 <= event.sent_ms < oldest]
            if late:
                doubtful += late
                lane.waiting = deque(event for event in lane.waiting if not 0 <= event.sent_ms < oldest)
            for event in doubtful:
                self._decided(event, _uncertain(event))
        self.flush()

    def lost(self) -> None:
        """What is under way goes back to the front, in order."""
        self._open = False
        self._of_corr.clear()
        for lane in self._lanes.values():
            for batch in reversed(lane.under_way.values()):
                batch.in_doubt = True
                self._put_back(lane, batch)
            lane.under_way.clear()

    def fail_all(self, error: ClientError) -> None:
        """The client ends: whatever is left will not be sent."""
        lanes, self._lanes = self._lanes, {}
        self._of_corr.clear()
        for lane in lanes.values():
            sent = [event for batch in (*lane.under_way.values(), *lane.again) for event in batch.events]
            for event in (*sent, *lane.waiting):
                self._decided(event, error)

    # -- sending

    def flush(self) -> None:
        """Send what may be sent now."""
        if not self._open:
            return
        for lane in self._lanes.values():
            while len(lane.under_way) < UNDER_WAY and lane.paused_ms <= self._now_ms():
                if lane.again:
                    self._send_out(lane, lane.again.pop(0))
                elif lane.waiting:
                    self._send_batch(lane)
                else:
                    break

    def wake_ms(self) -> int:
        """When `flush` has something to do again without anything happening; 0: never."""
        if not self._open:
            return 0
        paused = [lane.paused_ms for lane in self._lanes.values() if (lane.waiting or lane.again) and lane.paused_ms]
        return min(paused, default=0)

    def _send_batch(self, lane: _Lane) -> None:
        batch: list[Outgoing] = []
        size = 0
        waiting = lane.waiting
        while waiting and len(batch) < MAX_BATCH_EVENTS:
            event = waiting[0]
            if event.abandoned and event.sent_ms < 0:
                waiting.popleft()
                self._decided(event)
                continue
            size += len(event.event)
            if batch and (event.alone or event.own_id is not batch[0].own_id or size > self._batch_bytes):
                break
            batch.append(waiting.popleft())
            if event.alone:
                break
        if batch:
            self._batches += 1
            has_id = len(batch) > 1 and not batch[0].own_id
            self._send_out(lane, _SentBatch(batch, self._batches, batch[0].id if has_id else ""))

    def _send_out(self, lane: _Lane, batch: _SentBatch) -> None:
        corr, now = self._new_corr(), self._now_ms()
        for event in batch.events:
            if event.sent_ms < 0:
                event.sent_ms = now
        lane.under_way[corr] = batch
        self._of_corr[corr] = lane
        first = batch.events[0]
        if first.expect is not None:
            self._send(expecting_frame(lane.json, corr, first.event, first.expect))
        else:
            self._send(batch_frame(lane.json, corr, [event.event for event in batch.events], batch.id))

    def _put_back(self, lane: _Lane, batch: _SentBatch) -> None:
        """To be sent again."""
        if batch.in_doubt:
            lane.again.append(batch)
            lane.again.sort(key=_number)
        else:
            lane.waiting.extendleft(reversed(batch.events))

    # -- answers

    def stored(self, corr: int, offsets: list[tuple[int, int]]) -> bool:
        """The batch is durable. False: no batch of this connection."""
        lane = self._of_corr.pop(corr, None)
        if lane is None:
            return False
        events = lane.under_way.pop(corr).events
        lane.retries.succeeded()
        self.count -= len(events)
        self.bytes -= sum([len(event.event) for event in events])
        for event, (partition, offset) in zip(events, offsets, strict=True):
            event.placed(partition, offset)
        if not lane.waiting and not lane.under_way and not lane.again:
            self._lanes.pop(lane.topic, None)
        return True

    def refused(self, corr: int, error: ErrorFrame) -> bool:
        """The batch was not stored. False: no batch of this connection."""
        lane = self._of_corr.pop(corr, None)
        if lane is None:
            return False
        batch = lane.under_way.pop(corr)
        events = batch.events
        if error.code in TRY_AGAIN:
            lane.paused_ms = self._now_ms() + max(lane.retries.failed(), error.retry_after_ms)
            if not batch.in_doubt:
                for event in events:
                    event.sent_ms = -1  # the node said that it did not store it
                batch.in_doubt = error.code != "rate_limited" and not events[0].own_id  # may a crash bring it back?
            self._put_back(lane, batch)
        elif batch.id and batch.in_doubt:
            for event in events:
                self._decided(event, _uncertain(event, error.message))
        elif len(events) == 1 or error.code in WHOLE_TOPIC:
            for event in events:
                self._decided(event, NodeRefused(error.message, code=error.code))
        else:
            for event in events:
                event.alone = True
                event.sent_ms = -1
            lane.waiting.extendleft(reversed(events))
        return True

    def too_large(self) -> bool:
        """The node could not even read a frame, and so could not say which: it was the oldest without an answer."""
        corr = next(iter(self._of_corr), None)
        if corr is None:
            return False
        batch = self._of_corr[corr].under_way[corr]
        events = batch.events
        if len(events) == 1 or (batch.id and batch.in_doubt):
            return self.refused(corr, ErrorFrame("too_large", "the event is larger than the node accepts"))
        lane = self._of_corr.pop(corr)
        del lane.under_way[corr]
        self._batch_bytes = max(1, sum(len(event.event) for event in events) // 2)
        lane.waiting.extendleft(reversed(events))
        return True

    def _decided(self, event: Outgoing, error: ClientError | None = None) -> None:
        """It is out of our hands: nobody waits for it, or it failed."""
        self.count -= 1
        self.bytes -= len(event.event)
        if error is not None:
            event.failed(error)


def _number(batch: _SentBatch) -> int:
    return batch.number


def _uncertain(event: Outgoing, refusal: str = "") -> Uncertain:
    why = "the node was away for longer than it remembers publish ids"
    if refusal:
        why = f"the connection was lost before the node answered, and it refused the second try: {refusal}"
    return Uncertain(
        f"{why}; this event may or may not be stored",
        remedy=f"look for the id {event.id} in the topic before publishing it again",
        id=event.id,
    )


class Place(int):
    """Where an event went: a number, its offset, that also knows topic, partition and id. 0: it is delayed."""

    topic: str
    partition: int
    id: str

    def __new__(cls, offset: int, topic: str, partition: int, id: str) -> Place:
        place = int.__new__(cls, offset)
        place.topic = topic
        place.partition = partition
        place.id = id
        return place

    @property
    def offset(self) -> int:
        """The offset as a plain number; 0 while the event is delayed."""
        return int(self)

    def __repr__(self) -> str:
        return f"Place({self.topic!r}, {self.partition}:{int(self)}, id={self.id!r})"


class New(msgspec.Struct, frozen=True):
    """An event for `publish_many` that is more than a payload."""

    payload: Any
    key: str | None = None
    headers: dict[str, str] | None = None
    id: str | None = None
    delay: Duration = 0
    ttl: Duration = 0
    at: datetime | None = None


class Awaited(Outgoing):
    """One event, one waiting `publish`."""

    __slots__ = ("future", "topic")

    def __init__(
        self,
        id: str,
        event: bytes,
        future: asyncio.Future[Place],
        topic: str,
        expect: int | None = None,
        own_id: bool = True,
    ) -> None:
        super().__init__(id, event, expect)
        self.own_id = own_id
        self.future: asyncio.Future[Place] = future
        self.topic: str = topic

    def placed(self, partition: int, offset: int) -> None:
        if not self.future.done():
            self.future.set_result(Place(offset, self.topic, partition, self.id))

    def failed(self, error: ClientError) -> None:
        reject(self.future, error)

    @property
    def abandoned(self) -> bool:
        return self.future.done()


@dataclass(slots=True)
class PublishCount:
    """Counts the events of one `publish_many`, without a future for each."""

    loop: asyncio.AbstractEventLoop
    total: int | None
    progress: Callable[[int, int | None], object] | None
    ids: Iterator[str]  # for those that bring none
    sent: int = 0
    stored: int = 0
    lost: int = 0
    error: ClientError | None = None
    _said_soon: bool = False
    _changed: asyncio.Future[None] | None = None

    def placed(self) -> None:
        """One is durable."""
        self.stored += 1
        if self.progress is not None and not self._said_soon:
            self._said_soon = True
            self.loop.call_soon(self._say)
        if self._changed is not None:
            self._look()

    def failed(self, error: ClientError) -> None:
        """One is not."""
        self.lost += 1
        if self.error is None:
            self.error = error
        self._look()

    def _look(self) -> None:
        if self._changed is not None and self.stored + self.lost >= self.sent:
            wake(self._changed)

    def _say(self) -> None:
        """Once per batch that became durable, not once per event."""
        self._said_soon = False
        if self.progress is not None:
            self.progress(self.stored, self.total)

    async def finished(self) -> int:
        """Wait for the rest; how many are durable. Raises the first error."""
        if self.stored + self.lost < self.sent:
            self._changed = self.loop.create_future()
            await self._changed
        if self._said_soon:
            self._say()
        if self.error is not None:
            raise self.error
        return self.stored


class Counted(Outgoing):
    """One event of many."""

    __slots__ = ("_tally",)

    def __init__(self, id: str, event: bytes, tally: PublishCount, own_id: bool) -> None:
        self.own_id = own_id
        self.id = id  # without `super`: there may be millions of these
        self.event = event
        self.expect: int | None = None
        self.sent_ms = -1
        self.alone = False
        self._tally = tally

    def placed(self, partition: int, offset: int) -> None:
        self._tally.placed()

    def failed(self, error: ClientError) -> None:
        self._tally.failed(error)
