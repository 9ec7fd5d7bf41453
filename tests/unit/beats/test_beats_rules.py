"""Rules beyond the cases: candidates, retries, budgets, failures, pausing."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.beats import FATAL, RETRY, BeatReport, Heartbeat
from mainspring.beats.errors import StageClosed
from mainspring.telemetry import handling


def ok(signal: str | None, target: str | None, stage: Any) -> None:
    """Does nothing."""


def ran(report: BeatReport) -> list[str]:
    return [entry.enzyme for entry in report.agenda if entry.result != "duplicate"]


def notes(report: BeatReport, code: str) -> list[Any]:
    return [note for note in report.diagnostics if note.code == code]


# --- candidates -------------------------------------------------------------------------------------------------------


def test_with_a_target_only_names_bound_to_it_run_whose_query_matches() -> None:
    hb = Heartbeat()
    hb.register("bound", "/elsewhere/far/away", ok)
    hb.register("both", "/sig", ok, match="prefix")
    hb.register("free", "/sig/img/thumb", ok)
    hb.bind("/t", "bound")
    hb.bind("/t", "both")
    assert hb.resolve("/sig/img/thumb", "/t/u") == ["both"]
    assert hb.resolve("/sig/img/thumb") == ["free", "both"]
    assert hb.resolve(None, "/t/u") == ["bound", "both"]
    assert hb.resolve("/sig/img/thumb", "/free") == [], "a target that nothing is bound to"
    assert hb.resolve("/other", "/t") == []


# --- retries and failures ---------------------------------------------------------------------------------------------


def test_the_whole_pair_is_tried_again() -> None:
    hb = Heartbeat(max_attempts=3)
    hb.register("a", "/sig", lambda *_: RETRY)
    hb.register("b", "/sig", ok)
    hb.signal("/sig")
    reports = [hb.beat() for _ in range(5)]
    assert [ran(report) for report in reports] == [["a", "b"], ["a", "b"], ["a", "b"], [], []]
    assert hb.read("/rt/dead/3") == [{"signal": "/sig", "target": None, "attempts": 3, "reason": "attempts"}]
    assert hb.replay().identical


def test_the_stage_says_which_attempt_it_is() -> None:
    hb = Heartbeat(max_attempts=3)
    seen: list[tuple[int, int]] = []
    hb.register("a", "/sig", lambda signal, target, stage: seen.append((stage.beat, stage.attempt)) or RETRY)
    hb.signal("/sig")
    for _ in range(4):
        hb.beat()
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_a_retry_continues_the_conversation_of_its_own_signal() -> None:
    hb = Heartbeat()
    seen: list[tuple[int, str | None, Any]] = []

    def work(signal: str | None, target: str | None, stage: Any) -> int | None:
        seen.append((stage.attempt, signal, handling.get()))
        return RETRY if stage.attempt == 1 else None

    for name in ("a", "b"):
        hb.register(name, "/**", work)
    for message, signal in (("m-1", "/one"), ("m-2", "/two")):
        token = handling.set((message, None))
        hb.signal(signal)
        handling.reset(token)
    hb.beat()
    hb.beat()
    expected = {"/one": ("m-1", None), "/two": ("m-2", None)}
    assert [attempt for attempt, _, _ in seen] == [1] * 4 + [2] * 4
    assert all(message == expected[signal] for _, signal, message in seen if signal is not None)


def test_dependants_of_a_failure_run() -> None:
    def results(**rules: Any) -> list[tuple[str, str]]:
        hb = Heartbeat(**rules)
        hb.register("a", "/sig", lambda *_: -9)
        hb.register("b", "/sig", ok, after=("a",))
        hb.register("c", "/sig", ok, after=("b",))
        hb.register("d", "/sig", ok)
        hb.signal("/sig")
        return [(entry.enzyme, entry.result) for entry in hb.beat().agenda]

    expected = [("a", "failed"), ("b", "ok"), ("c", "ok"), ("d", "ok")]
    assert results() == results(parallel="threads") == expected


def test_an_aborted_beat_leaves_registry_bindings_and_signals_as_they_were() -> None:
    hb = Heartbeat(on_fatal="abort_beat")
    answers = [FATAL, None]

    def work(signal: str | None, target: str | None, stage: Any) -> Any:
        hb.bind("/t", "work")
        stage.signal("/more")
        return answers.pop(0)

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    aborted = hb.beat()
    assert (aborted.aborted, hb.next_beat, hb.resolve(None, "/t")) == (True, 1, [])
    assert hb.read("/rt/beat/1/agenda") is None
    done = hb.beat()
    assert (done.aborted, done.beat, hb.resolve(None, "/t"), hb.waiting) == (False, 1, ["work"], 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_beat_has_not_happened(error: type[BaseException]) -> None:
    hb = Heartbeat()
    errors = [error]

    def work(signal: str | None, target: str | None, stage: Any) -> None:
        stage.write("/x", 1)
        if errors:
            raise errors.pop()

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    with pytest.raises(error):
        hb.beat()
    assert (hb.next_beat, hb.waiting, hb.read("/x")) == (1, 1, None)
    assert ran(hb.beat()) == ["work"]
    assert hb.read("/x") == 1


def test_a_stage_is_closed_after_its_call() -> None:
    hb = Heartbeat()
    kept: list[Any] = []
    hb.register("work", "/sig", lambda signal, target, stage: kept.append(stage))
    hb.signal("/sig")
    hb.beat()
    for late in (lambda s: s.write("/x", 1), lambda s: s.delete("/x"), lambda s: s.signal("/x"), lambda s: s.store(1)):
        with pytest.raises(StageClosed):
            late(kept[0])
    assert hb.beat().staged == []


def test_in_strict_mode_an_enzyme_that_failed_by_itself_is_a_failure_and_no_conflict() -> None:
    hb = Heartbeat(strict=True)
    hb.register("a", "/sig", lambda signal, target, stage: stage.write("/x", 1))
    hb.register("b", "/sig", lambda signal, target, stage: (stage.write("/x", 2), -3)[1])
    hb.signal("/sig")
    report = hb.beat()
    assert [(note.code, note.names) for note in report.diagnostics] == [("enzyme_failed", ("b",))]


def test_a_fatal_result_aborts_also_when_its_writes_would_have_been_refused() -> None:
    hb = Heartbeat(strict=True, on_fatal="abort_beat")
    hb.register("a", "/sig", lambda signal, target, stage: stage.write("/x", 1))
    hb.register("b", "/sig", lambda signal, target, stage: (stage.write("/x", 2), FATAL)[1])
    hb.signal("/sig")
    assert (hb.beat().aborted, hb.next_beat, hb.read("/x")) == (True, 1, None)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_what_is_left_of_a_pair_runs_before_everything_else_and_once() -> None:
    hb = Heartbeat(max_runs_per_beat=3)
    for name in ("a", "b", "c", "d"):
        hb.register(name, "/sig/*", ok)
    hb.signal("/sig/1")
    hb.signal("/sig/1")
    hb.beat()
    hb.signal("/sig/1")
    report = hb.beat()
    assert [(entry.enzyme, entry.result) for entry in report.agenda] == [
        ("d", "ok"),
        ("d", "duplicate"),
        ("a", "ok"),
        ("b", "ok"),
        ("d", "duplicate"),
    ]
    assert hb.read("/rt/beat/2/inbox")[0]["only"] == ["d"]
    assert [ran(report) for report in (hb.beat(), hb.beat())] == [["c"], []]
    assert hb.replay().identical


def test_emissions_count_per_enzyme_and_beat() -> None:
    hb = Heartbeat(max_emissions_per_enzyme=3)
    hb.register("a", "/sig/*", lambda signal, target, stage: [stage.signal(f"/out{signal}/{i}") for i in range(2)])
    for i in range(3):
        hb.signal(f"/sig/{i}")
    report = hb.beat()
    assert [each.signal for each in report.emitted] == ["/out/sig/0/0", "/out/sig/0/1", "/out/sig/1/0"]
    assert [(note.signal, note.names) for note in notes(report, "emission_budget")] == [
        ("/sig/1", ("a",)),
        ("/sig/2", ("a",)),
    ]
    dead = [(letter["signal"], letter["reason"]) for letter in hb.read("/rt/dead/1")]
    assert dead == [(f"/out/sig/{i}", "emission_budget") for i in ("1/1", "2/0", "2/1")]


def test_a_runaway_stays_within_its_budgets_beat_after_beat() -> None:
    hb = Heartbeat(max_runs_per_beat=50, max_signals_per_beat=60, max_emissions_per_enzyme=80)
    hb.register("a", "/**", lambda signal, target, stage: [stage.signal(f"{signal}/{i}") for i in range(3)])
    hb.signal("/sig")
    for _ in range(12):
        report = hb.beat()
        assert len(ran(report)) <= 50
        assert len(report.emitted) <= 80
    assert hb.replay().identical


# --- pausing ----------------------------------------------------------------------------------------------------------


def test_paused_signals_wait_in_order_and_none_is_lost() -> None:
    hb = Heartbeat()
    hb.register("a", "/**", ok)
    hb.signal("/p1")
    hb.signal("/p5", beat=3)
    hb.pause()
    for path in ("/p2", "/p3"):
        hb.signal(path)
    assert [ran(hb.beat()) for _ in range(3)] == [[], [], []]
    hb.signal("/p6")
    hb.resume()
    report = hb.beat()
    assert [entry.signal for entry in report.agenda] == ["/p1", "/p2", "/p3", "/p5", "/p6"]
    assert hb.replay().identical
