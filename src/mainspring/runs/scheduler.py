"""The scheduler of runs: one queue, one ready list, one timer wheel, a budget, and the way to an end.

Everything that lets a run go on (its start, an answer, a timer, a returned value, a failure) enters one first-in
first-out queue. A tick appends the timers that are due, drains the queue (endings take effect here, everything else
moves to the ready list) and then takes at most `budget` steps from the ready list. What a tick produces waits for the
next tick. From this follow the promises: a run steps at most once per tick, so runs take turns however long their
chains are; a completion from outside is served after finitely many ticks; an outcome falls in the tick after the last
step.

The queue holds runs, not messages: a run has at most one thing under way, so what it brings is kept in the run. That
keeps a step to a handful of attribute reads. A run that ended while it was queued stays in the queue as a stale entry
that costs nothing and is skipped; `_stale` counts them, so that a runtime with nothing but stale entries is idle.

An end takes others along: an owner its children, a failure in a group the owner, that one its other children, and so
on, up and down the tree. Trees are as deep as a recursive program makes them, so this is no recursion: what still has
to end waits on a list. The order is that of a recursion all the same: children first, then the program, then everyone
who wants to know, and then the owner. Whatever a cleanup, a sink, a listener or a program raises meanwhile is logged;
it stops nothing.

The scheduler itself knows no event loop: a handler's coroutine becomes a task in `handlers.py`, and ticks come from a
host, an asyncio loop or a Mainspring loop.

The reasons are in docs/decisions/runs.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from typing import Any, Final, Protocol

from mainspring.cluster import Suspects
from mainspring.errors import MainspringError
from mainspring.loop import LATE_MS, Clock, LateCalls, Loop, TimerEntry, TimerWheel, identifies_work
from mainspring.runs.effects import Effect, Join, Until, whole_ms
from mainspring.runs.errors import NotAnEffect, ReplayMismatch, UnhandledEffect
from mainspring.runs.handlers import RegisteredHandler, clean_up, release_effect
from mainspring.runs.run import FAILURE, RESUME, START, VALUE, Failed, Outcome, Run, Value, release_waiters
from mainspring.runs.values import effect_failure, failure_fields
from mainspring.telemetry import error_keeping

logger: logging.Logger = logging.getLogger("mainspring.runs")

DEFAULT_BUDGET: Final = 1024  # the contract's recommendation: long enough to amortise a host turn
CLOSE_ATTEMPTS: Final = 16  # how often a program that swallows its closing is closed again

Fit = Callable[[Run[Any], ReplayMismatch | None], object]
Listener = Callable[[Run[Any], Outcome[Any]], object]
Ending = tuple[Run[Any], Outcome[Any]]


class FailureSink(Protocol):
    def __call__(self, error: BaseException, run_id: str, /) -> object: ...


def normal_budget(budget: float | None) -> int:
    """Floored, at least 1; None, NaN and infinity mean the default."""
    if budget is None or not math.isfinite(budget):
        return DEFAULT_BUDGET
    return max(1, math.floor(budget))


class Alarms:
    """The pending timers of one scheduler: calls to be made in the first tick at or after their time.

    Delays are cut to whole milliseconds; negative and NaN mean at once, which is the next tick. Calls leave by
    deadline, equal deadlines in the order in which they were set. What is due is taken out before the first call is
    made: a call that sets the next timer for this very moment waits for the next tick like all others, and cannot keep
    a tick for itself. What is noticed late waits until the host has read what arrived meanwhile: it may be an answer.
    """

    __slots__ = ("_clock", "_due", "_late", "_set", "_wheel", "after_reading")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = TimerWheel()
        self._due: dict[Hashable, Callable[[], object]] = {}  # taken out of the wheel, not made yet
        self._late: dict[Hashable, Callable[[], object]] = {}  # the same, and they wait for what has arrived
        self._set = 0
        self.after_reading: Callable[[Callable[[], None]], bool] = lambda call: False

    def set(self, delay_ms: float, call: Callable[[], object]) -> tuple[int, int]:
        """Have `call` made after the delay; the timer's id and its deadline."""
        deadline = self._clock.now_ms() + whole_ms(delay_ms)
        self._set += 1
        self._wheel.schedule(TimerEntry(self._set, deadline, call, "run"))
        return self._set, deadline

    def forget(self, timer: int) -> bool:
        """False when it was made or forgotten before."""
        if self._late and self._late.pop(timer, None) is not None:
            return True
        return self._due.pop(timer, None) is not None or self._wheel.cancel(timer)

    def __contains__(self, timer: int) -> bool:
        return timer in self._due or timer in self._wheel or timer in self._late

    def any_due(self) -> bool:
        return bool(self._due) or (len(self._wheel) > 0 and self._wheel.has_ready(self._clock.now_ms()))

    def next_deadline(self) -> int | None:
        return self._wheel.next_deadline()

    def ring(self) -> None:
        """Make every call that is due. What one of them raises is logged and stops no other."""
        if len(self._wheel):
            now = self._clock.now_ms()
            late: dict[Hashable, Callable[[], object]] = {}
            while (entry := self._wheel.pop_ready(now)) is not None:
                (late if entry.deadline <= now - LATE_MS else self._due)[entry.id] = entry.message
            if late:
                self._hold_back(late)
        for timer in list(self._due):
            call = self._due.pop(timer, None)
            if call is None:
                continue  # one that rang before it has had it forgotten
            try:
                call()
            except Exception:
                logger.exception("a timer of the runs failed")

    def _hold_back(self, late: dict[Hashable, Callable[[], object]]) -> None:
        def judge() -> None:
            for timer in late:
                if (call := self._late.pop(timer, None)) is not None:
                    self._due[timer] = call

        if self.after_reading(judge):
            self._late |= late
        else:
            self._due |= late


