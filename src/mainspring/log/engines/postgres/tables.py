"""What is in the log's schema: its tables and their versions, how events and commits are written in them.

| table | key | what |
|---|---|---|
| `commits` | number | one small row for each commit: what changed, for the other nodes. Old rows are deleted |
| `chunks` | topic, partition, last offset | events of one partition that were committed together, as one value |
| `partitions` | topic, partition | the last offset given, and how many events and bytes there are |
| `records` | space, key | all records |
| `marks` | topic, text | what was deduplicated |
| `outgoing` | id | events, runs and tasks of programs' own transactions, on their way into the log |
| `meta` | name | the version of these tables, and which versions of Mainspring can work with them |

Texts of the log are stored as UTF-8 in `bytea`: PostgreSQL's `text` holds no zero byte, and bytes are ordered by code
point whatever the database's collation is.

The tables change by numbered steps. A step that nodes of older versions can live with leaves `oldest` as it is, and
they go on beside the newer ones; one that they cannot live with raises it, and they refuse to open the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from mainspring.log.contract import (
    ABSENT,
    Appended,
    Change,
    FormatError,
    KeptRecord,
    Remove,
    StoredEvent,
)

VERSION: Final = 1
CHUNK_BYTES: Final = 1 << 20  # what a chunk holds at most, unless one event is larger

# Each step: its number, the oldest version of these tables whose nodes can work with the result, and its statements.
STEPS: Final[tuple[tuple[int, int, tuple[str, ...]], ...]] = (
    (
        1,
        1,
        (
            "CREATE TABLE {s}.commits (number bigint PRIMARY KEY, token text NOT NULL, version bigint NOT NULL, "
            "body bytea NOT NULL, at timestamptz NOT NULL DEFAULT now())",
            "INSERT INTO {s}.commits (number, token, version, body) VALUES (0, 'begin', 0, '\\x90')",
            "CREATE TABLE {s}.partitions (topic bytea, partition integer, tail bigint NOT NULL, "
            "events bigint NOT NULL, bytes bigint NOT NULL, PRIMARY KEY (topic, partition)) WITH (fillfactor = 50)",
            "CREATE TABLE {s}.chunks (topic bytea, partition integer, last bigint, first bigint NOT NULL, "
            "events integer NOT NULL, bytes bigint NOT NULL, newest bigint NOT NULL, body bytea NOT NULL, "
            "PRIMARY KEY (topic, partition, last))",
            "ALTER TABLE {s}.chunks ALTER COLUMN body SET STORAGE EXTERNAL",
            "CREATE TABLE {s}.records (space bytea, key bytea, version bigint NOT NULL, value bytea NOT NULL, "
            "crc bigint NOT NULL, PRIMARY KEY (space, key)) WITH (fillfactor = 80)",
            "CREATE TABLE {s}.marks (topic bytea, dedupe bytea, partition integer NOT NULL, place bigint NOT NULL, "
            "until bigint NOT NULL, PRIMARY KEY (topic, dedupe))",
            "CREATE INDEX marks_until ON {s}.marks (until)",
            "CREATE TABLE {s}.outgoing (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)",
        ),
    ),
)


async def find_version(connection: Any, schema: str) -> int:
    """The version of the tables; 0 where there are none. Raises `FormatError` when this program cannot use them."""
    there = await connection.fetchval(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relname = ANY($2::text[])",
        schema,
        ["meta", "commits", "chunks", "records"],
    )
    if not there:
        return 0
    if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{schema}.meta"):
        raise _foreign(schema)
    rows = await connection.fetch(f"SELECT name, value FROM {schema}.meta")
    found = {row["name"]: row["value"] for row in rows}
    if "version" not in found or "oldest" not in found:
        raise _foreign(schema)
    if found["oldest"] > VERSION:
        raise FormatError(
            f"the log in the schema {schema!r} has version {found['version']}, which asks for programs of version "
            f"{found['oldest']} or later; this one has {VERSION}",
            remedy="use the version of Mainspring that wrote it",
        )
    return int(found["version"])


def _foreign(schema: str) -> FormatError:
    return FormatError(
        f"the schema {schema!r} holds tables that are not a log of Mainspring",
        remedy="name a schema of its own in the address: ?schema=NAME",
    )


async def migrate(connection: Any, schema: str, lock: int) -> list[str]:
    """Bring the tables to this program's version; what was done, in words. Harmless beside running nodes."""
    done: list[str] = []
    async with connection.transaction():
        if await find_version(connection, schema) >= VERSION:
            return done
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({lock})")
        version = await find_version(connection, schema)
        if version == 0:
            if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", schema):
                await connection.execute(f"CREATE SCHEMA {schema}")
                done.append(f"created the schema {schema}")
            await connection.execute(f"CREATE TABLE {schema}.meta (name text PRIMARY KEY, value bigint NOT NULL)")
            await connection.execute(f"INSERT INTO {schema}.meta VALUES ('version', 0), ('oldest', 1), ('settled', 0)")
        for number, oldest, statements in STEPS:
            if number > version:
                for statement in statements:
                    await connection.execute(statement.format(s=schema))
                await connection.execute(
                    f"UPDATE {schema}.meta SET value = CASE name WHEN 'version' THEN {number} "
                    f"ELSE greatest(value, {oldest}) END WHERE name IN ('version', 'oldest')"
                )
                done.append(f"brought the tables in {schema} to version {number}")
    return done


