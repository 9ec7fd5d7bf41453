"""One run: its state, and the handle that people hold.

The scheduler alone changes a run's state, in `scheduler.py`; this file keeps the data together and offers what a holder
may do: look at the id, wait for the outcome, cancel. A run can be awaited from three places, and each needs its own way
to wait: inside another program (a suspension of that program), on the runtime's own asyncio loop (a future), and on any
other asyncio loop, also in another thread (a future that is settled thread-safely).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from mainspring.runs.errors import RunCancelled, RunError
from mainspring.runs.outcome import Cancelled, Failed, Outcome, Value

if TYPE_CHECKING:
    from mainspring.runs.context import Context
    from mainspring.runs.durable.state import DurableState
    from mainspring.runs.handlers import Handled
    from mainspring.runs.lineage import Lineage
    from mainspring.runs.scheduler import Scheduler
    from mainspring.runs.tree import Family

T = TypeVar("T")

# What a queued run brings to the tick that takes it out of the queue.
START, RESUME, VALUE, FAILURE = range(4)


class Run(Generic[T]):
    """A started program. Keep it to wait for the outcome or to cancel; dropping it does not stop the run."""

    __slots__ = (
        "__weakref__",
        "_answer",
        "_asked",
        "_brings",
        "_close",
        "_closers",
        "_context",
        "_done",
        "_durable",
        "_family",
        "_lineage",
        "_outcome",
        "_queued",
        "_releases",
        "_scheduler",
        "_send",
        "_settled",
        "_steps",
        "_waiters",
        "id",
        "program",
    )

    def __init__(self, run_id: str, program: str, scheduler: Scheduler) -> None:
        self.id: str = run_id
        self.program: str = program
        self._scheduler = scheduler
        self._send: Callable[[Any], Any] | None = None
        self._close: Callable[[], None] | None = None
        self._brings = START
        self._answer: Any = None
        self._queued = False
        self._done = False  # the outcome is decided
        self._settled = False  # and the world may know (a durable run first writes it down)
        self._outcome: Outcome[T] | None = None
        self._steps = 0
        self._waiters: list[asyncio.Future[Outcome[T]]] = []
        self._closers: list[Callable[[], object]] | None = None
        self._asked: Handled | None = None  # whose answer is awaited
        self._releases: list[Callable[[], object] | int] | None = None  # what the current effect holds: see holding.py
        self._context: Context | None = None
        self._family: Family | None = None
        self._durable: DurableState | None = None
        self._lineage: Lineage | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.program}: {self.state}>"

    @property
    def state(self) -> str:
        """running, value, failed or cancelled."""
        if not self._done:
            return "running"
        return {Value: "value", Failed: "failed"}.get(type(self._outcome), "cancelled")

    @property
    def is_durable(self) -> bool:
        """Whether the run keeps a journal."""
        return self._durable is not None

    @property
    def steps(self) -> int:
        """How many steps the run has taken in this process."""
        return self._steps

    def is_done(self) -> bool:
        """Whether the outcome is decided."""
        return self._done

    def outcome_now(self) -> Outcome[T] | None:
        """The outcome if it is known, without waiting."""
        return self._outcome if self._settled else None

    def cancel(self, reason: Any = None) -> bool:
        """End the run now. True only for the call that ended it; the reason object is kept as it is."""
        return self._scheduler.cancel(self, reason)

    def unref(self) -> None:
        """Let the owner end without waiting for this run; it is cancelled then. Without an owner: no effect."""
        self._scheduler.unref(self)

    async def outcome(self) -> Outcome[T]:
        """Wait for the outcome. Giving up waiting leaves the run alone."""
        return await _Waiting(self)

    def __await__(self) -> Generator[Any, Any, T]:
        """The value; raises the error of a failed run, and RunCancelled for a cancelled one."""
        outcome = yield from _Waiting(self).__await__()
        return unwrap(self.id, outcome)


def unwrap(run_id: str, outcome: Outcome[T]) -> T:
    """The value of an outcome, or its exception."""
    if isinstance(outcome, Value):
        return outcome.value
    if isinstance(outcome, Cancelled):
        raise RunCancelled(run_id, outcome.reason)
    if isinstance(outcome.error, Exception):
        raise outcome.error
    # A CancelledError or KeyboardInterrupt that ended a run must not cancel or stop the one who waits for it.
    raise RunError(f"run {run_id} failed with {type(outcome.error).__name__}") from outcome.error


class _Waiting(Generic[T]):
    """Waits for a run's outcome from wherever it is awaited."""

    __slots__ = ("_run",)

    def __init__(self, run: Run[T]) -> None:
        self._run = run

    def __await__(self) -> Generator[Any, Any, Outcome[T]]:
        run, scheduler = self._run, self._run._scheduler
        if scheduler.stepping_here():
            return cast(Outcome[T], (yield scheduler.join_request(run)))
        known = run.outcome_now()
        if known is not None:
            return known
        future: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()
        run._waiters.append(future)
        known = run.outcome_now()
        if known is not None:  # another thread settled it between the look and the entry
            return known
        scheduler.offer_loop()
        try:
            return (yield from future.__await__())
        finally:
            if future in run._waiters:
                run._waiters.remove(future)


def release_waiters(run: Run[Any]) -> None:
    """Give the outcome to everyone who waits, each on the loop they wait on."""
    waiters, run._waiters = run._waiters, []
    for future in waiters:
        loop = future.get_loop()
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            _give(future, run._outcome)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(_give, future, run._outcome)


def _give(future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)
