"""What is in the database, and reading it: collections, indexes, entries of the journal, events and records.

| collection | `_id` | what |
|---|---|---|
| `events` | `topic:partition:offset` | one document for each event |
| `counters` | `topic:partition` | `nextOffset`: the last offset given |
| `group_offsets` | `topic:partition:group` | where a group stands (the records of space `groups`) |
| `topic_configs` | `topic` | a topic's settings (the records of space `topics`) |
| `records` | `space|key` | all other records |
| `marks` | `topic|text` | what was deduplicated |
| `commits` | the number | the journal: each commit is one document |
| `stones` | `number|collection|_id` | where deleted records and events left a document behind |
| `meta` | a name | format, how far the journal is applied, how far it is purged |

Names may hold colons, so parts of an `_id` that come before the last separator are kept apart by escaping where that is
needed: in the group of a position, and in spaces and topics before a `|`.

An event comes back byte for byte, and still its payload should be a real document for people who look at the collection
with other tools. So `payload` holds the value, and `payload_bytes` the text where the value alone would not give it
back: when the text is not the shortest form (spaces, escapes, repeated names), or when it holds something that a server
refuses or changes (names with `$` or `.`, numbers beyond 64 bits, minus zero, a name `_id`, which some servers put
first). Where the value cannot be stored at all, `payload` is its JSON text, and `payload_bytes` is what counts. Headers
are kept alike. Servers differ in what they refuse (FerretDB: an array directly inside an array); an event that a server
refuses all the same is stored without its values.

`payload_sha256` is of the payload's bytes and is compared on the way out: damage is reported, never served.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

from mainspring.log.contract import (
    ABSENT,
    Appended,
    Bounds,
    Change,
    DamagedEvent,
    DamagedRecord,
    FormatError,
    KeptRecord,
    Mark,
    Outline,
    Place,
    Record,
    Remove,
    StoredEvent,
    end_of_prefix,
    event_bytes,
    extend_appended,
    is_tombstone,
)
from mainspring.log.engines.history import CommitMark

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

FORMAT: Final = 1

EVENTS: Final = "events"
COUNTERS: Final = "counters"
GROUP_OFFSETS: Final = "group_offsets"
TOPIC_CONFIGS: Final = "topic_configs"
RECORDS: Final = "records"
MARKS: Final = "marks"
COMMITS: Final = "commits"
STONES: Final = "stones"
META: Final = "meta"

GROUPS_SPACE: Final = "groups"
TOPICS_SPACE: Final = "topics"

Index = tuple[str, tuple[str, ...], bool]  # collection, fields, unique

INDEXES: Final[tuple[Index, ...]] = (
    (EVENTS, ("topic", "partition", "offset"), True),
    (EVENTS, ("topic", "partition", "ts"), False),
    (GROUP_OFFSETS, ("topic", "partition", "group"), True),
    (GROUP_OFFSETS, ("key",), False),
    (RECORDS, ("space", "key"), False),
    (MARKS, ("topic", "dedupe"), False),
    (MARKS, ("until",), False),
    (STONES, ("commit",), False),
    (STONES, ("at",), False),
)
COLLECTIONS: Final = (EVENTS, COUNTERS, GROUP_OFFSETS, TOPIC_CONFIGS, RECORDS, MARKS, COMMITS, STONES, META)


def event_id(topic: str, partition: int, offset: int) -> str:
    return f"{topic}:{partition}:{offset:016d}"


def commit_id(number: int) -> str:
    """Text with leading zeros: its order is the order of the numbers, and every server looks texts up quickly."""
    return f"{number:016d}"


def mark_id(topic: str, dedupe: str) -> str:
    return f"{_escaped(topic, '|')}|{dedupe}"


def position_of(key: str) -> tuple[str, int, str] | None:
    """Topic, partition and group of a record of `groups`; None when its key is not made of the three."""
    parts = key.split("|")
    if len(parts) != 3 or not parts[0] or not parts[1] or not parts[2].isascii() or not parts[2].isdigit():
        return None
    partition = int(parts[2])
    return (parts[0], partition, parts[1]) if f"{partition:06d}" == parts[2] and partition < 1 << 31 else None


def record_place(space: str, key: str) -> tuple[str, str]:
    """The collection and `_id` of a record."""
    if space == TOPICS_SPACE:
        return TOPIC_CONFIGS, key
    if space == GROUPS_SPACE and (position := position_of(key)):
        topic, partition, group = position
        return GROUP_OFFSETS, f"{topic}:{partition}:{_escaped(group, ':')}"
    return RECORDS, f"{_escaped(space, '|')}|{key}"


def record_collections(space: str) -> tuple[str, ...]:
    """Where records of this space may be."""
    if space == TOPICS_SPACE:
        return (TOPIC_CONFIGS,)
    return (GROUP_OFFSETS, RECORDS) if space == GROUPS_SPACE else (RECORDS,)


def _escaped(text: str, separator: str) -> str:
    if separator not in text and "%" not in text:
        return text
    return text.replace("%", "%25").replace(separator, f"%{ord(separator):02X}")


async def check_format(database: Any) -> bool:
    """Whether there is a log already. Raises `FormatError` when something else is there."""
    found: Mapping[str, Any] | None = await database[META].find_one({"_id": "format"})
    if found is None:
        foreign = sorted(set(await database.list_collection_names()) & set(COLLECTIONS))
        held = [name for name in foreign if await database[name].find_one({}) is not None]
        found = await database[META].find_one({"_id": "format"})  # another node may have just made it
        if held and found is None:
            raise FormatError(
                f"the database {database.name!r} holds {', '.join(held)}, which is not a log of Mainspring",
                remedy="name a database of its own in the address",
            )
        if found is None:
            return False
    if found.get("format") != FORMAT:
        raise FormatError(
            f"the log in the database {database.name!r} has format {found.get('format')!r}, not {FORMAT}",
            remedy="use the version of Mainspring that wrote it, or export there and import here",
        )
    return True


async def identity_of(database: Any, new_id: Callable[[], str]) -> str:
    """Which log this is: no two that were ever made have the same. A log of an older version gets one now."""
    await database[META].update_one({"_id": "format", "log": {"$exists": False}}, {"$set": {"log": new_id()}})
    found: Mapping[str, Any] = await database[META].find_one({"_id": "format"}) or {}
    return str(found.get("log", ""))


async def missing(database: Any) -> list[str]:
    """What `create` would make, in words."""
    return [what for what, _ in await _missing(database)]


async def create(database: Any) -> list[str]:
    """Make what is missing; what was done, in words. May be run at any time, by several nodes at once."""
    from pymongo.errors import CollectionInvalid, DuplicateKeyError, OperationFailure

    done: list[str] = []
    for what, make in await _missing(database):
        try:
            await make()
            done.append(f"created {what}")
        except (CollectionInvalid, OperationFailure):
            if any(what == left for left, _ in await _missing(database)):
                raise
    try:
        await database[META].insert_one({"_id": "format", "format": FORMAT})
        done.append(f"wrote the format's version: {FORMAT}")
    except DuplicateKeyError:
        pass
    return done


async def _missing(database: Any) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    """What is not there, in words, and how to make it."""
    there = set(await database.list_collection_names())
    found: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        (f"the collection {name}", partial(database.create_collection, name))
        for name in COLLECTIONS
        if name not in there
    ]
    for name, fields, unique in INDEXES:
        keys = [(field, 1) for field in fields]
        indexes = await database[name].index_information() if name in there else {}
        if all(list(index["key"]) != keys for index in indexes.values()):
            what = f"the {'unique ' if unique else ''}index ({', '.join(fields)}) of {name}"
            found.append((what, partial(database[name].create_index, keys, unique=unique)))
    return found


# -- what an entry says
#
# An entry holds results, not wishes: offsets and versions are given, refusals are left out, and of each partition it
# says how it stands afterwards. So the node that puts it in place needs to know nothing, may do it twice, and two nodes
# that do it at the same time write the same.


class JournalEvent(StoredEvent, array_like=True, frozen=True, gc=False, tag=False):
    """An event of an entry; entries hold only one kind of each, so none carries a tag."""

    def stored(self) -> StoredEvent:
        return StoredEvent(*msgspec.structs.astuple(self))


class JournalRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record as it is now. `value` is None for a deleted one; its version still orders the delete."""

    space: str
    key: str
    version: int
    value: bytes | None


