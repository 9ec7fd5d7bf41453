"""Structured tasks: groups, joining, timeouts and intervals.

`async with perform.group() as group` opens a group in the program's own run. Leaving the block waits for every child;
a child that fails cancels the others and fails the owner. Children start soon, never inline: `spawn` returns before the
child's first step.

The intervals are ordinary programs that run as children of the group, so cancelling, failing and waiting need no rules
of their own. Whatever they decide on (has the callback ended?) they learn through effects, so that a durable interval
decides the same way when it is executed again.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, TypeVarTuple, overload

from mainspring.durations import Duration, duration_text
from mainspring.retries import Errors
from mainspring.runs.durable.questions import Answering
from mainspring.runs.effects import (
    Effect,
    GroupEnd,
    HasEnded,
    Join,
    Progress,
    Sleep,
    Until,
    Version,
    lasting_ms,
    suspend,
    whole_ms,
)
from mainspring.runs.errors import ChildTimedOut, GroupClosed, NeverAwaited
from mainspring.runs.handlers import ATTEMPT_OPTIONS, EffectContext, Later, attempts_of
from mainspring.runs.programs import built_in, call_inline
from mainspring.runs.run import Failed, Outcome, Run, unwrap
from mainspring.runs.steps import step_of
from mainspring.runs.tree import family_of, root_of

if TYPE_CHECKING:
    from mainspring.runs.runtime import Runtime

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

logger: logging.Logger = logging.getLogger("mainspring.runs")

Overlap = Literal["serial", "concurrent", "skip", "buffer-one"]
OVERLAPS: tuple[Overlap, ...] = ("serial", "concurrent", "skip", "buffer-one")


class TaskInRun(Protocol[T_co]):
    """A task that a run has enqueued."""

    async def result(self) -> T_co:
        """Wait until it is done; what it returned."""


class RunnableTask(Protocol[P, T_co]):
    """A task as a run sees it: `mainspring.tasks.Task`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    def in_run(self, perform: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class Perform:
    """The last argument of a coroutine program: performs effects, and opens what belongs to the run."""

    __slots__ = ("_groups", "_run", "_runtime")

    def __init__(self, runtime: Runtime, run: Run[Any]) -> None:
        self._runtime = runtime
        self._run = run
        self._groups = 0

    def __call__(self, effect: Effect[T]) -> Awaitable[T]:
        """Await it to perform the effect; the program gets the answer, or `EffectFailed`."""
        return suspend(effect)

    @overload
    def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...

    @overload
    def step(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        name: str | None = None,
        max_attempts: int = 1,
        timeout: Duration | None = None,
        backoff: Duration = "1s",
        max_backoff: Duration = "1m",
        retry_on: Errors = Exception,
        give_up_on: Errors = (),
    ) -> Awaitable[T]: ...

    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...

    @overload
    def step(
        self,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        name: str | None = None,
        max_attempts: int = 1,
        timeout: Duration | None = None,
        backoff: Duration = "1s",
        max_backoff: Duration = "1m",
        retry_on: Errors = Exception,
        give_up_on: Errors = (),
    ) -> Awaitable[T]: ...

    def step(self, function: Any, /, *args: Any, **given: Any) -> Any:  # type: ignore[misc] # mypy: *args: *Ts
        """Call a function once per success: its result is kept, and a program that is executed again gets that.

        A plain function runs in a thread, an `async def` one on the loop. The step has the function's name unless
        `name` gives another. One that raises is tried up to `max_attempts` times, after `backoff`, which doubles up to
        `max_backoff`; `timeout` is for one attempt. Only errors of `retry_on` are tried again, and none of
        `give_up_on`. Then `EffectFailed` is raised here.
        """
        options = {key: given.pop(key) for key in ATTEMPT_OPTIONS if key in given}
        attempts = attempts_of(**options, counts_deaths=True)
        bound = self._runtime.programs.bind_step(function)
        effect = step_of(bound, args, given, given.pop("name", None), attempts)
        self._runtime.know_step(type(effect))
        return self(effect)

    @overload
    def task(
        self, task: RunnableTask[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...

    @overload
    def task(self, task: RunnableTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...

    async def task(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Have a task done by whoever runs tasks, the node or a worker, and wait for its result.

        It is enqueued once, whatever happens to the run. When it failed for good, `EffectFailed` is raised here.
        """
        return await (await self.enqueue(task, *args, **kwargs)).result()

    @overload
    def enqueue(
        self, task: RunnableTask[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[TaskInRun[T]]: ...

    @overload
    def enqueue(self, task: RunnableTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[TaskInRun[T]]: ...

    def enqueue(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Have a task done while the run goes on; `await started.result()` waits for it."""
        return task.in_run(self, args, kwargs)

    def version(self, name: str, newest: int = 2) -> Awaitable[int]:
        """Which version of a change this run follows: `if await perform.version("fees") >= 2: ...`.

        A run that comes here for the first time follows the newest and keeps to it. One that had passed this place
        before the change was made gets 1.
        """
        return self(Version(name, newest))

    def query(self, function: F) -> F:
        """Declare a function that tells others about a durable run: `client.query_run(run, "status")`.

        It reads the program's variables, is called while the program waits for an effect, and is kept nowhere.
        """
        self._declare("query", function, None)
        return function

    @overload
    def update(self, function: F, /) -> F: ...

    @overload
    def update(self, /, *, validate: Callable[..., object]) -> Callable[[F], F]: ...

    def update(self, function: Any = None, /, *, validate: Callable[..., object] | None = None) -> Any:
        """Declare a function that changes a durable run for others: `client.update_run(run, "add_item", item)`.

        It changes the program's variables while the program waits for an effect, and its caller gets what it returns
        or raises. It is stored, and applied at the same place when the program is executed again. `validate` is called
        with the same arguments first; what it raises refuses the update, and nothing is stored.
        """

        def declare(given: F) -> F:
            self._declare("update", given, validate)
            return given

        return declare if function is None else declare(function)

    def _declare(self, kind: str, function: Callable[..., Any], validate: Callable[..., object] | None) -> None:
        state = self._run.durable
        if state is not None:
            if state.answering is None:
                state.answering = Answering()
            state.answering.declare(kind, function, validate)

    def progress(self, value: Any) -> Awaitable[None]:
        """Publish a JSON value about this run, such as how far it is. Everybody who may look at the run sees it."""
        return self(Progress(value))

    @property
    def run(self) -> Run[Any]:
        """The run this belongs to."""
        return self._run

    def group(self) -> RunGroup:
        """A group of children; use it in `async with`."""
        self._groups += 1
        return RunGroup(self, self._groups)

    def spawn(self, program: Any, *args: Any, unref: bool = False) -> Run[Any]:
        """Start an attached child. The run ends after it; if it fails, join it, or the run fails when it returns."""
        child = self._runtime.spawn(self._run, program, args)
        family_of(self._run).adopt(child)
        if unref:
            child.unref()
        return child

    def detach(self, program: Any, *args: Any, owner: Run[Any] | None = None) -> Run[Any]:
        """Start a child that is not waited for. It ends with its owner's failure or cancellation, not with its value.

        The owner is the root of this run's tree unless given.
        """
        child = self._runtime.spawn(self._run, program, args, detached=True)
        family_of(owner or root_of(self._run)).adopt(child, detached=True)
        return child

    def join(self, run: Run[T]) -> Awaitable[Outcome[T]]:
        """Wait for a run and observe how it ended; value, failed and cancelled stay apart."""
        return self(Join(run))

    async def wait_all(self, *runs: Run[Any]) -> list[Outcome[Any]]:
        """The outcomes of all these runs, in their order."""
        return [await self.join(run) for run in runs]

    async def within(self, duration: Duration, program: Any, *args: Any) -> Any:
        """The value of a child that must end in that time; else it is cancelled and ChildTimedOut is raised here."""
        child = self.spawn(program, *args)
        family_of(child).observed = True
        ms = _ms(duration)
        ended, _ = await suspend(Until(child, ms))
        if not ended:
            error = ChildTimedOut(f"child {child.id} did not end within {duration_text(ms)}")
            child.cancel(error)
            raise error
        return unwrap(child.id, await self.join(child))


class WatchfulPerform(Perform):
    """`perform` of an App's runs: an effect that is made and never awaited fails the run."""

    __slots__ = ()

    def __call__(self, effect: Effect[T]) -> Awaitable[T]:
        waiting: Any = _performing(effect, self._run)
        next(waiting)  # to where it notices that it is dropped
        return waiting  # type: ignore[no-any-return] # a cast would cost more than the rest


@types.coroutine
def _performing(effect: Effect[Any], run: Run[Any]) -> Generator[Any, Any, Any]:
    """Hands the effect to the scheduler when it is awaited.

    `perform` takes it to its first yield. There it learns when it is dropped instead: at once, in most cases, and so
    while the program stands at the line that did it.
    """
    try:
        yield
    except GeneratorExit:
        _never_awaited(effect, run, sys._getframe(1))
        raise
    return (yield effect)


def _never_awaited(effect: Effect[Any], run: Run[Any], dropped_at: types.FrameType) -> None:
    if run.done:
        return
    code, line = dropped_at.f_code, dropped_at.f_lineno
    if dropped_at.f_globals.get("__name__", "").startswith("mainspring.runs."):  # its function returned
        code = getattr(getattr(run.close_program, "__self__", None), "cr_code", code)
        line = code.co_firstlineno
    error = NeverAwaited(
        f"{type(effect).__name__} was never awaited, so it was not performed: {code.co_filename}, line {line}, "
        f"in {code.co_qualname}",
        remedy="write `await perform(...)`",
    )
    if run.scheduler.current is run and run.scheduler.stepping_here():
        run.scheduler.settle(run, Failed(error))
    else:  # a collector of garbage found it, perhaps in another thread
        logger.error("run %s: %s", run.id, error)


def _ms(duration: Duration) -> int:
    return whole_ms(lasting_ms(duration))


class RunGroup:
    """Children that start and end inside one block of their owner."""

    def __init__(self, perform: Perform, number: int) -> None:
        self._perform = perform
        self._number = number
        self._children: dict[Run[Any], None] = {}
        self._open = False
        self._waiter: Later | None = None

    async def __aenter__(self) -> RunGroup:
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:  # the owner is being closed: its end decides what becomes of the children
            self._open = False
            return
        if kind is None:
            await suspend(GroupEnd(self._number, self))
        self._open = False
        self.cancel("the group ended")

    def spawn(self, program: Any, *args: Any, unref: bool = False) -> Run[Any]:
        """Start a child of the group, like `runtime.start`; it steps in a later tick."""
        return self._spawn(self._perform, program, args, unref)

    def _spawn(self, by: Perform, program: Any, args: tuple[Any, ...], unref: bool = False) -> Run[Any]:
        """`by` is who decided to start the child: a durable child's id is counted there."""
        if not self._open:
            raise GroupClosed("the group is not open", remedy="spawn inside `async with perform.group() as group`")
        child = by._runtime.spawn(by._run, program, args)
        family_of(self._perform._run).adopt(child, group=self)
        if not child.is_done():
            self._children[child] = None
        if unref:
            child.unref()
        return child

    def after(self, delay: Duration, program: Any, *args: Any, unref: bool = False) -> Run[Any]:
        """Start a child that first sleeps, then runs the program as part of itself."""
        return self.spawn(_after, _ms(delay), self._reference(program), list(args), unref=unref)

    def every(
        self, interval: Duration, program: Any, *args: Any, overlap: Overlap = "serial", unref: bool = False
    ) -> Run[Any]:
        """Run the program again and again until the returned run is cancelled or the program fails.

        `overlap` says what happens when the time comes while the program still runs: "serial" waits the interval after
        it ended, "concurrent" starts another, "skip" leaves this one out, "buffer-one" starts one as soon as it ends.
        """
        if overlap not in OVERLAPS:
            raise ValueError(f"overlap must be one of {', '.join(OVERLAPS)}, not {overlap!r}")
        driver = _serial if overlap == "serial" else _buffering if overlap == "buffer-one" else _overlapping
        return self.spawn(driver, _ms(interval), overlap, self._reference(program), list(args), unref=unref)

    def cancel(self, reason: Any = None) -> int:
        """Cancel every live child; how many there were."""
        return sum(child.cancel(reason) for child in list(self._children))

    def child_left(self, child: Run[Any]) -> None:
        """A child ended or no longer counts; the owner goes on when none is left that does."""
        if child.is_done():
            self._children.pop(child, None)
        if self._waiter is not None and not self._waits():
            waiter, self._waiter = self._waiter, None
            waiter.resume(None)

    def end(self, ctx: EffectContext) -> Later | None:
        """The handler of `GroupEnd`: answered when no child is left that counts."""
        if not self._waits():
            return None
        self._waiter = ctx.later()
        ctx.on_release(self._stop_waiting)
        return self._waiter

    def _stop_waiting(self) -> None:
        self._waiter = None

    def _waits(self) -> bool:
        return any(not family_of(child).unreferenced for child in self._children)

    def _reference(self, program: Any) -> Any:
        """A durable run writes its arguments down, so there a program is known by its name."""
        perform = self._perform
        return program if perform._run.durable is None else perform._runtime.programs.name_for(program)


def _own_group(perform: Perform) -> RunGroup:
    group = family_of(perform._run).group
    assert group is not None, "intervals are spawned by RunGroup"
    return group


def _resolve(perform: Perform, program: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = perform._runtime.programs.get(program) if isinstance(program, str) else program
    return found


@built_in("mainspring.runs.after")
async def _after(ms: float, program: Any, args: list[Any], perform: Perform) -> Any:
    await perform(Sleep(ms=ms))
    return await call_inline(_resolve(perform, program), tuple(args), perform)


@built_in("mainspring.runs.values")
async def _serial(ms: float, overlap: str, program: Any, args: list[Any], perform: Perform) -> None:
    callback = _resolve(perform, program)
    while True:
        await perform(Sleep(ms=ms))
        await call_inline(callback, tuple(args), perform)


@built_in("mainspring.runs.overlapping")
async def _overlapping(ms: float, overlap: str, program: Any, args: list[Any], perform: Perform) -> None:
    callback, group = _resolve(perform, program), _own_group(perform)
    child: Run[Any] | None = None
    while True:
        await perform(Sleep(ms=ms))
        if overlap == "skip" and child is not None and not await perform(HasEnded(child)):
            continue
        child = group._spawn(perform, callback, tuple(args))


@built_in("mainspring.runs.buffering")
async def _buffering(ms: float, overlap: str, program: Any, args: list[Any], perform: Perform) -> None:
    callback, group = _resolve(perform, program), _own_group(perform)
    await perform(Sleep(ms=ms))
    child, left, buffered = group._spawn(perform, callback, tuple(args)), ms, False
    while True:
        if buffered:
            ended, passed = await perform(Until(child, left))
            if ended:
                child, left, buffered = group._spawn(perform, callback, tuple(args)), left - passed, False
                continue
        else:
            await perform(Sleep(ms=left))
        left = ms
        if await perform(HasEnded(child)):
            child, buffered = group._spawn(perform, callback, tuple(args)), False
        else:
            buffered = True