# -- where ticks come from


class SchedulerHost(Protocol):
    """What a scheduler needs of the loop that gives it turns: one when there is something to do, and wake-ups.

    Nothing polls. Under a virtual clock there is no host: the test makes the ticks.
    """

    def soon(self, pump: Callable[[], None]) -> bool:
        """Call `pump` in a turn of its own. False when that is not possible now."""
        ...

    def now(self, pump: Callable[[], None]) -> None:
        """Call `pump` at once if this is a turn of the host in which that is possible, else soon."""
        ...

    def gone(self) -> bool:
        """Whether turns that were asked for will never come, because the loop is closed."""
        ...

    def offer_loop(self) -> bool:
        """Let the caller's event loop bring the turns if none does now; whether it was needed."""
        ...

    def wake_at(self, deadline_ms: int, pump: Callable[[], None]) -> None:
        """Call `pump` at that monotonic time, or earlier if an earlier wake-up is already planned."""
        ...

    def after_reading(self, call: Callable[[], None]) -> bool:
        """Call `call` when what had arrived by now is read. False when that is not possible now."""
        ...

    def from_thread(self, call: Callable[[], None]) -> None:
        """Call `call` on the host's thread; may be called from any thread."""
        ...


class AsyncioHost:
    """Turns on whichever asyncio loop is running when there is something to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._deadline: int | None = None
        self._late = LateCalls()

    def _running(self) -> asyncio.AbstractEventLoop | None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        if loop is not self._loop:
            self._loop, self._handle, self._deadline = loop, None, None
            self._late.release()  # the loop before may never turn again
        return loop

    def soon(self, pump: Callable[[], None]) -> bool:
        loop = self._running()
        if loop is None:
            return False
        loop.call_soon(pump)
        return True

    def now(self, pump: Callable[[], None]) -> None:
        pump()

    def gone(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def offer_loop(self) -> bool:
        if self._loop is not None and self._loop.is_running():
            return False
        return self._running() is not None

    def wake_at(self, deadline_ms: int, pump: Callable[[], None]) -> None:
        loop = self._running()
        if loop is None or (self._deadline is not None and self._deadline <= deadline_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._deadline = deadline_ms
        delay = max(0, deadline_ms - self._clock.now_ms()) / 1000
        self._handle = loop.call_later(delay, self._wake, pump)

    def after_reading(self, call: Callable[[], None]) -> bool:
        loop = self._running()
        if loop is not None:
            self._late.after_reading(loop, call)
        return loop is not None

    def _wake(self, pump: Callable[[], None]) -> None:
        self._handle = self._deadline = None
        pump()

    def from_thread(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)


class LoopHost:
    """Turns as user turns of a Mainspring loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._timer: Any = None
        self._deadline: int | None = None

    def soon(self, pump: Callable[[], None]) -> bool:
        self._loop.post(_call, pump)
        return True

    def now(self, pump: Callable[[], None]) -> None:
        self._loop.offer(_call, pump)

    def gone(self) -> bool:
        return False  # a Mainspring loop keeps what waits for its next driver

    def offer_loop(self) -> bool:
        return False

    def wake_at(self, deadline_ms: int, pump: Callable[[], None]) -> None:
        if self._deadline is not None and self._deadline <= deadline_ms:
            return
        if self._timer is not None:
            self._loop.cancel(self._timer)
        self._deadline = deadline_ms
        self._timer = self._loop.schedule_at(deadline_ms, self._wake, pump)

    def after_reading(self, call: Callable[[], None]) -> bool:
        return self._loop.after_reading(call)

    def _wake(self, pump: Callable[[], None]) -> None:
        self._timer = self._deadline = None
        pump()

    def from_thread(self, call: Callable[[], None]) -> None:
        self._loop.complete(_call, call)


