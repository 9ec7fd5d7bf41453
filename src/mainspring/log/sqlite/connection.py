"""How a connection to the file is set up, and why."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from mainspring.log.contract import FormatError
from mainspring.log.sqlite.schema import FORMAT, format_of

WRITER_CACHE_KB = 16_384
READER_CACHE_KB = 4_096
CHECKPOINT_PAGES = 2_000  # 8 MB of WAL: some milliseconds of copying, and rare enough not to show in throughput


def connect_writer(path: Path) -> sqlite3.Connection:
    """For the one writer. WAL: readers go on while it writes. FULL: a commit that returned is on stable storage."""
    connection = _connect(path, "rwc")
    try:
        format_of(connection)  # before anything is set: a file that is not ours stays as it is
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the platters there
        connection.execute("PRAGMA secure_delete = FAST")  # some builds overwrite every removed row otherwise
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KB}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """For reading only, beside a writer in this process or another."""
    connection = _connect(path, "ro")
    connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KB}")
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,  # transactions begin and end where the code says so
        check_same_thread=False,  # closed by another thread than the one that used it
        cached_statements=256,
        timeout=10.0,
    )


def check_format(path: Path) -> None:
    """For a reader, which cannot migrate: the file must be a log of exactly this format."""
    with closing(_connect(path, "ro")) as connection:
        found = format_of(connection)
    if found != FORMAT:
        raise FormatError(
            f"the log has format {found}; this version of Mainspring reads format {FORMAT}",
            remedy="start the node once to bring an older log up to date; for a newer one use the newer version",
        )
