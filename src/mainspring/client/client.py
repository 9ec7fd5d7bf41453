"""`Client` and `connect`: the verbs of the bus and of the program, over one connection.

async with connect("ws://127.0.0.1:7070") as bus:
    offset = await bus.publish("orders", {"sku": 1}, key="c-17")
    async for event in bus.subscribe("orders", group="billing"):
        await event.ack()
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import random as random_module
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote

import msgspec

from mainspring.client.connection import RECONNECT, ClientConnection, Options
from mainspring.client.consumer import Consumer, Delay, Policy, Stall, StallWatch
from mainspring.client.conversation import SubscriptionRequest
from mainspring.client.errors import BadArgument, CannotConnect, ClientError, EventTooLarge, NodeRefused, TimedOut
from mainspring.client.frames import (
    EventEnvelope,
    OkFrame,
    Start,
    check_texts,
    encode_event,
    encode_payload,
    moment_ms,
    seek_frame,
    split_address,
    start_frame,
    warn_of_plain_tokens,
)
from mainspring.client.http import LIMIT_S
from mainspring.client.publishing import RETRY, TRY_AGAIN, Awaited, Counted, New, Outgoing, Place, PublishCount
from mainspring.client.request_reply import Requests, reply, responder
from mainspring.client.subscription import DeadEvent, Event, StoredEvent, SubscribeOptions, Subscription, decoder
from mainspring.client.verbs import NodeVerbs
from mainspring.client.websocket import RandomBytes
from mainspring.codec import Encoding, encoding_of
from mainspring.data_types import convert
from mainspring.durations import Duration, duration_ms, seconds
from mainspring.loop import Clock, MonotonicClock, reject, resolve, time_limit
from mainspring.message import Retry, new_uuid
from mainspring.settings import URL_VARIABLES, load

logger: logging.Logger = logging.getLogger("mainspring.client")

T = TypeVar("T")
PASSING: Final = TRY_AGAIN | {"log_unavailable"}  # what the node may answer differently in a moment
HistoryRange = Literal["15m", "6h", "24h", "7d"]  # how far back a node remembers its figures
SLICE: Final = 256  # events of `publish_many` before what was put may leave


class LetterFilter(TypedDict, total=False):
    """Which dead letters: those at `offsets`, and only those that every other member given fits.

    `reason` is text that the reason contains; `before` a moment, or so long ago; `limit` how many, oldest first.
    """

    offsets: list[int]
    group: str
    key: str
    reason: str
    before: datetime | timedelta | int
    limit: int


class TaskCallFilter(TypedDict, total=False):
    """Which calls of a task: those with these `ids`, and only those that every other member given fits; or `all`.

    `error` is text that the error contains; `before` a moment, or so long ago; `limit` how many.
    """

    ids: list[str]
    error: str
    before: datetime | timedelta | int
    limit: int
    all: bool


class Client(ClientConnection, NodeVerbs):
    """A connection to the bus, and what can be asked of it. Made by `connect`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._encoding = encoding_of(self.options.codec)
        self._encode_event: Callable[..., bytes] = encode_event
        self.decoder: Callable[[Any], Callable[[Any], Any]] = decoder
        if self._encoding is not None:
            self._encode_event = partial(_sealed_event, self._encoding)
            self.decoder = partial(_opening_decoder, self._encoding)
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
        delay: Duration = 0,
        at: datetime | None = None,
        ttl: Duration = 0,
        expect: int | None = None,
        timeout: Duration | None = None,
    ) -> Place:
        """Publish one event; returns when it is durable. The result is its offset (0 while it is delayed).

        `key` keeps events in order; `id` (by default a new one) makes a repetition harmless; `delay` or `at`
        hold it back; when `ttl` has passed since it was stored, groups that have not handled it do not get it any more;
        `expect` stores it only directly behind that offset of its partition.

        While the node is away the event waits here and is sent again with its id, so it is stored once. When
        `max_queued` events wait, this waits for room. Raises NodeRefused, Uncertain, Closed, NotEncodable,
        EventTooLarge; TimedOut after `timeout`, when it may or may not have been stored.
        """
        if not self.was_open:
            await self.open()
        if key is not None or headers is not None:
            check_texts(key, headers)
        own_id = bool(id or delay or at is not None or timeout is not None)
        id = id or self.new_id()
        if self.telemetry is None:
            event = self._event(id, payload, key, headers, delay, at, ttl)
            if timeout is not None or not self._has_room():
                return await self._publish(topic, id, event, expect, timeout, own_id)
            future: asyncio.Future[Place] = self.event_loop.create_future()
            self.put(topic, Awaited(id, event, future, topic, expect, own_id))
            return await future
        with self.telemetry.publishing(topic, id, key, headers) as (carried, span):
            event = self._event(id, payload, key, carried, delay, at, ttl)
            place = await self._publish(topic, id, event, expect, timeout, own_id)
            span.note("messaging.destination.partition.id", str(place.partition))
        return place

    async def _publish(
        self, topic: str, id: str, event: bytes, expect: int | None, timeout: Duration | None, own_id: bool
    ) -> Place:
        future: asyncio.Future[Place] = self.event_loop.create_future()
        outgoing = Awaited(id, event, future, topic, expect, own_id)
        if timeout is None:
            if not self._has_room():
                await self._wait_for_room()
            self.put(topic, outgoing)
            return await future
        try:
            async with time_limit(seconds(timeout)):
                await self._wait_for_room()
                self.put(topic, outgoing)
                return await future
        except TimeoutError:
            raise TimedOut(
                f"the event {id} was not confirmed within {seconds(timeout):g} s",
                remedy="publish it again with this id",
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
        if not self.was_open:
            await self.open()
        total = len(payloads) if isinstance(payloads, Sized) else None
        ahead = 1 if isinstance(payloads, AsyncIterable) else SLICE if total is None else min(total, SLICE)
        tally = PublishCount(self.event_loop, total, progress, self._new_ids(ahead))
        if self.telemetry is None:
            return await self._publish_all(topic, payloads, tally)
        with self.telemetry.publishing(topic, "", None, None) as (carried, span):
            count = await self._publish_all(topic, _carrying(payloads, carried), tally)
            span.note("messaging.batch.message_count", count)
        return count

    def _new_ids(self, ahead: int) -> Iterator[str]:
        """Ids without end, so many made at a time where that is cheaper."""
        many: Callable[[int], list[str]] | None = getattr(self.new_id, "many", None)
        if many is None or ahead < 2:
            return iter(self.new_id, "")
        return chain.from_iterable(map(many, repeat(ahead)))

    async def _publish_all(self, topic: str, payloads: Iterable[Any] | AsyncIterable[Any], tally: PublishCount) -> int:
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

    async def _put_counted(self, topic: str, item: Any, tally: PublishCount) -> None:
        """Put one of many, when there is room; let what was put before leave, so that the node need not wait."""
        if not self._has_room():
            await self._wait_for_room()
        elif tally.sent % SLICE == 0:
            await asyncio.sleep(0)
        self._count_in(topic, item, tally)

    def _count_in(self, topic: str, item: Any, tally: PublishCount) -> None:
        if tally.error is not None:
            raise tally.error
        if isinstance(item, New):
            if item.key is not None or item.headers is not None:
                check_texts(item.key, item.headers)
            id = item.id or next(tally.ids)
            event = self._event(id, item.payload, item.key, item.headers, item.delay, item.at, item.ttl)
            own_id = bool(item.id or item.delay or item.at is not None)
        else:
            id = next(tally.ids)
            event = self._check_size(self._encode_event(id, item))
            own_id = False
        tally.sent += 1
        self.put(topic, Counted(id, event, tally, own_id))

    def _event(
        self,
        id: str,
        payload: Any,
        key: str | None,
        headers: dict[str, str] | None,
        delay: Duration,
        at: datetime | None,
        ttl: Duration,
    ) -> bytes:
        return self._check_size(
            self._encode_event(
                id,
                payload,
                key,
                headers,
                duration_ms(delay) if delay else 0,
                moment_ms(at, self.clock.wall_ms()) if at is not None else 0,
                duration_ms(ttl) if ttl else 0,
            )
        )

    def _check_size(self, event: bytes) -> bytes:
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
        self, topic: str, *, group: str, type: type[T], **options: Unpack[SubscribeOptions]
    ) -> Subscription[T]: ...

    @overload
    def subscribe(
        self, topic: str, *, group: str, type: Any = None, **options: Unpack[SubscribeOptions]
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
        count_ends: bool = False,
        group_ttl: Duration | None = None,
    ) -> Subscription[Any]:
        """Consume a topic as a member of a group: an async iterator of events.

        `topic` may be a pattern (`orders.*`: one segment, `orders.**`: any number): then it is of every topic whose
        name fits and that may be read here, and topics that appear later join from their beginning. The group of each
        topic has its own place, and `max_inflight` counts for each.

        `from_` says where a new group starts ("latest", "beginning", an offset, a datetime, a timedelta ago); a group
        that exists goes on where it was, unless an offset above 0 or a time moves it. `max_inflight` is how many
        events may be unsettled here. With `ack="upto"` an acknowledgement also settles everything before it in its
        partition. `key` and `header` filter; `sticky` keeps events of one key with one member. With `count_ends` the
        node counts how often a process ended with an event (`event.ended`). A new group with a `group_ttl` is deleted
        when it had no member for so long; one that exists without stays. `type` is what payloads are decoded into.
        Errors are raised where the subscription is iterated.
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
            "count_ends": count_ends or None,
            "group_ttl_ms": None if group_ttl is None else duration_ms(group_ttl),
        }
        held = SubscriptionRequest(topic, group, start_frame(from_, self.clock.wall_ms()), options)
        if self.ended is not None:
            raise self.ended
        self._begin()
        self.conversation.subscribe(held)
        subscription = Subscription(self, held, self.decoder(type))
        self._subscriptions.add(subscription)
        if not self._watched and seconds(self.options.stall_check):
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
        timeout: Duration | None = None,
        lease: Duration = 30.0,
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

    # -- requests and replies over topics

    async def request(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: Duration = 30.0,
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

    # -- commands, queries and runs are `NodeVerbs`

    @property
    def run_check(self) -> Duration:
        return self.options.run_check

    async def _ask(
        self,
        kind: str,
        type: str,
        data: Any,
        timeout: Duration | None,
        reply: Any,
        id: str | None = None,
        retry: Retry | None = None,
    ) -> Any:
        given = {} if data is None else data
        encoding = self._encoding
        if encoding is not None:
            given = encoding.seal_data(type, encode_payload(given))
        asked: dict[str, Any] = {"kind": kind, "type": type, "data": given}
        if id is not None:
            asked["id"] = id
        if timeout is not None:
            asked["timeout"] = duration_ms(timeout)
        # The node says how long it may take. But its answer may be lost, on a connection that nobody says is gone.
        limit_s = None if timeout is None else seconds(timeout) + LIMIT_S
        if retry is not None:
            asked["retry"] = retry
            if limit_s is not None:
                pauses_ms = sum(retry.pause_ms(attempt) for attempt in range(1, retry.max_attempts))
                limit_s = limit_s * retry.max_attempts + pauses_ms / 1_000
        if self.telemetry is None:
            answer = (await self.http.call("POST", "/messages", asked, limit_s=limit_s)).get("data")
        else:
            with self.telemetry.asking(kind, type) as carried:
                found = await self.http.call("POST", "/messages", asked, limit_s=limit_s, headers=carried)
                answer = found.get("data")
        if encoding is not None:
            answer = encoding.open_value(answer)
        return answer if reply is None else convert(answer, reply)

    # -- topics, groups and schedules, over HTTP or the open connection: none of it touches the flow of events

    async def seek(self, topic: str, group: str, to: Start) -> None:
        """Move a whole group: to "beginning", "latest", an offset, a datetime, or a timedelta ago."""
        place = seek_frame(to, self.clock.wall_ms())
        await self.http.call("POST", f"/groups/{quote(topic, safe='')}/{quote(group, safe='')}/seek", place)

    async def lag(self, topic: str, group: str) -> int:
        """How many events of the topic the group has not settled."""
        offsets = await self.http.call("GET", f"/topics/{quote(topic, safe='')}/offsets")
        found = (each["groups"].get(group) for each in offsets["partitions"])
        return sum(each["lag"] for each in found if each is not None)

    async def attention(self) -> dict[str, Any]:
        """What needs a person: `count` of all, and `needs`, each with its `kind`, `count`, `examples` and `remedy`."""
        found: dict[str, Any] = await self.http.call("GET", "/attention")
        return found

    async def history(
        self, range: HistoryRange = "15m", *, topic: str | None = None, group: str | None = None
    ) -> list[dict[str, float]]:
        """Figures of the node over time, or of a topic, or of a group of it; each with its time `t` (epoch ms)."""
        path = "/history"
        if topic is not None:
            path = f"/topics/{quote(topic, safe='')}/history"
            if group is not None:
                path = f"/groups/{quote(topic, safe='')}/{quote(group, safe='')}/history"
        found: list[dict[str, float]] = (await self.http.call("GET", path, params={"range": range}))["points"]
        return found

    async def dead_letters(
        self, topic: str, *, group: str | None = None, key: str | None = None, reason: str | None = None
    ) -> AsyncIterator[DeadEvent]:
        """Events of the topic that a group gave up on, oldest first; `reason` is text that the reason contains."""
        given = {"group": group, "key": key, "reason": reason}
        params = {name: value for name, value in given.items() if value is not None}
        while True:
            page = await self.http.call("GET", f"/dlq/{quote(topic, safe='')}", params=params)
            letters = page["letters"] if self._encoding is None else self._encoding.readable(page["letters"])
            for letter in msgspec.convert(letters, list[DeadEvent]):
                yield letter
            if "next" not in page:
                return
            params["offset"] = str(page["next"])

    async def redrive(self, topic: str, *, to_all: bool = False, **wanted: Unpack[LetterFilter]) -> int:
        """Send dead letters back to the group that gave up on them, all or those that fit; how many.

        `to_all` sends them to every group of the topic.
        """
        return await self._change_letters(topic, "redrive", {"toAll": to_all}, wanted)

    async def drop_dead_letters(self, topic: str, *, all: bool = False, **wanted: Unpack[LetterFilter]) -> int:
        """Drop the dead letters that fit, or `all` of the topic, for good; how many."""
        return await self._change_letters(topic, "drop", {"all": all}, wanted)

    async def _change_letters(self, topic: str, verb: str, body: dict[str, Any], wanted: LetterFilter) -> int:
        body.update(wanted)
        if "before" in wanted:
            body["before"] = moment_ms(wanted["before"], self.clock.wall_ms())
        done = await self.http.call("POST", f"/dlq/{quote(topic, safe='')}/{verb}", body)
        return int(done["count"])

    @overload
    def replay(
        self,
        topic: str,
        *,
        since: datetime | timedelta | int | None = None,
        until: datetime | timedelta | int | None = None,
        type: builtins.type[T],
    ) -> AsyncIterator[StoredEvent[T]]: ...

    @overload
    def replay(
        self,
        topic: str,
        *,
        since: datetime | timedelta | int | None = None,
        until: datetime | timedelta | int | None = None,
        type: Any = None,
    ) -> AsyncIterator[StoredEvent[Any]]: ...

    async def replay(
        self,
        topic: str,
        *,
        since: datetime | timedelta | int | None = None,
        until: datetime | timedelta | int | None = None,
        type: Any = None,
    ) -> AsyncIterator[StoredEvent[Any]]:
        """Stored events between two moments, without a group and without acknowledging; ends with what is there."""
        now = self.clock.wall_ms()
        params = {}
        if since is not None:
            params["from"] = str(moment_ms(since, now))
        if until is not None:
            params["to"] = str(moment_ms(until, now))
        decode = self.decoder(type)
        async for page in self.http.read(topic, params=params):
            for envelope in page:
                yield StoredEvent(envelope, decode)

    @overload
    def follow(
        self,
        topic: str,
        *,
        since: Literal["latest", "beginning"] | datetime | timedelta = "latest",
        type: builtins.type[T],
    ) -> AsyncIterator[StoredEvent[T]]: ...

    @overload
    def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[StoredEvent[Any]]: ...

    async def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[StoredEvent[Any]]:
        """Events as they are stored, for ever, without a group and without acknowledging: for dashboards and tails.

        Over reconnects nothing is missed and nothing comes twice. `topic` may be a pattern, as for `subscribe`.
        """
        start = since if isinstance(since, str) else str(moment_ms(since, self.clock.wall_ms()))
        decode = self.decoder(type)
        async for envelope in self.envelopes(topic, {"from": start}):
            yield StoredEvent(envelope, decode)

    async def envelopes(self, topic: str, params: dict[str, str]) -> AsyncIterator[EventEnvelope]:
        """`follow` for the parts of a client: events as they lie in the topic, from where `params` says."""
        pauses = RECONNECT.series(self.random)
        while True:
            try:
                async for cursor, envelope in self.http.follow(topic, params):
                    pauses.succeeded()
                    params = {"cursor": cursor}
                    if envelope is not None:
                        yield envelope
            except ClientError as error:
                _raise_unless_passing(error)
            await asyncio.sleep(pauses.failed() / 1000)

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something over HTTP that may safely be done twice; while the node is away, again and again."""
        pauses = RECONNECT.series(self.random)
        while True:
            try:
                return await work()
            except ClientError as error:
                _raise_unless_passing(error)
            if self.ended is not None:
                raise self.ended
            await asyncio.sleep(pauses.failed() / 1000)

    async def put_topic(self, topic: str, /, **settings: Any) -> dict[str, Any]:
        """Create a topic or change its settings (`partitions=4`, `maxAttempts=3`, ...); its settings now."""
        found: dict[str, Any] = await self.http.call("POST", "/topics", {"topic": topic, **settings})
        return found

    async def purge_topic(self, topic: str) -> int:
        """Remove every event that is stored in a topic now; how many. Its settings and groups stay."""
        return int((await self.http.call("POST", f"/topics/{quote(topic, safe='')}/purge"))["removed"])

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its groups, schedules, schemas and dead letters. Refused while a group has members."""
        await self.http.call("DELETE", f"/topics/{quote(topic, safe='')}")

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete a group: where it stood is forgotten. Refused while it has members."""
        await self.http.call("DELETE", f"/groups/{quote(topic, safe='')}/{quote(group, safe='')}")

    async def schedule(
        self,
        name: str,
        topic: str,
        payload: Any,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        jitter: Duration = 0,
        overlap: Literal["queue", "skip", "allow"] = "queue",
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        """Publish an event again and again: `every` so often, or as `cron` says (five fields, in `timezone` or UTC).

        The node keeps the schedule; a second one of the same name replaces it, and stays paused if that one was. Each
        event is late by up to `jitter`. With `overlap="skip"`, nothing is published while a group of the topic has
        events to settle. Gives the epoch ms of its next event.
        """
        members = {
            "name": name,
            "topic": topic,
            "payload": payload if self._encoding is None else self._encoding.seal_value(payload),
            "every": None if every is None else duration_ms(every),
            "cron": cron,
            "timezone": timezone,
            "jitter": duration_ms(jitter),
            "overlap": overlap,
            "key": key,
            "headers": headers,
        }
        return (await self._request("SCHEDULE", members)).next

    async def unschedule(self, name: str) -> None:
        """Delete a schedule. One that a program declares comes back when the program starts: pause it instead."""
        await self._request("UNSCHEDULE", {"name": name})

    async def schedules(self) -> list[dict[str, Any]]:
        """The schedules there are, by name: when each fires next (`nextMs`), and how its last call went (`last`)."""
        found: list[dict[str, Any]] = (await self.http.call("GET", "/schedules"))["schedules"]
        return found if self._encoding is None else self._encoding.readable(found)

    async def pause_schedule(self, name: str) -> None:
        """Have nothing published until the schedule is resumed, also after a restart."""
        await self.http.call("POST", f"/schedules/{quote(name, safe='')}/pause")

    async def resume_schedule(self, name: str) -> int:
        """Let a paused schedule go on from now. Gives the epoch ms of its next event."""
        return int((await self.http.call("POST", f"/schedules/{quote(name, safe='')}/resume"))["nextMs"])

    async def run_schedule(self, name: str) -> int:
        """Have a schedule's event published now, also while it is paused; its offset. The next time stays."""
        return int((await self.http.call("POST", f"/schedules/{quote(name, safe='')}/run"))["offset"])

    async def tasks(self) -> list[dict[str, Any]]:
        """The tasks there are, by name, and how many calls of each are waiting, running, done, failed and so on."""
        found: list[dict[str, Any]] = (await self.http.call("GET", "/tasks"))["tasks"]
        return found

    async def task_calls(self, task: str, *, state: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Calls of a task, newest first, all or those in one state: arguments, attempts, value or error."""
        params = {} if state is None else {"state": state}
        while True:
            page = await self.http.call("GET", f"/tasks/{quote(task, safe='')}/calls", params=params)
            for each in page["calls"]:
                yield self._readable_call(each)
            if "next" not in page:
                return
            params["cursor"] = page["next"]

    async def task_call(self, task: str, id: str) -> dict[str, Any]:
        """One call of a task."""
        found = await self.http.call("GET", f"/tasks/{quote(task, safe='')}/calls/{quote(id, safe='')}")
        return self._readable_call(found)

    async def retry_calls(self, task: str, **wanted: Unpack[TaskCallFilter]) -> int:
        """Have calls of a task that failed done again, with all their attempts; how many."""
        return await self._change_calls(task, "retry", {}, wanted)

    async def cancel_calls(self, task: str, *, reason: str = "", **wanted: Unpack[TaskCallFilter]) -> int:
        """Cancel calls of a task that are open: those that wait never begin, those that run are interrupted."""
        return await self._change_calls(task, "cancel", {"reason": reason}, wanted)

    async def discard_calls(self, task: str, **wanted: Unpack[TaskCallFilter]) -> int:
        """Drop calls of a task that failed: nobody will do them any more; how many."""
        return await self._change_calls(task, "discard", {}, wanted)

    async def _change_calls(self, task: str, verb: str, body: dict[str, Any], wanted: TaskCallFilter) -> int:
        body.update(wanted)
        if "before" in wanted:
            body["before"] = moment_ms(wanted["before"], self.clock.wall_ms())
        done = await self.http.call("POST", f"/tasks/{quote(task, safe='')}/{verb}", body)
        return int(done["count"])

    def _readable_call(self, call: dict[str, Any]) -> dict[str, Any]:
        encoding = self._encoding
        if encoding is None:
            return call
        opened: dict[str, Any] = {
            name: encoding.open_value(call[name]) for name in ("value", "progress") if name in call
        }
        if len(call.get("args", ())) == 1 and not call.get("kwargs"):
            whole = encoding.open_value(call["args"][0])  # a sealed call is one value
            opened.update(whole if isinstance(whole, dict) and whole.keys() <= {"args", "kwargs"} else {})
        return {**call, **opened}

    async def _request(self, type: str, members: dict[str, Any]) -> OkFrame:
        """A request that may safely be made twice: it is made again until the node can answer it."""
        if not self.was_open:
            await self.open()
        pauses = RETRY.series()
        while True:
            if self.ended is not None:
                raise self.ended
            future: asyncio.Future[OkFrame] = self.event_loop.create_future()

            def answered(answer: OkFrame | ClientError, future: asyncio.Future[OkFrame] = future) -> None:
                if isinstance(answer, OkFrame):
                    resolve(future, answer)
                else:
                    reject(future, answer)

            self.conversation.request(type, members, answered)
            try:
                return await future
            except NodeRefused as error:
                if error.code in TRY_AGAIN:
                    await asyncio.sleep(max(pauses.failed(), error.retry_after_ms) / 1000)
                elif error.code != "connection_lost":
                    raise

    def wall_ms(self) -> int:
        """The time of day by the client's clock: epoch ms."""
        return self.clock.wall_ms()

    # -- its own affairs

    async def _leave(self) -> None:
        await asyncio.gather(*(one.close() for one in list(self._subscriptions)))

    def forget(self, subscription: Subscription[Any]) -> None:
        """For subscriptions that have ended: they are no longer watched."""
        self._subscriptions.discard(subscription)

    async def _watch(self) -> None:
        """Look at the lag of what is consumed here, and raise the alarm for a consumer that does nothing."""
        watches: dict[Subscription[Any], StallWatch] = {}
        patience_ms = round(seconds(self.options.stall_patience) * 1000)
        while True:
            await asyncio.sleep(seconds(self.options.stall_check))
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


def _sealed_event(encoding: Encoding, id: str, payload: Any, *options: Any) -> bytes:
    return encode_event(id, msgspec.Raw(encoding.seal(encode_payload(payload))), *options)


def _opening_decoder(encoding: Encoding, type: Any) -> Callable[[Any], Any]:
    return encoding.decoder(decoder(type))


def _raise_unless_passing(error: ClientError) -> None:
    """Go on only where trying again may help: the node is away, or cannot use its log now."""
    if not isinstance(error, CannotConnect) and error.code not in PASSING:
        raise error
    logger.debug("trying again: %s", error)


def _log_stall(stall: Stall) -> None:
    text = "group %r of %r is connected but settled nothing for %d s while its lag grew to %d"
    logger.warning(text, stall.group, stall.topic, stall.for_ms // 1000, stall.lag)


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    clock: Clock | None = None,
    random: Callable[[], float] = random_module.random,
    new_id: Callable[[], str] = new_uuid,
    random_bytes: RandomBytes = os.urandom,
    **options: Any,
) -> Client:
    """A client of the node at `url` (`BUS_URL`, or ws://127.0.0.1:7070).

    Use it with `async with`; or keep one for the whole process, which opens itself when it is first used, and `close`
    it at the end.

    `url` may name several nodes of one log, separated by commas. The client begins with one of them at random and goes
    to the next whenever it cannot connect or loses the connection; nothing it was promised depends on which.

    `options` are those of `Options`: timeouts, limits, callbacks. Entering, or the first use, waits for the first
    connection and raises CannotConnect when there is none within `connect_timeout`; afterwards the client reconnects
    by itself, for ever.
    """
    urls = checked_urls(url)
    warn_of_plain_tokens(urls, token)
    return Client(
        urls,
        token,
        Options(**options),
        clock=clock or MonotonicClock(),
        random=random,
        new_id=new_id,
        random_bytes=random_bytes,
    )


def checked_urls(urls: str | None) -> tuple[str, ...]:
    """The WebSocket addresses; http:// is understood. Raises BadArgument for anything else."""
    if urls is None:
        urls = load(environ={name: given for name in URL_VARIABLES if (given := os.environ.get(name))}).settings.url
    return tuple(split_address(url.strip()).geturl() for url in urls.split(","))


def _carrying(payloads: Iterable[Any] | AsyncIterable[Any], carried: dict[str, str]) -> Any:
    """The payloads as events whose headers carry a trace, unless they have one of their own."""

    def with_trace(item: Any) -> New:
        new = item if isinstance(item, New) else New(item)
        return msgspec.structs.replace(new, headers={**carried, **(new.headers or {})})

    if isinstance(payloads, AsyncIterable):
        return (with_trace(item) async for item in payloads)
    return map(with_trace, payloads)
