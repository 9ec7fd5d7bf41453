"""What a refused write means on a log that several nodes share. The log is asked; nothing is guessed.

A batch of a run is refused for one of four reasons. An earlier try of the same batch was stored and only its answer got
lost: then what it wrote is there, byte for byte, and all is well. The node's lease was taken: then the run is others'
business. Somebody else ended the run or has it: the same. Or a handler's own writes expected something that is not so:
then the run fails, as on a log of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.log import LogUnavailable, Put, Record
from mainspring.runs.durable.records import JOURNAL, LIVE, RUNS, decode_record, encode_record
from mainspring.runs.errors import TakenOver
from mainspring.runs.outcome import Failed, Outcome, Value
from mainspring.runs.run import FAILURE, RESUME, Run

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns
    from mainspring.runs.durable.state import DurableState

PAUSE_MS: Final = 200  # before a log that could not be read is asked again

T = TypeVar("T")


class Refusals:
    """Looks into the log for the runs of one node."""

    def __init__(self, runs: DurableRuns) -> None:
        self._runs = runs
        self.pausing: int = 0

    def of_answer(self, run: Run[Any], value: Any, put: Put, error: Exception) -> None:
        """An answer that was to be stored with a handler's own writes."""
        self._runs.in_background(self._answer(run, value, put, error))

    def of_ending(self, run: Run[Any], state: DurableState, had_own_writes: bool, error: Exception) -> None:
        """An outcome, perhaps with the writes of the handler that ended the run."""
        self._runs.in_background(self._ending(run, state, had_own_writes, error))

    async def _answer(self, run: Run[Any], value: Any, put: Put, error: Exception) -> None:
        stored = await self._found(JOURNAL, put.key)
        was_stored = stored is not None and stored.value == put.value
        if not was_stored and not await self.still_entitled():
            return
        if not run._done:
            scheduler = run._scheduler
            scheduler.enqueue(run, RESUME if was_stored else FAILURE, value if was_stored else error)

    async def _ending(self, run: Run[Any], state: DurableState, had_own_writes: bool, error: Exception) -> None:
        ended = await self._found(RUNS, run.id)
        if ended is not None:
            self._ended(run, state, ended)
            return
        live = await self._found(LIVE, run.id)
        if live is None or not self._runs.tenure.owns(decode_record(live.value)):
            self._runs.lose(run)
        elif await self.still_entitled():
            state.version = live.version
            if had_own_writes and isinstance(run._outcome, Value):
                run._outcome = Failed(error)
            state.settle(run, _outcome(run))

    def _ended(self, run: Run[Any], state: DurableState, ended: Record) -> None:
        if ended.value == encode_record(state.record):
            run._scheduler.announce(run)
            return
        outcome = self._runs.outcome_of(decode_record(ended.value))
        assert outcome is not None
        self._runs.lose(run, outcome)

    async def still_entitled(self) -> bool:
        """Whether this node's guard holds. When it does not, its runs are let go."""
        epoch = self._runs.tenure.epoch
        try:
            if await self._runs.commit([]):
                return True
        except TakenOver:
            return False
        self._runs.tenure.lost(epoch)
        return False

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._runs.in_background(work)

    async def _found(self, space: str, key: str) -> Record | None:
        return await self.insist(lambda: self._runs.log.get(space, key))

    async def insist(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read until the log can be read."""
        while True:
            try:
                return await read()
            except LogUnavailable:
                await self.pause()

    async def pause(self) -> None:
        """Leave the log alone for a moment."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runs.after(PAUSE_MS, lambda: None if over.done() else over.set_result(None))
        self.pausing += 1
        try:
            await over
        finally:
            self.pausing -= 1


def _outcome(run: Run[Any]) -> Outcome[Any]:
    assert run._outcome is not None
    return run._outcome
