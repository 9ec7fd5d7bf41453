"""The one thread that writes.

It takes commits from a queue, plans each in memory, and puts the result into the file in one transaction. When SQLite
says no (a full disk, a failing one), the plan is abandoned: the ledger is what it was, every batch of the commit gets
the error, and the next commit is tried as if nothing had happened. After errors that leave SQLite's own state in doubt,
the connection and the ledger are made afresh first.

`BEGIN IMMEDIATE` is left out when a commit is a single statement: that is its own transaction, and two round trips to
SQLite less.

Events published under an id leave a mark, and almost every id is new. So a commit supposes that all of its marks are,
and inserts them without having looked for them first. When SQLite finds one that is there, the transaction is rolled
back, the ledger goes back with it, and the commit is planned again with a look. Second tries come in groups (a client
that lost its connection sends again what was under way), so the next commits look first.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

from mainspring.errors import MainspringError
from mainspring.log.contract import Batch, Result
from mainspring.log.engines.sqlite import statements as sql
from mainspring.log.engines.sqlite.connection import connect_writer, give_wal_its_size
from mainspring.log.engines.sqlite.faults import connection_is_suspect, unavailable
from mainspring.log.engines.sqlite.known_state import VERSIONS_PER_RESERVATION, Ledger, Slot
from mainspring.log.engines.sqlite.plan import Found, Place, Plan, UnknownMarks, questions
from mainspring.log.engines.sqlite.schema import migrate

COMMITS_THAT_LOOK_FIRST = 32  # after one that found a mark it had supposed to be new
COMMITS_OF_A_BUSY_LOG = 64  # from then on it pays to give the WAL its size; most logs of tests never get there

_logger = logging.getLogger(__name__)

Done = Callable[[list[Result]], None]
Job = Callable[[], None]
Statement = tuple[str, Sequence[object]]


class Writer:
    """Owns the writing connection and the ledger. `submit` and `call` may be used from any thread."""

    synchronous = "FULL"
    reserves_versions = True  # by the block; without, whoever calls `_store` keeps the counter of versions

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect_writer(path, self.synchronous)
        try:
            migrate(self._connection)
            self.ledger: Ledger = Ledger(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._suspect = False
        self._commits = 0
        self._looking_first = 0  # commits left that do not suppose their marks to be new
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mainspring-log-writer", daemon=True)
        self._thread.start()

    def submit(self, batches: Sequence[Batch], done: Done) -> None:
        self._jobs.put(lambda: done(self._commit(batches)))

    def call(self, work: Callable[[sqlite3.Connection, Ledger], object], done: Callable[[object], None]) -> None:
        """Do something rarer, in a transaction of its own; `done` gets what it returned, or the error."""
        self._jobs.put(lambda: done(self._call(work)))

    def stop(self) -> None:
        """Finish what is queued, close the file, end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # only telling can fail here, when the one to tell is gone
                _logger.exception("a commit's result could not be handed over")
            if self._commits == COMMITS_OF_A_BUSY_LOG:
                self._commits += 1
                give_wal_its_size(self._path)

    # -- commits

    def _commit(self, batches: Sequence[Batch]) -> list[Result]:
        try:
            self._make_sound()
            if self._looking_first:
                self._looking_first -= 1
                results = self._carry_out(self._plan(batches), batches)
            else:
                results = self._suppose_and_carry_out(batches)
        except Exception as error:
            return [self._failed(error)] * len(batches)
        self._commits += 1
        return results

    def _suppose_and_carry_out(self, batches: Sequence[Batch]) -> list[Result]:
        plan = self._plan(batches, suppose_new_marks=True)
        try:
            return self._carry_out(plan, batches)
        except UnknownMarks:
            pass
        except sqlite3.IntegrityError:
            if not plan.marks:
                raise
            self._connection.execute("ROLLBACK")
            self._looking_first = COMMITS_THAT_LOOK_FIRST
        return self._carry_out(self._plan(batches), batches)

    def _carry_out(self, plan: Plan, batches: Sequence[Batch]) -> list[Result]:
        """Whatever is raised, the ledger is then what it was."""
        try:
            results: list[Result] = [plan.add(batch) for batch in batches]
            self._store(plan)
        except BaseException:
            plan.abandon()
            raise
        return results

    def _plan(self, batches: Sequence[Batch], *, suppose_new_marks: bool = False) -> Plan:
        asked_versions, asked_marks = questions(batches, of_marks=not suppose_new_marks)
        versions: dict[Place, int] = {}
        if asked_versions:
            places = list(asked_versions)
            for n, (version,) in sql.ask(self._connection, sql.FIND_VERSIONS, places).items():
                versions[places[n]] = version
        if suppose_new_marks:
            return Plan(self.ledger, versions, None)
        marks: dict[Place, Found] = {}
        if asked_marks:
            places = list(asked_marks)
            for n, (pos, until) in sql.ask(self._connection, sql.FIND_MARKS, places).items():
                marks[places[n]] = (pos, until)
        return Plan(self.ledger, versions, marks)

    def _store(self, plan: Plan, also: Sequence[Statement] = ()) -> None:
        """Put the plan into the file, and `also` with it."""
        work = [*self._statements(plan), *also]
        removed: dict[Slot, tuple[int, int]] = {}
        reserve = self.reserves_versions and bool(plan.records) and self.ledger.version > self.ledger.reserved_version
        if len(work) == 1 and not plan.removals and not reserve:
            self._connection.execute(*work[0])
        elif work or plan.removals:
            self._connection.execute("BEGIN IMMEDIATE")
            for statement, values in work:
                self._connection.execute(statement, values)
            if reserve:
                self._connection.execute(sql.RESERVE_VERSIONS, (self.ledger.version + VERSIONS_PER_RESERVATION,))
            for slot, below, offsets in plan.removals:
                self._remove(slot, below, offsets, removed)
            self._connection.execute("COMMIT")
        if reserve:
            self.ledger.reserved_version = self.ledger.version + VERSIONS_PER_RESERVATION
        for slot, (count, size) in removed.items():
            slot.removed += count
            slot.removed_bytes += size
        plan.settle()

    def _statements(self, plan: Plan) -> list[Statement]:
        work: list[Statement] = []
        fresh = plan.new_slots()
        if fresh:
            rows = [value for slot in fresh for value in (slot.id, slot.topic, slot.partition, 0, 0, None, 0, 0)]
            work += sql.pieces(sql.INSERT_PARTITIONS, 8, rows)
        work += sql.insert_events(plan.event_values)
        if plan.records:
            written, deleted = plan.record_values()
            written[4::5] = sql.as_blobs(written[4::5])
            for space, keys in deleted.items():
                work += ((statement, (space, *some)) for statement, some in sql.pieces(sql.DELETE_RECORDS, 1, keys))
            work += sql.pieces(sql.WRITE_RECORDS, 5, written)
        if plan.marks:
            rows = [value for place, found in plan.marks.items() for value in (*place, *found)]
            work += sql.pieces(sql.ADD_MARKS if plan.supposes_new_marks else sql.WRITE_MARKS, 4, rows)
        return work

    def _remove(self, slot: Slot, below: int, offsets: tuple[int, ...], removed: dict[Slot, tuple[int, int]]) -> None:
        work: list[tuple[str, str, Sequence[object]]] = []
        if below > 1:
            work.append((sql.MEASURE_RANGE, sql.DELETE_RANGE, (slot.base, slot.base + below)))
        if offsets:
            places = [slot.base + offset for offset in set(offsets)]
            for (measure, values), (delete, _) in zip(
                sql.pieces(sql.MEASURE_OFFSETS, 1, places), sql.pieces(sql.DELETE_OFFSETS, 1, places), strict=True
            ):
                work.append((measure, delete, values))
        count, size = removed.get(slot, (0, 0))
        for measure, delete, values in work:
            more, more_size = self._connection.execute(measure, values).fetchone()
            if more:
                self._connection.execute(delete, values)
                count, size = count + more, size + more_size
        removed[slot] = (count, size)
        self._connection.execute(
            sql.UPDATE_PARTITION,
            (slot.tail, slot.total, slot.high_ts, slot.removed + count, slot.removed_bytes + size, slot.id),
        )

    # -- the rest

    def _call(self, work: Callable[[sqlite3.Connection, Ledger], object]) -> object:
        try:
            self._make_sound()
            self._connection.execute("BEGIN IMMEDIATE")
            result = work(self._connection, self.ledger)
            self._connection.execute("COMMIT")
        except Exception as error:
            self._suspect = True  # the work may have moved the ledger
            return self._failed(error)
        return result

    def _failed(self, error: Exception) -> MainspringError:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._suspect = True
        if connection_is_suspect(error):
            self._suspect = True
        return error if isinstance(error, MainspringError) else unavailable(error)

    def _make_sound(self) -> None:
        """After a suspect error: what the file says counts, not what was remembered."""
        if not self._suspect:
            return
        self._connection.close()
        self._connection = connect_writer(self._path, self.synchronous)
        self.ledger.reload(self._connection)
        self._suspect = False
