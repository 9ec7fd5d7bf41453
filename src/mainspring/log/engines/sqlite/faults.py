"""What SQLite's errors mean to a writer: the log cannot take this now, and what a person can do about it."""

from __future__ import annotations

import errno
import sqlite3

from mainspring.log.contract import LogUnavailable

_BUSY, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 8, 10, 11, 13, 14, 26  # as SQLite numbers them

_MEANING = {
    _BUSY: ("another program is writing to the log's file", "end that program: only the node may write"),
    _FULL: ("the disk is full", "free some space; writing goes on by itself"),
    _IOERR: ("the disk reported an error", "check the disk and the file system; writing goes on when it works again"),
    _CANTOPEN: ("the log's file cannot be opened", "check that the data directory exists and is writable"),
    _READONLY: ("the log's file cannot be written", "check the permissions of the data directory"),
    _CORRUPT: ("the log's file is damaged", "run `mainspring log check`, then restore from a backup"),
    _NOTADB: ("the log's file is damaged", "run `mainspring log check`, then restore from a backup"),
}


_FROM_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EIO: _IOERR,
    errno.EACCES: _READONLY,
    errno.EPERM: _READONLY,
    errno.EROFS: _READONLY,
}


def unavailable(error: Exception) -> LogUnavailable:
    """The error to give every batch of a failed commit; its cause is kept."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, OSError):
        code = _FROM_ERRNO.get(error.errno or 0, _CANTOPEN)
    primary = code & 0xFF if isinstance(code, int) else -1
    what, remedy = _MEANING.get(primary, ("the log cannot be written", "see the cause; writing is tried again"))
    fault = LogUnavailable(f"{what}: {error}", remedy=remedy)
    fault.__cause__ = error
    return fault


def connection_is_suspect(error: Exception) -> bool:
    """After these, what SQLite has in memory may not be what is on disk: open afresh before writing again.

    A full disk is not among them: SQLite took the transaction back and its state is sound.
    """
    code = getattr(error, "sqlite_errorcode", None)
    return not (isinstance(error, sqlite3.Error) and isinstance(code, int) and code & 0xFF == _FULL)
