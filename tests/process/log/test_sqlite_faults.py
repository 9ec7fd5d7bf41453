"""Bad weather: damaged bytes, a full disk, a disk that fails."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.log import (
    Append,
    Batch,
    DamagedEvent,
    DamagedRecord,
    Log,
    LogUnavailable,
    Put,
    Receipt,
    Remove,
    Result,
    SqliteEngine,
)
from mainspring.log.engines.sqlite.chunks import COLUMNS
from mainspring.log.engines.sqlite.writer import unavailable
from tests.support.log_file import alter, damage_event

BIG = b'"' + b"x" * 2000 + b'"'


async def opened(path: Path) -> Log:
    log = Log(SqliteEngine(path))
    await log.open()
    return log


class TestDamage:
    @pytest.mark.parametrize("together", [True, False])
    async def test_a_damaged_event_is_reported_and_never_served(self, tmp_path: Path, together: bool) -> None:
        path = tmp_path / "log"
        log = await opened(path)
        events = [Append("t", 0, f"id-{n}", n, b'{"n": %d}' % n, f"k{n}", b"{}") for n in range(1, 6)]
        for batch in [events] if together else [[event] for event in events]:
            await log.commit(Batch(list(batch)))
        await log.close()
        damage_event(path, "id-3")
        log = await opened(path)
        assert [event.offset for event in await log.read("t", 0, 1, 10)] == [1, 2]
        for look in (log.read, log.outline):
            with pytest.raises(DamagedEvent) as report:
                await look("t", 0, 3, 10)
            assert (report.value.topic, report.value.partition, report.value.offset) == ("t", 0, 3)
        assert [event.offset for event in await log.read("t", 0, report.value.offset + 1, 10)] == [4, 5]
        assert (await log.commit(Batch([Append("t", 0, "next", 9, b"1")]))).offsets == ((0, 6, False),)
        await log.close()

    async def test_an_event_moved_to_another_place_is_damaged(self, tmp_path: Path) -> None:
        log = await opened(tmp_path / "log")
        await log.commit(Batch([Append("t", 0, "a", 1, b"1"), Append("t", 0, "b", 1, b"2")]))
        await log.commit(Batch([Remove("t", 0, offsets=(1,))]))
        await log.close()
        alter(tmp_path / "log", "UPDATE chunks SET pos = pos - 1")
        log = await opened(tmp_path / "log")
        with pytest.raises(DamagedEvent):
            await log.read("t", 0, 1, 10)
        await log.close()

    async def test_a_damaged_record_is_reported_and_a_scan_can_go_on_behind_it(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        log = await opened(path)
        await log.commit(Batch([Put("s", key, b"v") for key in "abcd"]))
        await log.close()
        alter(path, "UPDATE records SET value = x'00' WHERE key = 'c'")
        log = await opened(path)
        with pytest.raises(DamagedRecord):
            await log.get("s", "c")
        scan = log.scan("s")
        assert [(await anext(scan)).key, (await anext(scan)).key] == ["a", "b"]
        with pytest.raises(DamagedRecord) as report:
            await anext(scan)
        assert [record.key async for record in log.scan("s", after=report.value.key)] == ["d"]
        await log.commit(Batch([Put("s", "c", b"whole again")]))
        assert [record.key async for record in log.scan("s")] == ["a", "b", "c", "d"]
        await log.close()

    async def test_pages_of_noise_give_a_clear_error(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        log = await opened(path)
        await log.commit(Batch([Append("t", 0, "x", 1, BIG) for _ in range(200)]))
        await log.close()
        with path.open("r+b") as file:
            file.seek(4096 * 12)
            file.write(os.urandom(4096 * 40))
        log = await opened(path)
        reads = [await asyncio.gather(log.read("t", 0, n, 1), return_exceptions=True) for n in range(1, 201)]
        served = [events for (events,) in reads if isinstance(events, list)]
        refused = [error for (error,) in reads if isinstance(error, LogUnavailable | DamagedEvent)]
        assert refused
        assert len(served) + len(refused) == 200
        assert all(event.payload == BIG for events in served for event in events)
        await log.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 3 MB where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a small file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


async def publish_until_full(log: Log) -> list[int]:
    """The offsets that were acknowledged before the disk was full."""
    acknowledged: list[int] = []
    for n in range(5000):
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        log.submit(Batch([Append("t", 0, f"id-{n}", n, BIG), Put("s", f"{n:05}", b"v")]), answer.set_result)
        result = await answer
        if not isinstance(result, Receipt):
            assert isinstance(result, LogUnavailable)
            assert "full" in result.message
            return acknowledged
        acknowledged += [offset for _, offset, _ in result.offsets]
    raise AssertionError("the disk did not fill up")


async def check_full_disk(log: Log, free: list[Path], path: Path) -> None:
    acknowledged = await publish_until_full(log)
    assert len(acknowledged) > 20
    for _ in range(3):
        results = await asyncio.gather(
            *(log.commit(Batch([Append("t", 0, "no", 1, BIG * 100)])) for _ in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [LogUnavailable] * 3
    assert log.fault is not None
    assert [event.offset for event in await log.read("t", 0, 1, 5000)] == acknowledged
    (bounds,) = await log.bounds("t")
    assert bounds.tail == acknowledged[-1] == len(acknowledged)
    for file in free:
        file.unlink()
    receipt = await log.commit(Batch([Append("t", 0, "back", 1, BIG)]))
    assert receipt.offsets == ((0, len(acknowledged) + 1, False),)
    await log.close()
    log = await opened(path)
    assert [event.offset for event in await log.read("t", 0, 1, 5000)] == [*acknowledged, len(acknowledged) + 1]
    assert len([record async for record in log.scan("s")]) == len(acknowledged)
    await log.close()


class TestFullDisk:
    async def test_a_full_file_system_refuses_writes_keeps_reads_and_recovers(self, small_disk: Path) -> None:
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"\0" * (1 << 20))
        log = await opened(small_disk / "log")
        await check_full_disk(log, [ballast], small_disk / "log")

    async def test_a_boot_on_a_full_disk_is_a_clear_error(self, small_disk: Path) -> None:
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space"):
            ballast.write_bytes(b"\0" * (4 << 20))
        with pytest.raises(LogUnavailable, match="full"):
            await SqliteEngine(small_disk / "log").open()
        ballast.unlink()
        log = await opened(small_disk / "log")
        assert (await log.commit(Batch([Append("t", 0, "a", 1, b"1")]))).offsets == ((0, 1, False),)
        await log.close()

    async def test_where_nothing_can_be_mounted_a_page_limit_shows_the_same(self, tmp_path: Path) -> None:
        log = await opened(tmp_path / "log")
        engine = log.engine
        assert isinstance(engine, SqliteEngine)
        writer = engine._writer
        assert writer is not None
        await log.commit(Batch([Append("t", 0, "first", 1, BIG)]))
        writer._connection.execute("PRAGMA max_page_count = 300")
        acknowledged = await publish_until_full(log)
        assert acknowledged
        assert [event.offset for event in await log.read("t", 0, 2, 5000)] == acknowledged
        writer._connection.execute("PRAGMA max_page_count = 100000")
        receipt = await log.commit(Batch([Append("t", 0, "back", 1, BIG)]))
        assert receipt.offsets == ((0, acknowledged[-1] + 1, False),)
        await log.close()


class FailingConnection:
    """Passes everything on, except that statements starting with `word` fail as a broken disk makes them fail."""

    def __init__(self, inner: sqlite3.Connection, word: str) -> None:
        self.inner = inner
        self.word = word

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if statement.startswith(self.word):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self.inner.execute(statement, *values)  # type: ignore[arg-type]


class TestFailingDisk:
    @pytest.mark.parametrize("word", ["BEGIN", "INSERT", "COMMIT"])
    async def test_a_failed_commit_leaves_nothing_and_the_next_one_works(self, tmp_path: Path, word: str) -> None:
        log = await opened(tmp_path / "log")
        engine = log.engine
        assert isinstance(engine, SqliteEngine)
        await log.commit(Batch([Append("t", 0, "a", 1, b"1"), Put("s", "k", b"1")]))
        await log.commit(Batch())  # what the writer does of its own accord after its first commit is done
        writer = engine._writer
        assert writer is not None
        writer._connection = FailingConnection(writer._connection, word)  # type: ignore[assignment]
        failing = Batch([Append("t", 0, "b", 1, b"1"), Append("new", 0, "b", 1, b"1"), Put("s", "k", b"2")])
        with pytest.raises(LogUnavailable, match="disk"):
            await log.commit(failing)
        assert [event.id for event in await log.read("t", 0, 1, 10)] == ["a"]
        assert await log.topics() == ["t"]
        receipt = await log.commit(failing)
        assert receipt.offsets == ((0, 2, False), (0, 1, False))
        assert isinstance(receipt, Receipt)
        await log.close()

    async def test_a_program_that_writes_behind_our_back_costs_one_commit_and_no_offset(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        log = await opened(path)
        await log.commit(Batch([Append("t", 0, "a", 1, b"1")]))
        columns = ", ".join(COLUMNS[1:])
        alter(path, f"INSERT INTO chunks SELECT pos + 1, {columns} FROM chunks")
        with pytest.raises(LogUnavailable):
            await log.commit(Batch([Append("t", 0, "b", 1, b"1")]))
        assert (await log.commit(Batch([Append("t", 0, "b", 1, b"1")]))).offsets == ((0, 3, False),)
        await log.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB])
def test_what_may_be_a_passing_error_of_the_disk_is_not_called_damage(code: int) -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = code
    told = unavailable(error)
    assert "damaged" not in told.message
    assert "log check" in told.remedy
    assert "passing" in told.remedy
