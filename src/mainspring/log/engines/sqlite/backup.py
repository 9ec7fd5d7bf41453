"""A backup of a log that is being written.

It is SQLite's own online backup, from one moment in time. The copy is read inside one read transaction, so what
the node writes meanwhile is not in it and the backup never has to start again. It is written under another name, made
durable, and only then given its own: a file with the name asked for is a whole backup. While it runs, the node's WAL
cannot be folded back and grows by what is published meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from mainspring.log.contract import FormatError, LogExists, Progress, silent
from mainspring.log.engines.sqlite.schema import check_format, connect_reader
from mainspring.log.engines.sqlite.writer import unavailable

PAGES_PER_STEP = 2_000


def backup(source: Path, target: Path, progress: Progress = silent) -> int:
    """Copy the log at `source` to `target`, which must not exist; the copy's size in bytes."""
    if target.exists():
        raise LogExists(f"{target} exists already", remedy="name a file that does not exist yet")
    partial = target.with_name(target.name + ".partial")
    try:
        check_format(source)
        partial.unlink(missing_ok=True)
        _copy(source, partial, progress)
        _make_durable(partial)
        os.replace(partial, target)
        _make_durable(target.parent)
    except (sqlite3.Error, OSError) as error:
        partial.unlink(missing_ok=True)
        raise unavailable(error) from error
    except FormatError:
        partial.unlink(missing_ok=True)
        raise
    return target.stat().st_size


def _copy(source: Path, partial: Path, progress: Progress) -> None:
    def step(status: int, remaining: int, total: int) -> None:
        progress("pages", total - remaining, total)

    with closing(connect_reader(source)) as reading, closing(sqlite3.connect(partial)) as writing:
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM format").fetchone()  # the moment in time begins with the first read
        reading.backup(writing, pages=PAGES_PER_STEP, progress=step)
        reading.execute("COMMIT")


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
