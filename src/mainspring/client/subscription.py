"""A subscription: events of one topic for one group, as an async iterator.

    async for event in bus.subscribe("orders", group="billing"):
        ...
        await event.ack()

Leaving the loop ends the subscription, and the node gives what was not acknowledged to others at once. Used with
`async with`, the subscription lives as long as the block, and can be iterated several times or asked with `anext`.

What arrived and was not handed out when a connection is lost is thrown away: its lease is gone and the node delivers it
again. The window bounds how much can be here, so nothing else has to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, TypeVar

import msgspec

from mainspring.client.conversation import SubscriptionRequest
from mainspring.client.errors import BadArgument, BadPayload, ClientError, Closed, TimedOut
from mainspring.client.frames import Delivered, OkFrame, Start, seek_frame
from mainspring.data_types import decoder_of
from mainspring.durations import Duration, duration_ms, seconds
from mainspring.loop import reject, time_limit, wake
from mainspring.telemetry import KeptError, OpenSpan, error_keeping

if TYPE_CHECKING:
    from mainspring.client.client import Client

T = TypeVar("T")
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_UNSEEN: Final[Any] = object()
Decode = Callable[[Any], T]


class Event(Generic[T]):
    """An event under lease, and what a consumer may do with it.

    The payload is decoded when it is first looked at, into the subscription's type. The lease belongs to one
    connection: when that connection is gone, so is the lease; the node delivers the event again, and settling the old
    copy does nothing.
    """

    __slots__ = ("_payload", "delivered", "epoch", "settled", "span", "subscription")

    def __init__(self, delivered: Delivered, epoch: int, subscription: Subscription[T]) -> None:
        self.delivered: Delivered = delivered
        self.epoch: int = epoch
        self.settled: bool = False
        self.span: OpenSpan | None = None
        self.subscription: Subscription[T] = subscription
        self._payload: T = _UNSEEN

    @property
    def payload(self) -> T:
        """The payload in the subscription's type. Raises BadPayload when it does not fit."""
        if self._payload is _UNSEEN:
            try:
                self._payload = self.subscription.decode(self.delivered.envelope.payload)
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                raise BadPayload(
                    f"{self.topic} {self.partition}:{self.offset} does not fit: {error}",
                    remedy="nack it, or subscribe with another type",
                ) from error
        return self._payload

    @property
    def raw_payload(self) -> bytes:
        """The payload's JSON text, byte for byte as it was published."""
        return bytes(self.delivered.envelope.payload)

    @property
    def payload_sha256(self) -> str | None:
        """The SHA-256 of the payload that its publisher gave, in hexadecimal, which the node has checked; else None."""
        return self.delivered.envelope.payload_sha256

    @property
    def id(self) -> str:
        """The id it was published with; the same in every delivery."""
        return self.delivered.envelope.id

    @property
    def ts(self) -> int:
        """When it was stored: epoch ms."""
        return self.delivered.envelope.ts

    @property
    def topic(self) -> str:
        """The topic it was delivered from."""
        held = self.subscription.held
        return self.delivered.envelope.topic if held.is_pattern else held.topic

    @property
    def group(self) -> str:
        """The group it was delivered to."""
        return self.subscription.group

    @property
    def key(self) -> str | None:
        """What keeps events of one kind in one partition and in order; None without one."""
        return self.delivered.envelope.key

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; empty without any. Not to be changed."""
        return self.delivered.envelope.headers or NO_HEADERS

    @property
    def partition(self) -> int:
        """The partition of its topic."""
        return self.delivered.partition

    @property
    def offset(self) -> int:
        """Its place in the partition, from 1 on; never given twice."""
        return self.delivered.offset

    @property
    def attempt(self) -> int:
        """1 the first time this group is given it; counted in the log, so a crash does not begin again."""
        return self.delivered.attempt

    @property
    def ended(self) -> int:
        """How often a process ended that had begun with it, as far as that was counted (`count_ends`)."""
        return self.delivered.ended

    async def ack(self) -> bool:
        """Done: do not deliver it again. False: the lease was gone already, so it will come again.

        The protocol answers no acknowledgement; the node stores it within some milliseconds.
        """
        done = self.subscription.ack(self)
        if self.subscription.congested:
            await self.subscription.relieved()
        return done

    async def nack(self, *, delay: Duration = 0, reason: str = "", error: BaseException | None = None) -> bool:
        """Not done: deliver it again, after `delay` at the earliest. `reason` and `error` show up in a dead letter."""
        done = self.subscription.nack(self, duration_ms(delay) if delay else 0, reason, _kept(error))
        if self.subscription.congested:
            await self.subscription.relieved()
        return done

    async def reject(self, reason: str = "", *, error: BaseException | None = None) -> bool:
        """Give it up: it is a dead letter at once, without further attempts."""
        done = self.subscription.nack(self, None, reason, _kept(error))
        if self.subscription.congested:
            await self.subscription.relieved()
        return done

    async def extend(self, lease: Duration) -> bool:
        """The lease ends so long from now instead."""
        done = self.subscription.extend(self, max(1, duration_ms(lease)))
        if self.subscription.congested:
            await self.subscription.relieved()
        return done

    def begin(self, lease: Duration = 30.0) -> bool:
        """The program begins with it, and the lease ends so long from now: if the process ends now, that counts."""
        return self.subscription.extend(self, max(1, duration_ms(lease)), begun=True)

    def accept(self) -> bool:
        """`ack` without waiting for a connection that is slow to take it."""
        return self.subscription.ack(self)

    def refuse(self, delay: Duration, reason: str) -> bool:
        """`nack` without waiting."""
        return self.subscription.nack(self, duration_ms(delay) if delay else 0, reason)

    def __repr__(self) -> str:
        return f"Event({self.topic!r}, {self.partition}:{self.offset}, id={self.id!r}, attempt={self.attempt})"


class StoredEvent(Generic[T]):
    """An event that was read, not delivered: no lease, nothing to acknowledge."""

    __slots__ = ("headers", "id", "key", "offset", "partition", "payload", "topic", "ts")

    def __init__(self, envelope: Any, decode: Decode[T]) -> None:
        self.id: str = envelope.id
        self.ts: int = envelope.ts
        self.topic: str = envelope.topic
        self.partition: int = envelope.partition
        self.offset: int = envelope.offset
        self.key: str | None = envelope.key
        self.headers: Mapping[str, str] = envelope.headers or NO_HEADERS
        try:
            self.payload: T = decode(envelope.payload)
        except msgspec.MsgspecError as error:
            raise BadPayload(f"{self.topic} {self.partition}:{self.offset} does not fit: {error}") from error

    def __repr__(self) -> str:
        return f"StoredEvent({self.topic!r}, {self.partition}:{self.offset}, id={self.id!r})"


class DeadEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A dead letter of a topic: the event, the group that gave up on it, and why. `offset` names the letter."""

    offset: int
    ts: int
    group: str
    attempts: int
    reason: str
    failure: KeptError | None = None  # the error of the last attempt
    original_partition: int
    original_offset: int
    original_id: str = ""
    original_ts: int = 0
    key: str | None = None
    headers: dict[str, str] = {}
    payload: Any = None


