"""What the writer knows without asking the disk: where each partition ends, and which version comes next.

The one writer thread owns the ledger; it alone changes it. Other threads read `durable_tail`, which moves only after
the disk has the events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from mainspring.log.contract import Bounds, Refused
from mainspring.log.engines.sqlite.schema import MAX_OFFSET, MAX_PARTITION_ID, OFFSET_BITS

VERSIONS_PER_RESERVATION = 1 << 16  # versions are reserved in the file by the block: one row write per 65,536 of them


class Slot:
    """One partition: its number in the file, the last offset given, and what `total` and `high_ts` have come to."""

    __slots__ = (
        "base",
        "durable_tail",
        "high_ts",
        "id",
        "partition",
        "removed",
        "removed_bytes",
        "saved",
        "stored",
        "tail",
        "topic",
        "total",
    )

    def __init__(self, id: int, topic: str, partition: int) -> None:
        self.id: int = id
        self.base: int = id << OFFSET_BITS
        self.topic: str = topic
        self.partition: int = partition
        self.tail: int = 0
        self.total: int = 0
        self.high_ts: int | None = None
        self.removed: int = 0
        self.removed_bytes: int = 0
        self.durable_tail: int = 0
        self.stored: bool = False  # has a row in `partitions`
        self.saved: tuple[int, int, int | None] | None = None  # what it was before the commit under way touched it


class Ledger:
    """All slots, and the counters that must not run backwards."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.reload(connection)

    def reload(self, connection: sqlite3.Connection) -> None:
        """Believe the file: two look-ups per partition, no scan of events."""
        self.slots: dict[tuple[str, int], Slot] = {
            (slot.topic, slot.partition): slot for slot, _ in _rows(connection, "", ())
        }
        self._by_id = {slot.id: slot for slot in self.slots.values()}
        self._next_id = 1 + max(self._by_id, default=0)
        row = connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
        self.reserved_version: int = row[0] if row else 0
        self.version: int = self.reserved_version  # the rest of an earlier block is passed over: versions only grow

    def create(self, topic: str, partition: int) -> Slot:
        """A slot for a partition's first event; it reaches the file with its commit, or is dropped with it."""
        if self._next_id > MAX_PARTITION_ID:
            raise Refused(
                f"the log holds {MAX_PARTITION_ID} partitions and takes no more",
                remedy="use fewer topics or partitions",
                code="too_many_partitions",
            )
        slot = self.slots[topic, partition] = Slot(self._next_id, topic, partition)
        self._by_id[slot.id] = slot
        self._next_id += 1
        return slot

    def drop(self, slot: Slot) -> None:
        del self.slots[slot.topic, slot.partition], self._by_id[slot.id]

    def slot_of(self, pos: int) -> Slot | None:
        return self._by_id.get(pos >> OFFSET_BITS)


_STATE = f"""
    SELECT p.id, p.topic, p.partition, p.tail, p.total, p.high_ts, p.removed, p.removed_bytes,
           (SELECT min(pos) FROM events WHERE pos > (p.id << {OFFSET_BITS}) AND pos < ((p.id + 1) << {OFFSET_BITS})),
           e.pos, e.total, coalesce(e.high_ts, e.ts)
    FROM partitions p LEFT JOIN events e ON e.pos =
           (SELECT max(pos) FROM events WHERE pos > (p.id << {OFFSET_BITS}) AND pos < ((p.id + 1) << {OFFSET_BITS}))
"""


def _rows(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> Iterator[tuple[Slot, int]]:
    """Each partition with its head."""
    for row in connection.execute(f"{_STATE} {where} ORDER BY p.topic, p.partition", values).fetchall():
        id, topic, partition, tail, total, high_ts, removed, removed_bytes, first, last, last_total, last_high = row
        slot = Slot(id, topic, partition)
        slot.tail, slot.total, slot.high_ts = tail, total, high_ts
        slot.removed, slot.removed_bytes, slot.stored = removed, removed_bytes, True
        if last is not None and last & MAX_OFFSET > tail:
            slot.tail, slot.total, slot.high_ts = last & MAX_OFFSET, last_total, last_high
        slot.durable_tail = slot.tail
        yield slot, slot.tail + 1 if first is None else first & MAX_OFFSET


def load_bounds(connection: sqlite3.Connection, topic: str) -> list[Bounds]:
    return [
        Bounds(slot.partition, head, slot.tail, slot.tail - slot.removed, slot.total - slot.removed_bytes)
        for slot, head in _rows(connection, "WHERE p.topic = ?", (topic,))
    ]
