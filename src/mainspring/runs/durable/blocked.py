"""Runs whose journal does not fit their program: blocked, not failed.

A deploy can bring code that does not do what a journal says. Such a run is neither over nor lost: it stays among the
unfinished ones, keeps its signals, and its record says why it cannot go on. Its program is closed, and the runs below
it go on; it can be cancelled like any other.

It is executed again from its journal when the node starts, when its program is registered again, and when somebody
asks for a retry: fitting code goes on, other code blocks it again. A retry may also give up a part of the journal,
so that the code of now goes on from the last effect that fits, or from the start.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mainspring.log import Delete, Operation, Put, Receipt, Refused
from mainspring.runs.durable.records import (
    BLOCKED,
    DONE,
    JOURNAL,
    LIVE,
    PROGRESS,
    RUNNING,
    RUNS,
    SIGNALS,
    UPDATES,
    RunRecord,
    decode_record,
    done_key,
    encode_record,
    entry_key,
)
from mainspring.runs.durable.store import CHILD_MARK, LoadedRun, is_readable
from mainspring.runs.durable.writer import Result
from mainspring.runs.errors import ReplayMismatch, TakenOver
from mainspring.runs.programs import decode_arguments
from mainspring.runs.run import START, Run
from mainspring.runs.values import error_fields

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns
    from mainspring.runs.durable.state import DurableState

logger: logging.Logger = logging.getLogger("mainspring.runs")

Keep = Literal["all", "fitting", "nothing"]
"""What a retry keeps of the journal."""


class BlockedRuns:
    """The blocked runs that this process has."""

    def __init__(self, durable: DurableRuns) -> None:
        self.on_blocked: list[Callable[[Run[Any], ReplayMismatch], object]] = []
        self._durable = durable
        self._runs: dict[str, Run[Any]] = {}
        self._again: set[str] = set()  # to be executed again once their record is stored
        durable.scheduler.on_fit = self._on_fit
        durable.programs.on_new.append(self._on_registered)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    def forget(self, run_id: str) -> None:
        """A run is over, or no longer this process's."""
        self._runs.pop(run_id, None)
        self._again.discard(run_id)

    # -- blocking

    def _on_fit(self, run: Run[Any], misfit: ReplayMismatch | None) -> None:
        """The journal of a run turned out to fit its program, or not to."""
        state = _state(run)
        if misfit is None:
            state.record.state, state.record.error = RUNNING, None
            self._rewrite(run)
            return
        state.misfit, state.entries = misfit, None
        self._runs[run.id] = run
        self._durable.scheduler.stop(run, _below(run))
        why = error_fields(misfit)
        if (state.record.state, state.record.error) == (BLOCKED, why):
            return
        logger.warning("run %s is blocked: %s", run.id, misfit)
        state.record.state, state.record.error = BLOCKED, why
        self._rewrite(run)
        for listener in self.on_blocked:
            listener(run, misfit)

    def arguments_misfit(self, run: Run[Any], error: Exception) -> None:
        """The stored arguments of a run are not its program's any more."""
        text = f"the arguments of run {run.id} do not fit its program:\n  {type(error).__name__}: {error}"
        self._on_fit(run, ReplayMismatch(text, remedy="let the program take the old arguments too, then retry the run"))

    def journal_damaged(self, run: Run[Any], damage: str) -> None:
        """Something that belongs to the journal of a run cannot be read, and without it the run might act twice."""
        text = f"the journal of run {run.id} is damaged: {damage}"
        remedy = "restore the log from a backup, retry the run without its journal (--keep nothing), or cancel it"
        self._on_fit(run, ReplayMismatch(text, remedy=remedy))

    def _rewrite(self, run: Run[Any], *others: Operation) -> None:
        """Store the record of an unfinished run again; an end that comes meanwhile is stored after it."""
        state = _state(run)
        state.rewriting = True
        state.record.updated = self._durable.clock.wall_ms()
        put = Put(LIVE, run.id, encode_record(state.record), state.version)
        self._durable.writer.together([put, *others], partial(self._rewritten, run, put, others))

    def _rewritten(self, run: Run[Any], put: Put, others: tuple[Operation, ...], result: Result) -> None:
        if isinstance(result, Receipt):
            self._stored(run, self._durable.ownership.expected(result.versions[0]))
        elif isinstance(result, Refused):
            self._durable.in_background(self._look_at_record(run, put, others), f"refused record of {run.id}")
        elif not isinstance(result, TakenOver):
            logger.error("the record of run %s cannot be stored: %s", run.id, result)
            self._stored(run, _state(run).version)

    async def _look_at_record(self, run: Run[Any], put: Put, others: tuple[Operation, ...]) -> None:
        """An earlier try was stored, the node's lease is over, or another node has the run."""
        ownership = self._durable.ownership
        live = await ownership.read(lambda: self._durable.log.get(LIVE, run.id))
        if live is not None and live.value == put.value:
            self._stored(run, ownership.expected(live.version))
        elif live is None or not ownership.owns(decode_record(live.value)):
            self._durable.lose(run)
        elif await ownership.still_entitled():
            _state(run).version = ownership.expected(live.version)
            self._rewrite(run, *others)

    def _stored(self, run: Run[Any], version: int) -> None:
        state = _state(run)
        state.version, state.rewriting = version, False
        if run.done and run.decided is not None:
            state.settle(run.decided)
        elif run.id in self._again:
            self._again.discard(run.id)
            self.execute_again(run)

    # -- going on

    def _on_registered(self, program: str) -> None:
        for run in [each for each in self._runs.values() if each.program == program]:
            self.execute_again(run)

    def execute_again(self, run: Run[Any]) -> None:
        """Execute a blocked run from its journal: it goes on, or is blocked again."""
        if _state(run).rewriting:
            self._again.add(run.id)
        else:
            self._durable.in_background(self._execute_again(run), f"execute run {run.id} again")

    async def _execute_again(self, run: Run[Any]) -> None:
        durable, state = self._durable, _state(run)
        durable.signals.hold([run.id])
        try:
            loaded = await durable.ownership.read(lambda: durable.ownership.load([state.record]))
            if self._runs.get(run.id) is run and not run.done and not state.rewriting and loaded:
                del self._runs[run.id]
                self._begin(run, loaded[0])
        finally:
            durable.signals.release([run.id])

    def _begin(self, run: Run[Any], loaded: LoadedRun) -> None:
        _state(run).begin_anew()
        self._durable.prepare(run, loaded)
        program = self._durable.programs.get(run.program)
        if loaded.damage:
            self.journal_damaged(run, loaded.damage)
            return
        try:
            self._durable.bind(run, program, decode_arguments(program, loaded.record.args))
        except Exception as error:
            self.arguments_misfit(run, error)
            return
        if not loaded.entries:
            self._on_fit(run, None)
        self._durable.scheduler.enqueue(run, START, None)

    async def give_away(self) -> None:
        """Leave blocked runs to nodes that have the code which wrote their journals."""
        durable = self._durable
        for run in list(self._runs.values()):
            state = _state(run)
            if run.done or state.rewriting or not durable.ownership.fits_elsewhere(state.record):
                continue
            freed = [Put(LIVE, run.id, encode_record(_without_owner(state.record)), state.version)]
            async for stored in durable.log.scan(LIVE, run.id + CHILD_MARK):
                child = decode_record(stored.value)
                if durable.ownership.owns(child) and not durable.executes(child.id):
                    freed.append(Put(LIVE, child.id, encode_record(_without_owner(child)), stored.version))
            if await durable.commit([*freed]):
                durable.lose(run)

    async def retry(self, run: Run[Any], keep: Keep, request: str = "") -> None:
        """Execute a blocked run again, without the part of its journal that is given up.

        What was answered there is done again, and children that were started there are forgotten with all they did.
        `request` is the record that asked for it.
        """
        state, spawned = _state(run), 0 if run.family is None else run.family.spawned
        dropped: list[Operation] = [Delete(SIGNALS, request)] if request else []
        if keep != "all":
            kept, first_child = (state.position, spawned) if keep == "fitting" else (0, 0)
            dropped += [each async for each in self.forgetting(run.id, kept, first_child)]
        if run.id not in self._runs or run.done:
            return
        state.record.retries += 1
        self._again.add(run.id)
        self._rewrite(run, *dropped)

    async def forgetting(self, run_id: str, effects: int, children: int) -> AsyncIterator[Operation]:
        """What removes a journal but its first `effects`, and all but the first `children` with those below them."""
        log, store = self._durable.log, self._durable.store
        for space in (JOURNAL, UPDATES):
            async for row in store.rows(space, f"{run_id}#"):
                if row.key >= entry_key(run_id, effects):
                    yield Delete(space, row.key)
        async for row in store.rows(SIGNALS, f"{run_id}#"):
            if not is_readable(SIGNALS, row):
                yield Delete(SIGNALS, row.key)
        for space in (LIVE, RUNS):
            async for stored in log.scan(space, run_id + CHILD_MARK):
                if int(stored.key[len(run_id) + 1 :].partition(CHILD_MARK)[0]) <= children:
                    continue
                self._durable.drop(stored.key)
                record = decode_record(stored.value)
                yield Delete(space, stored.key)
                yield Delete(PROGRESS, stored.key)
                if space == RUNS:
                    yield Delete(DONE, done_key(record.updated, record.id))
                for rows in (JOURNAL, SIGNALS, UPDATES):
                    async for row in store.rows(rows, f"{stored.key}#"):
                        yield Delete(rows, row.key)


def _below(run: Run[Any]) -> Iterator[Run[Any]]:
    """The live runs below another."""
    if run.family is not None:
        for child in (*run.family.children, *run.family.detached):
            yield child
            yield from _below(child)


def _without_owner(record: RunRecord) -> RunRecord:
    """The record as it was before this node took the run."""
    code = record.former_code or record.code
    return msgspec.structs.replace(record, owner=None, epoch=0, code=code, former_code="")


def _state(run: Run[Any]) -> DurableState:
    assert run.durable is not None
    return run.durable
