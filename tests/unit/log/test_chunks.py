"""Events in chunks: nothing of them is lost or changed, whatever is damaged, removed, put together or converted.

Who operates a log expects that a rotten byte costs one event at most and is always noticed, that a log of the version
before opens at once and is all there, and that a quiet topic takes no more room than a busy one.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.log import (
    Append,
    Batch,
    DamagedEvent,
    Log,
    Remove,
    SqliteEngine,
    StoredEvent,
    backup,
    check,
    upgrade,
)
from mainspring.log.contract import event_bytes
from mainspring.log.engines.sqlite.chunks import (
    MOST_BYTES,
    MOST_EVENTS,
    Chunk,
    ChunkHead,
    EventRow,
    pack,
    pack_all,
    pack_events,
)
from mainspring.log.engines.sqlite.reader import SqliteReader
from mainspring.log.engines.sqlite.upkeep import FEW_CHUNKS
from mainspring.log.export_import import LogExport
from tests.support.log_file import alter, chunks_of, stored_events, write_rows

BASE = 5 << 43

texts = st.text(max_size=8)
event_rows = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(-(1 << 63) + 1, (1 << 63) - 1),
        texts,
        st.binary(max_size=40),
        st.none() | texts,
        st.none() | st.binary(max_size=9),
    ),
    min_size=1,
    max_size=20,
)


def ascending(rows: list[EventRow]) -> list[EventRow]:
    """The first number of each is how far it is from the one before."""
    offset, found = 0, []
    for step, *rest in rows:
        offset += step
        found.append((offset, *rest))
    return found


@given(event_rows)
def test_what_is_packed_is_found_again(given_rows: list[EventRow]) -> None:
    rows = ascending(given_rows)
    made, total, high = pack_all(BASE, [pack_events(BASE, rows)], 100, None)
    assert total - 100 == sum(event_bytes(StoredEvent("t", 0, *_event(row))) for row in rows)
    assert high == max(row[1] for row in rows)
    (values,) = made
    head, chunk = ChunkHead(*values[:7]), Chunk(values[0], *values[7:])
    assert head.is_sound()
    assert chunk.is_sound()
    assert chunk.sums_are_sound()
    assert chunk.rows() == rows
    assert (head.first, head.last, head.events, head.total) == (rows[0][0], rows[-1][0], len(rows), total)
    for start in range(rows[-1][0] + 2):
        for limit in (1, 2, 30):
            wanted = [row for row in rows if row[0] >= start][:limit]
            found = chunk.events("t", 0, start, limit)
            assert found is not None
            assert [(e.offset, e.ts, e.id, e.payload, e.key, e.headers) for e in found] == wanted


def _event(row: EventRow) -> tuple[int, str, int, bytes, str | None, bytes | None]:
    offset, ts, id, payload, key, headers = row
    return offset, id, ts, payload, key, headers


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_flipped_bit_costs_one_event_at_most_and_is_always_noticed(count: int, gaps: bool) -> None:
    rows: list[EventRow] = [
        (n * (2 if gaps else 1) + 1, 1_700_000_000_000 + n, f"id-{n}", b'{"n":%d}' % n, f"k{n}", b"{}")
        for n in range(count)
    ]
    values = pack(BASE, pack_events(BASE, rows), 600, 1_700_000_000_000 + count)
    chunk = Chunk(values[0], *values[7:])
    for field in ("sums", "data"):
        whole = getattr(chunk, field)
        for at in range(len(whole)):
            for bit in range(8):
                rotten = whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :]
                damaged = Chunk(
                    chunk.pos, chunk.crc, *((rotten, chunk.data) if field == "sums" else (chunk.sums, rotten))
                )
                assert not (damaged.is_sound() and damaged.sums_are_sound())
                if damaged.is_sound():
                    assert damaged.rows() == rows
                    assert damaged.events("t", 0, 2, 1) == chunk.events("t", 0, 2, 1)
                    continue
                parts = damaged.parts()
                assert [part.offset for part in parts] == [row[0] for row in rows]
                assert [part.row for part in parts].count(None) <= 1
                assert all(part.row == row for part, row in zip(parts, rows, strict=True) if part.row is not None)
    wrong = Chunk(chunk.pos, chunk.crc ^ 1, chunk.sums, chunk.data)
    assert not wrong.is_sound()
    head = ChunkHead(*values[:7])
    for n in range(1, 7):
        changed = list(values[:7])
        changed[n] ^= 1
        assert head.is_sound()
        assert not ChunkHead(*changed).is_sound()


@pytest.mark.parametrize("bit", [0, 1, 3])
async def test_no_offset_is_given_twice_when_the_numbers_of_the_last_chunk_are_damaged(
    tmp_path: Path, bit: int
) -> None:
    path = tmp_path / "log"
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Append("t", 0, f"a{n}", n, b"1") for n in range(10)]))
    await log.commit(Batch([Append("t", 0, f"b{n}", n, b"1") for n in range(10)]))
    await log.close()
    alter(path, f"UPDATE chunks SET last = last - {1 << bit} WHERE pos & 31 = 11")
    assert any(problem.kind == "chunk" for problem in check(path).problems)
    await log.open()
    assert (await log.commit(Batch([Append("t", 0, "c", 1, b"1")]))).offsets == ((0, 21, False),)
    assert [event.offset for event in await log.read("t", 0, 1, 100)] == list(range(1, 22))
    await log.close()


async def test_chunks_are_bounded_in_events_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(SqliteEngine(path))
    await log.open()
    payloads = [b"1"] * (3 * MOST_EVENTS) + [b"x" * (MOST_BYTES // 3)] * 10 + [b"y" * (MOST_BYTES + 5)] * 3 + [b"2"] * 9
    await log.commit(Batch([Append("t", 0, f"id-{n}", n, payload) for n, payload in enumerate(payloads)]))
    assert [event.payload for event in await log.read("t", 0, 1, 10_000, 1 << 30)] == payloads
    for size in (1, 1000, MOST_BYTES):
        (first, *rest) = await log.read("t", 0, 1, 10_000, size)
        assert sum(map(event_bytes, [first, *rest])) <= max(size, event_bytes(first))
    await log.close()
    assert check(path).problems == []
    chunks = chunks_of(path)
    assert all(len(chunk.rows()) <= MOST_EVENTS for chunk in chunks)
    assert all(len(chunk.data) < MOST_BYTES * 1.1 or len(chunk.rows()) == 1 for chunk in chunks)


def events_by_rows(count: int) -> list[StoredEvent]:
    chance = random.Random(7)
    return [
        StoredEvent(
            "t",
            0,
            offset,
            f"id-{offset}",
            1_000_000 + offset + chance.choice((0, 0, -500)),
            b'{"n":%d}' % offset,
            chance.choice((None, "schl\u00fcssel")),
            chance.choice((None, b'{"h":"v"}')),
        )
        for offset in range(1, 2 * count, 2)
    ]


@pytest.mark.parametrize("format", [1, 2])
async def test_an_older_file_is_read_as_it_is(tmp_path: Path, format: int) -> None:
    path = tmp_path / "log"
    events = events_by_rows(300)
    write_rows(path, format, events)
    assert check(path).format == format
    assert stored_events(path) == events
    engine = SqliteEngine(path, read_only=True)
    await engine.open()
    lines = [line async for line in LogExport(engine).lines()]
    assert len(lines) == 300 + 3
    assert await engine.offset_at("t", 0, 1_000_400) == next(e.offset for e in events if e.ts >= 1_000_400)
    await engine.close()
    backup(path, tmp_path / "copy")
    assert stored_events(tmp_path / "copy") == events
    assert check(path).format == format


async def test_an_older_file_becomes_chunks_in_the_background(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "log"
    events = events_by_rows(2 * MOST_EVENTS + 30)
    write_rows(path, 2, events)
    log = Log(SqliteEngine(path))
    await log.open()
    receipt = await log.commit(Batch([Append("t", 0, "new", 9_000_000, b"1")]))
    new = StoredEvent("t", 0, events[-1].offset + 1, "new", 9_000_000, b"1")
    assert receipt.offsets == ((0, new.offset, False),)
    times = [events[0].ts - 1, *(event.ts + 1 for event in events[::97]), 8_000_000, 9_000_001]
    expected = {ts: next((e.offset for e in [*events, new] if e.ts >= ts), new.offset + 1) for ts in times}
    while True:  # at every moment, all of it is there
        with closing(sqlite3.connect(path)) as connection:
            (left,) = connection.execute("SELECT count(*) FROM events").fetchone()
        assert stored_events(path) == [*events, new]
        for ts, offset in expected.items():
            assert await log.offset_at("t", 0, ts) == offset
        if not left:
            break
    await log.close()
    words = [record.message for record in caplog.records if "an older format" in record.message]
    assert f": {MOST_EVENTS} of about {2 * len(events) - 1} events" in words[0]  # every second offset holds one
    assert check(path).problems == []
    await log.open()
    assert (await log.commit(Batch([Append("t", 0, "next", 1, b"1")]))).offsets == ((0, new.offset + 1, False),)
    await log.close()


async def test_events_are_removed_from_rows_and_chunks_alike(tmp_path: Path) -> None:
    path = tmp_path / "log"
    events = events_by_rows(40)
    write_rows(path, 2, events)
    with closing(SqliteReader(path)) as reader:
        (before,) = reader.bounds("t")
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Append("t", 0, f"new-{n}", 1, b"1") for n in range(20)]))
    await log.commit(Batch([Remove("t", 0, below=21, offsets=(31, 33, 85, 86, 999))]))
    await log.commit(Batch([Remove("t", 0, below=90, offsets=(95,))]))
    left = [event.offset for event in await log.read("t", 0, 1, 100)]
    assert left == [n for n in range(90, 100) if n != 95]
    (bounds,) = await log.bounds("t")
    assert (before.events, bounds.head, bounds.tail, bounds.events) == (40, 90, 99, 9)
    assert bounds.bytes == sum(len(f"new-{n}1") for n in range(10, 20) if n != 15)
    await log.close()
    assert check(path).problems == []


async def test_an_upgrade_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log"
    events = events_by_rows(3 * MOST_EVENTS)
    write_rows(path, 1, events)

    class Enough(Exception):
        pass

    def stop(what: str, done: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        upgrade(path, stop)
    assert stored_events(path) == events
    done = upgrade(path)
    assert (done.before, done.events, done.left) == (3, 2 * MOST_EVENTS, 0)
    assert stored_events(path) == events
    assert check(path).problems == []
    assert upgrade(path).events == 0


async def test_a_damaged_row_stays_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    events = events_by_rows(10)
    write_rows(path, 2, events)
    alter(path, "UPDATE events SET payload = x'7b226e223a387d' WHERE id = 'id-9'")
    assert upgrade(path).left == 5
    log = Log(SqliteEngine(path))
    await log.open()
    assert await log.read("t", 0, 1, 100) == events[:4]
    with pytest.raises(DamagedEvent):
        await log.read("t", 0, 9, 100)
    assert await log.read("t", 0, 10, 100) == events[5:]
    await log.close()
    assert [problem.kind for problem in check(path).problems] == ["event"]


async def test_small_chunks_of_a_quiet_topic_are_put_together(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(SqliteEngine(path))
    await log.open()
    expected = []
    for n in range(1, 3 * MOST_EVENTS):
        await log.commit(Batch([Append("quiet", 0, f"id-{n}", n % 7, b"%d" % n), Append("other", n % 3, "x", 1, b"1")]))
        expected.append(n)
        if n == MOST_EVENTS:
            await log.commit(Batch([Remove("quiet", 0, below=40, offsets=(77, 78, 300))]))
    expected = [n for n in expected if n >= 40 and n not in (77, 78, 300)]
    assert [event.offset for event in await log.read("quiet", 0, 1, 5_000)] == expected
    while len([chunk for chunk in chunks_of(path) if chunk.pos >> 43 == 1]) > FEW_CHUNKS + 3:  # in the background
        assert [event.offset for event in stored_events(path) if event.topic == "quiet"] == expected
    (bounds,) = await log.bounds("quiet")
    assert (bounds.head, bounds.tail, bounds.events) == (40, 3 * MOST_EVENTS - 1, len(expected))
    assert bounds.bytes == sum(len(f"id-{n}{n}") for n in expected)
    assert await log.offset_at("quiet", 0, 6) == 41
    await log.close()
    assert check(path).problems == []


async def test_a_fault_in_the_upkeep_does_not_end_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(connection: sqlite3.Connection, state: object) -> bool:
        connection.execute("BEGIN")
        raise ValueError("a fault")

    monkeypatch.setattr("mainspring.log.engines.sqlite.writer.put_together", fail)
    log = Log(SqliteEngine(tmp_path / "log"))
    await log.open()
    for _ in range(4 * FEW_CHUNKS):
        await log.commit(Batch([Append("quiet", 0, "id", 1, b"1")]))
    assert len(await log.read("quiet", 0, 1, 5_000)) == 4 * FEW_CHUNKS
    await log.close()
    assert [record.message for record in caplog.records] == [
        "the log's small chunks are left as they are until the node is started again"
    ]


async def test_what_is_removed_step_by_step_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(SqliteEngine(path))
    await log.open()
    for n in range(3):
        await log.commit(Batch([Append("t", 0, f"id-{n}{m}", 1, b"1") for m in range(10)]))
    gone: set[int] = set()
    for below, offsets in ((3, (6,)), (6, (9,)), (6, (7, 8)), (9, ()), (14, (16, 17)), (16, ()), (22, (30,)), (31, ())):
        await log.commit(Batch([Remove("t", 0, below, offsets)]))
        gone |= {*range(1, below), *offsets}
        left = [offset for offset in range(1, 31) if offset not in gone]
        assert [event.offset for event in await log.read("t", 0, 1, 100)] == left
        (bounds,) = await log.bounds("t")
        assert (bounds.events, bounds.bytes) == (len(left), len(left) * len("id-001"))
        assert bounds.head == (left[0] if left else 31)
        assert check(path).problems == []
        if below in (6, 16):
            await log.close()
            await log.open()
    assert (await log.commit(Batch([Append("t", 0, "next", 1, b"1")]))).offsets == ((0, 31, False),)
    await log.close()


async def test_retention_does_not_believe_damaged_numbers(tmp_path: Path) -> None:
    """A chunk that seems to end before it does must not be deleted with the events behind that."""
    path = tmp_path / "log"
    log = Log(SqliteEngine(path))
    await log.open()
    for n in range(3):
        await log.commit(Batch([Append("t", 0, f"id-{n}{m}", 1, b"1") for m in range(10)]))
    await log.close()
    alter(path, "UPDATE chunks SET last = 12 WHERE last = 20")
    await log.open()
    await log.commit(Batch([Remove("t", 0, below=15)]))
    assert [event.offset for event in await log.read("t", 0, 1, 100)] == list(range(15, 31))
    await log.close()
