"""Where two logs that began alike go apart: two replicas, or what a server has now and what a node had seen."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from mainspring.log.contract import Engine, Progress, StoredEvent, silent

_PAGE = 1_000
_OF_NODES = "system.node|"  # what nodes have on their way to each other


class Parting(msgspec.Struct, frozen=True):
    """One partition that differs from offset `offset` on, and the events that only one of the two logs holds."""

    topic: str
    partition: int
    offset: int
    only_left: list[StoredEvent]
    only_right: list[StoredEvent]


async def compare_logs(left: Engine, right: Engine, progress: Progress = silent) -> AsyncIterator[Parting]:
    """The partitions in which the logs differ. An event is known by its id: one that has moved is in both.

    Events below the head of either log are not looked at: retention may have run on one side only.
    """
    for number, topic in enumerate(sorted({*await left.topics(), *await right.topics()}), 1):
        progress("topics", number, 0)
        if topic.startswith(_OF_NODES):
            continue
        heads: dict[int, int] = {}
        for engine in (left, right):
            for bounds in await engine.bounds(topic):
                heads[bounds.partition] = max(bounds.head, heads.get(bounds.partition, 1))
        for partition, head in sorted(heads.items()):
            found = await _compare_partition(left, right, topic, partition, head)
            if found is not None:
                yield found


async def _compare_partition(left: Engine, right: Engine, topic: str, partition: int, start: int) -> Parting | None:
    while True:
        ours = await left.read(topic, partition, start, _PAGE)
        theirs = await right.read(topic, partition, start, _PAGE)
        same = 0
        for one, other in zip(ours, theirs, strict=False):
            if one != other:
                break
            same += 1
        if same < max(len(ours), len(theirs)):
            first = min(page[same].offset for page in (ours, theirs) if len(page) > same)
            return await _parting(left, right, topic, partition, first)
        if not ours:
            return None
        start = ours[-1].offset + 1


async def _parting(left: Engine, right: Engine, topic: str, partition: int, first: int) -> Parting:
    ours, theirs = [await _rest(engine, topic, partition, first) for engine in (left, right)]
    only_left = [event for id, event in ours.items() if id not in theirs]
    only_right = [event for id, event in theirs.items() if id not in ours]
    return Parting(topic, partition, first, only_left, only_right)


async def _rest(engine: Engine, topic: str, partition: int, start: int) -> dict[str, StoredEvent]:
    events: dict[str, StoredEvent] = {}
    while page := await engine.read(topic, partition, start, _PAGE):
        events |= {event.id: event for event in page}
        start = page[-1].offset + 1
    return events
