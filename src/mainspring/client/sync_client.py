"""The same client for programs without an event loop.

A `SyncClient` runs a `Client` on an event loop in a thread of its own. Each verb below is the async one, waited for:
the signature, the documentation and the behaviour come from there, and there is nothing to keep in step by hand. It may
be used from several threads.

A process that forks (gunicorn, a prefork worker, multiprocessing) copies the client without its thread, and with the
sockets of its parent. So the child starts anew: its first verb makes a thread and a connection of its own.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from mainspring.client.client import Client, connect
from mainspring.client.errors import Closed
from mainspring.client.subscription import Event, SubscribeOptions, Subscription
from mainspring.client.verbs import StartedRun
from mainspring.durations import Duration

if TYPE_CHECKING:
    from mainspring.runs import Outcome

T = TypeVar("T")
P = ParamSpec("P")


class Waiter(Protocol):
    """Runs coroutines on an event loop elsewhere, for a caller who waits."""

    @property
    def alive(self) -> bool:
        """Whether it still runs things."""
        ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs there."""
        ...

    def stop(self) -> None:
        """Run nothing any more."""


class _Thread:
    """An event loop in a thread; `wait` runs a coroutine there and gives its result here."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mainspring client", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.alive:
            work.close()
            raise _closed()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted program does not leave the work behind
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Over:
    """In place of the thread of a client that was closed before it was used."""

    alive: bool = False

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        work.close()
        raise _closed()

    def stop(self) -> None:
        """Nothing runs."""


def _closed() -> Closed:
    return Closed("the client is closed", remedy="open a new one")


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

    def __init__(self, event: Event[T], thread: Waiter) -> None:
        super().__init__(event.delivered, event.epoch, event.subscription)
        self.span: Any = event.span
        self._thread = thread

    def ack(self) -> bool:  # type: ignore[override]
        return self._thread.wait(super().ack())

    def nack(  # type: ignore[override]
        self, *, delay: Duration = 0, reason: str = "", error: BaseException | None = None
    ) -> bool:
        return self._thread.wait(super().nack(delay=delay, reason=reason, error=error))

    def reject(self, reason: str = "", *, error: BaseException | None = None) -> bool:  # type: ignore[override]
        return self._thread.wait(super().reject(reason, error=error))

    def extend(self, lease: Duration) -> bool:  # type: ignore[override]
        return self._thread.wait(super().extend(lease))


class SyncSubscription(Generic[T]):
    """A subscription as a plain iterator. Ends with its `with` block, with `close`, or when the loop is left."""

    def __init__(self, subscription: Subscription[T], thread: Waiter) -> None:
        self.topic: str = subscription.topic
        self.group: str = subscription.group
        self._subscription = subscription
        self._thread = thread

    def get(self, timeout: Duration | None = None) -> SyncEvent[T]:
        """The next event. Raises TimedOut after `timeout`."""
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
    """A client that blocks. The arguments are those of `connect`.

    Use it with `with`; or keep one for the whole process, which opens itself when it is first used, and `close` it at
    the end. It may be made before the process forks.
    """

    def __init__(self, url: str | None = None, token: str | None = None, **options: Any) -> None:
        self._connect = functools.partial(connect, url, token, **options)
        self._connect()  # a mistake in the arguments is found here
        self.on_fork: list[Callable[[], object]] = []  # called in the child, for who keeps something of the client
        self._made: tuple[Client, Waiter] | None = None
        self._making = threading.Lock()
        _clients.add(self)

    def forked(self) -> object:
        """In a child process: start anew. Gives what is the parent's."""
        kept, self._made, self._making = self._made, None, threading.Lock()
        for forked in self.on_fork:
            forked()
        return kept

    def _get(self) -> tuple[Client, Waiter]:
        made = self._made
        if made is None:
            with self._making:
                made = self._made = self._made or (self._connect(), _Thread())
        return made

    @property
    def client(self) -> Client:
        """The async client that does the work, on the loop of `thread`."""
        return self._get()[0]

    @property
    def thread(self) -> Waiter:
        """Where the async client runs."""
        return self._get()[1]

    open = blocking(Client.open)
    publish = blocking(Client.publish)
    publish_many = blocking(Client.publish_many)
    flush = blocking(Client.flush)
    request = blocking(Client.request)
    command = blocking(Client.command)
    query = blocking(Client.query)
    seek = blocking(Client.seek)
    lag = blocking(Client.lag)
    attention = blocking(Client.attention)
    history = blocking(Client.history)
    redrive = blocking(Client.redrive)
    drop_dead_letters = blocking(Client.drop_dead_letters)
    put_topic = blocking(Client.put_topic)
    purge_topic = blocking(Client.purge_topic)
    delete_topic = blocking(Client.delete_topic)
    delete_group = blocking(Client.delete_group)
    schedule = blocking(Client.schedule)
    unschedule = blocking(Client.unschedule)
    schedules = blocking(Client.schedules)
    pause_schedule = blocking(Client.pause_schedule)
    resume_schedule = blocking(Client.resume_schedule)
    run_schedule = blocking(Client.run_schedule)
    tasks = blocking(Client.tasks)
    task_call = blocking(Client.task_call)
    retry_calls = blocking(Client.retry_calls)
    cancel_calls = blocking(Client.cancel_calls)
    discard_calls = blocking(Client.discard_calls)
    reply = blocking(Client.reply)
    signal = blocking(Client.signal)
    cancel = blocking(Client.cancel)
    run_info = blocking(Client.run_info)
    query_run = blocking(Client.query_run)
    update_run = blocking(Client.update_run)
    retry_run = blocking(Client.retry_run)
    change_runs = blocking(Client.change_runs)
    count_runs = blocking(Client.count_runs)
    forget_run = blocking(Client.forget_run)
    forget_runs = blocking(Client.forget_runs)
    runs = iterating(Client.runs)
    dead_letters = iterating(Client.dead_letters)
    task_calls = iterating(Client.task_calls)
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

    @overload
    def start_run(
        self, program: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, id: str | None = None
    ) -> StartedRun[T]: ...

    @overload
    def start_run(
        self, program: Callable[..., Generator[Any, Any, T]], /, *args: Any, id: str | None = None
    ) -> StartedRun[T]: ...

    @overload
    def start_run(self, program: str, /, *args: Any, id: str | None = None) -> StartedRun[Any]: ...

    @functools.wraps(Client.start_run)
    def start_run(self, program: Any, /, *args: Any, id: str | None = None) -> StartedRun[Any]:
        return self.thread.wait(self.client.start_run(program, *args, id=id))

    @overload
    def outcome(
        self, run: str, program: Callable[..., Coroutine[Any, Any, T]], /, *, timeout: Duration | None = None
    ) -> Outcome[T]: ...

    @overload
    def outcome(self, run: StartedRun[T], /, *, timeout: Duration | None = None) -> Outcome[T]: ...

    @overload
    def outcome(self, run: str, /, *, timeout: Duration | None = None) -> Outcome[Any]: ...

    @functools.wraps(Client.outcome)
    def outcome(self, run: Any, program: Any = None, /, *, timeout: Duration | None = None) -> Outcome[Any]:
        return self.thread.wait(self.client.outcome(run, program, timeout=timeout))

    @property
    def connected(self) -> bool:
        """Whether the connection is open now."""
        return self._made is not None and self.client.connected

    def close(self) -> None:
        """Confirm everything, leave every group, disconnect. Idempotent."""
        if self._made is None:
            self._made = (self._connect(), _Over())
        elif self.thread.alive:
            self.thread.wait(self.client.close())
            self.thread.stop()

    def __enter__(self) -> SyncClient:
        try:
            self.open()
        except BaseException:
            self.thread.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_clients: weakref.WeakSet[SyncClient] = weakref.WeakSet()
_left_behind: list[object] = []  # of the parent, kept so that nothing of it is closed or cleaned up here


def _forked() -> None:
    _left_behind.extend([client.forked() for client in list(_clients)])


os.register_at_fork(after_in_child=_forked)
