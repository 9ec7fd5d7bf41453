"""How durable runs begin.

A run is started by writing its record with the expectation that none is there; its first step waits for that write.
When the record is there already, the same id was started before, here or elsewhere, in this life or an earlier one, and
the handle becomes a handle of that run: its outcome if it is over, the run itself if this node owns it, and otherwise a
watcher that hears of the outcome from the log.

On a log that several nodes share, a run whose program only others have is written down without an owner, and one of
them takes it. What is started while nothing entitles this node is written when something does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mainspring.log import Put, Receipt, Refused
from mainspring.runs.durable.arguments import decode_arguments, encode_arguments
from mainspring.runs.durable.operations import RunConflict, beginning
from mainspring.runs.durable.records import LIVE, RunRecord, check_id, encode_record
from mainspring.runs.durable.store import UnknownRun
from mainspring.runs.durable.writer import Result
from mainspring.runs.endings import close_program
from mainspring.runs.errors import NoHostLoop, TakenOver
from mainspring.runs.outcome import Failed, Outcome
from mainspring.runs.run import Run
from mainspring.runs.scheduler import Scheduler

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns


class Beginnings:
    """Starts the durable runs of one runtime."""

    def __init__(self, durable: DurableRuns, scheduler: Scheduler, runs: dict[str, Run[Any]]) -> None:
        self._durable = durable
        self._scheduler = scheduler
        self._runs = runs
        self._beginning: dict[str, list[asyncio.Future[None]]] = {}
        self._unwritten: list[Run[Any]] = []  # begun while nothing entitles this node

    def start(
        self,
        program: Any,
        args: tuple[Any, ...],
        run_id: str | None,
        parent: Run[Any] | None = None,
        *,
        attached: bool = False,
    ) -> Run[Any]:
        """A new run, or the one that has this id. Raises before anything is written when the arguments do not fit."""
        _need_loop()
        if self._durable.others is not None and isinstance(program, str) and self._durable.others.alone_have(program):
            return self._start_elsewhere(
                program, args, check_id(run_id) if run_id is not None else self._durable.fresh_id()
            )
        name = self._durable.programs.name_for(program)
        program = self._durable.programs.get(name)
        encoded = encode_arguments(program, args)
        if run_id is None:
            run_id = self._durable.fresh_id()
        elif parent is None:
            check_id(run_id)
        known = self._runs.get(run_id)
        if known is not None:
            return _same_program(known, name)
        record = self._durable.new_record(run_id, name, encoded)
        record.parent, record.attached = (None, False) if parent is None else (parent.id, attached)
        run = self._durable.new_run(record, program, opened=False)
        self._write_start(run, parent)
        return run

    async def written(self, run: Run[Any]) -> None:
        """Wait until it is stored that a run began, or that it had begun before."""
        begins_here = run.id in self._runs and run._durable is not None and not run._durable.opened
        if begins_here or run.id in self._beginning:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._beginning.setdefault(run.id, []).append(waiter)
            await waiter

    def has_begun(self, run_id: str) -> None:
        """Whoever waits for the beginning need not wait any longer."""
        for waiter in self._beginning.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _write_start(self, run: Run[Any], parent: Run[Any] | None = None) -> None:
        assert run._durable is not None
        record = run._durable.record
        if self._durable.tenure.shared and not self._is_entitled():
            self._unwritten.append(run)
            return
        record.owner, record.epoch = self._durable.tenure.node, self._durable.tenure.epoch
        operations = beginning(record)
        if parent is not None and parent._durable is not None and not parent._durable.record.has_children:
            parent._durable.record.has_children = True
            operations.append(Put(LIVE, parent.id, encode_record(parent._durable.record)))
        self._durable.writer.together(operations, lambda result: self._begun(run, result))

    def _is_entitled(self) -> bool:
        if self._durable.tenure.epoch == 0:
            self._durable.tenure.need()
        return self._durable.tenure.epoch != 0

    def write_unwritten(self) -> None:
        """This node is entitled again: begin what was started meanwhile."""
        unwritten, self._unwritten = self._unwritten, []
        for run in unwritten:
            if run.id in self._runs:
                self._write_start(run)

    def _begun(self, run: Run[Any], result: Result) -> None:
        state = run._durable
        assert state is not None
        if self._runs.get(run.id) is not run:
            return  # let go meanwhile
        if isinstance(result, Receipt) and state.record.epoch == self._durable.tenure.epoch:
            if self._durable.tenure.shared:
                state.version = result.versions[0]
            self._opened(run)
        elif isinstance(result, TakenOver):
            self._write_start(run)
        elif isinstance(result, Refused | Receipt):
            self._durable.in_background(self._join_existing(run))
        else:
            self._conclude(run, Failed(result))

    def _opened(self, run: Run[Any]) -> None:
        """The record stands: the first step, or the outcome of a run that was cancelled before it."""
        assert run._durable is not None
        run._durable.opened = True
        self.has_begun(run.id)
        if run._done:
            assert run._outcome is not None
            run._durable.settle(run, run._outcome)
        else:
            self._scheduler.launch(run)

    async def _join_existing(self, run: Run[Any]) -> None:
        try:
            record, version = await self._found(run.id)
        except UnknownRun:  # it was not the record that refused, but the lease
            if self._durable.refusals is None or await self._durable.refusals.still_entitled() or run.id in self._runs:
                self._write_start(run)
            return
        if record.program != run.program:
            self._conclude(run, Failed(_conflict(run.id, record.program)))
            return
        outcome = self._durable.outcome_of(record)
        if outcome is not None:
            self._conclude(run, outcome)
        elif await self._may_execute(record, version):
            await self._take_over(run, record)
        else:
            self._durable.lose(run)

    async def _found(self, run_id: str) -> tuple[RunRecord, int]:
        found = self._durable.store.found
        return await (
            found(run_id) if self._durable.refusals is None else self._durable.refusals.insist(lambda: found(run_id))
        )

    async def _may_execute(self, record: RunRecord, version: int) -> bool:
        if self._durable.tenure.owns(record):
            return True
        try:
            others = self._durable.others
            if others is not None and not others.may_take(record):
                return False
            return await self._durable.tenure.is_orphan(record) and await self._durable.claim(record, version)
        except TakenOver:
            return False

    async def _take_over(self, run: Run[Any], record: RunRecord) -> None:
        """Turn a fresh handle into the run that the log already knows."""
        loaded = await self._durable.load([record])
        if not loaded or not self._durable.has(loaded[0]):
            self._durable.elsewhere.give_news_of([run.id])
            await self._join_existing(run)  # it changed hands meanwhile: look again
            return
        self._durable.prepare(run, loaded[0])
        if not run._done:
            program = self._durable.programs.get(record.program)
            close_program(run)
            self._durable.bind(run, program, decode_arguments(program, record.args))
        self._opened(run)
        self._durable.elsewhere.give_news_of([run.id])

    def _start_elsewhere(self, program: str, args: tuple[Any, ...], run_id: str) -> Run[Any]:
        """Write a run down that only others can execute; one of them will claim it."""
        assert self._durable.others is not None
        record = self._durable.new_record(run_id, program, self._durable.others.arguments(args))
        handle = self._durable.handle(record)
        self._beginning.setdefault(run_id, [])
        self._durable.in_background(self._write_elsewhere(handle, record))
        return handle

    async def _write_elsewhere(self, handle: Run[Any], record: RunRecord) -> None:
        try:
            await self._durable.commit(beginning(record))
            found, _ = await self._found(record.id)
        except Exception as error:
            self._scheduler.conclude(handle, Failed(error))
        else:
            if found.program != record.program:
                self._scheduler.conclude(handle, Failed(_conflict(record.id, found.program)))
            else:
                self._durable.elsewhere.watch(handle)
        self.has_begun(record.id)

    def _conclude(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        self._runs.pop(run.id, None)
        self._scheduler.conclude(run, outcome)
        self.has_begun(run.id)


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
