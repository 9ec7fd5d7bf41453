"""Putting journal entries in place: from decided effects to the documents that readers look at, and whose turn it is.

All of it can be done twice, and by two nodes at once. Events are inserted under the `_id` of their offset. Everything
that changes is replaced only by what is newer (records by version; counters and marks by the number of the entry), so a
node that was stopped in the middle and goes on an hour later changes nothing that was written since. What is deleted
leaves a document behind for the same reason; `tidy` removes those after an hour.

Events come first and counters afterwards: who finds a counter finds the events it counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from bson.errors import BSONError
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError, PyMongoError

from mainspring.log.contract import LogUnavailable, MissedTooMuch
from mainspring.log.engines.mongo import documents as docs
from mainspring.log.engines.mongo.connection import MongoAddress, is_duplicate
from mainspring.log.engines.mongo.documents import Document, JournalEntry, JournalRemoval, PartitionStanding
from mainspring.log.engines.mongo.journal import Journal
from mainspring.log.engines.mongo.plan import MongoLogState, MongoPartition

_BAD_VALUE: Final = frozenset((2, 9, 16, 40, 51, 52, 55, 56, 57))  # bad value, not parsed, bad names
_MOST_TOGETHER: Final = 1_024  # events and records; more would hold up the next commits on some servers
_NEWER_BY: Final = {  # of what changes: the field that says which of two documents is newer
    docs.COUNTERS: "commit",
    docs.MARKS: "commit",
    docs.RECORDS: "version",
    docs.GROUP_OFFSETS: "version",
    docs.TOPIC_CONFIGS: "version",
}
_MOST_FAMILIAR: Final = 50_000
_MOST_STONES: Final = 1_000  # deleted together


class Applier:
    """`step` gets the name of each write before it happens; tests stop the process there."""

    def __init__(self, database: Any, step: Callable[[str], object]) -> None:
        self._database = database
        self._events = database[docs.EVENTS]
        self._step = step
        self._familiar: dict[tuple[str, str], None] = {}  # documents that exist: replacing them is tried first

    async def apply(self, entries: Sequence[JournalEntry]) -> None:
        """Put these in place, in their order; they follow each other in the journal."""
        await self._insert_events(entries)
        for entry in entries:
            for effects in entry.body.batches:
                for removed in effects.removed:
                    await self._remove(removed, entry)
        changed: dict[str, dict[str, Document]] = {name: {} for name in _NEWER_BY}
        for entry in entries:
            for effects in entry.body.batches:
                for record in effects.records:
                    collection, document = docs.record_document(record, entry.number, entry.at)
                    changed[collection][document["_id"]] = document
                for mark in effects.marks:
                    document = docs.mark_document(mark, entry.number)
                    changed[docs.MARKS][document["_id"]] = document
            for standing in entry.body.standings:
                document = docs.counter_document(standing, entry.number)
                changed[docs.COUNTERS][document["_id"]] = document
        stores = [self._store(name, documents) for name, documents in changed.items() if documents]
        for failure in await asyncio.gather(*stores, return_exceptions=True):
            if failure is not None:
                raise failure  # all have ended: the next try does not get in their way

    # -- events

    async def _insert_events(self, entries: Sequence[JournalEntry]) -> None:
        events = [event for entry in entries for effects in entry.body.batches for event in effects.events]
        if not events:
            return
        self._step("events")
        try:
            await _insert_missing(self._events, [docs.event_document(event) for event in events])
            return
        except BulkWriteError as error:
            failures: Any = (error.details or {}).get("writeErrors", [])
            bad = [each for each in failures if not is_duplicate(each)]
            if not bad or not all(each.get("code") in _BAD_VALUE for each in bad):
                raise
            events = [events[each["index"]] for each in bad]  # the server refuses them for what is in them
        except (BSONError, OverflowError):
            pass  # the driver refuses one, and sends none
        await _insert_missing(self._events, [docs.event_document(event, values=False) for event in events])

    async def _remove(self, removed: JournalRemoval, entry: JournalEntry) -> None:
        self._step("removals")
        place: dict[str, Any] = {"topic": removed.topic, "partition": removed.partition}
        if removed.below:
            await self._events.delete_many({**place, "offset": {"$lt": removed.below}})
        found = [docs.removed_document(**place, offset=o, commit=entry.number, at=entry.at) for o in removed.offsets]
        stones = {document["_id"]: document for document in found}
        await self._note_stones(docs.EVENTS, found)
        left = list(stones)
        while left:
            await self._events.delete_many({"_id": {"$in": left}, "removed": {"$ne": True}})
            taken = await _insert_missing(self._events, [stones[id] for id in left])
            # A place may be taken by the same stone, or by the event, which a slower node has just put there again.
            again = self._events.find({"_id": {"$in": list(taken)}, "removed": {"$ne": True}}, {"_id": 1})
            left = [document["_id"] async for document in again] if taken else []

    # -- everything that changes

    async def _store(self, name: str, documents: dict[str, Document]) -> None:
        """The newest wins."""
        self._step(name)
        collection, order = self._database[name], _NEWER_BY[name]
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
            found = [document for document in new if document["_id"] in taken]
            await _replace_older(collection, await _not_in_place(collection, found, order), order)
        self._remember(name, documents)

    async def _clear_deleted(self, collection: Any, stones: list[Document]) -> None:
        """Make room for what deleted records leave behind: for readers, nothing and a stone are the same."""
        if stones:
            await self._note_stones(collection.name, stones)
            newest = max(stone["version"] for stone in stones)
            ids = [stone["_id"] for stone in stones]
            await collection.delete_many({"_id": {"$in": ids}, "version": {"$lt": newest}})

    def forget(self) -> None:
        """Look at what is in place before replacing it: what comes now may have been done already."""
        self._familiar.clear()

    def _remember(self, name: str, ids: Iterable[str]) -> None:
        for id in ids:
            self._familiar[name, id] = None
        if len(self._familiar) > _MOST_FAMILIAR:
            for place in list(self._familiar)[: _MOST_FAMILIAR // 2]:
                del self._familiar[place]

    # -- what was left behind

    async def _note_stones(self, name: str, stones: list[Document]) -> None:
        if stones:
            notes = [docs.stone_document(name, stone["_id"], stone["commit"], stone["at"]) for stone in stones]
            await _insert_missing(self._database[docs.STONES], notes)

    async def tidy(self, commit: int, before_ms: int) -> None:
        """Delete what deletes of long ago have left: of entries up to `commit`, and whatever is older than a time."""
        self._step("tidy")
        long_ago = {"$or": [{"commit": {"$lte": commit}}, {"at": {"$lt": before_ms}}]}
        while notes := [note async for note in self._database[docs.STONES].find(long_ago).limit(_MOST_STONES)]:
            for name in {note["collection"] for note in notes}:
                ids = [note["id"] for note in notes if note["collection"] == name]
                left_behind = {"$or": [{"removed": True}, {"deleted": True}]}
                await self._database[name].delete_many({"_id": {"$in": ids}, "$and": [left_behind, long_ago]})
            await self._database[docs.STONES].delete_many({"_id": {"$in": [note["_id"] for note in notes]}})


def first_run(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """The first entries that may be put in place together; one with removals stands alone: events come first."""
    found: list[JournalEntry] = []
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


async def _not_in_place(collection: Any, documents: list[Document], order: str) -> list[Document]:
    """Without those in whose place the same or something newer stands.

    Where work is done twice, that is nearly all of them. One look is cheap on every server, and a replacement with a
    condition is not: some look through the whole collection for each, and would not answer in time for many.
    """
    there: dict[str, Any] = {}
    for query in docs.by_ids([document["_id"] for document in documents]):
        async for found in collection.find(query, {order: 1}):
            there[found["_id"]] = found.get(order)

    def is_in_place(document: Document) -> bool:
        found = there.get(document["_id"])
        return isinstance(found, int) and found >= document[order]

    return [document for document in documents if not is_in_place(document)]


async def _replace_older(collection: Any, documents: list[Document], order: str) -> bool:
    """Replace those that are older; whether all were."""
    if not documents:
        return True
    requests = [ReplaceOne({"_id": each["_id"], order: {"$lt": each[order]}}, each) for each in documents]
    result = await collection.bulk_write(requests, ordered=False)
    return bool(result.matched_count == len(documents))


# -- whose turn it is
#
# It is the turn of the node that stored the first entry not yet in place. It takes that one and all behind it that it
# knows, its own or not, and then says how far the journal is `applied`; all others wait for that. When it does not move
# for a while, the node whose turn it is is dead or stopped, and the first that notices does its work; the work can be
# done twice. So one node at a time puts entries in place as long as nothing goes wrong, in large steps when many write,
# and a commit need not wait for it: it is decided when it is in the journal.


_MOST_WAITING: Final = 64  # entries; a commit waits for the oldest of them when there are more
_SHORTEST_MS: Final = 4
_LONGEST_MS: Final = 50
_UNAWAITED_MS: Final = 250
_LOST_MS: Final = 500
_STUCK: Final = 3  # times the usual patience is enough, also with one that shows signs of life


class Placing:
    """The entries between the journal and the collections."""

    def __init__(self, journal: Journal, log_state: MongoLogState, applier: Applier, address: MongoAddress) -> None:
        self._journal = journal
        self._node = journal.node
        self._clock = journal.clock
        self._log_state = log_state
        self._applier = applier
        self._patience_ms = address.patience_ms
        # Not all nodes in the same moment.
        self._takeover_ms = address.takeover_ms * (8 + int(journal.node[-1], 16) % 8) // 8
        self._waiting: deque[JournalEntry] = deque()
        self._more = asyncio.Event()
        self._urged = asyncio.Event()
        self._moved: set[asyncio.Event] = set()
        self._since_ms: int = self._clock.now_ms()  # since when the one whose turn it is gives no sign of life
        self._stuck_since_ms: int = self._since_ms  # and since when nothing moves, whatever the reason
        self._failed = False  # the last try: others may have done the work by now

    def add(self, entry: JournalEntry) -> None:
        if not self._waiting:
            self._begin_waiting()
        elif self._waiting[0].node == entry.node:
            self._since_ms = self._clock.now_ms()
        self._waiting.append(entry)
        self._more.set()

    async def run(self) -> None:
        pause = _SHORTEST_MS
        while True:
            if not self._waiting:
                self._more.clear()
                await self._more.wait()
                pause = _SHORTEST_MS
            asked_ms = self._clock.now_ms()
            try:
                if await self._advance():
                    pause = _SHORTEST_MS
                    continue
                longest = _LONGEST_MS if self._is_awaited() else _UNAWAITED_MS
            except (PyMongoError, LogUnavailable):
                longest = _LOST_MS
                self._failed = True
                self._begin_waiting()  # the one whose turn it is may have the same trouble
            await self._rest(max(pause, self._clock.now_ms() - asked_ms))  # a slow server is not asked more often
            pause = min(2 * pause, longest)

    async def _rest(self, pause_ms: int) -> None:
        """A pause that ends early when a caller begins to wait."""
        self._urged.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._urged.wait()

    def _is_awaited(self) -> bool:
        return bool(self._moved) or any(entry.node == self._node for entry in self._waiting)

    async def _advance(self) -> bool:
        """Bring the first ones in place, or see that they are; whether there was progress."""
        own = self._waiting[0].node == self._node
        if own and not self._failed and self._silent_ms() < self._takeover_ms // 2:
            await self._apply(first_run(self._waiting))
            return True
        asked_ms = self._clock.now_ms()
        applied, _ = await self._journal.reached("applied")
        self._failed = False
        if applied >= self._waiting[0].number:
            self._settle(applied)
            return True
        if self._clock.now_ms() - asked_ms > self._takeover_ms // 4:
            self._since_ms = self._clock.now_ms()  # the server is slow, for all nodes
        stuck = self._clock.now_ms() - self._stuck_since_ms >= _STUCK * self._takeover_ms
        if not own and not stuck and self._silent_ms() < self._takeover_ms:
            return False
        self._applier.forget()  # another node may have come far
        await self._apply(first_run(self._waiting))
        return True

    def _begin_waiting(self) -> None:
        self._since_ms = self._stuck_since_ms = self._clock.now_ms()

    def _silent_ms(self) -> int:
        return self._clock.now_ms() - self._since_ms

    async def _apply(self, run: list[JournalEntry]) -> None:
        await self._journal.history.write(partial(self._put_in_place, run))

    async def _put_in_place(self, run: list[JournalEntry]) -> None:
        try:
            await self._try_to_put_in_place(run)
        except BaseException:  # also when it is begun again because a connection is new
            self._applier.forget()
            raise

    async def _try_to_put_in_place(self, run: list[JournalEntry]) -> None:
        await self._applier.apply(run)
        applied, _ = await self._journal.reached("applied")
        if applied < run[-1].number:
            await self._journal.set_applied(run[-1].number, run[-1].body.version)
        else:
            await self._apply_again(run[0].number)
        self._settle(max(applied, run[-1].number))

    async def _apply_again(self, first: int) -> None:
        """Another node did the same work, and has perhaps gone further.

        Where the server compares and writes in one step nothing can have gone wrong. Where it does not, something newer
        may have been overwritten in between; putting everything since then in place once more mends that. What comes
        into the journal from now on cannot have been overwritten: who ran after it would never come to an end while
        others go on committing.
        """
        left: deque[JournalEntry] = deque()
        while entries := await self._journal.after(left[-1].number if left else first - 1):
            left += entries
        self._applier.forget()
        while left:
            run = first_run(left)
            await self._applier.apply(run)
            for _ in run:
                left.popleft()

    def _settle(self, applied: int) -> None:
        while self._waiting and self._waiting[0].number <= applied:
            self._log_state.settle(self._waiting.popleft())
        self._begin_waiting()
        for moved in self._moved:
            moved.set()

    # -- waiting for it

    async def room(self) -> None:
        """Wait until not too much is waiting."""
        if len(self._waiting) > _MOST_WAITING:
            await self.reached(self._waiting[-_MOST_WAITING].number)

    async def standing(self, state: MongoPartition) -> PartitionStanding:
        """How the partition stands, once the collections know that too."""
        at = state.standing
        await self.reached(state.commit)
        return at

    async def reached(self, number: int | None = None) -> None:
        """Wait until the entry of this number (None: of the newest) is in place. Raises `LogUnavailable`.

        Patience begins anew whenever entries come in place: a server that is slow is no server that is away.
        """
        if number is None:
            number = self._log_state.position
        if self._log_state.applied >= number:
            return
        moved = asyncio.Event()
        self._moved.add(moved)
        self._urged.set()
        try:
            while self._log_state.applied < number:
                moved.clear()
                async with asyncio.timeout((self._patience_ms + self._takeover_ms) / 1000):
                    await moved.wait()
        except TimeoutError:
            raise LogUnavailable(
                "what was committed last cannot be read yet: the server is away or slow", remedy="try again"
            ) from None
        finally:
            self._moved.discard(moved)


# -- deleting what is not needed any more: old entries, and what deleted records and events left behind
#
# What is old is decided by each node with its own monotonic clock, from when it had come how far in the journal; clocks
# of different nodes are not compared. Nodes that never live long enough for that would leave everything behind, so what
# deletes left behind also goes after a day by the wall clock.


_PAUSE_MS: Final = 30_000
_SHORTEST_PAUSE_MS: Final = 250
_STONES_MS: Final = 3_600_000  # longer than a broken connection can hold back a write
_DAY_MS: Final = 86_400_000


class JournalTrimmer:
    """`keep_ms` is how long entries stay for nodes that fell behind."""

    def __init__(self, journal: Journal, log_state: MongoLogState, applier: Applier, keep_ms: int) -> None:
        self._journal = journal
        self._clock = journal.clock
        self._log_state = log_state
        self._applier = applier
        self._keep_ms = keep_ms
        self._ages: deque[tuple[int, int, int]] = deque()  # monotonic ms, and the position and version of that time

    async def run(self) -> None:
        """Raises `MissedTooMuch` when other nodes deleted what this one has not seen."""
        while True:
            await self.round()
            await asyncio.sleep(min(_PAUSE_MS, max(_SHORTEST_PAUSE_MS, self._keep_ms // 4)) / 1000)

    async def round(self) -> None:
        now = self._clock.now_ms()
        self._ages.append((now, self._log_state.applied, self._log_state.version))
        try:
            await self._journal.check_position(self._log_state.position)
            await self._journal.history.write(partial(self._delete_old, now))
        except MissedTooMuch:
            raise
        except (PyMongoError, LogUnavailable):
            return  # the next round does it
        while len(self._ages) > 1 and self._ages[1][0] <= now - max(_STONES_MS, self._keep_ms):
            self._ages.popleft()

    async def _delete_old(self, now: int) -> None:
        known, stones = self._reached_by(now - self._keep_ms), self._reached_by(now - _STONES_MS)
        if known is not None and self._log_state.position > 1:
            number, version = known
            # The newest entry always stays: nodes compare it with what they have seen.
            await self._journal.purge(min(number, self._log_state.position - 1), version)
        await self._applier.tidy(stones[0] if stones else 0, self._clock.wall_ms() - _DAY_MS)

    def _reached_by(self, then_ms: int) -> tuple[int, int] | None:
        found = None
        for seen_ms, position, version in self._ages:
            if seen_ms <= then_ms and position:
                found = (position, version)
        return found
