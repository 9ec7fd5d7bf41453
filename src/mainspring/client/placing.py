"""What becomes of a published event: its place, and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mainspring.client.errors import ClientError
from mainspring.client.publishing import Outgoing


class Place(int):
    """Where an event went: a number, its offset, that also knows topic, partition and id. 0: it is delayed."""

    topic: str
    partition: int
    id: str

    def __new__(cls, offset: int, topic: str, partition: int, id: str) -> Place:
        place = int.__new__(cls, offset)
        place.topic = topic
        place.partition = partition
        place.id = id
        return place

    @property
    def offset(self) -> int:
        """The offset as a plain number; 0 while the event is delayed."""
        return int(self)

    def __repr__(self) -> str:
        return f"Place({self.topic!r}, {self.partition}:{int(self)}, id={self.id!r})"


@dataclass(frozen=True, slots=True)
class New:
    """An event for `publish_many` that is more than a payload."""

    payload: Any
    key: str | None = None
    headers: dict[str, str] | None = None
    id: str | None = None
    delay: float = 0.0


class Awaited(Outgoing):
    """One event, one waiting `publish`."""

    __slots__ = ("future", "topic")

    def __init__(
        self, id: str, event: bytes, future: asyncio.Future[Place], topic: str, expect: int | None = None
    ) -> None:
        super().__init__(id, event, expect)
        self.future: asyncio.Future[Place] = future
        self.topic: str = topic

    def placed(self, partition: int, offset: int) -> None:
        if not self.future.done():
            self.future.set_result(Place(offset, self.topic, partition, self.id))

    def failed(self, error: ClientError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    @property
    def abandoned(self) -> bool:
        return self.future.done()


class Tally:
    """Counts the events of one `publish_many`, without a future for each."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        total: int | None,
        progress: Callable[[int, int | None], object] | None,
    ) -> None:
        self.sent = 0
        self.stored: int = 0
        self.lost: int = 0
        self.error: ClientError | None = None
        self._loop = loop
        self._total = total
        self._progress = progress
        self._said_soon = False
        self._changed: asyncio.Future[None] | None = None

    def placed(self) -> None:
        """One is durable."""
        self.stored += 1
        if self._progress is not None and not self._said_soon:
            self._said_soon = True
            self._loop.call_soon(self._say)
        if self._changed is not None:
            self._look()

    def failed(self, error: ClientError) -> None:
        """One is not."""
        self.lost += 1
        if self.error is None:
            self.error = error
        self._look()

    def _look(self) -> None:
        if self._changed is not None and self.stored + self.lost >= self.sent and not self._changed.done():
            self._changed.set_result(None)

    def _say(self) -> None:
        """Once per batch that became durable, not once per event."""
        self._said_soon = False
        if self._progress is not None:
            self._progress(self.stored, self._total)

    async def finished(self) -> int:
        """Wait for the rest; how many are durable. Raises the first error."""
        if self.stored + self.lost < self.sent:
            self._changed = self._loop.create_future()
            await self._changed
        if self._said_soon:
            self._say()
        if self.error is not None:
            raise self.error
        return self.stored


class Counted(Outgoing):
    """One event of many."""

    __slots__ = ("_tally",)

    def __init__(self, id: str, event: bytes, tally: Tally) -> None:
        self.id = id  # without `super`: there may be millions of these
        self.event = event
        self.expect: int | None = None
        self.sent_ms = -1
        self.alone = False
        self._tally = tally

    def placed(self, partition: int, offset: int) -> None:
        self._tally.placed()

    def failed(self, error: ClientError) -> None:
        self._tally.failed(error)
