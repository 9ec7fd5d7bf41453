"""The whole suite: `python -m tests.support.suite [arguments of pytest]`.

Tests on virtual time pass or fail for good. Tests with real processes, servers and browsers share two cores with three
others, and a machine that stands still for a minute ends one of some thousand. So up to `AGAIN` failures of such tests
are executed once more, alone, and both closing lines are printed. A test that fails again fails the suite; one that
passes then still depends on the machine, and is to be mended.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

AGAIN = 3  # more than this is no accident
REAL_PARTS = ("attack", "browser", "chaos", "docs", "process", "servers")


class Failures:
    """A pytest plugin that collects which tests failed."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = without_group(report.nodeid)
        if report.failed and test not in self.tests:
            self.tests.append(test)


def without_group(nodeid: str) -> str:
    """The test's own name: with --dist loadgroup, xdist appends the name of its group."""
    test, _, group = nodeid.rpartition("@")
    return test if test and "]" not in group else nodeid


def worth_another_run(tests: list[str]) -> bool:
    return 0 < len(tests) <= AGAIN and all(test.split("/")[1] in REAL_PARTS or "[served" in test for test in tests)


def main(arguments: list[str]) -> int:
    failures = Failures()
    code = pytest.main(arguments, plugins=[failures])
    if code != pytest.ExitCode.TESTS_FAILED or not worth_another_run(failures.tests):
        return int(code)
    print(f"\nexecuting {len(failures.tests)} failed test(s) once more, alone; a test that passes now is to be mended:")
    print("\n".join(failures.tests), flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *failures.tests]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
