"""Handlers: how one is registered, asked and retried, what its results mean, and what it is given.

A handler's result is one of three things: a plain answer (applied at once), something to wait for, or a mistake. The
kind of the answer is checked here, before the program is resumed: a resume effect takes `resume` or `end`, a tail
effect only `tail`. A bare value is sugar for the effect's own kind, unless the handler was registered strictly.

A handler is a function or a coroutine. A coroutine needs an asyncio loop; a plain function that cannot answer at once
returns `ctx.later()` and answers through it when it can, from a timer, a callback or another thread. The first answer
counts; a second one raises AlreadyAnswered.

While an effect is unanswered it may hold things: timers, tasks, a place in a queue. They are released when the effect
is over: answered, failed, or its run ended. Nothing of it may come back later. What cannot be released is logged:
neither the answer nor the ending waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.cluster import MOST_ENDS
from mainspring.durations import Duration, duration_ms, duration_text
from mainspring.errors import MainspringError
from mainspring.log import Batch
from mainspring.loop import BackgroundTasks, HandlerThreads, identifies_work, with_blocking_verbs
from mainspring.retries import Backoff, Errors, is_worth_retrying
from mainspring.runs.effects import Answer, Effect, end, resume, tail
from mainspring.runs.errors import (
    AlreadyAnswered,
    EffectTimeout,
    HandlerGaveUp,
    NoHostLoop,
    RunError,
    WaitTimedOut,
    WrongAnswer,
)
from mainspring.runs.run import FAILURE, RESUME, VALUE, Run
from mainspring.runs.values import decode

if TYPE_CHECKING:
    from mainspring.runs.scheduler import Scheduler

logger: logging.Logger = logging.getLogger("mainspring.runs")

Handler = Callable[..., Any]
T = TypeVar("T")

# Results of these exact types are certainly bare values: no look at their attributes is needed.
BARE: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset})

_WAIT: Final = -1  # a result that brings nothing yet
_MANY: Final = 8  # things held by one effect, after which timers that rang are no longer counted among them

_cleanups = BackgroundTasks(logger, "runs")


# -- registering


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often something is tried, how long one attempt may take, and which errors are worth another one.

    All attempts are one effect: what the last one gives is the answer, and what a failed one put into the batch is
    taken back. Failed attempts of a durable run are written down, so that a restart does not begin with the first.
    """

    most: int = 1
    pause_ms: Callable[[int], float] = Backoff(1_000, 60_000).delay_ms  # after attempt n failed
    timeout_ms: float | None = None
    retry_on: Errors = Exception
    give_up_on: Errors = ()
    counts_deaths: bool = False  # give up what ended its process MOST_ENDS times, also with one attempt

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"max_attempts is {self.most}, and everything is tried at least once")

    @property
    def most_begun(self) -> int | None:
        """How often the effect may be begun when processes end meanwhile; None: that is not counted."""
        return self.most if self.most > 1 else MOST_ENDS if self.counts_deaths else None

    def allow_another(self, attempt: int, error: Exception) -> bool:
        """Whether to try again after this attempt failed."""
        return attempt < self.most and is_worth_retrying(error, self.retry_on, self.give_up_on)


ONCE: Final = Attempts()
ATTEMPT_OPTIONS: Final = ("max_attempts", "timeout", "backoff", "max_backoff", "retry_on", "give_up_on")


def attempts_of(
    *,
    max_attempts: int = 1,
    timeout: Duration | None = None,
    backoff: Duration = "1s",
    max_backoff: Duration = "1m",
    retry_on: Errors = Exception,
    give_up_on: Errors = (),
    counts_deaths: bool = False,
) -> Attempts:
    """Attempts as people write them. Raises ValueError or BadDuration."""
    pause_ms = Backoff(duration_ms(backoff), duration_ms(max_backoff)).delay_ms
    timeout_ms = None if timeout is None else duration_ms(timeout)
    return Attempts(max_attempts, pause_ms, timeout_ms, retry_on, give_up_on, counts_deaths)


