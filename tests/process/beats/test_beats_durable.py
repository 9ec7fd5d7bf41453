"""A line of beats in a log: it resumes, happens entirely or not at all, and notices damage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mainspring.beats import Heartbeat
from mainspring.beats.errors import BeatRunning, DamagedJournal, LineBusy, NotOpen, UnknownBeat
from mainspring.log import Batch, BlockingLog, Log, LogUnavailable, MemoryEngine, Result, SqliteEngine
from tests.support import beats_story as story
from tests.support.paths import ROOT

BEATS = 30


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[str], list[bytes]]:
    hb = Heartbeat(**story.RULES)
    story.install(hb)
    digests = story.tell(hb, BEATS)
    return digests, [hb.journal(beat) for beat in range(1, BEATS + 1)]


class Brittle(MemoryEngine):
    """Dies at its n-th commit, before it is stored or after."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.dies_at: tuple[int, str] | None = None

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        self.commits += 1
        if self.dies_at is None or self.commits != self.dies_at[0]:
            super().submit(batches, done)
            return
        if self.dies_at[1] == "after":
            super().submit(batches, lambda _: None)
        raise OSError("the machine is gone")


@pytest.fixture
def engine() -> Brittle:
    return Brittle()


def opened(log: BlockingLog, **rules: Any) -> Heartbeat:
    hb = Heartbeat(log=log, **{**story.RULES, **rules})
    story.install(hb)
    return hb


def journals(hb: Heartbeat) -> list[bytes]:
    return [hb.journal(beat) for beat in range(1, hb.next_beat)]


def test_a_durable_line_writes_the_same_bytes_as_one_in_memory(
    engine: Brittle, undisturbed: tuple[list[str], list[bytes]]
) -> None:
    with BlockingLog(engine) as log:
        hb = opened(log)
        assert story.tell(hb, BEATS) == undisturbed[0]
        assert journals(hb) == undisturbed[1]
        assert engine.commits == BEATS, "a beat is one commit"


@pytest.mark.parametrize("restart_every", [1, 4])
def test_it_resumes_at_its_beat_with_everything_it_had(
    engine: Brittle, undisturbed: tuple[list[str], list[bytes]], restart_every: int
) -> None:
    digests: list[str] = []
    for last in range(restart_every, BEATS + restart_every, restart_every):
        with BlockingLog(engine) as log:
            digests += story.tell(opened(log), min(last, BEATS))
    assert digests == undisturbed[0]
    with BlockingLog(engine) as log:
        hb = opened(log)
        assert hb.next_beat == BEATS + 1
        assert journals(hb) == undisturbed[1]
        plain = Heartbeat(**story.RULES)
        story.install(plain)
        story.tell(plain, BEATS)
        for path in plain.paths():
            for at in range(1, BEATS + 2):
                assert hb.read(path, at=at) == plain.read(path, at=at)
        for beat in range(1, BEATS + 1):
            for part in ("inbox", "agenda", "stage", "emitted", "diagnostics", "digest"):
                assert hb.read(f"/rt/beat/{beat}/{part}") == plain.read(f"/rt/beat/{beat}/{part}")
            assert hb.read(f"/rt/dead/{beat}") == plain.read(f"/rt/dead/{beat}")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_at_any_write_leaves_whole_beats(undisturbed: tuple[list[str], list[bytes]], moment: str) -> None:
    for dies_at in range(1, BEATS + 1):
        engine = Brittle()
        engine.dies_at = (dies_at, moment)
        with BlockingLog(engine) as log, pytest.raises(LogUnavailable):
            story.tell(opened(log), BEATS)
        with BlockingLog(engine) as log:
            hb = opened(log)
            assert hb.next_beat == dies_at + (moment == "after"), "entirely, or not at all"
            assert journals(hb) == undisturbed[1][: hb.next_beat - 1]
            story.tell(hb, BEATS)
            assert journals(hb) == undisturbed[1]


def test_a_beat_the_log_could_not_take_can_be_tried_again(
    engine: Brittle, undisturbed: tuple[list[str], list[bytes]]
) -> None:
    with BlockingLog(engine) as log:
        hb = opened(log)
        story.tell(hb, 4)
        engine.dies_at = (engine.commits + 1, "before")
        story.outside(hb, 5)
        before = hb.read("/rt/beat/5/inbox")
        with pytest.raises(LogUnavailable):
            hb.beat()
        assert hb.next_beat == 5
        assert hb.read("/rt/beat/5/inbox") == before, "the inbox is intact"
        assert hb.beat().digest == undisturbed[0][4]
        assert story.tell(hb, BEATS) == undisturbed[0][5:]


def test_a_beat_that_was_stored_without_an_answer_is_never_stored_twice(engine: Brittle) -> None:
    with BlockingLog(engine) as log:
        hb = opened(log)
        story.tell(hb, 4)
        engine.dies_at = (engine.commits + 1, "after")
        with pytest.raises(LogUnavailable):
            hb.beat()
        with pytest.raises(LineBusy):
            hb.beat()
        assert opened(log).next_beat == 6


