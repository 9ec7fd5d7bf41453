"""Rules beyond the cases: readings of dispatch, scopes of retry, budgets, failures, pausing, hosts."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from mainspring.beats import FATAL, RETRY, Heartbeat, Report
from mainspring.beats.errors import (
    InvalidImpulse,
    InvalidPath,
    InvalidRegistration,
    RegistrationConflict,
    RunningLoop,
    StageClosed,
)
from mainspring.beats.path import canonical
from mainspring.errors import SettingError


def ok(signal: str | None, target: str | None, stage: Any) -> None:
    """Does nothing."""


def ran(report: Report) -> list[str]:
    return [entry.enzyme for entry in report.agenda if entry.result != "duplicate"]


def notes(report: Report, code: str) -> list[Any]:
    return [note for note in report.diagnostics if note.code == code]


# --- paths and values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "a", "//", "/a//b", "/a//", "/.", "/..", "/a/..", "/a\x7f", "/a\x85", "/\ud800", None, 3]
)
def test_a_path_that_is_none_is_refused(path: Any) -> None:
    with pytest.raises(InvalidPath):
        canonical(path)


@pytest.mark.parametrize(
    ("path", "same"), [("/", "/"), ("/a/", "/a"), ("/é/…", "/é/…"), ("/a b/c.d", "/a b/c.d"), ("/a?b", "/a?b")]
)
def test_a_path_has_one_spelling(path: str, same: str) -> None:
    assert canonical(path) == same


def test_runtime_paths_are_read_only() -> None:
    hb = Heartbeat()
    codes: list[str] = []

    def work(signal: str | None, target: str | None, stage: Any) -> None:
        for path in ("/rt", "/rt/beat/1/inbox", "/cas/x", "/cas"):
            try:
                stage.write(path, 1)
            except InvalidPath as error:
                codes.append(error.code)
        stage.write("/rta", 1)

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    hb.beat()
    assert codes == ["invalid_path"] * 4
    assert hb.read("/rta") == 1


LOOPED: list[Any] = []
LOOPED.append(LOOPED)
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1: 2}, {"a": {None: 1}}, b"x", {1}, object(), LOOPED, DEEP, "\ud800", {"\udfff": 1}],
    ids=lambda value: type(value).__name__,
)
def test_values_json_cannot_hold_exactly_are_refused(value: Any) -> None:
    hb = Heartbeat()
    hb.register("work", "/sig", lambda signal, target, stage: stage.write("/x", value))
    hb.signal("/sig")
    report = hb.beat()
    assert [entry.result for entry in report.agenda] == ["failed"]
    assert "InvalidValue" in notes(report, "enzyme_failed")[0].detail


@pytest.mark.parametrize("value", [None, True, 0, -0.0, 1e300, 10**40, "é\n\u2028", [], {}, {"b": 1, "a": [None]}])
def test_values_come_back_as_they_were(value: Any) -> None:
    hb = Heartbeat(inline_chars=3)
    hb.register("work", "/sig", lambda signal, target, stage: stage.write("/x", value))
    hb.signal("/sig")
    report = hb.beat()
    assert hb.read("/x") == report.staged[0].value == hb.read("/rt/beat/1/stage")[0]["value"] == value


# --- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("", {}),
        ("a\n", {}),
        (None, {}),
        ("a", {"match": "glob"}),
        ("a", {"before": "b"}),
        ("a", {"after": ("",)}),
        ("a", {"after": 3}),
    ],
)
def test_odd_registrations_are_refused(name: Any, rules: dict[str, Any]) -> None:
    hb = Heartbeat()
    with pytest.raises(InvalidRegistration):
        hb.register(name, "/sig", ok, **rules)
    with pytest.raises(InvalidRegistration):
        hb.register("a", "/sig", None)  # type: ignore[arg-type]
    assert hb.resolve("/sig") == []


def test_a_contradiction_with_something_asked_for_in_the_same_beat_is_refused() -> None:
    hb = Heartbeat()
    seen: list[str] = []

    def work(signal: str | None, target: str | None, stage: Any) -> None:
        hb.register("new", "/new", ok)
        hb.register("new", "/new", ok)
        try:
            hb.register("new", "/new", ok, match="prefix")
        except RegistrationConflict as error:
            seen.append(error.code)
        hb.unregister("new")
        hb.register("new", "/new", ok, match="prefix")

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    hb.beat()
    assert seen == ["registration_conflict"]
    assert hb.resolve("/new/x") == ["new"]


@pytest.mark.parametrize("parallel", [None, "threads"])
def test_of_two_enzymes_that_register_contraries_the_first_stands(parallel: str | None) -> None:
    hb = Heartbeat(parallel=parallel)
    hb.register("a", "/sig", lambda *_: hb.register("new", "/new", ok, match="prefix"))
    hb.register("b", "/sig", lambda *_: hb.register("new", "/new", ok))
    hb.signal("/sig")
    report = hb.beat()
    assert [note.names for note in notes(report, "registration_conflict")] == [("new",)]
    assert hb.resolve("/new/x") == ["new"]
    hb.close()


@pytest.mark.parametrize("answer", [FATAL, -3, "raise"])
def test_what_a_failing_enzyme_asked_for_does_not_happen(answer: Any) -> None:
    hb = Heartbeat()

    def work(signal: str | None, target: str | None, stage: Any) -> Any:
        hb.register("new", "/new", ok)
        hb.bind("/t", "work")
        hb.signal("/again")
        if answer == "raise":
            raise RuntimeError
        return answer

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    hb.beat()
    assert (hb.resolve("/new"), hb.resolve(None, "/t"), hb.waiting) == ([], [], 0)


def test_an_enzyme_that_unregisters_itself_and_others_finishes_its_beat() -> None:
    hb = Heartbeat()
    hb.register("a", "/sig", lambda *_: [hb.unregister(name) for name in "abc"])
    hb.register("b", "/sig", ok)
    hb.register("c", "/sig", ok)
    hb.signal("/sig")
    hb.signal("/sig", beat=2)
    assert (ran(hb.beat()), ran(hb.beat())) == (["a", "b", "c"], [])


# --- dispatch ---------------------------------------------------------------------------------------------------------


def dispatched(**rules: Any) -> Heartbeat:
    hb = Heartbeat(**rules)
    hb.register("bound", "/elsewhere/far/away", ok)
    hb.register("both", "/sig", ok, match="prefix")
    hb.register("free", "/sig/img/thumb", ok)
    hb.bind("/t", "bound")
    hb.bind("/t", "both")
    return hb


@pytest.mark.parametrize(
    ("dispatch", "expected"),
    [
        ("target_then_signal", ["both"]),
        ("union", ["both", "bound", "free"]),
        ("signal_only", ["free", "both"]),
        ("target_only", ["bound", "both"]),
    ],
)
def test_dispatch_has_four_readings(dispatch: str, expected: list[str]) -> None:
    assert dispatched(dispatch=dispatch).resolve("/sig/img/thumb", "/t/u") == expected


def test_a_target_nothing_is_bound_to_can_be_made_to_broadcast() -> None:
    assert dispatched().resolve("/sig/img/thumb", "/free") == []
    loose = dispatched(fallback_broadcast=True)
    assert loose.resolve("/sig/img/thumb", "/free") == ["free", "both"]
    assert loose.resolve("/other", "/t") == [], "what the signal filters out is no empty binding"


# --- retries and failures ---------------------------------------------------------------------------------------------


def test_only_the_enzyme_that_asked_can_be_tried_again() -> None:
    hb = Heartbeat(retry_scope="enzyme", max_attempts=3)
    hb.register("a", "/sig", lambda *_: RETRY)
    hb.register("b", "/sig", ok)
    hb.signal("/sig")
    reports = [hb.beat() for _ in range(5)]
    assert [ran(report) for report in reports] == [["a", "b"], ["a"], ["a"], [], []]
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


def test_dependants_of_a_failure_can_be_blocked() -> None:
    def told(**rules: Any) -> list[tuple[str, str]]:
        hb = Heartbeat(**rules)
        hb.register("a", "/sig", lambda *_: -9)
        hb.register("b", "/sig", ok, after=("a",))
        hb.register("c", "/sig", ok, after=("b",))
        hb.register("d", "/sig", ok)
        hb.signal("/sig")
        return [(entry.enzyme, entry.result) for entry in hb.beat().agenda]

    assert told() == [("a", "failed"), ("b", "ok"), ("c", "ok"), ("d", "ok")]
    blocked = [("a", "failed"), ("b", "blocked"), ("c", "blocked"), ("d", "ok")]
    assert told(block_dependants=True) == told(block_dependants=True, parallel="threads") == blocked


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


@pytest.mark.parametrize("beat", ["2", 1.5, True])
def test_a_beat_is_a_whole_number(beat: Any) -> None:
    with pytest.raises(InvalidImpulse):
        Heartbeat().signal("/sig", beat=beat)


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


@pytest.mark.parametrize(
    "rules",
    [
        {"max_attempts": 0},
        {"backoff_beats": ()},
        {"backoff_beats": (0,)},
        {"max_runs_per_beat": 0},
        {"max_signals_per_beat": True},
        {"on_fatal": "panic"},
        {"dispatch": "all"},
        {"retry_scope": "beat"},
        {"retain_beats": 0},
        {"parallel": "fibres"},
        {"parallel": "threads", "workers": 0},
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Heartbeat(**rules)


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


# --- hosts ------------------------------------------------------------------------------------------------------------


async def test_inside_a_running_loop_async_enzymes_need_abeat() -> None:
    hb = Heartbeat()

    async def work(signal: str | None, target: str | None, stage: Any) -> None:
        await asyncio.sleep(0)
        stage.write("/x", 1)

    hb.register("plain", "/sig", ok)
    hb.register("work", "/sig", work)
    hb.signal("/sig")
    with pytest.raises(RunningLoop):
        hb.beat()
    assert (hb.next_beat, hb.waiting) == (1, 1), "rolled back"
    assert ran(await hb.abeat()) == ["plain", "work"]
    assert hb.read("/x") == 1
    hb.unregister("work")
    hb.signal("/sig")
    assert ran(hb.beat()) == ["plain"], "without async enzymes beat is fine"


async def test_what_arrives_while_a_beat_runs_lands_in_the_next() -> None:
    hb = Heartbeat()
    gate = asyncio.Event()

    async def wait(signal: str | None, target: str | None, stage: Any) -> None:
        stage.signal("/emitted")
        await gate.wait()

    hb.register("wait", "/sig", wait)
    hb.register("rest", "/*", ok)
    hb.signal("/sig")
    beat = asyncio.ensure_future(hb.abeat())
    await asyncio.sleep(0)
    assert hb.signal("/outside") == 2
    hb.register("late", "/sig", ok)
    hb.bind("/t", "late")
    assert (hb.resolve("/sig"), hb.resolve(None, "/t")) == (["wait", "rest"], [])
    gate.set()
    assert ran(await beat) == ["wait", "rest"]
    assert hb.resolve("/sig") == ["late", "wait", "rest"]
    assert [entry.signal for entry in (await hb.abeat()).agenda] == ["/emitted", "/outside"]


async def test_a_long_beat_lets_others_have_their_turn() -> None:
    hb = Heartbeat()
    turns: list[int] = []
    hb.register("a", "/sig/*", lambda *_: None)
    for i in range(2_000):
        hb.signal(f"/sig/{i}")
    beat = asyncio.ensure_future(hb.abeat())
    while not beat.done():
        await asyncio.sleep(0)
        turns.append(hb.signal("/during"))
    assert turns.count(2) > 5, "while beat 1 was under way"
    assert len((await beat).agenda) == 2_000


async def test_a_cancelled_beat_has_not_happened_and_others_wait_their_turn() -> None:
    hb = Heartbeat()
    gate = asyncio.Event()

    async def wait(signal: str | None, target: str | None, stage: Any) -> None:
        stage.write("/x", 1)
        await gate.wait()

    hb.register("wait", "/sig", wait)
    hb.signal("/sig")
    first = asyncio.ensure_future(hb.abeat())
    await asyncio.sleep(0)
    second = asyncio.ensure_future(hb.abeat())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.set()
    assert (await second).beat == 1
    assert hb.read("/x") == 1


def test_signals_may_come_from_many_threads() -> None:
    hb = Heartbeat()
    hb.register("a", "/sig/*/*", lambda signal, target, stage: stage.write(f"/got{signal}", stage.beat))
    beats = 0

    def send(me: int) -> None:
        for i in range(200):
            hb.signal(f"/sig/{me}/{i}")

    threads = [threading.Thread(target=send, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or hb.waiting:
        hb.beat()
        beats += 1
    hb.beat()
    assert len(hb.paths("/got")) == 800
    assert hb.replay().identical


def test_a_call_that_takes_too_long_is_reported_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    hb = Heartbeat(slow_enzyme_ms=1)
    reported = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reported.set()

    handler = Told()
    logging.getLogger("mainspring.beats").addHandler(handler)
    try:
        hb.register("slow", "/sig", lambda *_: None if reported.wait(30) else -5)
        hb.signal("/sig")
        assert [entry.result for entry in hb.beat().agenda] == ["ok"]
    finally:
        logging.getLogger("mainspring.beats").removeHandler(handler)
    assert "enzyme 'slow' of beat 1" in caplog.text


def test_callable_objects_and_functions_that_return_coroutines_are_enzymes_too() -> None:
    class Enzyme:
        async def __call__(self, signal: str | None, target: str | None, stage: Any) -> int:
            stage.write("/object", 1)
            return RETRY

    async def inner(stage: Any) -> None:
        stage.write("/lambda", 1)

    for parallel in (None, "threads"):
        hb = Heartbeat(parallel=parallel)
        hb.register("object", "/sig", Enzyme())
        hb.register("lambda", "/sig", lambda signal, target, stage: inner(stage))
        hb.signal("/sig")
        assert {entry.enzyme: entry.result for entry in hb.beat().agenda} == {"object": "retry", "lambda": "ok"}
        assert (hb.read("/object"), hb.read("/lambda")) == (1, 1)
        hb.close()
