"""What a handler is given besides the effect, and the answer that comes later.

A handler is a function or a coroutine. A coroutine needs an asyncio loop; a plain function that cannot answer at once
returns `ctx.later()` and answers through it when it can, from a timer, a callback or another thread. The first answer
counts; a second one is told so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainspring.log import Batch
from mainspring.runs.effects import resume
from mainspring.runs.errors import AlreadyAnswered, RunError
from mainspring.runs.holding import hold, hold_timer
from mainspring.runs.values import decode

if TYPE_CHECKING:
    from mainspring.runs.handlers import Handled
    from mainspring.runs.run import Run
    from mainspring.runs.scheduler import Scheduler

logger: logging.Logger = logging.getLogger("mainspring.runs")


class Context:
    """The handler's view of the run whose effect it answers. One per run."""

    __slots__ = ("_run", "_scheduler")

    def __init__(self, run: Run[Any], scheduler: Scheduler) -> None:
        self._run = run
        self._scheduler = scheduler

    @property
    def run_id(self) -> str:
        """The id of the run that performs the effect."""
        return self._run.id

    @property
    def run(self) -> Run[Any]:
        """The handle of the run, for example to cancel it."""
        return self._run

    @property
    def step(self) -> int:
        """The number of the step that performed the effect, from 0."""
        return self._run._steps - 1

    @property
    def cancelled(self) -> bool:
        """Whether the run is over; an answer would be dropped."""
        return self._run._done

    @property
    def durable(self) -> bool:
        """Whether the run keeps a journal."""
        return self._run._durable is not None

    @property
    def key(self) -> str:
        """An idempotency key: the same text for this effect of this run, also when it is performed again after a crash.

        Pass it to whatever must not happen twice.
        """
        durable = self._run._durable
        return f"{self._run.id}#{self.step if durable is None else durable.position:08d}"

    @property
    def batch(self) -> Batch:
        """Writes put here are stored together with the answer: both or neither. Durable runs only."""
        durable = self._run._durable
        if durable is None:
            raise RunError(
                f"run {self._run.id} is not durable and has no batch", remedy="ask ctx.durable before using ctx.batch"
            )
        return durable.batch

    def after_commit(self, done: Callable[[Any], object]) -> None:
        """Call `done(receipt)` when `batch` was stored with the answer."""
        durable = self._run._durable
        if durable is not None:
            durable.after_commit.append(done)

    def forget_writes(self) -> None:
        """Take back what was put into `batch` for this effect, and `after_commit` with it."""
        if self._run._durable is not None:
            self._run._durable.forget_writes()

    def remember(self, note: Any) -> None:
        """Keep a JSON value for this effect until it is answered, over a crash. Without a journal: no effect."""
        if self._run._durable is not None:
            self._run._durable.remember(self._run, note)

    def recall(self) -> Any:
        """What `remember` kept for this effect before the run was interrupted; None if nothing."""
        durable = self._run._durable
        return None if durable is None else decode(durable.note)

    def now_ms(self) -> int:
        """Monotonic time of the runtime's clock."""
        return self._scheduler.clock.now_ms()

    def wall_ms(self) -> int:
        """Epoch time of the runtime's clock."""
        return self._scheduler.clock.wall_ms()

    def on_close(self, cleanup: Callable[[], object]) -> None:
        """Call `cleanup` once when the run ends, however it ends, in order of registration; at once when it is over.

        Its errors are logged and change nothing.
        """
        run = self._run
        if run._done:
            run_cleanup(cleanup, run.id)
        elif run._closers is None:
            run._closers = [cleanup]
        else:
            run._closers.append(cleanup)

    def later(self) -> Later:
        """Return this from a plain handler to answer afterwards."""
        handled = self._run._asked
        if handled is None:
            raise AlreadyAnswered(
                f"run {self._run.id} waits for no answer", remedy="call ctx.later() inside the handler"
            )
        return Later(self._run, self._scheduler, handled)

    def after(self, delay_ms: float, call: Callable[[], object]) -> int:
        """Call `call` once when the time has passed; forgotten when the effect is over. Gives an id for `forget`."""
        return hold_timer(self._run, delay_ms, call)

    async def pause(self, ms: float) -> bool:
        """Wait for so long on the runtime's clock; False when the node stops, which ends the wait early."""
        pauses = self._scheduler.pauses
        over = asyncio.Event()
        pauses.add(over)
        self.after(ms, over.set)
        try:
            if not self._scheduler.finishing:
                await over.wait()
        finally:
            pauses.discard(over)
        return not self._scheduler.finishing

    def on_release(self, release: Callable[[], object]) -> None:
        """Call `release` when this effect is over: answered, timed out, or its run ended."""
        hold(self._run, release)


class Later:
    """An answer that is still to come. May be answered from any thread, once."""

    __slots__ = ("_handled", "_run", "_scheduler", "_step", "answered")

    def __init__(self, run: Run[Any], scheduler: Scheduler, handled: Handled) -> None:
        self._run = run
        self._scheduler = scheduler
        self._handled = handled
        self._step = run._steps
        self.answered: bool = False

    def resume(self, value: Any = None) -> None:
        """Answer with `resume(value)`."""
        self.answer(resume(value))

    def answer(self, answer: Any) -> None:
        """Answer like a returned value: `resume`, `tail`, `end`, or a bare value."""
        self._once()
        self._scheduler.answer_later(self._run, self._step, self._handled, answer, None)

    def fail(self, error: BaseException) -> None:
        """Fail the run with `error`, as if the handler had raised it."""
        self._once()
        self._scheduler.answer_later(self._run, self._step, self._handled, None, error)

    def _once(self) -> None:
        if self.answered:
            raise AlreadyAnswered(
                f"the effect of step {self._step - 1} of run {self._run.id} was answered already",
                remedy="answer each effect once; the first answer was applied",
            )
        self.answered = True


def run_cleanup(cleanup: Callable[[], object], run_id: str) -> None:
    """Run one cleanup; a coroutine is finished on the running loop. Errors are logged."""
    try:
        result = cleanup()
    except Exception:
        logger.exception("a cleanup of run %s failed", run_id)
        return
    if asyncio.iscoroutine(result):
        try:
            task = asyncio.get_running_loop().create_task(result)
        except RuntimeError:
            result.close()
            logger.error("a cleanup of run %s is a coroutine and no asyncio loop is running", run_id)
        else:
            _cleanups.add(task)
            task.add_done_callback(lambda done: _cleanup_done(done, run_id))


_cleanups: set[asyncio.Task[Any]] = set()  # keeps them alive until they are done


def _cleanup_done(task: asyncio.Task[Any], run_id: str) -> None:
    _cleanups.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logger.error("a cleanup of run %s failed", run_id, exc_info=task.exception())
