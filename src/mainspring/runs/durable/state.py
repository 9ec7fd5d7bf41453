"""What a durable run has besides an ordinary one: the journal is written before the program goes on.

A durable run differs from another in three moments. When an effect is performed, the journal may already know the
answer: then the handler is not asked (replay). When an answer comes, it is written down first, and only what is written
is given to the program. When the run ends, the outcome is written down first, and only then announced. Between these
moments it is an ordinary run of the ordinary scheduler.

The answers of all runs that came in one turn of the host go into one batch (`writer.py`). An effect whose handler
writes to the log itself (`ctx.batch`) gets a batch of its own, with its answer in it: both are stored or neither, which
makes such effects exactly-once. All others are at-least-once: after a crash between the handler's work and the write,
the handler is asked again, with the same `ctx.key`.

On a log that several nodes share, a batch of its own says what it expects: that the answer is not there yet, or that
the run's record is the one this node wrote. What a refusal then means is for the ownership to find out
(`cluster/ownership.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainspring.log import ABSENT, ANY_VERSION, Batch, Delete, Operation, Put, Receipt, Refused
from mainspring.runs.durable.questions import Answering, apply_stored
from mainspring.runs.durable.records import (
    BLOCKED,
    DONE,
    JOURNAL,
    LIVE,
    MOST_FAILURES,
    PROGRESS,
    RUNS,
    SIGNALS,
    FailedAttempt,
    JournaledEffect,
    RunRecord,
    done_key,
    encode_record,
    entry_key,
    finish,
    mismatch,
    note_key,
    other_answer,
)
from mainspring.runs.effects import GroupEnd, Join, Until, Version, answer_type, journal_arguments
from mainspring.runs.errors import HandlerDied, ReplayMismatch, TakenOver, Unserialisable
from mainspring.runs.run import FAILURE, RESUME, VALUE, Failed, Outcome, Run, Value
from mainspring.runs.tree import Family, family_of
from mainspring.runs.values import NULL, Raw, decode, encode, error_fields, usable
from mainspring.telemetry import error_keeping

if TYPE_CHECKING:
    from mainspring.runs.cluster.ownership import Ownership
    from mainspring.runs.durable.store import LoadedRun, StoredUpdate
    from mainspring.runs.durable.writer import JournalWriter
    from mainspring.runs.handlers import RegisteredHandler

logger: logging.Logger = logging.getLogger("mainspring.runs")

_SCALARS = frozenset({type(None), bool, int, str})
_answer_types: dict[type, Any] = {}


def _answer_type(effect: type) -> Any:
    try:
        return _answer_types[effect]
    except KeyError:
        found = _answer_types[effect] = usable(answer_type(effect))
        return found


class DurableState:
    """The journal of one run, what is left to replay of it, and what is to be written next."""

    __slots__ = (
        "_args",
        "_at",
        "_batch",
        "_begun",
        "_consumed",
        "_effect",
        "_failures",
        "_has_note_row",
        "_ownership",
        "_run",
        "_scheduler",
        "_value",
        "_versions",
        "_writer",
        "after_commit",
        "answering",
        "attempt",
        "cancelled_by",
        "children",
        "counted",
        "ended_with",
        "entries",
        "misfit",
        "note",
        "noted",
        "opened",
        "position",
        "record",
        "rewriting",
        "updated",
        "updates",
        "version",
    )

    def __init__(
        self,
        run: Run[Any],
        record: RunRecord,
        entries: list[JournaledEffect] | None,
        writer: JournalWriter,
        ownership: Ownership,
    ) -> None:
        self.record: RunRecord = record
        self.version: int = ANY_VERSION  # of its record, where others could change it
        self.noted: int = ABSENT  # version of a note in the place of the next answer
        self.entries = entries  # what is left to replay; None once that is done, and for a new run
        self.opened: bool = False  # its record is in the log
        self.position: int = 0  # the index of the next effect
        self.children: dict[str, LoadedRun] = {}  # what the log knew of its children when it was loaded
        self.misfit: ReplayMismatch | None = None  # why it cannot go on with the program as it is
        self.answering: Answering | None = None  # what others may ask and change
        self.updates: dict[int, list[StoredUpdate]] | None = None  # to be applied again, by the index of the effect
        self.updated: int = 0  # updates made so far
        self.rewriting: bool = False  # its record is being written anew: an end waits for that
        self.note: Raw = NULL
        self.attempt: int = 1  # at the effect that is being performed
        self.counted: bool = False  # the log says that this attempt was begun, because it may end the process
        self.cancelled_by: str = ""  # the record that asked for its cancellation
        self.ended_with: str = ""  # the run that took it along, when that is known before it ends
        self.after_commit: list[Callable[[Receipt], object]] = []
        self._run = run
        self._scheduler = run.scheduler
        self._writer = writer
        self._ownership = ownership
        self._has_note_row = False  # the effect has a note in a row of its own
        self._batch: Batch | None = None
        self._begun = 0  # how often the effect was begun again because a process had ended
        self._consumed: list[Operation] = []
        self._effect: type = object
        self._failures: list[FailedAttempt] = []  # of the effect that is being performed
        self._args = b""
        self._at = -1  # epoch ms when the effect was performed, once that is known
        self._value = b"null"
        self._versions: dict[str, int] | None = None

    @property
    def batch(self) -> Batch:
        """What is stored together with the answer to come."""
        if self._batch is None:
            self._batch = Batch()
        return self._batch

    def forget_writes(self) -> None:
        """The attempt that made them failed."""
        self._batch = None
        self.after_commit.clear()

    @property
    def replaying(self) -> bool:
        """Whether the journal has answers that were not given yet."""
        return self.entries is not None and self.position < len(self.entries)

    def consume(self, signal: str) -> None:
        """The answer to come uses up a signal: its record goes in the same batch."""
        self._consumed.append(self._ownership.received(self._run, signal))

    def remember(self, note: Any) -> None:
        """Write a note under the effect's index; the answer will overwrite it, or remove it from a row of its own."""
        self.note = Raw(encode(note, "note"))
        self._writer.note(self._noted(self.attempt if self.counted else self.attempt - 1))

    def _noted(self, attempts: int) -> Put:
        """What is known of an effect before it is answered."""
        entry = JournaledEffect(effect=self._effect.__name__, args=Raw(self._args), note=self.note, at=self._at)
        entry.attempts, entry.begun, entry.failures = attempts, self._begun, self._failures
        self._has_note_row = self._ownership.keeps_notes_apart
        key = (note_key if self._has_note_row else entry_key)(self._run.id, self.position)
        return Put(JOURNAL, key, encode_record(entry))

    def publish_progress(self, value: Any) -> None:
        """Store what the run says of its progress; what a replay says again is known."""
        if not self.replaying:
            self._writer.note(Put(PROGRESS, self._run.id, encode(value, "progress")))

    def pending(self, performing: bool) -> JournaledEffect | None:
        """The effect whose answer is awaited, as the journal would have it."""
        if not performing or self.replaying or self._at < 0:
            return None
        args = Raw(self._args)
        return JournaledEffect(
            effect=self._effect.__name__, args=args, note=self.note, at=self._at, attempts=self.attempt - 1
        )

    def attempt_failed(self, error: Exception) -> None:
        """Another attempt follows; a restart meanwhile does not begin with the first."""
        failed = FailedAttempt(self._scheduler.clock.wall_ms(), error_fields(error), error_keeping.traceback(error))
        self._failures = [*self._failures[1 - MOST_FAILURES :], failed]
        self._begun, self.counted = 0, False
        self._writer.note(self._noted(self.attempt))
        self.attempt += 1

    def take_back_begun(self) -> None:
        """The node stops in order: the effect that was begun again has not ended the process."""
        if self.counted:
            self._begun, self.counted = self._begun - 1, False
            self._writer.note(self._noted(self.attempt - 1))

    # -- performing

    def perform(self, effect: Any, handler: RegisteredHandler) -> None:
        """An effect: answered from the journal, or by its handler."""
        run = self._run
        try:
            self._args = journal_arguments(effect)
        except Unserialisable as error:
            self._scheduler.bring(run, FAILURE, error)
            return
        self._effect = type(effect)
        self._at = -1
        self.note = NULL
        self.attempt = 1
        self._begun = 0
        self._has_note_row = False
        most: int | None = None
        if self.entries is not None:
            if self._replay(effect, handler.name):
                return
            if self.updates is not None:
                apply_stored(run, self.updates.pop(self.position, []))
            self.entries, most = None, handler.most_begun(effect)  # it may be the one that ended the process
            if self.record.state == BLOCKED:
                self._scheduler.on_fit(run, None)
        if self._versions is not None and isinstance(effect, Version) and effect.name in self._versions:
            self._scheduler.enqueue(run, RESUME, self._versions[effect.name])
            return
        if self._scheduler.finishing:
            return
        if run.family is not None and run.family.unseen:
            joins = effect.run if isinstance(effect, Join | Until) else None
            if run.family.cut_short(joins, handler.name):
                return
        if self._at < 0:
            self._at = self._scheduler.clock.wall_ms()
        if most is None:
            handler.ask(run, effect)
        else:
            self._begin_again(effect, handler, most)

    def _begin_again(self, effect: Any, handler: RegisteredHandler, most: int) -> None:
        """Perform the effect that a process ended with, or could have.

        One that had been begun again when the process ended once more waits until it can be performed alone.
        """
        run, position = self._run, self.position
        if self.attempt > most:
            text = f"the process ended {most} times while {handler.name} was performed or was to be tried again"
            logger.error("run %s: %s", run.id, text)
            self._scheduler.given_up += 1
            handler.give_up(run, HandlerDied(text, remedy="look for what ends the process, then retry the run"))
            return
        if not self._begun:
            self._count_and_ask(effect, handler)
            return

        def begin() -> bool:
            self._count_and_ask(effect, handler)
            return True

        self._scheduler.suspects.add(self._begun, begin, lambda: run.done or self.position != position)

    def _count_and_ask(self, effect: Any, handler: RegisteredHandler) -> None:
        """First it is stored that the effect is begun again, then its handler is asked."""
        run, position = self._run, self.position
        self._begun += 1
        self.counted = True

        def ask() -> None:
            if not run.done and self.position == position:
                handler.ask(run, effect)

        def stored(result: Receipt | Exception) -> None:
            if not isinstance(result, TakenOver):
                self._ownership.when_certain(ask)

        self._writer.alone([self._noted(self.attempt)], stored)

    def when_certain(self, call: Callable[[], object]) -> None:
        """Call once it is certain that this node may still execute the run, or when the run is not its own any more."""
        self._ownership.when_certain(call)

    def _replay(self, effect: Any, name: str) -> bool:
        """Answer from the journal if it can; False when the handler must be asked."""
        run, entries = self._run, self.entries or []
        if self.misfit is not None:
            self._scheduler.bring(run, FAILURE, self.misfit)
            return True
        if isinstance(effect, Version) and not self._recorded(effect):
            self._scheduler.enqueue(run, RESUME, self._version(effect.name, 1))
            return True
        if not isinstance(effect, Version):
            self._skip_gates()
        if self.position >= len(entries):
            return False
        entry = entries[self.position]
        if entry.effect != name or (bytes(entry.args) != self._args and not isinstance(effect, Version)):
            error = mismatch(run.id, self.position, entry, name, self._args)
            self._scheduler.bring(run, FAILURE, error)
            return True
        if not entry.answered:
            self.note, self._at, self.attempt = entry.note, entry.at, entry.attempts + 1
            self._begun, self._failures = entry.begun, entry.failures
            self._has_note_row = self._ownership.keeps_notes_apart
            return False
        if self.updates is not None:
            apply_stored(run, self.updates.pop(self.position, []))
        if entry.error is not None:
            self.position += 1
            if run.family is not None:
                run.family.failure_known(entry.error.get("run", ""))
            self._scheduler.enqueue(run, RESUME, self._scheduler.to_raise(run, name, entry.error))
            return True
        try:
            answer = self._decoded(entry.value)
        except Exception as error:
            raise other_answer(run.id, self.position, entry, error) from error
        self.position += 1
        if isinstance(effect, Version):
            self._version(effect.name, answer)
        elif run.family is not None:
            self._note_children(run.family, effect, answer)
        self._scheduler.enqueue(run, RESUME, answer)
        return True

    def _note_children(self, family: Family, effect: Any, answer: Any) -> None:
        """What an answer in the journal says about children; the handler, which would have noted it, is not asked."""
        if isinstance(effect, Join) or (isinstance(effect, Until) and answer[0]):
            family_of(effect.run).observed = True
        elif isinstance(effect, GroupEnd):
            family.group_ended(effect.group)

    def _recorded(self, effect: Version) -> bool:
        """Whether this gate's version is in the journal here, or nothing is: then the gate is passed now."""
        if self._versions is not None and effect.name in self._versions:
            return False
        entries = self.entries or []
        if self.position >= len(entries):
            return True
        entry = entries[self.position]
        return entry.effect == "Version" and decode(entry.args).get("name") == effect.name

    def _version(self, name: str, found: int) -> int:
        if self._versions is None:
            self._versions = {}
        return self._versions.setdefault(name, found)

    def _skip_gates(self) -> None:
        """A gate that the program no longer has is not a difference."""
        entries = self.entries or []
        while self.position < len(entries) and entries[self.position].effect == "Version":
            self.position += 1

    def _decoded(self, text: Raw | bytes) -> Any:
        load = getattr(self._effect, "__load__", None)
        return load(decode(text)) if load is not None else decode(text, _answer_type(self._effect))

    # -- answers

    def bring(self, brings: int, value: Any) -> None:
        """Write an answer down, then queue it; endings are queued, and written when they take effect."""
        try:
            if brings == RESUME:
                self._answer(value)
                return
            if self.entries is not None:
                self._require_all_replayed(value if brings == FAILURE else None)
            if brings == VALUE:
                self._value = encode(value, "return value")
        except Exception as error:
            brings, value = FAILURE, error
        self._scheduler.enqueue(self._run, brings, value)

    def _require_all_replayed(self, raised: BaseException | None) -> None:
        """A program that ends before its journal does is not the one that wrote it."""
        if self.misfit is not None:
            raise self.misfit
        if isinstance(raised, ReplayMismatch) or not isinstance(raised, Exception | None):
            return
        self._skip_gates()
        if self.replaying:
            entry = (self.entries or [])[self.position]
            raise mismatch(self._run.id, self.position, entry, None, raised=raised)

    def begin_anew(self) -> None:
        """Forget what the last execution did: the program is executed again from its first step."""
        self.position, self.attempt, self.note, self.misfit, self.answering = 0, 1, NULL, None, None
        self._failures = []
        self._batch, self._consumed, self._versions, self._has_note_row = None, [], None, False
        self.after_commit.clear()
        family = self._run.family
        if family is not None:
            family.spawned, family.unseen, family.failed = 0, [], []

    def _answer(self, value: Any) -> None:
        effect = self._effect
        dump = getattr(effect, "__dump__", None)
        if value.__class__ in _SCALARS and dump is None:
            text = encode(value, f"answer of {effect.__name__}", _answer_type(effect))
        else:
            stored = value if dump is None else dump(value)
            text = encode(stored, f"answer of {effect.__name__}", _answer_type(effect))
            value = self._decoded(text)
        if effect is Version:
            self._version(decode(self._args)["name"], value)
        entry = JournaledEffect(
            effect=effect.__name__,
            args=Raw(self._args),
            answered=True,
            value=Raw(text),
            at=self._at,
            ms=max(0, self._scheduler.clock.wall_ms() - self._at),
        )
        self._store(entry, value)

    def effect_failed(self, effect: str, fields: dict[str, str], traceback: str) -> None:
        """Write a failure down, then raise it in the program. What the handler wanted to write goes with it."""
        self.forget_writes()
        entry = JournaledEffect(effect=self._effect.__name__, args=Raw(self._args), answered=True, error=fields)
        entry.traceback = traceback
        entry.at, entry.ms = self._at, max(0, self._scheduler.clock.wall_ms() - self._at)
        self._store(entry, self._scheduler.to_raise(self._run, effect, fields))

    def _store(self, entry: JournaledEffect, answer: Any) -> None:
        """Write the entry of this effect; the run goes on with `answer` when it is stored."""
        run = self._run
        if self.attempt > 1:
            entry.attempts, entry.failures, self._failures = self.attempt, self._failures, []
        key = entry_key(run.id, self.position)
        if self._batch is None and not self._consumed:
            self._writer.answer(Put(JOURNAL, key, encode_record(entry)), run, answer)
        else:
            put = Put(JOURNAL, key, encode_record(entry), self._ownership.expected(self.noted))
            stored = self._after(lambda error: self._stored(answer, put, error))
            self._writer.alone([put, *self._own_writes()], stored)
        self.noted, self.counted = ABSENT, False
        if self._has_note_row:
            self._has_note_row = False
            self._writer.note(Delete(JOURNAL, note_key(run.id, self.position)))
        self.position += 1

    def _own_writes(self) -> list[Operation]:
        operations = [*(self._batch.operations if self._batch is not None else ()), *self._consumed]
        self._batch, self._consumed = None, []
        return operations

    def _after(self, then: Callable[[Exception | None], None]) -> Callable[[Receipt | Exception], None]:
        callbacks, self.after_commit = self.after_commit, []

        def stored(result: Receipt | Exception) -> None:
            if isinstance(result, Exception):
                then(result)
                return
            for callback in callbacks:
                callback(result)
            then(None)

        return stored

    def _stored(self, value: Any, put: Put, error: Exception | None) -> None:
        if self._run.done:
            self._scheduler.late_completions += 1
        elif error is None:
            self._scheduler.enqueue(self._run, RESUME, value)
        elif isinstance(error, Refused):
            self._ownership.answer_refused(self._run, value, put, error)
        else:
            self._scheduler.enqueue(self._run, FAILURE, error)

    # -- the end

    def settle(self, outcome: Outcome[Any]) -> None:
        """Write the outcome down, then announce it. A run whose record is being written waits for that."""
        if not self.opened or self.rewriting:
            return
        run, wall = self._run, self._scheduler.clock.wall_ms()
        ended_with = self.ended_with if run.family is None else run.family.taken_by or self.ended_with
        finish(self.record, outcome, self._value, wall, ended_with)
        operations: list[Operation] = [
            Delete(LIVE, run.id, self.version),
            Put(RUNS, run.id, encode_record(self.record)),
            Put(DONE, done_key(wall, run.id), b"null"),
        ]
        if self.cancelled_by:
            operations.append(Delete(SIGNALS, self.cancelled_by))
        own = self._own_writes()
        if own and isinstance(outcome, Value):
            self._writer.alone([*operations, *own], self._after(lambda error: self._ended(error, True)))
        else:
            self._writer.together(operations, self._after(lambda error: self._ended(error, False)))

    def _ended(self, error: Exception | None, had_own_writes: bool) -> None:
        if error is None:
            self._scheduler.announce(self._run)
        elif isinstance(error, TakenOver):
            return  # its handle gets the outcome from the log
        elif isinstance(error, Refused):
            self._ownership.ending_refused(self._run, had_own_writes, error)
        else:
            self.cannot_be_stored(error)

    def cannot_be_stored(self, error: Exception) -> None:
        """The log does not take the outcome: the value, or what a handler wanted to write with it, fails the run."""
        if isinstance(self._run.decided, Value):
            self._run.decided = Failed(error)
            self.settle(self._run.decided)
        else:
            logger.error("the outcome of run %s cannot be stored; it goes on after a restart: %s", self._run.id, error)


class FencedState(DurableState):
    """Of a run on a log that several nodes share: an effect begins only while the node's lease is certain.

    A node that was stopped for longer than its lease may have lost its runs. What it had under way cannot be stored
    then, but what a handler does outside the log cannot be taken back.
    """

    __slots__ = ()

    def perform(self, effect: Any, handler: RegisteredHandler) -> None:
        if self._ownership.is_certain():
            super().perform(effect, handler)
            return
        scheduler, run, steps = self._scheduler, self._run, self._run.steps
        begin = super().perform

        def go_on() -> None:
            if not run.done and run.steps == steps:
                begin(effect, handler)

        self._ownership.when_certain(lambda: scheduler.timer(0, go_on))
