"""Replay, as-of reads, differences and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from mainspring.beats import RETRY, Heartbeat
from mainspring.beats.errors import LineExists, MissingEnzyme, NotOpen, UnknownBeat
from mainspring.log import BlockingLog, MemoryEngine
from tests.support import beats_story as story
from tests.support.paths import ROOT


def elsewhere(hash_seed: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.beats_story", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_ten_thousand_beats_replay_to_the_same_bytes_under_any_hash_seed() -> None:
    hb = story.light()
    here = story.tell_light(hb, 10_000)
    assert {elsewhere(seed, "10000", "light").strip() for seed in ("1", "2")} == {here}
    replayed = hb.replay()
    assert (replayed.identical, replayed.beats, replayed.digest) == (True, 10_000, hb.digest)


def test_every_kind_of_fact_is_the_same_in_another_process() -> None:
    hb = Heartbeat(**story.RULES)
    story.install(hb)
    here = story.tell(hb, 60)
    assert elsewhere("0", "60").split() == elsewhere("4242", "60").split() == here


def test_the_bytes_are_those_that_every_version_of_python_has_written() -> None:
    """Pinned on 3.11, 3.12 and 3.13; it changes only when the format of journals does."""
    assert story.tell_light(story.light(), 200) == "effb2fca2c616595ad7cafb93404d6ebe34cd17ec8110330865d6ce3dc501766"


@pytest.mark.parametrize("first", [1, 2, 7, 23, 60])
def test_a_replay_may_start_anywhere(first: int) -> None:
    hb = Heartbeat(**story.RULES)
    story.install(hb)
    story.tell(hb, 60)
    assert hb.replay(first).beats == 61 - first
    assert hb.replay(first, first).identical
    assert hb.next_beat == 61, "nothing happened here"


def test_a_replay_changes_nothing_and_calls_the_enzymes() -> None:
    hb = Heartbeat()
    calls: list[int] = []

    def work(signal: str | None, target: str | None, stage: Any) -> None:
        calls.append(stage.beat)
        hb.bind("/t", "work")
        assert hb.signal("/sig") == stage.beat + 1
        assert hb.read("/n") == stage.read("/n")
        stage.write("/n", len(calls))

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    hb.beat()
    calls.clear()
    digest, bound = hb.digest, hb.resolve(None, "/t")
    assert hb.replay().identical
    assert calls == [1]
    assert (hb.digest, hb.next_beat, hb.waiting, hb.resolve(None, "/t"), hb.read("/n")) == (digest, 2, 1, bound, 1)


def test_the_first_beat_and_record_that_differ_are_named() -> None:
    hb = Heartbeat()
    values = {"n": 1}
    hb.register("same", "/sig", lambda signal, target, stage: stage.write("/same", 1))
    hb.register("work", "/sig", lambda signal, target, stage: stage.write("/x", values["n"]))
    for _ in range(5):
        hb.signal("/sig")
        values["n"] += hb.next_beat == 3
        hb.beat()
    values["n"] = 1
    found = hb.replay()
    assert found.divergence is not None
    assert (found.beats, found.divergence.beat) == (2, 3)
    record = hb.journal(3).splitlines()[found.divergence.record - 1]
    assert record.decode() == found.divergence.recorded
    assert '"value":2' in found.divergence.recorded
    assert '"value":1' in (found.divergence.replayed or "")
    assert "beat 3 differs at record" in str(found.divergence)


@pytest.mark.parametrize("what", ["result", "emission", "more", "fewer"])
def test_any_change_of_an_enzyme_shows(what: str) -> None:
    changed: list[bool] = []

    def work(signal: str | None, target: str | None, stage: Any) -> Any:
        now = bool(changed)
        if what == "emission":
            stage.signal("/other" if now else "/one")
        if what == "more" and now:
            stage.signal("/more")
        if what == "fewer" and not now:
            stage.delete("/x")
        return RETRY if what == "result" and now else None

    hb = Heartbeat()
    hb.register("work", "/sig", work)
    hb.signal("/sig")
    hb.beat()
    changed.append(True)
    found = hb.replay().divergence
    assert found is not None
    assert found.beat == 1


def test_outside_changes_of_registry_and_bindings_are_replayed_too() -> None:
    hb = Heartbeat()
    hb.register("a", "/sig", lambda signal, target, stage: stage.write("/a", stage.beat))
    hb.signal("/sig")
    hb.beat()
    hb.register("b", "/sig", lambda signal, target, stage: stage.write("/b", stage.beat), before=("a",))
    hb.bind("/t", "a")
    hb.signal("/sig", "/t/u")
    hb.signal("/sig")
    hb.beat()
    hb.unregister("a")
    hb.unbind("/t/u", "a")
    hb.signal("/sig", "/t/u")
    hb.signal("/sig")
    hb.beat()
    assert hb.replay().identical
    assert hb.replay(2).identical
    assert hb.replay(3).identical


def test_each_beat_is_replayed_by_the_rules_it_was_made_with() -> None:
    def again(signal: str, target: str | None, stage: Any) -> int:
        stage.write("/tries", [stage.attempt, "x" * 20])
        stage.signal("/more")
        return RETRY

    def opened(log: BlockingLog, line: str = "main", **rules: Any) -> Heartbeat:
        hb = Heartbeat(log=log, line=line, **rules)
        hb.register("again", "/sig", again)
        hb.register("more", "/sig", again)
        return hb

    rules: list[dict[str, Any]] = [
        {"max_attempts": 2, "strict": True},
        {},
        {"max_runs_per_beat": 1, "inline_chars": 5, "retain_beats": 50},
        {"max_chain_depth": 0, "backoff_beats": [2, 1]},
    ]
    with BlockingLog(MemoryEngine()) as log:
        for each in rules:
            hb = opened(log, **each)
            for _ in range(3):
                hb.signal("/sig")
                hb.beat()
        for each in ({}, rules[0]):
            assert opened(log, **each).replay().identical
            assert opened(log, **each).replay(5, 8).identical
        hb.fork(7, "other")
        assert opened(log, "other", strict=True).replay().identical


def test_registering_again_with_another_function_changes_nothing_not_even_the_replay() -> None:
    hb = Heartbeat()
    hb.register("work", "/sig", lambda signal, target, stage: stage.write("/x", "first"))
    hb.register("work", "/sig", lambda signal, target, stage: stage.write("/x", "second"))
    hb.signal("/sig")
    hb.beat()
    assert hb.read("/x") == "first"
    assert hb.replay().identical


def test_a_program_without_the_enzyme_cannot_replay() -> None:
    engine = MemoryEngine()
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log)
        hb.register("gone", "/sig", lambda *_: None)
        hb.signal("/sig")
        hb.beat()
    with BlockingLog(engine) as log, pytest.raises(MissingEnzyme, match="gone"):
        Heartbeat(log=log).replay()


def test_beats_that_are_not_there_cannot_be_replayed() -> None:
    hb = Heartbeat(retain_beats=3)
    for _ in range(10):
        hb.beat()
    for first, last in ((1, None), (0, None), (8, 11), (11, 12)):
        with pytest.raises(UnknownBeat):
            hb.replay(first, last)
    assert hb.replay(8).beats == 3


def test_a_difference_lists_paths_that_two_beats_read_differently() -> None:
    hb = Heartbeat()

    def work(signal: str, target: str | None, stage: Any) -> None:
        stage.write("/same", 1)
        stage.write("/x", stage.beat)
        if signal == "/drop":
            stage.delete("/x")
            stage.write("/y", [1])

    hb.register("work", "/**", work)
    hb.signal("/make", beat=1)
    hb.signal("/make", beat=2)
    hb.signal("/drop", beat=3)
    for _ in range(3):
        hb.beat()
    assert [(d.path, d.earlier, d.later) for d in hb.diff(2, 3)] == [("/x", 1, 2)]
    assert [(d.path, d.earlier, d.later) for d in hb.diff(2, 4)] == [("/x", 1, None), ("/y", None, [1])]
    assert [(d.path, d.earlier, d.later) for d in hb.diff(4, 2)] == [("/x", None, 1), ("/y", [1], None)]
    assert hb.diff(3, 3) == []
    with pytest.raises(UnknownBeat):
        hb.diff(1, 5)


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_fork_continues_an_old_beat_and_leaves_the_old_line_alone() -> None:
    engine = MemoryEngine()
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log, **story.RULES)
        story.install(hb)
        digests = story.tell(hb, 20)
        hb.fork(9, "second")
        with pytest.raises(LineExists):
            hb.fork(9, "second")
        for beat in (21, -1):
            with pytest.raises(UnknownBeat):
                hb.fork(beat, "third")
    with BlockingLog(engine) as log:
        old = Heartbeat(log=log, **story.RULES)
        new = Heartbeat(log=log, line="second", **story.RULES)
        story.install(new)
        story.install(old)
        assert (old.next_beat, old.digest, new.next_beat, new.digest) == (21, digests[19], 10, digests[8])
        assert new.read("/rt/beat/4/agenda") == old.read("/rt/beat/4/agenda")
        assert [new.read("/shared", at=beat) for beat in range(1, 11)] == [
            old.read("/shared", at=beat) for beat in range(1, 11)
        ]
        assert story.tell(new, 20) == digests[9:], "the same world gives the same beats"
        new.signal("/sig/another")
        assert new.beat().digest != old.beat().digest
        assert (old.replay().identical, new.replay().identical) == (True, True)


def test_a_fork_takes_what_waited_then_and_nothing_later() -> None:
    engine = MemoryEngine()
    with BlockingLog(engine) as log:
        hb = Heartbeat(log=log)
        hb.register("a", "/**", lambda *_: None)
        hb.signal("/early", beat=5)
        hb.beat()
        hb.signal("/late", beat=5)
        for _ in range(5):
            hb.beat()
        hb.fork(1, "new")
        hb.fork(0, "empty")
        new = Heartbeat(log=log, line="new")
        assert [entry["signal"] for entry in new.read("/rt/beat/5/inbox")] == ["/early"]
        assert Heartbeat(log=log, line="empty").next_beat == 1


@pytest.mark.parametrize("flushed", [True, False])
def test_a_signal_that_came_after_a_beat_is_in_no_fork_at_it_flushed_or_not(flushed: bool) -> None:
    with BlockingLog(MemoryEngine()) as log:
        hb = Heartbeat(log=log)
        hb.beat()
        hb.signal("/next")
        hb.signal("/later", beat=4)
        if flushed:
            hb.flush()
        hb.beat()
        waiting = {}
        for at in (1, 2):
            hb.fork(at, f"at-{at}")
            fork = Heartbeat(log=log, line=f"at-{at}")
            waiting[at] = fork.waiting, fork.waiting_later
        assert waiting == {1: (0, False), 2: (0, True)}


def test_a_heartbeat_in_memory_has_no_lines() -> None:
    with pytest.raises(NotOpen):
        Heartbeat().fork(0, "x")
