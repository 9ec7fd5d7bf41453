"""The durable runs of one runtime: finding them, going on with them, letting go of them.

How they begin is in `beginnings.py`, what people do to them in `by_hand.py`, those of other nodes in `elsewhere.py`.

Children of a durable run are durable, with ids counted by their parent, so that a parent that is executed again finds
the same children. They are brought back by their parent's own execution, never behind its back.

What entitles the node to all this is its tenure (`tenure.py`). Where several nodes share the log, a run's record names
the epoch of its owner, and whoever claims a run claims its children in the same batch.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from mainspring.cluster import Cluster
from mainspring.log import Log, Put, Refused
from mainspring.loop import Clock
from mainspring.runs.cluster.lease import Lease
from mainspring.runs.cluster.ownership import OwnLog, SharedLog, Tenure
from mainspring.runs.cluster.placement import Others
from mainspring.runs.cluster.refusals import Refusals
from mainspring.runs.cluster.remote import Elsewhere
from mainspring.runs.durable.arguments import decode_arguments
from mainspring.runs.durable.operations import fork, retry
from mainspring.runs.durable.orphans import adopt_detached, end_attached
from mainspring.runs.durable.records import LIVE, ReplayMismatch, RunRecord, child_id, decode_record, encode_record
from mainspring.runs.durable.starting import Beginnings
from mainspring.runs.durable.state import DurableState
from mainspring.runs.durable.store import CHILD_MARK, History, Loaded, Store
from mainspring.runs.durable.writer import Result, Writer
from mainspring.runs.lineage import of_record
from mainspring.runs.outcome import Failed, Outcome
from mainspring.runs.programs import Program
from mainspring.runs.registry import Programs
from mainspring.runs.run import Run
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.signals import Mailboxes
from mainspring.runs.tree import family_of
from mainspring.runs.values import Raw, return_type
from mainspring.telemetry import handling, tracing

Binder = Callable[[Run[Any], Program, tuple[Any, ...]], None]


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
        lease_ms: int,
        source: random.Random,
        cluster: Cluster | None = None,
    ) -> None:
        """With a `cluster` other nodes use the log too, and `node` and `lease_ms` mean nothing."""
        self.log = log
        self.clock: Clock = scheduler.clock
        self.store: Store = Store(log, shared=cluster is not None)
        self.lease: Lease = Lease(log, node, lease_ms)
        self.writer: Writer = Writer(log, scheduler)
        self.tenure: Tenure = OwnLog(self.lease, self) if cluster is None else SharedLog(cluster, self)
        self.refusals: Refusals | None = None if cluster is None else Refusals(self)
        self.others: Others | None = None if cluster is None else Others(log, cluster, programs)
        self.writer.on_need = lambda: self.tenure.need()
        self.writer.on_fenced = lambda: self.tenure.lost(self.tenure.epoch)
        self._scheduler = scheduler
        self.programs = programs
        self._runs = runs
        self.bind = bind
        self._source = source
        self.beginnings: Beginnings = Beginnings(self, scheduler, runs)
        self.elsewhere: Elsewhere = Elsewhere(
            log, self.store, scheduler, mailboxes, runs, self.outcome_of, self._sender, self.refusals
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_new_lease: Callable[[], None] = lambda: None
        self.times_lost: int = 0  # how often the right to execute was taken away

    def _sender(self) -> str:
        """This node as the sender of signals; never the same for two lives of a node."""
        return f"{self.tenure.node}.{self.tenure.epoch}" if self.tenure.shared else self.tenure.node

    def after(self, ms: float, call: Callable[[], object]) -> None:
        """Have `call` made in a later tick."""
        self._scheduler.timer(ms, call)

    # -- letting go

    def let_go(self, *, of_everything: bool = False) -> None:
        """Stop executing every run that is written down; their handles hear the outcome from the log.

        Runs whose beginning is not stored yet are kept, unless the runtime is closed for good. Children go with their
        parents: whoever executes a parent begins them.
        """
        durable = [(run, run._durable) for run in self._runs.values() if run._durable is not None]
        runs = [run for run, state in durable if state.opened or of_everything or state.record.parent is not None]
        self._scheduler.abandon(*runs)
        for run in runs:
            self._runs.pop(run.id, None)
            self.elsewhere.watch(run, look=not of_everything)
        self.writer.give_back()

    def lose(self, run: Run[Any], outcome: Outcome[Any] | None = None) -> None:
        """One run is others' business; it may have ended there."""
        self._runs.pop(run.id, None)
        self._scheduler.abandon(run)
        if outcome is None:
            self.elsewhere.watch(run)
        else:
            self._scheduler.conclude(run, outcome)
        self.beginnings.has_begun(run.id)

    # -- starting

    def start(self, program: Any, args: tuple[Any, ...], run_id: str | None) -> Run[Any]:
        """A new run, or the one that has this id. Raises before anything is written when the arguments do not fit."""
        return self.beginnings.start(program, args, run_id)

    async def written(self, run: Run[Any]) -> None:
        """Wait until the beginning of a run is stored, or it turned out to exist."""
        await self.beginnings.written(run)

    def fresh_id(self) -> str:
        """An id for a run that nobody named."""
        return f"run-{self._source.getrandbits(96):024x}"

    def new_record(self, run_id: str, program: str, args: Raw) -> RunRecord:
        """The record of a run that begins now: on this node, if it knows the program."""
        now = self.clock.wall_ms()
        record = RunRecord(id=run_id, program=program, args=args, created=now, updated=now)
        record.causation, record.correlation = handling.get() or (None, None)
        record.traceparent = tracing.here()
        record.has_children = self.tenure.shared  # else noted with the first; here a record is not written again
        if self.others is None or not self.others.alone_have(program):
            self._own(record)
        return record

    def new_run(self, record: RunRecord, program: Program, *, opened: bool) -> Run[Any]:
        """A run of this process that has not taken a step."""
        run: Run[Any] = Run(record.id, record.program, self._scheduler)
        run._durable = DurableState(record, None, self._scheduler, self.writer, self.refusals)
        run._durable.opened = opened
        self.bind(run, program, decode_arguments(program, record.args))
        run._lineage = of_record(record)
        self._runs[run.id] = run
        self._scheduler.live += 1
        return run

    def executes(self, run_id: str) -> bool:
        """Whether this process has the run."""
        return run_id in self._runs

    def handle(self, record: RunRecord) -> Run[Any]:
        """A run that is not executed by this object."""
        handle: Run[Any] = Run(record.id, record.program, self._scheduler)
        handle._done = True
        return handle

    # -- going on

    async def claim(self, record: RunRecord, version: int) -> bool:
        """Make this node the owner of an unfinished run; False when somebody was faster. Its children come with it."""
        operations = [self._owned(record, version)]
        if self.tenure.shared:
            async for stored in self.log.scan(LIVE, record.id + CHILD_MARK):
                child = decode_record(stored.value)
                if await self.tenure.is_orphan(child):
                    operations.append(self._owned(child, stored.version))
        return await self.commit(operations)

    def _owned(self, record: RunRecord, version: int) -> Put:
        self._own(record)
        return Put(LIVE, record.id, encode_record(record), version)

    def _own(self, record: RunRecord) -> None:
        record.owner, record.epoch = self.tenure.node, self.tenure.epoch
        if self.tenure.shared:
            record.code = self.programs.code(record.program)

    async def revive(self, records: list[RunRecord]) -> list[Run[Any]]:
        """Go on with unfinished runs of this node whose programs are known here."""
        missing = [each for each in records if each.id not in self._runs and each.program in self.programs]
        loaded = await self.load(await end_attached(self, missing))
        runs = [self.bring_back(each) for each in loaded if each.record.id not in self._runs and self.has(each)]
        adopt_detached(runs, self._runs)
        self.elsewhere.give_news_of(record.id for record in missing)
        return runs

    def has(self, loaded: Loaded) -> bool:
        """Whether a run that was loaded a moment ago is still this node's."""
        return not self.tenure.shared or self.tenure.owns(loaded.record)

    async def go_on_with(self, record: RunRecord, *others: RunRecord) -> Run[Any]:
        """A run that was just written down, with others: executed here, or by whoever takes it."""
        await self.revive([record, *others])
        return await self.find(record.id)

    def need_program(self, name: str) -> None:
        """UnknownProgram unless somebody could execute it."""
        if self.others is None or not self.others.have(name):
            self.programs.get(name)

    def waits_for(self, record: RunRecord) -> str:
        """What keeps an unfinished run from being executed; empty when nothing does."""
        unowned = record.state == "running" and self.others is not None and not self.others.is_alive(record.epoch)
        if not unowned or self.others is None:
            return ""
        missing = self.others.missing(record)
        return f"a living node that has {missing}" if missing else ""

    async def load(self, records: Iterable[RunRecord]) -> list[Loaded]:
        """Read what belongs to runs. Where others write too, only those that are this node's right now."""
        if not self.tenure.shared:
            return await self.store.load(records)
        ours: list[RunRecord] = []
        versions: dict[str, int] = {}
        for record in records:
            self.elsewhere.keep_news_of([record.id])
            stored = await self.log.get(LIVE, record.id)
            found = None if stored is None else decode_record(stored.value)
            if stored is not None and found is not None and self.tenure.owns(found):
                ours.append(found)
                versions[record.id] = stored.version
        return await self.store.load(ours, versions)

    def bring_back(self, loaded: Loaded) -> Run[Any]:
        """Execute a loaded run again: its journal answers what it knows, then handlers do."""
        record = loaded.record
        program = self.programs.get(record.program)
        try:
            run = self.new_run(record, program, opened=True)
        except Exception as error:  # the stored arguments no longer fit; the journal stays for a repaired program
            return self.end_at_once(loaded, Failed(error))
        self.prepare(run, loaded)
        self._scheduler.launch(run)
        return run

    def prepare(self, run: Run[Any], loaded: Loaded) -> None:
        """Give a run what the log knows of it."""
        state = run._durable
        assert state is not None
        state.record = loaded.record
        state.entries = loaded.entries or None
        state.children = loaded.children
        state.version, state.noted = loaded.version, loaded.noted
        self.elsewhere.begin(run)
        for key, name, value in loaded.signals:
            self.elsewhere.deliver(run, key, name, value)

    def end_at_once(self, loaded: Loaded, outcome: Outcome[Any]) -> Run[Any]:
        """End a loaded run without executing it."""
        record = loaded.record
        run: Run[Any] = Run(record.id, record.program, self._scheduler)
        run._durable = DurableState(record, None, self._scheduler, self.writer, self.refusals)
        run._durable.version = loaded.version
        run._durable.opened = True
        self._runs[run.id] = run
        self._scheduler.live += 1
        self._scheduler.settle(run, outcome)
        return run

    def spawn(self, owner: Run[Any], program: Any, args: tuple[Any, ...], *, detached: bool) -> Run[Any]:
        """A child of a durable run: new, or the one the log remembers under this number."""
        assert owner._durable is not None
        family = family_of(owner)
        family.spawned += 1
        run_id = child_id(owner.id, family.spawned)
        loaded = owner._durable.children.get(run_id)
        if loaded is None:
            return self.beginnings.start(program, args, run_id, owner, attached=not detached)
        name = self.programs.name_for(program)
        if loaded.record.program != name:
            raise ReplayMismatch(
                f"child {family.spawned} of run {owner.id} was {loaded.record.program} and is now {name}",
                remedy="restore the old order of children, or gate the change with Version",
            )
        outcome = self.outcome_of(loaded.record)
        if outcome is None:
            return self._child_again(owner, loaded)
        run = self.handle(loaded.record)
        run._outcome, run._settled = outcome, True
        return run

    def _child_again(self, owner: Run[Any], loaded: Loaded) -> Run[Any]:
        assert owner._durable is not None
        loaded.children = owner._durable.children
        known = self._runs.get(loaded.record.id)
        if known is not None or not self.tenure.shared or self.tenure.owns(loaded.record):
            return known or self.bring_back(loaded)
        handle: Run[Any] = Run(loaded.record.id, loaded.record.program, self._scheduler)
        self._scheduler.live += 1
        self.elsewhere.watch(handle)
        return handle

    def outcome_of(self, record: RunRecord) -> Outcome[Any] | None:
        """How a run ended, its value as its program declares it; None while it is unfinished."""
        known = record.program in self.programs
        return record.outcome(return_type(self.programs.get(record.program)) if known else Any)

    # -- by hand

    async def signal(self, run_id: str, name: str, value: Any = None) -> bool:
        """Send a value to a durable run, wherever it is executed. Durable when this returns; False if it is over."""
        return await self.elsewhere.signal(run_id, name, value)

    async def cancel(self, run_id: str, reason: Any = None) -> bool:
        """Cancel a durable run, wherever it is executed. Durable when this returns; False if it is over."""
        run = self._runs.get(run_id)
        if run is None:
            return await self.elsewhere.cancel(run_id, reason)
        if not run.cancel(reason):
            return False
        await run.outcome()
        return True

    async def history(self, run_id: str) -> History:
        """A run and its journal."""
        return await self.store.history(run_id)

    async def find(self, run_id: str) -> Run[Any]:
        """A handle of any durable run: executed here, elsewhere, or over."""
        run = self._runs.get(run_id)
        if run is not None:
            return run
        record = await self.store.record(run_id)
        handle = self.handle(record)
        outcome = self.outcome_of(record)
        if outcome is None:
            self.elsewhere.watch(handle)
        else:
            self._scheduler.conclude(handle, outcome)
        return handle

    async def retry(self, run_id: str) -> Run[Any]:
        """Go on with a run that failed or was cancelled, from its journal, with the program as it is now."""
        return await retry(self, run_id)

    async def fork(self, run_id: str, at: int, new_id: str | None = None) -> Run[Any]:
        """A new run of the same program and arguments that begins with the first `at` answers of another."""
        return await fork(self, run_id, at, new_id)

    # -- writing

    async def commit(self, operations: list[Any]) -> bool:
        """Store one guarded batch; False when an expectation did not hold."""
        decided: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.writer.alone(operations, lambda result: None if decided.done() else decided.set_result(result))
        result = await decided
        if isinstance(result, Refused):
            return self.tenure.shared and await self._stands(operations)
        if isinstance(result, Exception):
            raise result
        return True

    async def _stands(self, operations: list[Any]) -> bool:
        """Whether a refused batch had been stored before, by a try whose answer was lost."""
        for put in operations:
            if isinstance(put, Put) and put.space == LIVE:
                found = await self.log.get(LIVE, put.key)
                return found is not None and found.value == put.value
        return False

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something whose end nobody waits for. Without a running loop there is no log to do it with."""
        try:
            task = asyncio.get_running_loop().create_task(work)
        except RuntimeError:
            work.close()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def busy(self) -> bool:
        """Whether something is being written or looked up."""
        return self.writer.busy or len(self._tasks) > (0 if self.refusals is None else self.refusals.pausing)

    async def quiet(self) -> None:
        """Wait until nothing is being written or looked up."""
        while self.busy:
            if self._tasks and self.refusals is None:
                await asyncio.wait(set(self._tasks))
            await asyncio.sleep(0)
            await self.writer.quiet()
