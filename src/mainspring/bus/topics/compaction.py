"""Compaction: of each key only the newest event stays.

A topic with `compact` is a table: its newest event per key is the key's value, and a `null` payload (a tombstone) says
that the key is gone. In the background, older events of a key are removed, and tombstones once every reader had time to
see them (`tombstoneMs`). Events without a key are left alone. Offsets stay as they are; the gaps are skipped by
readers.

A round goes over a partition twice: first over what came since the last round, to learn the newest offset of each key
in it (so many keys at a time that memory stays bounded), then over everything before, removing what is older. Each
removal is a batch of its own and says nothing about the next: a node that dies in between has removed less, and nothing
wrong.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.bus.names import SEPARATOR
from mainspring.bus.topics.topic import Topic
from mainspring.cluster import Role
from mainspring.log import Batch, Bounds, Log
from mainspring.loop import Clock

SPACE: Final = "compaction"
PAGE: Final = 1_000
MAX_KEYS: Final = 200_000

_encode = msgspec.json.Encoder().encode


class _Progress(msgspec.Struct, frozen=True, rename="camel"):
    """`clean`: below this offset no key has two events. `tombstone_ts`: the oldest tombstone still kept, or 0."""

    clean: int = 1
    tombstone_ts: int = 0


_decode = msgspec.json.Decoder(_Progress).decode


class Compaction:
    """One round over one topic at a time; `round` is called by the bus's housekeeping."""

    def __init__(self, log: Log, clock: Clock, role: Role) -> None:
        """`role`: who has it may write."""
        self._role = role
        self._log = log
        self._clock = clock

    async def round(self, topic: Topic) -> None:
        if not topic.config.compact:
            return
        for bounds in await self._log.bounds(topic.name):
            key = f"{topic.name}{SEPARATOR}{bounds.partition:06d}"
            record = await self._log.get(SPACE, key)
            progress = _Progress() if record is None else _decode(record.value)
            while (following := await self._pass(topic, bounds, progress)) != progress:
                progress = following
                batch = Batch()
                self._role.guard(batch)
                batch.put(SPACE, key, _encode(progress))
                await self._log.commit(batch)

    async def _pass(self, topic: Topic, bounds: Bounds, progress: _Progress) -> _Progress:
        """Clean up to the tail, or as far as the number of keys allows."""
        expired = self._clock.wall_ms() - topic.config.tombstone_ms
        old_tombstones = 0 < progress.tombstone_ts <= expired
        if progress.clean > bounds.tail and not old_tombstones:
            return progress
        newest, end = await self._newest(topic, bounds, progress.clean)
        tombstone_ts = 0
        start = bounds.head
        while start < end:
            outlines = await self._log.outline(topic.name, bounds.partition, start, PAGE)
            outlines = [outline for outline in outlines if outline.offset < end]
            if not outlines:
                break
            start = outlines[-1].offset + 1
            removed = []
            for outline in outlines:
                if outline.key is None:
                    continue
                if outline.offset < newest.get(outline.key, 0) or (outline.tombstone and outline.ts <= expired):
                    removed.append(outline.offset)
                elif outline.tombstone:
                    tombstone_ts = min(tombstone_ts or outline.ts, outline.ts)
            if removed:
                batch = Batch()
                self._role.guard(batch)
                batch.remove(topic.name, bounds.partition, offsets=tuple(removed))
                await self._log.commit(batch)
        return _Progress(end, tombstone_ts)

    async def _newest(self, topic: Topic, bounds: Bounds, start: int) -> tuple[dict[str, int], int]:
        """The newest offset of each key from `start` on, and the offset behind the last one looked at."""
        newest: dict[str, int] = {}
        while start <= bounds.tail and len(newest) < MAX_KEYS:
            outlines = await self._log.outline(topic.name, bounds.partition, start, PAGE)
            for outline in outlines:
                if outline.key is not None:
                    newest[outline.key] = outline.offset
            start = outlines[-1].offset + 1 if outlines else bounds.tail + 1
        return newest, start


def read_progress(_: str, value: bytes) -> None:
    """Raise where a record does not say how far compaction has come."""
    _decode(value)