class JournalMark(Mark, array_like=True, frozen=True, gc=False, tag=False):
    """A mark of an entry."""


class JournalRemoval(Remove, array_like=True, frozen=True, gc=False, tag=False):
    """Never reaches beyond the tail of its moment."""


class PartitionStanding(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A partition after an entry. Everything below `below` is gone."""

    topic: str
    partition: int
    tail: int = 0
    events: int = 0
    bytes: int = 0
    below: int = 0


class Effects(msgspec.Struct, array_like=True, gc=False):
    """What one batch does."""

    events: list[JournalEvent] = []
    records: list[JournalRecord] = []
    marks: list[JournalMark] = []
    removed: list[JournalRemoval] = []

    def __bool__(self) -> bool:
        return bool(self.events or self.records or self.marks or self.removed)

    def change(self, own: bool) -> Change:
        appended: list[Appended] = []
        for event in self.events:
            extend_appended(appended, event.topic, event.partition, event.offset)
        records = tuple(
            KeptRecord(r.space, r.key, b"", ABSENT)
            if r.value is None
            else KeptRecord(r.space, r.key, r.value, r.version)
            for r in self.records
        )
        removed = tuple(Remove(r.topic, r.partition, r.below, r.offsets) for r in self.removed)
        return Change(own, tuple(appended), records, removed)


class Body(msgspec.Struct, array_like=True):
    """One entry: its batches, how the partitions stand afterwards, and the last version given."""

    batches: list[Effects]
    standings: list[PartitionStanding]
    version: int


class JournalEntry(msgspec.Struct):
    """An entry with its place in the journal. `token` is of one try of one node; `at` is that node's time of day.

    `before` is the digest of the history that its node had seen, `mark` says which entry it is.
    """

    number: int
    node: str
    token: str
    at: int
    body: Body
    before: bytes
    mark: CommitMark


_SMALL: Final = 4096  # bytes
_PACKED: Final = b"z"  # no body begins so: it is an array

_encode_msgpack: Final = msgspec.msgpack.Encoder().encode
_decode_msgpack: Final = msgspec.msgpack.Decoder(Body).decode


def encode_body(body: Body) -> bytes:
    """Compressed when that pays: a large entry holds many events that look alike, and goes over the network twice."""
    data = _encode_msgpack(body)
    return data if len(data) < _SMALL else _PACKED + zlib.compress(data, 1)


def entry_of(number: int, document: Mapping[str, Any], mark: CommitMark) -> JournalEntry:
    """The entry with this number. One that no node has written is an entry without effects: every node passes it over.

    Raises `FormatError` for one that a newer version wrote.
    """
    format = document.get("format")
    if isinstance(format, int) and format > FORMAT and isinstance(document.get("token"), str):
        raise FormatError(
            f"an entry of the journal has format {format!r} and cannot be read; this version knows {FORMAT}",
            remedy="all nodes of one log must know its format: upgrade this one",
        )
    try:
        document = {"before": b"", **document}  # which an older version did not write
        data = document["body"]
        body = _decode_msgpack(zlib.decompress(data[len(_PACKED) :]) if data.startswith(_PACKED) else data)
        node, token, at, before = (document[name] for name in ("node", "token", "at", "before"))
        return JournalEntry(number, str(node), str(token), int(at), body, bytes(before), mark)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        logger.error("entry %d of the journal was written by no node and is passed over: %s", number, error)
        return JournalEntry(number, "", "", 0, Body([], [], 0), b"", mark)


Document = dict[str, Any]

_MOST_LEVELS: Final = 60  # MongoDB takes 100, drivers and other servers fewer
_MOST_TWICE: Final = 1 << 20  # a larger payload is stored as bytes only: as a value it can become six times as large
_INT64: Final = 1 << 63

_MINUS_ZERO: Final = re.compile(rb"(?:^|[:\[,])-0(?:\.0*)?(?:[eE]|[,\]}]|$)")

_encode_json: Final = msgspec.json.Encoder().encode
_decode_json: Final = msgspec.json.Decoder().decode


# -- events


def event_document(event: JournalEvent, *, values: bool = True) -> Document:
    """Without `values` payload and headers are bytes only, which no server can refuse."""
    document: Document = {
        "_id": event_id(event.topic, event.partition, event.offset),
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
        "ts": event.ts,
        "id": event.id,
        "key": event.key,
        "headers": None,
        "payload_sha256": sha256(event.payload).hexdigest(),
        "payload": None,
        "attempts": 0,
        "size": event_bytes(event),
    }
    for name, text in (("payload", event.payload), ("headers", event.headers)):
        if text is None:
            continue
        if values and len(text) <= _MOST_TWICE:
            _keep_json(document, name, text)
        else:
            document[f"{name}_bytes"] = text
    if is_tombstone(event.payload):
        document["tombstone"] = True
    return document


def _keep_json(document: Document, name: str, text: bytes) -> None:
    try:
        value = _decode_json(text)
        exact = _encode_json(value) == text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document[f"{name}_bytes"] = text
        return
    storable = _surely_storable(text) if exact else False
    if not storable and not _storable(value, 0):
        document[name], exact = text.decode(), False
    else:
        document[name] = value
    if not exact or value is None or b'"_id"' in text or (b"-0" in text and _MINUS_ZERO.search(text)):
        document[f"{name}_bytes"] = text


def _surely_storable(text: bytes) -> bool:
    """A quick look that spares most values the long one. For text in the shortest form only."""
    return not (
        b"$" in text
        or b"." in text
        or b'"":' in text
        or b"\\u0000" in text
        or text.count(b"{") + text.count(b"[") > _MOST_LEVELS
        or _long_digits(text)
    )


def _long_digits(text: bytes) -> bool:
    """Whether a number of 19 or more digits may be in it."""
    return max(map(len, text.translate(_DIGITS_STAY).split()), default=0) >= 19


_DIGITS_STAY: Final = bytes(byte if 48 <= byte <= 57 else 32 for byte in range(256))


def _storable(value: object, level: int) -> bool:
    if isinstance(value, dict):
        return level < _MOST_LEVELS and all(
            name and "$" not in name[:1] and "." not in name and "\x00" not in name and _storable(inner, level + 1)
            for name, inner in value.items()
        )
    if isinstance(value, list):
        return level < _MOST_LEVELS and all(_storable(inner, level + 1) for inner in value)
    return not isinstance(value, int) or -_INT64 <= value < _INT64


def _bytes_of(document: Mapping[str, Any], name: str) -> bytes:
    exact = document.get(f"{name}_bytes")
    return bytes(exact) if exact is not None else _encode_json(document[name])


def stored_event(document: Mapping[str, Any]) -> StoredEvent:
    """Raises `DamagedEvent`."""
    topic, partition, offset = document["topic"], document["partition"], document["offset"]
    try:
        payload = _bytes_of(document, "payload")
        whole = sha256(payload).hexdigest() == document["payload_sha256"]
        headers = None
        if document.get("headers") is not None or document.get("headers_bytes") is not None:
            headers = _bytes_of(document, "headers")
        event = StoredEvent(topic, partition, offset, document["id"], document["ts"], payload, document["key"], headers)
    except (KeyError, TypeError) as error:
        raise DamagedEvent(topic, partition, offset) from error
    if not whole or event_bytes(event) != document["size"]:
        raise DamagedEvent(topic, partition, offset)
    return event


OUTLINE_FIELDS: Final = {"offset": 1, "key": 1, "ts": 1, "size": 1, "tombstone": 1}


def outline_from(document: Mapping[str, Any]) -> Outline:
    return Outline(
        document["offset"], document["key"], document["ts"], document["size"], document.get("tombstone", False)
    )


def removed_document(topic: str, partition: int, offset: int, commit: int, at: int) -> Document:
    """Stands where a compacted event was, so that a writer who was stopped for a while cannot put it back."""
    place = {"topic": topic, "partition": partition, "offset": offset}
    return {"_id": event_id(topic, partition, offset), **place, "removed": True, "commit": commit, "at": at}


def stone_document(collection: str, id: str, commit: int, at: int) -> Document:
    """Says where something was left behind, so that it is found again without looking through everything."""
    return {"_id": f"{commit}|{collection}|{id}", "collection": collection, "id": id, "commit": commit, "at": at}


# -- partitions


def counter_document(standing: PartitionStanding, commit: int) -> Document:
    return {
        "_id": f"{standing.topic}:{standing.partition}",
        "nextOffset": standing.tail,
        "topic": standing.topic,
        "partition": standing.partition,
        "events": standing.events,
        "bytes": standing.bytes,
        "below": standing.below,
        "commit": commit,
    }


def standing_of(document: Mapping[str, Any]) -> PartitionStanding | None:
    """None for a document that no node has written."""
    return _converted({**document, "tail": document.get("nextOffset")}, PartitionStanding)


def _converted(document: Mapping[str, Any], kind: type[T]) -> T | None:
    try:
        return msgspec.convert([document[name] for name in kind.__struct_fields__], kind)  # type: ignore[attr-defined]
    except (KeyError, msgspec.ValidationError) as error:
        logger.error("a document %r is no %s and is passed over: %s", document.get("_id"), kind.__name__, error)
        return None


# -- records


def record_document(record: JournalRecord, commit: int, at: int) -> tuple[str, Document]:
    """The collection, and what stands there. A deleted record leaves a document behind for a while, without a value."""
    collection, id = record_place(record.space, record.key)
    document: Document = {"_id": id}
    if collection == GROUP_OFFSETS:
        document |= _position_fields(record)
    elif collection == TOPIC_CONFIGS and record.value is not None:
        document |= _topic_fields(record.value)
    document |= {"space": record.space, "key": record.key, "version": record.version}
    if record.value is None:
        document |= {"deleted": True, "commit": commit, "at": at}
    else:
        document |= {"value": record.value, "crc": _crc(record.space, record.key, record.version, record.value)}
    return collection, document


class _PositionFields(msgspec.Struct):
    lastCommitted: int = 0
    updatedTs: int = 0


_decode_position: Final = msgspec.json.Decoder(_PositionFields).decode


def _position_fields(record: JournalRecord) -> Document:
    position = position_of(record.key)
    assert position is not None
    try:
        found = _decode_position(record.value) if record.value is not None else _PositionFields()
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _PositionFields()
    return dict(zip(("topic", "partition", "group"), position, strict=True)) | msgspec.structs.asdict(found)


_OWN_FIELDS: Final = frozenset(("_id", "space", "key", "version", "value", "crc", "deleted", "commit", "at"))


def _topic_fields(value: bytes) -> Document:
    """The settings as fields; `value` is what counts."""
    try:
        found = _decode_json(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    shown = {name: inner for name, inner in found.items() if name not in _OWN_FIELDS and _storable({name: inner}, 0)}
    if "topic" in shown:
        shown.setdefault("partitions", 1)
    return shown


def record_of(document: Mapping[str, Any]) -> Record:
    """Raises `DamagedRecord`."""
    space, key = document["space"], document["key"]
    try:
        value, version = document["value"], _version(document)
        whole = isinstance(value, bytes) and _crc(space, key, version, value) == document["crc"]
    except KeyError:
        whole = False
    if not whole:
        raise DamagedRecord(space, key, _version(document))
    return Record(key, value, version)


def _version(document: Mapping[str, Any]) -> int:
    """Of a record's document, also of one that a node has not written."""
    version = document.get("version")
    return version if isinstance(version, int) else ABSENT


def _crc(space: str, key: str, version: int, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(f"{version}\0{space}\0{key}".encode()))


# -- marks


def mark_document(mark: JournalMark, commit: int) -> Document:
    return {"_id": mark_id(mark.topic, mark.dedupe), **msgspec.structs.asdict(mark), "commit": commit}


def mark_of(document: Mapping[str, Any]) -> Mark | None:
    """None for a document that no node has written."""
    found = _converted(document, JournalMark)
    return None if found is None else Mark(*msgspec.structs.astuple(found))


# -- reading the collections
#
# The caller gives the moment it asks about, and has made sure that everything up to it is in place. A reader never
# looks beyond the tail of that moment: behind it another node may just be putting events in place, in any order.

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
        return [
            (standing, document["commit"])
            async for document in self._database[COUNTERS].find({})
            if isinstance(document.get("commit"), int) and (standing := standing_of(document)) is not None
        ]

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
        found = {each for each in await self._database[RECORDS].distinct("space", _LIVE) if isinstance(each, str)}
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
        fields = {"space": 1, "key": 1, "version": 1, "deleted": 1}
        for collection, ids in by_collection.items():
            for query in by_ids(ids):
                # By `_id` and nothing else: with a second condition some servers look through all documents.
                async for document in self._database[collection].find(query, fields):
                    if not document.get("deleted"):
                        found[document["space"], document["key"]] = _version(document)
        return found

    # -- marks

    async def marks(self, places: Iterable[Place]) -> dict[Place, Mark]:
        found: dict[Place, Mark] = {}
        for query in by_ids([mark_id(topic, dedupe) for topic, dedupe in places]):
            async for document in self._database[MARKS].find(query):
                if (mark := mark_of(document)) is not None:
                    found[mark.topic, mark.dedupe] = mark
        return found

    async def mark_page(self, last: Mark | None) -> list[Mark]:
        """The next marks behind this one, by topic and text."""
        query: dict[str, Any] = {"topic": {"$gte": ""}, "dedupe": {"$gte": ""}}  # no other types
        if last is not None:
            same_topic = {"topic": last.topic, "dedupe": {"$gt": last.dedupe}}
            query = {"$or": [same_topic, {"topic": {"$gt": last.topic}}]}
        cursor = self._database[MARKS].find(query).sort([("topic", 1), ("dedupe", 1)]).limit(PAGE)
        return [mark async for document in cursor if (mark := mark_of(document)) is not None]


def by_ids(ids: list[str]) -> list[dict[str, Any]]:
    """Queries that find these documents."""
    if len(ids) == 1:
        return [{"_id": ids[0]}]
    return [{"_id": {"$in": ids[at : at + 1000]}} for at in range(0, len(ids), 1000)]
