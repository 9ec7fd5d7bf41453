"""The one thread that writes.

It takes commits from a queue, plans each in memory, and puts the result into the file in one transaction. When SQLite
says no (a full disk, a failing one), the plan is abandoned: the state in memory is what it was, every batch of the
commit gets the error, and the next commit is tried as if nothing had happened.

A commit that failed may lie in the write-ahead log as a whole, when only its fsync failed. SQLite does not count it as
long as somebody has the file open; whoever opens it first finds it. So after such errors the new connection is opened
before the old one is closed, the state is read from the file, and a small commit is written over what the failed one
has left. Only then is anybody told that nothing was stored.

`BEGIN IMMEDIATE` is left out when a commit is a single statement: that is its own transaction, and two round trips to
SQLite less.

Events published under an id leave a mark, and almost every id is new. So a commit assumes that all of its marks are,
and inserts them without having looked for them first. When SQLite finds one that is there, the transaction is rolled
back, the state in memory goes back with it, and the commit is planned again with a lookup. Second tries come in groups
(a client that lost its connection sends again what was under way), so the next commits look first.

After a commit, and a few times a second, the names of the files are looked at. A commit to a file that was removed is
not acknowledged, and nothing is written from then on.

Each write-ahead log gets a number in the file, and a note of how many events there were before it. So a database and a
write-ahead log that were put together by hand are told from two that belong together (`files.refuse_foreign_wal`).
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from mainspring.errors import MainspringError
from mainspring.log.contract import Batch, LogGone, LogUnavailable, Place, Restorable, Result, lookups_for
from mainspring.log.engines.sqlite.chunks import COLUMNS
from mainspring.log.engines.sqlite.files import FileWatch
from mainspring.log.engines.sqlite.plan import (
    VERSIONS_PER_RESERVATION,
    CommitPlan,
    LogState,
    PartitionState,
    UnknownMarks,
)
from mainspring.log.engines.sqlite.rows import about_rows, any_rows
from mainspring.log.engines.sqlite.schema import (
    connect_writer,
    is_sound_mark,
    mark_checksum,
    migrate,
    preallocate_wal,
)
from mainspring.log.engines.sqlite.upkeep import FEW_CHUNKS, convert_rows, put_together, remove_below, remove_offsets
from mainspring.log.engines.sqlite.wal import wal_of

COMMITS_THAT_LOOK_FIRST = 32  # after one that found a mark it had assumed to be new
COMMITS_OF_A_BUSY_LOG = 64  # from then on it pays to preallocate the WAL; most logs of tests never get there

COMMITS_PER_UPKEEP: Final = 64
PARTITIONS_PER_UPKEEP: Final = 32

WORDS_OF_ROWS: Final = 10_000  # events of an older format between two words of how many are moved, at least

LOOK_S: Final = 0.25  # between two looks at the names of the files while nothing is written
COMMITS_PER_LOCK_LOOK: Final = 64  # while something is

_logger = logging.getLogger(__name__)

Done = Callable[[list[Result]], None]
Job = Callable[[], None]
Statement = tuple[str, Sequence[object]]
Removed = dict[PartitionState, tuple[int, int, int]]  # how many events of a partition, their bytes, its new head


class SqliteWriter:
    """Owns the writing connection and the state of the log. `submit` and `call` may be used from any thread."""

    synchronous = "FULL"
    reserves_versions = True  # by the block; without, the caller of `_store` keeps the counter of versions

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect_writer(path, self.synchronous)
        try:
            migrate(self._connection)
            self.log_state: LogState = LogState(self._connection)
            self._watch = FileWatch(path)
            self._wal = _open_quietly(wal_of(path))
        except BaseException:
            self._connection.close()
            raise
        self.gone: LogGone | None = None  # why nothing can be written any more
        self.on_gone: Callable[[LogGone], object] = lambda _: None  # called in this thread
        self._salts = b""  # of the write-ahead log that has its number
        self._appended = 0  # events that the job under way has added
        self._suspect = False
        self._commits = 0
        self._look_first = 0  # how many of the next commits look for their marks first
        self._has_rows = any_rows(self._connection)  # of an older format
        self._rows_passed_over: set[int] = set()  # partitions whose rows cannot be put into chunks
        self._rows_to_move = self._rows_moved = 0
        self._next_word = 0  # how many are moved when the log says so the next time
        self._keeps_up = True
        self._stored = 0  # transactions with events or records
        self._next_upkeep = COMMITS_PER_UPKEEP  # when so many were stored
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mainspring-log-writer", daemon=True)
        self._thread.start()

    def submit(self, batches: Sequence[Batch], done: Done) -> None:
        self._jobs.put(lambda: done(self._commit(batches)))

    def call(self, work: Callable[[SqliteWriter], object], done: Callable[[object], None]) -> None:
        """Do something rarer; `done` gets what it returned, or the error."""
        self._jobs.put(lambda: done(self._call(work)))

    def stop(self) -> None:
        """Finish what is queued, close the file, end the thread."""
        if not self._watch.database_is_there:
            # Closing would fold the write-ahead log into a file that has no name, and remove, by name, files that may
            # be another log's by now. The thread holds the connection until the process ends.
            return
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        self._watch.close()
        os.close(self._wal)

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=LOOK_S)
            except Empty:
                self._look(at_lock=True)
                while self._jobs.empty() and self.keep_up():
                    pass
                continue
            if job is None:
                return
            self._appended = 0
            try:
                job()
            except Exception:  # only handing over can fail here, when the receiver is gone
                _logger.exception("a commit's result could not be handed over")
            self._after_job()

    def _after_job(self) -> None:
        self._number_wal()
        if self._stored >= self._next_upkeep and self._jobs.empty():
            self.keep_up()
        if self._commits == COMMITS_OF_A_BUSY_LOG:
            self._commits += 1
            preallocate_wal(self._path)

    def keep_up(self) -> bool:
        """One step of upkeep, in this thread; False: there is nothing to do now."""
        if self.gone is not None or self._suspect or not self._keeps_up:
            return False
        self._next_upkeep = self._stored + COMMITS_PER_UPKEEP
        try:
            if self._has_rows and self._move_rows():
                return True
            loose = (state for state in self.log_state.partitions.values() if state.loose > FEW_CHUNKS)
            for state in islice(loose, PARTITIONS_PER_UPKEEP):
                if put_together(self._connection, state):
                    return True
            return next(loose, None) is not None
        except sqlite3.Error as error:
            self._failed(error)
        except Exception as error:  # this thread must live: everything waits for it
            self._failed(error)
            self._keeps_up = False
            _logger.exception("the log's small chunks are left as they are until the node is started again")
        return False

    def _move_rows(self) -> bool:
        """One step from rows to chunks; says now and then how far that is."""
        if not self._rows_to_move:
            bases = [state.base for state in self.log_state.partitions.values()]
            self._rows_to_move = about_rows(self._connection, bases)
            self._next_word = 0
        moved = convert_rows(self._connection, self.log_state, self._rows_passed_over)
        self._rows_moved += moved
        self._has_rows = bool(moved)
        if self._rows_moved >= self._next_word or not moved:
            done, total = self._rows_moved, max(self._rows_moved, self._rows_to_move)
            self._next_word = done + max(WORDS_OF_ROWS, total // 10)
            _logger.info(
                "the log's file has an older format: %d of about %d events moved%s",
                done,
                total,
                "" if moved else "; done",
            )
        return self._has_rows

    def _look(self, *, at_lock: bool) -> None:
        if self.gone is None:
            self.gone = self._watch.look(at_lock=at_lock)
            if self.gone is not None:
                self.on_gone(self.gone)

    def _read_salts(self) -> bytes:
        """What tells this write-ahead log from the one before; empty until something is written."""
        return os.pread(self._wal, 8, 16)

    def _number_wal(self) -> bool:
        """SQLite begins the write-ahead log anew when everything in it is in the database. False: it cannot write."""
        salts = self._read_salts()
        if salts == self._salts or self.gone is not None:
            return True
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(NUMBER_LOG)
            self._connection.execute(NUMBER_WAL, (self.log_state.count_appended() - self._appended,))
            self._connection.execute("COMMIT")
            self._salts = salts
        except sqlite3.Error as error:
            self._failed(error)
            return False
        return True

    # -- commits

    def _commit(self, batches: Sequence[Batch]) -> list[Result]:
        try:
            self._reopen_if_suspect()
            if self._look_first:
                self._look_first -= 1
                results = self._carry_out(self._plan(batches), batches)
            else:
                results = self._assume_and_carry_out(batches)
        except Exception as error:
            return [self._failed_commit(error)] * len(batches)
        self._commits += 1
        self._look(at_lock=not self._commits % COMMITS_PER_LOCK_LOOK)
        return results if self.gone is None else [self.gone] * len(batches)

    def _assume_and_carry_out(self, batches: Sequence[Batch]) -> list[Result]:
        plan = self._plan(batches, assume_new_marks=True)
        try:
            return self._carry_out(plan, batches)
        except UnknownMarks:
            pass
        except sqlite3.IntegrityError:
            if not plan.marks:
                raise
            self._connection.execute("ROLLBACK")
            self._look_first = COMMITS_THAT_LOOK_FIRST
        return self._carry_out(self._plan(batches), batches)

    def _carry_out(self, plan: CommitPlan, batches: Sequence[Batch]) -> list[Result]:
        """Whatever it raises, the state in memory is then what it was."""
        try:
            results: list[Result] = [plan.add(batch) for batch in batches]
            self._store(plan)
        except BaseException:
            plan.abandon()
            raise
        return results

    def _plan(self, batches: Sequence[Batch], *, assume_new_marks: bool = False) -> CommitPlan:
        places, marked = lookups_for(batches, of_marks=not assume_new_marks)
        versions = {place: version for place, (version,) in ask(self._connection, FIND_VERSIONS, places)}
        marks = {}
        for place, (pos, until, crc) in ask(self._connection, FIND_MARKS, marked):
            if is_sound_mark(*place, pos, until, crc):
                marks[place] = (pos, until)
            else:  # it may lead to another event; without it, this one is stored
                _logger.error("the mark of %r in topic %r is damaged and is written anew", place[1], place[0])
        return CommitPlan(self.log_state, versions, marks, assumes_new_marks=assume_new_marks)

    def _store(self, plan: CommitPlan, also: Sequence[Statement] = ()) -> None:
        """Put the plan into the file, and `also` with it."""
        self._stored += 1
        work = [*self._statements(plan), *also]
        removed: Removed = {}
        log_state = self.log_state
        reserve = self.reserves_versions and bool(plan.records) and log_state.version > log_state.reserved_version
        if len(work) == 1 and not plan.removals and not reserve:
            self._connection.execute(*work[0])
        elif work or plan.removals:
            self._connection.execute("BEGIN IMMEDIATE")
            for statement, values in work:
                self._connection.execute(statement, values)
            if reserve:
                self._connection.execute(RESERVE_VERSIONS, (log_state.version + VERSIONS_PER_RESERVATION,))
            for state, below, offsets in plan.removals:
                self._remove(state, below, offsets, removed)
            self._connection.execute("COMMIT")
        if reserve:
            log_state.reserved_version = log_state.version + VERSIONS_PER_RESERVATION
        for state, (count, size, head) in removed.items():
            state.removed += count
            state.removed_bytes += size
            state.head = head
        self._appended += plan.events
        plan.settle()

    def _statements(self, plan: CommitPlan) -> list[Statement]:
        work: list[Statement] = []
        fresh = plan.new_partitions()
        if fresh:
            rows = [value for state in fresh for value in (state.id, state.topic, state.partition, 0, 0, None, 0, 0, 1)]
            work += statements_for(INSERT_PARTITIONS, 9, rows)
        work += insert_chunks(plan.chunk_values())
        if plan.records:
            written, deleted = plan.record_values()
            written[4::5] = as_blobs(written[4::5])
            for space, keys in deleted.items():
                work += ((statement, (space, *some)) for statement, some in statements_for(DELETE_RECORDS, 1, keys))
            work += statements_for(WRITE_RECORDS, 5, written)
        if plan.marks or plan.mark_values:
            marks = plan.mark_values + [
                value
                for (topic, dedupe), (pos, until) in plan.marks.items()
                for value in (topic, dedupe, pos, until, mark_checksum(topic, dedupe, pos, until))
            ]
            work += statements_for(ADD_MARKS if plan.assumes_new_marks else WRITE_MARKS, 5, marks)
        return work

    def _remove(self, state: PartitionState, below: int, offsets: tuple[int, ...], removed: Removed) -> None:
        count, size, head = removed.get(state, (0, 0, state.head))
        if below > head:
            more, more_bytes, head = remove_below(self._connection, state.base, head, below)
            count, size = count + more, size + more_bytes
        if offsets:
            more, more_bytes = remove_offsets(self._connection, state.base, head, offsets)
            count, size = count + more, size + more_bytes
        removed[state] = (count, size, head)
        self._connection.execute(
            UPDATE_PARTITION,
            (state.tail, state.total, state.high_ts, state.removed + count, state.removed_bytes + size, head, state.id),
        )

    # -- the rest

    def _call(self, work: Callable[[SqliteWriter], object]) -> object:
        try:
            self._reopen_if_suspect()
            return work(self)
        except Exception as error:
            self._suspect = True  # the work may have moved the state
            return self._failed(error)

    def forget_marks(self, now: int) -> int:
        """In this thread: see `call`."""
        return self._connection.execute("DELETE FROM marks WHERE until < ?", (now,)).rowcount

    def restore(self, items: Iterable[Restorable]) -> None:
        """In this thread: see `call`. Raises `Refused`."""
        self._store(self._restoring(items))

    def _restoring(self, items: Iterable[Restorable]) -> CommitPlan:
        plan = CommitPlan(self.log_state, {}, {})
        for item in items:
            plan.restore(item)
        return plan

    def _failed(self, error: Exception) -> MainspringError:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._suspect = True
        if connection_is_suspect(error):
            self._suspect = True
        return error if isinstance(error, MainspringError) else unavailable(error)

    def _failed_commit(self, error: Exception) -> MainspringError:
        """See to it that nothing of the commit is found in the file, also not after a crash."""
        fault = self._failed(error)
        if not self._suspect or self.gone is not None:
            return fault
        try:
            self._reopen_if_suspect()
            self._salts, self._appended = b"", 0
            if self._number_wal():
                return fault
        except (sqlite3.Error, OSError, LogGone) as again:
            self._failed(again)
        left = "nothing was stored, but a crash before the disk works again may bring it back"
        return LogUnavailable(f"{fault.message}; {left}", remedy=fault.remedy)

    def _reopen_if_suspect(self) -> None:
        """After a suspect error: what the file says counts, not what was remembered. Raises `LogGone`."""
        if self._suspect:
            self._look(at_lock=True)
        if self.gone is not None:
            raise self.gone
        if not self._suspect:
            return
        suspect, self._connection = self._connection, connect_writer(self._path, self.synchronous)
        suspect.close()  # not before: who opens a file that nobody has open finds what the failed commit has left there
        self.log_state.reload(self._connection)
        self._suspect = False


def _open_quietly(path: Path) -> int:
    """For reading, and reading leaves no time of it behind: storing that would cost the next commit."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # it is another user's
        return os.open(path, flags)