def _kept(error: BaseException | None) -> KeptError | None:
    return None if error is None else error_keeping.keep(error)


def decoder(type: Any) -> Callable[[Any], Any]:
    """Decodes JSON text into `type`: dataclass, TypedDict, msgspec Struct, Pydantic model, ...; None: as it is."""
    if type is None or type is Any:
        return _decode_any
    return decoder_of(type)


_decode_any: Final = msgspec.json.Decoder().decode


class SubscribeOptions(TypedDict, total=False):
    """What `subscribe` takes besides topic, group and type; `Client.subscribe` says what each means."""

    from_: Start
    max_inflight: int
    ack: Literal["each", "upto"]
    key: str | None
    header: tuple[str, str] | None
    sticky: bool
    count_ends: bool
    group_ttl: Duration | None


class Subscription(Generic[T]):
    """Made by `Client.subscribe`. Iterate it; every event wants `ack` or `nack`."""

    def __init__(self, client: Client, held: SubscriptionRequest, decode: Callable[[Any], T]) -> None:
        self.topic: str = held.topic
        self.group: str = held.group
        self.held = held
        self.delivered: int = 0  # events handed to the program so far
        self.settled: int = 0  # acknowledged or refused so far
        self.on_arrival: Callable[[Subscription[T]], None] | None = None  # for who takes with `get_nowait`
        self.on_lost: Callable[[Subscription[T]], None] | None = None
        self._client = client
        self._conversation = client.conversation
        self.decode: Callable[[Any], T] = decode
        self._arrived: deque[Delivered] = deque()
        self._epoch = 0  # of what has arrived
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: ClientError | None = None
        self._over: asyncio.Future[ClientError] = asyncio.get_running_loop().create_future()
        self._entered = False
        held.on_events = self._take
        held.on_drop = self._drop
        held.on_answer = self._answered

    # -- what the conversation says

    def _take(self, events: list[Delivered], epoch: int) -> None:
        self._epoch = epoch
        self._arrived.extend(events)
        if self.on_arrival is not None:
            self.on_arrival(self)
            return
        waiters = self._waiters
        for _ in range(min(len(waiters), len(self._arrived))):
            wake(waiters.popleft())

    def _drop(self) -> None:
        self._arrived.clear()
        if self.on_lost is not None:
            self.on_lost(self)

    def _answered(self, answer: OkFrame | ClientError) -> None:
        if isinstance(answer, OkFrame):
            wake(self._confirmed)
            return
        self._end(answer)

    def _end(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
            self._over.set_result(error)
            self._client.forget(self)
        self._arrived.clear()
        reject(self._confirmed, error, may_go_unseen=True)  # who iterates is told by `get`
        while self._waiters:
            wake(self._waiters.popleft())

    # -- the program's side

    async def confirmed(self) -> None:
        """Wait until the node has confirmed the subscription: what is published from now on will be seen."""
        await asyncio.shield(self._confirmed)

    async def ended(self) -> ClientError:
        """Wait until it ends, and why: Closed, or what the node refused."""
        return await asyncio.shield(self._over)

    async def get(self, timeout: Duration | None = None) -> Event[T]:
        """The next event. Raises TimedOut after `timeout`, and what ended the subscription."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                if timeout is None:
                    await waiter
                else:
                    async with time_limit(seconds(timeout)):
                        await waiter
            except TimeoutError:
                raise TimedOut(f"no event of {self.topic!r} came within {seconds(timeout or 0):g} s") from None
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                elif waiter.cancelled() and self._arrived and self._waiters:
                    wake(self._waiters.popleft())  # what was meant for us is for someone else
        return self._hand_out()

    def get_nowait(self) -> Event[T] | None:
        """The next event that is here already, or None."""
        return self._hand_out() if self._arrived else None

    def _hand_out(self) -> Event[T]:
        self.delivered += 1
        event = Event(self._arrived.popleft(), self._epoch, self)
        if self._client.telemetry is not None:
            self._client.telemetry.delivered(event)
        return event

    async def seek(self, to: Start) -> None:
        """Move the whole group. Events that were delivered before are no longer anybody's."""
        seek_frame(to, self._client.wall_ms())  # a bad place is refused before anything is given up
        if self.held.is_pattern:
            raise BadArgument(
                f"{self.topic!r} is many topics", remedy="move the group of each: client.seek(topic, ...)"
            )
        await self.confirmed()
        await self._leave()
        self._arrived.clear()
        self._confirmed = asyncio.get_running_loop().create_future()
        try:
            await self._client.seek(self.topic, self.group, to)
        finally:
            self._conversation.subscribe(self.held)
        await self.confirmed()

    async def _leave(self) -> None:
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._conversation.unsubscribe(self.held, lambda _: wake(left))
        await left

    def resize(self, max_inflight: int) -> asyncio.Future[None]:
        """Another window from now on; what is given back is done when the node knows it, or the connection is lost."""
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.held.options.get("max_inflight") == max_inflight:
            known.set_result(None)
        else:
            self.held.options["max_inflight"] = max_inflight
            self._conversation.change(self.held, lambda _: wake(known))
        return known

    async def close(self) -> None:
        """Leave the group's members; what is not settled goes to others. Idempotent."""
        if self._error is None:
            self._end(Closed(f"the subscription of {self.topic!r} is closed"))
            await self._leave()

    async def __aenter__(self) -> Subscription[T]:
        self._entered = True
        try:
            await self.confirmed()
        except BaseException:  # nobody will leave the block, so nobody would read or close it
            self._end(Closed(f"the subscription of {self.topic!r} was given up"))
            self._conversation.unsubscribe(self.held, lambda _: None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Event[T]]:
        return self._iterate()

    async def __anext__(self) -> Event[T]:
        return await self.get()

    async def _iterate(self) -> AsyncGenerator[Event[T], None]:
        try:
            with suppress(Closed):
                while True:
                    yield self._hand_out() if self._arrived else await self.get()
        finally:
            if not self._entered:
                await self.close()

    # -- what events ask for

    def ack(self, event: Event[Any]) -> bool:
        """`Event.ack` without waiting for room on the connection. False: the lease was gone already."""
        if event.settled:
            return False
        event.settled = True
        self.settled += 1
        if event.span is not None:
            event.span.end()
        held, delivered = self.held, event.delivered
        if held.is_pattern:
            held = held.part(delivered.envelope.topic)
        return self._conversation.ack(held, delivered.partition, delivered.offset, event.epoch)

    def nack(self, event: Event[Any], delay_ms: int | None, reason: str, failure: KeptError | None = None) -> bool:
        """`Event.nack` without waiting for room on the connection. False: the lease was gone already."""
        if event.settled:
            return False
        event.settled = True
        self.settled += 1
        if event.span is not None:
            event.span.end(reason or "nack", "nack" if failure is None else failure.type)
        held = self.held.part(event.topic)
        return self._conversation.nack(held, event.partition, event.offset, event.epoch, delay_ms, reason, failure)

    def extend(self, event: Event[Any], ms: int, *, begun: bool = False) -> bool:
        """`Event.extend` without waiting for room on the connection. False: the lease was gone already."""
        if event.settled:
            return False
        held = self.held.part(event.topic)
        return self._conversation.extend(held, event.partition, event.offset, event.epoch, ms, begun=begun)

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that whoever sends more should wait for `relieved`."""
        return self._client.congested

    async def relieved(self) -> None:
        """Wait until the connection takes more."""
        await self._client.relieved()
