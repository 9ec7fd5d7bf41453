"""What becomes of a task that ran: its result, its next try, or its dead letter; and only then its acknowledgement.

A result or a dead letter is published like any event, and the task is acknowledged when that is durable. A worker that
dies in between runs the task again and says the same once more. Nobody waits meanwhile: the loop that ran the task
takes the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from mainspring.client.consumer import describe
from mainspring.client.errors import ClientError
from mainspring.client.event import Event
from mainspring.client.frames import encode_event
from mainspring.client.publishing import Outgoing
from mainspring.tasks.context import TaskContext
from mainspring.tasks.dead_tasks import letter_headers
from mainspring.tasks.results import State, encode_record
from mainspring.tasks.retry import Retry

if TYPE_CHECKING:
    from mainspring.tasks.queue import TaskQueue

logger: logging.Logger = logging.getLogger("mainspring.tasks")

Then = Callable[[ClientError | None], None]


class Release(Protocol):
    """Told when a task is no longer this worker's; `retrying`: it waits at the node for its next try."""

    def __call__(self, event: Event[Any], *, retrying: bool = False) -> None: ...


class _Told(Outgoing):
    """A result or dead letter on its way."""

    __slots__ = ("_then",)

    def __init__(self, id: str, event: bytes, then: Then) -> None:
        super().__init__(id, event)
        self._then = then

    def placed(self, partition: int, offset: int) -> None:
        self._then(None)

    def failed(self, error: ClientError) -> None:
        self._then(error)


class Outcomes:
    """Says what became of tasks of one queue."""

    def __init__(self, queue: TaskQueue, release: Release) -> None:
        self.failures: int = 0
        self._bus = queue.bus
        self._results = queue.layout.results
        self._pause = queue.lease / 3  # before a task comes again whose outcome could not be stored
        self._release = release

    def failed(self, event: Event[Any], id: str, name: str, policy: Retry, reason: str, *, keep: bool) -> None:
        """Again later, or never again."""
        self.failures += 1
        if event.attempt >= policy.attempts:
            self.bury(event, id, name, reason, keep=keep)
            return
        if keep:
            self._put(id, encode_record("retrying", name, event.attempt, None, reason), lambda _: None)
        self.refuse(event, policy.delay(event.attempt, self._bus.random), reason)

    def tell(
        self, event: Event[Any], id: str, state: State, name: str, *, value: Any = None, error: str = "", keep: bool
    ) -> None:
        """Store how the task ended; then acknowledge it."""
        if not keep:
            self._settle(event)
            return

        def then(failure: ClientError | None) -> None:
            if failure is None:
                self._settle(event)
            else:
                self.refuse(event, self._pause, describe(failure))

        try:
            self._put(id, encode_record(state, name, event.attempt, value, error), then)
        except ClientError as unsaid:
            self.bury(event, id, name, f"its result cannot be stored: {unsaid.message}", keep=True)

    def bury(self, event: Event[Any], id: str, name: str, reason: str, *, keep: bool) -> None:
        """Write the dead letter, then the record, then acknowledge."""
        logger.error("task %s %s is dead: %s", name, id, reason)
        letter_id = f"dead:{event.topic}:{event.partition}:{event.offset}"
        headers = letter_headers(event, id, reason)
        letter = encode_event(letter_id, event.delivered.envelope.payload, event.key, headers)

        def then(failure: ClientError | None) -> None:
            if failure is None:
                self.tell(event, id, "failed", name, error=reason, keep=keep)
            else:
                self.refuse(event, self._pause, reason)

        self._bus.put(f"{event.topic}.DLQ", _Told(letter_id, letter, then))

    def refuse(self, event: Event[Any], delay: float, reason: str) -> None:
        """Again later. If its lease was lost meanwhile, another copy is here or elsewhere already."""
        self._release(event, retrying=event.refuse(delay, reason))

    def report(self, context: TaskContext, value: Any) -> None:
        """Progress, perhaps from a thread. What JSON cannot say is raised where it was reported."""
        told = self._record(context.id, encode_record("progress", context.name, context.attempt, value))
        self._bus.event_loop.call_soon_threadsafe(self._bus.put, self._results, told)

    def _settle(self, event: Event[Any]) -> None:
        event.accept()
        self._release(event)

    def _put(self, id: str, record: dict[str, Any], then: Then) -> None:
        self._bus.put(self._results, self._record(id, record, then))

    def _record(self, id: str, record: dict[str, Any], then: Then = lambda _: None) -> _Told:
        record_id = self._bus.new_id()
        return _Told(record_id, encode_event(record_id, record, id, None), then)
