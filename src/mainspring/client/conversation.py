"""What a client says to a node and what it makes of the answers, without a socket.

A conversation outlives connections. Told that one opened, it asks again for every subscription and sends every event
that was not confirmed; told that it was lost, it forgets leases and takes back what was under way. Each time a
subscription is asked for is an epoch: an acknowledgement that belongs to an older one is dropped, because its lease
died with the connection.

A subscription that the node cannot take now (its log is away, a limit is reached) is asked for again after a pause. One
that the node refuses for good, or ends, is forgotten: nothing may be delivered to a subscription that nobody reads.

A subscription is asked for with its start only until the node has confirmed it once. After that the group has a place
of its own, and asking with a start again would move the whole group back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mainspring.client.errors import AlreadySubscribed, ClientError, NodeRefused
from mainspring.client.frames import (
    Delivered,
    ErrorFrame,
    MessageFrame,
    MessagesFrame,
    OkFrame,
    PublishedBatchFrame,
    PublishedFrame,
    decode,
    encode,
    request_frame,
)
from mainspring.client.publishing import RETRY, TRY_AGAIN, Publishing
from mainspring.retries import BackoffSeries
from mainspring.telemetry import KeptError

logger: logging.Logger = logging.getLogger("mainspring.client")

_UNANSWERED: Final = frozenset({"ACK", "NACK", "EXTEND", "FLOW"})  # their success has no answer, so they have no corr
Answered = Callable[[OkFrame | ClientError], None]


@dataclass(slots=True, eq=False)
class SubscriptionRequest:
    """One subscription as the conversation sees it: what to ask for, and where its events go."""

    topic: str
    group: str
    start: dict[str, Any] | None
    options: dict[str, Any]
    confirmed: bool = False
    epoch: int = 0  # of its leases; 0: it has none
    ack_each: bool = field(init=False)
    retries: BackoffSeries = field(default_factory=RETRY.series)
    upto: dict[int, int] = field(default_factory=dict)  # partition -> acknowledged up to, not sent yet
    on_events: Callable[[list[Delivered], int], None] = lambda _events, _epoch: None
    on_answer: Answered = lambda _: None
    on_drop: Callable[[], None] = lambda: None
    heads: tuple[bytes, ...] = field(init=False)
    is_pattern: bool = field(init=False)  # it is of every topic whose name fits
    parts: dict[str, SubscriptionRequest] = field(default_factory=dict)  # of a pattern: one per topic with leases

    def __post_init__(self) -> None:
        self.is_pattern = "*" in self.topic
        self.ack_each = self.options.get("ack") == "each"
        place = b'"topic":%b,"group":%b,"partition":' % (encode(self.topic), encode(self.group))
        self.heads = tuple(b'{"type":"%b",%b' % (verb, place) for verb in (b"ACK", b"NACK", b"EXTEND"))

    @property
    def start_again(self) -> dict[str, Any] | None:
        """Where it begins after a reconnect: where its group is, unless that is gone because its time was over."""
        is_latest = self.start is not None and self.start["kind"] == "latest"
        return self.start if is_latest and self.options.get("group_ttl_ms") is not None else None

    def part(self, topic: str) -> SubscriptionRequest:
        """What leases of this topic belong to."""
        if not self.is_pattern:
            return self
        found = self.parts.get(topic)
        if found is None:
            found = self.parts[topic] = SubscriptionRequest(topic, self.group, None, self.options, epoch=self.epoch)
        return found


class Conversation:
    """The state behind one client. `wake` is called when there is something to send; `take` gives it."""

    def __init__(self, now_ms: Callable[[], int], wake: Callable[[], None], *, dedupe_window_ms: int) -> None:
        self.open: bool = False
        self._epoch = 0
        self._now_ms = now_ms
        self._wake = wake
        self._frames: list[bytes] = []
        self._corr = 0
        self._held: dict[tuple[str, str], SubscriptionRequest] = {}
        self._put_off: dict[SubscriptionRequest, int] = {}  # when to ask again for what the node could not take
        self._asked: dict[int, tuple[str, Answered]] = {}
        self._unsent: deque[tuple[str, dict[str, Any], Answered]] = deque()  # requests made while not connected
        self._acked: dict[SubscriptionRequest, None] = {}
        self.publishing: Publishing = Publishing(now_ms, self._new_corr, self._send, dedupe_window_ms=dedupe_window_ms)

    # -- the connection

    def opened(self) -> None:
        self.open = True
        for held in self._held.values():
            self._ask_for(held)
        unsent, self._unsent = self._unsent, deque()
        for type, members, answered in unsent:
            self.request(type, members, answered)
        self.publishing.opened()

    def lost(self) -> None:
        """Leases are gone, answers will not come."""
        self.open = False
        self._frames.clear()
        self._acked.clear()
        self._put_off.clear()  # the next connection asks for all
        for held in self._held.values():
            held.epoch = 0
            held.upto.clear()
            held.parts.clear()
            held.on_drop()
        asked, self._asked = self._asked, {}
        for _, answered in asked.values():
            answered(NodeRefused("the connection was lost before the answer", code="connection_lost"))
        self.publishing.lost()

    def end(self, error: ClientError) -> None:
        """No connection will come any more."""
        self.open = False
        self.publishing.fail_all(error)
        held, self._held = self._held, {}
        for one in held.values():
            one.on_answer(error)
        unsent, self._unsent = self._unsent, deque()
        for _, _, answered in unsent:
            answered(error)

    def flush(self) -> None:
        """Say what may be said now: events that wait, and subscriptions whose pause is over."""
        self.publishing.flush()
        if self._put_off:
            now = self._now_ms()
            for held in [held for held, due_ms in self._put_off.items() if due_ms <= now]:
                del self._put_off[held]
                self._ask_for(held)

    def wake_ms(self) -> int:
        """When `flush` has something to do again without anything happening; 0: never."""
        due_ms = self.publishing.wake_ms()
        return min((*self._put_off.values(), *([due_ms] if due_ms else ())), default=0)

    def take(self) -> list[bytes]:
        """Everything to be sent now."""
        for held in self._acked:
            for partition, offset in held.upto.items():
                self._frames.append(b'%b%d,"offset":%d}' % (held.heads[0], partition, offset))
            held.upto.clear()
        self._acked.clear()
        frames, self._frames = self._frames, []
        return frames

    # -- requests

    def request(self, type: str, members: dict[str, Any], answered: Answered) -> None:
        """A request with an answer. Made while not connected, it waits; lost with a connection, it fails."""
        if not self.open:
            self._unsent.append((type, members, answered))
            return
        corr = self._new_corr()
        self._asked[corr] = (type, answered)
        self._send(request_frame(type, corr, members))

    def subscribe(self, held: SubscriptionRequest) -> None:
        """Hold a subscription, over every reconnect, until `unsubscribe`."""
        place = (held.topic, held.group)
        if place in self._held:
            raise AlreadySubscribed(
                f"this client already consumes {held.topic!r} as {held.group!r}",
                remedy="close that subscription first, or use another client",
            )
        self._held[place] = held
        if self.open:
            self._ask_for(held)

    def change(self, held: SubscriptionRequest, answered: Answered) -> None:
        """Its options are others now; without a connection the next one asks with them anyway."""
        if self.open and held.confirmed:
            self._ask(held, None, answered)
        else:
            answered(OkFrame())

    def unsubscribe(self, held: SubscriptionRequest, answered: Answered) -> None:
        """Leave; what is held is given back at once."""
        self._put_off.pop(held, None)
        if not self._forget(held):
            answered(OkFrame())
        elif self.open:
            for each in (held, *held.parts.values()):
                self.flush_acks(each)
                each.epoch = 0
            held.parts.clear()
            self.request("UNSUBSCRIBE", {"topic": held.topic, "group": held.group}, answered)
        else:
            answered(OkFrame())

    def _forget(self, held: SubscriptionRequest) -> bool:
        """False: it was not held any more."""
        place = (held.topic, held.group)
        return self._held.get(place) is held and bool(self._held.pop(place))

    def _ask_for(self, held: SubscriptionRequest) -> None:
        def answered(answer: OkFrame | ClientError) -> None:
            if isinstance(answer, OkFrame):
                held.confirmed = True
                held.retries.succeeded()
            elif answer.code == "connection_lost" or epoch != held.epoch:
                return  # the next connection asks again, or nobody wants it any more
            elif answer.code in TRY_AGAIN:
                wait_ms = answer.retry_after_ms if isinstance(answer, NodeRefused) else 0
                self._put_off[held] = self._now_ms() + max(held.retries.failed(), wait_ms)
                return
            else:
                self._forget(held)
            held.on_answer(answer)

        self._epoch += 1
        epoch = held.epoch = self._epoch
        self._ask(held, held.start_again if held.confirmed else held.start, answered)

    def _ask(self, held: SubscriptionRequest, start: dict[str, Any] | None, answered: Answered) -> None:
        members = {"topic": held.topic, "group": held.group, "from": start, **held.options}
        self.request("SUBSCRIBE", members, answered)

    # -- leases

    def ack(self, held: SubscriptionRequest, partition: int, offset: int, epoch: int) -> bool:
        """False: the lease is gone."""
        if epoch != held.epoch:
            return False
        if held.ack_each:
            self._send(b'%b%d,"offset":%d}' % (held.heads[0], partition, offset))
        else:
            if offset > held.upto.get(partition, 0):
                held.upto[partition] = offset
            self._acked[held] = None
            if not self._frames:
                self._wake()
        return True

    def nack(
        self,
        held: SubscriptionRequest,
        partition: int,
        offset: int,
        epoch: int,
        delay_ms: int | None,
        reason: str,
        failure: KeptError | None = None,
    ) -> bool:
        """Refuse an event. `delay_ms` None: it is not to come again."""
        if epoch != held.epoch:
            return False
        self.flush_acks(held)
        more = b',"reject":true' if delay_ms is None else b""
        if delay_ms:
            more += b',"delay_ms":%d' % delay_ms
        if reason:
            more += b',"reason":%b' % encode(reason[:1_000].encode("utf-8", "replace").decode())
        if failure is not None:
            more += b',"failure":%b' % encode(failure)
        self._send(b'%b%d,"offset":%d%b}' % (held.heads[1], partition, offset, more))
        return True

    def extend(
        self, held: SubscriptionRequest, partition: int, offset: int, epoch: int, ms: int, *, begun: bool = False
    ) -> bool:
        if epoch != held.epoch:
            return False
        more = b',"begun":true' if begun else b""
        self._send(b'%b%d,"offset":%d,"ms":%d%b}' % (held.heads[2], partition, offset, ms, more))
        return True

    def flush_acks(self, held: SubscriptionRequest) -> None:
        """Cumulative acknowledgements of this subscription go out before what follows."""
        if held.upto:
            for partition, offset in held.upto.items():
                self._send(b'%b%d,"offset":%d}' % (held.heads[0], partition, offset))
            held.upto.clear()
        self._acked.pop(held, None)

    # -- what the node says

    def received(self, text: bytes) -> None:
        """One frame of the node."""
        try:
            answer = decode(text)
        except msgspec.ValidationError as error:
            logger.debug("a frame this client does not know: %s", error)
            return
        kind = type(answer)
        if kind is MessagesFrame:
            self._deliver(answer.pattern or answer.topic, answer.group, answer.messages)  # type: ignore[union-attr]
        elif kind is PublishedBatchFrame:
            self.publishing.stored(answer.corr, answer.offsets)  # type: ignore[union-attr]
            self.publishing.flush()
        elif isinstance(answer, PublishedFrame):
            self.publishing.stored(answer.corr, [(answer.partition, answer.offset)])
            self.publishing.flush()
        elif isinstance(answer, MessageFrame):
            self._deliver(answer.topic, answer.group, [answer])
        elif isinstance(answer, OkFrame):
            _, answered = self._asked.pop(answer.corr, ("", None))
            if answered is not None:
                answered(answer)
        elif isinstance(answer, ErrorFrame):
            self._refused(answer)

    def _deliver(self, topic: str, group: str, events: list[Delivered]) -> None:
        held = self._held.get((topic, group))
        if held is not None:  # else it was on its way when the subscription ended; the node has it back
            held.on_events(events, held.epoch)

    def _refused(self, error: ErrorFrame) -> None:
        if error.corr in self._asked:
            type, answered = self._asked.pop(error.corr)
            refused = NodeRefused(f"{type}: {error.message}", code=error.code)
            refused.retry_after_ms = error.retry_after_ms
            answered(refused)
        elif (held := self._held.get((error.topic, error.group))) and not error.in_reply_to:  # its right was taken away
            self._forget(held)
            held.on_answer(NodeRefused(error.message, code=error.code))
        elif self.publishing.refused(error.corr, error) or (error.code == "too_large" and self.publishing.too_large()):
            self.publishing.flush()
        elif error.in_reply_to in _UNANSWERED:
            logger.debug("the node did not take an %s: %s", error.in_reply_to, error.message)
        else:
            logger.warning("the node complains: %s: %s", error.code, error.message)

    def _new_corr(self) -> int:
        self._corr += 1
        return self._corr

    def _send(self, frame: bytes) -> None:
        if not self._frames:
            self._wake()
        self._frames.append(frame)
