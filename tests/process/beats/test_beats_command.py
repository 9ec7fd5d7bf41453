"""`mainspring beats`, and the example program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mainspring.beats import Heartbeat
from mainspring.cli.program.beats import app
from mainspring.errors import MainspringError
from mainspring.log import Batch, BlockingLog, SqliteEngine, log_file
from tests.support.paths import ROOT

PROGRAM = """
import os
from mainspring.beats import BeatsProgram

program = BeatsProgram()

@program.enzyme("/sig/*")
def count(signal, target, stage):
    seen = stage.read("/count") or 0
    stage.write("/count", seen + 1 if "CHANGED" not in os.environ else -1)
    if seen < 2:
        stage.signal("/sig/again")
    return -1 if signal == "/sig/bad" else None
"""

Run = Callable[..., Result]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a program and four beats in its log."""
    name = f"counting_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (tmp_path / "data").mkdir()
    with BlockingLog(SqliteEngine(log_file(tmp_path / "data"))) as log:
        hb = Heartbeat(log=log, program=f"{name}:program")
        __import__(name).program.install(hb)
        hb.signal("/sig/go")
        for _ in range(4):
            hb.beat()
    return tmp_path


@pytest.fixture
def run(world: Path) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [*arguments, "--data", str(world / "data")])
        if isinstance(result.exception, MainspringError) and code == 1:
            return result
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def program_of(world: Path) -> str:
    return f"{next(world.glob('counting_*.py')).stem}:program"


def test_show_and_read_tell_what_happened(run: Run) -> None:
    shown = json.loads(run("show", "2").output)
    assert [entry["enzyme"] for entry in shown["agenda"]] == ["count"]
    assert shown["stage"] == [{"enzyme": "count", "op": "write", "path": "/count", "value": 2}]
    records = [json.loads(line) for line in run("show", "2", "--journal").output.splitlines()]
    assert [record["fact"] for record in records] == ["begin", "enqueue", "resolve", "run", "write", "emit", "commit"]
    assert json.loads(run("read", "/count").output) == 3
    assert json.loads(run("read", "/count", "--at", "2").output) == 1
    assert isinstance(run("show", "9", code=1).exception, MainspringError)


def test_diff_and_lines_and_watch(run: Run) -> None:
    assert json.loads(run("diff", "2", "4").output) == {"path": "/count", "2": 1, "4": 3}
    assert run("lines").output.startswith("main  beat 4  ")
    watched = run("watch", "--from", "2", "--count", "3").output.splitlines()
    assert [line.split("  ")[0] for line in watched] == ["beat 2", "beat 3", "beat 4"]
    assert "1 signals  1 runs  1 staged  1 emitted" in watched[0]


def test_replay_says_identical_or_where_it_differs(run: Run, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "4 beats, 1 to 4: identical" in run("replay", program_of(world)).output
    assert "2 beats, 2 to 3: identical" in run("replay", "--from", "2", "--to", "3").output
    monkeypatch.setenv("CHANGED", "1")
    differs = run("replay", program_of(world), code=1).output
    assert "beat 1 differs at record" in differs
    assert '"value":-1' in differs
    for wrong in ("nothing", "nothing:app", "json:loads"):
        assert isinstance(run("replay", wrong, code=1).exception, MainspringError)


def test_signals_pauses_and_forks_are_durable(run: Run, world: Path) -> None:
    assert run("signal", "/sig/more").output == "beat 5\n"
    assert run("signal", "-", "/t", "--beat", "9").output == "beat 9\n"
    assert "paused from beat 5" in run("pause").output
    assert [entry["signal"] for entry in json.loads(run("read", "/rt/beat/5/inbox").output)] == ["/sig/more"]
    assert "running from beat 5" in run("resume").output
    assert "continues line main with beat 3" in run("fork", "--at", "2", "second").output
    listed = run("lines").output.splitlines()
    assert listed[1].startswith("second  beat 2")
    assert listed[1].endswith("forked from main at beat 2")
    assert json.loads(run("read", "/count", "--line", "second").output) == 2
    assert "line main-at-1 continues" in run("fork", "--at", "1").output
    assert "identical" in run("replay", "--line", "main-at-1").output
    assert run("signal", "/sig/x", "--line", "second").output == "beat 3\n"


def test_damage_is_reported_with_its_beat(run: Run, world: Path) -> None:
    with BlockingLog(SqliteEngine(log_file(world / "data"))) as log:
        batch = Batch()
        batch.put("journal/beats/main", f"{3:016d}.000000", b"{}\n")
        log.commit(batch)
    run("show", "2")
    failed = run("show", "3", code=1)
    assert "beat 3" in str(failed.exception)
    assert "beat 3" in str(run("replay", program_of(world), code=1).exception)
    assert run("verify", code=1).output.startswith("beat 3 is damaged")


def test_reading_works_beside_a_writer(run: Run, world: Path) -> None:
    with BlockingLog(SqliteEngine(log_file(world / "data"))) as log:
        hb = Heartbeat(log=log)
        assert json.loads(run("read", "/count").output) == 3
        hb.beat()
        assert run("lines").output.startswith("main  beat 5  ")
        refused = run("signal", "/sig/x", code=1).exception
        assert isinstance(refused, MainspringError)
        assert "--socket" in refused.remedy
        elsewhere = run("signal", "/sig/x", "--url", "ws://127.0.0.1:1", code=1).exception
        assert getattr(elsewhere, "code", "") == "cannot_connect"
        other = run("signal", "/sig/x", "--line", "other", code=1).exception
        assert getattr(other, "code", "") == "log_locked"


def test_the_example_runs_its_enzymes_in_the_order_it_explains() -> None:
    example = ROOT / "examples" / "image_pipeline.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "beat 1: resize, metadata"
    assert "beat 2: catalogue" in lines
    assert "/data/assets/img123/thumbnail" in lines[-1]
