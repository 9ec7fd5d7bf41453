"""Small languages of the command line: filters, moments; and the page and completions made from the commands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from mainspring.cli.bus.filters import parse_filter
from mainspring.cli.support.moments import duration_option, moment_ms, start_frame
from mainspring.cli.support.output import safe, short
from mainspring.durations import duration_text
from tests.support.paths import ROOT
from tests.support.terminal import Terminal

PAGE = ROOT / "docs" / "reference" / "command-line.md"


def envelope(payload: Any, key: str | None = None, **headers: str) -> dict[str, Any]:
    return {"payload": payload, "headers": headers, "topic": "t", "id": "i", **({"key": key} if key else {})}


@pytest.mark.parametrize(
    ("text", "payload", "fits"),
    [
        (".a=1", {"a": 1}, True),
        (".a=1", {"a": "1"}, True),
        (".a=1", {"a": True}, False),
        (".a=true", {"a": True}, True),
        (".a=null", {"a": None}, True),
        (".a.b[1].c=x", {"a": {"b": [0, {"c": "x"}]}}, True),
        (".a.b[1].c=x", {"a": {"b": [0]}}, False),
        ('."odd.name"=1', {"odd.name": 1}, True),
        (".zip=01234", {"zip": "01234"}, True),
        (".a!=1", {"a": 2}, True),
        (".a!=1", {}, True),
        (".a!=1", {"a": 1}, False),
        (".a>9", {"a": 10}, True),
        (".a>9", {"a": "10"}, False),  # texts compare as texts
        (".a<=1.5", {"a": 1.5}, True),
        (".a>1", {"a": None}, False),
        (".a~ell", {"a": "hello"}, True),
        (".a~2", {"a": [1, 2]}, True),
        (".=3", 3, True),
        (".[0]=3", [3], True),
    ],
)
def test_a_filter_leads_into_the_payload(text: str, payload: Any, fits: bool) -> None:
    assert parse_filter(text)(envelope(payload)) is fits


def test_filters_of_key_and_headers_compare_text() -> None:
    event = envelope(1, key="7", ct="json", total="9")
    assert parse_filter("key=7")(event)
    assert parse_filter("key!=8")(event)
    assert parse_filter("header.ct=json")(event)
    assert not parse_filter("header.none=json")(event)
    assert parse_filter("key~7")(event)


@pytest.mark.parametrize("text", ["", "a", "=1", "foo=1", ".a[x=1", "header=1"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_filter(text)


def test_durations_are_read_and_said() -> None:
    assert duration_option("1h30m") == 5_400_000
    assert duration_option("1.5s") == 1_500
    for text in ("500ms", "10s", "7d", "1h30m"):
        assert duration_text(duration_option(text)) == text
    for wrong in ("", "10", "s", "1x", "10 20s", "-1s"):
        with pytest.raises(typer.BadParameter):
            duration_option(wrong)


def test_places_are_read() -> None:
    assert start_frame("latest", 0) == {"kind": "latest"}
    assert start_frame("beginning", 0) == {"kind": "offset", "value": 1}
    assert start_frame("7", 0) == {"kind": "offset", "value": 7}
    assert start_frame("10s", 60_000) == {"kind": "timestamp", "value": 50_000}
    assert moment_ms("1970-01-01T00:01:00Z", 0) == 60_000
    assert moment_ms("1970-01-01T01:01:00+01:00", 0) == 60_000
    with pytest.raises(typer.BadParameter):
        start_frame("soon", 0)


def test_texts_for_people_hold_no_control_characters() -> None:
    assert safe("plain é 漢") == "plain é 漢"
    assert safe("a\x1b[0m\n\u202eb") == "a\\x1b[0m\\n\\u202eb"
    assert short("x" * 10, 5) == "xxxx…"


def test_the_reference_page_says_what_the_commands_say() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "tools.command_line_page"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    same = PAGE.read_text(encoding="utf-8") == made  # compared first: the difference of two long pages helps nobody
    assert same, "the page is old; run: python -m tools.command_line_page > docs/reference/command-line.md"


def complete(terminal: Terminal, *words: str) -> list[str]:
    """What bash would offer for the last word."""
    line = " ".join(("mainspring", *words))
    asked = {"_MAINSPRING_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    return terminal.ok(env=asked).split()


def test_commands_options_topics_and_groups_complete_in_bash(terminal: Terminal) -> None:
    terminal.ok("pub", "completing.orders", "1")
    terminal.json("sub", "completing.orders", "-g", "billing", "-n", "1")
    assert set(complete(terminal, "t")) >= {"tail", "topics", "top", "trace"}
    assert "redrive" in complete(terminal, "dlq", "re")
    assert "--follow" in complete(terminal, "tail", "--fo")
    assert complete(terminal, "tail", "completing") == ["completing.orders"]
    assert complete(terminal, "groups", "show", "completing.orders", "bi") == ["billing"]


def test_zsh_gets_descriptions_and_both_shells_get_a_script(terminal: Terminal) -> None:
    asked = {"_MAINSPRING_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "mainspring gro"}
    assert "List, show, move and delete groups." in terminal.ok(env=asked)
    # Which shell this is would be guessed from the processes above; under a test runner there may be none.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    scripts = {shell: terminal.ok("--show-completion", shell, env=named) for shell in ("bash", "zsh")}
    assert all("_MAINSPRING_COMPLETE" in script for script in scripts.values())
    checked = subprocess.run(["bash", "-n"], input=scripts["bash"], text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_completion_without_a_node_offers_nothing_and_says_nothing() -> None:
    done = Terminal("ws://127.0.0.1:1").run(
        env={"_MAINSPRING_COMPLETE": "complete_bash", "COMP_WORDS": "mainspring tail x", "COMP_CWORD": "2"}
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
