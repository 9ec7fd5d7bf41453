"""Handlers: how one is registered and asked, what its results mean, and the task that waits for a coroutine.

A handler's result is one of three things: a plain answer (applied at once), something to wait for, or a mistake. The
kind of the answer is checked here, before the program is resumed: a resume effect takes `resume` or `end`, a tail
effect only `tail`. A bare value is sugar for the effect's own kind, unless the handler was registered strictly.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from mainspring.runs.context import Context, Later
from mainspring.runs.effects import Answer, Effect, end, resume, tail
from mainspring.runs.errors import EffectTimeout, HandlerGaveUp, NoHostLoop, WrongAnswer
from mainspring.runs.holding import hold, hold_timer
from mainspring.runs.run import FAILURE, RESUME, VALUE

if TYPE_CHECKING:
    from mainspring.runs.run import Run
    from mainspring.runs.scheduler import Scheduler

Handler = Callable[..., Any]

# Results of these exact types are certainly bare values: no look at their attributes is needed.
BARE: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset})

_BRINGS: Final = {"resume": RESUME, "end": VALUE, "error": FAILURE}


class Handled:
    """One registration: the handler of one effect class."""

    __slots__ = ("asked", "bare", "call", "expected", "kind", "name", "strict", "timeout_ms")

    def __init__(self, effect: type[Effect[Any]], handler: Handler, strict: bool, timeout_ms: float | None) -> None:
        self.name: str = effect.__name__
        self.asked: int = 0  # how often its handler was asked by runs that have a lineage
        self.kind = effect.__kind__
        self.call: Handler = _with_two_arguments(handler)
        self.strict: bool = strict
        self.timeout_ms: float | None = timeout_ms
        self.expected: type[Answer] = tail if self.kind == "tail" else resume
        self.bare: frozenset[type] = frozenset() if strict else BARE


def registration(effect: Any, handler: Any, strict: bool, timeout_ms: float | None) -> Handled:
    """Check what was given to `handle`. Only effect classes have handlers."""
    if not (isinstance(effect, type) and issubclass(effect, Effect)) or effect is Effect:
        raise TypeError(f"only effect classes have handlers, not {effect!r}: subclass mainspring.runs.Effect")
    if not callable(handler):
        raise TypeError(f"the handler of {effect.__name__} must be a function or a coroutine function")
    return Handled(effect, handler, strict, timeout_ms)


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


def accept(handled: Handled, result: Any) -> tuple[str, Any]:
    """What a result means: ("resume", value), ("end", value), ("error", exception) or ("wait", awaitable or None)."""
    if isinstance(result, Answer):
        if isinstance(result, handled.expected):
            return "resume", result.value
        if isinstance(result, end) and handled.kind == "resume":
            return "end", result.value
        return "error", WrongAnswer(
            f"effect {handled.name} is of kind {handled.kind} and was answered with {result.kind}",
            remedy="answer a resume effect with resume or end, a tail effect with tail",
        )
    if isinstance(result, Later):
        return "wait", None
    if inspect.isawaitable(result):
        return "wait", result
    if handled.strict:
        return "error", WrongAnswer(
            f"the handler of {handled.name} returned {type(result).__name__} instead of an answer",
            remedy="return resume(value), tail(value) or end(value); the handler is registered as strict",
        )
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or result is resume or result is tail or result is end:
        return "error", WrongAnswer(
            f"the handler of {handled.name} returned {result!r}, which answers nothing",
            remedy="return a value, or resume(value), tail(value) or end(value)",
        )
    return "resume", result


def raised_by(handled: Handled, error: BaseException) -> BaseException:
    """The error a run fails with when its handler raised this. A cancellation that nobody asked for is a failure."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    gave_up = HandlerGaveUp(f"the handler of {handled.name} was cancelled while the run was not")
    gave_up.__cause__ = error
    return gave_up


def ask_handler(scheduler: Scheduler, run: Run[Any], request: Any, handled: Handled) -> None:
    """Ask the handler, in the step that performed the effect."""
    context = run._context
    if context is None:
        context = run._context = Context(run, scheduler)
    run._asked = handled
    lineage = run._lineage
    entered = None if lineage is None else lineage.ask(handled, context.key)
    try:
        result = handled.call(request, context)
        if run._asked is not handled:
            _not_needed(scheduler, result)
            return
        answer = result
        if result.__class__ is handled.expected:
            answer = result.value
        elif result.__class__ not in handled.bare:
            if handled.timeout_ms is not None:
                _limit(scheduler, run, handled)
            apply(scheduler, run, handled, result)
            return
    except BaseException as error:
        scheduler.answered(run, run._steps, handled, None, raised_by(handled, error))
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return
    finally:
        if lineage is not None:
            lineage.leave(entered)
    scheduler.bring(run, RESUME, answer)


def _not_needed(scheduler: Scheduler, result: Any) -> None:
    """The run was cancelled, or answered, inside the handler that returned this."""
    if asyncio.iscoroutine(result):
        result.close()
    elif not isinstance(result, Later):
        scheduler.late_completions += 1


def apply(scheduler: Scheduler, run: Run[Any], handled: Handled, result: Any) -> None:
    """Do what a result means: go on, end, fail, or wait."""
    kind, value = accept(handled, result)
    if kind != "wait":
        scheduler.bring(run, _BRINGS[kind], value)
    elif value is not None:
        supervise(scheduler, run, handled, value)


def _limit(scheduler: Scheduler, run: Run[Any], handled: Handled) -> None:
    step = run._steps

    def late() -> None:
        if run._asked is handled and run._steps == step:
            error = EffectTimeout(
                f"the handler of {handled.name} did not answer within {handled.timeout_ms} ms",
                remedy="answer sooner, or register it with a longer timeout_ms",
            )
            scheduler.bring(run, FAILURE, error)

    hold_timer(run, handled.timeout_ms or 0, late)


def supervise(scheduler: Scheduler, run: Run[Any], handled: Handled, awaitable: Awaitable[Any]) -> None:
    """Wait for a handler's coroutine on the running asyncio loop; its end is the answer."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        error = NoHostLoop(
            f"the handler of {handled.name} is a coroutine and no asyncio loop is running",
            remedy="drive the runtime inside an asyncio loop, or use a plain function",
        )
        scheduler.answered(run, run._steps, handled, None, error)
        return
    step = run._steps
    finished = False

    async def wait() -> None:
        nonlocal finished
        result: Any = None
        error: BaseException | None = None
        try:
            result = await awaitable
        except asyncio.CancelledError as gave_up:
            if run._asked is not handled or run._steps != step:
                raise  # the run is over or has its answer: nobody waits for this one
            if run._durable is not None and task.cancelling():
                raise  # the process is going down: a durable run stays unfinished and goes on later
            error = raised_by(handled, gave_up)
        except (KeyboardInterrupt, SystemExit) as stop:
            scheduler.answered(run, step, handled, None, stop)
            raise
        except BaseException as raised:
            error = raised
        finished = True
        scheduler.answered(run, step, handled, result, error)

    def over(task: asyncio.Task[None]) -> None:
        scheduler.tasks.discard(task)
        if asyncio.iscoroutine(awaitable):
            awaitable.close()  # cancelled before its first turn, it would be reported as never awaited

    task = loop.create_task(wait(), name=f"{handled.name} of {run.id}")
    scheduler.tasks.add(task)
    task.add_done_callback(over)
    hold(run, lambda: None if finished else task.cancel())
