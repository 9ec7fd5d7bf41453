"""Positions of a node that owns its log: written a few milliseconds after they changed.

However many events are acknowledged within that time, each position is stored once, and all of them share the log's
next commit with whatever is published at the time. Nobody else writes them, so a record says what is in memory and
needs no version.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mainspring.bus.groups.delivery import Delivery, Written
from mainspring.bus.groups.group import RETRY_MS, Group
from mainspring.bus.groups.position import SPACE, Position, encode_position, record_key
from mainspring.log import Batch, Receipt, Result

STORE_MS: Final = 10  # positions may be this old when the node dies; what was acknowledged then comes once more
BYTES_PER_MS: Final = 2_000  # of one position's records: thousands of delayed events must not occupy the disk
STORE_AT_MOST_MS: Final = 300


class StoringDelivery(Delivery):
    """Delivery on an embedded engine."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._dirty: dict[Position, Group] = {}
        self._store_planned = False
        self._storing = 0
        self._stored = asyncio.Event()

    def forget(self, group: Group) -> None:
        super().forget(group)
        for position in group.positions.values():
            self._dirty.pop(position, None)
            position.dirty = False

    def changed(self, group: Group, position: Position) -> None:
        if position.dirty:
            return
        position.dirty = True
        self._dirty[position] = group
        if not self._store_planned and not self._closed:
            self._store_planned = True
            self._loop.schedule(STORE_MS, self._store_all, False, ref=False)

    def _store_all(self, at_once: bool) -> None:
        self._store_planned = False
        now = self._clock.now_ms()
        dirty, self._dirty = self._dirty, {}
        batch = Batch()
        stored: list[tuple[Group, Position, Written]] = []
        for position, group in dirty.items():
            position.dirty = False
            if position.burying or (now < position.store_after and not at_once):
                self.changed(group, position)  # a burial's batch holds the record; a second one could overtake it
            else:
                stored.append((group, position, self.put_position(batch, group, position)))
        if stored:
            self._submit(batch, stored)

    def put_position(
        self, batch: Batch, group: Group, position: Position, without: frozenset[int] = frozenset()
    ) -> Written:
        wall, now = self._clock.wall_ms(), self._clock.now_ms()
        record = position.record(group.topic, group.name, wall, wall - now, without)
        text = encode_position(record)
        position.store_after = now + min(len(text) // BYTES_PER_MS, STORE_AT_MOST_MS)
        batch.put(SPACE, record_key(group.topic, group.name, position.partition), text)
        return Written(position.settled(without))

    def _submit(self, batch: Batch, stored: list[tuple[Group, Position, Written]]) -> None:
        def decided(result: Result) -> None:
            self._storing -= 1
            for group, position, written in stored:
                if isinstance(result, Receipt):
                    position.durable = max(position.durable, written.settled)
                    position.stored = True
                else:
                    self._loop.schedule(RETRY_MS, lambda pair: self.changed(*pair), (group, position), ref=False)
            self._stored.set()

        self._storing += 1
        self._log.submit(batch, decided)

    async def flush(self) -> None:
        """Store every changed position now, and wait until it is."""
        while self._dirty or self._storing:
            if self._dirty:
                self._store_all(True)
            if self._storing:
                self._stored.clear()
                await self._stored.wait()
            elif self._dirty:  # only positions with a burial under way are left
                await asyncio.sleep(0.001)