# -- a chunk: events of one partition, without topic, partition and offsets; those are in its row


class ChunkEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One event of a chunk."""

    id: str
    ts: int
    payload: bytes
    key: str | None
    headers: bytes | None


class _Chunk(msgspec.Struct, array_like=True):
    """`steps` is how far each event's offset lies behind the chunk's first; None when they follow each other."""

    steps: list[int] | None
    events: list[ChunkEvent]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_chunk: Final = msgspec.msgpack.Decoder(_Chunk).decode

DraftEvent = tuple[int, int, tuple[str, int, bytes, str | None, bytes | None]]  # offset, bytes, and the event
ChunkRow = tuple[bytes, int, int, int, int, int, int, bytes]  # topic, partition, last, first, events, bytes, newest


def chunk_rows(topic: str, partition: int, events: Sequence[DraftEvent]) -> Iterable[ChunkRow]:
    """The rows that hold these events, ascending by offset."""
    name = topic.encode()
    start = 0
    while start < len(events):
        end, size = start, 0
        while end < len(events) and (end == start or size + events[end][1] <= CHUNK_BYTES):
            size += events[end][1]
            end += 1
        part = events[start:end] if end - start < len(events) else events
        first, last = part[0][0], part[-1][0]
        steps = None if last - first + 1 == len(part) else [offset - first for offset, _, _ in part]
        data: bytes = _encode((steps, [event for _, _, event in part]))
        body = zlib.crc32(data).to_bytes(4, "big") + data
        newest = max([event[1] for _, _, event in part])
        yield name, partition, last, first, len(part), size, newest, body
        start = end


def chunk_events(topic: str, partition: int, first: int, body: bytes) -> list[StoredEvent] | None:
    """The events of a row; None when its bytes are damaged."""
    if zlib.crc32(body[4:]).to_bytes(4, "big") != body[:4]:
        return None
    try:
        chunk = _decode_chunk(body[4:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if chunk.steps is not None and len(chunk.steps) != len(chunk.events):
        return None
    if chunk.steps is None:
        return [
            StoredEvent(topic, partition, offset, e.id, e.ts, e.payload, e.key, e.headers)
            for offset, e in enumerate(chunk.events, first)
        ]
    return [
        StoredEvent(topic, partition, first + step, e.id, e.ts, e.payload, e.key, e.headers)
        for step, e in zip(chunk.steps, chunk.events, strict=True)
    ]


# -- what a commit changed, for the other nodes


class CommitRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record as it is now. `value` is None for a deleted one."""

    space: str
    key: str
    version: int
    value: bytes | None


class CommitEffects(msgspec.Struct, array_like=True, gc=False):
    """What one batch did, or several batches that only appended events."""

    appended: list[tuple[str, int, int, int]] = []  # topic, partition, first, last
    records: list[CommitRecord] = []
    removed: list[tuple[str, int, int, tuple[int, ...]]] = []  # topic, partition, below, offsets

    def __bool__(self) -> bool:
        return bool(self.appended or self.records or self.removed)

    def change(self, own: bool) -> Change:
        return Change(
            own,
            tuple([Appended(*each) for each in self.appended]),
            tuple(
                [
                    KeptRecord(r.space, r.key, b"", ABSENT)
                    if r.value is None
                    else KeptRecord(r.space, r.key, r.value, r.version)
                    for r in self.records
                ]
            ),
            tuple([Remove(*each) for each in self.removed]),
        )


_decode_effects: Final = msgspec.msgpack.Decoder(list[CommitEffects]).decode


def encode_effects(effects: list[CommitEffects]) -> bytes:
    return _encode(effects)


def decode_effects(body: bytes) -> list[CommitEffects] | None:
    """None for what no node of this version wrote."""
    try:
        return _decode_effects(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# -- what programs stored, on its way into the log: rows that look like records

OUTGOING_VERSION: Final = 1  # each is written once


def outgoing_key(id: int) -> str:
    return f"{id:020d}"


def record_crc(space: bytes, key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key, zlib.crc32(space)))
