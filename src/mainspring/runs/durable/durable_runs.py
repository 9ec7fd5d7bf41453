"""The durable runs of one runtime: finding them, going on with them, letting go of them.

How they begin is in `starting.py`, how unfinished ones are found again in `recovery.py`, what people do to them in
`operations.py`. What entitles the node to all this is its ownership (`cluster/ownership.py`).

Children of a durable run are durable, with ids counted by their parent, so that a parent that is executed again finds
the same children. They are brought back by their parent's own execution, never behind its back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from mainspring.cluster import Cluster
from mainspring.log import ABSENT, Batch, KeptRecord, Log, Operation, Refused
from mainspring.loop import BackgroundTasks, Clock, resolve
from mainspring.runs.cluster.ownership import Ownership, SharedOwnership
from mainspring.runs.durable.blocked import BlockedRuns, Keep
from mainspring.runs.durable.listing import RunListing
from mainspring.runs.durable.operations import forget, fork, retry
from mainspring.runs.durable.questions import Questions
from mainspring.runs.durable.records import (
    BLOCKED,
    RUNNING,
    RUNS,
    UNFINISHED,
    RunRecord,
    beginning,
    child_id,
    decode_record,
    other_child,
)
from mainspring.runs.durable.recovery import RunRecovery, adopt_detached, end_attached, end_below
from mainspring.runs.durable.signals import BY_HAND, CANCEL, FAIL, RETRY, DurableSignals
from mainspring.runs.durable.starting import Starting
from mainspring.runs.durable.state import DurableState
from mainspring.runs.durable.store import History, LoadedRun, RunStore
from mainspring.runs.durable.writer import JournalWriter, Result
from mainspring.runs.errors import FailedByHand, UnknownRun
from mainspring.runs.lineage import of_record
from mainspring.runs.programs import Program, Programs, decode_arguments, encode_arguments, return_type
from mainspring.runs.run import Cancelled, Failed, Outcome, Run
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.signals import Mailboxes
from mainspring.runs.tree import family_of, taken_along_by
from mainspring.runs.values import Raw
from mainspring.telemetry import handling, tracing

Binder = Callable[[Run[Any], Program, tuple[Any, ...]], None]

logger: logging.Logger = logging.getLogger("mainspring.runs")


class DurableRuns:
    """The durable side of one runtime."""

    def __init__(
        self,
        log: Log,
        scheduler: Scheduler,
        programs: Programs,
        mailboxes: Mailboxes,
        runs: dict[str, Run[Any]],
        bind: Binder,
        *,
        node: str,
        source: random.Random,
        cluster: Cluster | None,
        recovery_ms: int,
        retention_ms: int | None,
        early_signal_ms: int,
    ) -> None:
        """With a `cluster` other nodes use the log too, and `node` means nothing."""
        self.log = log
        self.clock: Clock = scheduler.clock
        self.scheduler = scheduler
        self.programs = programs
        self.bind = bind
        self.writer: JournalWriter = JournalWriter(log, scheduler)
        self.ownership: Ownership = (
            Ownership(self, node, RunStore(log)) if cluster is None else SharedOwnership(self, cluster)
        )
        self.store: RunStore = self.ownership.store
        self.listing: RunListing = RunListing(log, self.store, self.clock)
        self.signals: DurableSignals = DurableSignals(self, mailboxes, runs, early_signal_ms)
        self.starting: Starting = Starting(self, runs)
        self.blocked: BlockedRuns = BlockedRuns(self)
        self.questions: Questions = Questions(self, runs)
        self.recovery: RunRecovery = RunRecovery(self, recovery_ms=recovery_ms, retention_ms=retention_ms)
        self.recovered: int = 0  # runs that went on after a restart or another node's end
        self._held_back: list[Run[Any]] | None = None  # runs that are not executed before `go_on`
        self._runs = runs
        self._source = source
        self._watched: dict[str, list[Run[Any]]] = {}  # handles of runs that are not executed here
        self._looking: set[str] = set()
        self._ending: list[tuple[Run[Any], asyncio.Future[None]]] = []  # by hand: done if another node executes it now
        self._tasks = BackgroundTasks(logger, "durable runs")
        scheduler.on_outcome.append(self._on_outcome)

    def _on_outcome(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        if run.durable is not None:
            self.signals.forget_run(run.id)
            self.blocked.forget(run.id)
            self._conclude_watched(run.id, outcome)

    # -- starting

    def start(self, program: Any, args: tuple[Any, ...], run_id: str | None) -> Run[Any]:
        """A new run, or the one that has this id. Raises before anything is written when the arguments do not fit."""
        return self.starting.start(program, args, run_id)

    async def written(self, run: Run[Any]) -> None:
        """Wait until the beginning of a run is stored, or it turned out to exist."""
        await self.starting.written(run)

    def prepare_run(self, program: Any, args: tuple[Any, ...], run_id: str) -> RunRecord:
        """The record of a new run, to be stored with `submit`. Raises when the arguments do not fit."""
        name = self.programs.name_for(program, declared=True)
        return self.new_record(run_id, name, encode_arguments(self.programs.get(name), args))

    def submit(self, records: Iterable[RunRecord], batch: Batch, done: Callable[[Result], None]) -> None:
        """Store new runs and a batch together; `done` gets the receipt or the error. Then `revive` begins the runs."""
        self.writer.alone([*(each for record in records for each in beginning(record)), *batch.operations], done)

    def fresh_id(self) -> str:
        """An id for a run that was started without one."""
        return f"run-{self._source.getrandbits(96):024x}"

    def new_record(self, run_id: str, program: str, args: Raw) -> RunRecord:
        """The record of a run that begins now: on this node, if it has the program."""
        now = self.clock.wall_ms()
        record = RunRecord(id=run_id, program=program, args=args, created=now, updated=now)
        record.causation, record.correlation = handling.get() or (None, None)
        record.traceparent = tracing.here()
        self.ownership.prepare(record)
        return record

    def new_run(self, record: RunRecord, program: Program, *, opened: bool) -> Run[Any]:
        """A run of this process that has not taken a step."""
        run = self._run(record)
        state = run.durable = self.ownership.new_state(run, record, None, self.writer, self.ownership)
        state.opened = opened
        self.bind(run, program, decode_arguments(program, record.args))
        run.lineage = of_record(record)
        self._add(run)
        return run

    def _run(self, record: RunRecord) -> Run[Any]:
        return Run(record.id, record.program, self.scheduler)

    def _add(self, run: Run[Any]) -> None:
        self._runs[run.id] = run
        self.scheduler.live += 1

    def executes(self, run_id: str) -> bool:
        """Whether this process has the run."""
        return run_id in self._runs

    def handle(self, record: RunRecord) -> Run[Any]:
        """A run that is not executed by this object."""
        handle = self._run(record)
        handle.done = True
        return handle

    # -- going on

    async def recover(self, records: list[RunRecord]) -> None:
        """Go on with unfinished runs after a restart or another node's end."""
        self.recovered += len(await self.revive(records))

    def hold_back(self) -> None:
        """Do not execute what is brought back until `go_on`."""
        self._held_back = self._held_back or []

    def go_on(self) -> None:
        """Execute what was held back."""
        held, self._held_back = self._held_back, None
        for run in held or ():
            if not run.done:
                self.scheduler.launch(run)

    def take_back_begun(self) -> None:
        """The node stops in order: what was counted because it might end the process has not done so."""
        for run in self._runs.values():
            if run.durable is not None:
                run.durable.take_back_begun()

    async def revive(self, records: Iterable[RunRecord]) -> list[Run[Any]]:
        """Go on with unfinished runs of this node whose programs are known here."""
        missing = [each for each in records if each.id not in self._runs and each.program in self.programs]
        ids = [record.id for record in missing]
        self.signals.hold(ids)
        try:
            loaded = await self.ownership.load(await end_attached(self, missing))
            wanted = [each for each in loaded if not self.executes(each.record.id)]
            runs = [self.bring_back(each) for each in wanted if self.ownership.owns(each.record)]
            adopt_detached(runs, self._runs)
        finally:
            self.signals.release(ids)
        return runs

    async def go_on_with(self, record: RunRecord, *others: RunRecord) -> Run[Any]:
        """A run that was just written down, with others: executed here, or by the node that takes it."""
        await self.revive([record, *others])
        return await self.find(record.id)

    def bring_back(self, loaded: LoadedRun) -> Run[Any]:
        """Execute a loaded run again: its journal answers what it knows, then handlers do."""
        record = loaded.record
        program = self.programs.get(record.program)
        if loaded.damage:
            run = self._open(loaded)
            self.prepare(run, loaded)
            self.blocked.journal_damaged(run, loaded.damage)
            return run
        try:
            run = self.new_run(record, program, opened=True)
        except Exception as error:  # the stored arguments no longer fit
            run = self._open(loaded)
            self.prepare(run, loaded)
            self.blocked.arguments_misfit(run, error)
            return run
        self.prepare(run, loaded)
        if record.state == BLOCKED and not loaded.entries:
            self.scheduler.on_fit(run, None)
        if self._held_back is None:
            self.scheduler.launch(run)
        else:
            self._held_back.append(run)
        return run

    def prepare(self, run: Run[Any], loaded: LoadedRun) -> None:
        """Give a run what the log knows of it."""
        state = run.durable
        assert state is not None
        state.record = loaded.record
        state.entries, state.updates = loaded.entries, loaded.updates
        state.updated = sum(map(len, (loaded.updates or {}).values()))
        state.children = loaded.children
        state.version, state.noted = self.ownership.expected(loaded.version), loaded.noted
        self.signals.begin(run, loaded.signals)

    def end_at_once(self, loaded: LoadedRun, outcome: Outcome[Any], ended_with: str = "") -> Run[Any]:
        """End a loaded run without executing it."""
        run = self._open(loaded, ended_with)
        self.scheduler.settle(run, outcome)
        return run

    def _open(self, loaded: LoadedRun, ended_with: str = "") -> Run[Any]:
        """A loaded run without its program."""
        run = self._run(loaded.record)
        state = run.durable = self.ownership.new_state(run, loaded.record, None, self.writer, self.ownership)
        state.version, state.opened = self.ownership.expected(loaded.version), True
        state.ended_with = ended_with
        self._add(run)
        return run

    def spawn(self, owner: Run[Any], program: Any, args: tuple[Any, ...], *, detached: bool) -> Run[Any]:
        """A child of a durable run: new, or the one the log remembers under this number."""
        assert owner.durable is not None
        family = family_of(owner)
        family.spawned += 1
        run_id = child_id(owner.id, family.spawned)
        loaded = owner.durable.children.get(run_id)
        if loaded is None:
            return self.starting.start(program, args, run_id, owner, attached=not detached)
        name = self.programs.name_for(program)
        if loaded.record.program != name:
            state, misfit = owner.durable, other_child(owner.id, family.spawned, loaded.record.program, name)
            family.spawned -= 1
            state.misfit, state.entries = misfit, state.entries or []  # also when the program catches it
            raise misfit
        outcome = self.outcome_of(loaded.record)
        if outcome is None:
            return self._child_again(owner.durable, loaded)
        run = self.handle(loaded.record)
        run.decided, run.announced = outcome, True
        return run

    def _child_again(self, owner: DurableState, loaded: LoadedRun) -> Run[Any]:
        loaded.children = owner.children
        live = self._runs.get(loaded.record.id)
        if live is not None or self.ownership.owns(loaded.record):
            return live or self.bring_back(loaded)
        handle = self._run(loaded.record)
        self.scheduler.live += 1
        self.watch(handle)
        return handle

    # -- letting go

    def let_go(self, *, of_everything: bool = False, look: bool = False) -> None:
        """Stop executing every run that is written down; their handles get the outcome from the log.

        Runs whose beginning is not stored yet are kept, unless the runtime is closed for good. Children go with their
        parents: the node that executes a parent begins them. `look`: others may have ended some already.
        """
        durable = [(run, run.durable) for run in self._runs.values() if run.durable is not None]
        runs = [run for run, state in durable if state.opened or of_everything or state.record.parent is not None]
        self.scheduler.abandon(*runs)
        for run in runs:
            self._remove(run)
            self.watch(run, look=look)
        self.writer.give_back()

    def lose(self, run: Run[Any], outcome: Outcome[Any] | None = None) -> None:
        """Another node executes this run; it may have ended there."""
        self._remove(run)
        self.scheduler.abandon(run)
        if outcome is None:
            self.watch(run)
        else:
            self.scheduler.conclude(run, outcome)
        self.starting.release(run.id)

    def _remove(self, run: Run[Any]) -> None:
        self._runs.pop(run.id, None)
        self.signals.forget_run(run.id)
        self.blocked.forget(run.id)
        for each, lost in self._ending:
            if each is run:
                resolve(lost, None)

    def drop(self, run_id: str) -> None:
        """Stop executing a run that is about to be removed from the log."""
        run = self._runs.get(run_id)
        if run is not None:
            self.scheduler.abandon(run)
            self._remove(run)
            if run.family is not None:
                run.family.leave()

    # -- runs that are not executed here

    def watch(self, handle: Run[Any], *, look: bool = True) -> None:
        """Conclude a handle when the log says that its run has ended; `look` whether it does already.

        Another node executes the run, or it waits until its program is registered here.
        """
        self._watched.setdefault(handle.id, []).append(handle)
        if look and handle.id not in self._looking:
            self._looking.add(handle.id)
            self.in_background(self._look_at(handle.id), f"look at run {handle.id}")

    async def _look_at(self, run_id: str) -> None:
        found = await self.ownership.read(lambda: self.log.get(RUNS, run_id))
        self._looking.discard(run_id)
        if found is not None:
            self._on_record(run_id, found.value)

    def on_finished(self, record: KeptRecord) -> None:
        """Another node wrote the record of a finished run, or removed it."""
        if record.key in self._watched and record.version != ABSENT:
            self._on_record(record.key, record.value)

    def _on_record(self, run_id: str, record: bytes) -> None:
        outcome = self.outcome_of(decode_record(record))
        if outcome is not None:
            self._conclude_watched(run_id, outcome)

    def _conclude_watched(self, run_id: str, outcome: Outcome[Any]) -> None:
        for handle in self._watched.pop(run_id, ()):
            self.scheduler.conclude(handle, outcome)

    # -- looking

    def outcome_of(self, record: RunRecord) -> Outcome[Any] | None:
        """How a run ended, its value as its program declares it; None while it is unfinished."""
        is_here = record.program in self.programs
        return record.outcome(return_type(self.programs.get(record.program)) if is_here else Any)

    async def waits(self, record: RunRecord) -> tuple[str, int | None]:
        """What a run waits for, and until when (epoch ms); "" when it is over, or nothing is known."""
        missing = self.ownership.waits_for(record)
        if missing or record.state != RUNNING:
            return missing, None
        return await self.listing.waits(record, self._runs.get(record.id))

    async def history(self, run_id: str) -> History:
        """A run and its journal."""
        return await self.store.history(run_id)

    async def find(self, run_id: str) -> Run[Any]:
        """A handle of any durable run: executed here, on another node, or over."""
        run = self._runs.get(run_id)
        if run is not None:
            return run
        record = await self.store.record(run_id)
        handle = self.handle(record)
        outcome = self.outcome_of(record)
        if outcome is None:
            self.watch(handle)
        else:
            self.scheduler.conclude(handle, outcome)
        return handle

    # -- by hand

    async def signal(self, run_id: str, name: str, value: Any = None) -> bool:
        """Send a value to a durable run, wherever it is executed. Durable when this returns; False if it is over."""
        return await self.signals.send(run_id, name, value)

    async def cancel(self, run_id: str, reason: Any = None) -> bool:
        """Cancel a durable run, wherever it is executed. Durable when this returns; False if it is over."""
        return await self._end(run_id, Cancelled(reason)) or await self.signals.request(run_id, CANCEL, reason)

    async def fail(self, run_id: str, why: str = "") -> bool:
        """Let a durable run fail, wherever it is executed: by default, a blocked one with what blocks it.

        Durable when this returns; False if it is over.
        """
        run = self._runs.get(run_id)
        misfit = None if run is None or run.durable is None or why else run.durable.misfit
        error = misfit or FailedByHand(why or BY_HAND)
        return await self._end(run_id, Failed(error)) or await self.signals.request(run_id, FAIL, why)

    async def _end(self, run_id: str, outcome: Outcome[Any]) -> bool:
        """End a run that is executed here, or that nobody can execute because its program is gone."""
        run = self._runs.get(run_id)
        if run is None:
            run = await self._without_program(run_id)
        if run is None or run.done:
            return False
        self.scheduler.settle(run, outcome)
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended = asyncio.ensure_future(run.outcome())
        self._ending.append((run, lost))
        try:
            await asyncio.wait((ended, lost), return_when=asyncio.FIRST_COMPLETED)
            return ended.done()  # else nothing of it was stored, and who executes it is to be asked
        finally:
            ended.cancel()
            self._ending.remove((run, lost))

    async def _without_program(self, run_id: str) -> Run[Any] | None:
        """An unfinished run that nobody can execute, to be ended, with those that are attached to it."""
        try:
            record, version = await self.store.record_with_version(run_id)
        except UnknownRun:
            return None
        if record.state not in UNFINISHED or not self.ownership.waits_for(record):
            return None
        if not await self.ownership.claim(record, version):
            return None
        loaded = await self.ownership.load([record])
        if not loaded or self.executes(run_id):
            return None
        await end_below(self, record, taken_along_by(run_id))
        return self._open(loaded[0])

    async def retry(self, run_id: str, keep: Keep = "all") -> Run[Any]:
        """Go on with a run that failed, was cancelled or is blocked, with the program as it is now.

        It keeps its whole journal; or the part of it that fits, if it is blocked; or nothing, and begins anew.
        """
        run = self._runs.get(run_id)
        if run is not None and run_id in self.blocked:
            await self.blocked.retry(run, keep)
            return run
        if (await self.store.record(run_id)).state == BLOCKED:
            await self.signals.request(run_id, RETRY, keep)
            return await self.find(run_id)
        return await retry(self, run_id, keep)

    async def fork(self, run_id: str, at: int, new_id: str | None = None) -> Run[Any]:
        """A new run of the same program and arguments that begins with the first `at` answers of another."""
        return await fork(self, run_id, at, new_id)

    async def forget(self, run_id: str) -> int:
        """Remove a finished run, its journal and the finished runs below it; how many. Its id can be used again."""
        return await forget(self, run_id)

    # -- writing

    async def commit(self, operations: list[Operation]) -> bool:
        """Store one guarded batch; False when an expectation did not hold."""
        decided: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.writer.alone(operations, partial(resolve, decided))
        result = await decided
        if isinstance(result, Refused):
            return await self.ownership.was_stored(operations)
        if isinstance(result, Exception):
            raise result
        return True

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do something whose end is not awaited. Without a running loop there is no log to do it with."""
        try:
            self._tasks.start(work, name)
        except RuntimeError:
            return

    @property
    def busy(self) -> bool:
        """Whether something is being written, looked up or recovered."""
        return self.writer.busy or self.recovery.busy or len(self._tasks) > self.ownership.pausing

    async def quiet(self) -> None:
        """Wait until nothing is being written or looked up."""
        while self.writer.busy or len(self._tasks) > self.ownership.pausing:
            await asyncio.sleep(0)
            await self.writer.quiet()