# -- many rows in one statement
#
# A statement for n rows is prepared once and kept. Any number of rows is made of powers of two, so that a handful of
# prepared statements serve every commit.
#
# What is bound matters as much as how often: Python's sqlite3 takes texts, numbers and bytearrays as they are, but
# looks for an adapter, in vain and slowly, for every `bytes` and every `None`. So columns that are empty in a whole
# commit are left out of its statements, and bytes go in as bytearrays. With 2,048 events to a commit that took the
# processor time of an insert from 2.4 to 1.3 microseconds per event.

MOST_ROWS = 512  # beyond this a statement gains nothing and its parameters take memory

COPIED_BYTES = 16_384  # copying more takes longer than the search for an adapter

INSERT_CHUNKS = "INSERT INTO chunks VALUES {rows}"
INSERT_PARTITIONS = "INSERT INTO partitions VALUES {rows}"
WRITE_RECORDS = (
    "INSERT INTO records VALUES {rows} ON CONFLICT (space, key) DO UPDATE "
    "SET version = excluded.version, crc = excluded.crc, value = excluded.value"
)
DELETE_RECORDS = "DELETE FROM records WHERE space = ? AND key IN ({rows})"  # by pairs SQLite would scan the table
ADD_MARKS = "INSERT INTO marks VALUES {rows}"  # fails when one is there already
WRITE_MARKS = "INSERT OR REPLACE INTO marks VALUES {rows}"
FIND_VERSIONS = (
    "WITH asked(n, space, key) AS (VALUES {rows}) SELECT group_concat(n || ' ' || version, ',') "
    "FROM asked CROSS JOIN records r ON r.space = asked.space AND r.key = asked.key"
)
FIND_MARKS = (
    "WITH asked(n, topic, dedupe) AS (VALUES {rows}) "
    "SELECT group_concat(n || ' ' || pos || ' ' || until || ' ' || ifnull(crc, -1), ',') "
    "FROM asked CROSS JOIN marks m ON m.topic = asked.topic AND m.dedupe = asked.dedupe"
)
UPDATE_PARTITION = (
    "UPDATE partitions SET tail = ?, total = ?, high_ts = ?, removed = ?, removed_bytes = ?, head = ? WHERE id = ?"
)
RESERVE_VERSIONS = "INSERT OR REPLACE INTO counters VALUES ('version', ?)"
NUMBER_LOG = "INSERT OR IGNORE INTO counters VALUES ('log', random() >> 1)"
NUMBER_WAL = (
    "INSERT OR REPLACE INTO counters SELECT 'wal', 1 + ifnull(max(value), 0) FROM counters WHERE name = 'wal' "
    "UNION ALL SELECT 'base', ?"
)


