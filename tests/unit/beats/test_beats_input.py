"""What may be given to a heartbeat and what is refused: paths, values, registrations, beats, rules."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.beats import FATAL, BeatReport, Heartbeat
from mainspring.beats.errors import (
    InvalidImpulse,
    InvalidPath,
    InvalidRegistration,
    RegistrationConflict,
)
from mainspring.beats.matching.path import canonical
from mainspring.errors import SettingError


def ok(signal: str | None, target: str | None, stage: Any) -> None:
    """Does nothing."""


def ran(report: BeatReport) -> list[str]:
    return [entry.enzyme for entry in report.agenda if entry.result != "duplicate"]


def notes(report: BeatReport, code: str) -> list[Any]:
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


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_how_deep_a_value_may_be_does_not_depend_on_who_writes_it() -> None:
    hb = Heartbeat()

    def write(stage: Any, levels: int, frames: int) -> None:
        if frames:
            write(stage, levels, frames - 1)
        else:
            stage.write(f"/x/{levels}", nested(levels))

    hb.register("flat", "/flat", lambda signal, target, stage: write(stage, 400, 0))
    hb.register("deep", "/deep", lambda signal, target, stage: write(stage, 399, 200))
    hb.register("over", "/over", lambda signal, target, stage: write(stage, 401, 0))
    for signal in ("/flat", "/deep", "/over"):
        hb.signal(signal)
    assert [entry.result for entry in hb.beat().agenda] == ["ok", "ok", "failed"]
    assert hb.read("/x/400") == nested(400)
    assert [entry["path"] for entry in hb.read("/rt/beat/1/stage")] == ["/x/400", "/x/399"]


# --- beats and rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beat", ["2", 1.5, True])
def test_a_beat_is_a_whole_number(beat: Any) -> None:
    with pytest.raises(InvalidImpulse):
        Heartbeat().signal("/sig", beat=beat)


def test_a_beat_no_line_ever_gets_to_is_refused() -> None:
    hb = Heartbeat()
    codes: list[str] = []

    def work(signal: str | None, target: str | None, stage: Any) -> None:
        try:
            stage.signal("/later", beat=10**15 + 1)
        except InvalidImpulse as error:
            codes.append(error.code)

    hb.register("work", "/sig", work)
    hb.signal("/sig")
    hb.beat()
    assert codes == ["invalid_impulse"]
    with pytest.raises(InvalidImpulse):
        hb.signal("/sig", beat=10**30)
    assert hb.signal("/sig", beat=10**15) == 10**15


@pytest.mark.parametrize(
    "rules",
    [
        {"max_attempts": 0},
        {"backoff_beats": ()},
        {"backoff_beats": (0,)},
        {"max_runs_per_beat": 0},
        {"max_signals_per_beat": True},
        {"on_fatal": "panic"},
        {"retain_beats": 0},
        {"parallel": "fibres"},
        {"parallel": "threads", "workers": 0},
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Heartbeat(**rules)


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
