"""The one way durable runs write: gathered per host turn, guarded by what entitles the node.

Answers of many runs share one batch and one guard, because a batch costs the engine nearly the same whether it holds
one row or a thousand. Writes that may be refused on their own (a new run's record, a handler's own writes) get a batch
each, so that a refusal hits only its run. Every batch carries the guard of the node's ownership
(`cluster/ownership.py`): after another node took its place, nothing of this one is stored any more, however late it
wakes up. On a log of its own there is nothing to guard against, and the guard is empty.

While there is no guard writes wait. When the log cannot write, what was decided is kept and tried again: an answer is
never lost, only late. That is right also when a write may have been stored without our hearing of it: gathered answers
may be stored twice, they are the same bytes in the same place; what gets a batch of its own names what it expects to
find, so that the second try is refused, and the log is asked what happened.

What was not stored when the ownership ended is given back with `TakenOver`. It must not be tried again under the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mainspring.log import Batch, Log, LogUnavailable, Operation, Put, Receipt, Refused
from mainspring.retries import Backoff
from mainspring.runs.errors import TakenOver
from mainspring.runs.run import FAILURE, Run

if TYPE_CHECKING:
    from mainspring.runs.scheduler import Scheduler

logger: logging.Logger = logging.getLogger("mainspring.runs")

RETRY: Final = Backoff(50, 5_000)  # a full disk is not freed faster than that

Result = Receipt | Exception


class JournalWriter:
    """Gathers and submits the writes of one runtime's durable runs."""

    def __init__(self, log: Log, scheduler: Scheduler) -> None:
        self._log = log
        self._scheduler = scheduler
        self._guard: list[Operation] | None = None
        self._given_back = 0  # how often everything was given back
        self._puts: list[Operation] = []
        self._answers: list[tuple[Run[Any] | None, Any]] = []  # one for each put: who waits for it, with what
        self._alone: list[tuple[list[Operation], Callable[[Result], None]]] = []
        self._together: list[tuple[list[Operation], Callable[[Result], None]]] = []
        self._planned = False
        self._retry = RETRY.series()
        self.written: int = 0  # entries of journals, and batches that stand alone
        self._stalled = False
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        scheduler.after_pump = self._planned_flush
        self.on_need: Callable[[], object] = lambda: None  # called when writes wait and there is no guard
        self.on_fenced: Callable[[], None] = lambda: None  # called when the guard is refused

    @property
    def busy(self) -> bool:
        """Whether something is being stored; false while the log is left alone for a moment because it cannot write."""
        waiting = bool(self._puts or self._alone or self._together)
        return bool(self._under_way) or (waiting and not self._stalled)

    async def quiet(self) -> None:
        """Wait until nothing is waiting to be stored."""
        await self._quiet.wait()

    # -- what to write

    def answer(self, put: Put, run: Run[Any], answer: Any) -> None:
        """Store a journal entry, then let the run go on with its answer."""
        self._puts.append(put)
        self._answers.append((run, answer))
        if not self._planned:
            self._plan()

    def note(self, operation: Operation) -> None:
        """Store something that no run waits for, not before what was to be stored until now."""
        self._puts.append(operation)
        self._answers.append((None, None))
        if not self._planned:
            self._plan()

    def alone(self, operations: list[Operation], done: Callable[[Result], None]) -> None:
        """Store this batch by itself; `done` gets the receipt or the refusal, or `TakenOver`."""
        self._alone.append((operations, done))
        if not self._planned:
            self._plan()

    def together(self, operations: list[Operation], done: Callable[[Result], None]) -> None:
        """`alone` for writes that are hardly ever refused: many share a batch, and only if it fails each gets its own.

        `done` gets a receipt without offsets, and with the versions of its own puts.
        """
        self._together.append((operations, done))
        if not self._planned:
            self._plan()

    # -- the guard

    def hold(self) -> None:
        """Submit nothing until `use` says what to guard it with."""
        self._guard = None

    def use(self, guard: list[Operation]) -> None:
        """Writes carry these guards from now on."""
        self._guard = guard
        self._flush()

    def give_back(self) -> None:
        """The ownership is over: what waits, and what is under way and not stored, is given back."""
        self._given_back += 1
        items = [*self._alone, *self._together]
        self._puts, self._answers, self._alone, self._together = [], [], [], []
        for _, done in items:
            done(taken_over())
        self._rest()

    # -- submitting

    def _plan(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the loop is gone, and with it the log: what waits here is decided again after the restart
        self._planned = True
        self._quiet.clear()
        if not self._scheduler.pumping:  # else the end of this turn is soon enough, and one turn of the loop sooner
            loop.call_soon(self._planned_flush)

    def _planned_flush(self) -> None:
        if not self._planned:
            return
        self._planned = False
        if self._guard is None:
            self.on_need()
        self._flush()

    def _flush(self) -> None:
        if self._guard is None or self._stalled:
            return
        guard = self._guard
        alone, self._alone = self._alone, []
        together, self._together = self._together, []
        if len(together) > 1:
            operations = [operation for item in together for operation in item[0]]
            self._submit(Batch([*guard, *operations]), lambda result: self._together_result(together, result))
        else:
            alone += together
        if self._puts:
            puts, answers = self._puts, self._answers
            self._puts, self._answers = [], []
            self.written += len(puts)
            self._submit(Batch([*guard, *puts]), lambda result: self._answers_result(puts, answers, result))
        for operations, done in alone:
            self.written += 1
            self._submit(Batch([*guard, *operations]), self._alone_result(operations, done))
        self._rest()

    def _submit(self, batch: Batch, done: Callable[[Result], None]) -> None:
        self._under_way += 1
        self._quiet.clear()
        given_back = self._given_back

        def decided(result: Result) -> None:
            self._under_way -= 1
            done(result if given_back == self._given_back or isinstance(result, Receipt) else taken_over())
            self._rest()

        self._log.submit(batch, decided)

    def _rest(self) -> None:
        if not self.busy and not self._planned:
            self._quiet.set()

    def _answers_result(
        self, puts: list[Operation], answers: list[tuple[Run[Any] | None, Any]], result: Result
    ) -> None:
        if isinstance(result, Receipt):
            if self._retry.failures:
                self._retry.succeeded()
            self._scheduler.resume_all(answers)
        elif isinstance(result, TakenOver):
            return
        elif isinstance(result, Refused):
            self.on_fenced()
        elif isinstance(result, LogUnavailable):
            self._puts, self._answers = puts + self._puts, answers + self._answers
            self._try_again(result)
        else:  # one of them cannot be stored: find it by storing each alone
            for put, (run, answer) in zip(puts, answers, strict=True):
                self.alone([put], self._single_result(run, answer))

    def _together_result(self, items: list[tuple[list[Operation], Callable[[Result], None]]], result: Result) -> None:
        if isinstance(result, Receipt):
            first = 0
            for operations, done in items:
                last = first + sum(isinstance(operation, Put) for operation in operations)
                done(Receipt(versions=result.versions[first:last]))
                first = last
        elif isinstance(result, TakenOver):
            for _, done in items:
                done(result)
        else:  # which of them was refused, and whether only for now, each finds out alone
            for operations, done in items:
                self.alone(operations, done)

    def _single_result(self, run: Run[Any] | None, answer: Any) -> Callable[[Result], None]:
        def decided(result: Result) -> None:
            if isinstance(result, Receipt):
                self._scheduler.resume_all([(run, answer)])
            elif run is not None and not run.done:
                self._scheduler.enqueue(run, FAILURE, result)

        return decided

    def _alone_result(self, operations: list[Operation], done: Callable[[Result], None]) -> Callable[[Result], None]:
        def decided(result: Result) -> None:
            if isinstance(result, LogUnavailable):
                self._alone.insert(0, (operations, done))
                self._try_again(result)
            else:
                done(result)

        return decided

    def _try_again(self, error: Exception) -> None:
        if self._stalled:
            return
        self._stalled = True
        delay = self._retry.failed()
        logger.warning("the log cannot write, durable runs wait %d ms: %s", delay, error)
        self._scheduler.timer(delay, self._unstall)

    def _unstall(self) -> None:
        self._stalled = False
        self._flush()


def taken_over() -> TakenOver:
    return TakenOver(
        "this node lost its lease before the write was stored", remedy="the run goes on elsewhere; ask again"
    )