@cache
def _statement(template: str, width: int, rows: int) -> str:
    row = f"({', '.join('?' * width)})"
    return template.format(rows=", ".join([row] * rows))


def statements_for(template: str, width: int, values: Sequence[object]) -> Iterator[tuple[str, Sequence[object]]]:
    """The statements that apply `template` to all of `values`, `width` of them to a row."""
    start, rows = 0, len(values) // width
    while rows:
        piece = min(MOST_ROWS, 1 << (rows.bit_length() - 1))
        yield _statement(template, width, piece), values[start : start + piece * width]
        start += piece * width
        rows -= piece


def insert_chunks(values: list[object]) -> Iterator[Statement]:
    """The statements that insert chunks, whose values are in the order of `COLUMNS`."""
    width = len(COLUMNS)
    for column in (width - 2, width - 1):
        values[column::width] = as_blobs(values[column::width])
    return statements_for(INSERT_CHUNKS, width, values)


def as_blobs(column: Iterable[Any]) -> list[object]:
    """The same bytes (or None), in the type that is bound fastest; large ones stay, for a copy would cost more."""
    return [value if value is None or len(value) > COPIED_BYTES else bytearray(value) for value in column]


def ask(connection: sqlite3.Connection, template: str, asked: Iterable[Place]) -> Iterator[tuple[Place, list[int]]]:
    """Each place that exists, with the numbers the template selects. One step for each statement."""
    places = list(asked)
    values = [value for n, place in enumerate(places) for value in (n, *place)]
    for statement, piece in statements_for(template, 3, values):
        (found,) = connection.execute(statement, piece).fetchone()
        for answer in found.split(",") if found else ():
            n, *numbers = map(int, answer.split())
            yield places[n], numbers


# -- what SQLite's errors mean, and what a person can do about them

_BUSY, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 8, 10, 11, 13, 14, 26  # as SQLite numbers them

_UNREADABLE = (  # a passing error of the disk looks like that, too
    "run `mainspring log check`: if it finds nothing, the disk had a passing error; otherwise restore from a backup"
)
_MEANING = {
    _BUSY: ("another program is writing to the log's file", "end that program: only the node may write"),
    _FULL: ("the disk is full", "free some space; writing goes on by itself"),
    _IOERR: ("the disk reported an error", "check the disk and the file system; writing goes on when it works again"),
    _CANTOPEN: ("the log's file cannot be opened", "check that the data directory exists and is writable"),
    _READONLY: ("the log's file cannot be written", "check the permissions of the data directory"),
    _CORRUPT: ("the log's file could not be read as it should be", _UNREADABLE),
    _NOTADB: ("the log's file could not be read as it should be", _UNREADABLE),
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
