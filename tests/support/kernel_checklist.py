"""Which test shows which promise of the kernel: read from the tests' docstrings.

A test says `Checklist 12, 85: ...` at the start of its docstring. `python -m tests.support.kernel_checklist` rewrites
the table in docs/reference/kernel-checklist.md; the promises there are kept, the tests beside them are replaced.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "kernel-checklist.md"
COUNT = 160
_SAID = re.compile(r"Checklist ((?:\d+(?:, )?)+)")
_ROW = re.compile(r"\| (\d+) \| (.*?) \| (.*?) \|")


def shown() -> dict[int, list[str]]:
    """Promise number to the tests that show it, as `file.py::test`."""
    found: dict[int, list[str]] = defaultdict(list)
    paths = [*(ROOT / "tests").glob("*/kernel/test_*.py"), ROOT / "tests" / "expectations" / "test_message_retries.py"]
    for path in sorted(paths, key=lambda path: path.name):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                said = _SAID.match(ast.get_docstring(node) or "")
                for number in re.findall(r"\d+", said[1]) if said else ():
                    found[int(number)].append(f"{path.name}::{node.name}")
    return dict(found)


def listed() -> dict[int, tuple[str, list[str]]]:
    """The table of the page: number to promise and tests."""
    rows = _ROW.findall(PAGE.read_text())
    return {int(number): (promise, re.findall(r"`([^`]+)`", tests)) for number, promise, tests in rows}


def rewrite() -> None:
    tests = shown()

    def row(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"| {number} | {match[2]} | {'<br>'.join(f'`{name}`' for name in tests.get(number, ()))} |"

    PAGE.write_text(_ROW.sub(row, PAGE.read_text()))


if __name__ == "__main__":
    rewrite()
