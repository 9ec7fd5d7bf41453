"""How a connection to the file is set up, and why."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from mainspring.log.contract import FormatError
from mainspring.log.engines.sqlite.schema import FORMAT, format_of

WRITER_CACHE_KB = 16_384
READER_CACHE_KB = 4_096
CHECKPOINT_PAGES = 2_000  # 8 MB of WAL: some milliseconds of copying, and rare enough not to show in throughput
WAL_BYTES = CHECKPOINT_PAGES * (4_096 + 24) + (1 << 20)


def connect_writer(path: Path, synchronous: str = "FULL") -> sqlite3.Connection:
    """For the one writer. WAL: readers go on while it writes. FULL: a commit that returned is on stable storage.

    NORMAL: after a loss of power the file is sound, but the newest commits may be missing.
    """
    connection = _connect(path, "rwc")
    try:
        format_of(connection)  # before anything is set: a file that is not ours stays as it is
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the platters there
        connection.execute("PRAGMA secure_delete = FAST")  # some builds overwrite every removed row otherwise
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KB}")
    except BaseException:
        connection.close()
        raise
    return connection


def give_wal_its_size(path: Path) -> None:
    """Fill the WAL with zeros up to the size it will have, so that commits overwrite instead of making it grow.

    While the WAL grew, a lone commit took half as long again (380 microseconds against 248, measured in turns), most
    likely because the file system journals the growth. SQLite keeps the size once reached, but starts from nothing at
    each boot. What lies behind the last valid frame means nothing to it: a recycled WAL has old frames there. Only for
    the writer, between two commits. Left out when space is short.
    """
    wal = path.with_name(path.name + "-wal")
    with suppress(OSError):
        space = os.statvfs(path.parent)
        missing = WAL_BYTES - wal.stat().st_size
        if missing > 0 and space.f_bavail * space.f_frsize > 8 * WAL_BYTES:
            with wal.open("ab") as file:
                file.write(b"\0" * missing)
                file.flush()
                os.fsync(file.fileno())


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
