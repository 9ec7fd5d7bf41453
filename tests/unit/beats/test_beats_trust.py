"""What nobody gets away with: rewritten history, and enzymes that could stop the beats of all others."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from mainspring.beats import BeatReport, Heartbeat
from mainspring.beats.errors import DamagedJournal
from mainspring.errors import SettingError
from mainspring.log import Batch, BlockingLog, SqliteEngine


def counting(log: BlockingLog, **rules: Any) -> Heartbeat:
    hb = Heartbeat(log=log, **rules)
    hb.register("count", "/count", lambda signal, target, stage: stage.write("/n", (stage.read("/n") or 0) + 1))
    return hb


def count(hb: Heartbeat, beats: int) -> None:
    for _ in range(beats):
        hb.signal("/count")
        hb.beat()


def results(report: BeatReport) -> dict[str, str]:
    return {entry.enzyme: entry.result for entry in report.agenda}


def rewrite(log: BlockingLog, beat: int, old: bytes, new: bytes) -> None:
    """Change a beat as somebody would who knows the format: journal, commit and digest fit each other again."""
    key = f"{beat:016d}.000000"
    record = log.get("journal/beats/main", key)
    assert record is not None
    *body, commit = record.value.splitlines(keepends=True)
    changed = b"".join(body).replace(old, new)
    digests = hashlib.sha256(b"".join(body)).hexdigest().encode(), hashlib.sha256(changed).hexdigest().encode()
    assert digests[0] != digests[1]
    batch = Batch()
    batch.put("journal/beats/main", key, changed + commit.replace(*digests))
    batch.put("beats", f"main/digest/{beat:016d}", digests[1])
    log.commit(batch)


@pytest.mark.parametrize("beat", [1, 2, 3], ids=["the first", "one in the middle", "the last"])
@pytest.mark.parametrize("again", [False, True], ids=["at once", "after opening it again"])
def test_a_beat_rewritten_with_its_digest_is_found_and_no_other(tmp_path: Path, beat: int, again: bool) -> None:
    with BlockingLog(SqliteEngine(tmp_path / "log.db")) as log:
        hb = counting(log)
        count(hb, 3)
        assert hb.verify() == []
        rewrite(log, beat, b'"value":%d' % beat, b'"value":9')
        if again:
            hb = counting(log)
        assert hb.verify() == [beat]
        count(hb, 1)
        assert hb.verify() == [beat]


def test_a_value_that_no_beat_has_written_is_found(tmp_path: Path) -> None:
    with BlockingLog(SqliteEngine(tmp_path / "log.db")) as log:
        count(counting(log), 3)
        batch = Batch()
        batch.put("beats", f"main/cell//n//{3:016d}", b"=77")
        log.commit(batch)
        hb = counting(log)
        assert hb.read("/n", at=3) == 77
        assert hb.verify() == [2]


def test_a_missing_journal_is_damage_and_says_so(tmp_path: Path) -> None:
    with BlockingLog(SqliteEngine(tmp_path / "log.db")) as log:
        count(counting(log), 3)
        batch = Batch()
        batch.delete("journal/beats/main", f"{2:016d}.000000")
        log.commit(batch)
        hb = counting(log)
        assert hb.verify() == [2]
        for attempt in (hb.replay, lambda: hb.journal(2)):
            with pytest.raises(DamagedJournal, match="beat 2: its journal is missing"):
                attempt()


def test_digests_of_long_ago_are_read_from_the_log_and_not_kept_in_memory(tmp_path: Path) -> None:
    with BlockingLog(SqliteEngine(tmp_path / "log.db")) as log:
        hb = counting(log, retain_beats=3)
        first = hb.beat().digest
        for _ in range(150):
            hb.beat()
        assert len(hb.state.digests) < 100
        assert hb.read("/rt/beat/1/digest") == first
        assert hb.verify() == []


@pytest.mark.parametrize("amount", [10**5000, -(10**5000), 10**1000], ids=["huge", "far below", "just too long"])
def test_a_number_too_long_to_be_written_fails_its_enzyme_and_not_the_beat(amount: int) -> None:
    hb = Heartbeat()
    hb.register("add", "/add", lambda signal, target, stage: stage.add("/n", amount))
    hb.register("count", "/add", lambda signal, target, stage: stage.add("/n", 1))
    hb.signal("/add")
    assert results(hb.beat()) == {"add": "failed", "count": "ok"}
    assert hb.read("/n") == 1


def test_adding_to_a_number_that_is_nearly_too_long_never_stops_a_beat() -> None:
    hb = Heartbeat()
    most = 10**4300 - 1
    hb.register("fix", "/both", lambda signal, target, stage: stage.write("/n", most))
    hb.register("later", "/both", lambda signal, target, stage: stage.add("/n", 10**999), after=("fix",))
    hb.signal("/both")
    hb.signal("/both", beat=2)
    assert results(hb.beat()) == {"fix": "ok", "later": "ok"}
    assert hb.read("/n") == 10**999
    assert results(hb.beat()) == {"fix": "ok", "later": "ok"}
    assert hb.replay().identical


def test_an_enzyme_written_as_a_generator_fails_instead_of_doing_nothing() -> None:
    def plain(signal: Any, target: Any, stage: Any) -> Any:
        stage.write("/never", 1)
        yield

    async def asynchronous(signal: Any, target: Any, stage: Any) -> Any:
        stage.write("/never", 1)
        yield

    hb = Heartbeat()
    hb.register("a", "/go", plain)
    hb.register("b", "/go", asynchronous)
    hb.signal("/go")
    report = hb.beat()
    assert results(report) == {"a": "failed", "b": "failed"}
    assert all("generator" in note.detail for note in report.diagnostics)
    assert hb.read("/never") is None


@pytest.mark.parametrize(
    ("answer", "result"),
    [(Decimal(-1), "retry"), (Decimal(-2), "fatal"), (Fraction(-7, 2), "failed"), (Decimal("0.5"), "ok"), (2j, "ok")],
)
def test_negative_numbers_of_any_kind_are_failures(answer: Any, result: str) -> None:
    hb = Heartbeat()
    hb.register("a", "/go", lambda *_: answer)
    hb.signal("/go")
    assert results(hb.beat()) == {"a": result}


@pytest.mark.parametrize("odd", [2, None, (), [], (0,), "12"])
def test_a_back_off_that_is_none_is_refused_by_its_name(odd: Any) -> None:
    with pytest.raises(SettingError, match="backoff_beats"):
        Heartbeat(backoff_beats=odd)


def test_a_back_off_may_be_any_sequence() -> None:
    for beats in ([1, 2], range(1, 3)):
        assert Heartbeat(backoff_beats=beats).rules.backoff_beats == (1, 2)
