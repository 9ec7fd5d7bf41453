"""Waiting for the log from a coroutine: a ticket that is a future, and one that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainspring.bus.publishing.publisher import Placed
from mainspring.errors import MainspringError


class FutureTicket:
    """`await ticket.placed` gives where the events went, or raises."""

    def __init__(self) -> None:
        self.placed: asyncio.Future[Sequence[Placed]] = asyncio.get_running_loop().create_future()

    def stored(self, placed: Sequence[Placed]) -> None:
        if not self.placed.done():
            self.placed.set_result(placed)

    def failed(self, error: MainspringError) -> None:
        if not self.placed.done():
            self.placed.set_exception(error)


class Settling:
    """Many submissions, waited for together. `wait` raises the first error that is not to be ignored."""

    def __init__(self) -> None:
        self._open = 0
        self._error: MainspringError | None = None
        self._done = asyncio.Event()

    def ticket(self, ignore: type[MainspringError] | tuple[type[MainspringError], ...] = ()) -> _Counted:
        self._open += 1
        return _Counted(self, ignore)

    def settled(self, error: MainspringError | None) -> None:
        self._open -= 1
        self._error = self._error or error
        self._done.set()

    async def wait(self) -> None:
        while self._open:
            self._done.clear()
            await self._done.wait()
        if self._error is not None:
            raise self._error


class _Counted:
    def __init__(self, settling: Settling, ignore: type[MainspringError] | tuple[type[MainspringError], ...]) -> None:
        self._settling = settling
        self._ignore = ignore

    def stored(self, placed: Sequence[Placed]) -> None:
        self._settling.settled(None)

    def failed(self, error: MainspringError) -> None:
        self._settling.settled(None if isinstance(error, self._ignore) else error)
