"""Reading the file.

A page of events comes back as one row: SQLite concatenates each column, and a second column has the lengths to cut it
by. It looks odd, and it is the same reason as for many-row inserts: with a busy thread beside it, 64 rows fetched
one by one took 2.2 ms, in one row 0.3 ms.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

from mainspring.log.contract import (
    ABSENT,
    Bounds,
    DamagedEvent,
    DamagedRecord,
    Mark,
    Outline,
    Record,
    StoredEvent,
    end_of_prefix,
    outline_of,
)
from mainspring.log.engines.sqlite.plan import load_bounds
from mainspring.log.engines.sqlite.schema import (
    EVENT_BYTES,
    MAX_OFFSET,
    OFFSET_BITS,
    connect_reader,
    event_checksum,
    is_sound_mark,
    is_sound_record,
)

PAGE_ROWS = 256

_PAGE = "FROM events WHERE pos >= :start AND pos < :end ORDER BY pos LIMIT"
# `total` also counts events that were removed since, so behind holes a page may be smaller than it could be.
_EVENTS = f"""
    SELECT group_concat(pos), group_concat(ts), group_concat(crc),
           group_concat(length(CAST(id AS BLOB))), CAST(group_concat(id, '') AS BLOB),
           group_concat(ifnull(length(CAST(key AS BLOB)), -1)), CAST(group_concat(key, '') AS BLOB),
           group_concat(ifnull(length(headers), -1)), CAST(group_concat(headers, '') AS BLOB),
           group_concat(length(payload)), CAST(group_concat(payload, '') AS BLOB)
    FROM (SELECT * FROM events WHERE pos >= :start AND pos <= coalesce(
        (SELECT max(pos) FROM (SELECT pos, total {_PAGE} :limit)
         WHERE total <= :bytes + (SELECT total - ({EVENT_BYTES}) {_PAGE} 1)),
        (SELECT pos {_PAGE} 1))
    ORDER BY pos)
"""
_PROBE = f"SELECT pos, coalesce(high_ts, ts) {_PAGE} 1"
_FIRST_SINCE = "SELECT pos FROM events WHERE pos >= ? AND pos < ? AND ts >= ? ORDER BY pos LIMIT 1"
_RECORDS = (
    "SELECT key, version, crc, value FROM records WHERE space = ? AND key > ? AND key >= ? {} ORDER BY key LIMIT ?"
)


class SqliteReader:
    """One connection; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.connection: sqlite3.Connection = connect_reader(path)
        self._bases: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self.connection.close()

    def problems(self) -> list[str]:
        """What is wrong with the structure of the file, as SQLite says it."""
        return [line for (line,) in self.connection.execute("PRAGMA quick_check(10)") if line != "ok"]

    def unused_bytes(self) -> int:
        """Bytes of the file that hold nothing any more and are written to before it grows."""
        pages, size = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size")
        )
        return int(pages) * int(size)

    # -- events

    def events(self, topic: str, partition: int, start: int, limit: int, max_bytes: int) -> list[StoredEvent]:
        base = self._base(topic, partition)
        if base is None or limit <= 0 or start > MAX_OFFSET:
            return []
        page = self.connection.execute(
            _EVENTS,
            {"start": base + max(start, 1), "end": base + MAX_OFFSET + 1, "limit": limit, "bytes": max_bytes},
        ).fetchone()
        return [] if page[0] is None else _cut(topic, partition, page)

    def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        return [outline_of(event) for event in self.events(topic, partition, start, limit, 4 << 20)]

    def _base(self, topic: str, partition: int) -> int | None:
        """Partitions are never renumbered, so what was found once holds."""
        base = self._bases.get((topic, partition))
        if base is None:
            row = self.connection.execute(
                "SELECT id FROM partitions WHERE topic = ? AND partition = ?", (topic, partition)
            ).fetchone()
            if row is None:
                return None
            base = self._bases[topic, partition] = row[0] << OFFSET_BITS
        return base

    def topics(self) -> list[str]:
        return [topic for (topic,) in self.connection.execute("SELECT DISTINCT topic FROM partitions ORDER BY topic")]

    def bounds(self, topic: str) -> list[Bounds]:
        return load_bounds(self.connection, topic)

    def offset_at(self, topic: str, partition: int, ts: int) -> int:
        """Bisection over `high_ts`, which never falls; then forward past events that are older than it, if any."""
        bounds = next((bounds for bounds in self.bounds(topic) if bounds.partition == partition), None)
        base = self._base(topic, partition)
        if bounds is None or base is None:
            return 1
        low, high = bounds.head, bounds.tail + 1  # the answer lies in low..high
        while low < high:
            middle = (low + high) // 2
            place = {"start": base + middle, "end": base + high}
            found = self.connection.execute(_PROBE, place).fetchone()
            if found is None or found[1] >= ts:
                high = middle
            else:
                low = (found[0] & MAX_OFFSET) + 1
        first = self.connection.execute(_FIRST_SINCE, (base + low, base + MAX_OFFSET + 1, ts)).fetchone()
        return bounds.tail + 1 if first is None else first[0] & MAX_OFFSET

    # -- records and marks

    def record(self, space: str, key: str) -> Record | None:
        row = self.connection.execute(
            "SELECT version, crc, value FROM records WHERE space = ? AND key = ?", (space, key)
        ).fetchone()
        return None if row is None else _checked(space, key, *row)

    def records(self, space: str, prefix: str, after: str) -> list[Record]:
        """The next page; empty at the end. Raises `DamagedRecord` when the first one is damaged, else stops before."""
        bound = end_of_prefix(prefix)
        query = _RECORDS.format("" if bound is None else "AND key < ?")
        values = (space, after, prefix, *(() if bound is None else (bound,)), PAGE_ROWS)
        page: list[Record] = []
        for row in self.connection.execute(query, values).fetchall():
            try:
                page.append(_checked(space, *row))
            except DamagedRecord:
                if not page:
                    raise
                break
        return page

    def spaces(self) -> list[str]:
        found: list[str] = []
        last = ""
        while row := self.connection.execute("SELECT min(space) FROM records WHERE space > ?", (last,)).fetchone():
            if row[0] is None:
                break
            last = row[0]
            found.append(last)
        return found

    def marks(self, after: tuple[str, str]) -> list[Mark]:
        rows = self.connection.execute(
            "SELECT m.topic, m.dedupe, m.pos, m.until, ifnull(m.crc, -1), p.partition FROM marks m "
            "JOIN partitions p ON p.id = m.pos >> ? WHERE (m.topic, m.dedupe) > (?, ?) "
            "ORDER BY m.topic, m.dedupe LIMIT ?",
            (OFFSET_BITS, *after, PAGE_ROWS),
        ).fetchall()
        return [
            Mark(topic, dedupe, partition, pos & MAX_OFFSET, until)
            for topic, dedupe, pos, until, crc, partition in rows
            if is_sound_mark(topic, dedupe, pos, until, crc)
        ]


