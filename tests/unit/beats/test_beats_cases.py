"""Cases of resolving, ordering, retrying and staging, told as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring.beats import FATAL, RETRY, Heartbeat
from mainspring.beats.errors import InvalidImpulse

CASES = json.loads((Path(__file__).parent / "cases.json").read_text(encoding="utf-8"))
ANSWERS = {"ok": 0, "retry": RETRY, "fatal": FATAL}


class Told:
    """One case on one heartbeat, with enzymes that note their calls."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.hb = Heartbeat()
        self.calls: list[str] = []
        self.reads: dict[str, bool] = {}
        self.later = {each["name"]: each for each in case["enzymes"] if each.get("registered_later")}
        for each in case["enzymes"]:
            if each["name"] not in self.later:
                self.register(each)
        for record in case["bindings"]:
            if record["tombstone"]:
                self.hb.unbind(record["path"], record["enzyme"])
            else:
                self.hb.bind(record["path"], record["enzyme"], propagate=record["propagate"])

    def register(self, each: dict[str, Any]) -> None:
        self.hb.register(each["name"], each["query"], self.function(each), each["match"], each["before"], each["after"])

    def function(self, each: dict[str, Any]) -> Any:
        answers = iter(each.get("returns", ()))
        first = [True]

        def call(signal: str | None, target: str | None, stage: Any) -> Any:
            self.calls.append(each["name"])
            if first:
                first.clear()
                for action in each.get("actions_on_first_call", ()):
                    self.act(each["name"], action, stage)
                for emission in each.get("emits_on_first_call", ()):
                    stage.signal(emission["signal"], emission["target"])
            answer = next(answers, None)
            return ANSWERS.get(answer, answer) if isinstance(answer, str) else answer

        return call

    def act(self, name: str, action: dict[str, Any], stage: Any) -> None:
        match action["op"]:
            case "write":
                stage.write(action["arg"], name)
            case "read":
                self.reads[f"{name}@{stage.beat}"] = stage.read(action["arg"]) is not None
            case "bind":
                self.hb.bind(action["arg"], action["enzyme"], propagate=False)
            case "unbind":
                self.hb.unbind(action["arg"], action["enzyme"])
            case "reg":
                self.register(self.later[action["arg"]])
            case "unreg":
                self.hb.unregister(action["arg"])


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    told = Told(case)
    hb = told.hb
    pairs = [(impulse["signal"], impulse["target"]) for impulse in case["impulses"]]
    if case.get("expected_error") == "invalid_impulse":
        with pytest.raises(InvalidImpulse):
            hb.signal(*pairs[0])
        return
    if "expected_per_impulse" in case:
        assert [hb.resolve(*pair) for pair in pairs] == case["expected_per_impulse"]
    for pair in pairs:
        hb.signal(*pair)
    by_beat: dict[str, list[str]] = {}
    cycles = 0
    for beat in range(1, case.get("steps", 1) + 1):
        told.calls.clear()
        report = hb.beat()
        if told.calls:
            by_beat[str(beat)] = list(told.calls)
        assert [e.enzyme for e in report.agenda if e.result != "duplicate"] == told.calls
        cycles += sum(note.code == "dependency_cycle" for note in report.diagnostics)
    assert [name for names in by_beat.values() for name in names] == case["expected_order"]
    if "expected_beats" in case:
        assert by_beat == case["expected_beats"]
    assert told.reads == case.get("expected_reads", {})
    assert bool(cycles) == (case.get("expected_error") == "dependency_cycle")
    steps = case.get("steps", 1)
    if not any(each.get("returns") or each.get("emits_on_first_call") for each in case["enzymes"]):
        assert hb.replay().beats == steps
