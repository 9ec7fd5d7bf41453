"""Does the net catch fish? Deliberate faults, one at a time in a copy of the tree, and the tests that should notice.

    python -m tools.mutants                  all of them (`make mutants`)
    python -m tools.mutants NAME...          some, by name or by a part of it
    python -m tools.mutants --list           what there is
    python -m tools.mutants --all-tests      the whole suite for each, instead of the tests that are named with it

The faults are in `mutants.toml`: a name, a file, the text as it is, the text with the fault, and tests. The text must
occur in the file exactly once; one that does not is an error, because a fault that cannot be applied proves nothing.
For each fault a line says which test noticed, and after how many seconds; that test is then run without the fault and
must pass. The exit code is 1 when a fault survives, or cannot be tried.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LIST: Final = ROOT / "tools" / "mutants.toml"
LONGEST_S: Final = 600  # for the tests of one fault: a fault may well make a test wait for ever
LONGEST_SUITE_S: Final = 7_200
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+\.py::.+?)(?: - .*)?$", re.MULTILINE)
NO_END: Final = "the tests came to no end"
PASSED, CAUGHT, SURVIVED, BROKEN = "passed", "caught", "SURVIVED", "BROKEN"


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def problems(self, root: Path = ROOT) -> list[str]:
        """Why it cannot be tried; nothing if it can."""
        found = []
        path = root / self.file
        if not path.is_file():
            return [f"there is no file {self.file}"]
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            found.append(f"its text occurs {count} times in {self.file}, not once")
        else:
            try:
                compile(text.replace(self.old, self.new), self.file, "exec")
            except SyntaxError as error:
                found.append(f"{self.file} with the fault is not Python: {error}")
        if self.old == self.new:
            found.append("it changes nothing")
        found += [f"there is no test {test}" for test in self.tests if not (root / test.partition("::")[0]).exists()]
        return found


def load(path: Path = LIST) -> list[Mutant]:
    """The faults, in their order."""
    with path.open("rb") as file:
        entries = tomllib.load(file)["mutant"]
    return [Mutant(**{**each, "tests": tuple(each["tests"])}) for each in entries]


def files_of_the_tree() -> list[str]:
    """What git has, and what it would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@dataclass(frozen=True)
class Verdict:
    """What the tests said to a fault."""

    kind: str
    test: str
    seconds: float


class Copy:
    """A folder with a copy of these files, in which faults are made and mended again."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._changes = 0
        for name in names:
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def judge(self, mutant: Mutant, tests: Iterable[str]) -> Verdict:
        """Make the fault, run the tests, mend it; then the test that failed must pass."""
        path = self._folder / mutant.file
        sound = path.read_text(encoding="utf-8")
        try:
            self._write(path, sound.replace(mutant.old, mutant.new))
            verdict = self.run(tests)
        finally:
            self._write(path, sound)
        if verdict.kind == CAUGHT and verdict.test != NO_END and self.run([verdict.test]).kind != PASSED:
            return Verdict(BROKEN, f"{verdict.test} fails without the fault, too", verdict.seconds)
        return verdict

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        self._changes += 1
        when = time.time() + 10 * self._changes  # Python compiles a file again when its time is another one
        os.utime(path, (when, when))

    def run(self, tests: Iterable[str]) -> Verdict:
        """Run tests until the first one fails. No tests: all there are."""
        chosen = list(tests)
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *chosen]
        env = {**os.environ, "PYTHONPATH": f"{self._folder / 'src'}{os.pathsep}{self._folder}"}
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=LONGEST_S if chosen else LONGEST_SUITE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(CAUGHT, NO_END, time.monotonic() - began)
        seconds = time.monotonic() - began
        if done.returncode == 0:
            return Verdict(PASSED, "", seconds)
        failed = FAILED.search(done.stdout)
        if done.returncode == 1 and failed is not None:
            return Verdict(CAUGHT, failed[1], seconds)
        return Verdict(BROKEN, (done.stdout + done.stderr).strip()[-2_000:], seconds)


class Report:
    """Prints what becomes of each fault, and counts."""

    def __init__(self, total: int, width: int) -> None:
        self._total = total
        self._width = width
        self._kinds: list[str] = []
        self._began = time.monotonic()

    def add(self, name: str, verdict: Verdict) -> None:
        kind = SURVIVED if verdict.kind == PASSED else verdict.kind
        self._kinds.append(kind)
        print(f"{kind:8}  {name:{self._width}}  {verdict.seconds:6.1f} s  {verdict.test}", flush=True)

    def close(self) -> int:
        caught = self._kinds.count(CAUGHT)
        seconds = time.monotonic() - self._began
        print(f"{caught} of {self._total} faults caught in {seconds:.0f} s", flush=True)
        return 0 if caught == self._total else 1


def execute(mutants: list[Mutant], *, jobs: int, all_tests: bool) -> int:
    """Try them; the exit code."""
    width = max(len(mutant.name) for mutant in mutants)
    with tempfile.TemporaryDirectory(prefix="mainspring-mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        names = files_of_the_tree()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number), names))
        report = Report(len(mutants), width)

        def judge(mutant: Mutant) -> None:
            copy = copies.get()
            verdict = copy.judge(mutant, () if all_tests else mutant.tests)
            copies.put(copy)
            report.add(mutant.name, verdict)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(judge, mutants))
        return report.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only faults whose name has this in it")
    parser.add_argument("--list", action="store_true", help="say what there is and try nothing")
    parser.add_argument("--all-tests", action="store_true", help="the whole suite for each fault: hours")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at a time (default 2)")
    given = parser.parse_args()
    mutants = [each for each in load() if not given.names or any(name in each.name for name in given.names)]
    if not mutants:
        parser.error("no fault has such a name")
    broken = [f"{mutant.name}: {problem}" for mutant in mutants for problem in mutant.problems()]
    if broken:
        print("\n".join(broken), file=sys.stderr)
        return 1
    if given.list:
        print("\n".join(f"{mutant.name}  {mutant.file}" for mutant in mutants))
        return 0
    return execute(mutants, jobs=given.jobs, all_tests=given.all_tests)


if __name__ == "__main__":
    sys.exit(main())
