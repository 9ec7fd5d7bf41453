"""What a program says about its enzymes: flags, two functions under one name, chains that do not end."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mainspring import App
from mainspring.beats import Heartbeat
from mainspring.beats.errors import InvalidRegistration, RegistrationConflict


def one(signal: str, target: Any, stage: Any) -> None:
    return None


def other(signal: str, target: Any, stage: Any) -> None:
    return None


def test_flags_are_kept_and_belong_to_the_rules_of_a_registration() -> None:
    hb = Heartbeat()
    hb.register("one", "/a", one, flags=["stateful", "emits"])
    (entry,) = hb.state.registry.entries()
    assert entry.flags == ("emits", "stateful")
    hb.register("one", "/a", one, flags=("emits", "stateful"))
    with pytest.raises(RegistrationConflict):
        hb.register("one", "/a", one)
    with pytest.raises(InvalidRegistration, match="no flag 'pure'"):
        hb.register("two", "/a", one, flags=["pure"])


def test_a_second_function_under_one_name_and_query_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    hb = Heartbeat()
    hb.register("one", "/a", one)
    with caplog.at_level(logging.WARNING):
        hb.register("one", "/a", one)
        assert caplog.text == ""
        hb.register("one", "/a", other)
    assert "two functions" in caplog.text
    assert "other (" in caplog.text


def test_the_same_lines_made_again_are_the_same_function(caplog: pytest.LogCaptureFixture) -> None:
    hb = Heartbeat()
    for _ in range(2):

        def enzyme(signal: str, target: Any, stage: Any) -> None:
            return None

        hb.register("again", "/a", enzyme)
    assert caplog.text == ""


def test_a_program_with_two_functions_under_one_name_is_refused_where_it_is_written() -> None:
    app = App("twice")
    app.enzyme("/a", name="count")(one)
    app.enzyme("/b", name="count")(other)
    with pytest.raises(InvalidRegistration, match=r"test_beats_declarations.py:\d+ and .*:\d+") as refused:
        app.enzyme("/a", name="count")(other)
    assert "name=" in refused.value.remedy


def test_an_enzyme_that_emits_its_own_signal_stops_early_and_is_named() -> None:
    hb = Heartbeat()
    hb.register("loop", "/a", lambda signal, target, stage: stage.signal(signal) and None)
    hb.signal("/a")
    beats = 0
    while hb.waiting:
        report = hb.beat()
        beats += 1
    assert beats == hb.rules.max_chain_depth + 1 == 1_001
    assert [(each.code, each.names) for each in report.diagnostics] == [("chain_depth", ("loop",))]
