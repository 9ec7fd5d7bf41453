"""Looking at every row of a log: is it what was written, and do the parts agree?

It reads in short pages beside a serving node, so a partition may grow while it is looked at; what is compared is taken
so that growth cannot look like damage. Damage is listed, never repaired: which copy is right is a person's decision.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from mainspring.log.contract import DamagedRecord
from mainspring.log.engines.sqlite.checksum import event_checksum
from mainspring.log.engines.sqlite.connection import check_format
from mainspring.log.engines.sqlite.known_state import Ledger, Slot
from mainspring.log.engines.sqlite.reader import Reader
from mainspring.log.engines.sqlite.schema import FORMAT, MAX_OFFSET, MAX_PARTITION_ID, OFFSET_BITS
from mainspring.log.progress import Progress, silent

PAGE_EVENTS = 2_000
MOST_PROBLEMS = 1_000  # a file that is noise from end to end should not fill the memory with complaints


class Problem(msgspec.Struct, frozen=True):
    """`kind` is stable: structure, event, order, total, tail, record, version, mark, orphan."""

    kind: str
    where: str
    detail: str


class Report(msgspec.Struct):
    format: int
    topics: int = 0
    partitions: int = 0
    events: int = 0
    records: int = 0
    marks: int = 0
    problems: list[Problem] = msgspec.field(default_factory=list)
    more_problems: int = 0

    def add(self, kind: str, where: str, detail: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(kind, where, detail))
        else:
            self.more_problems += 1


def check(path: Path, progress: Progress = silent) -> Report:
    """Verify the file's structure, every checksum, the order of offsets, tails, totals, versions and marks.

    Raises `FormatError` when the file is no log of this format, and sqlite3's errors when it cannot be read at all.
    """
    check_format(path)
    with closing(Reader(path)) as reader:
        return _Check(reader, progress).run()


_PAGE = (
    "SELECT pos, ts, high_ts, total, crc, CAST(id AS BLOB), CAST(key AS BLOB), headers, payload "
    "FROM events WHERE pos >= ? AND pos <= ? ORDER BY pos LIMIT ?"
)


class _Row(msgspec.Struct):
    """An event as it lies in the file, believed in nothing."""

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
    def offset(self) -> int:
        return self.pos & MAX_OFFSET

    @property
    def highest(self) -> int:
        return self.ts if self.high_ts is None else self.high_ts

    @property
    def bytes(self) -> int:
        return len(self.payload) + len(self.id) + len(self.key or b"") + len(self.headers or b"")

    def is_sound(self) -> bool:
        try:
            key = None if self.key is None else self.key.decode()
            crc = event_checksum(self.pos, self.ts, self.id.decode(), key, self.headers, self.payload)
        except (UnicodeDecodeError, TypeError):
            return False
        return crc == self.crc

    def without_payload(self) -> _Row:
        return _Row(self.pos, self.ts, self.high_ts, self.total, self.crc, self.id, self.key, self.headers, b"")


class _Check:
    def __init__(self, reader: Reader, progress: Progress) -> None:
        self.reader = reader
        self.connection = reader.connection
        self.progress = progress
        self.report = Report(FORMAT)

    def run(self) -> Report:
        self._structure()
        try:
            ledger = Ledger(self.connection)
            self._orphans(ledger)
            slots = list(ledger.slots.values())
            self.report.topics = len({slot.topic for slot in slots})
            self.report.partitions = len(slots)
            expected = sum(slot.tail - slot.removed for slot in slots)
            for slot in slots:
                self._partition(slot, expected)
            self._records()
            self._marks(ledger)
        except sqlite3.DatabaseError as error:
            self.report.add("structure", "file", str(error))
        return self.report

    def _structure(self) -> None:
        self.progress("structure", 0, 0)
        for (line,) in self.connection.execute("PRAGMA quick_check(100)"):
            if line != "ok":
                self.report.add("structure", "file", line)

    def _orphans(self, ledger: Ledger) -> None:
        """Events whose partition nobody knows: looked for between the known ranges, not row by row."""
        known = sorted(slot.id for slot in ledger.slots.values())
        for after, before in zip([-1, *known], [*known, MAX_PARTITION_ID + 1], strict=True):
            first = (after + 1) << OFFSET_BITS
            row = self.connection.execute(
                "SELECT count(*) FROM events WHERE pos >= ? AND pos < ?", (first, before << OFFSET_BITS)
            ).fetchone()
            if row[0] and not self._became_known(first, before << OFFSET_BITS):
                self.report.add("orphan", f"events from key {first}", f"{row[0]} events belong to no partition")

    def _became_known(self, first: int, end: int) -> bool:
        """A node that serves meanwhile may have made a partition there since."""
        row = self.connection.execute(
            "SELECT count(*) FROM partitions WHERE id >= ? AND id < ?", (first >> OFFSET_BITS, end >> OFFSET_BITS)
        ).fetchone()
        return bool(row[0])

    def _partition(self, slot: Slot, expected: int) -> None:
        where = f"{slot.topic} partition {slot.partition}"
        start, events, size = 1, 0, 0
        previous: _Row | None = None
        while start <= slot.tail:
            seen = 0
            for values in self.connection.execute(
                _PAGE, (slot.base + start, slot.base + slot.tail, PAGE_EVENTS)
            ):  # row by row: a page of large payloads must not be in memory at once
                row = _Row(*values)
                self._event(where, previous, row)
                previous, seen, size = row.without_payload(), seen + 1, size + row.bytes
            if not seen or previous is None:
                break
            events += seen
            start = previous.offset + 1
            self.report.events += seen
            self.progress("events", self.report.events, expected)
        self._tail(slot, where, events, size)

    def _event(self, where: str, previous: _Row | None, row: _Row) -> None:
        at = f"{where} offset {row.offset}"
        if not row.is_sound():
            self.report.add("event", at, "the checksum does not fit")
        if row.high_ts is not None and row.high_ts <= row.ts:
            self.report.add("order", at, f"its highest time {row.high_ts} is not above its own time {row.ts}")
        if previous is None:
            return
        grown = row.total - previous.total
        if grown < row.bytes or (row.offset == previous.offset + 1 and grown != row.bytes):
            self.report.add("total", at, f"the total grew by {grown} for an event of {row.bytes} bytes")
        if row.highest < previous.highest:
            self.report.add("order", at, f"the highest time fell from {previous.highest} to {row.highest}")

    def _tail(self, slot: Slot, where: str, events: int, size: int) -> None:
        """What the partition says it holds against what was seen; a trim meanwhile changes both, so look again."""
        fresh = next((one for one in self.reader.bounds(slot.topic) if one.partition == slot.partition), None)
        if fresh is None:
            self.report.add("tail", where, "the partition is gone")
            return
        if fresh.tail < slot.tail:
            self.report.add("tail", where, f"the tail fell from {slot.tail} to {fresh.tail}")
        row = self.connection.execute("SELECT removed FROM partitions WHERE id = ?", (slot.id,)).fetchone()
        if row[0] != slot.removed:
            return
        if events != slot.tail - slot.removed:
            self.report.add("tail", where, f"{slot.tail - slot.removed} events are expected, {events} are there")
        if size != slot.total - slot.removed_bytes:
            self.report.add("total", where, f"{slot.total - slot.removed_bytes} bytes are expected, {size} are there")

    def _records(self) -> None:
        reserved = self.connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
        for space in self.reader.spaces():
            after = ""
            while True:
                try:
                    page = self.reader.records(space, "", after)
                except DamagedRecord as damage:
                    self.report.add("record", f"{space} {damage.key}", "the checksum does not fit")
                    after = damage.key
                    continue
                if not page:
                    break
                after = page[-1].key
                self.report.records += len(page)
                newest = max(record.version for record in page)
                if reserved is None or newest > reserved[0]:
                    reserved = self.connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
                    if reserved is None or newest > reserved[0]:
                        self.report.add("version", space, f"version {newest} was never reserved")
                self.progress("records", self.report.records, 0)

    def _marks(self, ledger: Ledger) -> None:
        """A mark must point at an offset that was given; its event may be gone."""
        tails = {slot.id: slot.tail for slot in ledger.slots.values()}
        self.report.marks = self.connection.execute("SELECT count(*) FROM marks").fetchone()[0]
        for id, highest in self.connection.execute(
            "SELECT pos >> ?, max(pos & ?) FROM marks GROUP BY 1", (OFFSET_BITS, MAX_OFFSET)
        ).fetchall():
            if highest > tails.get(id, 0) and highest > self._tail_now(id):
                self.report.add("mark", f"partition number {id}", f"a mark points at offset {highest}, never given")

    def _tail_now(self, id: int) -> int:
        row = self.connection.execute("SELECT topic, partition FROM partitions WHERE id = ?", (id,)).fetchone()
        if row is None:
            return 0
        return max((one.tail for one in self.reader.bounds(row[0]) if one.partition == row[1]), default=0)