async def try_until_it_succeeds(once: Callable[[], Any], attempts: Attempts, ctx: EffectContext, name: str) -> Any:
    """The result of the first attempt that succeeds; raises the error of the last one."""
    ctx._attempt = 1
    while True:
        try:
            result = once()
            if inspect.isawaitable(result):
                result = await (
                    result if attempts.timeout_ms is None else ctx.in_time(result, attempts.timeout_ms, name)
                )
            return result
        except Exception as error:
            attempt = ctx.attempt
            if not attempts.allow_another(attempt, error):
                raise
            text = f"{type(error).__name__}: {error}"
            logger.warning("run %s: attempt %d of %d of %s: %s", ctx.run_id, attempt, attempts.most, name, text)
            ctx.attempt_failed(error)
            if not await ctx.pause(attempts.pause_ms(attempt)):
                raise  # the node stops; the run goes on with the next attempt


class RegisteredHandler:
    """The handler of one effect class."""

    __slots__ = ("asked", "attempts", "bare", "call", "expected", "kind", "name", "strict", "timeout_ms")

    def __init__(
        self, effect: type[Effect[Any]], handler: Handler, *, strict: bool = False, attempts: Attempts = ONCE
    ) -> None:
        """TypeError unless this is an effect class and a callable that takes (effect, ctx) or (effect)."""
        if not (isinstance(effect, type) and issubclass(effect, Effect)) or effect is Effect:
            raise TypeError(f"only effect classes have handlers, not {effect!r}: subclass mainspring.runs.Effect")
        if not callable(handler):
            raise TypeError(f"the handler of {effect.__name__} must be a function or a coroutine function")
        self.name: str = effect.__name__
        self.asked: int = 0  # how often its handler was asked by runs that have a lineage
        self.kind = effect.__kind__
        self.call: Handler = _with_two_arguments(handler)
        self.strict: bool = strict
        self.attempts: Attempts = attempts
        self.timeout_ms: float | None = None
        if attempts.most == 1:
            self.timeout_ms = attempts.timeout_ms
        else:
            self.call = self._try(self.call)
        self.expected: type[Answer] = tail if self.kind == "tail" else resume
        self.bare: frozenset[type] = frozenset() if strict else BARE

    def _try(self, handler: Handler) -> Handler:
        async def ask(effect: Any, ctx: EffectContext) -> Any:
            return await try_until_it_succeeds(partial(handler, effect, ctx), self.attempts, ctx, self.name)

        return ask

    def most_begun(self, effect: Any) -> int | None:
        """How often an effect may have been begun when processes ended meanwhile; None: it is not counted."""
        return self.attempts.most_begun

    # -- asking

    def answer_now(self, run: Run[Any], request: Any) -> Any:
        """The answer to an effect that is not journaled, and so has its answer at once."""
        answer = self.call(request, context_of(run))
        return answer.value if isinstance(answer, Answer) else answer

    def give_up(self, run: Run[Any], error: Exception) -> None:
        """Let an effect fail without asking the handler."""
        context = context_of(run)
        context._asked = self
        context._fail(self, error)

    @identifies_work(lambda known: ("effect", known["self"].name))
    def ask(self, run: Run[Any], request: Any) -> None:
        """Ask the handler, in the step that performed the effect."""
        context = run.context
        if context is None:
            context = run.context = EffectContext(run)
        context._asked = self
        lineage = run.lineage
        entered = None if lineage is None else lineage.ask(self, context.key)
        try:
            result = self.call(request, context)
            if context._asked is not self:
                context._not_needed(result)
                return
            answer = result
            if result.__class__ is self.expected:
                answer = result.value
            elif result.__class__ not in self.bare:
                if self.timeout_ms is not None:
                    context._limit(self, self.timeout_ms)
                context._apply(self, result)
                return
        except BaseException as error:
            context._answered(run.steps, self, None, self.failure(error))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        finally:
            if lineage is not None:
                lineage.leave(entered)
        context._asked = None
        if context._releases is not None:
            context._release()
        run.scheduler.bring(run, RESUME, answer)

    def meaning(self, result: Any) -> tuple[int, Any]:
        """What a result brings to the run; `_WAIT` with an awaitable, or with None, when it is still to come."""
        if isinstance(result, Answer):
            if isinstance(result, self.expected):
                return RESUME, result.value
            if isinstance(result, end) and self.kind == "resume":
                return VALUE, result.value
            return FAILURE, WrongAnswer(
                f"effect {self.name} is of kind {self.kind} and was answered with {result.kind}",
                remedy="answer a resume effect with resume or end, a tail effect with tail",
            )
        if isinstance(result, Later):
            return _WAIT, None
        if inspect.isawaitable(result):
            return _WAIT, result
        if self.strict:
            return FAILURE, WrongAnswer(
                f"the handler of {self.name} returned {type(result).__name__} instead of an answer",
                remedy="return resume(value), tail(value) or end(value); the handler is registered as strict",
            )
        is_answer_class = result is resume or result is tail or result is end
        if is_answer_class or inspect.isgenerator(result) or inspect.isasyncgen(result):
            return FAILURE, WrongAnswer(
                f"the handler of {self.name} returned {result!r}, which answers nothing",
                remedy="return a value, or resume(value), tail(value) or end(value)",
            )
        return RESUME, result

    def failure(self, error: BaseException) -> BaseException:
        """The error a run fails with when its handler raised this. A cancellation of the handler alone is a failure."""
        if not isinstance(error, asyncio.CancelledError):
            return error
        gave_up = HandlerGaveUp(f"the handler of {self.name} was cancelled while the run was not")
        gave_up.__cause__ = error
        return gave_up


