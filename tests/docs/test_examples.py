"""The list of examples: complete, and each command in it does what it says, typed as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.serving import clean_environment

EXAMPLES = ROOT / "examples"
PAGE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```sh\n(.+)\n```$", PAGE, re.MULTILINE)
PATIENCE_S = 60
SLOW_MACHINE = re.compile(r"^.* blocked the loop for .*\n(?:  .*\n)*", re.MULTILINE)  # the watchdog


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A reader's terminal; what a node of theirs would share with another one on this machine is its own here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bin_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sockets = {f"MAINSPRING_{name}_SOCKET": f"/tmp/ms-{os.getpid()}-{port}.{name[0]}" for name in ("KERNEL", "LOOP")}
    return clean_environment({"PATH": bin_path, "BUS_PORT": str(port), "MAINSPRING_DATA": str(tmp_path), **sockets})


def test_every_example_is_listed() -> None:
    linked = {each.partition("/")[0] for each in re.findall(r"\]\(([a-z_]+[^):]*?)/?\)", PAGE)}
    there = {path.name for path in EXAMPLES.iterdir() if path.name not in ("README.md", "__pycache__")}
    assert there <= linked
    assert all((EXAMPLES / name).exists() for name in linked)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("python ")])
def test_the_command_runs_to_its_end(command: str, env: dict[str, str]) -> None:
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, SLOW_MACHINE.sub("", done.stderr)) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("mainspring serve ")])
def test_the_command_serves_until_it_is_stopped(command: str, env: dict[str, str]) -> None:
    with subprocess.Popen(
        shlex.split(command), cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as node:
        try:
            assert node.stdout is not None
            assert b"Sys.BootComplete" in node.stdout.readline()
            (page,) = re.findall(r"<http://127.0.0.1:7070(/[^>]*)>", PAGE)
            with urllib.request.urlopen(f"http://127.0.0.1:{env['BUS_PORT']}{page}", timeout=PATIENCE_S) as answer:
                assert b"</html>" in answer.read()
            node.terminate()
            assert node.wait(PATIENCE_S) == 0
        finally:
            node.kill()


def test_each_example_of_its_own_has_one_command() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:9]
    own = [section for section in sections if "README.md" not in section]  # one with a page of its own has them there
    assert [len(re.findall("^```sh$", section, re.MULTILINE)) for section in own] == [1] * 6
    assert len(COMMANDS) == 6
