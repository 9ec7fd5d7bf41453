"""The log in this process's memory: for tests, for trying things out, and as the plainest reading of the contract.

Everything lives in dictionaries and sorted lists, so what a method does can be checked by eye; the other engines must
behave exactly like it. A batch is applied operation by operation, and undone in reverse when an expectation fails.

Nothing survives the process. An acknowledgement of this engine means "in memory".

`SharedMemory` is one such log for several nodes of this process: what tests of many nodes run on when no server is the
point. Each of its engines behaves like one on its own machine. It can be cut off (commits fail, changes wait) and
joined again, and it can be made to lose the answer of a commit that was stored, which is what networks do.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final

from mainspring.errors import SettingError
from mainspring.log.contract import (
    ABSENT,
    Append,
    Batch,
    BatchPlanner,
    Bounds,
    Change,
    Durability,
    EngineSetup,
    InDoubt,
    Inspection,
    KeptRecord,
    KeptTail,
    LogUnavailable,
    Mark,
    Outline,
    ReadThrough,
    Receipt,
    Record,
    Refused,
    Remove,
    Restorable,
    Result,
    StoredEvent,
    Unmarked,
    Watched,
    change_of,
    event_bytes,
    not_storable,
    outline_of,
    seen_before,
    tail_conflict,
    within_bytes,
)


@dataclass(slots=True, eq=False)
class _Partition:
    """Events ascending by offset."""

    events: list[StoredEvent] = field(default_factory=list)
    tail: int = 0
    bytes: int = 0

    def add(self, event: StoredEvent) -> None:
        self.events.append(event)
        self.tail = event.offset
        self.bytes += event_bytes(event)

    def take_back(self) -> None:
        self.bytes -= event_bytes(self.events.pop())
        self.tail -= 1

    def keep(self, events: list[StoredEvent]) -> None:
        self.events = events
        self.bytes = sum(map(event_bytes, events))

    def bounds(self, partition: int) -> Bounds:
        head = self.events[0].offset if self.events else self.tail + 1
        return Bounds(partition, head, self.tail, len(self.events), self.bytes)


_offset: Final = attrgetter("offset")
_DURABILITY: Final = Durability(False, "memory: nothing survives the process")


class MemoryEngine(BatchPlanner):
    """An engine without a disk. Use it where losing everything with the process is fine."""

    name = "memory"
    takes_many = True

    def __init__(self) -> None:
        super().__init__()
        self._topics: dict[str, dict[int, _Partition]] = {}
        self._records: dict[str, dict[str, Record]] = {}
        self._marks: dict[tuple[str, str], Mark] = {}
        self._version = 0

    async def open(self) -> None:
        """Nothing to open; what was stored before a `close` is still there."""

    async def close(self) -> None:
        """Nothing to release: the data lives as long as this object."""

    async def durability(self) -> Durability:
        return _DURABILITY

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        return [self._decide(batch) for batch in batches]

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        done([self._decide(batch) for batch in batches])

    def _append(self, event: Append) -> tuple[int, int, bool]:
        if fault := not_storable(event):
            raise fault
        mark = self._marks.get((event.topic, event.dedupe)) if event.dedupe is not None else None
        if mark is not None and mark.until >= event.ts:
            return mark.partition, mark.offset, True
        partition = self._partition(event.topic, event.partition)
        if event.expect is not None and event.expect != partition.tail:
            raise tail_conflict(event, partition.tail)
        offset = partition.tail + 1
        partition.add(
            StoredEvent(
                event.topic, event.partition, offset, event.id, event.ts, event.payload, event.key, event.headers
            )
        )
        self._undo.append(partition.take_back)
        if event.dedupe is not None:
            mark = Mark(event.topic, event.dedupe, event.partition, offset, event.dedupe_until)
            self._set(self._marks, (event.topic, event.dedupe), mark)
        return event.partition, offset, False

    def _unmarked(self, unmarked: Unmarked) -> None:
        mark = self._marks.get((unmarked.topic, unmarked.dedupe))
        if mark is not None and mark.until >= unmarked.ts:
            raise seen_before(unmarked, mark.offset)

    def _partition(self, topic: str, number: int) -> _Partition:
        partition = self._topics.get(topic, {}).get(number)
        if partition is None:
            if topic not in self._topics:
                self._set(self._topics, topic, {})
            partition = _Partition()
            self._set(self._topics[topic], number, partition)
        return partition

    def _version_of(self, space: str, key: str) -> int:
        record = self._records.get(space, {}).get(key)
        return record.version if record else ABSENT

    def _write(self, space: str, key: str, value: bytes | None) -> int:
        records = self._records.setdefault(space, {})
        if value is None:
            if key in records:
                self._undo.append(partial(records.__setitem__, key, records.pop(key)))
            return ABSENT
        f"{space}{key}".encode()  # raises for lone surrogates
        self._version += 1
        self._set(records, key, Record(key, value, self._version))
        return self._version

    def _remove(self, remove: Remove) -> None:
        partition = self._topics.get(remove.topic, {}).get(remove.partition)
        if partition is None:
            return
        before = partition.events
        gone = set(remove.offsets)
        partition.keep([event for event in before if event.offset >= remove.below and event.offset not in gone])
        self._undo.append(lambda: partition.keep(before))

    async def forget_dedupe(self, now: int) -> int:
        due = [place for place, mark in self._marks.items() if mark.until < now]
        for place in due:
            del self._marks[place]
        return len(due)

    async def restore(self, items: Sequence[Restorable]) -> None:
        for item in items:
            if isinstance(item, KeptRecord):
                self._records.setdefault(item.space, {})[item.key] = Record(item.key, item.value, item.version)
                self._version = max(self._version, item.version)
            elif isinstance(item, Mark):
                self._marks[item.topic, item.dedupe] = item
            elif isinstance(item, KeptTail):
                partition = self._partition(item.topic, item.partition)
                partition.tail = max(partition.tail, item.tail)
            else:
                partition = self._partition(item.topic, item.partition)
                if item.offset <= partition.tail:
                    raise Refused(f"offset {item.offset} of {item.topic!r} is not above the tail {partition.tail}")
                partition.add(item)

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        return within_bytes(self._from(topic, partition, start, limit), max_bytes)

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        return [outline_of(event) for event in self._from(topic, partition, start, limit)]

    def _from(self, topic: str, partition: int, start: int, limit: int) -> list[StoredEvent]:
        held = self._topics.get(topic, {}).get(partition)
        if held is None:
            return []
        first = bisect_left(held.events, start, key=_offset)
        return held.events[first : first + max(0, limit)]

    async def topics(self) -> list[str]:
        return sorted(self._topics)

    async def bounds(self, topic: str) -> list[Bounds]:
        return [held.bounds(number) for number, held in sorted(self._topics.get(topic, {}).items())]

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        held = self._topics.get(topic, {}).get(partition)
        if held is None:
            return 1
        return next((event.offset for event in held.events if event.ts >= ts), held.tail + 1)

    async def get(self, space: str, key: str) -> Record | None:
        return self._records.get(space, {}).get(key)

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        records = self._records.get(space, {})
        keys = sorted(key for key in records if key.startswith(prefix))
        for key in keys[bisect_right(keys, after) :]:
            record = records.get(key)
            if record is not None:
                yield record

    async def spaces(self) -> list[str]:
        return sorted(space for space, records in self._records.items() if records)

    async def marks(self) -> AsyncIterator[Mark]:
        for _, mark in sorted(self._marks.items()):
            yield mark


class MemoryFactory:
    """The engine `memory`. See `EngineFactory`."""

    package = ""
    install = ""

    def open(self, address: str, setup: EngineSetup) -> MemoryEngine:
        return MemoryEngine()

    async def inspect(self, address: str, setup: EngineSetup) -> Inspection:
        return Inspection(place="the memory of a node", log=False, knows=1, durability=_DURABILITY)

    async def init(self, address: str, setup: EngineSetup) -> list[str]:
        raise SettingError(
            "a log in memory is made by its node and ends with it", remedy="name another engine: URL, or the setting"
        )


# -- several nodes on one log


class SharedMemory:
    """The one log; `engine()` gives each node its own door to it."""

    def __init__(self) -> None:
        self.state: MemoryEngine = MemoryEngine()
        self.engines: list[SharedMemoryEngine] = []

    def engine(self) -> SharedMemoryEngine:
        """Another engine on the same state, as another node would have it."""
        engine = SharedMemoryEngine(self)
        self.engines.append(engine)
        return engine


class SharedMemoryEngine(ReadThrough, Watched):
    """One node's engine."""

    name = "shared memory"

    def __init__(self, shared: SharedMemory) -> None:
        ReadThrough.__init__(self, shared.state)
        Watched.__init__(self)
        self._shared = shared
        self._state = shared.state
        self._unreported: deque[Change] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.cut_off: bool = False
        self.lose_answers = False  # store what comes, and answer that it is in doubt

    async def open(self) -> None:
        if self.cut_off:
            raise LogUnavailable("the log cannot be reached")
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        self._loop = None
        self._watchers.clear()
        self._unreported.clear()

    async def durability(self) -> Durability:
        return Durability(durable=False, statement="memory of this process: nothing survives it")

    def join_again(self) -> None:
        """End a cut; what was committed meanwhile is reported now."""
        self.cut_off = False
        self._report_waiting()

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        if self.cut_off:
            raise LogUnavailable("the log cannot be reached", remedy="try again")
        results = await self._state.commit(batches)
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, Receipt):
                for engine in self._shared.engines:
                    engine.committed(change_of(batch, result, own=engine is self))
        self._report_waiting()
        if self.lose_answers:
            return [InDoubt("the answer was lost") for _ in batches]
        return results

    def committed(self, change: Change) -> None:
        """A batch was committed by some node. Reported in a later turn of this node's loop, in the log's order."""
        if self._loop is not None:
            self._unreported.append(change)
            self._loop.call_soon(self._report_waiting)

    def _report_waiting(self) -> None:
        while self._unreported and not self.cut_off:
            self._report(self._unreported.popleft())

    async def forget_dedupe(self, now: int) -> int:
        return await self._state.forget_dedupe(now)

    async def restore(self, items: Sequence[Restorable]) -> None:
        await self._state.restore(items)