def _call(call: Callable[[], None]) -> None:
    call()


# -- the scheduler


class Scheduler:
    """Owns every live run of one runtime. Used through `Runtime`.

    With slots, because Python 3.11 reads the attributes of an object a tenth slower when it has more than 29.
    """

    __slots__ = (
        "_armed",
        "_draining",
        "_outside",
        "_owners",
        "_queue",
        "_ready",
        "_stale",
        "_thread",
        "_tracing",
        "after_pump",
        "alarms",
        "begun",
        "budget",
        "clock",
        "current",
        "finishing",
        "given_up",
        "handlers",
        "host",
        "late_completions",
        "live",
        "on_failure",
        "on_fit",
        "on_outcome",
        "outcomes",
        "pauses",
        "pumping",
        "raises",
        "steps",
        "suspects",
        "tasks",
        "ticks",
        "trace",
    )

    def __init__(
        self,
        clock: Clock,
        budget: float | None,
        trace: bool,
        on_failure: FailureSink | None,
        raises: bool = False,
    ) -> None:
        self.clock: Clock = clock
        self.raises: bool = raises  # the failure of an effect is raised in the program, and does not end the run
        self.budget: int = normal_budget(budget)
        self.on_failure: FailureSink | None = on_failure
        self.on_fit: Fit = self._fail_misfit  # called with what does not fit a journal, or None when all of it does
        self.on_outcome: list[Listener] = []
        self.trace: list[str] = []
        self.ticks: int = 0
        self.steps: int = 0
        self.late_completions: int = 0
        self.given_up: int = 0  # effects with which the process ended too often
        self.suspects: Suspects = Suspects()
        self.live: int = 0
        self.begun: dict[bool, int] = {True: 0, False: 0}  # runs that were executed here: whether durable
        self.outcomes: dict[tuple[bool, str], int] = {}  # of those that ended here: whether durable, and how
        self.handlers: dict[type, RegisteredHandler] = {}
        self.current: Run[Any] | None = None
        self.host: SchedulerHost | None = None
        self.pumping: bool = False
        self.after_pump: Callable[[], None] = lambda: None
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
        self.alarms.after_reading = self._after_reading
        self._owners: list[Ending] | None = None  # to end after the run that is ending now; None: none is
        self._armed = False
        self._thread = threading.get_ident()

    # -- starting and driving

    def bind(self, run: Run[Any], program: Any) -> None:
        """Give a run the coroutine or generator to drive; the one it had before is closed."""
        self._close_program(run)
        run.send, run.throw, run.close_program = program.send, program.throw, program.close

    def launch(self, run: Run[Any]) -> None:
        """Queue the first step of a run whose program is bound."""
        self.begun[run.durable is not None] += 1
        self.enqueue(run, START, None)

    def enqueue(self, run: Run[Any], brings: int, answer: Any) -> None:
        """Put a live run into the queue with what it brings."""
        run.brings = brings
        run.answer = answer
        run.queued = True
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
        if self.host is not None and self.host.offer_loop():
            self.arm()

    def stepping_here(self) -> bool:
        """Whether the caller is a program in its step, and not another thread meanwhile."""
        return self.current is not None and threading.get_ident() == self._thread

    def is_own_thread(self) -> bool:
        """Whether the caller is in the thread that makes the ticks."""
        return threading.get_ident() == self._thread

    def join_request(self, run: Run[Any]) -> Effect[Any]:
        """What a program performs to wait for another run."""
        return Join(run)

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
            if run.done:
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
            if run.done:
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
                    return  # a listener of an ending made ticks of its own
                run = queue.popleft()
                if run.done:
                    self._stale -= 1
                elif run.brings <= RESUME:
                    ready.append(run)
                else:
                    self._take_effect(run)
        finally:
            self._draining = False

    def _take_effect(self, run: Run[Any]) -> None:
        run.queued = False
        answer, run.answer = run.answer, None
        if run.brings == FAILURE:
            if run.durable is not None and isinstance(answer, ReplayMismatch):
                self.on_fit(run, answer)
            else:
                self.settle(run, Failed(answer))
        elif run.family is None or not run.family.holds_back(answer):
            self.settle(run, Value(answer))

    def _fail_misfit(self, run: Run[Any], misfit: ReplayMismatch | None) -> None:
        if misfit is not None:
            self.settle(run, Failed(misfit))

    # -- a step

    @identifies_work(lambda known: ("run", known["run"].program))
    def _step(self, run: Run[Any]) -> None:
        answer, run.answer = run.answer, None
        run.queued = False
        if self._tracing:
            self.trace.append(f"step {run.id} {run.steps}")
        run.steps += 1
        around, self.current = self.current, run
        lineage = run.lineage
        entered = None if lineage is None else lineage.enter()
        try:
            request = run.send(answer)
        except StopIteration as stop:
            self.bring(run, VALUE, stop.value)
        except (KeyboardInterrupt, SystemExit) as error:
            self.bring(run, FAILURE, error)
            raise
        except BaseException as error:
            self.bring(run, FAILURE, error)
        else:
            if run.done:
                self._close_program(run)
            else:
                self._dispatch(run, request)
        finally:
            self.current = around
            if lineage is not None:
                lineage.leave(entered)

    def _dispatch(self, run: Run[Any], request: Any) -> None:
        handler = self.handlers.get(request.__class__)
        if handler is None:
            self.bring(run, FAILURE, self._no_handler(request))
        elif run.durable is not None:
            try:
                if request.__journaled__:
                    run.durable.perform(request, handler)
                else:
                    self.enqueue(run, RESUME, handler.answer_now(run, request))
            except Exception as error:  # an effect that cannot even be described is its own run's trouble
                self.bring(run, FAILURE, error)
        else:
            handler.ask(run, request)

    def _no_handler(self, request: Any) -> Exception:
        name = type(request).__name__
        if not isinstance(request, Effect):
            return NotAnEffect(
                f"a program suspended on {name}, which is not an effect",
                remedy="yield effects only; awaiting asyncio objects belongs in a handler",
            )
        remedy = f"declare one with @app.handles({name})" if self.raises else f"call runtime.handle({name}, handler)"
        return UnhandledEffect(f"Unhandled effect {name}: no handler is registered", remedy=remedy)

    # -- what comes back

    def bring(self, run: Run[Any], brings: int, value: Any) -> None:
        """What a step or a handler produced: queued, journaled first for a durable run, dropped if the run is over."""
        if run.done:
            self.late_completions += 1
            if brings != RESUME and self.current is run:
                self._close_program(run)
            return
        if run.lineage is not None:
            run.lineage.answered(value if brings == FAILURE else None)
        if run.durable is not None:
            run.durable.bring(brings, value)
        else:
            self.enqueue(run, brings, value)

    def effect_failed(self, run: Run[Any], effect: str, error: BaseException) -> None:
        """The handler of an effect failed: queued for the program, journaled first for a durable run."""
        if run.done:
            self.late_completions += 1
            return
        if run.lineage is not None:
            run.lineage.answered(error)
        fields = failure_fields(error)
        if run.durable is not None:
            run.durable.effect_failed(effect, fields, error_keeping.traceback(error))
        else:
            self.enqueue(run, RESUME, self.to_raise(run, effect, fields))

    def to_raise(self, run: Run[Any], effect: str, fields: Mapping[str, str]) -> Exception:
        """The error that stands for a failed effect; the next step of the run raises it and sends no answer."""
        send = run.send

        def throw(error: BaseException) -> Any:
            run.send = send
            return run.throw(error)

        run.send = throw
        return effect_failure(effect, fields)

    def raise_at_next_effect(self, run: Run[Any], error: Exception, *, unless_joins: Run[Any]) -> None:
        """Let the next effect of a run without a journal fail, unless it waits for that child."""
        send = run.send

        def send_and_throw(answer: Any) -> Any:
            run.send = send
            request = send(answer)
            if isinstance(request, Join | Until) and request.run is unless_joins:
                return request
            return run.throw(error)

        run.send = send_and_throw

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

    def _after_reading(self, call: Callable[[], None]) -> bool:
        def read() -> None:
            call()
            self.arm()

        return self.host is not None and self.host.after_reading(read)

    # -- endings

    def settle(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """The one transition to an end, for a run and for those that end with it, before this returns."""
        if run.family is None:  # none does, the usual case
            self._begin_end(run, outcome)
            self._complete_end(run, outcome)
            return
        around, self._owners = self._owners, []
        under_way = [self._ending(run, outcome)]
        try:
            while under_way:
                child = next(under_way[-1], None)
                if child is not None:
                    under_way.append(self._ending(*child))
                    continue
                under_way.pop()
                under_way += [self._ending(*each) for each in reversed(self._owners)]
                self._owners.clear()
        finally:
            self._owners = around
            for unfinished in reversed(under_way):
                unfinished.close()

    def settle_owner(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """End the owner of a run that is ending: decided now, and carried out when that one has ended."""
        if self._owners is None:
            self.settle(run, outcome)
        else:
            run.done, run.decided = True, outcome
            self._owners.append((run, outcome))

    def _ending(self, run: Run[Any], outcome: Outcome[Any]) -> Generator[Ending, None, None]:
        """The end of one run of a family; gives the children that must end before it goes on."""
        self._begin_end(run, outcome)
        if run.family is not None:
            for child, taken_along in run.family.take_along(outcome):
                if not child.done:
                    yield child, taken_along
        self._complete_end(run, outcome)

    def _begin_end(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        run.done, run.decided = True, outcome
        self._leave(run)
        release_effect(run)

    def _complete_end(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """Close the program and announce the outcome, in the name of the message the run was started for."""
        lineage = run.lineage
        entered = None if lineage is None else lineage.enter()
        try:
            self._close_program(run)
            if run.durable is not None:
                run.durable.settle(outcome)
            else:
                self.announce(run)
        finally:
            if lineage is not None:
                lineage.leave(entered)

    def announce(self, run: Run[Any]) -> None:
        """The outcome may be known: cleanups, the failure sink, listeners, those who wait, and the family."""
        outcome = run.decided
        assert outcome is not None
        run.announced = True
        ended = (run.durable is not None, outcome.kind)
        self.outcomes[ended] = self.outcomes.get(ended, 0) + 1
        if run.lineage is not None:
            run.lineage.ended(outcome)
        if self._tracing:
            self.trace.append(f"outcome {run.id} {outcome.kind}")
        clean_up(run)
        if isinstance(outcome, Failed):
            self._report(outcome.error, run.id)
        for listener in self.on_outcome:
            try:
                listener(run, outcome)
            except Exception:
                logger.exception("a listener for outcomes failed on run %s", run.id)
        self._release_waiting(run, outcome)

    def _release_waiting(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        release_waiters(run, outcome)
        if run.family is not None:
            run.family.ended(outcome)

    def _report(self, error: BaseException, run_id: str) -> None:
        if self.on_failure is None:
            own = isinstance(error, MainspringError)  # says what to do; of any other error one wants the traceback
            logger.error("run %s failed: %s: %s", run_id, type(error).__name__, error, exc_info=None if own else error)
            return
        try:
            self.on_failure(error, run_id)
        except Exception:
            logger.exception("the failure sink failed on run %s", run_id)

    def _close_program(self, run: Run[Any]) -> None:
        """Close the program, so that its finally blocks run; a program in the middle of its step is closed after it."""
        close = run.close_program
        if close is None:
            return
        run.send, run.close_program = _is_closed, None
        for _ in range(CLOSE_ATTEMPTS):
            try:
                close()
            except (ValueError, RuntimeError) as error:
                if "already executing" in str(error):  # the step closes it when it comes back
                    run.close_program = close
                    return
                if "ignored GeneratorExit" not in str(error):
                    logger.exception("run %s raised while it was closed", run.id)
                    return
            except BaseException:
                logger.exception("run %s raised while it was closed", run.id)
                return
            else:
                return
        logger.error("run %s (%s) swallows its closing; it was left behind", run.id, run.program)

    def abandon(self, *runs: Run[Any]) -> None:
        """Stop executing runs without an outcome; they go on on another node, or later.

        All of them are stopped before any program is closed, so that what programs do while they are closed, like
        cancelling a child, changes nothing.
        """
        stopped = [run for run in runs if not run.done]
        for run in stopped:
            run.done = True
            if run.lineage is not None:
                run.lineage.ended(None)
            self._leave(run)
        for run in stopped:
            release_effect(run)
            self._close_program(run)

    def stop(self, run: Run[Any], below: Iterable[Run[Any]]) -> None:
        """Close the program of a live run; nothing that it does meanwhile ends one of the live runs below it."""
        kept = [each for each in below if not each.done]
        for each in kept:
            each.done = True
        self._close_program(run)
        for each in kept:
            each.done = False

    def conclude(self, run: Run[Any], outcome: Outcome[Any]) -> None:
        """The outcome of a run that was not executed here, or not to its end."""
        self.abandon(run)
        run.decided = outcome
        run.announced = True
        self._release_waiting(run, outcome)

    def _leave(self, run: Run[Any]) -> None:
        """A run is live no longer. If it is queued, what it brought is late, and its entry is stale."""
        self.live -= 1
        if not run.queued:
            return
        run.answer = None
        run.queued = False
        self._stale += 1
        if run.brings != START:
            self.late_completions += 1
        if len(self._queue) + len(self._ready) == self._stale and not self._draining:
            self._queue.clear()
            self._ready.clear()
            self._stale = 0


def _is_closed(answer: Any) -> Any:
    """Stands in for a program that was closed, so that a run which is over does not keep it."""
    raise RuntimeError("the program of this run was closed")