def _with_two_arguments(handler: Handler) -> Handler:
    """Handlers take (effect, ctx); one that takes only the effect is called with it alone."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return handler
    try:
        signature.bind(None, None)
    except TypeError:
        try:
            signature.bind(None)
        except TypeError:
            raise TypeError(f"a handler takes (effect, ctx) or (effect); {handler!r} takes {signature}") from None
        return lambda effect, ctx: handler(effect)
    return handler


def surrounded(handler: Handler, around: Callable[..., Awaitable[Any]]) -> Handler:
    """The handler with something around each call: that is called with the effect, `ctx` and what makes the call."""
    inner = _with_two_arguments(handler)

    async def ask(effect: Any, ctx: EffectContext) -> Any:
        return await around(effect, ctx, partial(inner, effect, ctx))

    return ask


def handler_in_thread(handler: Handler, threads: HandlerThreads) -> Handler:
    """A plain function as a handler that runs in a thread; what it is given blocks there."""

    @wraps(handler)
    def ask(effect: Any, *given: EffectContext) -> Any:
        for context in given:
            context.__class__ = BlockingEffectContext  # there is one per run, and it may be in use already
        call = threads.call(handler, effect, *given)
        return call.result() if call.done() else call

    return ask


# -- what a handler is given


class EffectContext:
    """The handler's view of the run whose effect it answers. One per run."""

    __slots__ = ("_asked", "_attempt", "_closers", "_releases", "_run", "_scheduler")

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._scheduler: Scheduler = run.scheduler
        self._asked: RegisteredHandler | None = None  # whose answer is awaited
        self._attempt = 1  # of a run without a journal
        self._releases: list[Callable[[], object] | int] | None = None  # what the effect holds; numbers are timers
        self._closers: list[Callable[[], object]] | None = None

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
        return self._run.steps - 1

    @property
    def cancelled(self) -> bool:
        """Whether the run is over; an answer would be dropped."""
        return self._run.done

    @property
    def durable(self) -> bool:
        """Whether the run keeps a journal."""
        return self._run.durable is not None

    @property
    def key(self) -> str:
        """An idempotency key: the same text for this effect of this run, also when it is performed again after a crash.

        Pass it to whatever must not happen twice.
        """
        durable = self._run.durable
        return f"{self._run.id}#{self.step if durable is None else durable.position:08d}"

    @property
    def batch(self) -> Batch:
        """Writes put here are stored together with the answer: both or neither. Durable runs only."""
        durable = self._run.durable
        if durable is None:
            raise RunError(
                f"run {self._run.id} is not durable and has no batch", remedy="ask ctx.durable before using ctx.batch"
            )
        return durable.batch

    @property
    def attempt(self) -> int:
        """Which attempt at this effect this is, from 1; counted over restarts if the run is durable."""
        durable = self._run.durable
        return self._attempt if durable is None else durable.attempt

    def attempt_failed(self, error: Exception) -> None:
        """Count a failed attempt and take back what it put into `batch`; another one follows."""
        self.forget_writes()
        if self._run.durable is None:
            self._attempt += 1
        else:
            self._run.durable.attempt_failed(error)

    async def in_time(self, awaitable: Awaitable[T], timeout_ms: float, name: str) -> T:
        """Wait for something, but not for longer than this on the runtime's clock. Raises EffectTimeout."""
        task, late = asyncio.ensure_future(awaitable), False

        def stop() -> None:
            nonlocal late
            late = True
            task.cancel()

        timer = self.after(timeout_ms, stop)
        try:
            return await task
        except asyncio.CancelledError:
            if not late:
                raise
            raise timed_out(name, timeout_ms) from None
        finally:
            self._scheduler.alarms.forget(timer)

    def after_commit(self, done: Callable[[Any], object]) -> None:
        """Call `done(receipt)` when `batch` was stored with the answer."""
        if self._run.durable is not None:
            self._run.durable.after_commit.append(done)

    def forget_writes(self) -> None:
        """Take back what was put into `batch` for this effect, and `after_commit` with it."""
        if self._run.durable is not None:
            self._run.durable.forget_writes()

    def remember(self, note: Any) -> None:
        """Keep a JSON value for this effect until it is answered, over a crash. Without a journal: no effect."""
        if self._run.durable is not None:
            self._run.durable.remember(note)

    def publish_progress(self, value: Any) -> None:
        """Say how far the run is. Without a journal: no effect."""
        if self._run.durable is not None:
            self._run.durable.publish_progress(value)

    def recall(self) -> Any:
        """What `remember` kept for this effect before the run was interrupted; None if nothing."""
        durable = self._run.durable
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
        if self._run.done:
            _clean_up(cleanup, self._run.id)
        elif self._closers is None:
            self._closers = [cleanup]
        else:
            self._closers.append(cleanup)

    def later(self) -> Later:
        """Return this from a plain handler to answer afterwards."""
        if self._asked is None:
            raise AlreadyAnswered(
                f"run {self._run.id} waits for no answer", remedy="call ctx.later() inside the handler"
            )
        return Later(self, self._asked)

    def after(self, delay_ms: float, call: Callable[[], object]) -> int:
        """Call `call` once when the time has passed, unless the effect is over by then. Gives the timer's id.

        What it raises is raised by the effect's handler.
        """
        alarms = self._scheduler.alarms
        timer = self._scheduler.timer(delay_ms, partial(self._ring, call))
        if self._run.done:
            alarms.forget(timer)
        elif self._releases is None:
            self._releases = [timer]
        else:
            if len(self._releases) >= _MANY:
                self._releases = [each for each in self._releases if not isinstance(each, int) or each in alarms]
            self._releases.append(timer)
        return timer

    async def pause(self, ms: float) -> bool:
        """Wait for so long on the runtime's clock; False when the node stops, which ends the wait early.

        A durable run also waits until it is certain that it is still this node's.
        """
        pauses, durable = self._scheduler.pauses, self._run.durable
        over = asyncio.Event()
        pauses.add(over)
        self.after(ms, over.set if durable is None else partial(durable.when_certain, over.set))
        try:
            if not self._scheduler.finishing:
                await over.wait()
        finally:
            pauses.discard(over)
        return not self._scheduler.finishing

    def on_release(self, release: Callable[[], object]) -> None:
        """Call `release` when this effect is over: answered, timed out, or its run ended."""
        if self._run.done:
            release()
        elif self._releases is None:
            self._releases = [release]
        else:
            self._releases.append(release)

    # -- the effect that is being answered

    def _release(self) -> None:
        """The effect is over."""
        releases, self._releases = self._releases, None
        for release in releases or ():
            if isinstance(release, int):
                self._scheduler.alarms.forget(release)
                continue
            try:
                release()
            except Exception:
                logger.exception("something that run %s held could not be released", self._run.id)

    def _ring(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            if self._asked is None:
                raise  # it has answered, or there was nothing to answer
            self._answered(self._run.steps, self._asked, None, error)

    def _bring(self, brings: int, value: Any) -> None:
        self._asked = None
        if self._releases is not None:
            self._release()
        self._scheduler.bring(self._run, brings, value)

    def _fail(self, handler: RegisteredHandler, error: BaseException) -> None:
        """The effect failed for good: that is raised in the program where the runtime does so, else it ends the run."""
        if not (self._scheduler.raises and isinstance(error, Exception)):
            self._bring(FAILURE, error)
            return
        if not isinstance(error, MainspringError):  # of any other error one wants the traceback
            logger.warning("run %s: %s failed", self._run.id, handler.name, exc_info=error)
        self._asked = None
        if self._releases is not None:
            self._release()
        self._scheduler.effect_failed(self._run, handler.name, error)

    @property
    def performing(self) -> bool:
        """Whether the answer of an effect is awaited."""
        return self._asked is not None

    def interrupt(self, error: Exception) -> bool:
        """Let the effect that is being performed fail with this error; False when there is none."""
        if self._asked is None:
            return False
        self._fail(self._asked, error)
        return True

    def _answered(self, step: int, handler: RegisteredHandler, result: Any, error: BaseException | None) -> None:
        """The answer of a handler that took its time; too late when the run is past that step."""
        if self._asked is not handler or self._run.steps != step:
            self._scheduler.late_completions += 1
        elif error is None:
            self._apply(handler, result)
        elif not (self._scheduler.finishing and self._run.durable is not None):
            self._fail(handler, error)

    def _apply(self, handler: RegisteredHandler, result: Any) -> None:
        """Do what a result means: go on, end, fail, or wait."""
        brings, value = handler.meaning(result)
        if brings != _WAIT:
            self._bring(brings, value)
        elif value is not None:
            self._supervise(handler, value)

    def _not_needed(self, result: Any) -> None:
        """The run was cancelled, or answered, inside the handler that returned this."""
        if asyncio.iscoroutine(result):
            result.close()
        elif not isinstance(result, Later):
            self._scheduler.late_completions += 1

    def _limit(self, handler: RegisteredHandler, timeout_ms: float) -> None:
        step = self._run.steps

        def late() -> None:
            if self._asked is handler and self._run.steps == step:
                self._fail(handler, timed_out(handler.name, timeout_ms))

        self.after(timeout_ms, late)

    @identifies_work(lambda known: ("effect", known["handler"].name), nested="wait")
    def _supervise(self, handler: RegisteredHandler, awaitable: Awaitable[Any]) -> None:
        """Wait for a handler's coroutine on the running asyncio loop; its end is the answer."""
        run, scheduler, step = self._run, self._scheduler, self._run.steps
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            error = NoHostLoop(
                f"the handler of {handler.name} is a coroutine and no asyncio loop is running",
                remedy="drive the runtime inside an asyncio loop, or use a plain function",
            )
            self._answered(step, handler, None, error)
            return
        finished = False

        async def wait() -> None:
            nonlocal finished
            result: Any = None
            error: BaseException | None = None
            try:
                result = await awaitable
            except asyncio.CancelledError as gave_up:
                if self._asked is not handler or run.steps != step:
                    raise  # the run is over or has its answer: this one is not needed
                if run.durable is not None and task.cancelling():
                    raise  # the process is going down: a durable run stays unfinished and goes on later
                error = handler.failure(gave_up)
            except (KeyboardInterrupt, SystemExit) as stop:
                self._answered(step, handler, None, stop)
                raise
            except BaseException as raised:
                error = raised
            finished = True
            self._answered(step, handler, result, error)

        def over(task: asyncio.Task[None]) -> None:
            scheduler.tasks.discard(task)
            if asyncio.iscoroutine(awaitable):
                awaitable.close()  # cancelled before its first turn, it would be reported as never awaited

        task = loop.create_task(wait(), name=f"{handler.name} of {run.id}")
        scheduler.tasks.add(task)
        task.add_done_callback(over)
        self.on_release(lambda: None if finished else task.cancel())


BlockingEffectContext: type[EffectContext] = with_blocking_verbs(EffectContext)


class Later:
    """An answer that is still to come. May be answered from any thread, once."""

    __slots__ = ("_context", "_handler", "_step", "answered")

    def __init__(self, context: EffectContext, handler: RegisteredHandler) -> None:
        self._context = context
        self._handler = handler
        self._step = context.run.steps
        self.answered: bool = False

    def resume(self, value: Any = None) -> None:
        """Answer with `resume(value)`."""
        self._settle(resume(value), None)

    def answer(self, answer: Any) -> None:
        """Answer like a returned value: `resume`, `tail`, `end`, or a bare value."""
        self._settle(answer, None)

    def time_out(self, message: str) -> None:
        """What was waited for did not come: `WaitTimedOut` in the program, or None where failures end runs."""
        if self._context._scheduler.raises:
            self._settle(None, WaitTimedOut(message))
        else:
            self._settle(resume(None), None)

    def fail(self, error: BaseException) -> None:
        """Fail the effect with `error`, as if the handler had raised it."""
        self._settle(None, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        context, step, handler = self._context, self._step, self._handler
        if self.answered:
            raise AlreadyAnswered(
                f"the effect of step {step - 1} of run {context.run_id} was answered already",
                remedy="answer each effect once; the first answer was applied",
            )
        self.answered = True
        scheduler = context._scheduler
        if scheduler.is_own_thread():
            context._answered(step, handler, result, error)
        else:
            scheduler.from_outside(lambda: context._answered(step, handler, result, error))


def timed_out(effect: str, timeout_ms: float) -> EffectTimeout:
    return EffectTimeout(effect, f"the handler of {effect} did not answer within {duration_text(int(timeout_ms))}")


def context_of(run: Run[Any]) -> EffectContext:
    """The context of a run, made if it has none yet."""
    if run.context is None:
        run.context = EffectContext(run)
    return run.context


def release_effect(run: Run[Any]) -> None:
    """The run is over, and with it the effect it waits for."""
    context = run.context
    if context is not None:
        context._asked = None
        if context._releases is not None:
            context._release()


def clean_up(run: Run[Any]) -> None:
    """Call what handlers registered with `ctx.on_close`."""
    if run.context is not None:
        closers, run.context._closers = run.context._closers, None
        for cleanup in closers or ():
            _clean_up(cleanup, run.id)


def _clean_up(cleanup: Callable[[], object], run_id: str) -> None:
    """Run one cleanup; a coroutine is finished on the running loop. Errors are logged."""
    try:
        result = cleanup()
    except Exception:
        logger.exception("a cleanup of run %s failed", run_id)
        return
    if asyncio.iscoroutine(result):
        try:
            _cleanups.start(result, f"cleanup of run {run_id}")
        except RuntimeError:
            logger.error("a cleanup of run %s is a coroutine and no asyncio loop is running", run_id)
