"""`check` finds what is wrong, says where, and finds nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.log import Append, Batch, Delete, FormatError, Log, Put, Remove, SqliteEngine
from mainspring.log.engines.sqlite import backup
from mainspring.log.engines.sqlite.check import MOST_PROBLEMS, check
from tests.support.log_file import alter

CUT = "{0} = CAST(substr({0}, 1, length({0}) - 1) || x'00' AS BLOB)"


async def fill(path: Path, events: int = 50) -> None:
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Append("t", n % 2, f"id-{n}", 1000 - n % 7, b"%d" % n, f"k{n}") for n in range(events)]))
    await log.commit(Batch([Append("u", 0, "once", 1, b"1", dedupe="d", dedupe_until=500)]))
    await log.commit(Batch([Remove("t", 0, below=3, offsets=(7, 9)), Remove("u", 0, below=9)]))
    await log.commit(Batch([Put("s", f"{n}", b"v") for n in range(300)]))
    await log.commit(Batch([Delete("s", "5")]))
    await log.close()


async def test_a_sound_log_has_no_problems(tmp_path: Path) -> None:
    await fill(tmp_path / "log")
    seen: list[tuple[str, int, int]] = []
    report = check(tmp_path / "log", lambda what, done, total: seen.append((what, done, total)))
    assert report.problems == []
    assert (report.topics, report.partitions, report.events, report.records, report.marks) == (2, 3, 46, 299, 1)
    assert ("events", 46, 46) in seen


@pytest.mark.parametrize(
    ("change", "kind", "where"),
    [
        (
            f"UPDATE chunks SET {CUT.format('data')} WHERE events > 23",
            "event",
            "t partition 1",
        ),
        ("UPDATE chunks SET crc = crc + 1 WHERE events > 23", "chunk", "t partition 1 offset 1"),
        (
            f"UPDATE chunks SET {CUT.format('sums')} WHERE events > 23",
            "chunk",
            "t partition 1",
        ),
        ("DELETE FROM chunks WHERE events > 23", "tail", "t partition 1"),
        ("UPDATE chunks SET total = total + 1 WHERE events > 23", "chunk", "t partition 1 offset 1"),
        ("UPDATE chunks SET last = last - 1 WHERE events > 23", "chunk", "t partition 1 offset 1"),
        ("UPDATE chunks SET high_ts = 5 WHERE events > 23", "chunk", "t partition 1 offset 1"),
        ("UPDATE partitions SET removed = 0 WHERE topic = 't'", "tail", "t partition 0"),
        ("UPDATE partitions SET removed_bytes = 0 WHERE topic = 't'", "total", "t partition 0"),
        ("UPDATE partitions SET id = 99 WHERE topic = 't' AND partition = 1", "orphan", "events from key"),
        ("UPDATE records SET value = x'00' WHERE key = '17'", "record", "s 17"),
        ("UPDATE records SET version = version + 1 WHERE key = '17'", "record", "s 17"),
        ("DELETE FROM counters", "version", "s"),
        ("UPDATE marks SET pos = pos + 5", "mark", "partition number"),
        ("UPDATE marks SET until = until + 1", "mark", "u d"),
        ("UPDATE marks SET dedupe = 'e'", "mark", "u e"),
    ],
)
async def test_each_kind_of_damage_is_named(tmp_path: Path, change: str, kind: str, where: str) -> None:
    await fill(tmp_path / "log")
    with closing(sqlite3.connect(tmp_path / "log")) as connection:
        assert connection.execute(change).rowcount >= 1
        connection.commit()
    report = check(tmp_path / "log")
    assert any(p.kind == kind and p.where.startswith(where) for p in report.problems), report.problems


async def test_a_record_that_a_flipped_bit_in_its_key_hides_is_found(tmp_path: Path) -> None:
    """Searches by key pass it over, because it is out of order; so would a check that searches."""
    path = tmp_path / "log"
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Put("beats", f"main/{name}", b"{}") for name in ("bell", "cell", "dell")]))
    await log.close()
    data = path.read_bytes()
    assert data.count(b"main/cell") == 1
    path.write_bytes(data.replace(b"main/cell", b"main+cell"))
    await log.open()
    assert [record.key async for record in log.scan("beats", after="main/bell")] != ["main/cell", "main/dell"]
    await log.close()
    problems = check(path).problems
    assert any(each.kind == "record" and each.where == "beats main+cell" for each in problems), problems
    assert any(each.kind == "structure" for each in problems), problems


async def test_a_damaged_mark_leads_to_no_other_event(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Append("t", 0, name, 1, b"1", dedupe=name, dedupe_until=500) for name in "ab"]))
    await log.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE marks SET pos = pos + 1 WHERE dedupe = 'a'")
        connection.commit()
    await log.open()
    receipt = await log.commit(Batch([Append("t", 0, n, 1, b"1", dedupe=n, dedupe_until=500) for n in "ab"]))
    assert receipt.offsets == ((0, 3, False), (0, 2, True))
    assert [mark.offset async for mark in log.marks()] == [3, 2]
    await log.close()
    assert check(path).problems == []


async def test_noise_gives_a_report_and_not_a_million_lines(tmp_path: Path) -> None:
    await fill(tmp_path / "log", 4000)
    alter(tmp_path / "log", "UPDATE chunks SET data = zeroblob(length(data)), sums = zeroblob(length(sums))")
    report = check(tmp_path / "log")
    assert len(report.problems) == MOST_PROBLEMS
    assert report.more_problems > 2000


async def test_what_is_no_log_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 5000)
    with pytest.raises(FormatError):
        check(tmp_path / "log")


async def test_a_log_under_load_is_found_sound_and_copied_whole(tmp_path: Path) -> None:
    """Beside a writer that publishes and trims all the time, neither check nor backup is confused."""
    path = tmp_path / "log"
    await fill(path)
    log = Log(SqliteEngine(path))
    await log.open()
    stop = asyncio.Event()

    async def load() -> int:
        n = 0
        while not stop.is_set():
            n += 1
            batch = Batch([Append("t", n % 2, f"load-{n}-{m}", n, b"x" * 500) for m in range(20)])
            batch.put("s", f"load-{n}", b"v")
            await log.commit(batch)
            if n % 5 == 0:
                await log.trim("t", 0, n)
        return n

    writer = asyncio.ensure_future(load())
    copies = []
    for n in range(6):
        assert (await asyncio.to_thread(check, path)).problems == []
        copies.append(tmp_path / f"copy-{n}")
        await asyncio.to_thread(backup, path, copies[-1])
    stop.set()
    assert await writer > 6
    await log.close()
    tails = []
    for copy in copies:
        assert check(copy).problems == []
        engine = SqliteEngine(copy)
        await engine.open()
        tails.append([bounds.tail for bounds in await engine.bounds("t")])
        await engine.close()
    assert tails == sorted(tails)
