"""Copies: a backup of a log that is being written, and storing what another log gave out.

`backup` is SQLite's own online backup, from one moment in time. The copy is read inside one read transaction, so what
the node writes meanwhile is not in it and the backup never has to start again. It is written under another name, made
durable, and only then given its own: a file with the name asked for is a whole backup. While it runs, the node's WAL
cannot be folded back and grows by what is published meanwhile.

`restore` runs in the writer's transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from mainspring.log.contract import (
    FormatError,
    KeptRecord,
    KeptTail,
    LogExists,
    Mark,
    Progress,
    Refused,
    Restorable,
    StoredEvent,
    event_bytes,
    silent,
)
from mainspring.log.engines.sqlite.plan import VERSIONS_PER_RESERVATION, LogState, PartitionState
from mainspring.log.engines.sqlite.schema import check_format, connect_reader, event_checksum, record_checksum
from mainspring.log.engines.sqlite.writer import (
    RESERVE_VERSIONS,
    UPDATE_PARTITION,
    WRITE_MARKS,
    WRITE_RECORDS,
    insert_events,
    statements_for,
    unavailable,
)

PAGES_PER_STEP = 2_000


def backup(source: Path, target: Path, progress: Progress = silent) -> int:
    """Copy the log at `source` to `target`, which must not exist; the copy's size in bytes."""
    if target.exists():
        raise LogExists(f"{target} exists already", remedy="name a file that does not exist yet")
    partial = target.with_name(target.name + ".partial")
    try:
        check_format(source)
        partial.unlink(missing_ok=True)
        _copy(source, partial, progress)
        _make_durable(partial)
        os.replace(partial, target)
        _make_durable(target.parent)
    except (sqlite3.Error, OSError) as error:
        partial.unlink(missing_ok=True)
        raise unavailable(error) from error
    except FormatError:
        partial.unlink(missing_ok=True)
        raise
    return target.stat().st_size


def _copy(source: Path, partial: Path, progress: Progress) -> None:
    def step(status: int, remaining: int, total: int) -> None:
        progress("pages", total - remaining, total)

    with closing(connect_reader(source)) as reading, closing(sqlite3.connect(partial)) as writing:
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM format").fetchone()  # the moment in time begins with the first read
        reading.backup(writing, pages=PAGES_PER_STEP, progress=step)
        reading.execute("COMMIT")


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- storing what another log gave out, with its offsets and versions


class _Restoration:
    """Collects rows and moves the state along; when it fails, the writer reads the state from the file again."""

    def __init__(self, connection: sqlite3.Connection, log_state: LogState) -> None:
        self._connection = connection
        self._log_state = log_state
        self._events: list[object] = []
        self._touched: dict[int, PartitionState] = {}
        self._version = 0

    def _partition(self, topic: str, partition: int) -> PartitionState:
        state = self._log_state.partitions.get((topic, partition))
        if state is None:
            state = self._log_state.create(topic, partition)
            row = (state.id, topic, partition, 0, 0, None, 0, 0)
            self._connection.execute("INSERT INTO partitions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._touched[state.id] = state
        return state

    def event(self, event: StoredEvent) -> None:
        state = self._partition(event.topic, event.partition)
        if event.offset <= state.tail:
            raise Refused(
                f"offset {event.offset} of {event.topic!r} partition {event.partition} is not above {state.tail}",
                remedy="restore into an empty log, events ascending by offset",
            )
        state.removed += event.offset - state.tail - 1
        state.tail = event.offset
        state.total += event_bytes(event)
        high = state.high_ts
        state.high_ts = event.ts if high is None else max(high, event.ts)
        pos = state.base + event.offset
        crc = event_checksum(pos, event.ts, event.id, event.key, event.headers, event.payload)
        own_high = None if state.high_ts == event.ts else state.high_ts
        self._events += (pos, event.ts, state.total, crc, event.id, event.payload, own_high, event.key, event.headers)

    def tail(self, tail: KeptTail) -> None:
        state = self._partition(tail.topic, tail.partition)
        if tail.tail > state.tail:
            state.removed += tail.tail - state.tail
            state.tail = tail.tail

    def record(self, record: KeptRecord) -> None:
        crc = record_checksum(record.space, record.key, record.version, record.value)
        statement, values = next(
            statements_for(WRITE_RECORDS, 5, (record.space, record.key, record.version, crc, record.value))
        )
        self._connection.execute(statement, values)
        self._version = max(self._version, record.version)

    def mark(self, mark: Mark) -> None:
        pos = self._partition(mark.topic, mark.partition).base + mark.offset
        statement, values = next(statements_for(WRITE_MARKS, 4, (mark.topic, mark.dedupe, pos, mark.until)))
        self._connection.execute(statement, values)

    def finish(self) -> None:
        for statement, values in insert_events(self._events):
            self._connection.execute(statement, values)
        for state in self._touched.values():
            state.stored = True
            state.durable_tail = state.tail
            self._connection.execute(
                UPDATE_PARTITION,
                (state.tail, state.total, state.high_ts, state.removed, state.removed_bytes, state.id),
            )
        if self._version > self._log_state.version:
            self._log_state.version = self._version
            self._log_state.reserved_version = self._version + VERSIONS_PER_RESERVATION
            self._connection.execute(RESERVE_VERSIONS, (self._log_state.reserved_version,))


def restore(connection: sqlite3.Connection, log_state: LogState, items: Sequence[Restorable]) -> None:
    """Raises `Refused` when an offset does not ascend; the caller's transaction then takes everything back."""
    work = _Restoration(connection, log_state)
    for item in items:
        if isinstance(item, StoredEvent):
            work.event(item)
        elif isinstance(item, KeptTail):
            work.tail(item)
        elif isinstance(item, KeptRecord):
            work.record(item)
        else:
            work.mark(item)
    work.finish()
