"""Does the program of today still fit the journals of yesterday?

A stored journal is replayed against the current program without asking any handler and without a log: every answer the
journal has is given, and the first effect it does not know ends the check. What a deployed change would do to running
runs is known before it is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from mainspring.log import Operation, Receipt
from mainspring.loop import VirtualClock
from mainspring.runs.builtin_effects import Spawn
from mainspring.runs.context import Context, Later
from mainspring.runs.durable.arguments import decode_arguments
from mainspring.runs.durable.records import ReplayMismatch, RunRecord, child_id, mismatch
from mainspring.runs.durable.state import DurableState
from mainspring.runs.durable.store import History
from mainspring.runs.effects import Effect, resume
from mainspring.runs.groups import Perform
from mainspring.runs.handlers import Handled
from mainspring.runs.outcome import Failed, Value
from mainspring.runs.programs import bind
from mainspring.runs.registry import Programs
from mainspring.runs.run import Run
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.tree import family_of


class Verdict(msgspec.Struct):
    """What a check found out about one run; `problem` is empty when it fits."""

    id: str
    program: str
    effects: int
    problem: str = ""


class _Unwritten:
    """Stands in for the log: a check writes nothing."""

    def together(self, operations: list[Operation], done: Callable[[Receipt], None]) -> None:
        done(Receipt())

    def note(self, put: Operation) -> None:
        """Notes of handlers are not checked."""


class _Anything(dict[type, Handled]):
    """Accepts every effect, and notes the first one that the journal does not answer."""

    def __init__(self, runtime: _CheckRuntime) -> None:
        super().__init__()
        self.unanswered: list[str] = []
        self._runtime = runtime

    def get(self, effect: type, default: Any = None) -> Any:
        if not (isinstance(effect, type) and issubclass(effect, Effect)):
            return default
        return Handled(effect, self._spawn if effect is Spawn else self._stop, False, None)

    def _spawn(self, effect: Spawn, ctx: Context) -> resume:
        return resume(self._runtime.spawn(ctx.run, effect.program, tuple(effect.args)))

    def _stop(self, effect: Effect[Any], ctx: Context) -> Later:
        self.unanswered.append(type(effect).__name__)
        return ctx.later()


class _CheckRuntime:
    """What `Perform` needs of a runtime: children are looked up, never started."""

    def __init__(self, programs: Programs, records: Mapping[str, RunRecord]) -> None:
        self.programs = programs
        self._records = records

    def spawn(self, owner: Run[Any], program: Any, args: tuple[Any, ...], *, detached: bool = False) -> Run[Any]:
        family = family_of(owner)
        family.spawned += 1
        name = self.programs.name_for(program)
        child: Run[Any] = Run(child_id(owner.id, family.spawned), name, owner._scheduler)
        record = self._records.get(child.id)
        if record is not None and record.program != name:
            raise ReplayMismatch(f"child {child.id} was {record.program} and is now {name}")
        child._done = child._settled = True
        child._outcome = (record.outcome() if record is not None else None) or Value(None)
        return child


def check(histories: Iterable[History], programs: Programs) -> list[Verdict]:
    """Replay each history against its program; a run without its program does not fit."""
    found = list(histories)
    records = {history.run.id: history.run for history in found}
    return [_check_one(history, programs, records) for history in found]


def _check_one(history: History, programs: Programs, records: Mapping[str, RunRecord]) -> Verdict:
    record = history.run
    verdict = Verdict(record.id, record.program, sum(entry.answered for entry in history.journal))
    if record.program not in programs:
        verdict.problem = f"no program named {record.program!r} is registered"
        return verdict
    scheduler = Scheduler(VirtualClock(), None, False, lambda error, run_id: None)
    runtime = _CheckRuntime(programs, records)
    handlers = scheduler.handlers = _Anything(runtime)
    run: Run[Any] = Run(record.id, record.program, scheduler)
    kept = msgspec.structs.replace(record)
    run._durable = DurableState(kept, history.journal, scheduler, _Unwritten())  # type: ignore[arg-type]
    run._durable.opened = True
    program = programs.get(record.program)
    try:
        bound = bind(program, decode_arguments(program, record.args), Perform(runtime, run))  # type: ignore[arg-type]
    except Exception as error:
        verdict.problem = f"its arguments no longer fit: {error}"
        return verdict
    run._send, run._close = bound.send, bound.close
    scheduler.live += 1
    scheduler.launch(run)
    while not scheduler.is_idle():
        scheduler.tick()
    verdict.problem = _problem(record, run, run._durable, handlers.unanswered)
    run.cancel()
    return verdict


def _problem(record: RunRecord, run: Run[Any], state: DurableState, unanswered: list[str]) -> str:
    outcome = run.outcome_now()
    if isinstance(outcome, Failed) and isinstance(outcome.error, ReplayMismatch):
        return outcome.error.message
    if isinstance(outcome, Failed) and record.state != "failed":
        return f"it fails now: {type(outcome.error).__name__}: {outcome.error}"
    if record.state != "value":
        return ""
    if unanswered:
        return mismatch(record.id, state.position, None, unanswered[0], b"").message
    if isinstance(outcome, Value) and bytes(state.record.value) != bytes(record.value):
        return "it returns another value than before"
    return ""
