"""What a person at a terminal sees of a node that does not start, and how commands end that they end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.support.in_process import mainspring
from tests.support.serving import PATIENCE_S, Serving, clean_environment, serving

REASON = "there is no module 'nothing'"


def shown(folder: Path, *, out: IO[bytes] | None = None, err: IO[bytes] | None = None) -> str:
    """What `mainspring serve nothing:app` shows at a terminal, unless one of its outputs goes to a file."""
    screen, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "serve", "nothing:app", "--port", "0", "--engine", "memory"],
            stdin=subprocess.DEVNULL,
            stdout=out or terminal,
            stderr=err or terminal,
            cwd=folder,
            env=clean_environment(),
        )
        os.close(terminal)
        seen = b""
        while True:
            try:
                more = os.read(screen, 4096)
            except OSError:  # Linux says so when nobody has the terminal open any more
                break
            if not more:
                break
            seen += more
        assert process.wait(PATIENCE_S) == 1
    finally:
        os.close(screen)
    return seen.decode().replace("\r\n", "\n")


def test_why_a_node_did_not_start_is_said_once(tmp_path: Path) -> None:
    seen = shown(tmp_path)
    assert seen.startswith(f"mainspring: not started: {REASON}")
    assert seen.count(REASON) == 1
    assert "{" not in seen


def test_under_reload_it_is_said_too_and_the_watch_goes_on(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "serve", "nothing:app", "--reload", "--port", "0", "--engine", "memory"],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        cwd=tmp_path,
        env=clean_environment(),
    )
    os.close(terminal)
    try:
        seen = b""
        while not seen.endswith(b"\n"):
            seen += os.read(screen, 4096)
        assert seen.decode().startswith(f"mainspring: not started: {REASON}")
        assert process.poll() is None
        (tmp_path / "nothing.py").write_text("from mainspring import App\napp = App('shop')\n")
        while b"nothing:app is ready at http://" not in seen:
            seen += os.read(screen, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        os.close(screen)


@pytest.mark.parametrize("redirected", ["out", "err"])
def test_a_redirected_output_still_gets_the_reason(tmp_path: Path, redirected: str) -> None:
    """A supervisor that reads one of them, or a file of logs, must not depend on what the other one is."""
    with (tmp_path / "file").open("wb") as file:
        seen = shown(tmp_path, **{redirected: file})
    kept = (tmp_path / "file").read_text()
    if redirected == "out":
        assert json.loads(kept)["type"] == "Sys.BootFailed"
        assert REASON in kept
    for words in {"out": (seen,), "err": (seen, kept)}[redirected]:
        assert words.startswith("mainspring: not started: ")
        assert words.count(REASON) == 1


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "mainspring", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=clean_environment(),
    )


@pytest.mark.usefixtures("elsewhere")
def test_every_command_ends_at_ctrl_c_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    mainspring("engine", "init")
    monkeypatch.setattr("mainspring.cli.program.beats.follow", interrupted)
    monkeypatch.setattr("mainspring.cli.support.log_options.load_all", interrupted)
    for command in (("beats", "watch"), ("log", "stats"), ("log", "runs")):
        assert mainspring(*command, code=130) == ("", "")


def test_a_reader_that_has_seen_enough_is_a_success(tmp_path: Path) -> None:
    assert started(tmp_path, "engine", "init").wait(PATIENCE_S) == 0
    assert started(tmp_path, "beats", "signal", "/a").wait(PATIENCE_S) == 0
    exporting = started(tmp_path, "log", "export")
    assert exporting.stdout is not None
    assert exporting.stderr is not None
    exporting.stdout.close()
    assert (exporting.wait(PATIENCE_S), exporting.stderr.read()) == (0, b"")


def answered(node: Serving, typed: str, *arguments: str) -> tuple[int, str, str]:
    """A command typed at a terminal, with its output in a pipe, and the answer to its question."""
    screen, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", *arguments, "--url", f"http://127.0.0.1:{node.port}"],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        os.close(terminal)
        os.write(screen, f"{typed}\n".encode())
        said, asked = process.communicate(timeout=PATIENCE_S)
    finally:
        os.close(screen)
    return process.returncode, said.strip(), asked


def test_a_person_is_asked_before_something_is_gone_also_where_the_output_is_piped(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        for name in ("scrap", "waste"):
            mainspring("topics", "create", name, "--url", f"http://127.0.0.1:{node.port}")
        code, said, asked = answered(node, "scrp", "topics", "delete", "scrap")
        assert (code, said) == (1, "")
        assert "Type its name to go on" in asked
        code, said, asked = answered(node, "scrap", "topics", "delete", "scrap", "--json")
        assert (code, json.loads(said)) == (0, {"topic": "scrap", "deleted": True})
        code, said, _ = answered(node, "n", "runs", "forget", "--state", "failed")
        assert (code, said) == (1, "")
        code, said, asked = answered(node, "", "topics", "delete", "waste", "-y")
        assert (code, "Type its name" in asked) == (0, False)
