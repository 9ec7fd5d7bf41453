"""`serve` is read in two ways, with and without the command line library; both must understand the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.commands import app
from mainspring.cli.node.quick_serve import CONFIG, NUMBERS, PATHS, SWITCHES, TEXTS, plain_serve
from tests.support.serving import clean_environment

COMMAND: Any = typer.main.get_command(app).get_command(None, "serve")  # type: ignore[attr-defined]
OPTIONS = {option.name: option for option in COMMAND.params}


def by_the_command(arguments: list[str]) -> dict[str, object]:
    """What the command's own reader makes of the words behind `serve`."""
    with COMMAND.make_context("serve", list(arguments)) as context:
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in context.params.items()
            if value is not None and value is not False
        }


def quickly(arguments: list[str]) -> dict[str, object] | None:
    asked = plain_serve(["serve", *arguments])
    if asked is None:
        return None
    found = {**asked.flags, "program": asked.program, "config": asked.config}
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in found.items() if value is not None
    }


WORDS = st.text(st.sampled_from("ab:./-=7 é"), min_size=1, max_size=6)
FLAGS = st.sampled_from([f"--{name.replace('_', '-')}" for name in (*TEXTS, *PATHS, CONFIG)])
PIECES = st.one_of(
    st.tuples(FLAGS, WORDS).map(list),
    st.tuples(FLAGS, WORDS).map(lambda pair: ["=".join(pair)]),
    st.integers(0, 70_000).map(lambda port: ["--port", str(port)]),
    st.sampled_from([*([f"--{name.replace('_', '-')}"] for name in SWITCHES), ["--require-durable=1"]]),
    st.sampled_from([["shop:app"], ["--"], ["--reload"], ["--port"], ["--port=x"], ["--nothing", "1"], [""]]),
)


@given(st.lists(PIECES, max_size=5).map(lambda pieces: [word for piece in pieces for word in piece]))
def test_what_is_read_quickly_is_what_the_command_reads(arguments: list[str]) -> None:
    found = quickly(arguments)
    if found is not None:
        assert found == by_the_command(arguments)


@pytest.mark.parametrize("name", [*TEXTS, *PATHS, *NUMBERS, CONFIG])
def test_every_flag_that_is_read_quickly_is_one_of_the_command(name: str) -> None:
    flag, value = f"--{name.replace('_', '-')}", "7" if name in NUMBERS else "text"
    assert flag in OPTIONS[name].opts
    for arguments in ([flag, value], [f"{flag}={value}"], ["shop:app", flag, value, flag, value]):
        assert quickly(arguments) == by_the_command(arguments)


def test_everything_the_command_takes_is_read_quickly_except_what_is_rare() -> None:
    known = {*TEXTS, *PATHS, *NUMBERS, *SWITCHES, CONFIG, "program"}
    assert OPTIONS.keys() - known == {"as_json", "reload", "run_tasks"}
    assert known - OPTIONS.keys() == set()
    for name in SWITCHES:
        flag = f"--{name.replace('_', '-')}"
        assert quickly([flag]) == by_the_command([flag]) == {name: True}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["settings"],
        ["--help"],
        ["serve", "--help"],
        ["serve", "--reload"],
        ["serve", "--no-tasks"],
        ["serve", "--port", "many"],
        ["serve", "--port"],
        ["serve", "--prot", "1"],
        ["serve", "a:app", "b:app"],
        ["serve", "--data", "--port"],
    ],
)
def test_what_needs_words_for_people_is_left_to_the_command(words: list[str]) -> None:
    assert plain_serve(words) is None


def test_completion_is_left_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MAINSPRING_COMPLETE", "complete_bash")
    assert plain_serve(["serve"]) is None


def test_serving_does_not_load_the_command_line_library(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(
        "import json, sys\n"
        "from mainspring import App\n"
        "app = App('look')\n"
        "@app.on_start\n"
        "def look():\n"
        "    loaded = sorted({'typer', 'rich', 'pydantic', 'wasmtime', 'click'} & set(sys.modules))\n"
        "    print(json.dumps(loaded), file=sys.stderr, flush=True)\n"
        "    raise SystemExit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", "serve", "look:app", "--port", "0", "--engine", "memory"],
        cwd=tmp_path,
        env=clean_environment(None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert json.loads(done.stderr.splitlines()[0]) == []
