"""Trying again while the server is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pymongo.errors import PyMongoError

from mainspring.log.engines.mongo.address import Address
from mainspring.log.engines.mongo.faults import may_pass, translated
from mainspring.loop import Clock

T = TypeVar("T")

_AGAIN_MS: Final = 100


class Patience:
    """For as long as the address says. Only for what may be done twice."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.ms: int = address.patience_ms
        self._shown = address.shown
        self._clock = clock

    def deadline_ms(self) -> int:
        return self._clock.now_ms() + self.ms

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives. Raises `LogUnavailable`, or `LogAccess`."""
        deadline = self.deadline_ms()
        while True:
            try:
                return await work()
            except PyMongoError as error:
                if not may_pass(error) or self._clock.now_ms() >= deadline:
                    raise translated(error, self._shown) from error
            await asyncio.sleep(_AGAIN_MS / 1000)
