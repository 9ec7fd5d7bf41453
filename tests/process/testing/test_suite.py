"""What `make test` does with failures of tests that have real parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.suite import AGAIN, without_group, worth_another_run

PASSES_THE_SECOND_TIME = """
import pathlib

def test_node():
    seen = pathlib.Path("seen")
    known = seen.exists()
    seen.touch()
    assert known
"""
NEVER_PASSES = "def test_node():\n    assert False\n"


def suite(folder: Path, tier: str, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "tests" / tier).mkdir(parents=True)
    (folder / "tests" / tier / "test_it.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.suite", f"tests/{tier}", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_failure_with_real_parts_is_executed_once_more_and_said(tmp_path: Path) -> None:
    done = suite(tmp_path, "process", PASSES_THE_SECOND_TIME)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "executing 1 failed test(s) once more" in done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(("tier", "text"), [("process", NEVER_PASSES), ("simulated", PASSES_THE_SECOND_TIME)])
def test_a_failure_that_comes_again_or_is_on_virtual_time_fails_the_suite(tmp_path: Path, tier: str, text: str) -> None:
    assert suite(tmp_path, tier, text).returncode == 1


def test_many_failures_are_no_accident() -> None:
    tests = [f"tests/servers/test_it.py::test_{n}" for n in range(AGAIN + 1)]
    assert worth_another_run(tests[:AGAIN])
    assert not worth_another_run(tests)
    assert not worth_another_run([])


def test_the_name_of_a_test_is_without_the_group_that_xdist_adds() -> None:
    assert without_group("tests/a.py::test_x[p]@mongo") == "tests/a.py::test_x[p]"
    assert without_group("tests/a.py::test_x@mongo") == "tests/a.py::test_x"
    assert without_group("tests/a.py::test_x[a@b]") == "tests/a.py::test_x[a@b]"
