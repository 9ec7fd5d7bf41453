"""Whoever is told that a batch was not stored may submit it again, and it is stored once.

That is what a database's error at COMMIT means to its users; but when only the fsync failed, the commit may lie in the
write-ahead log as a whole, and the next one to open the file finds it. So for every write and every sync of a commit on
a real file: that one fails, or all from it on. The answer must agree with what is there: for the process that goes on,
after a kill, and after a loss of power in which everything is lost that the failed sync was to bring to the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.disk_faults import LASTING, Contents, contents
from tests.support.paths import ROOT
from tests.support.power_cuts import ACKS, Disk, build_recorder, read_trace

Told = dict[str, Any]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where that is possible: the syncs that matter here are those that fail."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def told(folder: Path) -> tuple[list[Told], Path, Path]:
    """Every story under every fault; the folder they happened in, and the record of it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) to build the recorder of file operations")
    trace, places = folder / "trace", folder / "places"
    places.mkdir()
    env = {
        **os.environ,
        "LD_PRELOAD": str(build_recorder(folder)),
        "POWER_CUTS_TRACE": str(trace),
        "POWER_CUTS_FOLDER": str(places),
    }
    command = [sys.executable, "-m", "tests.support.disk_faults", str(places)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], places, trace


def test_a_refused_batch_is_not_there_and_the_second_try_stores_it_once(told: tuple[list[Told], Path, Path]) -> None:
    stories, _, _ = told
    assert sum(bool(each["failed"]) for each in stories) > 200
    assert all(each["in_the_end"] for each in stories), "when the disk works again, so does the log"
    well = {each["story"]: each["after"] for each in stories if not each["failed"]}
    for each in stories:
        assert each["stored"] == (not each["failed"])
        assert each["after"] == well[each["story"]], each


def test_a_process_that_is_killed_after_its_answer_has_told_the_truth(told: tuple[list[Told], Path, Path]) -> None:
    for each in told[0]:
        if each["stored"]:
            assert each["killed"] == each["after"], each
        elif not doubtful(each):
            assert each["killed"] == each["before"], each
        else:
            assert each["fault"][1] == LASTING, "only while nothing at all can be written"


def test_a_loss_of_power_after_the_answer_takes_nothing_back(told: tuple[list[Told], Path, Path], folder: Path) -> None:
    stories, places, trace = told
    disks = {each["folder"]: Disk() for each in stories}
    expected = {
        each["folder"]: [None if doubtful(each) else each["after" if each["stored"] else "before"], each["after"]]
        for each in stories
    }
    for number, entry in enumerate(read_trace(trace.read_bytes())):
        name, _, entry.path = os.path.relpath(entry.path, places).partition("/")
        if not entry.path or entry.path.startswith(("before", "killed")):
            continue
        disks[name].play(entry)
        if entry.path == ACKS and entry.kind == "w" and (there := expected[name].pop(0)) is not None:
            place = folder / f"{number}"
            place.mkdir()
            for file, content in disks[name].state(lambda _: [], names_kept=True).items():
                (place / file).write_bytes(content)
            assert plain(contents(place / "log.sqlite3")) == there, name
    assert not any(expected.values())


def doubtful(told: Told) -> bool:
    """It was said that a crash may bring the batch back."""
    return "may bring it back" in told["says"]


def plain(found: Contents) -> Any:
    return json.loads(json.dumps(found))
