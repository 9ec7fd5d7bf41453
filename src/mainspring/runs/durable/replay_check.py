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
from mainspring.runs.durable.records import RunRecord, child_id, mismatch
from mainspring.runs.durable.state import DurableState
from mainspring.runs.durable.store import History
from mainspring.runs.effects import Effect, Progress, Spawn, resume
from mainspring.runs.errors import ReplayMismatch
from mainspring.runs.groups import Perform
from mainspring.runs.handlers import EffectContext, Later, RegisteredHandler
from mainspring.runs.programs import Programs, bind, decode_arguments
from mainspring.runs.run import Failed, Run, Value
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.tree import family_of


class Verdict(msgspec.Struct):
    """What a check found out about one run; `problem` is empty when it fits."""

    id: str
    program: str
    effects: int
    problem: str = ""


class _Unwritten:
    """Stands in for the writer and the ownership: a check writes nothing."""

    keeps_notes_apart = False

    def together(self, operations: list[Operation], done: Callable[[Receipt], None]) -> None:
        done(Receipt())

    def note(self, put: Operation) -> None:
        """Notes of handlers are not checked."""


class _Anything(dict[type, RegisteredHandler]):
    """Accepts every effect, and notes the first one that the journal does not answer."""

    def __init__(self, runtime: _CheckRuntime) -> None:
        super().__init__()
        self.unanswered: list[str] = []
        self._runtime = runtime

    def get(self, effect: type, default: Any = None) -> Any:
        if not issubclass(effect, Effect) or effect is Effect:
            return default
        if effect is Progress:
            return RegisteredHandler(effect, lambda effect: None)
        return RegisteredHandler(effect, self._spawn if effect is Spawn else self._stop)

    def _spawn(self, effect: Spawn, ctx: EffectContext) -> resume:
        return resume(self._runtime.spawn(ctx.run, effect.program, tuple(effect.args)))

    def _stop(self, effect: Effect[Any], ctx: EffectContext) -> Later:
        self.unanswered.append(type(effect).__name__)
        return ctx.later()


class _CheckRuntime:
    """What `Perform` needs of a runtime: children are looked up, never started."""

    def __init__(self, programs: Programs, records: Mapping[str, RunRecord]) -> None:
        self.programs = programs
        self._records = records

    def know_step(self, step: type[Effect[Any]]) -> None:
        """Every effect is known here."""

    def spawn(self, owner: Run[Any], program: Any, args: tuple[Any, ...], *, detached: bool = False) -> Run[Any]:
        family = family_of(owner)
        family.spawned += 1
        name = self.programs.name_for(program)
        child: Run[Any] = Run(child_id(owner.id, family.spawned), name, owner.scheduler)
        record = self._records.get(child.id)
        if record is not None and record.program != name:
            raise ReplayMismatch(f"child {child.id} was {record.program} and is now {name}")
        child.done = child.announced = True
        child.decided = (record.outcome() if record is not None else None) or Value(None)
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
    unwritten: Any = _Unwritten()
    state = run.durable = DurableState(run, kept, history.journal, unwritten, unwritten)
    state.opened, state.updates = True, dict(history.updates)
    program = programs.get(record.program)
    try:
        bound = bind(program, decode_arguments(program, record.args), Perform(runtime, run))  # type: ignore[arg-type]
    except Exception as error:
        verdict.problem = f"its arguments no longer fit: {error}"
        return verdict
    scheduler.bind(run, bound)
    scheduler.live += 1
    scheduler.launch(run)
    while not scheduler.is_idle():
        scheduler.tick()
    verdict.problem = _problem(record, run, state, handlers.unanswered)
    run.cancel()
    return verdict


def _problem(record: RunRecord, run: Run[Any], state: DurableState, unanswered: list[str]) -> str:
    outcome = run.outcome_now()
    if isinstance(outcome, Failed) and isinstance(outcome.error, ReplayMismatch):
        return outcome.error.message
    if isinstance(outcome, Failed) and record.state != "failed":
        return f"it fails now: {type(outcome.error).__name__}: {outcome.error}"
    if record.state != "done":
        return ""
    if unanswered:
        return mismatch(record.id, state.position, None, unanswered[0], b"").message
    if isinstance(outcome, Value) and bytes(state.record.value) != bytes(record.value):
        return "it returns another value than before"
    return ""
