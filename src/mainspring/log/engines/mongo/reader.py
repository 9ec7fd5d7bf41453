"""Answering from the collections.

The caller gives the moment it asks about, and has made sure that everything up to it is in place. A reader never looks
beyond the tail of that moment: behind it another node may just be putting events in place, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mainspring.log.contract import (
    Bounds,
    DamagedEvent,
    Mark,
    Outline,
    Place,
    Record,
    Remove,
    StoredEvent,
    end_of_prefix,
    event_bytes,
)
from mainspring.log.engines.mongo.documents import (
    COUNTERS,
    EVENTS,
    GROUP_OFFSETS,
    GROUPS_SPACE,
    MARKS,
    OUTLINE_FIELDS,
    RECORDS,
    TOPIC_CONFIGS,
    TOPICS_SPACE,
    PartitionStanding,
    mark_id,
    mark_of,
    outline_from,
    record_collections,
    record_of,
    record_place,
    standing_of,
    stored_event,
)

PAGE: Final = 1_000
_THERE: Final = {"removed": {"$ne": True}}
_LIVE: Final = {"deleted": {"$ne": True}}


class MongoReader:
    def __init__(self, database: Any) -> None:
        self._database = database
        self._events = database[EVENTS]

    # -- events

    def _range(self, start: int, at: PartitionStanding, **more: Any) -> dict[str, Any]:
        offsets = {"$gte": max(start, at.below, 1), "$lte": at.tail}
        return {"topic": at.topic, "partition": at.partition, "offset": offsets, **more, **_THERE}

    async def events(self, start: int, limit: int, max_bytes: int, at: PartitionStanding) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        room = max_bytes
        cursor = self._events.find(self._range(start, at)).sort("offset", 1).limit(limit)
        async with cursor:
            async for document in cursor:
                try:
                    event = stored_event(document)
                except DamagedEvent:
                    if found:
                        break
                    raise
                room -= event_bytes(event)
                if room < 0 and found:
                    break
                found.append(event)
        return found

    async def outline(self, start: int, limit: int, at: PartitionStanding) -> list[Outline]:
        cursor = self._events.find(self._range(start, at), OUTLINE_FIELDS)
        return [outline_from(document) async for document in cursor.sort("offset", 1).limit(limit)]

    async def bounds(self, at: PartitionStanding) -> Bounds:
        head = await self._first(self._range(1, at)) or at.tail + 1
        return Bounds(at.partition, head, at.tail, at.events, at.bytes)

    async def offset_at(self, ts: int, at: PartitionStanding) -> int:
        return await self._first(self._range(1, at, ts={"$gte": ts})) or at.tail + 1

    async def _first(self, query: dict[str, Any]) -> int | None:
        documents = [d async for d in self._events.find(query, {"offset": 1}).sort("offset", 1).limit(1)]
        return documents[0]["offset"] if documents else None

    async def hit_by(self, removals: Iterable[Remove], at: PartitionStanding) -> dict[int, int]:
        """Offset and size of the events that these removals may reach."""
        below = max((remove.below for remove in removals), default=0)
        offsets = sorted({o for remove in removals for o in remove.offsets if below <= o <= at.tail})
        sizes: dict[int, int] = {}
        ranges: list[dict[str, Any]] = []
        if below > at.below:
            ranges.append({"$gte": max(at.below, 1), "$lt": min(below, at.tail + 1)})
        ranges += [{"$in": offsets[i : i + 1000]} for i in range(0, len(offsets), 1000)]
        for wanted in ranges:
            query = {"topic": at.topic, "partition": at.partition, "offset": wanted, **_THERE}
            async for document in self._events.find(query, {"offset": 1, "size": 1}):
                sizes[document["offset"]] = document["size"]
        return sizes

    async def standings(self) -> list[tuple[PartitionStanding, int]]:
        """Every partition, and the number of the entry that changed it last."""
        return [(standing_of(document), document["commit"]) async for document in self._database[COUNTERS].find({})]

    # -- records

    async def record(self, space: str, key: str) -> Record | None:
        collection, id = record_place(space, key)
        document = await self._database[collection].find_one({"_id": id})
        return None if document is None or document.get("deleted") else record_of(document)

    async def page(self, space: str, prefix: str, after: str) -> list[dict[str, Any]]:
        """The next documents of a scan, by key."""
        keys: dict[str, Any] = {"$gt": after}
        if prefix:
            keys |= {"$gte": prefix}
            if (end := end_of_prefix(prefix)) is not None:
                keys |= {"$lt": end}
        found: list[dict[str, Any]] = []
        for name in record_collections(space):
            query = {"space": space, "key": keys, **_LIVE}
            found += [d async for d in self._database[name].find(query).sort("key", 1).limit(PAGE)]
        found.sort(key=lambda document: document["key"].encode())
        return found[:PAGE]

    async def spaces(self) -> list[str]:
        found = set(await self._database[RECORDS].distinct("space", _LIVE))
        for name, space in ((GROUP_OFFSETS, GROUPS_SPACE), (TOPIC_CONFIGS, TOPICS_SPACE)):
            if await self._database[name].find_one(_LIVE, {"_id": 1}) is not None:
                found.add(space)
        return sorted(found)

    async def versions(self, places: Iterable[Place]) -> dict[Place, int]:
        """Of those that exist."""
        by_collection: dict[str, list[str]] = {}
        for space, key in places:
            collection, id = record_place(space, key)
            by_collection.setdefault(collection, []).append(id)
        found: dict[Place, int] = {}
        fields = {"space": 1, "key": 1, "version": 1}
        for collection, ids in by_collection.items():
            for query in _by_ids(ids):
                async for document in self._database[collection].find({**query, **_LIVE}, fields):
                    found[document["space"], document["key"]] = document["version"]
        return found

    # -- marks

    async def marks(self, places: Iterable[Place]) -> dict[Place, Mark]:
        found: dict[Place, Mark] = {}
        for query in _by_ids([mark_id(topic, dedupe) for topic, dedupe in places]):
            async for document in self._database[MARKS].find(query):
                found[document["topic"], document["dedupe"]] = mark_of(document)
        return found

    async def mark_page(self, last: Mark | None) -> list[Mark]:
        """The next marks behind this one, by topic and text."""
        query: dict[str, Any] = {}
        if last is not None:
            same_topic = {"topic": last.topic, "dedupe": {"$gt": last.dedupe}}
            query = {"$or": [same_topic, {"topic": {"$gt": last.topic}}]}
        cursor = self._database[MARKS].find(query).sort([("topic", 1), ("dedupe", 1)]).limit(PAGE)
        return [mark_of(document) async for document in cursor]


def _by_ids(ids: list[str]) -> list[dict[str, Any]]:
    if len(ids) == 1:
        return [{"_id": ids[0]}]
    return [{"_id": {"$in": ids[at : at + 1000]}} for at in range(0, len(ids), 1000)]
