"""Consuming with a function: so many events at a time, acknowledged by a policy, leases kept while it works.

    consumer = bus.consume("orders", bill, group="billing", concurrency=8)
    ...
    await consumer.stop()

A handler that raises refuses its event with the error's text; it comes again after `retry_delay`, and ends as a dead
letter when the topic's attempts are used up, or at once when it raises `Reject`. A payload that does not fit the type
is refused the same way. A handler that takes longer than `timeout` is cancelled and counts as failed. While a handler
runs, its lease is extended; a program that hangs as a whole (nothing on its event loop runs) extends nothing, and
others get its events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, Generic, Literal, Self, TypeVar

from mainspring.client.errors import Closed
from mainspring.client.subscription import Event, Subscription
from mainspring.durations import Duration, seconds
from mainspring.retries import Reject
from mainspring.telemetry import CORRELATION, error_keeping, handling

CHECK_MS: Final = 30_000
PATIENCE_MS: Final = 90_000  # three lease times by default: one slow event is no stall


@dataclass(frozen=True, slots=True)
class Stall:
    """What the alarm tells."""

    topic: str
    group: str
    lag: int
    for_ms: int


@dataclass(slots=True)
class StallWatch:
    """The alarm for a consumer that is connected and does nothing while its backlog grows. Times are monotonic ms.

    Nothing fails in such a program: the socket is open and the process lives, but a handler waits for something that
    will never come, or acknowledges nothing. From outside only two numbers show it: events settled here, which stand
    still, and the group's lag, which grows. `check` is given both now and then and says when to raise the alarm: once
    per stall, after nothing was settled for `patience_ms` while the lag grew. An idle consumer (no lag) and a slow one
    (it settles) raise none.
    """

    topic: str
    group: str
    patience_ms: int = PATIENCE_MS
    _settled: int = -1
    _since_ms: int = 0
    _lag_then: int = 0
    _raised: bool = False

    def check(self, now_ms: int, connected: bool, settled: int, lag: int) -> Stall | None:
        """The alarm, or None while there is no reason, or when it was raised already."""
        if not connected or settled != self._settled or lag < self._lag_then:
            self._settled, self._since_ms, self._lag_then, self._raised = settled, now_ms, lag, False
            return None
        waited_ms = now_ms - self._since_ms
        if self._raised or waited_ms < self.patience_ms or lag <= self._lag_then:
            return None
        self._raised = True
        return Stall(self.topic, self.group, lag, waited_ms)


logger: logging.Logger = logging.getLogger("mainspring.client")

T = TypeVar("T")
Policy = Literal["after", "before", "manual"]
Delay = Duration | Callable[[int], Duration]  # or a function of the attempt


class Consumer(Generic[T]):
    """Made by `Client.consume`; runs until `stop`, or until its subscription fails (`wait` raises what ended it).

    `policy` is when events are acknowledged: "after" the handler returned (at least once), "before" it is called (at
    most once), or "manual" by the handler itself.
    """

    def __init__(
        self,
        subscription: Subscription[T],
        handler: Callable[[Event[T]], Awaitable[object]],
        *,
        concurrency: int,
        policy: Policy,
        retry_delay: Delay,
        timeout: Duration | None,
        lease: Duration,
    ) -> None:
        self.subscription = subscription
        self.failures: int = 0
        self._handler = handler
        self._policy = policy
        self._retry_delay = retry_delay if callable(retry_delay) else lambda _attempt: retry_delay
        self._timeout = None if timeout is None else seconds(timeout)
        self._lease = seconds(lease)
        self._stopping = False
        self._idle: set[asyncio.Task[None]] = set()
        self._running: set[Event[T]] = set()
        self._loops = [asyncio.create_task(self._loop()) for _ in range(concurrency)]
        self._keeper = asyncio.create_task(self._keep_leases())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait(self) -> None:
        """Until it ends. Raises what ended it, unless it was `stop`."""
        try:
            await asyncio.gather(*self._loops)
        finally:
            self._keeper.cancel()

    async def stop(self, timeout: Duration = 10.0) -> None:
        """Take no more; let running handlers finish for `timeout`, then cancel them; give back the rest."""
        self._stopping = True
        for loop in self._idle:
            loop.cancel()
        busy = [loop for loop in self._loops if loop not in self._idle and not loop.done()]
        if busy:
            await asyncio.wait(busy, timeout=seconds(timeout))
        for loop in (*self._loops, self._keeper):
            loop.cancel()
        await asyncio.gather(*self._loops, self._keeper, return_exceptions=True)
        await self.subscription.close()

    async def _loop(self) -> None:
        myself = asyncio.current_task()
        assert myself is not None
        while not self._stopping:
            self._idle.add(myself)
            try:
                event = await self.subscription.get()
            except Closed:
                return
            finally:
                self._idle.discard(myself)
            self._running.add(event)
            try:
                await self._handle(event)
            finally:
                self._running.discard(event)

    async def _handle(self, event: Event[T]) -> None:
        handling.set((event.id, event.headers.get(CORRELATION)))
        if self._policy == "before":
            await event.ack()
        limit = asyncio.timeout(self._timeout)
        try:
            with event.span.current() if event.span is not None else nullcontext():
                async with limit:
                    await self._handler(event)
        except asyncio.CancelledError:
            if not self._stopping:  # else leaving gives it back; refused before, it could come here once more
                await event.nack(reason="the handler was cancelled")
            raise
        except Reject as error:
            self.failures += 1
            logger.warning("%s %d:%d rejected: %s", event.topic, event.partition, event.offset, error)
            await event.reject(str(error), error=error)
        except Exception as error:
            self.failures += 1
            reason = f"took longer than {self._timeout} s" if limit.expired() else describe(error)
            logger.warning("%s %d:%d failed: %s", event.topic, event.partition, event.offset, reason)
            await event.nack(delay=self._retry_delay(event.attempt), reason=reason, error=error)
        else:
            if self._policy == "after":
                await event.ack()

    async def _keep_leases(self) -> None:
        """Events whose handler still runs are not given to others."""
        while True:
            await asyncio.sleep(self._lease / 3)
            for event in list(self._running):
                await event.extend(self._lease)


def describe(error: BaseException) -> str:
    """An error as the reason of a refusal."""
    text = error_keeping.redacted(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
