"""The file itself: who may open it, which formats are known, and what the sqlite3 program sees."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mainspring.errors import SettingError
from mainspring.log import (
    Append,
    Batch,
    FormatError,
    Guard,
    Log,
    LogLocked,
    LogUnavailable,
    MemoryEngine,
    Put,
    Refused,
    Remove,
    SqliteEngine,
    StoredEvent,
    open_engine,
)
from mainspring.log.engines.sqlite import plan, reader, rows, schema, upkeep
from mainspring.log.engines.sqlite import writer as sql
from mainspring.log.engines.sqlite.check import check
from tests.support.log_file import write_rows


def run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)


async def stored(path: Path, count: int = 3) -> None:
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Append("t", 0, f"id-{n}", n, b'{"n": %d}' % n, "key", b"{}") for n in range(count)]))
    await log.commit(Batch([Put("s", "k", b'{"v": 1}')]))
    await log.close()


class TestOwnership:
    async def test_a_second_engine_is_refused_and_told_who_owns_the_log(self, tmp_path: Path) -> None:
        engine = SqliteEngine(tmp_path / "log")
        await engine.open()
        with pytest.raises(LogLocked, match=f"process {os.getpid()}"):
            await SqliteEngine(tmp_path / "log").open()
        await engine.close()
        again = SqliteEngine(tmp_path / "log")
        await again.open()
        await again.close()

    async def test_another_process_too(self, tmp_path: Path) -> None:
        engine = SqliteEngine(tmp_path / "log")
        await engine.open()
        script = (
            "import asyncio, sys; from mainspring.log import SqliteEngine, LogLocked\n"
            "try: asyncio.run(SqliteEngine(sys.argv[1]).open())\n"
            "except LogLocked as error: print(error.message)"
        )
        command: list[str | Path] = [sys.executable, "-c", script, tmp_path / "log"]
        done = await asyncio.to_thread(run, command)
        assert f"in use by process {os.getpid()}" in done.stdout
        await engine.close()

    async def test_reading_beside_the_owner_is_allowed_and_sees_what_is_durable(self, tmp_path: Path) -> None:
        owner = Log(SqliteEngine(tmp_path / "log"))
        await owner.open()
        guest = Log(SqliteEngine(tmp_path / "log", read_only=True))
        await guest.open()
        await owner.commit(Batch([Append("t", 0, "a", 1, b"1")]))
        assert [event.id for event in await guest.read("t", 0, 1, 10)] == ["a"]
        with pytest.raises(LogUnavailable, match="reading only"):
            await guest.commit(Batch([Put("s", "k", b"")]))
        await guest.close()
        await owner.close()

    async def test_reading_a_log_that_is_not_there_makes_none(self, tmp_path: Path) -> None:
        with pytest.raises(LogUnavailable):
            await SqliteEngine(tmp_path / "log", read_only=True).open()
        assert list(tmp_path.iterdir()) == []


class TestFormat:
    async def test_a_newer_format_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        await stored(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("INSERT INTO format VALUES (?)", (schema.FORMAT + 1,))
            connection.commit()
        for read_only in (False, True):
            with pytest.raises(FormatError, match=f"format {schema.FORMAT + 1}"):
                await SqliteEngine(path, read_only=read_only).open()
        with closing(sqlite3.connect(path)) as connection:
            assert schema.format_of(connection) == schema.FORMAT + 1

    async def test_foreign_files_are_refused_and_left_alone(self, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign"
        with closing(sqlite3.connect(foreign)) as connection:
            connection.execute("CREATE TABLE mine (x)")
        text = tmp_path / "text"
        text.write_text("no database at all, but long enough to look at" * 30)
        for path in (foreign, text):
            before = path.read_bytes()
            with pytest.raises(FormatError):
                await SqliteEngine(path).open()
            assert path.read_bytes() == before

    async def test_a_format_is_reached_from_every_older_one_keeping_what_is_stored(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        await stored(path)
        later = schema.MIGRATIONS | {
            schema.FORMAT + 1: "ALTER TABLE records ADD COLUMN note TEXT;",
            schema.FORMAT + 2: "CREATE INDEX by_note ON records (note);",
        }
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            made = schema.migrate(connection, schema.FORMAT + 2, later)
            assert made == [schema.FORMAT + 1, schema.FORMAT + 2]
            assert schema.format_of(connection) == schema.FORMAT + 2
            assert connection.execute("SELECT sum(events) FROM chunks").fetchone() == (3,)
            assert connection.execute("SELECT space, key, note FROM records").fetchall() == [("s", "k", None)]
            assert schema.migrate(connection, schema.FORMAT + 2, later) == []

    async def test_a_migration_that_fails_changes_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        await stored(path)
        broken = schema.MIGRATIONS | {schema.FORMAT + 1: "CREATE TABLE extra (x); INSERT INTO nowhere VALUES (1);"}
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            with pytest.raises(sqlite3.OperationalError):
                schema.migrate(connection, schema.FORMAT + 1, broken)
            assert schema.format_of(connection) == schema.FORMAT
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
            assert "extra" not in names
        log = Log(SqliteEngine(path))
        await log.open()
        assert len(await log.read("t", 0, 1, 10)) == 3
        await log.close()

    async def test_a_file_of_format_1_is_brought_up_to_date_with_its_marks(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        write_rows(path, 1, [StoredEvent("t", 0, 1, "a", 5, b"1")])
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("INSERT INTO marks VALUES ('t', 'a', ?, 1000)", (1 << 43 | 1,))
        log = Log(SqliteEngine(path))
        await log.open()
        again = Append("t", 0, "a", 6, b"1", dedupe="a", dedupe_until=2000)
        assert (await log.commit(Batch([again]))).offsets == ((0, 1, True),)
        assert [event.id for event in await log.read("t", 0, 1, 10)] == ["a"]
        assert [mark.dedupe async for mark in log.marks()] == ["a"]
        await log.close()
        assert check(path).problems == []


class TestReadable:
    async def test_a_view_shows_records_as_text(self, tmp_path: Path) -> None:
        await stored(tmp_path / "log")
        with closing(sqlite3.connect(tmp_path / "log")) as connection:
            assert connection.execute("SELECT space, key, value FROM readable_records").fetchall() == [
                ("s", "k", '{"v": 1}')
            ]

    @pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 program is not installed")
    async def test_with_the_sqlite3_program(self, tmp_path: Path) -> None:
        await stored(tmp_path / "log")
        query = "SELECT topic, partition, sum(events), max(last) FROM partitions p JOIN chunks ON pos >> 43 = p.id"
        command: list[str | Path] = ["sqlite3", tmp_path / "log", query]
        done = await asyncio.to_thread(run, command)
        assert done.stdout.split() == ["t|0|3|3"]


class TestDurability:
    async def test_a_commit_is_written_through_to_the_disk(self, tmp_path: Path) -> None:
        """Asked of the connection that the engine writes with, also after it had to be opened again."""
        log = Log(SqliteEngine(tmp_path / "log"))
        await log.open()
        assert isinstance(log.engine, SqliteEngine)
        writer = log.engine._writer
        assert writer is not None
        for reopened in (False, True):
            writer._suspect = reopened
            await log.commit(Batch([Append("t", 0, "a", 1, b"1")]))
            connection = writer._connection
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
            assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)
        await log.close()


class TestReopening:
    async def test_what_was_removed_is_remembered(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        await stored(path, 50)
        log = Log(SqliteEngine(path))
        await log.open()
        await log.commit(Batch([Remove("t", 0, below=20, offsets=(50,))]))
        await log.close()
        log = Log(SqliteEngine(path))
        await log.open()
        (bounds,) = await log.bounds("t")
        assert (bounds.head, bounds.tail, bounds.events) == (20, 50, 30)
        await log.close()

    async def test_versions_are_reserved_also_when_the_first_writer_was_refused(self, tmp_path: Path) -> None:
        log = Log(SqliteEngine(tmp_path / "log"))
        await log.open()
        with pytest.raises(Refused):
            await log.commit(Batch([Put("s", "k", b""), Guard("s", "absent", 5)]))
        await log.commit(Batch([Put("s", "k", b"")]))
        assert check(tmp_path / "log").problems == []
        await log.close()


async def test_events_of_every_shape_share_a_commit(tmp_path: Path) -> None:
    log = Log(SqliteEngine(tmp_path / "log"))
    await log.open()
    shapes = [
        Append("t", 0, "plain", 5, b"1"),
        Append("t", 0, "keyed", 5, b"2", "k"),
        Append("t", 0, "headed", 5, b"3", None, b'{"h":"1"}'),
        Append("t", 0, "late", 4, b"", "k", b"{}"),
        Append("t", 0, "large", 5, b"x" * (sql.COPIED_BYTES + 1), "", b'{"h":"%b"}' % (b"y" * sql.COPIED_BYTES)),
    ]
    for some in (shapes[:1], shapes[1:3], shapes, shapes * 200):
        await log.commit(Batch(list(some)))
    found = await log.read("t", 0, 1, 2_000, 64 << 20)
    expected = [*shapes[:1], *shapes[1:3], *shapes, *shapes * 200]
    assert [(e.id, e.ts, e.payload, e.key, e.headers) for e in found] == [
        (e.id, e.ts, e.payload, e.key, e.headers) for e in expected
    ]
    assert await log.offset_at("t", 0, 5) == 1
    await log.close()
    assert check(tmp_path / "log").problems == []


class TestStatements:
    """Cost must not grow with what is stored: no statement of the daily work walks through a table."""

    ROWS: ClassVar = [
        (sql.WRITE_RECORDS, 5),
        (sql.ADD_MARKS, 5),
        (sql.WRITE_MARKS, 5),
        (sql.FIND_VERSIONS, 3),
        (sql.FIND_MARKS, 3),
    ]
    PLAIN: ClassVar = [
        next(sql.insert_chunks([1, 2, 3, 4, 5, 6, 7, 8, b"sums", b"data"] * 4)),
        (upkeep._AT_OR_BELOW, (2, 1)),
        (upkeep._FIRST, (1, 2)),
        (upkeep._MEASURE, (1, 2)),
        (upkeep._DELETE, (1, 2)),
        (upkeep._HEADS, (1, 2)),
        (upkeep._BETWEEN, (1, 2)),
        (sql.UPDATE_PARTITION, (1, 1, 1, 1, 1, 1, 1)),
        (next(sql.statements_for(sql.DELETE_RECORDS, 1, ["k"] * 4))[0], ("s", *"abcd")),
        (reader._CHUNKS, {"base": 1, "start": 1, "end": 2}),
        (reader._TOGETHER, {"base": 1, "start": 1, "end": 2, "limit": 3, "bytes": 4}),
        (reader._CHUNK_SINCE, (1, 2)),
        (rows._EVENTS, {"start": 1, "end": 2, "limit": 3, "bytes": 4}),
        (rows._PROBE, {"start": 1, "end": 2}),
        (rows._FIRST_SINCE, (1, 2, 3)),
        (rows._NEWEST, (1, 2, 3)),
        (reader._RECORDS.format("AND key < ?"), ("s", "a", "b", "c", 5)),
        (plan._STATE, ()),
        ("DELETE FROM marks WHERE until < ?", (1,)),
    ]

    @pytest.mark.parametrize(
        ("statement", "values"),
        [*((next(sql.statements_for(t, w, [1] * 4 * w))[0], (1,) * 4 * w) for t, w in ROWS), *PLAIN],
    )
    def test_no_statement_scans(self, statement: str, values: Any) -> None:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            schema.migrate(connection)
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert [
            step for step in plan if step.startswith(("SCAN chunks", "SCAN events", "SCAN records", "SCAN marks"))
        ] == []


class TestChoice:
    def test_engines_by_name(self, tmp_path: Path) -> None:
        assert isinstance(open_engine("memory", tmp_path), MemoryEngine)
        engine = open_engine("sqlite", tmp_path)
        assert isinstance(engine, SqliteEngine)
        assert engine.path == tmp_path / "log.sqlite3"

    def test_unknown_names_are_refused_without_showing_passwords(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="use sqlite") as error:
            open_engine("oracle://me:secret@host/db", tmp_path)
        assert "secret" not in str(error.value)
        assert "host" in str(error.value)
