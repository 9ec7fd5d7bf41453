"""Storing what another log gave out, offsets and versions and all. Runs in the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mainspring.log.contract import KeptRecord, Mark, Refused, Restorable, StoredEvent, Tail
from mainspring.log.engines.measure import event_bytes
from mainspring.log.engines.sqlite import statements as sql
from mainspring.log.engines.sqlite.checksum import event_checksum, record_checksum
from mainspring.log.engines.sqlite.known_state import VERSIONS_PER_RESERVATION, Ledger, Slot


class _Restoration:
    """Collects rows and moves the ledger along; when it fails, the writer reads the ledger from the file again."""

    def __init__(self, connection: sqlite3.Connection, ledger: Ledger) -> None:
        self._connection = connection
        self._ledger = ledger
        self._events: list[object] = []
        self._touched: dict[int, Slot] = {}
        self._version = 0

    def _slot(self, topic: str, partition: int) -> Slot:
        slot = self._ledger.slots.get((topic, partition))
        if slot is None:
            slot = self._ledger.create(topic, partition)
            row = (slot.id, topic, partition, 0, 0, None, 0, 0)
            self._connection.execute("INSERT INTO partitions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._touched[slot.id] = slot
        return slot

    def event(self, event: StoredEvent) -> None:
        slot = self._slot(event.topic, event.partition)
        if event.offset <= slot.tail:
            raise Refused(
                f"offset {event.offset} of {event.topic!r} partition {event.partition} is not above {slot.tail}",
                remedy="restore into an empty log, events ascending by offset",
            )
        slot.removed += event.offset - slot.tail - 1
        slot.tail = event.offset
        slot.total += event_bytes(event)
        high = slot.high_ts
        slot.high_ts = event.ts if high is None else max(high, event.ts)
        pos = slot.base + event.offset
        crc = event_checksum(pos, event.ts, event.id, event.key, event.headers, event.payload)
        own_high = None if slot.high_ts == event.ts else slot.high_ts
        self._events += (pos, event.ts, slot.total, crc, event.id, event.payload, own_high, event.key, event.headers)

    def tail(self, tail: Tail) -> None:
        slot = self._slot(tail.topic, tail.partition)
        if tail.tail > slot.tail:
            slot.removed += tail.tail - slot.tail
            slot.tail = tail.tail

    def record(self, record: KeptRecord) -> None:
        crc = record_checksum(record.space, record.key, record.version, record.value)
        statement, values = next(
            sql.pieces(sql.WRITE_RECORDS, 5, (record.space, record.key, record.version, crc, record.value))
        )
        self._connection.execute(statement, values)
        self._version = max(self._version, record.version)

    def mark(self, mark: Mark) -> None:
        pos = self._slot(mark.topic, mark.partition).base + mark.offset
        statement, values = next(sql.pieces(sql.WRITE_MARKS, 4, (mark.topic, mark.dedupe, pos, mark.until)))
        self._connection.execute(statement, values)

    def finish(self) -> None:
        for statement, values in sql.insert_events(self._events):
            self._connection.execute(statement, values)
        for slot in self._touched.values():
            slot.stored = True
            slot.durable_tail = slot.tail
            self._connection.execute(
                sql.UPDATE_PARTITION,
                (slot.tail, slot.total, slot.high_ts, slot.removed, slot.removed_bytes, slot.id),
            )
        if self._version > self._ledger.version:
            self._ledger.version = self._version
            self._ledger.reserved_version = self._version + VERSIONS_PER_RESERVATION
            self._connection.execute(sql.RESERVE_VERSIONS, (self._ledger.reserved_version,))


def restore(connection: sqlite3.Connection, ledger: Ledger, items: Sequence[Restorable]) -> None:
    """Raises `Refused` when an offset does not ascend; the caller's transaction then takes everything back."""
    work = _Restoration(connection, ledger)
    for item in items:
        if isinstance(item, StoredEvent):
            work.event(item)
        elif isinstance(item, Tail):
            work.tail(item)
        elif isinstance(item, KeptRecord):
            work.record(item)
        else:
            work.mark(item)
    work.finish()
