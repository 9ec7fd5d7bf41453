"""Cancellations: `<queue>.control`, read from its beginning by every worker before it takes its first task.

So a task that was cancelled while no worker ran is never started. While a worker runs it follows the topic and hears of
each cancellation at once. Nothing is acknowledged and no group is left behind: each worker reads for itself.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mainspring.client.frames import Envelope

if TYPE_CHECKING:
    from mainspring.client.client import Client

REMEMBERED: Final = 100_000


class Cancellations:
    """Ids of cancelled tasks; `on_cancel` hears of new ones."""

    def __init__(self, bus: Client, topic: str, on_cancel: Callable[[str], None]) -> None:
        self._bus = bus
        self._topic = topic
        self._on_cancel = on_cancel
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    async def load(self) -> asyncio.Task[None]:
        """Everything cancelled so far; then a task that follows."""
        cursor = await self._bus.insist(self._read)
        return self._bus.run(self._follow(cursor), "cancellations")

    async def _read(self) -> str:
        cursor = await self._bus.http.last_cursor(self._topic)
        async for page in self._bus.http.read(self._topic, params={}):
            for envelope in page:
                self._take(envelope)
        return cursor

    async def _follow(self, cursor: str) -> None:
        async for envelope in self._bus.envelopes(self._topic, {"cursor": cursor}):
            self._take(envelope)

    def _take(self, envelope: Envelope) -> None:
        if envelope.key is None:
            return
        self._ids[envelope.key] = None
        if len(self._ids) > REMEMBERED:
            self._ids.popitem(last=False)
        self._on_cancel(envelope.key)
