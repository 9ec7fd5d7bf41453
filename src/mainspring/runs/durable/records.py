"""What a durable run leaves in the log, and how a journal is compared with a program.

Eight spaces of records, all JSON:

    runs/live       id -> RunRecord of an unfinished run, with the node that executes it
    runs            id -> RunRecord of a finished one; a run is in one of the two, never in both
    runs/done       end time and id -> nothing; lets retention find the oldest
    journal/runs    id#index -> JournaledEffect: one effect and its answer
    runs/signals    id#name#order -> a signal that was not received yet
    runs/early      id -> EarlySignals of a run that has not started
    runs/updates    id#index#order -> an update that was made while the effect of that index was performed
    runs/progress   id -> what the run published last about its progress

On a log that several nodes share there are two more rows, both so that a write whose answer got lost can be tried
again without harm. A received signal stays as an empty row until its run is forgotten, and a handler's note stands in a
row of its own, so that an answer can always expect that none is there.

An index counts the effects of one run from 0. An entry without an answer is a note that a handler made for itself
(`ctx.remember`), for example when a sleep is over; the answer overwrites it, so that a sleep of months costs one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from mainspring.log import ABSENT, Change, Guard, Operation, Put, Reader
from mainspring.runs.errors import BadRunId, ReplayMismatch
from mainspring.runs.run import Cancelled, Failed, Outcome, Value
from mainspring.runs.values import NULL, Raw, decode, error_fields, reason_json, stored_failure
from mainspring.telemetry import error_keeping

RUNS: Final = "runs"
LIVE: Final = "runs/live"
DONE: Final = "runs/done"
JOURNAL: Final = "journal/runs"
SIGNALS: Final = "runs/signals"
EARLY: Final = "runs/early"
PROGRESS: Final = "runs/progress"
UPDATES: Final = "runs/updates"

NOTE: Final = ".note"
RECEIVED: Final = b""  # what is left of a signal on a shared log

RUNNING: Final = "running"
BLOCKED: Final = "blocked"  # its journal does not fit its program
UNFINISHED: Final = (RUNNING, BLOCKED)

_INDEX_DIGITS: Final = 8
_TIME_DIGITS: Final = 15
_LONGEST_ID: Final = 200
MOST_FAILURES: Final = 5  # failed attempts at one effect that are kept
_FORBIDDEN: Final = frozenset("#~")  # they separate an id from an index and from the number of a child


class RunRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One durable run. `state` is running, blocked, done, failed or cancelled."""

    id: str
    program: str
    args: Raw = NULL
    state: str = RUNNING
    created: int = 0  # epoch ms
    updated: int = 0
    value: Raw = NULL  # of a run that ended with a value
    error: dict[str, str] | None = None  # type, message and code of one that failed, or why it is blocked
    traceback: str = ""  # of one that failed
    reason: Raw = NULL  # of one that was cancelled
    ended_with: str | None = None  # and the run that took it along, or ""; None: a former version did not say
    owner: str | None = None  # the node that executes it, while it is unfinished
    epoch: int = 0  # of the owner's lease, where several nodes share the log; 0: it has no owner
    code: str = ""  # digest of the program's code that wrote the journal last, where several nodes share the log
    former_code: str = ""  # and the code before that one
    parent: str | None = None
    attached: bool = False  # to its parent, and so to end with it
    has_children: bool = False
    forked_from: str | None = None
    forked_at: int | None = None
    retries: int = 0
    forgotten: bool = False  # its journal is being removed, in steps
    causation: str | None = None  # the message that was being handled when it was started
    correlation: str | None = None  # and its conversation
    traceparent: str | None = None  # and its span

    def outcome(self, value_type: Any = Any) -> Outcome[Any] | None:
        """The outcome, as far as JSON keeps it; None while the run is unfinished.

        A value that a former version of the program returned may not fit the type; it is given as JSON has it.
        """
        if self.state == "done":
            try:
                return Value(decode(self.value, value_type))
            except msgspec.ValidationError:
                return Value(msgspec.json.decode(self.value))
        if self.state == "failed":
            return Failed(stored_failure(self.error or {}))
        if self.state == "cancelled":
            return Cancelled(msgspec.json.decode(self.reason))
        return None


