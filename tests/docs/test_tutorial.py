"""The tutorial, followed word for word: its files written, its node started, killed and started again, its commands
typed, and what they print compared with the page. `...` on the page stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.test_snippets import FENCE
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
PATIENCE_S = 300.0  # for what must come; nothing is measured


class Reader:
    """Someone who does what the page says, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAINSPRING", "BUS_", "XDG_", "PYTEST_"))
        }
        self.folder = folder
        self.env = {
            **kept,
            "BUS_PORT": str(port),
            "BUS_URL": f"ws://127.0.0.1:{port}",
            "HTTP": f"http://127.0.0.1:{port}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}",
            # A socket's path is short; a test's folder need not be.
            "MAINSPRING_KERNEL_SOCKET": f"/tmp/ms-{os.getpid()}-{port}.k",
            "MAINSPRING_LOOP_SOCKET": f"/tmp/ms-{os.getpid()}-{port}.l",
        }
        self.node: subprocess.Popen[bytes] | None = None

    def serve(self, command: str) -> None:
        with open(self.folder / "node.txt", "ab") as said:
            self.node = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=said
            )
        assert self.node.stdout is not None
        first = self.node.stdout.readline()
        assert b"Sys.BootComplete" in first, first

    def kill(self, command: str) -> None:
        """Kill the node as the page says, which must hit the node and nothing else."""
        assert self.node is not None
        subprocess.run(command, shell=True, cwd=self.folder, env=self.env, timeout=PATIENCE_S, check=True)
        assert self.node.wait(PATIENCE_S) == -signal.SIGKILL
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> None:
        if self.node is not None:
            self.node.send_signal(number)
            self.node.wait(PATIENCE_S)
            assert self.node.stdout is not None
            self.node.stdout.close()
            self.node = None

    def type(self, command: str, expected: str) -> None:
        """Run a command; one that says in a comment that it needs time is repeated until it fits."""
        patient = "#" in command.rpartition("'")[2]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(
                command,
                shell=True,
                cwd=self.folder,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            if fits(done.stdout, expected):
                return
            if not patient or time.monotonic() > deadline:
                pytest.fail(f"$ {command}\nshould print:\n{expected}\nprinted:\n{done.stdout}")


def fits(text: str, expected: str) -> bool:
    pattern = re.escape(expected.strip()).replace(re.escape("..."), ".*?")
    return re.fullmatch(pattern, text.strip(), re.DOTALL) is not None


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console fence, each with what it prints."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


@pytest.mark.timeout(900)  # it types every command of the page
def test_the_tutorial_word_for_word(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    done = 0
    try:
        for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")):
            kind, text = fence["info"].strip(), fence["code"]
            match kind.split():
                case ["python" | "ini", target]:
                    verb, _, name = target.partition("=")
                    assert verb in ("file", "append")
                    with open(tmp_path / name, "w" if verb == "file" else "a", encoding="utf-8") as file:
                        file.write(text if verb == "file" else "\n\n" + text)
                case ["sh", "serve"]:
                    reader.serve(text)
                case ["sh", "restart"]:
                    reader.end(signal.SIGTERM)
                    reader.serve(text)
                case ["sh", "kill"]:
                    reader.kill(text)
                case ["console"]:
                    for command, expected in commands(text):
                        reader.type(command, expected)
                        done += 1
                case _:
                    pytest.fail(f"the test does not know what to do with {kind!r}")
    finally:
        reader.end(signal.SIGKILL)
    assert done >= 25
