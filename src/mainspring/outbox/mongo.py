"""The outbox and inbox in MongoDB.

A row is a document whose `_id` is the row's id: a version 7 UUID, which grows with time, so the order of ids is the
order of adding (within one process exactly, between processes as well as their clocks agree). Payload and headers are
kept as JSON text: BSON would refuse some values and change others.

MongoDB has no lock for the length of a transaction. Whose turn it is to claim is said by one document with a deadline;
claiming takes two queries and an update, and a drainer that dies in between loses its turn after some seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from mainspring.client import BadArgument
from mainspring.errors import MissingExtra
from mainspring.outbox.store import OutboxRow, OutboxUnavailable, WaitingRows

_TURN_MS: Final = 5_000
_PATIENCE_MS: Final = 10_000  # with a server that is away, unless the address says otherwise
_WAITS, _SENT, _ASIDE = 0, 1, 2
_FREE: Final = {"claimed_by": None, "claimed_until_ms": 0}


def open_mongo(url: str, name: str) -> MongoStore:
    """The rows in the collection `name` of the database that the address names."""
    try:
        from pymongo import MongoClient
    except ImportError:
        raise MissingExtra("MongoDB needs the package pymongo", remedy="pip install 'mainspring[mongo]'") from None
    patience: dict[str, Any] = (
        {} if "serverselectiontimeoutms=" in url.lower() else {"serverSelectionTimeoutMS": _PATIENCE_MS}
    )
    from pymongo.errors import PyMongoError

    try:
        client: Any = MongoClient(url, w="majority", journal=True, **patience)
    except (PyMongoError, ValueError):  # its text may repeat the address, with the password
        raise BadArgument(
            "the address of the MongoDB database cannot be read",
            remedy="write mongodb://user:password@host/name, with %20 for a space and so on for other signs",
        ) from None
    return MongoStore(collection_of(client, name, None))


def collection_of(target: Any, name: str, database: str | None) -> Any:
    """The collection, reached from a session, client or database."""
    kind = type(target).__name__.removeprefix("Async")
    if kind == "Database":
        return target[name]
    if kind in ("ClientSession", "MongoClient"):
        client = target.client if kind == "ClientSession" else target
        from pymongo.errors import ConfigurationError

        try:
            return (client[database] if database else client.get_default_database())[name]
        except ConfigurationError:
            raise BadArgument(
                "the address names no database", remedy="write mongodb://host/name, or give database=..."
            ) from None
    raise BadArgument(f"a pymongo {kind} cannot be used here", remedy="give a ClientSession or a Database")


_INDEXES: Final = {
    "waiting": [("state", 1), ("_id", 1)],
    "waiting_keys": [("state", 1), ("topic", 1), ("key", 1), ("_id", 1)],
    "sent_times": [("state", 1), ("sent_ms", 1)],
}


def create_indexes(collection: Any) -> Any:
    """The indexes of what waits and of what was sent; an awaitable for an async collection."""
    made = [collection.create_index(fields, name=name) for name, fields in _INDEXES.items()]
    if not type(collection).__name__.startswith("Async"):
        return None

    async def all_made() -> None:
        for each in made:
            await each

    return all_made()


def _session(target: Any) -> Any:
    return target if type(target).__name__ in ("ClientSession", "AsyncClientSession") else None


def add(target: Any, name: str, database: str | None, row: dict[str, Any]) -> Any:
    """One row, in the session's transaction; its id, or an awaitable of it."""
    session = _session(target)
    if session is not None and not session.in_transaction:
        from mainspring.outbox.sql import NoTransaction

        raise NoTransaction(
            "the session is in no transaction, so the row would not belong to one",
            remedy="write: with session.start_transaction(): ...",
        )
    members = {name: value for name, value in row.items() if name != "id"}
    document = {"_id": row["id"], **members, "state": _WAITS, "attempts": 0, "due_ms": 0, **_FREE}
    inserted = collection_of(target, name, database).insert_one(document, session=session)
    if not inspect.isawaitable(inserted):
        return str(row["id"])

    async def added() -> str:
        await inserted
        return str(row["id"])

    return added()


def mark(target: Any, name: str, database: str | None, id: str, now_ms: int) -> Any:
    """Insert an inbox mark in the session's transaction; False when it was there, or an awaitable of that.

    In a transaction a duplicate key would end the transaction, so the mark is looked for first. Two transactions that
    mark the same event at once conflict, and the driver runs one of them again.
    """
    marked = collection_of(target, name, database).update_one(
        {"_id": id}, {"$setOnInsert": {"seen_ms": now_ms}}, upsert=True, session=_session(target)
    )
    if not inspect.isawaitable(marked):
        return marked.upserted_id is not None

    async def is_new() -> bool:
        return (await marked).upserted_id is not None

    return is_new()