class FailedAttempt(msgspec.Struct, omit_defaults=True):
    """An attempt at an effect that failed and was followed by another one."""

    at: int  # epoch ms when it failed
    error: dict[str, str]
    traceback: str = ""


class JournaledEffect(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One effect of a run: its name and arguments, and the answer once there is one."""

    effect: str
    args: Raw = NULL
    answered: bool = False
    value: Raw = NULL
    error: dict[str, str] | None = None  # instead of a value: how it failed, and what was raised in the program
    traceback: str = ""  # of that failure
    note: Raw = NULL  # what the handler remembered for itself
    at: int = 0  # epoch ms when it was performed
    ms: int = 0  # how long the answer took
    attempts: int = 0  # at this effect that failed or were begun, where they are counted
    begun: int = 0  # how often the last of them was begun again because a process had ended
    failures: list[FailedAttempt] = []  # the last attempts that failed, before the one that `error` is of


class EarlySignals(msgspec.Struct):
    """How many signals wait for a run that has not started, and when the last one came."""

    count: int = 0
    at: int = 0  # epoch ms


_encode_any = msgspec.json.Encoder().encode
_record_decoder = msgspec.json.Decoder(RunRecord)
_entry_decoder = msgspec.json.Decoder(JournaledEffect)


def encode_record(record: RunRecord | JournaledEffect | EarlySignals) -> bytes:
    return _encode_any(record)


def decode_record(text: bytes) -> RunRecord:
    record = _record_decoder.decode(text)
    if record.state == "value":  # what the state was called in earlier versions
        record.state = "done"
    return record


def decode_entry(text: bytes) -> JournaledEffect:
    return _entry_decoder.decode(text)


def ended_runs(change: Change) -> Iterator[RunRecord]:
    """The runs that ended with a commit: those whose record moved from the unfinished to the finished."""
    gone = {record.key for record in change.records if record.space == LIVE and record.version == ABSENT}
    for record in change.records if gone else ():
        if record.space == RUNS and record.key in gone and record.version != ABSENT:
            yield decode_record(record.value)


def check_id(run_id: Any) -> str:
    """A usable id for a durable run, or BadRunId."""
    if not isinstance(run_id, str) or not run_id or len(run_id) > _LONGEST_ID:
        raise BadRunId(f"a run id is a text of 1 to {_LONGEST_ID} characters", remedy="choose a shorter or longer id")
    if not run_id.isprintable() or _FORBIDDEN.intersection(run_id):
        raise BadRunId(
            "a run id has only printable characters and neither # nor ~", remedy="use letters, digits, - . / _"
        )
    return run_id


def entry_key(run_id: str, index: int) -> str:
    return f"{run_id}#{index:0{_INDEX_DIGITS}d}"


def note_key(run_id: str, index: int) -> str:
    """Where a note stands on a shared log: right behind the place of the answer."""
    return entry_key(run_id, index) + NOTE


def done_key(ended_ms: int, run_id: str) -> str:
    return f"{ended_ms:0{_TIME_DIGITS}d}#{run_id}"


def signal_key(run_id: str, name: str, wall_ms: int, order: int, node: str) -> str:
    """Signals of one name come in the order of their keys; nodes that send in the same millisecond do not meet."""
    return f"{run_id}#{name}#{wall_ms:0{_TIME_DIGITS}d}-{order:09d}-{node}"


def update_key(run_id: str, index: int, order: int) -> str:
    """Updates made during one effect come in the order of their keys."""
    return f"{entry_key(run_id, index)}#{order:09d}"


def child_id(parent: str, number: int) -> str:
    return f"{parent}~{number}"


def root_id(run_id: str) -> str:
    """The run at the top of the tree that a run stands in, which may be itself."""
    return run_id.partition("~")[0]


def child_number(run_id: str, parent: str) -> int | None:
    """Which child of `parent` this is; None when it is none."""
    head, mark, number = run_id.rpartition("~")
    return int(number) if mark and head == parent else None


def beginning(record: RunRecord) -> list[Operation]:
    """What must be stored for a new run: its record, if the id was never used."""
    return [Guard(RUNS, record.id, ABSENT), Put(LIVE, record.id, encode_record(record), ABSENT)]


def finish(record: RunRecord, outcome: Outcome[Any], value: bytes, wall_ms: int, ended_with: str) -> None:
    """Write the outcome into the record. `value` is the encoded value of a Value; `ended_with` is for a Cancelled."""
    record.updated, record.owner, record.epoch, record.error, record.traceback = wall_ms, None, 0, None, ""
    if isinstance(outcome, Value):
        record.state, record.value = "done", Raw(value)
    elif isinstance(outcome, Failed):
        record.state, record.error = "failed", error_fields(outcome.error)
        record.traceback = error_keeping.traceback(outcome.error)
    else:
        record.state, record.reason, record.ended_with = "cancelled", reason_json(outcome.reason), ended_with


def mismatch(
    run_id: str,
    index: int,
    entry: JournaledEffect | None,
    effect: str | None,
    args: bytes = b"",
    *,
    raised: BaseException | None = None,
) -> ReplayMismatch:
    """The readable difference between a journal and what the program did at one index."""
    did = "returned" if raised is None else f"raised {type(raised).__name__}: {raised}"
    lines = [f"run {run_id} does not fit its journal at effect {index}:"]
    lines.append(f"  journal: {_shown(entry.effect, entry.args) if entry else '(nothing more)'}")
    lines.append(f"  program: {_shown(effect, args) if effect else did}")
    if entry is not None and effect == entry.effect:
        lines += _differences(msgspec.json.decode(entry.args), msgspec.json.decode(args))
    return ReplayMismatch("\n".join(lines), remedy="restore the old order of effects, or gate the change with Version")


def other_answer(run_id: str, index: int, entry: JournaledEffect, error: Exception) -> ReplayMismatch:
    """The answer in the journal is not of the type that the effect has now."""
    return ReplayMismatch(
        f"run {run_id} does not fit its journal at effect {index}:\n"
        f"  journal: {_shown(entry.effect, entry.args)} was answered with {_cut(entry.value)}\n"
        f"  program: {error}",
        remedy=f"let {entry.effect} have its old answer too, or give the new one another name behind Version",
    )


def other_child(run_id: str, number: int, old: str, new: str) -> ReplayMismatch:
    """A child of the program is not the one that the log knows under its number."""
    return ReplayMismatch(
        f"child {number} of run {run_id} was {old} and is now {new}",
        remedy="restore the old order of children, or gate the change with Version",
    )


def _shown(effect: str, args: bytes | Raw) -> str:
    return f"{effect} {_cut(args)}"


def _cut(value: bytes | Raw) -> str:
    text = bytes(value).decode()
    return text if len(text) <= 200 else text[:200] + "..."


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            if key not in new:
                lines.append(f"  {path}{key}: only in the journal")
            elif key not in old:
                lines.append(f"  {path}{key}: only in the program")
            elif old[key] != new[key]:
                lines += _differences(old[key], new[key], f"{path}{key}.")
        return lines
    return [f"  {path.rstrip('.') or 'arguments'}: {old!r} in the journal, {new!r} in the program"]


def _read_run(key: str, value: bytes) -> None:
    if decode_record(value).id != key:
        raise ValueError("it is of another run")


def _read_json(_: str, value: bytes) -> None:
    msgspec.json.decode(value)


def _read_done(key: str, _: bytes) -> None:
    int(key.split("#", 1)[0])


def _read_signal(key: str, value: bytes) -> None:
    _, _, _ = key.split("#", 2)
    if value != RECEIVED:
        msgspec.json.decode(value)


def _read_entry(key: str, value: bytes) -> None:
    key.index("#")
    decode_entry(value)


# How each kind of record about runs is read, by space.
RECORD_READERS: Final[Mapping[str, Reader]] = {
    RUNS: _read_run,
    LIVE: _read_run,
    DONE: _read_done,
    EARLY: lambda _, value: msgspec.json.decode(value, type=EarlySignals),
    PROGRESS: _read_json,
}
# The same for what belongs to the journal of a run. Nothing of it can be left out: a run that misses some is blocked.
JOURNAL_READERS: Final[Mapping[str, Reader]] = {
    JOURNAL: _read_entry,
    SIGNALS: _read_signal,
    UPDATES: _read_signal,
}
