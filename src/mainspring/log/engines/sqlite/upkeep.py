"""What is done to chunks after they were written: events are removed, small ones are put together.

Removing all events below an offset deletes whole chunks; in the one that holds the offset only the partition's head
moves. Removing single events writes their chunk again without them.

A topic with few events has a chunk for each. When many have come together they become one, in the writer's thread, when
it has nothing else to do or has done much: a step takes some milliseconds. Rows of older formats (`rows`) become chunks
in the same way, the newest first. Each step is a transaction of its own, so it does not matter where a process ends.

All functions are called in the writer's thread. A chunk that is damaged stays as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from mainspring.log.contract import Progress, silent
from mainspring.log.engines.sqlite.chunks import (
    COLUMNS,
    MOST_BYTES,
    MOST_EVENTS,
    SELECT_HEAD,
    SELECT_REST,
    Chunk,
    ChunkHead,
    ChunkValues,
    EventRow,
    pack,
    pack_events,
    row_bytes,
)
from mainspring.log.engines.sqlite.files import FileLock, files_of
from mainspring.log.engines.sqlite.plan import LogState, PartitionState
from mainspring.log.engines.sqlite.rows import any_rows, newest_rows, remove_rows
from mainspring.log.engines.sqlite.schema import FORMAT, MAX_OFFSET, connect_writer, format_of, migrate

FEW_CHUNKS: Final = 64  # so many small ones are left alone: an event is written again about four times at most
HEADS: Final = 256  # how many are looked at in one step

_INSERT = f"INSERT INTO chunks VALUES ({', '.join('?' * len(COLUMNS))})"
_AT_OR_BELOW = f"SELECT {SELECT_HEAD}, {SELECT_REST} FROM chunks WHERE pos <= ? AND pos > ? ORDER BY pos DESC LIMIT 1"
_FIRST = f"SELECT pos, {SELECT_REST} FROM chunks WHERE pos > ? AND pos < ? ORDER BY pos LIMIT 1"
_MEASURE = "SELECT ifnull(sum(events), 0), ifnull(sum(bytes), 0) FROM chunks WHERE pos > ? AND pos < ?"
_DELETE = "DELETE FROM chunks WHERE pos > ? AND pos < ?"
_HEADS = f"SELECT {SELECT_HEAD} FROM chunks WHERE pos >= ? AND pos < ? ORDER BY pos LIMIT {HEADS}"
_BETWEEN = f"SELECT pos, {SELECT_REST} FROM chunks WHERE pos >= ? AND pos <= ? ORDER BY pos"

Measure = tuple[int, int]  # events and their bytes


# -- removing


def remove_below(connection: sqlite3.Connection, base: int, head: int, below: int) -> tuple[int, int, int]:
    """Remove the events from `head` up to `below`; how many, their bytes, and the new head."""
    count, size = remove_rows(connection, base, below)
    row = connection.execute(_AT_OR_BELOW, (base + below - 1, base)).fetchone()
    if row is None:
        return count, size, below
    boundary, chunk = _both(row)
    whole = boundary.is_sound() and boundary.last < below  # if not even that is certain, it stays
    end = boundary.pos + 1 if whole else boundary.pos
    first = connection.execute(_FIRST, (base, end)).fetchone()
    if first is not None:
        events, more = connection.execute(_MEASURE, (base, end)).fetchone()
        gone, gone_bytes = _measure(Chunk(*first), 0, head)
        connection.execute(_DELETE, (base, end))
        count, size = count + events - gone, size + more - gone_bytes
    if not whole:
        events, part = _measure(chunk, head, below)
        count, size = count + events, size + part
        below = min((row[0] for row in _rows_of(chunk) if row[0] >= below), default=below)
    return count, size, below


def remove_offsets(connection: sqlite3.Connection, base: int, head: int, offsets: Iterable[int]) -> Measure:
    """Remove single events; how many there were, and their bytes."""
    wanted = sorted({offset for offset in offsets if offset >= head}, reverse=True)
    count, size = remove_rows(connection, base, 0, wanted)
    while wanted:
        row = connection.execute(_AT_OR_BELOW, (base + wanted[-1], base)).fetchone()
        if row is None:
            wanted.pop()
            continue
        known, chunk = _both(row)
        gone = {wanted.pop()}
        while wanted and wanted[-1] <= known.last:
            gone.add(wanted.pop())
        if not chunk.is_sound():
            continue
        rows = chunk.rows()
        kept = [row for row in rows if row[0] not in gone and row[0] >= head]
        dropped = [row for row in rows if row[0] in gone]
        if dropped:
            values = [pack(base, pack_events(base, kept), known.total, known.high_ts)] if kept else []
            _replace(connection, known.pos, known.pos, values)
            count, size = count + len(dropped), size + row_bytes(dropped)
    return count, size


def _measure(chunk: Chunk, start: int, end: int) -> Measure:
    """The events of a chunk with these offsets."""
    if chunk.first >= end:
        return 0, 0
    rows = [row for row in _rows_of(chunk) if start <= row[0] < end]
    return len(rows), row_bytes(rows) if rows else 0


def _rows_of(chunk: Chunk) -> list[EventRow]:
    return chunk.rows() if chunk.is_sound() else [part.remains for part in chunk.parts()]


def _both(row: tuple[object, ...]) -> tuple[ChunkHead, Chunk]:
    return ChunkHead(*row[:7]), Chunk(row[0], *row[7:])  # type: ignore[arg-type]


def _replace(connection: sqlite3.Connection, first: int, last: int, chunks: Iterable[ChunkValues]) -> None:
    """Put chunks in the place of those with keys from `first` to `last`."""
    connection.execute(_DELETE, (first - 1, last + 1))
    for values in chunks:
        connection.execute(_INSERT, values)


# -- putting together


def put_together(connection: sqlite3.Connection, state: PartitionState) -> bool:
    """One step for one partition; False: there is nothing to do until more chunks have come."""
    heads = [
        ChunkHead(*row)
        for row in connection.execute(_HEADS, (state.base + state.tidied, state.base + MAX_OFFSET + 1)).fetchall()
    ]
    run: list[ChunkHead] = []
    events = size = 0
    for head in heads:
        if events + head.events > MOST_EVENTS or size + head.bytes > MOST_BYTES:
            if len(run) > 1:
                return _merge(connection, state, run)
            state.tidied = head.first
            run, events, size = [], 0, 0
        run.append(head)
        events, size = events + head.events, size + head.bytes
    if len(run) > FEW_CHUNKS:
        return _merge(connection, state, run)
    state.loose = len(run)
    return len(heads) == HEADS


def _merge(connection: sqlite3.Connection, state: PartitionState, run: list[ChunkHead]) -> bool:
    first, last = run[0].pos, run[-1].pos
    rows: list[EventRow] = []
    for head, values in zip(run, connection.execute(_BETWEEN, (first, last)).fetchall(), strict=True):
        chunk = Chunk(*values)
        if not chunk.is_sound() or not head.is_sound():
            state.tidied = chunk.first + 1
            return True
        rows += chunk.rows()
    rows = [row for row in rows if row[0] >= state.head]
    values = [pack(state.base, pack_events(state.base, rows), run[-1].total, run[-1].high_ts)] if rows else []
    _in_transaction(connection, lambda: _replace(connection, first, last, values))
    return True


# -- from rows to chunks


def convert_rows(connection: sqlite3.Connection, log_state: LogState, passed_over: set[int]) -> int:
    """Put the newest rows of a partition into a chunk; how many. 0: no rows are left, or none that can be taken.

    A damaged row stays where it is, and so do those before it: the partitions are noted in `passed_over`.
    """
    for state in log_state.partitions.values():
        if state.id in passed_over:
            continue
        rows, total, high_ts = newest_rows(connection, state.base, MOST_EVENTS, MOST_BYTES)
        if not rows:
            passed_over.add(state.id)
            continue
        chunk = pack(state.base, pack_events(state.base, rows), total, high_ts)

        def store(state: PartitionState = state, rows: list[EventRow] = rows, chunk: ChunkValues = chunk) -> None:
            connection.execute(_INSERT, chunk)
            remove_rows(connection, state.base, rows[-1][0] + 1, at_least=rows[0][0])

        _in_transaction(connection, store)
        return len(rows)
    return 0


class Upgrade(msgspec.Struct, frozen=True):
    """What `upgrade` did. `left`: events that stay in rows, because one behind them is damaged."""

    before: int
    format: int
    events: int
    left: int


def upgrade(path: Path, progress: Progress = silent) -> Upgrade:
    """Bring a file to this format, and all of its events into chunks. No node may have it open."""
    owner = FileLock(files_of(path)[-1])
    try:
        with closing(connect_writer(path)) as connection:
            before = format_of(connection)
            migrate(connection)
            log_state, passed_over = LogState(connection), set[int]()
            done, total = 0, rows_left(connection)
            while moved := convert_rows(connection, log_state, passed_over):
                done += moved
                progress("events", done, total)
            for state in log_state.partitions.values():
                while put_together(connection, state):
                    progress("events", done, total)
            return Upgrade(before, FORMAT, done, rows_left(connection))
    finally:
        owner.release()


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], object]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def rows_left(connection: sqlite3.Connection) -> int:
    """How many events are still in rows."""
    if not any_rows(connection):
        return 0
    (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    return int(count)
