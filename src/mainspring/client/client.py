"""The verbs of the bus: publish, subscribe, seek, replay, schedule.

async with connect("ws://127.0.0.1:7070") as bus:
    offset = await bus.publish("orders", {"sku": 1}, key="c-17")
    async for event in bus.subscribe("orders", group="billing"):
        await event.ack()
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sized
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, overload

from mainspring.client.consumer import Consumer, Delay, Policy
from mainspring.client.conversation import Held
from mainspring.client.errors import BadArgument, ClientError, EventTooLarge, TimedOut
from mainspring.client.event import Event, decoder
from mainspring.client.frames import check_texts, encode_event
from mainspring.client.messages import MessageVerbs
from mainspring.client.placing import Awaited, Counted, New, Place, Tally
from mainspring.client.publishing import Outgoing
from mainspring.client.request_reply import Requests, reply, responder
from mainspring.client.stall import Stall, StallWatch
from mainspring.client.start import Start, moment_ms, start_frame
from mainspring.client.subscription import Subscription
from mainspring.client.topics import TopicVerbs

logger: logging.Logger = logging.getLogger("mainspring.client")

T = TypeVar("T")
SLICE: Final = 256  # events of `publish_many` before what was put may leave


class Client(TopicVerbs, MessageVerbs):
    """A connection to the bus, and what can be asked of it. Made by `connect`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._subscriptions: set[Subscription[Any]] = set()
        self._requests = Requests(self)
        self._watched = False

    # -- publishing

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        id: str | None = None,
        delay: float = 0.0,
        at: datetime | None = None,
        expect: int | None = None,
        timeout: float | None = None,
    ) -> Place:
        """Publish one event; returns when it is durable. The result is its offset (0 while it is delayed).

        `key` keeps events in order; `id` (by default a new one) makes a repetition harmless; `delay` seconds or `at`
        hold it back; `expect` stores it only directly behind that offset of its partition.

        While the node is away the event waits here and is sent again with its id, so it is stored once. When
        `max_queued` events wait, this waits for room. Raises NodeRefused, Uncertain, Closed, NotEncodable,
        EventTooLarge; TimedOut after `timeout` seconds, when it may or may not have been stored.
        """
        if key is not None or headers is not None:
            check_texts(key, headers)
        id = id or self.new_id()
        if self.telemetry is None:
            return await self._publish(topic, id, payload, key, headers, delay, at, expect, timeout)
        with self.telemetry.publishing(topic, id, key, headers) as (carried, span):
            place = await self._publish(topic, id, payload, key, carried, delay, at, expect, timeout)
            span.note("messaging.destination.partition.id", str(place.partition))
        return place

    async def _publish(
        self,
        topic: str,
        id: str,
        payload: Any,
        key: str | None,
        headers: dict[str, str] | None,
        delay: float,
        at: datetime | None,
        expect: int | None,
        timeout: float | None,
    ) -> Place:
        event = self._event(id, payload, key, headers, delay, at)
        future: asyncio.Future[Place] = self.event_loop.create_future()
        outgoing = Awaited(id, event, future, topic, expect)
        if timeout is None:
            if not self._has_room():
                await self._wait_for_room()
            self.put(topic, outgoing)
            return await future
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for_room()
                self.put(topic, outgoing)
                return await future
        except TimeoutError:
            raise TimedOut(
                f"the event {id} was not confirmed within {timeout} s", remedy="publish it again with this id"
            ) from None

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Any] | AsyncIterable[Any],
        *,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> int:
        """Publish many events in order; returns how many, when all are durable.

        An item is a payload, or `New(payload, key=..., headers=...)`. `progress(done, total)` is called as they become
        durable; `total` is None where it cannot be known. The first refused event ends it; those before may be stored.
        """
        tally = Tally(self.event_loop, len(payloads) if isinstance(payloads, Sized) else None, progress)
        if isinstance(payloads, AsyncIterable):
            async for item in payloads:
                await self._put_counted(topic, item, tally)
        else:
            for item in payloads:
                if tally.sent % SLICE and self._has_room():
                    self._count_in(topic, item, tally)
                else:
                    await self._put_counted(topic, item, tally)
        return await tally.finished()

    async def _put_counted(self, topic: str, item: Any, tally: Tally) -> None:
        """Put one of many, when there is room; let what was put before leave, so that the node need not wait."""
        if not self._has_room():
            await self._wait_for_room()
        elif tally.sent % SLICE == 0:
            await asyncio.sleep(0)
        self._count_in(topic, item, tally)

    def _count_in(self, topic: str, item: Any, tally: Tally) -> None:
        if tally.error is not None:
            raise tally.error
        if isinstance(item, New):
            check_texts(item.key, item.headers)
            id = item.id or self.new_id()
            event = self._event(id, item.payload, item.key, item.headers, item.delay, None)
        else:
            id = self.new_id()
            event = self._event(id, item, None, None, 0.0, None)
        tally.sent += 1
        self.put(topic, Counted(id, event, tally))

    def _event(
        self,
        id: str,
        payload: Any,
        key: str | None,
        headers: dict[str, str] | None,
        delay: float,
        at: datetime | None,
    ) -> bytes:
        event = encode_event(
            id,
            payload,
            key,
            headers,
            max(0, round(delay * 1000)) if delay else 0,
            moment_ms(at, self.clock.wall_ms()) if at is not None else 0,
        )
        if len(event) > self.options.max_event_bytes:
            raise EventTooLarge(
                f"the event has {len(event)} bytes, more than {self.options.max_event_bytes}",
                remedy="publish a reference to it, or raise max_event_bytes here and max_frame_bytes at the node",
            )
        return event

    def put(self, topic: str, event: Outgoing) -> None:
        """`publish` for the parts of a client: no waiting, the event itself hears what became of it."""
        if self.ended is not None:
            raise self.ended
        self.conversation.publishing.put(topic, event)
        self._plan()

    # -- consuming

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        type: type[T],
        from_: Start = ...,
        max_inflight: int = ...,
        ack: Literal["each", "upto"] = ...,
        key: str | None = ...,
        header: tuple[str, str] | None = ...,
        sticky: bool = ...,
    ) -> Subscription[T]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        type: Any = None,
        from_: Start = ...,
        max_inflight: int = ...,
        ack: Literal["each", "upto"] = ...,
        key: str | None = ...,
        header: tuple[str, str] | None = ...,
        sticky: bool = ...,
    ) -> Subscription[Any]: ...

    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        type: Any = None,
        from_: Start = None,
        max_inflight: int = 64,
        ack: Literal["each", "upto"] = "each",
        key: str | None = None,
        header: tuple[str, str] | None = None,
        sticky: bool = False,
    ) -> Subscription[Any]:
        """Consume a topic as a member of a group: an async iterator of events.

        `from_` says where a new group starts ("latest", "beginning", an offset, a datetime, a timedelta ago); a group
        that exists goes on where it was, unless an offset above 0 or a time moves it. `max_inflight` is how many
        events may be unsettled here. With `ack="upto"` an acknowledgement also settles everything before it in its
        partition. `key` and `header` filter; `sticky` keeps events of one key with one member. `type` is what payloads
        are decoded into. Errors are raised where the subscription is iterated.
        """
        if max_inflight < 1:
            raise BadArgument("max_inflight is at least 1")
        wanted = {name: value for name, value in (("key", key), ("header", header)) if value is not None}
        options: dict[str, Any] = {
            "max_inflight": max_inflight,
            "ack": ack,
            "batch": min(max_inflight, 256) if max_inflight > 1 else None,
            "filter": wanted or None,
            "sticky": sticky or None,
        }
        held = Held(topic, group, start_frame(from_, self.clock.wall_ms()), options)
        if self.ended is not None:
            raise self.ended
        self.conversation.subscribe(held)
        subscription = Subscription(self, held, decoder(type))
        self._subscriptions.add(subscription)
        if not self._watched and self.options.stall_check:
            self._watched = True
            self.run(self._watch(), "stall watch")
        return subscription

    def consume(
        self,
        topic: str,
        handler: Callable[[Event[Any]], Awaitable[object]],
        *,
        group: str,
        concurrency: int = 1,
        policy: Policy = "after",
        retry_delay: Delay = 1.0,
        timeout: float | None = None,
        lease: float = 30.0,
        max_inflight: int | None = None,
        **subscribing: Any,
    ) -> Consumer[Any]:
        """Call `handler` with every event, `concurrency` at a time; see `Consumer`. The rest is as for `subscribe`.

        `lease` is the node's time for an acknowledgement (30 s by default); it is extended while a handler runs.
        """
        in_order = concurrency == 1 and policy == "after"  # then one acknowledgement can stand for many
        subscription = self.subscribe(
            topic,
            group=group,
            max_inflight=max_inflight or max(64, 2 * concurrency),
            ack="upto" if in_order else "each",
            **subscribing,
        )
        return Consumer(
            subscription,
            handler,
            concurrency=concurrency,
            policy=policy,
            retry_delay=retry_delay,
            timeout=timeout,
            lease=lease,
        )

    # -- asking

    async def request(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30.0,
        type: Any = None,
    ) -> Any:
        """Publish a request and wait for the payload of its reply, decoded into `type`.

        Raises TimedOut when none came, and ReplyError when the responder failed.
        """
        return await self._requests.request(topic, payload, key, headers, timeout, type)

    async def reply(self, request: Event[Any], payload: Any, *, error: str = "") -> None:
        """Answer a request; durable when it returns. `error` (a code) makes it a failure with `payload` as its text."""
        await reply(self, request, payload, error)

    def respond(
        self, topic: str, handler: Callable[[Event[Any]], Awaitable[Any]], *, group: str, **consuming: Any
    ) -> Consumer[Any]:
        """Answer every request on a topic with what `handler` returns; an error it raises goes to the requester."""
        return self.consume(topic, responder(self, handler), group=group, **consuming)

    async def _leave(self) -> None:
        await asyncio.gather(*(one.close() for one in list(self._subscriptions)))

    def forget(self, subscription: Subscription[Any]) -> None:
        """For subscriptions that have ended: they are no longer watched."""
        self._subscriptions.discard(subscription)

    async def _watch(self) -> None:
        """Look at the lag of what is consumed here, and raise the alarm for a consumer that does nothing."""
        watches: dict[Subscription[Any], StallWatch] = {}
        patience_ms = round(self.options.stall_patience * 1000)
        while True:
            await asyncio.sleep(self.options.stall_check)
            watches = {
                one: watches.get(one) or StallWatch(one.topic, one.group, patience_ms) for one in self._subscriptions
            }
            for subscription, watch in watches.items():
                try:
                    lag = await self.lag(subscription.topic, subscription.group)
                except ClientError:
                    continue
                stall = watch.check(self.clock.now_ms(), self.connected, subscription.settled, lag)
                if stall is not None:
                    (self.options.on_stall or _log_stall)(stall)


def _log_stall(stall: Stall) -> None:
    logger.warning(
        "group %r of %r is connected but settled nothing for %d s while its lag grew to %d",
        stall.group,
        stall.topic,
        stall.for_ms // 1000,
        stall.lag,
    )
