"""Damage in SQLite's write-ahead log: what lies behind it is seen, and comes back.

Somebody who was told that an event is stored expects it to be there after a crash, also when a bit of the file was
flipped meanwhile; or at least to be told, and not to see its offset given to another event.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.log import Append, Batch, Log, LogDamaged, Put, SqliteEngine, StoredEvent, check, recover
from mainspring.log.engines.sqlite.wal import FRAME_BYTES, HEADER_BYTES, read_wal, wal_of

EVENTS = 60
STEP = FRAME_BYTES + 4_096


async def killed(folder: Path) -> Path:
    """The files of a log whose process was killed: a few commits in the database, most of them only in the WAL."""
    path = folder / "running" / "log.sqlite3"
    log = Log(SqliteEngine(path))
    await log.open()
    await log.commit(Batch([Append("t", 0, "early", 1, b"0")]))
    await log.close()
    await log.open()
    for n in range(EVENTS):
        batch = Batch([Append("t", 0, f"id-{n}", n, b'"%d %b"' % (n, b"x" * 300), f"k{n}", dedupe=f"id-{n}")])
        batch.put("groups", f"g{n % 7}", b'{"n":%d}' % n)
        await log.commit(batch)
    shutil.copytree(path.parent, folder / "killed")
    await log.close()
    return folder / "killed" / "log.sqlite3"


async def events_of(path: Path) -> list[StoredEvent]:
    log = Log(SqliteEngine(path))
    await log.open()
    found = await log.read("t", 0, 1, 1_000)
    await log.close()
    return found


def flip(path: Path, byte: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def spoil(path: Path, byte: int, count: int) -> None:
    """Noise in the place of `count` bytes."""
    data = bytearray(path.read_bytes())
    data[byte : byte + count] = random.Random(byte).randbytes(count)
    path.write_bytes(data)


def fresh(image: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(image.parent, folder)
    return folder / image.name


async def test_a_sound_one_is_read_as_sqlite_reads_it(tmp_path: Path) -> None:
    image = await killed(tmp_path)
    wal = read_wal(wal_of(image))
    assert wal is not None
    assert wal.faults == []
    assert wal.visible == len(wal.frames)
    assert (wal.hidden_commits, wal.has_lost) == (0, False)
    assert sum(1 for frame in wal.frames if frame.size) >= EVENTS
    assert recover(image) is None
    assert len(await events_of(image)) == EVENTS + 1


def bits_of_frames(image: Path, count: int) -> list[tuple[int, int]]:
    wal = read_wal(wal_of(image))
    assert wal is not None
    chance = random.Random(7)
    frames = len(wal.frames)
    places = [(chance.randrange(frames - 3), chance.randrange(STEP)) for _ in range(count)]
    places += [(frames // 2, at) for at in (0, 5, 9, 13, 17, 21)] + [(0, 100)]
    return [(HEADER_BYTES + frame * STEP + at, chance.randrange(8)) for frame, at in places]


async def test_a_flipped_bit_in_any_frame_is_noticed_and_undone(tmp_path: Path) -> None:
    image = await killed(tmp_path)
    expected = await events_of(fresh(image, tmp_path / "whole"))
    for byte, bit in bits_of_frames(image, 12):
        path = fresh(image, tmp_path / "damaged")
        flip(wal_of(path), byte, bit)
        with pytest.raises(LogDamaged, match="commits that were acknowledged") as refused:
            await SqliteEngine(path).open()
        assert "mainspring log recover" in refused.value.remedy
        assert any(problem.kind == "wal" for problem in check(path).problems)
        done = recover(path)
        assert done is not None
        assert (done.report.problems, len(done.damage)) == ([], 1), (byte, bit)
        assert await events_of(path) == expected, (byte, bit)
        assert (Path(done.kept) / path.name).exists()


@pytest.mark.parametrize("byte", range(1, HEADER_BYTES, 5))
async def test_so_is_one_in_the_header(tmp_path: Path, byte: int) -> None:
    path = await killed(tmp_path)
    flip(wal_of(path), byte, byte % 8)
    with pytest.raises(LogDamaged, match="recover"):
        await SqliteEngine(path).open()
    done = recover(path)
    assert done is not None
    assert done.report.problems == []
    assert len(await events_of(path)) == EVENTS + 1


@pytest.mark.parametrize("count", [64, 2_000, 9_000])
async def test_behind_larger_damage_everything_comes_back_that_was_written_again_later(
    tmp_path: Path, count: int
) -> None:
    path = await killed(tmp_path)
    spoil(wal_of(path), HEADER_BYTES + 40 * STEP + 500, count)
    with pytest.raises(LogDamaged):
        await SqliteEngine(path).open()
    done = recover(path)
    assert done is not None
    found = await events_of(path)
    lost = {f"id-{n}" for n in range(EVENTS)} - {event.id for event in found}
    assert len(lost) <= 3
    assert bool(lost) <= bool(done.report.problems)
    assert found[-1].offset == EVENTS + 1


async def test_commits_that_are_given_up_leave_their_offsets_unused(tmp_path: Path) -> None:
    path = await killed(tmp_path)
    spoil(wal_of(path), HEADER_BYTES + 20 * STEP, STEP)
    done = recover(path, discard=True)
    assert done is not None
    assert done.discarded
    assert done.report.problems == []
    log = Log(SqliteEngine(path))
    await log.open()
    assert len(await log.read("t", 0, 1, 1_000)) < EVENTS
    assert (await log.commit(Batch([Append("t", 0, "new", 1, b"1")]))).offsets == ((0, EVENTS + 2, False),)
    await log.close()
    assert check(path).problems == []


async def test_a_commit_that_the_power_cut_is_no_damage(tmp_path: Path) -> None:
    """It was not acknowledged, so the log opens without it; the commits before are all there."""
    image = await killed(tmp_path)
    wal = read_wal(wal_of(image))
    assert wal is not None
    last = max(n for n, frame in enumerate(wal.frames[:-1]) if frame.size) + 1
    ways: list[Callable[[bytearray], None]] = [
        lambda data: data.__delitem__(slice(HEADER_BYTES + last * STEP + 700, None)),
        lambda data: data.__setitem__(
            slice(HEADER_BYTES + last * STEP, HEADER_BYTES + last * STEP + 1_024), bytes(1_024)
        ),
    ]
    for tear in ways:
        path = fresh(image, tmp_path / "torn")
        data = bytearray(wal_of(path).read_bytes())
        tear(data)
        wal_of(path).write_bytes(data)
        assert len(await events_of(path)) >= EVENTS


async def test_a_flipped_bit_in_the_last_commit_is_undone_at_the_next_start(tmp_path: Path) -> None:
    """It may be what a power cut left, so the node starts; it may have been acknowledged, so it is kept."""
    image = await killed(tmp_path)
    wal = read_wal(wal_of(image))
    assert wal is not None
    for at in (10, 100, 700, 3_000, 4_100):
        path = fresh(image, tmp_path / "damaged")
        flip(wal_of(path), HEADER_BYTES + (len(wal.frames) - 1) * STEP + at, at % 8)
        assert len(await events_of(path)) == EVENTS + 1
        assert check(path).problems == []


async def test_records_come_back_too(tmp_path: Path) -> None:
    path = await killed(tmp_path)
    flip(wal_of(path), HEADER_BYTES + 10 * STEP + 2_000, 4)
    recover(path)
    log = Log(SqliteEngine(path))
    await log.open()
    values = {record.key: record.value async for record in log.scan("groups")}
    assert values == {f"g{n % 7}": b'{"n":%d}' % n for n in range(EVENTS - 7, EVENTS)}
    receipt = await log.commit(Batch([Append("t", 0, "id-59", 1, b"1", dedupe="id-59"), Put("s", "k", b"")]))
    assert receipt.offsets[0][1] == EVENTS + 2 or receipt.offsets[0][2]
    await log.close()


async def test_a_frame_whose_page_number_did_not_reach_the_disk_is_no_obstacle(tmp_path: Path) -> None:
    """A power cut may leave a frame without its first bytes: there is no page 0 to compare it with."""
    image = await killed(tmp_path)
    whole = wal_of(image).read_bytes()
    for at in range(HEADER_BYTES, len(whole) - STEP + 1, STEP):
        path = fresh(image, tmp_path / "torn")
        wal_of(path).write_bytes(whole[:at] + bytes(8) + whole[at + 8 : at + STEP])
        assert (await events_of(path))[0].id == "early"


async def test_a_damaged_frame_before_one_that_ends_anywhere_is_no_obstacle(tmp_path: Path) -> None:
    """A power cut ends the file at any byte, and may have left something else in the frame before."""
    image = await killed(tmp_path)
    whole = wal_of(image).read_bytes()
    last = len(whole) - STEP
    for kept in (*range(1, 34), 511, 512, 513, STEP - 1):
        path = fresh(image, tmp_path / "torn")
        damaged = bytearray(whole[: last + kept])
        damaged[last - 100] ^= 0xFF
        wal_of(path).write_bytes(damaged)
        assert (await events_of(path))[0].id == "early"


async def test_so_is_one_behind_a_damaged_header(tmp_path: Path) -> None:
    image = await killed(tmp_path)
    whole = wal_of(image).read_bytes()
    for kept in (*range(FRAME_BYTES + 512, FRAME_BYTES + 530), STEP - 1):
        path = fresh(image, tmp_path / "torn")
        damaged = bytearray(whole[: HEADER_BYTES + kept])
        damaged[9] ^= 0xFF
        wal_of(path).write_bytes(damaged)
        assert [event.id for event in await events_of(path)] == ["early"]
