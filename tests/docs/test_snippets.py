"""Every Python snippet of the documentation runs, as a reader would run it: pasted into a file of its own.

A fence marked `python` is a whole program; one marked `python no-run` is a fragment that only shows a shape, and must
at least be Python. Those that say `needs:NAME` are left out where that package is not installed; those that say `file=`
or `append=` belong to a longer story, which another test follows. Each program runs in a fresh directory with the
memory engine.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LIMIT_S = 60
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    info: tuple[str, ...]
    code: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def stands_alone(self) -> bool:
        return not any(word == "no-run" or "=" in word for word in self.info)


def snippets_of(text: str, page: str) -> list[Snippet]:
    """The Python fences of one page, with the line each one begins on."""
    found = []
    for match in FENCE.finditer(text):
        info = tuple(match["info"].replace(",", " ").split())
        if info and info[0] in ("python", "py", "python3"):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Snippet(page, line, info[1:], textwrap.dedent(match["code"])))
    return found


def pages() -> list[Path]:
    return [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()]


SNIPPETS = [
    snippet
    for page in pages()
    for snippet in snippets_of(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
]


@pytest.mark.parametrize(
    "snippet", [snippet for snippet in SNIPPETS if snippet.stands_alone], ids=lambda snippet: snippet.name
)
def test_the_snippet_runs(snippet: Snippet, tmp_path: Path) -> None:
    for word in snippet.info:
        pytest.importorskip(word.removeprefix("needs:"))
    script = tmp_path / "snippet.py"
    script.write_text(snippet.code, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING", "BUS_", "MONGO_"))}
    with subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**kept, "MAINSPRING_ENGINE": "memory", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # what the snippet started ends with it
    ) as running:
        try:
            said, _ = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            _end(running)
            pytest.fail(f"{snippet.name} did not end within {LIMIT_S} s\n{running.communicate()[0]}")
        finally:
            _end(running)
    assert running.returncode == 0, f"{snippet.name} ended with {running.returncode}\n{said}"


def _end(running: subprocess.Popen[str]) -> None:
    """End the whole session of the snippet, also children it left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_the_snippet_is_python(snippet: Snippet) -> None:
    ast.parse(snippet.code)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_fence_of_the_page_is_closed(page: Path) -> None:
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0


def test_fences_are_found_with_their_line_and_info() -> None:
    text = "# t\n\n```python\nprint(1)\n```\n\n- x\n\n  ```python no-run\n  await x\n  ```\n\n```sh\nls\n```\n"
    first, second = snippets_of(text, "p.md")
    assert (first.name, first.info, first.code) == ("p.md:3", (), "print(1)\n")
    assert (second.name, second.info, second.code) == ("p.md:9", ("no-run",), "await x\n")
