"""The file: its tables and format number, the way from older formats to this one, and how a connection is set up.

**Events** lie in chunks (`chunks`): rows of one table whose integer key is the partition's number shifted left by 43
bits, plus the offset of the first event. Integer keys make the shortest and fastest b-tree SQLite has; chunks of one
partition lie together in offset order, and a publish is an insert at the end of its partition's range, whatever lies in
the other ranges. 43 bits hold 8.8 million million offsets; the 20 bits left hold a million partitions.

Two columns save an index each. `total` is the number of bytes ever appended to the partition up to the chunk's end, so
sizes are a subtraction. `high_ts` is the highest time up to there: it never falls, so the first event of a given time
is found by bisection, also when clocks stepped back.

Up to format 2 each event was a row of the table `events`, with the same keys (`rows`). Those of a partition all lie
before its chunks.

**Partitions** keep the tail, total and highest time as of the last removal, how much was removed, and the head: what
lies before it in its chunk is removed. The tail is the higher of this one and the last event's offset, so an append
needs not touch this table, and offsets are not reused after the last event was removed.

Columns that reads need before they know whether they want the payload stand before it: SQLite reads a row from the
left.

**Checksums** are CRC-32 over what must not change. `zlib.crc32` runs at memory speed; a cryptographic digest would
guard against a forger, but anyone who can write the file can write a digest too. What happens to files is rot and torn
pages.

The reasons are in docs/decisions/log-format.md.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from mainspring.log.contract import FormatError

APPLICATION_ID: Final = 0x4D53504C  # "MSPL": `file log.sqlite3` and our own boot tell our files from others'
FORMAT: Final = 3
OFFSET_BITS: Final = 43
MAX_OFFSET: Final = (1 << OFFSET_BITS) - 1
MAX_PARTITION_ID: Final = (1 << 20) - 2  # the key after its last one is still a 64-bit integer

WRITER_CACHE_KB = 16_384
READER_CACHE_KB = 4_096
CHECKPOINT_PAGES = 2_000  # 8 MB of WAL: some milliseconds of copying, and rare enough not to show in throughput
WAL_BYTES = CHECKPOINT_PAGES * (4_096 + 24) + (1 << 20)

_FORMAT_1 = f"""
CREATE TABLE format (
    version INTEGER PRIMARY KEY  -- each format this file went through
);
CREATE TABLE partitions (
    id            INTEGER PRIMARY KEY,
    topic         TEXT NOT NULL,
    partition     INTEGER NOT NULL,
    tail          INTEGER NOT NULL,
    total         INTEGER NOT NULL,
    high_ts       INTEGER,
    removed       INTEGER NOT NULL,
    removed_bytes INTEGER NOT NULL,
    UNIQUE (topic, partition)
);
CREATE TABLE events (
    pos     INTEGER PRIMARY KEY,
    ts      INTEGER NOT NULL,
    high_ts INTEGER,
    total   INTEGER NOT NULL,
    crc     INTEGER NOT NULL,
    id      TEXT NOT NULL,
    key     TEXT,
    headers BLOB,
    payload BLOB NOT NULL
);
CREATE TABLE records (
    space   TEXT NOT NULL,
    key     TEXT NOT NULL,
    version INTEGER NOT NULL,
    crc     INTEGER NOT NULL,
    value   BLOB NOT NULL,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;
CREATE TABLE marks (
    topic  TEXT NOT NULL,
    dedupe TEXT NOT NULL,
    pos    INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (topic, dedupe)
) WITHOUT ROWID;
CREATE INDEX marks_by_time ON marks (until);
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
CREATE VIEW readable_events AS
    SELECT p.topic, p.partition, e.pos & {MAX_OFFSET} AS offset,
           strftime('%Y-%m-%dT%H:%M:%fZ', e.ts / 1000.0, 'unixepoch') AS time,
           e.ts, e.id, e.key, CAST(e.headers AS TEXT) AS headers, CAST(e.payload AS TEXT) AS payload
    FROM partitions p JOIN events e
      ON e.pos > (p.id << {OFFSET_BITS}) AND e.pos < ((p.id + 1) << {OFFSET_BITS});
CREATE VIEW readable_records AS
    SELECT space, key, version, CAST(value AS TEXT) AS value FROM records;
"""

# Marks of before have no checksum, and are forgotten soon.
_FORMAT_2 = "ALTER TABLE marks ADD COLUMN crc INTEGER;"

# Events of before stay where they are until they are put into chunks (`upkeep`).
_FORMAT_3 = """
CREATE TABLE chunks (
    pos      INTEGER PRIMARY KEY,
    last     INTEGER NOT NULL,
    events   INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    total    INTEGER NOT NULL,
    high_ts  INTEGER NOT NULL,
    head_crc INTEGER NOT NULL,
    crc      INTEGER NOT NULL,
    sums     BLOB NOT NULL,
    data     BLOB NOT NULL
);
ALTER TABLE partitions ADD COLUMN head INTEGER NOT NULL DEFAULT 1;
DROP VIEW readable_events;
"""

# Who only reads an older file sees these instead of what it lacks; names of `temp` come before those of the file.
_READ_AS: Final[dict[int, str]] = {
    2: "CREATE TEMP VIEW marks AS SELECT *, NULL AS crc FROM main.marks;",
    3: """
        CREATE TEMP TABLE chunks (
            pos INTEGER PRIMARY KEY, last, events, bytes, total, high_ts, head_crc, crc, sums, data
        );
        CREATE TEMP VIEW partitions AS SELECT *, 1 AS head FROM main.partitions;
    """,
}

# What `contract.event_bytes` counts, in SQL.
EVENT_BYTES: Final = (
    "length(payload) + length(CAST(id AS BLOB)) + ifnull(length(CAST(key AS BLOB)), 0) + ifnull(length(headers), 0)"
)

# Each entry brings a file from the format before it; entry n makes format n. Old entries never change.
MIGRATIONS: Final[dict[int, str]] = {1: _FORMAT_1, 2: _FORMAT_2, 3: _FORMAT_3}


# -- checksums


def event_checksum(pos: int, ts: int, id: str, key: str | None, headers: bytes | None, payload: bytes) -> int:
    """Of the text `pos ts id =key` (the last word only with a key), then headers (if any), then payload.

    Raises `UnicodeEncodeError` when id or key hold lone surrogates.
    """
    crc = crc32((f"{pos} {ts} {id}" if key is None else f"{pos} {ts} {id} ={key}").encode())
    if headers is not None:
        crc = crc32(headers, crc32(b"=", crc))
    return crc32(payload, crc)


def record_checksum(space: str, key: str, version: int, value: bytes) -> int:
    """Of the text `version space key`, then the value. Raises `UnicodeEncodeError` like `event_checksum`."""
    return crc32(value, crc32(f"{version} {space} {key}".encode()))


def is_sound_record(space: str, key: str, version: int, value: object, crc: int) -> bool:
    """Whether a row of a record is what was written; its value may be anything."""
    return isinstance(value, bytes) and record_checksum(space, key, version, value) == crc


def mark_checksum(topic: str, dedupe: str, pos: int, until: int) -> int:
    """Of the text `pos until topic dedupe`."""
    return crc32(f"{pos} {until} {topic} {dedupe}".encode())


def is_sound_mark(topic: str, dedupe: str, pos: int, until: int, crc: int) -> bool:
    """`crc` is -1 for a mark of format 1, which had none."""
    return crc in (-1, mark_checksum(topic, dedupe, pos, until))


# -- formats


def format_of(connection: sqlite3.Connection) -> int:
    """The file's format; 0 for a new, empty file. Raises `FormatError` for a file that is not ours."""
    try:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if not tables and not application:
            return 0
        if application != APPLICATION_ID:
            raise FormatError("this SQLite file is not a Mainspring log", remedy="name another file or directory")
        found = connection.execute("SELECT max(version) FROM format").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            raise
        raise FormatError(
            f"this file is not a readable log: {error}", remedy="restore it from a backup, or name another file"
        ) from error
    return int(found or 0)


def migrate(connection: sqlite3.Connection, upto: int = FORMAT, known: dict[int, str] | None = None) -> list[int]:
    """Bring the file to this program's format; which formats were made. All of it happens, or nothing.

    A file of a newer format is refused and left alone: an older program would not keep what the newer one relies on.
    """
    steps = MIGRATIONS if known is None else known
    found = format_of(connection)
    if found > upto:
        raise FormatError(
            f"the log has format {found}; this version of Mainspring knows formats up to {upto}",
            remedy="use the newer version that wrote it, or restore a backup made before the upgrade",
        )
    made = [version for version in sorted(steps) if found < version <= upto]
    if not made:
        return made
    script = "".join(f"{steps[version]}\nINSERT INTO format VALUES ({version});\n" for version in made)
    try:
        connection.executescript(
            f"BEGIN IMMEDIATE;\nPRAGMA application_id = {APPLICATION_ID};\n{script}"
            f"PRAGMA user_version = {upto};\nCOMMIT;"
        )
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return made


# -- connections


def connect_writer(path: Path, synchronous: str = "FULL") -> sqlite3.Connection:
    """For the one writer. WAL: readers go on while it writes. FULL: a commit that returned is on stable storage.

    NORMAL: after a loss of power the file is sound, but the newest commits may be missing.
    """
    connection = _connect(path, "rwc")
    try:
        format_of(connection)  # before anything is set: a file that is not ours stays as it is
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the platters there
        connection.execute("PRAGMA secure_delete = FAST")  # some builds overwrite every removed row otherwise
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KB}")
    except BaseException:
        connection.close()
        raise
    return connection


