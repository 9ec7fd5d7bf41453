"""Putting journal entries in place: from decided effects to the documents that readers look at.

All of it can be done twice, and by two nodes at once. Events are inserted under the `_id` of their offset. Everything
that changes is replaced only by what is newer (records by version; counters and marks by the number of the entry), so a
node that was stopped in the middle and goes on an hour later changes nothing that was written since. What is deleted
leaves a document behind for the same reason; `tidy` removes those after an hour.

Events come first and counters afterwards: who finds a counter finds the events it counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from bson.errors import BSONError
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError

from mainspring.log.engines.mongo.documents import (
    Document,
    counter_document,
    event_document,
    mark_document,
    record_document,
    removed_document,
    stone_document,
)
from mainspring.log.engines.mongo.effects import Entry, Event, Removed
from mainspring.log.engines.mongo.faults import is_duplicate
from mainspring.log.engines.mongo.schema import (
    COUNTERS,
    EVENTS,
    GROUP_OFFSETS,
    MARKS,
    RECORDS,
    STONES,
    TOPIC_CONFIGS,
    event_id,
)

_BAD_VALUE: Final = frozenset((2, 9, 16, 40, 51, 52, 55, 56, 57))  # bad value, not parsed, bad names
_MOST_TOGETHER: Final = 1_024  # events and records; more would hold up the next commits on some servers
_MOST_FAMILIAR: Final = 50_000
_MOST_STONES: Final = 1_000  # deleted together


class Applier:
    """`step` is told the name of each write before it happens; tests stop the process there."""

    def __init__(self, database: Any, step: Callable[[str], object]) -> None:
        self._database = database
        self._events = database[EVENTS]
        self._step = step
        self._familiar: dict[tuple[str, str], None] = {}  # documents that exist: replacing them is tried first

    async def apply(self, entries: Sequence[Entry]) -> None:
        """Put these in place, in their order; they follow each other in the journal."""
        await self._insert_events(entries)
        for entry in entries:
            for effects in entry.body.batches:
                for removed in effects.removed:
                    await self._remove(removed, entry)
        records: dict[str, dict[str, Document]] = {RECORDS: {}, GROUP_OFFSETS: {}, TOPIC_CONFIGS: {}}
        marks: dict[str, Document] = {}
        counters: dict[str, Document] = {}
        for entry in entries:
            for effects in entry.body.batches:
                for record in effects.records:
                    collection, document = record_document(record, entry.number, entry.at)
                    records[collection][document["_id"]] = document
                for mark in effects.marks:
                    document = mark_document(mark, entry.number)
                    marks[document["_id"]] = document
            for standing in entry.body.standings:
                document = counter_document(standing, entry.number)
                counters[document["_id"]] = document
        await asyncio.gather(
            self._store(COUNTERS, counters, "commit"),
            self._store(MARKS, marks, "commit"),
            *(self._store(collection, documents, "version") for collection, documents in records.items()),
        )

    # -- events

    async def _insert_events(self, entries: Sequence[Entry]) -> None:
        events = [event for entry in entries for effects in entry.body.batches for event in effects.events]
        if not events:
            return
        self._step("events")
        refused = await self._insert_with_values(events)
        if refused:
            await _insert_missing(self._events, [event_document(event, values=False) for event in refused])

    async def _insert_with_values(self, events: list[Event]) -> list[Event]:
        """Insert those whose place is free; the events that the server refuses for what is in them."""
        try:
            await _insert_missing(self._events, [event_document(event) for event in events])
        except BulkWriteError as error:
            failures: Any = (error.details or {}).get("writeErrors", [])
            bad = [each for each in failures if not is_duplicate(each)]
            if not bad or not all(each.get("code") in _BAD_VALUE for each in bad):
                raise
            return [events[each["index"]] for each in bad]
        except (BSONError, OverflowError):  # the driver refuses one, and sends none
            return events
        return []

    async def _remove(self, removed: Removed, entry: Entry) -> None:
        self._step("removals")
        place = {"topic": removed.topic, "partition": removed.partition}
        if removed.below:
            await self._events.delete_many({**place, "offset": {"$lt": removed.below}})
        stones = {
            event_id(removed.topic, removed.partition, offset): removed_document(
                removed.topic, removed.partition, offset, entry.number, entry.at
            )
            for offset in removed.offsets
        }
        await self._note_stones(EVENTS, list(stones.values()))
        left = list(stones)
        while left:
            await self._events.delete_many({"_id": {"$in": left}, "removed": {"$ne": True}})
            taken = await _insert_missing(self._events, [stones[id] for id in left])
            # A place may be taken by the same stone, or by the event, which a slower node has just put there again.
            again = self._events.find({"_id": {"$in": list(taken)}, "removed": {"$ne": True}}, {"_id": 1})
            left = [document["_id"] async for document in again] if taken else []

    # -- everything that changes

    async def _store(self, name: str, documents: dict[str, Document], order: str) -> None:
        """The newest wins. `order` is the field that says which is newer."""
        if not documents:
            return
        self._step(name)
        collection = self._database[name]
        await self._clear_deleted(collection, [each for each in documents.values() if each.get("deleted")])
        known: list[Document] = []
        new: list[Document] = []
        for id, document in documents.items():
            familiar = (name, id) in self._familiar and not document.get("deleted")
            (known if familiar else new).append(document)
        if known and not await _replace_older(collection, known, order):
            new += known  # at least one is gone or newer: inserting finds out which
        if new:
            taken = await _insert_missing(collection, new)
            await _replace_older(collection, [document for document in new if document["_id"] in taken], order)
        self._remember(name, documents)

    async def _clear_deleted(self, collection: Any, stones: list[Document]) -> None:
        """Make room for what deleted records leave behind: for readers, nothing and a stone are the same."""
        if stones:
            await self._note_stones(collection.name, stones)
            newest = max(stone["version"] for stone in stones)
            ids = [stone["_id"] for stone in stones]
            await collection.delete_many({"_id": {"$in": ids}, "version": {"$lt": newest}})

    def _remember(self, name: str, ids: Iterable[str]) -> None:
        for id in ids:
            self._familiar[name, id] = None
        if len(self._familiar) > _MOST_FAMILIAR:
            for place in list(self._familiar)[: _MOST_FAMILIAR // 2]:
                del self._familiar[place]

    # -- what was left behind

    async def _note_stones(self, name: str, stones: list[Document]) -> None:
        if stones:
            notes = [stone_document(name, stone["_id"], stone["commit"], stone["at"]) for stone in stones]
            await _insert_missing(self._database[STONES], notes)

    async def tidy(self, commit: int, before_ms: int) -> None:
        """Delete what deletes of long ago have left: of entries up to `commit`, and whatever is older than a time."""
        self._step("tidy")
        long_ago = {"$or": [{"commit": {"$lte": commit}}, {"at": {"$lt": before_ms}}]}
        while notes := [note async for note in self._database[STONES].find(long_ago).limit(_MOST_STONES)]:
            for name in {note["collection"] for note in notes}:
                ids = [note["id"] for note in notes if note["collection"] == name]
                left_behind = {"$or": [{"removed": True}, {"deleted": True}]}
                await self._database[name].delete_many({"_id": {"$in": ids}, "$and": [left_behind, long_ago]})
            await self._database[STONES].delete_many({"_id": {"$in": [note["_id"] for note in notes]}})


def first_run(entries: Iterable[Entry]) -> list[Entry]:
    """The first entries that may be put in place together; one with removals stands alone: events come first."""
    found: list[Entry] = []
    size = 0
    for entry in entries:
        alone = any(effects.removed for effects in entry.body.batches)
        size += sum(len(effects.events) + len(effects.records) for effects in entry.body.batches)
        if found and (alone or size > _MOST_TOGETHER):
            break
        found.append(entry)
        if alone:
            break
    return found


async def _insert_missing(collection: Any, documents: list[Document]) -> set[str]:
    """Insert those whose place is free; the `_id`s of the others."""
    try:
        await collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        details: Any = error.details or {}
        failures = details.get("writeErrors", [])
        if details.get("writeConcernErrors") or not all(map(is_duplicate, failures)):
            raise
        return {documents[failure["index"]]["_id"] for failure in failures}
    return set()


async def _replace_older(collection: Any, documents: list[Document], order: str) -> bool:
    """Replace those that are older; whether all were."""
    if not documents:
        return True
    requests = [ReplaceOne({"_id": each["_id"], order: {"$lt": each[order]}}, each) for each in documents]
    result = await collection.bulk_write(requests, ordered=False)
    return bool(result.matched_count == len(documents))