class MongoStore:
    """Rows in a collection."""

    def __init__(self, collection: Any) -> None:
        self._rows = collection
        self._turns = collection.database[f"{collection.name}_turns"]

    def claim(self, drainer: str, now_ms: int, lease_ms: int, limit: int) -> list[OutboxRow]:
        with _translated(self._rows.name):
            if not self._take_turn(drainer, now_ms):
                return []
            try:
                which = {"_id": {"$in": [each["_id"] for each in self._claimable(now_ms, limit)]}}
                claim = {"claimed_by": drainer, "claimed_until_ms": now_ms + lease_ms}
                self._rows.update_many({**which, "claimed_until_ms": {"$lte": now_ms}}, {"$set": claim})
                found = list(self._rows.find({**which, **claim}).sort("_id", 1))
            finally:
                self._turns.update_one({"_id": "claim", "by": drainer}, {"$set": {"until_ms": 0}})
        return [_row(each) for each in found]

    def _take_turn(self, drainer: str, now_ms: int) -> bool:
        from pymongo.errors import DuplicateKeyError

        try:
            self._turns.update_one(
                {"_id": "claim", "until_ms": {"$lte": now_ms}},
                {"$set": {"until_ms": now_ms + _TURN_MS, "by": drainer}},
                upsert=True,
            )
        except DuplicateKeyError:
            return False  # it is there and has not ended: somebody else's turn
        return True

    def _claimable(self, now_ms: int, limit: int) -> Iterator[dict[str, Any]]:
        """The oldest free rows, except those behind a held one of their key."""
        held = {"state": _WAITS, "$or": [{"due_ms": {"$gt": now_ms}}, {"claimed_until_ms": {"$gt": now_ms}}]}
        blocked: dict[tuple[str, str], str] = {}
        for each in self._rows.find({**held, "key": {"$ne": None}}, {"topic": 1, "key": 1}):
            lane = (each["topic"], each["key"])
            blocked[lane] = min(each["_id"], blocked.get(lane, each["_id"]))
        free = {"state": _WAITS, "due_ms": {"$lte": now_ms}, "claimed_until_ms": {"$lte": now_ms}}
        count = 0
        for each in self._rows.find(free).sort("_id", 1):
            first = blocked.get((each["topic"], each["key"])) if each["key"] is not None else None
            if first is not None and first < each["_id"]:
                continue
            yield each
            count += 1
            if count == limit:
                return

    def sent(self, places: Sequence[tuple[OutboxRow, str]], now_ms: int) -> None:
        with _translated(self._rows.name):
            for row, place in places:
                self._rows.update_one(
                    {"_id": row.id, "state": {"$ne": _SENT}},
                    {
                        "$set": {"state": _SENT, "sent_ms": now_ms, "place": place, "error": None, **_FREE},
                        "$inc": {"attempts": 1},
                    },
                )

    def refused(self, drainer: str, row: OutboxRow, error: str, due_ms: int, max_attempts: int) -> bool:
        last = row.attempts + 1 >= max_attempts
        with _translated(self._rows.name):
            changed = self._rows.update_one(
                {"_id": row.id, "claimed_by": drainer, "state": _WAITS},
                {
                    "$set": {"state": _ASIDE if last else _WAITS, "due_ms": due_ms, "error": error, **_FREE},
                    "$inc": {"attempts": 1},
                },
            )
        return last and bool(changed.modified_count)

    def release(self, drainer: str) -> int:
        with _translated(self._rows.name):
            return int(self._rows.update_many({"claimed_by": drainer, "state": _WAITS}, {"$set": _FREE}).modified_count)

    def clean(self, before_ms: int) -> int:
        with _translated(self._rows.name):
            return int(self._rows.delete_many({"state": _SENT, "sent_ms": {"$lt": before_ms}}).deleted_count)

    def count(self) -> WaitingRows:
        with _translated(self._rows.name):
            oldest = self._rows.find_one({"state": _WAITS}, sort=[("_id", 1)])
            return WaitingRows(
                self._rows.count_documents({"state": _WAITS}),
                None if oldest is None else oldest["created_ms"],
                self._rows.count_documents({"state": _ASIDE}),
            )

    def aside(self, limit: int) -> list[OutboxRow]:
        with _translated(self._rows.name):
            return [_row(each) for each in self._rows.find({"state": _ASIDE}).sort("_id", 1).limit(limit)]

    def retry(self, ids: Sequence[str] | None) -> int:
        which: dict[str, Any] = {"state": _ASIDE}
        if ids is not None:
            which["_id"] = {"$in": list(ids)}
        again = {"state": _WAITS, "attempts": 0, "due_ms": 0, **_FREE}
        with _translated(self._rows.name):
            return int(self._rows.update_many(which, {"$set": again}).modified_count)

    def create(self) -> None:
        with _translated(self._rows.name):
            create_indexes(self._rows)

    def close(self) -> None:
        self._rows.database.client.close()


def _row(document: dict[str, Any]) -> OutboxRow:
    found = {**document, "error": document.get("error") or ""}
    members = ("_id", "topic", "key", "headers", "payload", "created_ms", "attempts", "error")
    return OutboxRow(*(found[name] for name in members))


@contextmanager
def _translated(name: str) -> Iterator[None]:
    from pymongo.errors import PyMongoError

    try:
        yield
    except PyMongoError as error:
        raise OutboxUnavailable(
            f"the outbox {name} cannot be used: {error}", remedy="is MongoDB running, and is --database right?"
        ) from error
