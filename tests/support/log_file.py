"""The file of a log, looked at and changed behind its back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

from mainspring.log import StoredEvent
from mainspring.log.contract import event_bytes
from mainspring.log.engines.sqlite import schema
from mainspring.log.engines.sqlite.chunks import Chunk
from mainspring.log.engines.sqlite.reader import SqliteReader


def alter(path: Path, statement: str, *values: object) -> int:
    """Change the file, as rot would; how many rows."""
    with closing(sqlite3.connect(path)) as connection:
        changed = connection.execute(statement, values).rowcount
        connection.commit()
    return changed


def stored_events(path: Path) -> list[StoredEvent]:
    """Every event, by topic, partition and offset. None may be damaged."""
    with closing(SqliteReader(path)) as reader:
        return [
            event
            for topic in reader.topics()
            for bounds in reader.bounds(topic)
            for event in _all(reader, topic, bounds.partition)
        ]


def _all(reader: SqliteReader, topic: str, partition: int) -> Iterator[StoredEvent]:
    start = 1
    while page := reader.events(topic, partition, start, 1_000, 4 << 20):
        yield from page
        start = page[-1].offset + 1


def chunks_of(path: Path) -> list[Chunk]:
    with closing(sqlite3.connect(path)) as connection:
        return [Chunk(*row) for row in connection.execute("SELECT pos, crc, sums, data FROM chunks ORDER BY pos")]


def damage_event(path: Path, id: str, change: Callable[[bytes], bytes] = lambda raw: raw[:-2] + b"\xc1\xc1") -> None:
    """Change the bytes of one event, and nothing that says what they should be."""
    for chunk in chunks_of(path):
        ends = list(accumulate(chunk._sums()[2])) if chunk.sums else [len(chunk.data)]
        for row, end in zip(chunk.rows(), ends, strict=True):
            if row[2] == id:
                payload = row[3]
                at = chunk.data.rindex(payload, 0, len(chunk.data) - ends[-1] + end)
                data = chunk.data[:at] + change(payload) + chunk.data[at + len(payload) :]
                assert len(data) == len(chunk.data)
                assert data != chunk.data
                assert alter(path, "UPDATE chunks SET data = ? WHERE pos = ?", data, chunk.pos) == 1
                return
    raise AssertionError(f"no event has the id {id!r}")


def write_rows(path: Path, format: int, events: Sequence[StoredEvent]) -> None:
    """A log as formats 1 and 2 kept it: one row for each event. Offsets ascend."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        schema.migrate(connection, format)
        connection.execute("BEGIN")
        ends: dict[tuple[str, int], tuple[int, int, int]] = {}
        for event in events:
            place = (event.topic, event.partition)
            if place not in ends:
                ends[place] = (len(ends) + 1, 0, event.ts)
                connection.execute("INSERT INTO partitions VALUES (?, ?, ?, 0, 0, NULL, 0, 0)", (len(ends), *place))
            number, total, high = ends[place]
            total, high = total + event_bytes(event), max(high, event.ts)
            ends[place] = (number, total, high)
            pos = (number << schema.OFFSET_BITS) + event.offset
            crc = schema.event_checksum(pos, event.ts, event.id, event.key, event.headers, event.payload)
            highest = None if high == event.ts else high
            values = (pos, event.ts, highest, total, crc, event.id, event.key, event.headers, event.payload)
            connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        removed = "removed = tail - (SELECT count(*) FROM events e WHERE e.pos >> 43 = partitions.id)"
        last = "(SELECT max(pos) & 8796093022207 FROM events e WHERE e.pos >> 43 = partitions.id)"
        connection.execute(f"UPDATE partitions SET tail = {last}, total = 0")
        connection.execute(f"UPDATE partitions SET {removed}")
        for number, total, high in ends.values():
            connection.execute("UPDATE partitions SET total = ?, high_ts = ? WHERE id = ?", (total, high, number))
        connection.execute("COMMIT")
