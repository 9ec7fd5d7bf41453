"""Events, records, marks and counters as documents, and back.

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

import re
import zlib
from collections.abc import Mapping
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final

import msgspec

from mainspring.log.contract import (
    DamagedEvent,
    DamagedRecord,
    Mark,
    Outline,
    Record,
    StoredEvent,
    event_bytes,
    is_tombstone,
)
from mainspring.log.engines.mongo.journal import JournalEvent, JournalMark, JournalRecord, PartitionStanding
from mainspring.log.engines.mongo.schema import (
    GROUP_OFFSETS,
    TOPIC_CONFIGS,
    counter_id,
    event_id,
    mark_id,
    position_of,
    record_place,
)

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
    return {
        "_id": event_id(topic, partition, offset),
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "removed": True,
        "commit": commit,
        "at": at,
    }


def stone_document(collection: str, id: str, commit: int, at: int) -> Document:
    """Says where something was left behind, so that it is found again without looking through everything."""
    return {"_id": f"{commit}|{collection}|{id}", "collection": collection, "id": id, "commit": commit, "at": at}


# -- partitions


def counter_document(standing: PartitionStanding, commit: int) -> Document:
    return {
        "_id": counter_id(standing.topic, standing.partition),
        "nextOffset": standing.tail,
        "topic": standing.topic,
        "partition": standing.partition,
        "events": standing.events,
        "bytes": standing.bytes,
        "below": standing.below,
        "commit": commit,
    }


_COUNTER_FIELDS: Final = itemgetter("topic", "partition", "nextOffset", "events", "bytes", "below")


def standing_of(document: Mapping[str, Any]) -> PartitionStanding:
    return PartitionStanding(*_COUNTER_FIELDS(document))


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
    topic, partition, group = position
    try:
        found = _decode_position(record.value) if record.value is not None else _PositionFields()
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _PositionFields()
    return {
        "topic": topic,
        "partition": partition,
        "group": group,
        "lastCommitted": found.lastCommitted,
        "updatedTs": found.updatedTs,
    }


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
        value, version = bytes(document["value"]), document["version"]
        whole = _crc(space, key, version, value) == document["crc"]
    except (KeyError, TypeError) as error:
        raise DamagedRecord(space, key) from error
    if not whole:
        raise DamagedRecord(space, key)
    return Record(key, value, version)


def _crc(space: str, key: str, version: int, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(f"{version}\0{space}\0{key}".encode()))


# -- marks


def mark_document(mark: JournalMark, commit: int) -> Document:
    return {"_id": mark_id(mark.topic, mark.dedupe), **msgspec.structs.asdict(mark), "commit": commit}


def mark_of(document: Mapping[str, Any]) -> Mark:
    return Mark(*itemgetter(*Mark.__struct_fields__)(document))
