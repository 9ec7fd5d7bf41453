"""Many rows in one statement.

A statement for n rows is prepared once and kept. Any number of rows is made of powers of two, so that a handful of
prepared statements serve every commit.

What is bound matters as much as how often: Python's sqlite3 takes texts, numbers and bytearrays as they are, but looks
for an adapter, in vain and slowly, for every `bytes` and every `None`. So columns that are empty in a whole commit are
left out of its statements, and bytes go in as bytearrays. With 2,048 events to a commit that took the processor time of
an insert from 2.4 to 1.3 microseconds per event.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

MOST_ROWS = 512  # beyond this a statement gains nothing and its parameters (nine per event) take memory

COPIED_BYTES = 16_384  # copying more takes longer than the search for an adapter

EVENT_COLUMNS = ("pos", "ts", "total", "crc", "id", "payload", "high_ts", "key", "headers")
_MAY_BE_NULL = ("high_ts", "key", "headers")
INSERT_PARTITIONS = "INSERT INTO partitions VALUES {rows}"
WRITE_RECORDS = (
    "INSERT INTO records VALUES {rows} ON CONFLICT (space, key) DO UPDATE "
    "SET version = excluded.version, crc = excluded.crc, value = excluded.value"
)
DELETE_RECORDS = "DELETE FROM records WHERE space = ? AND key IN ({rows})"  # by pairs SQLite would scan the table
ADD_MARKS = "INSERT INTO marks VALUES {rows}"  # fails when one is there already
WRITE_MARKS = "INSERT OR REPLACE INTO marks VALUES {rows}"
FIND_VERSIONS = (
    "WITH asked(n, space, key) AS (VALUES {rows}) SELECT group_concat(n || ' ' || version, ',') "
    "FROM asked CROSS JOIN records r ON r.space = asked.space AND r.key = asked.key"
)
FIND_MARKS = (
    "WITH asked(n, topic, dedupe) AS (VALUES {rows}) SELECT group_concat(n || ' ' || pos || ' ' || until, ',') "
    "FROM asked CROSS JOIN marks m ON m.topic = asked.topic AND m.dedupe = asked.dedupe"
)
EVENT_BYTES = (
    "length(payload) + length(CAST(id AS BLOB)) + ifnull(length(CAST(key AS BLOB)), 0) + ifnull(length(headers), 0)"
)
MEASURE_OFFSETS = f"SELECT count(*), ifnull(sum({EVENT_BYTES}), 0) FROM events WHERE pos IN (VALUES {{rows}})"
DELETE_OFFSETS = "DELETE FROM events WHERE pos IN (VALUES {rows})"
MEASURE_RANGE = f"SELECT count(*), ifnull(sum({EVENT_BYTES}), 0) FROM events WHERE pos > ? AND pos < ?"
DELETE_RANGE = "DELETE FROM events WHERE pos > ? AND pos < ?"
UPDATE_PARTITION = "UPDATE partitions SET tail = ?, total = ?, high_ts = ?, removed = ?, removed_bytes = ? WHERE id = ?"
RESERVE_VERSIONS = "INSERT OR REPLACE INTO counters VALUES ('version', ?)"


@cache
def _statement(template: str, width: int, rows: int) -> str:
    row = f"({', '.join('?' * width)})"
    return template.format(rows=", ".join([row] * rows))


def pieces(template: str, width: int, values: Sequence[object]) -> Iterator[tuple[str, Sequence[object]]]:
    """The statements that apply `template` to all of `values`, `width` of them to a row."""
    start, rows = 0, len(values) // width
    while rows:
        piece = min(MOST_ROWS, 1 << (rows.bit_length() - 1))
        yield _statement(template, width, piece), values[start : start + piece * width]
        start += piece * width
        rows -= piece


def insert_events(values: list[object]) -> Iterator[tuple[str, Sequence[object]]]:
    """The statements that insert events: nine values each, in the order of `EVENT_COLUMNS`. Consumes the list."""
    columns = list(EVENT_COLUMNS)
    for name in _MAY_BE_NULL:
        at, width = columns.index(name), len(columns)
        if values[at::width].count(None) * width == len(values):
            del values[at::width], columns[at]
    for name in {"payload", "headers"}.intersection(columns):
        column = slice(columns.index(name), None, len(columns))
        values[column] = as_blobs(values[column])
    return pieces(f"INSERT INTO events ({', '.join(columns)}) VALUES {{rows}}", len(columns), values)


def as_blobs(column: Iterable[Any]) -> list[object]:
    """The same bytes (or None), in the type that is bound fastest; large ones stay, for a copy would cost more."""
    return [value if value is None or len(value) > COPIED_BYTES else bytearray(value) for value in column]


def ask(connection: sqlite3.Connection, template: str, places: Sequence[tuple[str, str]]) -> dict[int, list[int]]:
    """For each place that exists, by its index, the numbers the template selects. One step for each statement."""
    values = [value for n, place in enumerate(places) for value in (n, *place)]
    answers: dict[int, list[int]] = {}
    for statement, piece in pieces(template, 3, values):
        (found,) = connection.execute(statement, piece).fetchone()
        for answer in found.split(",") if found else ():
            n, *numbers = map(int, answer.split())
            answers[n] = numbers
    return answers
