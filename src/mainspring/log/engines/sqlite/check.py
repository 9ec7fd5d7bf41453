"""Looking at the file of a log: is there one, is every row what was written, and do the parts agree?

`check` reads in short pages beside a serving node, so a partition may grow meanwhile; what is compared is taken so that
growth cannot look like damage. Damage is listed, never repaired: which copy is right is a person's decision.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from mainspring.log.contract import FormatError, Inspection, LogUnavailable, Progress, silent
from mainspring.log.engines.sqlite import schema
from mainspring.log.engines.sqlite.chunks import SELECT_HEAD, SELECT_REST, Chunk, ChunkHead, EventRow, row_bytes
from mainspring.log.engines.sqlite.engine import DURABILITY
from mainspring.log.engines.sqlite.files import look_at_wal
from mainspring.log.engines.sqlite.plan import LogState, PartitionState
from mainspring.log.engines.sqlite.reader import SqliteReader
from mainspring.log.engines.sqlite.wal import wal_of

PAGE_EVENTS = 2_000
MOST_PROBLEMS = 1_000  # a file that is noise from end to end should not fill the memory with complaints


def inspect_file(path: Path) -> Inspection:
    """Whether there is a log, and of which format; a node may have it open."""
    found = _format_of(path) if path.exists() else 0
    return Inspection(
        place=str(path),
        log=found > 0,
        knows=schema.FORMAT,
        format=found or None,
        missing=() if found else ("the file",),
        replicas=1,
        durability=DURABILITY,
        loss_window_s=0,
    )


def _format_of(path: Path) -> int:
    # Reading a file that no process has open would leave SQLite's helper files beside it; `immutable` leaves nothing.
    at_rest = not path.with_name(path.name + "-wal").exists()
    mode = "immutable=1" if at_rest else "mode=ro"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as connection:
            found = schema.format_of(connection)
    except sqlite3.Error as error:
        raise LogUnavailable(f"the log {path} cannot be read: {error}", remedy="check its owner and rights") from error
    if found > schema.FORMAT:
        raise FormatError(
            f"the log has format {found}; this version of Mainspring knows formats up to {schema.FORMAT}",
            remedy="use the newer version that wrote it",
        )
    return found


class LogProblem(msgspec.Struct, frozen=True):
    """`kind` is stable: structure, event, chunk, order, total, tail, record, version, mark, orphan, wal, unreadable."""

    kind: str
    where: str
    detail: str


class CheckReport(msgspec.Struct):
    """What `check` counted, and every problem it found (`more_problems`: how many are not listed)."""

    format: int
    topics: int = 0
    partitions: int = 0
    events: int = 0
    records: int = 0
    marks: int = 0
    problems: list[LogProblem] = msgspec.field(default_factory=list)
    more_problems: int = 0

    def add(self, kind: str, where: str, detail: str) -> None:
        """Report a problem."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(LogProblem(kind, where, detail))
        else:
            self.more_problems += 1


def check(path: Path, progress: Progress = silent) -> CheckReport:
    """Verify the file's structure, every checksum, the order of offsets, tails, totals, versions and marks.

    Raises `FormatError` when the file is no log or is of a newer format, and sqlite3's errors when it cannot be read.
    """
    wal = look_at_wal(path)
    found = schema.check_format(path)
    with closing(SqliteReader(path)) as reader:
        report = _Check(reader, found, progress).run()
    if wal is not None and wal.has_lost:
        detail = (
            f"{wal.hidden_commits} commits cannot be seen: {wal.faults[0]}; `mainspring log recover` brings them back"
        )
        report.add("wal", wal_of(path).name, detail)
    return report


_ROWS = (
    "SELECT pos, ts, high_ts, total, crc, CAST(id AS BLOB), CAST(key AS BLOB), headers, payload "
    "FROM events WHERE pos >= ? AND pos <= ? ORDER BY pos"
)


_CHUNKS = f"SELECT {SELECT_HEAD}, {SELECT_REST} FROM chunks WHERE pos >= ? AND pos <= ?"


class _Seen(msgspec.Struct, frozen=True):
    """The end of what was looked at of a partition."""

    offset: int
    total: int
    high_ts: int


class _Row(msgspec.Struct):
    """An event in a row of its own as it lies in the file, believed in nothing."""

    pos: int
    ts: int
    high_ts: int | None
    total: int
    crc: int
    id: bytes
    key: bytes | None
    headers: bytes | None
    payload: bytes

    @property
    def bytes(self) -> int:
        return len(self.payload) + len(self.id) + len(self.key or b"") + len(self.headers or b"")

    def is_sound(self) -> bool:
        try:
            key = None if self.key is None else self.key.decode()
            crc = schema.event_checksum(self.pos, self.ts, self.id.decode(), key, self.headers, self.payload)
        except (UnicodeDecodeError, TypeError):
            return False
        return crc == self.crc


