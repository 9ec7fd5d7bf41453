"""How durable runs begin.

A run is started by writing its record with the expectation that none is there; its first step waits for that write.
When the record is there already, the same id was started before, here or on another node, in this life or an earlier
one, and the handle becomes a handle of that run: its outcome if it is over, the run itself if this node owns it, and
otherwise a handle that gets the outcome from the log. A run of another program or with other arguments is a conflict:
somebody gave two runs one id, and the second one must not vanish in silence.

On a log that several nodes share, a run whose program only others have is written down without an owner, and one of
them takes it. What is started while nothing entitles this node is written when something does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.log import Put, Receipt, Refused
from mainspring.loop import wake
from mainspring.runs.durable.records import LIVE, RunRecord, beginning, check_id, encode_record
from mainspring.runs.durable.writer import Result
from mainspring.runs.errors import NoHostLoop, RunConflict, TakenOver, UnknownRun
from mainspring.runs.programs import decode_arguments, encode_arguments
from mainspring.runs.run import Failed, Outcome, Run
from mainspring.runs.values import Raw, decode, encode

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns


class Starting:
    """Starts the durable runs of one runtime."""

    def __init__(self, durable: DurableRuns, runs: dict[str, Run[Any]]) -> None:
        self._durable = durable
        self._ownership = durable.ownership
        self._scheduler = durable.scheduler
        self._runs = runs
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # for the beginning of a run to be stored
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
        if isinstance(program, str) and not self._ownership.executes(program):
            return self._start_remotely(program, args, self._durable.fresh_id() if run_id is None else check_id(run_id))
        name = self._durable.programs.name_for(program, declared=parent is None and self._scheduler.raises)
        program = self._durable.programs.get(name)
        encoded = encode_arguments(program, args)
        if run_id is None:
            run_id = self._durable.fresh_id()
        elif parent is None:
            check_id(run_id)
        existing = self._runs.get(run_id)
        if existing is not None and existing.durable is not None:
            self.require_same(existing.durable.record, name, encoded)
            return existing
        record = self._durable.new_record(run_id, name, encoded)
        record.parent, record.attached = (None, False) if parent is None else (parent.id, attached)
        run = self._durable.new_run(record, program, opened=False)
        self._write_start(run, parent)
        return run

    async def written(self, run: Run[Any]) -> None:
        """Wait until it is stored that a run began, or that it had begun before."""
        begins_here = run.id in self._runs and run.durable is not None and not run.durable.opened
        if begins_here or run.id in self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(run.id, []).append(waiter)
            await waiter
        if isinstance(run.decided, Failed) and isinstance(run.decided.error, RunConflict):
            raise run.decided.error

    def require_same(self, record: RunRecord, program: str, args: Raw) -> None:
        """RunConflict unless the run that has this id is one of this program with these arguments."""
        if record.program != program:
            raise RunConflict(
                f"run {record.id} is a run of {record.program}, not of {program}",
                remedy="give each run an id of its own, for example event.id",
            )
        if bytes(record.args) != bytes(args) and not self._means_the_same(program, record.args, args):
            raise RunConflict(
                f"run {record.id} of {program} was started with other arguments",
                remedy="give each run an id of its own, for example event.id",
            )

    def _means_the_same(self, program: str, one: Raw, other: Raw) -> bool:
        """Whether arguments that are written differently are equal, as JSON or as the program declares them."""
        if decode(one) == decode(other):
            return True
        if program not in self._durable.programs:
            return False
        declared = self._durable.programs.get(program)
        try:
            return decode_arguments(declared, one) == decode_arguments(declared, other)
        except msgspec.ValidationError:  # stored by a former version of the program
            return False

    def release(self, run_id: str) -> None:
        """The beginning of a run is stored, here or by another node: those who wait for it go on."""
        for waiter in self._waiting.pop(run_id, ()):
            wake(waiter)

    def write_unwritten(self) -> None:
        """This node is entitled again: begin what was started meanwhile."""
        unwritten, self._unwritten = self._unwritten, []
        for run in unwritten:
            if run.id in self._runs:
                self._write_start(run)

    def _write_start(self, run: Run[Any], parent: Run[Any] | None = None) -> None:
        assert run.durable is not None
        record = run.durable.record
        if not self._ownership.entitled():
            self._unwritten.append(run)
            return
        self._ownership.sign(record)
        operations = beginning(record)
        if parent is not None and parent.durable is not None and not parent.durable.record.has_children:
            parent.durable.record.has_children = True
            operations.append(Put(LIVE, parent.id, encode_record(parent.durable.record)))
        self._durable.writer.together(operations, lambda result: self._begun(run, result))

    def _begun(self, run: Run[Any], result: Result) -> None:
        state = run.durable
        assert state is not None
        if self._runs.get(run.id) is not run:
            return  # let go meanwhile
        if isinstance(result, Receipt) and state.record.epoch == self._ownership.epoch:
            state.version = self._ownership.expected(result.versions[0])
            self._opened(run)
        elif isinstance(result, TakenOver):
            self._write_start(run)
        elif isinstance(result, Refused | Receipt):
            self._durable.in_background(self._join_existing(run), f"join existing run {run.id}")
        else:
            self._conclude(run, Failed(result))

    def _opened(self, run: Run[Any]) -> None:
        """The record stands: the first step, or the outcome of a run that was cancelled before it."""
        assert run.durable is not None
        run.durable.opened = True
        self.release(run.id)
        if run.done:
            assert run.decided is not None
            run.durable.settle(run.decided)
            return
        self._scheduler.launch(run)
        if run.id in self._durable.signals.early:
            self._durable.signals.give_early(run)

    async def _join_existing(self, run: Run[Any]) -> None:
        try:
            record, version = await self._found(run.id)
        except UnknownRun:  # it was not the record that refused, but the guard
            if await self._ownership.still_entitled() or run.id in self._runs:
                self._write_start(run)
            return
        assert run.durable is not None
        try:
            self.require_same(record, run.program, run.durable.record.args)
        except RunConflict as conflict:
            self._conclude(run, Failed(conflict))
            return
        outcome = self._durable.outcome_of(record)
        if outcome is not None:
            self._conclude(run, outcome)
        elif await self._ownership.take(record, version):
            await self._take_over(run, record)
        else:
            self._durable.lose(run)

    async def _found(self, run_id: str) -> tuple[RunRecord, int]:
        return await self._ownership.read(lambda: self._durable.store.record_with_version(run_id))

    async def _take_over(self, run: Run[Any], record: RunRecord) -> None:
        """Turn a fresh handle into the run that the log already knows."""
        signals = self._durable.signals
        signals.hold([run.id])
        try:
            loaded = await self._ownership.load([record])
            is_ours = bool(loaded) and self._ownership.owns(loaded[0].record)
            if is_ours:
                self._durable.prepare(run, loaded[0])
                if not run.done:
                    program = self._durable.programs.get(record.program)
                    self._durable.bind(run, program, decode_arguments(program, record.args))
                self._opened(run)
        finally:
            signals.release([run.id])
        if not is_ours:
            await self._join_existing(run)  # it changed hands meanwhile: look again

    def _start_remotely(self, program: str, args: tuple[Any, ...], run_id: str) -> Run[Any]:
        """Write a run down that only others can execute; one of them will claim it. Arguments are plain JSON values."""
        record = self._durable.new_record(run_id, program, Raw(encode(list(args), "args")))
        handle = self._durable.handle(record)
        self._waiting.setdefault(run_id, [])
        self._durable.in_background(self._write_remote(handle, record), f"write down run {run_id}")
        return handle

    async def _write_remote(self, handle: Run[Any], record: RunRecord) -> None:
        try:
            await self._durable.commit(beginning(record))
            found, _ = await self._found(record.id)
            self.require_same(found, record.program, record.args)
        except Exception as error:
            self._scheduler.conclude(handle, Failed(error))
        else:
            self._durable.watch(handle)
        self.release(record.id)

    def _conclude(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        self._runs.pop(run.id, None)
        self._scheduler.conclude(run, outcome)
        self.release(run.id)


def _need_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NoHostLoop(
            "durable runs write to the log and need a running asyncio loop", remedy="start them inside one"
        ) from None
