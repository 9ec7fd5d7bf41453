"""Starting, finding and going on with durable runs.

A run is started by writing its record with the expectation that none is there; its first step waits for that write.
When the record is there already, the same id was started before, here or elsewhere, in this life or an earlier one, and
the handle becomes a handle of that run: its outcome if it is over, the run itself if this node owns it, and otherwise a
watcher that hears of the outcome from the log.

Children of a durable run are durable, with ids counted by their parent, so that a parent that is executed again finds
the same children. They are brought back by their parent's own execution, never behind its back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from mainspring.errors import MainspringError
from mainspring.log import Log, Put, Receipt, Refused
from mainspring.runs.arguments import decode_arguments, encode_arguments
from mainspring.runs.by_hand import RunConflict, beginning, fork, retry
from mainspring.runs.durable import DurableState
from mainspring.runs.elsewhere import Elsewhere
from mainspring.runs.endings import close_program
from mainspring.runs.errors import NoHostLoop
from mainspring.runs.family import family_of
from mainspring.runs.journal import (
    LIVE,
    ReplayMismatch,
    RunRecord,
    check_id,
    child_id,
    encode_record,
)
from mainspring.runs.lease import Lease
from mainspring.runs.outcome import Failed, Outcome
from mainspring.runs.programs import Program
from mainspring.runs.registry import Programs
from mainspring.runs.run import Run
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.serial import Raw, return_type
from mainspring.runs.signals import Mailboxes
from mainspring.runs.store import History, Loaded, Store, UnknownRun
from mainspring.runs.writer import Result, Writer

logger: logging.Logger = logging.getLogger("mainspring.runs")

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
    ) -> None:
        self.store: Store = Store(log)
        self.lease: Lease = Lease(log, node, lease_ms)
        self.writer: Writer = Writer(log, scheduler, self.lease.key)
        self.writer.on_need = self._need_lease
        self.writer.on_fenced = self.fenced
        self.log = log
        self._scheduler = scheduler
        self.programs = programs
        self._runs = runs
        self._bind = bind
        self._source = source
        self._beginning: dict[str, list[asyncio.Future[None]]] = {}
        self.elsewhere: Elsewhere = Elsewhere(log, scheduler, mailboxes, runs, self.outcome_of, node)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opening = False
        self.on_new_lease: Callable[[], None] = lambda: None

    # -- the lease

    def _need_lease(self) -> None:
        if not self._opening:
            self._opening = True
            self._task(self.open())

    async def open(self) -> None:
        """Take this node's lease; writes flow from then on."""
        self._opening = True
        try:
            self.writer.hold()
            version = await self.lease.take(self._scheduler.clock.wall_ms())
            self.on_new_lease()
            self.writer.use(version)
        except MainspringError as error:
            logger.warning("cannot take the lease of %s, durable runs wait: %s", self.lease.node, error)
            self._scheduler.timer(1000, self._need_lease)
        finally:
            self._opening = False

    async def renew(self) -> None:
        """Extend the lease; when it was taken away, let go of everything and take it anew."""
        if self._opening:
            return
        self._opening = True  # a write that waits for the new version must not take the lease a second time meanwhile
        self.writer.hold()
        version, lost = self.lease.version, False
        try:
            version = await self.lease.renew(self._scheduler.clock.wall_ms())
        except Refused:
            lost = True
        except MainspringError as error:
            logger.warning("cannot renew the lease of %s now: %s", self.lease.node, error)
        finally:
            self._opening = False
        if lost:
            self.fenced()
        else:
            self.writer.use(version)

    def fenced(self) -> None:
        """Another node took the lease: stop executing, watch the runs instead, and begin again as a newcomer."""
        logger.warning("node %s lost its lease; its durable runs go on elsewhere", self.lease.node)
        self.writer.hold()
        self.let_go()
        self._need_lease()

    def let_go(self, *, of_everything: bool = False) -> None:
        """Stop executing every run that is written down; their handles hear the outcome from the log.

        Runs whose beginning is not stored yet are kept, unless the runtime is closed for good.
        """
        durable = [(run, run._durable) for run in self._runs.values() if run._durable is not None]
        runs = [run for run, state in durable if state.opened or of_everything]
        self._scheduler.abandon(*runs)
        for run in runs:
            self._runs.pop(run.id, None)
            self.elsewhere.watch(run)
        self.writer.drop_abandoned()

    # -- starting

    def start(
        self, program: Any, args: tuple[Any, ...], run_id: str | None, parent: Run[Any] | None = None
    ) -> Run[Any]:
        """A new run, or the one that has this id. Raises before anything is written when the arguments do not fit."""
        _need_loop()
        name = self.programs.name_for(program)
        program = self.programs.get(name)
        encoded = encode_arguments(program, args)
        if run_id is None:
            run_id = self.fresh_id()
        elif parent is None:
            check_id(run_id)
        known = self._runs.get(run_id)
        if known is not None:
            return _same_program(known, name)
        record = self.new_record(run_id, name, encoded)
        record.parent = None if parent is None else parent.id
        run = self._new(record, program, opened=False)
        self._write_start(run, parent)
        return run

    def fresh_id(self) -> str:
        """An id for a run that nobody named."""
        return f"run-{self._source.getrandbits(96):024x}"

    def new_record(self, run_id: str, program: str, args: Raw) -> RunRecord:
        """The record of a run that begins now, on this node."""
        now = self._scheduler.clock.wall_ms()
        return RunRecord(id=run_id, program=program, args=args, created=now, updated=now, owner=self.lease.node)

    async def written(self, run: Run[Any]) -> None:
        """Wait until the beginning of a run is stored, or it turned out to exist."""
        if run.id in self._runs and run._durable is not None and not run._durable.opened:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._beginning.setdefault(run.id, []).append(waiter)
            await waiter

    def _has_begun(self, run_id: str) -> None:
        for waiter in self._beginning.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _new(self, record: RunRecord, program: Program, *, opened: bool) -> Run[Any]:
        run: Run[Any] = Run(record.id, record.program, self._scheduler)
        run._durable = DurableState(record, None, self._scheduler, self.writer)
        run._durable.opened = opened
        self._bind(run, program, decode_arguments(program, record.args))
        self._runs[run.id] = run
        self._scheduler.live += 1
        return run

    def _write_start(self, run: Run[Any], parent: Run[Any] | None = None) -> None:
        assert run._durable is not None
        operations = beginning(run._durable.record)
        if parent is not None and parent._durable is not None and not parent._durable.record.has_children:
            parent._durable.record.has_children = True
            operations.append(Put(LIVE, parent.id, encode_record(parent._durable.record)))
        self.writer.together(operations, lambda result: self._begun(run, result), run)

    def executes(self, run_id: str) -> bool:
        """Whether this process has the run."""
        return run_id in self._runs

    def _begun(self, run: Run[Any], result: Result) -> None:
        if isinstance(result, Receipt):
            self._opened(run)
        elif isinstance(result, Refused):
            self._task(self._join_existing(run))
        else:
            self._conclude(run, Failed(result))

    def _opened(self, run: Run[Any]) -> None:
        """The record stands: the first step, or the outcome of a run that was cancelled before it."""
        assert run._durable is not None
        run._durable.opened = True
        self._has_begun(run.id)
        if run._done:
            assert run._outcome is not None
            run._durable.settle(run, run._outcome)
        else:
            self._scheduler.launch(run)

    async def _join_existing(self, run: Run[Any]) -> None:
        try:
            record, version = await self.store.found(run.id)
        except UnknownRun:  # it was not the record that refused, but the lease
            self._write_start(run)
            return
        if record.program != run.program:
            self._conclude(run, Failed(_conflict(run.id, record.program)))
            return
        outcome = self.outcome_of(record)
        if outcome is not None:
            self._conclude(run, outcome)
        elif record.owner == self.lease.node or (
            not await self.lease.is_alive(record.owner, self._scheduler.clock.wall_ms())
            and await self.claim(record, version)
        ):
            await self._take_over(run, record)
        else:
            self._runs.pop(run.id, None)
            self._scheduler.abandon(run)
            self.elsewhere.watch(run)
            self._has_begun(run.id)

    async def _take_over(self, run: Run[Any], record: RunRecord) -> None:
        """Turn a fresh handle into the run that the log already knows."""
        (loaded,) = await self.store.load([record])
        self._prepare(run, loaded)
        if not run._done:
            program = self.programs.get(record.program)
            close_program(run)
            self._bind(run, program, decode_arguments(program, record.args))
        self._opened(run)

    def _conclude(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        self._runs.pop(run.id, None)
        self._scheduler.conclude(run, outcome)
        self._has_begun(run.id)

    # -- going on

    async def claim(self, record: RunRecord, version: int) -> bool:
        """Make this node the owner of an unfinished run; False when somebody was faster."""
        record.owner = self.lease.node
        return await self.commit([Put(LIVE, record.id, encode_record(record), version)])

    async def revive(self, records: list[RunRecord]) -> list[Run[Any]]:
        """Go on with unfinished runs of this node whose programs are known here."""
        missing = [each for each in records if each.id not in self._runs and each.program in self.programs]
        return [
            self.bring_back(loaded) for loaded in await self.store.load(missing) if loaded.record.id not in self._runs
        ]

    def bring_back(self, loaded: Loaded) -> Run[Any]:
        """Execute a loaded run again: its journal answers what it knows, then handlers do."""
        record = loaded.record
        program = self.programs.get(record.program)
        try:
            run = self._new(record, program, opened=True)
        except Exception as error:
            return self._cannot_begin(record, error)
        self._prepare(run, loaded)
        self._scheduler.launch(run)
        return run

    def _prepare(self, run: Run[Any], loaded: Loaded) -> None:
        state = run._durable
        assert state is not None
        state.record = loaded.record
        state.entries = loaded.entries or None
        state.children = loaded.children
        for key, name, value in loaded.signals:
            self.elsewhere.deliver(run, key, name, value)

    def _cannot_begin(self, record: RunRecord, error: Exception) -> Run[Any]:
        """The stored arguments no longer fit the program: the run fails, its journal stays for a repaired one."""
        run: Run[Any] = Run(record.id, record.program, self._scheduler)
        run._durable = DurableState(record, None, self._scheduler, self.writer)
        run._durable.opened = True
        self._runs[run.id] = run
        self._scheduler.live += 1
        self._scheduler.settle(run, Failed(error))
        return run

    def spawn(self, owner: Run[Any], program: Any, args: tuple[Any, ...]) -> Run[Any]:
        """A child of a durable run: new, or the one the log remembers under this number."""
        assert owner._durable is not None
        family = family_of(owner)
        family.spawned += 1
        run_id = child_id(owner.id, family.spawned)
        loaded = owner._durable.children.get(run_id)
        if loaded is None:
            return self.start(program, args, run_id, owner)
        name = self.programs.name_for(program)
        if loaded.record.program != name:
            raise ReplayMismatch(
                f"child {family.spawned} of run {owner.id} was {loaded.record.program} and is now {name}",
                remedy="restore the old order of children, or gate the change with Version",
            )
        outcome = self.outcome_of(loaded.record)
        if outcome is None:
            loaded.children = owner._durable.children
            return self._runs.get(run_id) or self.bring_back(loaded)
        run: Run[Any] = Run(run_id, name, self._scheduler)
        run._outcome, run._done, run._settled = outcome, True, True
        return run

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
        handle: Run[Any] = Run(run_id, record.program, self._scheduler)
        handle._done = True
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
            return False
        if isinstance(result, Exception):
            raise result
        return True

    def _task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def busy(self) -> bool:
        """Whether something is being written or looked up."""
        return self.writer.busy or bool(self._tasks)

    async def quiet(self) -> None:
        """Wait until nothing is being written or looked up."""
        while self.busy:
            if self._tasks:
                await asyncio.wait(set(self._tasks))
            await asyncio.sleep(0)
            await self.writer.quiet()


def _need_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NoHostLoop(
            "durable runs write to the log and need a running asyncio loop", remedy="start them inside one"
        ) from None


def _same_program(run: Run[Any], name: str) -> Run[Any]:
    if run.program != name:
        raise _conflict(run.id, run.program)
    return run


def _conflict(run_id: str, program: str) -> RunConflict:
    return RunConflict(f"run {run_id} is a run of {program}", remedy="use another id for another program")
