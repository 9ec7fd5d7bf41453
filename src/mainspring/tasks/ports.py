"""How tasks reach a node: through a client (`ClientPort`), or in the node itself (`mainspring.node.tasks`).

A worker, a handle and `enqueue` know only this, so they are the same in a worker process, in a web program and in the
node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from mainspring.client import Client, ClientError, New, NodeRefused, Outgoing, SyncClient, Waiter, encode_event
from mainspring.errors import MainspringError
from mainspring.loop import result_elsewhere
from mainspring.task_topics import LEASE_MS, NewCall

Then = Callable[[MainspringError | None], None]


class Report(NamedTuple):
    """An event that says what became of a task."""

    topic: str
    id: str
    payload: bytes  # JSON text
    key: str | None
    headers: dict[str, str] | None = None


class StoredReport(Protocol):
    """A record as it lies in its topic."""

    @property
    def key(self) -> str | None: ...

    @property
    def payload(self) -> Any: ...


class Delivery(Protocol):
    """A task under lease."""

    @property
    def id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def attempt(self) -> int: ...

    @property
    def ended(self) -> int:
        """How often a process ended that had begun with it."""
        ...

    @property
    def ts(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def raw_payload(self) -> bytes: ...
    @property
    def span(self) -> Any: ...

    def refuse(self, delay: float, reason: str) -> bool:
        """Not done: deliver it again, after `delay` seconds at the earliest. False: the lease was gone already."""

    def extend(self, seconds: float) -> Awaitable[bool]: ...


class TaskLane(Protocol):
    """The tasks of one topic, as they are delivered."""

    @property
    def topic(self) -> str: ...

    on_arrival: Callable[[Any], None] | None
    on_lost: Callable[[Any], None] | None

    def get_nowait(self) -> Any: ...

    def resize(self, max_inflight: int) -> Awaitable[None]: ...

    async def confirmed(self) -> None: ...

    async def ended(self) -> MainspringError: ...

    async def close(self) -> None: ...


class TaskPort(Protocol):
    """What tasks need of a node."""

    def new_id(self) -> str: ...

    def random(self) -> float: ...

    def wall_ms(self) -> int: ...

    may_begin: Callable[[Any], Awaitable[bool] | None] | None
    """Called before a task begins, so that it counts if it ends the process, and is still this worker's.

    Gives what to wait for (False: its lease was lost), or None when it may begin at once."""

    def call(self, work: Coroutine[Any, Any, Any], *, for_ever: bool = False) -> Any:
        """Carry out a verb for whoever asks: gives something to await, or, for a blocking client, the result."""

    async def prepare(self, topics: Mapping[str, Mapping[str, Any]]) -> int:
        """Create the topics that are missing and complete their settings; the shortest lease in ms."""

    async def publish(self, topic: str, call: NewCall) -> None: ...

    async def publish_many(self, topic: str, calls: Iterable[NewCall]) -> None: ...

    def subscribe(self, topic: str, group: str, window: int, *, sticky: bool) -> TaskLane: ...

    def accept(self, event: Any) -> None:
        """Acknowledge the task."""

    def settle(self, event: Any, reports: Sequence[Report], then: Then) -> None:
        """Store the reports, then acknowledge the task. `then` hears an error when that could not be done."""

    def put(self, report: Report) -> None:
        """Store it when that is possible; nobody waits for it."""

    async def flush(self) -> None:
        """Wait until everything that was put or settled is stored."""

    async def position(self, topic: str) -> Any:
        """Where the topic ends now."""

    def stored(self, topic: str, after: Any = None) -> AsyncIterator[StoredReport]:
        """What is stored now, from the beginning or after a position."""

    def follow(self, topic: str, after: Any) -> AsyncIterator[StoredReport]:
        """What is stored after a position, as it comes, for ever."""

    def run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run something in the background until the port is closed."""


class _Reported(Outgoing):
    """A report on its way."""

    __slots__ = ("_then",)

    def __init__(self, id: str, event: bytes, then: Then) -> None:
        super().__init__(id, event)
        self._then = then

    def placed(self, partition: int, offset: int) -> None:
        self._then(None)

    def failed(self, error: ClientError) -> None:
        self._then(error)


