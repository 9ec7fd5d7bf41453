"""The scheduler of runs: one queue, one ready list, one timer wheel, and a budget.

Everything that lets a run go on (its start, an answer, a timer, a returned value, a failure) enters one first-in
first-out queue. A tick appends the timers that are due, drains the queue (endings take effect here, everything else
moves to the ready list) and then takes at most `budget` steps from the ready list. What a tick produces waits for the
next tick. From this follow the promises: a run steps at most once per tick, so runs take turns however long their
chains are; a completion from outside is served after finitely many ticks; an outcome falls in the tick after the last
step.

The queue holds runs, not messages: a run has at most one thing under way, so what it brings is kept in the run. That
keeps a step to a handful of attribute reads. A run that ended while it was queued stays in the queue as a stale entry
that costs nothing and is skipped; `_stale` counts them, so that a runtime with nothing but stale entries is idle.

Nothing here knows asyncio: a handler's coroutine becomes a task in `answering.py`, and how ticks are brought about is
the business of `hosting.py`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from mainspring.loop import Clock
from mainspring.runs.alarms import Alarms
from mainspring.runs.effects import Effect
from mainspring.runs.endings import FailureSink, Listener, close_program, tell_everyone, tell_waiting
from mainspring.runs.errors import NotAnEffect, UnhandledEffect
from mainspring.runs.handlers import Handled, apply, ask_handler
from mainspring.runs.holding import let_go
from mainspring.runs.outcome import Cancelled, Failed, Outcome, Value, kind_of
from mainspring.runs.run import FAILURE, RESUME, START, VALUE, Run
from mainspring.runs.settling import Settling

if TYPE_CHECKING:
    from mainspring.runs.hosts import Host
    from mainspring.runs.watchdog import Watchdog

logger: logging.Logger = logging.getLogger("mainspring.runs")

DEFAULT_BUDGET: Final = 1024  # the contract's recommendation: long enough to amortise a host turn


def normal_budget(budget: float | None) -> int:
    """Floored, at least 1; None, NaN and infinity mean the default."""
    if budget is None or not math.isfinite(budget):
        return DEFAULT_BUDGET
    return max(1, math.floor(budget))


class Scheduler:
    """Owns every live run of one runtime. Used through `Runtime`."""

    def __init__(
        self,
        clock: Clock,
        budget: float | None,
        trace: bool,
        on_failure: FailureSink | None,
    ) -> None:
        self.clock = clock
        self.budget: int = normal_budget(budget)
        self.on_failure = on_failure
        self.on_outcome: list[Listener] = []
        self.trace: list[str] = []
        self.ticks: int = 0
        self.steps: int = 0
        self.late_completions: int = 0
        self.live: int = 0
        self.begun: dict[bool, int] = {True: 0, False: 0}  # runs that were executed here: whether durable
        self.outcomes: dict[tuple[bool, str], int] = {}  # of those that ended here: whether durable, and how
        self.handlers: dict[type, Handled] = {}
        self.current: Run[Any] | None = None
        self.host: Host | None = None
        self.watchdog: Watchdog | None = None
        self.pumping: bool = False
        self.after_pump: Callable[[], None] = lambda: None
        self.join_request: Callable[[Run[Any]], Effect[Any]]
        self.tasks: set[Any] = set()
        self.finishing: bool = False  # the process stops in order: see `Runtime.finish`
        self.pauses: set[asyncio.Event] = set()  # between two attempts of handlers; set ends one early
        self._tracing = trace
        self._queue: deque[Run[Any]] = deque()
        self._ready: deque[Run[Any]] = deque()
        self._stale = 0
        self._draining = False
        self._outside: deque[Callable[[], None]] = deque()
        self.alarms: Alarms = Alarms(clock)
        self.settling: Settling = Settling(self)
        self._armed = False
        self._thread = threading.get_ident()

    # -- starting and driving

    def launch(self, run: Run[Any]) -> None:
        """Queue the first step of a run whose program is ready."""
        self.begun[run._durable is not None] += 1
        self.enqueue(run, START, None)

    def enqueue(self, run: Run[Any], brings: int, answer: Any) -> None:
        """Put a live run into the queue with what it brings."""
        run._brings = brings
        run._answer = answer
        run._queued = True
        self._queue.append(run)
        if not self._armed:
            self.arm()

    def arm(self) -> None:
        """Ask the host for a turn, if there is a host, something to do, and no turn asked for yet."""
        if self.host is None or (self._armed and not self.host.gone()):
            return
        self._armed = not self.is_idle() and self.host.soon(self.pump)
        if not self._armed:
            self._wake_for_timers()

    def offer_loop(self) -> None:
        """Somebody waits on an asyncio loop: it may turn what no other loop does."""
        if self.host is not None and self.host.is_free():
            self.arm()

    def stepping_here(self) -> bool:
        """Whether the caller is a program in its step, and not somebody in another thread meanwhile."""
        return self.current is not None and threading.get_ident() == self._thread

    def pump(self) -> None:
        """One host turn: ticks until nothing is ready or a budget of steps is spent, then the next wake-up."""
        self._armed = self.pumping = True
        left = self.budget
        try:
            while left > 0 and not self.is_idle():
                left -= max(1, self.tick())
        finally:  # an interrupt of the user goes through; the other runs must not wait for ever behind it
            self._armed = self.pumping = False
            self.after_pump()
            self.arm()
            self._wake_for_timers()

    def resume_all(self, answers: Iterable[tuple[Run[Any] | None, Any]]) -> None:
        """Queue many answers that came together, and take the turn for them now if the host allows it."""
        armed, self._armed = self._armed, True
        for run, answer in answers:
            if run is None:
                continue
            if run._done:
                self.late_completions += 1
            else:
                self.enqueue(run, RESUME, answer)
        self._armed = armed
        if not armed and self.host is not None and not self.is_idle():
            self._armed = True
            self.host.now(self.pump)

    def _wake_for_timers(self) -> None:
        if self.host is not None:
            deadline = self.alarms.next_deadline()
            if deadline is not None:
                self.host.wake_at(deadline, self.pump)

    def is_idle(self) -> bool:
        """Whether a tick would find nothing to do now."""
        return len(self._queue) + len(self._ready) <= self._stale and not self._outside and not self.alarms.any_due()

    def tick(self) -> int:
        """One tick; how many steps it took."""
        self.ticks += 1
        if self.watchdog is not None and self.watchdog.asleep:
            self.watchdog.wake()
        self._thread = threading.get_ident()
        if self._tracing:
            self.trace.append(f"tick {self.ticks}")
        while self._outside:
            self._outside.popleft()()
        self.alarms.ring()
        if self._queue:
            self._drain()
        ready, budget, taken = self._ready, self.budget, 0
        while ready and taken < budget:
            run = ready.popleft()
            if run._done:
                self._stale -= 1
                continue
            taken += 1
            self._step(run)
        self.steps += taken
        return taken

    def _drain(self) -> None:
        """Endings take effect; the rest is ready. What this causes waits for the next tick."""
        queue, ready = self._queue, self._ready
        self._draining = True
        try:
            for _ in range(len(queue)):
                if not queue:
                    return  # somebody who heard of an ending made ticks of their own
                run = queue.popleft()
                if run._done:
                    self._stale -= 1
                elif run._brings <= RESUME:
                    ready.append(run)
                else:
                    self._take_effect(run)
        finally:
            self._draining = False

    def _take_effect(self, run: Run[Any]) -> None:
        run._queued = False
        answer, run._answer = run._answer, None
        if run._brings == VALUE:
            self._returned(run, answer)
        else:
            self.settle(run, Failed(answer))

    def _returned(self, run: Run[Any], value: Any) -> None:
        if run._family is not None and run._family.holds_back(run, value):
            return
        self.settle(run, Value(value))

    # -- a step

    def _step(self, run: Run[Any]) -> None:
        answer, run._answer = run._answer, None
        run._queued = False
        if self._tracing:
            self.trace.append(f"step {run.id} {run._steps}")
        run._steps += 1
        around, self.current = self.current, run
        lineage = run._lineage
        entered = None if lineage is None else lineage.enter()
        try:
            request = run._send(answer)  # type: ignore[misc]
        except StopIteration as stop:
            self.bring(run, VALUE, stop.value)
        except (KeyboardInterrupt, SystemExit) as error:
            self.bring(run, FAILURE, error)
            raise
        except BaseException as error:
            self.bring(run, FAILURE, error)
        else:
            if run._done:
                close_program(run)
            else:
                self._dispatch(run, request)
        finally:
            self.current = around
            if lineage is not None:
                lineage.leave(entered)

    def _dispatch(self, run: Run[Any], request: Any) -> None:
        handled = self.handlers.get(request.__class__)
        if handled is None:
            self.bring(run, FAILURE, self._no_handler(request))
        elif run._durable is not None and request.__journaled__:
            try:
                run._durable.perform(run, request, handled)
            except Exception as error:  # an effect that cannot even be described is its own run's trouble
                self.bring(run, FAILURE, error)
        else:
            ask_handler(self, run, request, handled)

    def _no_handler(self, request: Any) -> Exception:
        name = type(request).__name__
        if not isinstance(request, Effect):
            return NotAnEffect(
                f"a program suspended on {name}, which is not an effect",
                remedy="yield effects only; awaiting asyncio objects belongs in a handler",
            )
        return UnhandledEffect(
            f"Unhandled effect {name}: no handler is registered", remedy=f"call runtime.handle({name}, handler)"
        )

    # -- what comes back

    def bring(self, run: Run[Any], brings: int, value: Any) -> None:
        """What a step or a handler produced: queued, journaled first for a durable run, dropped if the run is over."""
        if run._done:
            self.late_completions += 1
            if brings != RESUME and self.current is run:
                close_program(run)
            return
        run._asked = None
        if run._lineage is not None:
            run._lineage.answered(value if brings == FAILURE else None)
        if run._releases is not None:
            let_go(run)
        if run._durable is not None:
            run._durable.bring(run, brings, value)
        else:
            self.enqueue(run, brings, value)

    def answered(self, run: Run[Any], step: int, handled: Handled, result: Any, error: BaseException | None) -> None:
        """The answer of a handler that took its time; too late when the run is past that step."""
        if run._asked is not handled or run._steps != step:
            self.late_completions += 1
        elif error is None:
            apply(self, run, handled, result)
        elif not (self.finishing and run._durable is not None):
            self.bring(run, FAILURE, error)

    def answer_later(
        self, run: Run[Any], step: int, handled: Handled, result: Any, error: BaseException | None
    ) -> None:
        """`answered` for any thread."""
        if threading.get_ident() == self._thread:
            self.answered(run, step, handled, result, error)
        else:
            self.from_outside(lambda: self.answered(run, step, handled, result, error))

    def from_outside(self, call: Callable[[], None]) -> None:
        """Have `call` made at the next tick; for other threads."""
        self._outside.append(call)
        if self.host is not None:
            self.host.from_thread(self.arm)

    def timer(self, delay_ms: float, call: Callable[[], object]) -> int:
        """Call `call` in the first tick after the delay. Fractions are cut, negative and NaN are 0."""
        timer, deadline = self.alarms.set(delay_ms, call)
        if self.host is not None and not self._armed:
            self.host.wake_at(deadline, self.pump)
        return timer

    # -- endings

    def cancel(self, run: Run[Any], reason: Any) -> bool:
        if run._done:
            return False
        self.settle(run, Cancelled(reason))
        return True

    def unref(self, run: Run[Any]) -> None:
        if run._family is not None:
            run._family.unref(run)

    def settle(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """The one transition to an end. Children first, then the program, then everyone who wants to know."""
        self.settling.settle(run, outcome)

    def leaves(self, run: Run[Any]) -> None:
        """A run is live no longer; what it has brought, or will bring, is late."""
        self.live -= 1
        if run._queued:
            self._drop_queued(run)

    def announce(self, run: Run[Any]) -> None:
        """The world may know the outcome."""
        assert run._outcome is not None
        run._settled = True
        ended = (run._durable is not None, kind_of(run._outcome))
        self.outcomes[ended] = self.outcomes.get(ended, 0) + 1
        if run._lineage is not None:
            run._lineage.ended(run._outcome)
        if self._tracing:
            self.trace.append(f"outcome {run.id} {kind_of(run._outcome)}")
        tell_everyone(run, self.on_failure, self.on_outcome)

    def abandon(self, *runs: Run[Any]) -> None:
        """Stop executing runs without an outcome; somebody else goes on with them.

        All of them are stopped before any program is closed, so that what programs do while they are closed, like
        cancelling a child, changes nothing.
        """
        stopped = [run for run in runs if not run._done]
        for run in stopped:
            run._done = True
            run._asked = None
            if run._lineage is not None:
                run._lineage.ended(None)
            self.leaves(run)
        for run in stopped:
            if run._releases is not None:
                let_go(run)
            close_program(run)

    def conclude(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """The outcome of a run that was not executed here, or not to its end."""
        self.abandon(run)
        run._outcome = outcome
        run._settled = True
        tell_waiting(run, outcome)

    def _drop_queued(self, run: Run[Any]) -> None:
        """A queued run ended: what it brought is late, and its entry is stale."""
        run._answer = None
        run._queued = False
        self._stale += 1
        if run._brings != START:
            self.late_completions += 1
        if len(self._queue) + len(self._ready) == self._stale and not self._draining:
            self._queue.clear()
            self._ready.clear()
            self._stale = 0
