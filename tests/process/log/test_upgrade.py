"""A file of an older format is brought to the new one by processes that are killed in the middle of it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.log import StoredEvent, log_file
from mainspring.log.engines.sqlite.check import check
from tests.support.log_file import stored_events, write_rows
from tests.support.paths import ROOT

EVENTS = 12_000
PATIENCE_S = 60
SERVE = (
    "import asyncio, sys; from pathlib import Path; from mainspring.log import Log, SqliteEngine\n"
    "async def main():\n"
    "    await Log(SqliteEngine(Path(sys.argv[1]))).open()\n"
    "    await asyncio.Event().wait()\n"
    "asyncio.run(main())"
)


def rows_left(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    return int(count)


def killed_after_a_step(path: Path, *command: str) -> None:
    """Run the command until it has moved something, and kill it where it is then."""
    before = rows_left(path)
    if not before:
        return  # a fast machine was done with it
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        until = time.monotonic() + PATIENCE_S
        while rows_left(path) == before and process.poll() is None and time.monotonic() < until:
            pass
        process.kill()


@pytest.mark.parametrize("format", [1, 2])
def test_kill_9_at_any_point_loses_nothing_and_the_next_one_goes_on(tmp_path: Path, format: int) -> None:
    path = log_file(tmp_path)
    events = [
        StoredEvent("t", n % 3, 1 + n // 3, f"id-{n}", 1_000 + n, b'"%s"' % (b"x" * 200), None, None)
        for n in range(EVENTS)
    ]
    events.sort(key=lambda event: (event.partition, event.offset))
    write_rows(path, format, events)
    upgrade = ("-m", "mainspring", "log", "upgrade", "--data", str(tmp_path))
    left = []
    for command in (upgrade, ("-c", SERVE, str(path)), upgrade, ("-c", SERVE, str(path))):
        killed_after_a_step(path, *command)
        left.append(rows_left(path))
        assert stored_events(path) == events
    assert EVENTS > left[0] >= left[1] >= left[2] >= left[3]
    done = subprocess.run([sys.executable, *upgrade, "--json"], check=True, capture_output=True, cwd=ROOT)
    assert json.loads(done.stdout)["events"] == left[-1]
    assert rows_left(path) == 0
    assert stored_events(path) == events
    assert check(path).problems == []