class ClientPort:
    """Tasks through a client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.new_id: Callable[[], str] = client.new_id
        self.random: Callable[[], float] = client.random
        self.may_begin: Callable[[Any], Awaitable[bool] | None] | None = self._begin

    def wall_ms(self) -> int:
        return self.client.wall_ms()

    def call(self, work: Coroutine[Any, Any, Any], *, for_ever: bool = False) -> Any:
        return result_elsewhere(work, self.client.event_loop)

    async def prepare(self, topics: Mapping[str, Mapping[str, Any]]) -> int:
        bus = self.client
        found = await asyncio.gather(*(bus.insist(lambda t=t, w=w: self._ensure(t, w)) for t, w in topics.items()))  # type: ignore[misc]
        return min(found, default=LEASE_MS)

    async def _ensure(self, topic: str, wanted: Mapping[str, Any]) -> int:
        """Settings the topic has win; what it says nothing about is set. Gives its lease in ms."""
        try:
            found = await self.client.http.call("GET", f"/topics/{quote(topic, safe='')}")
        except NodeRefused as error:
            if error.code != "unknown_topic":
                raise
            found = {"topic": topic}
        settings = {**wanted, **found}
        lease = int(settings.get("ackTimeoutMs") or LEASE_MS)
        if settings != found:
            try:
                await self.client.put_topic(settings.pop("topic"), **settings)
            except NodeRefused as error:
                if error.code != "forbidden":  # a program that may only publish leaves this to those who run tasks
                    raise
        return lease

    async def publish(self, topic: str, call: NewCall) -> None:
        await self.client.publish(
            topic,
            call.payload,
            key=call.key,
            headers=call.headers,
            id=call.id,
            delay=call.delay_ms / 1000,
            at=_moment(call.not_before),
        )

    async def publish_many(self, topic: str, calls: Iterable[NewCall]) -> None:
        await self.client.publish_many(
            topic,
            (
                New(each.payload, each.key, each.headers, each.id, each.delay_ms / 1000, at=_moment(each.not_before))
                for each in calls
            ),
        )

    def subscribe(self, topic: str, group: str, window: int, *, sticky: bool) -> TaskLane:
        return self.client.subscribe(
            topic, group=group, from_="beginning", max_inflight=window, sticky=sticky, count_ends=True
        )

    def _begin(self, event: Any) -> Awaitable[bool] | None:
        """Of a task with which a process ended, the node is told that this one begins with it."""
        if not event.ended:
            return None
        event.begin()
        return asyncio.sleep(0, True)  # then it is sent, also if the task ends the process at once

    def accept(self, event: Any) -> None:
        event.accept()

    def settle(self, event: Any, reports: Sequence[Report], then: Then) -> None:
        def stored(error: MainspringError | None) -> None:
            if error is not None:
                then(error)
            elif len(reports) > 1:
                self.settle(event, reports[1:], then)
            else:
                event.accept()
                then(None)

        self._put(reports[0], stored)

    def put(self, report: Report) -> None:
        self._put(report, lambda _: None)

    def _put(self, report: Report, then: Then) -> None:
        event = encode_event(report.id, msgspec.Raw(report.payload), report.key, report.headers)
        self.client.put(report.topic, _Reported(report.id, event, then))

    async def flush(self) -> None:
        await self.client.flush()

    async def position(self, topic: str) -> str:
        return await self.client.insist(lambda: self.client.http.last_cursor(topic))

    async def stored(self, topic: str, after: Any = None) -> AsyncIterator[StoredReport]:
        params = {} if after is None else {"cursor": str(after)}
        pages = await self.client.insist(lambda: self._pages(topic, params))
        for page in pages:
            for envelope in page:
                yield envelope

    async def _pages(self, topic: str, params: dict[str, str]) -> list[Any]:
        return [page async for page in self.client.http.read(topic, params=params)]

    def follow(self, topic: str, after: Any) -> AsyncIterator[StoredReport]:
        return self.client.envelopes(topic, {"cursor": str(after)})

    def run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self.client.run(work, name)


class SyncClientPort(ClientPort):
    """Tasks through a blocking client: verbs give their results at once."""

    def __init__(self, client: SyncClient) -> None:
        super().__init__(client.client)
        self._thread: Waiter = client.thread

    def call(self, work: Coroutine[Any, Any, Any], *, for_ever: bool = False) -> Any:
        return self._thread.wait(work)


def _moment(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
