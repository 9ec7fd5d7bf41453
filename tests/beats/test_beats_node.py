"""Beats in a real node: signalled, watched, killed, resumed and replayed from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from serving import Serving, clean_environment, serving

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
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", "beats", *arguments, "--data", str(node.folder / "data")],
        cwd=node.folder,
        env={**clean_environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


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