def _cut(topic: str, partition: int, page: tuple[object, ...]) -> list[StoredEvent]:
    """The events of a page, up to the first damaged one."""
    found: list[StoredEvent] = []
    columns = zip(
        _numbers(page[0]),
        _numbers(page[1]),
        _numbers(page[2]),
        _slices(page[3], page[4]),
        _slices(page[5], page[6]),
        _slices(page[7], page[8]),
        _slices(page[9], page[10]),
        strict=True,
    )
    for pos, ts, crc, raw_id, raw_key, headers, payload in columns:
        assert raw_id is not None
        assert payload is not None
        try:
            id = raw_id.decode()
            key = None if raw_key is None else raw_key.decode()
            sound = event_checksum(pos, ts, id, key, headers, payload) == crc
        except UnicodeDecodeError:
            id = raw_id.decode(errors="replace")
            key = None if raw_key is None else raw_key.decode(errors="replace")
            sound = False
        event = StoredEvent(topic, partition, pos & MAX_OFFSET, id, ts, payload, key, headers)
        if not sound:
            if found:
                return found
            raise DamagedEvent(topic, partition, event.offset, event)
        found.append(event)
    return found


def _numbers(joined: object) -> Iterator[int]:
    assert isinstance(joined, str)
    return map(int, joined.split(","))


def _slices(lengths: object, joined: object) -> Iterator[bytes | None]:
    """Pieces of `joined`; a length of -1 stands for NULL."""
    assert isinstance(lengths, str)
    if joined is None:
        return repeat(None, lengths.count(",") + 1)
    assert isinstance(joined, bytes)
    return _pieces(_numbers(lengths), joined)


def _pieces(lengths: Iterator[int], joined: bytes) -> Iterator[bytes | None]:
    start = 0
    for length in lengths:
        if length < 0:
            yield None
        else:
            yield joined[start : start + length]
            start += length


def _checked(space: str, key: str, version: int, crc: int, value: bytes) -> Record:
    if not is_sound_record(space, key, version, value, crc):
        raise DamagedRecord(space, key, version if isinstance(version, int) else ABSENT)
    return Record(key, value, version)
