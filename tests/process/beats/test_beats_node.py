"""Beats in a real node: signalled, watched, killed, resumed and replayed from outside."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli.program.beats import app
from tests.support.serving import Serving, clean_environment, serving

PROGRAM = """
from mainspring import App

app = App("counting")

@app.enzyme("/sig/*")
def count(signal, target, stage):
    stage.write("/count", (stage.read("/count") or 0) + 1)
    stage.signal("/after")

@app.enzyme("/after")
async def after(signal, target, stage):
    stage.write("/after", stage.beat)

app.bind("/t", "count")
"""


def mainspring(node: Serving, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "--data", str(node.folder / "data")])
    assert (done.exit_code, code) in ((0, 0), (1, 1)), (done.output, done.exception)
    return done.output


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is found where the command is given, and no setting of whoever runs the tests counts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


def test_a_node_beats_when_signalled_and_resumes_after_being_killed(tmp_path: Path) -> None:
    (tmp_path / "counting_app.py").write_text(PROGRAM)
    with serving(tmp_path, "counting_app:app", engine="sqlite") as node:
        socket = ("--kernel-socket", str(node.kernel_socket))
        assert mainspring(node, "signal", "/sig/go", *socket) == "beat 1\n"
        watched = mainspring(node, "watch", "--from", "1", "--count", "2").splitlines()
        assert [line.split("  ")[0] for line in watched] == ["beat 1", "beat 2"]
        assert json.loads(mainspring(node, "read", "/count")) == 1
        assert mainspring(node, "signal", "-", "/t/x", "--beat", "40", *socket) == "beat 40\n"
        assert "paused" in mainspring(node, "pause", *socket)
        node.kill()
    with serving(tmp_path, "counting_app:app", engine="sqlite") as node:
        socket = ("--kernel-socket", str(node.kernel_socket))
        assert json.loads(mainspring(node, "read", "/after")) == 2
        lines = mainspring(node, "lines")
        assert "paused" in lines
        assert [entry["target"] for entry in json.loads(mainspring(node, "read", "/rt/beat/40/inbox"))] == ["/t/x"]
        mainspring(node, "fork", "--at", "1", "again", *socket)
        assert "running" in mainspring(node, "resume", *socket)
        mainspring(node, "signal", "sig", *socket, code=1)
        landed = int(mainspring(node, "signal", "/sig/more", *socket).split()[1])
        mainspring(node, "watch", "--from", str(landed), "--count", "1")
        assert json.loads(mainspring(node, "read", "/count")) == 2
        assert json.loads(mainspring(node, "read", "/count", "--line", "again")) == 1
        assert "identical" in mainspring(node, "replay")
        node.signal(signal.SIGTERM)
        assert node.wait() == 0


def test_a_node_in_memory_is_asked(tmp_path: Path) -> None:
    (tmp_path / "counting_app.py").write_text(PROGRAM)
    with serving(tmp_path, "counting_app:app", engine="memory") as node:
        asked = ("--engine", "memory", "--kernel-socket", str(node.kernel_socket))
        assert mainspring(node, "signal", "/sig/go", *asked) == "beat 1\n"
        while json.loads(mainspring(node, "read", "/count", *asked)) is None:
            pass
        assert json.loads(mainspring(node, "read", "/rt/beat/1/inbox", *asked))[0]["signal"] == "/sig/go"
        mainspring(node, "show", "1", "--engine", "memory", code=1)


FED = """
from mainspring import App

app = App("fed")
app.beats_from("orders")

@app.enzyme("/topics/orders", match="prefix")
def bill(signal, target, stage):
    n = stage.read(signal)["payload"]["n"]
    stage.write(f"/billed/{n}", (stage.read(f"/billed/{n}") or 0) + 1)
"""


def publish(node: Serving, n: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.port}/topics/orders/events",
        json.dumps({"payload": {"n": n}}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


def watch_until(node: Serving, count: int, beat: int = 1) -> int:
    """Follow the line until so many events were billed; the next beat to watch."""
    while len(billed(node)) < count:
        line = mainspring(node, "watch", "--from", str(beat), "--count", "1")
        beat = int(line.split()[1]) + 1
    return beat


def billed(node: Serving) -> dict[int, int]:
    counts = {n: json.loads(mainspring(node, "read", f"/billed/{n}")) for n in range(1, 5)}
    return {n: count for n, count in counts.items() if count is not None}


def test_events_of_a_topic_are_billed_once_by_a_node_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "fed_app.py").write_text(FED)
    with serving(tmp_path, "fed_app:app", engine="sqlite") as node:
        publish(node, 1)
        publish(node, 2)
        beat = watch_until(node, 2)
        publish(node, 3)
        node.kill()
    with serving(tmp_path, "fed_app:app", engine="sqlite") as node:
        publish(node, 4)
        watch_until(node, 4, beat)
        assert billed(node) == {1: 1, 2: 1, 3: 1, 4: 1}
        assert "identical" in mainspring(node, "replay")