class _Check:
    def __init__(self, reader: SqliteReader, format: int, progress: Progress) -> None:
        self.reader = reader
        self.connection = reader.connection
        self.progress = progress
        self.report = CheckReport(format)

    def run(self) -> CheckReport:
        self._structure()
        try:
            log_state = LogState(self.connection)
            self._orphans(log_state)
            partitions = list(log_state.partitions.values())
            self.report.topics = len({state.topic for state in partitions})
            self.report.partitions = len(partitions)
            expected = sum(state.tail - state.removed for state in partitions)
            for state in partitions:
                self._partition(state, expected)
            self._records()
            self._marks()
        except sqlite3.DatabaseError as error:
            self.report.add("structure", "file", str(error))
        return self.report

    def _structure(self) -> None:
        self.progress("structure", 0, 0)
        for (line,) in self.connection.execute("PRAGMA integrity_check(100)"):
            if line != "ok":
                self.report.add("structure", "file", line)

    def _orphans(self, log_state: LogState) -> None:
        """Events that belong to no partition: looked for between the ranges of the partitions, not row by row."""
        known = sorted(state.id for state in log_state.partitions.values())
        for after, before in zip([-1, *known], [*known, schema.MAX_PARTITION_ID + 1], strict=True):
            first = (after + 1) << schema.OFFSET_BITS
            (count,) = self.connection.execute(
                "SELECT (SELECT count(*) FROM events WHERE pos >= :first AND pos < :end)"
                " + (SELECT ifnull(sum(events), 0) FROM chunks WHERE pos >= :first AND pos < :end)",
                {"first": first, "end": before << schema.OFFSET_BITS},
            ).fetchone()
            # A node that serves meanwhile may have made a partition there since.
            (known_now,) = self.connection.execute(
                "SELECT count(*) FROM partitions WHERE id > ? AND id < ?", (after, before)
            ).fetchone()
            if count and not known_now:
                self.report.add("orphan", f"events from key {first}", f"{count} events belong to no partition")

    def _partition(self, state: PartitionState, expected: int) -> None:
        where = f"{state.topic} partition {state.partition}"
        between = (state.base + 1, state.base + state.tail)
        before, events, size = self.report.events, 0, 0
        seen: _Seen | None = None
        for values in self.connection.execute(
            _ROWS, between
        ):  # one by one: large payloads must not be in memory at once
            row = _Row(*values)
            seen = self._row(where, seen, row)
            events, size = events + 1, size + row.bytes
            if events % PAGE_EVENTS == 0:
                self.progress("events", before + events, expected)
        for values in self.connection.execute(_CHUNKS, between):
            head, chunk = ChunkHead(*values[:7]), Chunk(values[0], *values[7:])
            more, more_bytes, seen = self._chunk(state, where, seen, head, chunk)
            events, size = events + more, size + more_bytes
            self.progress("events", before + events, expected)
        self.report.events += events
        if state.lost:
            self.report.add("tail", where, "its events cannot be found, and nothing says that they were removed")
        self._tail(state, where, events, size)

    def _row(self, where: str, seen: _Seen | None, row: _Row) -> _Seen:
        offset = row.pos & schema.MAX_OFFSET
        at = f"{where} offset {offset}"
        if not row.is_sound():
            self.report.add("event", at, "the checksum does not fit")
        if row.high_ts is not None and row.high_ts <= row.ts:
            self.report.add("order", at, f"its highest time {row.high_ts} is not above its own time {row.ts}")
        now = _Seen(offset, row.total, row.ts if row.high_ts is None else row.high_ts)
        self._follows(at, seen, now, row.bytes, whole=seen is not None and offset == seen.offset + 1)
        return now

    def _chunk(
        self, state: PartitionState, where: str, seen: _Seen | None, head: ChunkHead, chunk: Chunk
    ) -> tuple[int, int, _Seen]:
        """The events of a chunk that count, their bytes, and where it ends."""
        at = f"{where} offset {head.first}"
        if not chunk.sums_are_sound():
            self.report.add("chunk", at, "the checksums of single events of a chunk are damaged")
        rows = self._events_of(where, head, chunk)
        size = row_bytes(rows) if rows else 0
        newest = max((row[1] for row in rows), default=head.high_ts)
        now = _Seen(head.last, head.total, head.high_ts)
        if not head.is_sound():
            self.report.add("chunk", at, "what a chunk says of its events is damaged")
            now = _Seen(rows[-1][0], seen.total + size if seen else head.total, newest) if rows else now
        elif rows and (len(rows), size, rows[-1][0]) != (head.events, head.bytes, head.last):
            found = f"{len(rows)} events of {size} bytes"
            self.report.add("chunk", at, f"a chunk of {head.events} events of {head.bytes} bytes holds {found}")
        if newest > now.high_ts:
            self.report.add("order", at, f"its highest time {now.high_ts} is not that of its events, {newest}")
        whole = seen is not None and head.first == seen.offset + 1 and head.last - head.first == head.events - 1
        self._follows(at, seen, now, size, whole=whole)
        counted = [row for row in rows if row[0] >= state.head]
        return len(counted), row_bytes(counted) if counted else 0, now

    def _events_of(self, where: str, head: ChunkHead, chunk: Chunk) -> list[EventRow]:
        """What can be read of a chunk's events; those that are damaged are reported."""
        if chunk.is_sound():
            return chunk.rows()
        parts = chunk.parts()
        damaged = [part.offset for part in parts if part.row is None]
        for offset in damaged or () if parts else range(head.first, head.last + 1):
            self.report.add("event", f"{where} offset {offset}", "the checksum does not fit")
        if parts and not damaged:
            self.report.add(
                "chunk", f"{where} offset {head.first}", "the checksum of a chunk is damaged, not its events"
            )
        return [part.remains for part in parts]

    def _follows(self, at: str, seen: _Seen | None, now: _Seen, size: int, *, whole: bool) -> None:
        """`whole`: nothing was removed since what was seen before, or between what is new."""
        if seen is None:
            return
        grown = now.total - seen.total
        if grown < size or (whole and grown != size):
            self.report.add("total", at, f"the total grew by {grown} for {size} bytes of events")
        if now.high_ts < seen.high_ts:
            self.report.add("order", at, f"the highest time fell from {seen.high_ts} to {now.high_ts}")

    def _tail(self, state: PartitionState, where: str, events: int, size: int) -> None:
        """What the partition says it holds against what was seen; a trim meanwhile changes both, so look again."""
        fresh = next((one for one in self.reader.bounds(state.topic) if one.partition == state.partition), None)
        if fresh is None:
            self.report.add("tail", where, "the partition is gone")
            return
        if fresh.tail < state.tail:
            self.report.add("tail", where, f"the tail fell from {state.tail} to {fresh.tail}")
        row = self.connection.execute("SELECT removed FROM partitions WHERE id = ?", (state.id,)).fetchone()
        if row[0] != state.removed:
            return
        if events != state.tail - state.removed:
            self.report.add("tail", where, f"{state.tail - state.removed} events are expected, {events} are there")
        if size != state.total - state.removed_bytes:
            self.report.add("total", where, f"{state.total - state.removed_bytes} bytes are expected, {size} are there")

    def _records(self) -> None:
        """All rows as they lie there. A search by key would not see one whose key is damaged, nor those behind it."""
        newest: dict[str, int] = {}
        rows = self.connection.execute(
            "SELECT CAST(space AS BLOB), CAST(key AS BLOB), version, crc, value FROM records"
        )
        for raw_space, raw_key, version, crc, value in rows:
            space, key = raw_space.decode(errors="replace"), raw_key.decode(errors="replace")
            if schema.is_sound_record(space, key, version, value, crc):
                newest[space] = max(newest.get(space, 0), version)
                self.report.records += 1
            else:
                self.report.add("record", f"{space} {key}", "the checksum does not fit")
            if self.report.records % PAGE_EVENTS == 0:
                self.progress("records", self.report.records, 0)
        reserved = self.connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
        for space, version in newest.items():
            if reserved is None or version > reserved[0]:
                self.report.add("version", space, f"version {version} was never reserved")

    def _marks(self) -> None:
        """A mark must point at an offset that was given; its event may be gone."""
        highest: dict[int, int] = {}
        rows = self.connection.execute(
            "SELECT CAST(topic AS BLOB), CAST(dedupe AS BLOB), pos, until, ifnull(crc, -1) FROM marks"
        )
        for raw_topic, raw_dedupe, pos, until, crc in rows:
            topic, dedupe = raw_topic.decode(errors="replace"), raw_dedupe.decode(errors="replace")
            self.report.marks += 1
            if not schema.is_sound_mark(topic, dedupe, pos, until, crc):
                self.report.add("mark", f"{topic} {dedupe}", "the checksum does not fit")
            number = pos >> schema.OFFSET_BITS
            highest[number] = max(highest.get(number, 0), pos & schema.MAX_OFFSET)
        tails = {state.id: state.tail for state in LogState(self.connection).partitions.values()}
        for id, offset in highest.items():
            if offset > tails.get(id, 0):
                self.report.add("mark", f"partition number {id}", f"a mark points at offset {offset}, never given")
