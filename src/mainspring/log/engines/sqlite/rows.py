"""Events as formats 1 and 2 kept them: one row each, in the table `events`. Nothing is written there any more.

The rows of a partition lie before its chunks. They are put into chunks from the newest to the oldest (`upkeep`), so
that this stays so at every moment. Until then they are read here.

A page comes back as one row: SQLite concatenates each column, and a second column has the lengths to cut it by. With a
busy thread beside it, 64 rows fetched one by one took 2.2 ms, in one row 0.3 ms.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import repeat

from mainspring.log.contract import DamagedEvent, StoredEvent
from mainspring.log.engines.sqlite.chunks import EventRow
from mainspring.log.engines.sqlite.schema import EVENT_BYTES, MAX_OFFSET, event_checksum

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


def any_rows(connection: sqlite3.Connection) -> bool:
    """Whether there are any. Once there are none, there never will be."""
    return connection.execute("SELECT 1 FROM events LIMIT 1").fetchone() is not None


def about_rows(connection: sqlite3.Connection, bases: Iterable[int]) -> int:
    """How many there are, or a few more: looked up at the ends of each partition, not counted."""
    left = 0
    for base in bases:
        ends = [
            connection.execute(
                f"SELECT {end}(pos) FROM events WHERE pos > ? AND pos < ?", (base, base + MAX_OFFSET + 1)
            )
            for end in ("min", "max")
        ]
        (first,), (last,) = (each.fetchone() for each in ends)
        left += 0 if first is None else last - first + 1
    return left


def read_rows(
    connection: sqlite3.Connection,
    topic: str,
    partition: int,
    base: int,
    start: int,
    limit: int,
    max_bytes: int,
) -> list[StoredEvent]:
    """Events of a partition from an offset on; empty when none are left there."""
    place = {"start": base + start, "end": base + MAX_OFFSET + 1, "limit": limit, "bytes": max_bytes}
    page = connection.execute(_EVENTS, place).fetchone()
    return [] if page[0] is None else _cut(topic, partition, page)


def row_since(connection: sqlite3.Connection, base: int, head: int, ts: int) -> int | None:
    """The lowest offset whose event has that time or a later one; None: not among these.

    Bisection over `high_ts`, which never falls; then forward past events that are older than it, if any.
    """
    end = base + MAX_OFFSET + 1
    (last,) = connection.execute("SELECT max(pos) FROM events WHERE pos > ? AND pos < ?", (base, end)).fetchone()
    if last is None:
        return None
    low, high = head, (last & MAX_OFFSET) + 1  # the answer lies in low..high
    while low < high:
        middle = (low + high) // 2
        found = connection.execute(_PROBE, {"start": base + middle, "end": base + high}).fetchone()
        if found is None or found[1] >= ts:
            high = middle
        else:
            low = (found[0] & MAX_OFFSET) + 1
    first = connection.execute(_FIRST_SINCE, (base + low, end, ts)).fetchone()
    return None if first is None else int(first[0]) & MAX_OFFSET


# -- taking them away

_NEWEST = (
    "SELECT pos, ts, id, payload, key, headers, total, high_ts, crc FROM events WHERE pos > ? AND pos < ? "
    "ORDER BY pos DESC LIMIT ?"
)
_IN_RANGE = "FROM events WHERE pos >= ? AND pos < ?"
_AT = "FROM events WHERE pos = ?"
_MEASURE = f"SELECT count(*), ifnull(sum({EVENT_BYTES}), 0)"


def newest_rows(
    connection: sqlite3.Connection, base: int, most: int, most_bytes: int
) -> tuple[list[EventRow], int, int]:
    """The last events of a partition down to a damaged one, ascending, and their last total and highest time."""
    found: list[EventRow] = []
    size = last_total = last_high = 0
    for row in connection.execute(_NEWEST, (base, base + MAX_OFFSET + 1, most)):
        pos, ts, id, payload, key, headers, total, high_ts, crc = row
        size += len(payload)
        if found and size > most_bytes:
            break
        if not _is_sound(pos, ts, id, key, headers, payload, crc):
            break
        if not found:
            last_total, last_high = total, ts if high_ts is None else high_ts
        found.append((pos & MAX_OFFSET, ts, id, payload, key, headers))
    found.reverse()
    return found, last_total, last_high


def _is_sound(pos: int, ts: int, id: object, key: object, headers: bytes | None, payload: bytes, crc: int) -> bool:
    if not isinstance(id, str) or not (key is None or isinstance(key, str)):
        return False
    try:
        return event_checksum(pos, ts, id, key, headers, payload) == crc
    except (TypeError, UnicodeEncodeError):
        return False


def remove_rows(
    connection: sqlite3.Connection, base: int, below: int, offsets: Iterable[int] = (), *, at_least: int = 1
) -> tuple[int, int]:
    """Remove those from one offset up to another, and single ones; how many there were, and their bytes."""
    work: list[tuple[str, tuple[int, ...]]] = [(_AT, (base + offset,)) for offset in offsets]
    if below > at_least:
        work.append((_IN_RANGE, (base + at_least, base + below)))
    count = size = 0
    for where, values in work if any_rows(connection) else ():
        more, more_bytes = connection.execute(f"{_MEASURE} {where}", values).fetchone()
        if more:
            connection.execute(f"DELETE {where}", values)
            count, size = count + more, size + more_bytes
    return count, size


# -- cutting a page


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
