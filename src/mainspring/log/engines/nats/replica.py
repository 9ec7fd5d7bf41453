"""This node's copy of the log: a SQLite file to which the stream's messages are applied, one after the other.

Applying is deterministic. What a commit expects is checked here, not by the server: every node comes to the same
offsets, versions and refusals because it sees the same messages in the same order, whatever it groups into one
transaction. Most events come in batches that expect nothing: where their writer was right about the end of their
partition, the chunks it packed are stored as they are (`sqlite/appends.py`). The number of the last message applied is
written in the same transaction as its effects, so that after any crash the replica goes on exactly behind what it
holds.

The file is written with `synchronous = NORMAL`: it is never torn, but a loss of power may cost its newest
transactions. Nothing is lost by that, since the stream still has them. (`OFF` would save one fsync for every 8 MB, and
could leave a file that is quietly wrong.)

A writer numbers what it sends. A message whose number is not above the last one of its writer comes too late (the
network kept it while the writer gave up on it and went on) and is passed over, on every node. Numbers are
remembered for an hour of the stream's own time; deleting them later changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Appended,
    Batch,
    Change,
    DamagedEvent,
    DamagedRecord,
    FormatError,
    LogUnavailable,
    Operation,
    Receipt,
    Refused,
    Result,
    change_of,
)
from mainspring.log.engines.nats import encoding
from mainspring.log.engines.nats.encoding import CommitItem, Snapshot, StreamEnvelope
from mainspring.log.engines.nats.history import SeenHistory, StreamMessage, numbers_of
from mainspring.log.engines.sqlite.appends import AppendRun, unreadable_run
from mainspring.log.engines.sqlite.engine import SqliteEngine
from mainspring.log.engines.sqlite.files import look_at_wal, refuse_foreign_wal
from mainspring.log.engines.sqlite.plan import CommitPlan, UnknownMarks
from mainspring.log.engines.sqlite.reader import SqliteReader
from mainspring.log.engines.sqlite.writer import COMMITS_THAT_LOOK_FIRST, SqliteWriter, Statement
from mainspring.private_files import FILE_MODE

T = TypeVar("T")

REMEMBERED_MS: Final = 3_600_000
_BROKEN: Final = (11, 26)  # SQLite's numbers for a damaged file and for a file that is not a database
MOST_OPERATIONS: Final = 8_192  # in one transaction while catching up

_TABLES = """
CREATE TABLE IF NOT EXISTS replica (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writers (
    writer TEXT PRIMARY KEY, number INTEGER NOT NULL, ts INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    writer TEXT NOT NULL, number INTEGER NOT NULL, part INTEGER NOT NULL, ts INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (writer, number, part)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claim (writer TEXT NOT NULL);
"""
_KEEP = "INSERT OR REPLACE INTO replica VALUES ('applied', ?), ('ts', ?), ('grown', ?), ('mark', ?), ('digest', ?)"
_KEEP_ONE = "INSERT OR REPLACE INTO replica VALUES (?, ?)"
_KEEP_WRITER = "INSERT OR REPLACE INTO writers VALUES (?, ?, ?)"
_KEEP_PART = "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)"
_FIND_PARTS = "SELECT body FROM parts WHERE writer = ? AND number = ? AND ts >= ? ORDER BY part"
_DROP_PARTS = "DELETE FROM parts WHERE writer = ? AND number <= ?"
_KEEP_VERSION = "INSERT OR REPLACE INTO counters VALUES ('version', ?)"


class ApplyOutcome(msgspec.Struct):
    """What applying a message came to. `passed_over`: it came too late, or was not whole."""

    message: StreamMessage
    passed_over: bool = False
    results: list[Result] = []  # of this node's own commit
    came_to: list[int] = []  # the same in numbers, of any node's
    changes: list[Change] = []
    digest: bytes = b""  # of the history up to this message
    doubted: bool = False  # its writer has another history, or came to other results
    value: object = None  # of a message that is not a commit: a count, whether a claim was granted, an error


class DecodedCommit(NamedTuple):
    """A message with a whole commit, and what is in it."""

    message: StreamMessage
    items: Sequence[CommitItem]

    @classmethod
    def of(cls, message: StreamMessage) -> DecodedCommit:
        assert message.envelope is not None
        items = [
            item if not isinstance(item, AppendRun) or item.is_sound() else unreadable_run()
            for item in encoding.decode_commit(message.envelope)
        ]
        return cls(message, items)

    def count_operations(self) -> int:
        return sum(
            [
                len(item) if type(item) is list else item.count_events() if type(item) is AppendRun else 0
                for item in self.items
            ]
        )

    def to_look_up(self, *, marks_of_runs: bool) -> Iterator[Batch]:
        """The batches that may depend on what the file holds. What runs append depends on marks at most."""
        for item in self.items:
            if type(item) is list:
                yield Batch(item)
            elif marks_of_runs and type(item) is AppendRun and item.marks:
                yield from map(Batch, item.batches())


class AppliedCommit:
    """A commit that is being applied: what its batches come to, and what they change."""

    def __init__(self, plan: CommitPlan, commit: DecodedCommit, *, own: bool, report: bool) -> None:
        self._plan = plan
        self._own = own
        self._report = report
        self._results: list[Result] = []
        self._came_to: list[int] = []
        self._changes: list[Change] = []
        for item in commit.items:
            if isinstance(item, AppendRun):
                self._add_run(item)
            else:
                self._add(item)

    def outcome(self, message: StreamMessage) -> ApplyOutcome:
        return ApplyOutcome(message, results=self._results, came_to=self._came_to, changes=self._changes)

    def _add(self, operations: list[Operation] | Refused) -> None:
        batch = Batch() if isinstance(operations, Refused) else Batch(operations)
        result = operations if isinstance(operations, Refused) else self._plan.add(batch)
        self._came_to += numbers_of(result)
        if self._own:
            self._results.append(result)
        if self._report and isinstance(result, Receipt):
            self._changes.append(change_of(batch, result, own=self._own))

    def _add_run(self, run: AppendRun) -> None:
        if not self._plan.add_run(run):
            for batch in run.batches():
                self._add(batch)
            return
        self._came_to += run.offsets()
        if self._own:
            self._results += run.receipts()
        if self._report:
            appended = [Appended(place.topic, place.partition, place.tail + 1, place.last) for place in run.places]
            self._changes.append(Change(self._own, tuple(appended)))


class ReplicaState(msgspec.Struct):
    """Where the replica stands. `stream` says which stream it belongs to; `grown`: bytes since the last snapshot."""

    stream: str = ""
    applied: int = 0
    ts: int = 0
    mark: str = ""  # of the last message applied; empty in a replica of an older version
    digest: bytes = b""
    grown: int = 0
    snapshot: Snapshot | None = None
    claimed: int = 0  # when a node last began a snapshot that is not there yet


class ReplicaWriter(SqliteWriter):
    """The one thread that writes the replica's file."""

    synchronous = "NORMAL"
    reserves_versions = False  # every node must give the same ones, so the counter is exact

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.me = ""  # the name under which this node writes
        self._connection.executescript(_TABLES)
        self.state: ReplicaState = ReplicaState()
        self.history: SeenHistory = SeenHistory()
        self._writers: dict[str, tuple[int, int]] = {}
        self._believe_file()

    def _believe_file(self) -> None:
        kept = dict(self._connection.execute("SELECT name, value FROM replica").fetchall())
        made = kept.pop("snapshot", None)
        self.state = ReplicaState(**kept, snapshot=None if made is None else encoding.decode_snapshot(made))
        self.history = SeenHistory(self.state.applied, self.state.mark, self.state.digest)
        rows = self._connection.execute("SELECT writer, number, ts FROM writers").fetchall()
        self._writers = {writer: (number, ts) for writer, number, ts in rows}

    def _reopen_if_suspect(self) -> None:
        suspect = self._suspect
        super()._reopen_if_suspect()
        if suspect:
            self._believe_file()

    def belong_to(self, stream: str) -> None:
        self._connection.execute(_KEEP_ONE, ("stream", stream))
        self.state.stream = stream

    # -- applying

    def apply(
        self,
        messages: Sequence[StreamMessage],
        *,
        report: bool,
        done: Callable[[list[ApplyOutcome], MainspringError | None], None],
    ) -> None:
        """Apply in order. `done` gets the outcomes of those that were, and why the rest was not: try that again.

        `report`: whether the outcomes should say what changed.
        """
        self._jobs.put(lambda: done(*self._apply(messages, report)))

    def _apply(
        self, messages: Sequence[StreamMessage], report: bool
    ) -> tuple[list[ApplyOutcome], MainspringError | None]:
        outcomes: list[ApplyOutcome] = []
        try:
            self._reopen_if_suspect()
            self._expect(messages[0])
            start = 0
            while start < len(messages):
                commits = self._commits_together(messages, start)
                if commits:
                    outcomes += self._apply_commits(commits, report)
                else:
                    outcomes += self._apply_other(messages[start], report)
                start = len(outcomes)
        except Exception as error:
            fault = self._failed(error)
            self._suspect = True  # what was begun may have moved more than the transaction took back
            return outcomes, fault
        return outcomes, None

    def _expect(self, message: StreamMessage) -> None:
        """A commit that failed with an error and is in the file nevertheless: what it changed was never reported."""
        if message.seq <= self.state.applied:
            raise FormatError(
                f"message {message.seq} was applied although the disk reported an error",
                remedy="check the disk, then restart the node",
            )

    def _commits_together(self, messages: Sequence[StreamMessage], start: int) -> list[DecodedCommit]:
        """Whole commits that follow each other and may share a transaction."""
        together: list[DecodedCommit] = []
        numbers: dict[str, int] = {}
        operations = 0
        for message in messages[start:]:
            envelope = message.envelope
            if envelope is None or envelope.kind != encoding.COMMIT or envelope.parts != 1:
                break
            if envelope.number <= max(numbers.get(envelope.writer, 0), self._last_number(envelope.writer, message.ts)):
                break
            numbers[envelope.writer] = envelope.number
            commit = DecodedCommit.of(message)
            operations += commit.count_operations()
            if together and operations > MOST_OPERATIONS:
                break
            together.append(commit)
        return together

    def _apply_commits(self, commits: list[DecodedCommit], report: bool) -> list[ApplyOutcome]:
        """Marks are assumed to be new, as in `SqliteWriter`."""
        if self._look_first:
            self._look_first -= 1
        else:
            try:
                return self._decide_and_store(commits, report, assume_new_marks=True)
            except UnknownMarks:
                pass
            except sqlite3.IntegrityError:
                self._connection.execute("ROLLBACK")
                self._look_first = COMMITS_THAT_LOOK_FIRST
        return self._decide_and_store(commits, report, assume_new_marks=False)

    def _decide_and_store(
        self, commits: list[DecodedCommit], report: bool, *, assume_new_marks: bool
    ) -> list[ApplyOutcome]:
        asked = [batch for commit in commits for batch in commit.to_look_up(marks_of_runs=not assume_new_marks)]
        plan = self._plan(asked, assume_new_marks=assume_new_marks)
        outcomes = []
        try:
            for commit in commits:
                message = commit.message
                assert message.envelope is not None
                own = message.envelope.writer == self.me
                outcomes.append(AppliedCommit(plan, commit, own=own, report=report).outcome(message))
            self._store_messages(plan, outcomes)
        except BaseException:
            plan.abandon()
            raise
        return outcomes

    def _store_messages(self, plan: CommitPlan, outcomes: list[ApplyOutcome]) -> None:
        steps = self.history.after([(outcome.message, outcome.came_to) for outcome in outcomes])
        also = self._bookkeeping(outcomes, steps)
        if plan.records:
            also.append((_KEEP_VERSION, (self.log_state.version,)))
        self._store(plan, also)
        self._moved(outcomes, steps)

    def _apply_other(self, message: StreamMessage, report: bool) -> list[ApplyOutcome]:
        envelope = message.envelope
        if envelope is None or envelope.number <= self._last_number(envelope.writer, message.ts):
            return [self._in_transaction(ApplyOutcome(message, passed_over=True), count_writer=False)]
        if envelope.parts == 1:
            return [self._apply_whole(message, envelope, report)]
        if envelope.part < envelope.parts - 1:
            keep = partial(self._keep_part, message, envelope)
            return [self._in_transaction(ApplyOutcome(message), keep, count_writer=False)]
        asked = (envelope.writer, envelope.number, message.ts - REMEMBERED_MS)
        parts = [body for (body,) in self._connection.execute(_FIND_PARTS, asked)]
        if len(parts) != envelope.parts - 1:
            return [self._in_transaction(ApplyOutcome(message, passed_over=True))]
        whole = msgspec.structs.replace(envelope, body=b"".join((*parts, envelope.body)))
        return [self._apply_whole(msgspec.structs.replace(message, envelope=whole), whole, report)]

    def _keep_part(self, message: StreamMessage, envelope: StreamEnvelope) -> None:
        row = (envelope.writer, envelope.number, envelope.part, message.ts, envelope.body)
        self._connection.execute(_KEEP_PART, row)

    def _apply_whole(self, message: StreamMessage, envelope: StreamEnvelope, report: bool) -> ApplyOutcome:
        if envelope.kind == encoding.COMMIT:
            (outcome,) = self._apply_commits([DecodedCommit.of(message)], report)
            return outcome
        work = {
            encoding.FORGET: lambda _, body: self.forget_marks(encoding.decode_time(body)),
            encoding.CLAIM: self._claim,
            encoding.SNAPSHOT: self._note_snapshot,
        }.get(envelope.kind)
        if work is None and envelope.kind != encoding.RESTORE:
            return self._in_transaction(ApplyOutcome(message, passed_over=True))
        outcome = ApplyOutcome(message)
        try:
            if work is None:
                self._store_messages(self._restoring(encoding.decode_restorables(envelope.body)), [outcome])
                return outcome
            return self._in_transaction(outcome, lambda: work(message, envelope.body))
        except (Refused, msgspec.DecodeError, UnicodeError, OverflowError) as error:
            self._failed(error)
            self._suspect = True  # the work may have moved the log_state
            self._reopen_if_suspect()
            refused = error if isinstance(error, Refused) else Refused(f"it cannot be stored: {error}")
            return self._in_transaction(ApplyOutcome(message), lambda: refused)

    def _in_transaction(
        self, outcome: ApplyOutcome, work: Callable[[], object] = lambda: None, *, count_writer: bool = True
    ) -> ApplyOutcome:
        """Do the work, whose result is the outcome's value, and note that the message is applied."""
        steps = self.history.after([(outcome.message, ())])
        self._connection.execute("BEGIN IMMEDIATE")
        outcome.value = work()
        for statement in self._bookkeeping([outcome], steps, count_writer=count_writer):
            self._connection.execute(*statement)
        self._connection.execute("COMMIT")
        self._moved([outcome], steps, count_writer=count_writer)
        return outcome

    # -- what is not a commit

    def _claim(self, message: StreamMessage, body: bytes) -> bool:
        """Granted unless another node is making one. A claim lapses that led to nothing and was not renewed."""
        wait_ms = encoding.decode_time(body)
        writer = "" if message.envelope is None else message.envelope.writer
        (claimer,) = self._connection.execute("SELECT max(writer) FROM claim").fetchone()
        if self.state.claimed and message.ts - self.state.claimed < wait_ms and writer != claimer:
            return False
        self._connection.execute("DELETE FROM claim")
        self._connection.execute("INSERT INTO claim VALUES (?)", (writer,))
        self._connection.execute(_KEEP_ONE, ("claimed", message.ts))
        self.state.claimed = message.ts
        return True

    def _note_snapshot(self, message: StreamMessage, body: bytes) -> Snapshot | None:
        """The newest snapshot counts; what the stream grew by since then is what came after this message, nearly."""
        made = encoding.decode_snapshot(body)
        self._connection.execute(_KEEP_ONE, ("claimed", 0))
        self.state.claimed = 0
        if self.state.snapshot is not None and made.seq <= self.state.snapshot.seq:
            return None
        self._connection.execute(_KEEP_ONE, ("snapshot", body))
        self.state.snapshot = made
        self.state.grown = 0
        return made

    # -- where it stands

    def _last_number(self, writer: str, ts: int) -> int:
        number, at = self._writers.get(writer, (0, 0))
        return number if ts - at <= REMEMBERED_MS else 0

    def _bookkeeping(
        self, outcomes: list[ApplyOutcome], steps: list[tuple[int, str, bytes]], *, count_writer: bool = True
    ) -> list[Statement]:
        messages = [outcome.message for outcome in outcomes]
        last = messages[-1]
        grown = self.state.grown + sum(message.size for message in messages)
        work: list[Statement] = [(_KEEP, (last.seq, last.ts, grown, *steps[-1][1:]))]
        if count_writer:
            newest = {e.envelope.writer: (e.envelope.number, e.ts) for e in messages if e.envelope is not None}
            work += [(_KEEP_WRITER, (writer, *seen)) for writer, seen in newest.items()]
            work += [
                (_DROP_PARTS, (e.writer, e.number)) for message in messages if (e := message.envelope) and e.parts > 1
            ]
        if last.ts // REMEMBERED_MS != self.state.ts // REMEMBERED_MS:
            old = (last.ts - 2 * REMEMBERED_MS,)
            work += [("DELETE FROM writers WHERE ts < ?", old), ("DELETE FROM parts WHERE ts < ?", old)]
        return work

    def _moved(
        self, outcomes: list[ApplyOutcome], steps: list[tuple[int, str, bytes]], *, count_writer: bool = True
    ) -> None:
        """The transaction is done: what was planned is now true."""
        self.history.move(steps)
        for outcome, (_, _, digest) in zip(outcomes, steps, strict=True):
            message = outcome.message
            outcome.digest = digest
            outcome.doubted = self.history.differs(message.envelope)
            self.state.grown += message.size
            if count_writer and message.envelope is not None:
                self._writers[message.envelope.writer] = (message.envelope.number, message.ts)
        self.state.applied, self.state.ts = outcomes[-1].message.seq, outcomes[-1].message.ts


class Replica(SqliteEngine):
    """The replica as an engine to read from. It is written only by `apply`."""

    def _look_before_opening(self) -> None:
        """What SQLite does not see of the write-ahead log comes again from the stream."""
        refuse_foreign_wal(self.path, look_at_wal(self.path))

    def _make_writer(self) -> ReplicaWriter:
        return ReplicaWriter(self.path)

    @property
    def suspect(self) -> Path:
        """A file that exists once damage was seen: the next opening then makes the replica again."""
        return self.path.with_name(self.path.name + ".suspect")

    @property
    def diverged(self) -> Path:
        """A file that says why this replica is of another history than the stream: the next opening puts it aside."""
        return self.path.with_name(self.path.name + ".diverged")

    def damaged_by(self, error: BaseException | None) -> bool:
        """Whether an error of SQLite, or what it led to, says that the file itself is damaged."""
        while error is not None:
            if getattr(error, "sqlite_errorcode", -1) & 0xFF in _BROKEN:
                return True
            error = error.__cause__
        return False

    def _with_reader(self, work: Callable[[SqliteReader], T]) -> T:
        try:
            return super()._with_reader(work)
        except (DamagedEvent, DamagedRecord):
            with suppress(OSError):
                self.suspect.touch(FILE_MODE)
            raise

    @property
    def writer(self) -> ReplicaWriter:
        if not isinstance(self._writer, ReplicaWriter):
            raise LogUnavailable("the log is not open", remedy="open it first")
        return self._writer

    @property
    def state(self) -> ReplicaState:
        return self.writer.state
