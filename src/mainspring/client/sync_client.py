"""The same client for programs without an event loop.

A `SyncClient` runs a `Client` on an event loop in a thread of its own. Each verb below is the async one, waited for:
the signature, the documentation and the behaviour come from there, and there is nothing to keep in step by hand. It may
be used from several threads.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from mainspring.client.client import Client, connect
from mainspring.client.errors import Closed
from mainspring.client.subscription import Event, SubscribeOptions, Subscription

T = TypeVar("T")
P = ParamSpec("P")


class _Thread(threading.Thread):
    """An event loop in a thread; `wait` runs a coroutine there and gives its result here."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        super().__init__(target=self._loop.run_forever, name="mainspring client", daemon=True)
        self.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.is_alive():
            work.close()
            raise Closed("the client is closed", remedy="open a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted program does not leave the work behind
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()
        self._loop.close()


def blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    """The verb of the async client, waited for."""

    @functools.wraps(method)
    def wait(self: SyncClient, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self.thread.wait(method(self.client, *arguments, **named))

    return wait


def iterating(
    method: Callable[Concatenate[Client, P], AsyncIterator[T]],
) -> Callable[Concatenate[SyncClient, P], Iterator[T]]:
    """A verb that gives an async iterator, as a plain one."""

    @functools.wraps(method)
    def iterate(self: SyncClient, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        items = method(self.client, *arguments, **named)
        with suppress(StopAsyncIteration):
            while True:
                yield self.thread.wait(_next(items))

    return iterate


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


class SyncEvent(Event[T]):
    """An event whose verbs are waited for. Everything else is the async client's event."""

    __slots__ = ("_thread",)

    def __init__(self, event: Event[T], thread: _Thread) -> None:
        super().__init__(event.delivered, event.epoch, event.subscription)
        self.span: Any = event.span
        self._thread = thread

    def ack(self) -> bool:  # type: ignore[override]
        return self._thread.wait(super().ack())

    def nack(self, *, delay: float = 0.0, reason: str = "") -> bool:  # type: ignore[override]
        return self._thread.wait(super().nack(delay=delay, reason=reason))

    def extend(self, seconds: float) -> bool:  # type: ignore[override]
        return self._thread.wait(super().extend(seconds))


class SyncSubscription(Generic[T]):
    """A subscription as a plain iterator. Ends with its `with` block, with `close`, or when the loop is left."""

    def __init__(self, subscription: Subscription[T], thread: _Thread) -> None:
        self.topic: str = subscription.topic
        self.group: str = subscription.group
        self._subscription = subscription
        self._thread = thread

    def get(self, timeout: float | None = None) -> SyncEvent[T]:
        """The next event. Raises TimedOut after `timeout` seconds."""
        return SyncEvent(self._thread.wait(self._subscription.get(timeout)), self._thread)

    def seek(self, to: Any) -> None:
        """Move the whole group."""
        self._thread.wait(self._subscription.seek(to))

    def close(self) -> None:
        self._thread.wait(self._subscription.close())

    def __enter__(self) -> SyncSubscription[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[SyncEvent[T]]:
        with self, suppress(Closed):
            while True:
                yield self.get()


class SyncClient:
    """A client that blocks. The arguments are those of `connect`; use it with `with`."""

    def __init__(self, url: str | None = None, token: str | None = None, **options: Any) -> None:
        self.client: Client = connect(url, token, **options)
        self.thread: _Thread = _Thread()

    publish = blocking(Client.publish)
    publish_many = blocking(Client.publish_many)
    flush = blocking(Client.flush)
    request = blocking(Client.request)
    command = blocking(Client.command)
    query = blocking(Client.query)
    seek = blocking(Client.seek)
    lag = blocking(Client.lag)
    put_topic = blocking(Client.put_topic)
    schedule = blocking(Client.schedule)
    unschedule = blocking(Client.unschedule)
    reply = blocking(Client.reply)
    replay = iterating(Client.replay)
    follow = iterating(Client.follow)

    @overload
    def subscribe(
        self, topic: str, *, group: str, type: type[T], **options: Unpack[SubscribeOptions]
    ) -> SyncSubscription[T]: ...

    @overload
    def subscribe(
        self, topic: str, *, group: str, type: Any = None, **options: Unpack[SubscribeOptions]
    ) -> SyncSubscription[Any]: ...

    @functools.wraps(Client.subscribe)
    def subscribe(
        self, topic: str, *, group: str, type: Any = None, **options: Unpack[SubscribeOptions]
    ) -> SyncSubscription[Any]:
        async def begin() -> Subscription[Any]:
            return self.client.subscribe(topic, group=group, type=type, **options)

        return SyncSubscription(self.thread.wait(begin()), self.thread)

    @property
    def connected(self) -> bool:
        """Whether the connection is open now."""
        return self.client.connected

    def close(self) -> None:
        """Confirm everything, leave every group, disconnect. Idempotent."""
        if self.thread.is_alive():
            self.thread.wait(self.client.close())
            self.thread.stop()

    def __enter__(self) -> SyncClient:
        try:
            self.thread.wait(self.client.__aenter__())
        except BaseException:
            self.thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