def test_a_killed_process_leaves_whole_beats(tmp_path: Path, undisturbed: tuple[list[str], list[bytes]]) -> None:
    file = tmp_path / "log.sqlite3"
    for kill_after in (3, 9, 17):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.beats_story", str(BEATS), str(file)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        told = 0
        for line in process.stdout:
            assert line.strip() in undisturbed[0]
            told = undisturbed[0].index(line.strip()) + 1
            if told >= kill_after:
                process.kill()
        process.wait()
        process.stdout.close()
        with BlockingLog(SqliteEngine(file)) as log:
            hb = opened(log)
            assert hb.next_beat > told, "what was reported is stored"
            assert journals(hb) == undisturbed[1][: hb.next_beat - 1]
    with BlockingLog(SqliteEngine(file)) as log:
        hb = opened(log)
        story.tell(hb, BEATS)
        assert journals(hb) == undisturbed[1]
        assert hb.replay().identical


def test_outside_signals_and_bindings_survive_once_flushed(engine: Brittle) -> None:
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log)
        hb.signal("/kept")
        hb.signal("/kept/later", beat=3)
        hb.bind("/t", "a")
        hb.pause()
        hb.flush()
        commits = engine.commits
        hb.flush()
        assert engine.commits == commits, "nothing to write"
        hb.signal("/lost")
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log)
        hb.register("a", "/kept", lambda *_: None, match="prefix")
        assert hb.paused
        assert hb.resolve("/kept", "/t/x") == ["a"]
        assert [entry["signal"] for entry in hb.read("/rt/beat/1/inbox")] == ["/kept"]
        assert hb.beat().agenda == []
        hb.resume()
        assert [entry.signal for entry in hb.beat().agenda] == ["/kept"]
        assert [entry.signal for entry in hb.beat().agenda] == ["/kept/later"]


def test_two_heartbeats_on_one_line_cannot_mix(engine: Brittle) -> None:
    with BlockingLog(engine) as log:
        one, two = Heartbeat(log=log), Heartbeat(log=log)
        one.beat()
        with pytest.raises(LineBusy):
            two.beat()
        assert two.next_beat == 1
        other = Heartbeat(log=log, line="other")
        assert other.beat().beat == 1


async def test_a_line_on_an_async_log_is_opened_and_awaited(undisturbed: tuple[list[str], list[bytes]]) -> None:
    log = Log(MemoryEngine())
    await log.open()
    hb = Heartbeat(log=log, **story.RULES)
    story.install(hb)
    with pytest.raises(NotOpen):
        hb.signal("/sig")
    with pytest.raises(NotOpen):
        hb.beat()
    await hb.open()
    for beat in range(1, BEATS + 1):
        story.outside(hb, beat)
        assert (await hb.abeat()).digest == undisturbed[0][beat - 1]
    assert await hb.aread("/rt/beat/3/agenda") == hb.read("/rt/beat/3/agenda")
    assert (await hb.areplay()).identical
    again = Heartbeat(log=log, **story.RULES)
    story.install(again)
    await again.open()
    assert again.next_beat == BEATS + 1
    assert again.resolve("/grow", "/grown/29") == hb.resolve("/grow", "/grown/29")
    await log.close()


# --- damage -----------------------------------------------------------------------------------------------------------


def damage(log: BlockingLog, beat: int, change: Any) -> None:
    space, key = "journal/beats/main", f"{beat:016d}.000000"
    record = log.get(space, key)
    assert record is not None
    batch = Batch()
    batch.put(space, key, change(record.value))
    log.commit(batch)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.replace(b'"result":"ok"', b'"result":"no"', 1),
        lambda value: value[: len(value) // 2],
        lambda value: value[:40] + b"\x00\xff" + value[42:],
        lambda value: b"",
        lambda value: value.replace(b'"previous":"', b'"previous":"f', 1),
    ],
    ids=["a word", "cut", "bytes", "gone", "the chain"],
)
def test_damage_in_the_middle_is_found_and_earlier_beats_stay_readable(engine: Brittle, change: Any) -> None:
    with BlockingLog(engine) as log:
        story.tell(opened(log), 12)
        damage(log, 7, change)
    with BlockingLog(engine) as log:
        hb = opened(log)
        with pytest.raises((DamagedJournal, UnknownBeat), match="7"):
            hb.journal(7)
        for beat in range(1, 7):
            assert hb.journal(beat)
            assert hb.read(f"/rt/beat/{beat}/agenda") is not None
        assert hb.replay(1, 6).identical
        with pytest.raises((DamagedJournal, UnknownBeat), match="7"):
            hb.replay()
        assert hb.verify() == [7]
        hb.fork(6, "saved")
    with BlockingLog(engine) as log:
        saved = opened(log)
        forked = Heartbeat(log=log, line="saved", **story.RULES)
        story.install(forked)
        assert forked.next_beat == 7
        assert saved.next_beat == 13
        assert forked.verify() == []


def test_a_whole_journal_swapped_for_another_is_found_by_the_chain(engine: Brittle) -> None:
    with BlockingLog(engine) as log:
        hb = opened(log)
        story.tell(hb, 8)
        other = Heartbeat(log=log, line="other", **story.RULES)
        story.install(other)
        other.signal("/sig/uninvited")
        story.tell(other, 8)
        record = log.get("journal/beats/other", f"{5:016d}.000000")
        assert record is not None
        damage(log, 5, lambda _: record.value)
        assert Heartbeat(log=log).verify() == [5]


def test_a_beat_is_refused_while_another_runs() -> None:
    hb = Heartbeat()
    seen: list[str] = []

    def nested(signal: str | None, target: str | None, stage: Any) -> None:
        try:
            hb.beat()
        except BeatRunning as error:
            seen.append(error.code)

    hb.register("a", "/sig", nested)
    hb.signal("/sig")
    assert [entry.result for entry in hb.beat().agenda] == ["ok"]
    assert seen == ["beat_running"]
