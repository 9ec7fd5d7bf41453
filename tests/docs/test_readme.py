"""The first page followed as a person would: each block of commands is typed into the terminal that the page says."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.nats_server import free_port
from tests.support.paths import ROOT
from tests.support.serving import clean_environment

PATIENCE_S = 120.0
READY = "ready-for-more$ "  # the prompt; what is typed is echoed, but never ends like this
LISTENS = re.compile(r"http://127\.0\.0\.1:\d+")
PAGE = (ROOT / "README.md").read_text()


class Block(NamedTuple):
    terminal: int
    lines: list[str]


def blocks() -> Iterator[Block]:
    """The commands of `Try it`, and in which terminal each block is typed: the one that the text names last."""
    section = PAGE.partition("## Try it\n")[2].partition("\n## ")[0]
    terminal = 0
    for text, commands in re.findall(r"(.*?)```sh\n(.*?)```", section, re.DOTALL):
        terminal = int(re.findall(r"terminal (\d)", text)[-1])
        yield Block(terminal, commands.splitlines())


class Person:
    """Somebody at a terminal."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._read = ""
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**env, "PROMPT_COMMAND": f"PS1={READY!r}", "TERM": "dumb"},  # also after `activate`
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is for what runs there
        )
        os.close(theirs)
        self.read_until(READY)

    def read_until(self, wanted: str | re.Pattern[str]) -> str:
        """What the terminal shows until this."""
        until = time.monotonic() + PATIENCE_S
        pattern = wanted if isinstance(wanted, re.Pattern) else re.compile(re.escape(wanted))
        while (found := pattern.search(self._read)) is None:
            assert time.monotonic() < until, self._read
            if select.select([self._ours], [], [], 1)[0]:
                self._read += os.read(self._ours, 65_536).decode(errors="replace").replace("\r", "")
        shown, self._read = self._read[: found.end()], self._read[found.end() :]
        return shown

    def begin(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())
        self.read_until("\n")

    def type(self, line: str) -> str:
        """Type a command and wait until the prompt is back; what it said."""
        self.begin(line)
        return self.read_until(READY)

    def interrupt(self) -> None:
        os.write(self._ours, b"\x03")
        self.read_until(READY)

    def close(self) -> None:
        os.close(self._ours)  # the terminal is closed: whatever runs in it is told
        self._shell.kill()
        self._shell.wait()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in which what `make` installs is installed already."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("Makefile", "src", "requirements", "pyproject.toml", "README.md", ".venv"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def program() -> str:
    """The second program of the page."""
    return re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.DOTALL)[1]


def follow(person: Person, lines: list[str], folder: Path) -> str:
    """Type the lines; what does not return is stopped with Ctrl-C where the page says so, else left running."""
    said = ""
    for line in lines:
        command, _, remark = line.partition("  #")
        command = command.strip()
        if command.startswith(("make serve", "mainspring serve", "mainspring demo")):
            person.begin(command)
            said += person.read_until(LISTENS)
            if "Ctrl-C" in remark:
                person.interrupt()
            continue
        said += person.type(command)
        if "save the second program" in remark:
            (folder.parent / "first" / "shop.py").write_text(program())
    return said


def test_the_first_page_works_from_top_to_bottom_in_the_terminals_it_names(clone: Path) -> None:
    serving, asking, last = blocks()
    assert (serving.terminal, asking.terminal, last.terminal) == (1, 2, 1)
    assert "pkill" not in PAGE
    env = clean_environment({"MAINSPRING_PORT": str(free_port())})
    with ExitStack() as ends:
        one = ends.enter_context(closing(Person(clone, env)))
        follow(one, serving.lines, clone)
        two = ends.enter_context(closing(Person(clone, env)))
        said = follow(two, asking.lines, clone)
        assert '"placed": 17' in said
        assert '"customer":"ada"' in said
        assert "follow_up" in said
        one.interrupt()
        said = follow(one, last.lines, clone)
        assert "mainspring serve store:app" in said
        assert (clone.parent / "store" / "store.py").exists()
