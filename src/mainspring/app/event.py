"""Event: what a consumer of the program gets.

It is under lease while the function runs. Returning acknowledges it; raising refuses it, with the error's text as the
reason. What the function says through the event (`publish`, `start_run`) is kept until it returns and then stored in
the same commit as the acknowledgement: after a crash all of it happened or none of it, and in the second case the event
comes again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from mainspring.durations import Duration, duration_ms
from mainspring.errors import MainspringError
from mainspring.loop import with_blocking_verbs
from mainspring.message import encode_bytes
from mainspring.telemetry import CORRELATION

T = TypeVar("T")
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class NoConnection(MainspringError, code="no_connection"):
    """The consumer does not work in a transaction."""


class Work(Protocol):
    """What an event needs of the node."""

    def prepare_run(self, event: Event[Any], program: Any, args: tuple[Any, ...], id: str | None) -> str:
        """Check a run that begins with the acknowledgement; its id."""

    def prepare_publish(
        self,
        event: Event[Any],
        topic: str,
        payload: bytes,
        key: str | None,
        headers: dict[str, str],
        id: str | None,
        ttl: Duration,
    ) -> str:
        """Check an event that is stored with the acknowledgement; its id."""

    def ask(self, event: Event[Any], kind: str, type: str, data: Any, timeout: Duration | None) -> Awaitable[Any]: ...

    def emit(self, event: Event[Any], type: str, data: Any) -> None: ...


class Event(Generic[T]):
    """One delivery. `attempt` is 1 the first time this group gets the event.

    Good for the time the function runs; afterwards it is settled and says nothing any more.
    """

    __slots__ = (
        "_work",
        "attempt",
        "group",
        "headers",
        "id",
        "key",
        "offset",
        "partition",
        "payload",
        "refusal",
        "topic",
        "ts",
    )

    def __init__(
        self,
        work: Work,
        *,
        topic: str,
        group: str,
        partition: int,
        offset: int,
        attempt: int,
        id: str,
        ts: int,
        key: str | None,
        headers: Mapping[str, str] | None,
        payload: T,
    ) -> None:
        self._work = work
        self.topic: str = topic
        self.group: str = group
        self.partition: int = partition
        self.offset: int = offset
        self.attempt: int = attempt
        self.id: str = id
        self.ts: int = ts  # when it was stored: epoch ms
        self.key: str | None = key
        self.headers: Mapping[str, str] = headers or NO_HEADERS
        self.payload: T = payload
        self.refusal: tuple[str, int | None] | None = None  # why, and after how many ms it comes again; None: never

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        ttl: Duration = 0,
    ) -> str:
        """Publish an event together with the acknowledgement of this one; gives its id.

        When `ttl` has passed (0: never), groups that have not handled it do not get it any more.
        Nobody sees it before the function has returned, and nobody ever when the function fails.
        """
        return self._work.prepare_publish(self, topic, encode_bytes(payload), key, dict(headers or {}), id, ttl)

    def start_run(self, program: Callable[..., Any] | str, *args: Any, id: str | None = None) -> str:
        """Start a durable run together with the acknowledgement of this event; gives the run's id.

        Without an `id` it is made from the event's place, so that each event starts its run exactly once. A run that
        has the given id already is left as it is.
        """
        return self._work.prepare_run(self, program, args, id)

    async def ask(self, kind: str, type: str, data: Any = None, *, timeout: Duration | None = None) -> Any:
        """Send a command or a query and wait for the reply's data; raises `Fail` with the error's code."""
        return await self._work.ask(self, kind, type, data, timeout)

    def emit(self, type: str, data: Any = None) -> None:
        """Say at once that something happened; kept nowhere."""
        self._work.emit(self, type, data)

    def nack(self, reason: str = "", *, delay: Duration = 0) -> None:
        """Refuse the event when the function returns: it comes again, after `delay` at the earliest."""
        self.refusal = (reason, duration_ms(delay))

    def reject(self, reason: str) -> None:
        """Give the event up when the function returns: it is a dead letter at once. `raise Reject(reason)` ends it."""
        self.refusal = (reason, None)

    @property
    def connection(self) -> Any:
        """For a consumer with `transaction=True`: a connection to the log's database, inside a transaction.

        What is done on it is committed with the acknowledgement of this event, or not at all.
        """
        raise NoConnection(
            f"the consumer of {self.topic!r} as {self.group} has no connection",
            remedy="declare it: @app.consumer(..., transaction=True)",
        )

    @property
    def correlation(self) -> str | None:
        """The correlation of what caused this event; the same through a whole causation tree."""
        return self.headers.get(CORRELATION)

    def __repr__(self) -> str:
        return f"Event({self.topic!r}, {self.partition}:{self.offset}, id={self.id!r}, attempt={self.attempt})"


class TransactionEvent(Event[T]):
    """What a consumer with `transaction=True` is given."""

    __slots__ = ("given_connection",)

    given_connection: Any

    @property
    def connection(self) -> Any:
        return self.given_connection


if TYPE_CHECKING:

    class BlockingEvent(Event[T]):
        """What a plain function is given: its verbs wait in the function's thread."""

        def ask(self, *args: Any, **options: Any) -> Any: ...

else:
    BlockingEvent = with_blocking_verbs(Event)
