"""The files of a log: who owns them, whether they are still there, and whether they belong together.

SQLite goes on writing to a file that was removed or replaced under its name, and says that all is well; and it takes a
write-ahead log that lies beside a database for that database's. Both would lose what was acknowledged, so both are
looked at here: the names while the log is open, the contents before it is opened.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from mainspring.log.contract import LogDamaged, LogGone, LogLocked
from mainspring.log.engines.sqlite.plan import LogState
from mainspring.log.engines.sqlite.wal import Wal, counters_of, read_wal, wal_of
from mainspring.private_files import make_private_file, narrow, open_private, sync_path

logger: logging.Logger = logging.getLogger("mainspring.log")

Identity = tuple[int, int]  # device and inode of a file

_DESCRIPTORS: Final = "/proc/self/fd"  # Linux

_AROUND: Final = ("", "-wal", "-shm", ".lock")  # what lies beside a database, and the database itself


def files_of(path: Path) -> list[Path]:
    """The database, and what SQLite and the lock keep beside it."""
    return [path.with_name(path.name + suffix) for suffix in _AROUND]


def make_private(path: Path) -> None:
    """Have the database there, for its owner alone; SQLite gives its other files the same mode."""
    make_private_file(path)
    for each in files_of(path):
        narrow(each)


class FileLock:
    """One process writes a log. The lock is the kernel's (`flock`), so it ends with the process however that ends.

    There is no stale lock to remove by hand. The file also holds the owner's pid, only so that a refusal can name it.

    Held from construction until `release`. Raises `LogLocked` when another process, or another engine, holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise LogLocked(
                f"the log at {path.parent} is in use by process {owner}",
                remedy="stop that process, or give this one its own data directory",
            ) from error
        except BaseException:
            os.close(self._descriptor)
            raise
        with suppress(OSError):  # on a full disk the lock still holds, only nameless
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """The file stays: removing it could take it from under the next owner."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class FileWatch:
    """Whether the names of open files still lead to them."""

    def __init__(self, database: Path) -> None:
        """The files must be there and open."""
        self._database, self._wal, _, lock = map(str, files_of(database))
        self._known: dict[str, _WatchedFile] = {name: _WatchedFile(name) for name in (self._database, self._wal)}
        self._also: dict[str, _WatchedFile] = {lock: _WatchedFile(lock)} if os.path.exists(lock) else {}

    @property
    def database_is_there(self) -> bool:
        return self._known[self._database].is_there()

    def look(self, *, at_lock: bool = False) -> LogGone | None:
        """Which file is gone. The lock matters to a second node only, so not every look needs to include it."""
        for name, file in self._known.items():
            if not file.is_there():
                return _gone(name)
        for name, file in self._also.items() if at_lock else ():
            if not file.is_there():
                return _gone(name)
        return None

    def close(self) -> None:
        for file in (*self._known.values(), *self._also.values()):
            file.close()


class _WatchedFile:
    """A file, held without opening it, and the name it has.

    Linux is asked for the name of the file, not for the file of the name: to `stat` a file that is being written has
    its price. On Linux 6.18 a small commit took SQLite a fifth less processor time without it (and without access
    times, see the writer); most likely because a time that somebody has seen must be stored anew with the next write.
    Nor may the database be opened and closed here, which would end SQLite's locks on it; a descriptor of the path
    alone does not.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._identity = _identity(name)
        self._descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC) if os.path.isdir(_DESCRIPTORS) else -1
        self._link = f"{_DESCRIPTORS}/{self._descriptor}"
        self._path = "" if self._descriptor < 0 else os.readlink(self._link)

    def is_there(self) -> bool:
        try:
            if self._descriptor >= 0:
                return os.readlink(self._link) == self._path
            return _identity(self._name) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # it cannot be looked at now, which says nothing
            return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _identity(name: str) -> Identity:
    found = os.stat(name)
    return found.st_dev, found.st_ino


def _gone(name: str) -> LogGone:
    what = "replaced" if os.path.exists(name) else "removed or moved"
    return LogGone(
        f"the log's file {name} was {what} while it was in use; nothing more can be stored",
        remedy="put the files back as they were, or restore a backup, and start the node again",
    )


# -- before the log is opened


def look_at_wal(path: Path) -> Wal | None:
    """The write-ahead log of a database; None when there is none that holds anything."""
    if not path.exists():
        return read_wal(wal_of(path))
    with path.open("rb") as database:
        stated = int.from_bytes(database.read(18)[16:], "big")
        page_bytes = {0: 4_096, 1: 65_536}.get(stated, stated)

        def page_of_database(page: int) -> bytes | None:
            database.seek((page - 1) * page_bytes)
            content = database.read(page_bytes)
            return content if len(content) == page_bytes else None

        return read_wal(wal_of(path), page_bytes, page_of_database)


def refuse_foreign_wal(path: Path, wal: Wal | None) -> None:
    """Without its database, or beside another one, a write-ahead log would be thrown away or do harm.

    Raises `LogDamaged`."""
    place = wal_of(path)
    if wal is None:
        return
    if not path.exists() or not path.stat().st_size:
        raise LogDamaged(
            f"{place} is there without its database {path.name}: commits that were acknowledged may be in it",
            remedy=f"put {path.name} back beside it; or, to begin anew without them, move {place.name} away",
        )
    why = _why_foreign(path, wal)
    if why:
        raise LogDamaged(
            f"{place} does not belong to the database beside it: {why}",
            remedy=f"put back the {path.name} it belongs to; or, to use the database as it is, move {place.name} away",
        )


def refuse_hidden_commits(path: Path, wal: Wal | None) -> None:
    """Raise `LogDamaged` when SQLite would drop commits that were acknowledged, because a byte before them is damaged.

    One commit at the end that is not whole may be what a loss of power left. If a single word of it is wrong, it is put
    right, for it may also have been acknowledged; otherwise it is dropped."""
    if wal is None or not wal.hidden_commits:
        return
    place = wal_of(path)
    if wal.has_lost:
        raise LogDamaged(
            f"{place} is damaged ({wal.faults[0]}) and hides {wal.hidden_commits} commits that were acknowledged; "
            "SQLite would write over them",
            remedy=f"run `mainspring log recover --data {path.parent}`: it keeps a copy, then brings them back",
        )
    if wal.can_be_mended:
        write_wal(place, wal.rewritten(trust_damaged=False))
        logger.warning("the last commit in %s was damaged (%s) and is put right", place, wal.faults[0])
    else:
        logger.warning("the last commit in %s is not whole and is dropped: it was under way at a loss of power", place)


def write_wal(place: Path, content: bytes) -> None:
    """Put a write-ahead log in the place of the one that is there, as a whole or not at all."""
    partial = place.with_name(place.name + ".partial")
    with open(partial, "wb", opener=open_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, place)
    sync_path(place.parent)


def _why_foreign(path: Path, wal: Wal) -> str:
    """Each log has a number, and counts its write-ahead logs: see `SqliteWriter`."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True)) as database:
            root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'counters'").fetchone()
            if root is None:
                return ""
            held = dict(database.execute("SELECT name, value FROM counters").fetchall())
            appended = LogState(database).count_appended()
    except sqlite3.Error:
        return ""  # opening it will say what is wrong with it
    numbered = [image for image in map(counters_of, wal.images(root[0])) if "wal" in image]
    if not numbered:
        return ""
    first, last = numbered[0], numbered[-1]
    if held.get("log", last["log"]) != last["log"]:
        return "it is of another log"
    if appended < first["base"]:
        return "the database is older, as a restored backup is"
    if held.get("wal", 0) > last["wal"]:
        return "the database is newer"
    return ""
