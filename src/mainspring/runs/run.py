"""One run: its state, the handle that people hold, and how it ended.

A holder looks at the id, waits for the outcome and cancels. The state is changed by the scheduler (`scheduler.py`) and,
for what belongs to them, by the handlers, the tree and the journal; it is kept here because a step reads all of it.

A run can be awaited from three places, and each needs its own way to wait: inside another program (a suspension of that
program), on the runtime's own asyncio loop (a future), and on any other asyncio loop, also in another thread (a future
that is settled thread-safely).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

from mainspring.loop import resolve
from mainspring.runs.errors import RunCancelled, RunError

if TYPE_CHECKING:
    from mainspring.runs.durable.state import DurableState
    from mainspring.runs.handlers import EffectContext
    from mainspring.runs.lineage import Lineage
    from mainspring.runs.scheduler import Scheduler
    from mainspring.runs.tree import Family

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


# -- outcomes


@dataclass(frozen=True, slots=True)
class Value(Generic[T_co]):
    """The program returned `value`, or a handler answered `end(value)`."""

    kind: ClassVar[Literal["value"]] = "value"
    value: T_co


@dataclass(frozen=True, slots=True)
class Failed:
    """The program or a handler raised `error`, or the contract between them was broken."""

    kind: ClassVar[Literal["failed"]] = "failed"
    error: BaseException


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody called `cancel(reason)`. Not a failure: no failure sink is called."""

    kind: ClassVar[Literal["cancelled"]] = "cancelled"
    reason: Any = None


Outcome = Value[T_co] | Failed | Cancelled
"""How a run ends. Exactly one of them, and the first one wins; `kind` says which."""


# What a queued run brings to the tick that takes it out of the queue.
START, RESUME, VALUE, FAILURE = range(4)


class Run(Generic[T]):
    """A started program. Keep it to wait for the outcome or to cancel; dropping it does not stop the run."""

    __slots__ = (
        "__weakref__",
        "_waiters",
        "announced",
        "answer",
        "brings",
        "close_program",
        "context",
        "decided",
        "done",
        "durable",
        "family",
        "id",
        "lineage",
        "program",
        "queued",
        "scheduler",
        "send",
        "steps",
        "throw",
    )

    id: str
    program: str

    if TYPE_CHECKING:  # the state: for the modules of this package, not for holders
        scheduler: Scheduler
        send: Callable[[Any], Any]  # resumes the program
        throw: Callable[[BaseException], Any]  # raises an error in the program
        close_program: Callable[[], None] | None  # None: there is nothing to close
        brings: int
        answer: Any
        queued: bool
        done: bool  # the outcome is decided, or others decide it
        announced: bool  # and may be known (a durable run first writes it down)
        decided: Outcome[T] | None
        context: EffectContext | None
        family: Family | None
        durable: DurableState | None
        lineage: Lineage | None

    def __init__(self, run_id: str, program: str, scheduler: Scheduler) -> None:
        self.id = run_id
        self.program = program
        self.scheduler = scheduler
        self.close_program = None
        self.brings = START
        self.answer = None
        self.queued = False
        self.done = False
        self.announced = False
        self.decided = None
        self.steps: int = 0
        """How many steps the run has taken in this process."""
        self.context = None
        self.family = None
        self.durable = None
        self.lineage = None
        self._waiters: list[asyncio.Future[Outcome[T]]] = []

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.program}: {self.state}>"

    @property
    def state(self) -> str:
        """running, blocked, done, failed or cancelled."""
        if not self.done:
            return "running" if self.durable is None or self.durable.misfit is None else "blocked"
        kind = "cancelled" if self.decided is None else self.decided.kind
        return "done" if kind == "value" else kind

    @property
    def is_durable(self) -> bool:
        """Whether the run keeps a journal."""
        return self.durable is not None

    def is_done(self) -> bool:
        """Whether the outcome is decided."""
        return self.done

    def outcome_now(self) -> Outcome[T] | None:
        """The outcome if it is known, without waiting."""
        return self.decided if self.announced else None

    def cancel(self, reason: Any = None) -> bool:
        """End the run now. True only for the call that ended it; the reason object is kept as it is."""
        if self.done:
            return False
        self.scheduler.settle(self, Cancelled(reason))
        return True

    def unref(self) -> None:
        """Let the owner end without waiting for this run; it is cancelled then. Without an owner: no effect."""
        if self.family is not None:
            self.family.unref()

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
        run, scheduler = self._run, self._run.scheduler
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


def release_waiters(run: Run[Any], outcome: Outcome[Any]) -> None:
    """Give the outcome to everyone who waits, each on the loop they wait on."""
    waiters, run._waiters = run._waiters, []
    for future in waiters:
        loop = future.get_loop()
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            resolve(future, outcome)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(resolve, future, outcome)