def preallocate_wal(path: Path) -> None:
    """Fill the WAL with zeros up to the size it will have, so that commits overwrite instead of making it grow.

    While the WAL grew, a lone commit took half as long again (380 microseconds against 248, measured in turns), most
    likely because the file system journals the growth. SQLite keeps the size once reached, but starts from nothing at
    each boot. What lies behind the last valid frame means nothing to it: a recycled WAL has old frames there. Only for
    the writer, between two commits. Left out when space is short.
    """
    wal = path.with_name(path.name + "-wal")
    with suppress(OSError):
        space = os.statvfs(path.parent)
        missing = WAL_BYTES - wal.stat().st_size
        if missing > 0 and space.f_bavail * space.f_frsize > 8 * WAL_BYTES:
            with wal.open("ab") as file:
                file.write(b"\0" * missing)
                file.flush()
                os.fsync(file.fileno())


def connect_reader(path: Path) -> sqlite3.Connection:
    """For reading only, beside a writer in this process or another. An older file looks like one of this format."""
    connection = _connect(path, "ro")
    try:
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KB}")
        found = format_of(connection)
        if found < FORMAT:
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.executescript("".join(script for version, script in _READ_AS.items() if found < version))
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,  # transactions begin and end where the code says so
        check_same_thread=False,  # closed by another thread than the one that used it
        cached_statements=256,
        timeout=10.0,
    )


def check_format(path: Path) -> int:
    """For a reader, which cannot migrate: the file must be a log of this format, or of an older one; gives which."""
    with closing(_connect(path, "ro")) as connection:
        found = format_of(connection)
    if not 0 < found <= FORMAT:
        raise FormatError(
            f"the log has format {found}; this version of Mainspring knows formats up to {FORMAT}",
            remedy="use the newer version that wrote it",
        )
    return found
