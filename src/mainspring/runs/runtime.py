"""`Runtime`: the face of effect runs.

In memory:

    runtime = Runtime()                              # turns on the running asyncio loop
    runtime = Runtime(clock=VirtualClock())          # turns only with tick, run_until_idle and advance
    runtime.handle(Charge, handler)                  # (effect, ctx) -> resume(v) | tail(v) | end(v) | bare value
    run = runtime.start(program, *args)
    outcome = await run.outcome()                    # Value | Failed | Cancelled

Durable, on a log:

    runtime = Runtime(log=log, node="node-1")
    runtime.register(program, name="checkout")       # so that another process finds it
    await runtime.start_service()                    # goes on with unfinished runs, now and from now on; retention
    run = runtime.start(program, *args, durable=True, id="order-17")
    await runtime.stop_service()                     # lets go; unfinished runs go on later, or on another node

A node hosts it on its own loop (`Runtime(loop=loop)`) and passes in what `Ask`, `Publish` and `WaitEvent` need
(`runtime.connect(ask=..., publish=..., events=...)`).
"""

from __future__ import annotations

import asyncio
import functools
import math
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from mainspring.cluster import Alone, Cluster
from mainspring.durations import Duration
from mainspring.log import Log
from mainspring.loop import Clock, HandlerThreads, Loop, MonotonicClock, VirtualClock
from mainspring.retries import Errors
from mainspring.runs.durable.durable_runs import DurableRuns
from mainspring.runs.effects import Ask, Effect, Publish, Signal, Spawn, WaitEvent, WaitSignal, builtin_handlers, resume
from mainspring.runs.errors import GroupClosed, NotIdle, RunError
from mainspring.runs.groups import Perform, WatchfulPerform
from mainspring.runs.handlers import (
    Attempts,
    EffectContext,
    Handler,
    RegisteredHandler,
    attempts_of,
    handler_in_thread,
    surrounded,
)
from mainspring.runs.lineage import of_here
from mainspring.runs.ports import AskPort, EventPort, PublishPort, ask_handler, publish_handler, wait_event_handler
from mainspring.runs.programs import Programs, bind, name_of
from mainspring.runs.run import Outcome, Run
from mainspring.runs.scheduler import AsyncioHost, FailureSink, LoopHost, Scheduler
from mainspring.runs.signals import Mailboxes
from mainspring.runs.steps import Around, Step, StepHandler
from mainspring.runs.tree import family_of, root_of

SETTLE_TURNS = 20  # turns of the asyncio loop without anything new before handlers count as waiting
_GLANCE_S: Final = 0.001  # how often `settle` looks whether a thread is done
DEFAULT_MAX_TICKS = 10_000  # run_until_idle gives up after so many: a run that never rests is a bug in the test


E = TypeVar("E", bound=Effect[Any])
_KIND: Final = {True: "durable", False: "memory"}


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What a runtime counted since it was made. `begun` by kind (durable, memory), `outcomes` by kind and how."""

    begun: dict[str, int]
    outcomes: dict[tuple[str, str], int]
    effects: dict[str, int]
    recovered: int = 0
    journal_writes: int = 0
    leases_lost: int = 0
    given_up: int = 0


class Runtime:
    """Runs programs. All methods belong to one thread, except answering through `ctx.later()`."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        max_steps_per_tick: float | None = None,
        trace: bool = False,
        on_failure: FailureSink | None = None,
        loop: Loop | None = None,
        random: random_module.Random | None = None,
        log: Log | None = None,
        node: str = "local",
        cluster: Cluster | None = None,
        recovery_ms: int = 5_000,
        retention_ms: int | None = None,
        early_signal_ms: int = 604_800_000,
        contract: Literal["strict", "app"] = "strict",
        threads: HandlerThreads | None = None,
    ) -> None:
        """With the "strict" contract the failure of an effect ends the run. With that of an App it is raised in the
        program, which may catch it: `EffectFailed` at `await perform(...)`, `ChildFailed` in a group, `WaitTimedOut`;
        and an effect that is made and never awaited fails the run.

        `recovery_ms` is how often unfinished durable runs are looked for, `retention_ms` how long finished ones are
        kept (None: for ever), `early_signal_ms` how long signals to a run that has not started are. With a `cluster`
        several nodes share the log: it has the node's name, and `node` means nothing.
        """
        self.clock: Clock = clock or MonotonicClock()
        self.programs: Programs = Programs()
        self._scheduler = Scheduler(self.clock, max_steps_per_tick, trace, on_failure, contract == "app")
        if loop is not None:
            self._scheduler.host = LoopHost(loop)
        elif not isinstance(self.clock, VirtualClock):
            self._scheduler.host = AsyncioHost(self.clock)
        self._threads = threads or HandlerThreads()
        if cluster is not None:
            self._scheduler.suspects = cluster.suspects
        self._scheduler.suspects.use(self._scheduler.timer)
        self._replaced_steps: dict[str, Callable[..., Any]] = {}
        self._around_steps: Around | None = None
        self._perform = WatchfulPerform if contract == "app" else Perform
        self._started = 0
        self._mailboxes = Mailboxes()
        self._runs: dict[str, Run[Any]] = {}
        self._scheduler.on_outcome.append(lambda run, outcome: self._runs.pop(run.id, None))
        source = random or random_module.SystemRandom()
        self.random: random_module.Random = source  # gives programs their random numbers
        self._durable: DurableRuns | None = None
        if log is not None:
            self._durable = DurableRuns(
                log,
                self._scheduler,
                self.programs,
                self._mailboxes,
                self._runs,
                self._bind,
                node=node,
                source=source,
                cluster=None if isinstance(cluster, Alone) else cluster,
                recovery_ms=recovery_ms,
                retention_ms=retention_ms,
                early_signal_ms=early_signal_ms,
            )
        for effect, handler in builtin_handlers(source).items():
            self._handle_builtin(effect, handler)
        self._handle_builtin(WaitSignal, self._mailboxes.wait)
        self._handle_builtin(Signal, self._signal_effect)
        self._handle_builtin(Spawn, self._spawn_effect)

    # -- handlers and programs

    def handle(
        self,
        effect: type[E],
        handler: Callable[[E, EffectContext], Any] | Callable[[E], Any],
        *,
        strict: bool = False,
        in_thread: bool = False,
        timeout: Duration | None = None,
        max_attempts: int = 1,
        backoff: Duration = "1s",
        max_backoff: Duration = "1m",
        retry_on: Errors = Exception,
        give_up_on: Errors = (),
        around: Around | None = None,
    ) -> None:
        """Answer this effect with `handler(effect, ctx)` or `handler(effect)`, plain or async; the last one counts.

        `strict` demands resume, tail or end. One that raises is asked again, up to `max_attempts` times, after
        `backoff`, which doubles up to `max_backoff`; then the effect fails. `timeout` is for one attempt. Only errors
        of `retry_on` are tried again, and none of `give_up_on`. `in_thread` is for plain functions that block.
        `around` is called in place of each attempt, with "effect", the name, the effect, `ctx` and what makes it.
        """
        attempts = attempts_of(
            max_attempts=max_attempts,
            timeout=timeout,
            backoff=backoff,
            max_backoff=max_backoff,
            retry_on=retry_on,
            give_up_on=give_up_on,
            counts_deaths=self._scheduler.raises,
        )
        call = handler_in_thread(handler, self._threads) if in_thread else handler
        if around is not None:
            call = surrounded(call, functools.partial(around, "effect", effect.__name__))
        self._scheduler.handlers[effect] = RegisteredHandler(effect, call, strict=strict, attempts=attempts)

    def _handle_builtin(self, effect: type[Effect[Any]], handler: Handler) -> None:
        self._scheduler.handlers[effect] = RegisteredHandler(effect, handler)

    def know_step(self, step: type[Step]) -> None:
        """Be able to perform a step; for `perform.step`."""
        if step not in self._scheduler.handlers:
            self._scheduler.handlers[step] = StepHandler(step, self._threads, self._replaced_steps, self._around_steps)

    def surround_steps(self, around: Around) -> None:
        """Call this in place of each attempt at a step, with "step", its name, its arguments, `ctx` and the attempt."""
        self._around_steps = around

    def replace_steps(self, functions: dict[str, Callable[..., Any]]) -> None:
        """Call these functions in place of those of steps, by the names of the steps; for tests."""
        self._replaced_steps = functions

    def connect(
        self, *, ask: AskPort | None = None, publish: PublishPort | None = None, events: EventPort | None = None
    ) -> None:
        """Pass in what `Ask`, `Publish` and `WaitEvent` need; an effect without its port is unhandled."""
        if ask is not None:
            attempts = Attempts(counts_deaths=self._scheduler.raises)  # whoever is asked may end the process
            self._scheduler.handlers[Ask] = RegisteredHandler(Ask, ask_handler(ask), attempts=attempts)
        if publish is not None:
            self._handle_builtin(Publish, publish_handler(publish))
        if events is not None:
            self._handle_builtin(WaitEvent, wait_event_handler(events))

    def register(self, program: Any, name: str | None = None) -> str:
        """Make a program known by name, for durable runs and for starting by name."""
        return self.programs.register(program, name)

    # -- starting

    def start(self, program: Any, *args: Any, durable: bool = False, id: str | None = None) -> Run[Any]:
        """Start a run; it steps in a later tick. TypeError when this is no program or the arguments do not fit.

        A durable run survives this process; starting the same `id` again gives the same run. Its arguments must be
        JSON values or have declared types: else Unserialisable names the path of the value.
        """
        if durable:
            return self.durable.start(program, args, id)
        if id is not None:
            raise TypeError("only durable runs have ids of their own: start(..., durable=True, id=...)")
        return self._start(program, args)

    @property
    def durable(self) -> DurableRuns:
        """The durable runs: `signal`, `cancel`, `retry`, `fork`, `find`, `history`, and `store.runs`."""
        if self._durable is None:
            raise RunError("this runtime has no log", remedy="make it with Runtime(log=...)")
        return self._durable

    async def start_service(self, *, go_on: bool = True) -> None:
        """Go on with unfinished durable runs, now and as long as this runtime lives.

        With `go_on=False` they are loaded and wait for `go_on()`: their handlers may end the process.
        """
        self.durable.hold_back()
        await self.durable.recovery.start()
        if go_on:
            self.go_on()

    def go_on(self) -> None:
        """Execute the runs that `start_service` loaded."""
        self.durable.go_on()

    async def finish(self) -> None:
        """Before an orderly stop: handlers at work may answer, and no further ones are asked for durable runs.

        Their answers are stored, so that what was done is not done again when the run goes on. An error is no answer
        any more, because it may come from the stopping: the handler is asked again, with the same key.
        """
        self._scheduler.finishing = True
        for pause in self._scheduler.pauses:
            pause.set()
        if self._scheduler.tasks:
            await asyncio.wait(set(self._scheduler.tasks))

    async def stop_service(self) -> None:
        """Let go of the durable runs; unfinished ones go on later, or on another node."""
        await self.durable.recovery.stop()

    def _bind(self, run: Run[Any], program: Any, args: tuple[Any, ...]) -> None:
        self._scheduler.bind(run, bind(program, args, self._perform(self, run)))

    def _start(self, program: Any, args: tuple[Any, ...]) -> Run[Any]:
        if isinstance(program, str):
            program = self.programs.get(program)
        run: Run[Any] = Run(f"run_{self._started + 1}", name_of(program), self._scheduler)
        self._bind(run, program, args)
        run.lineage = of_here(run.id, run.program)
        self._started += 1
        self._runs[run.id] = run
        self._scheduler.live += 1
        self._scheduler.launch(run)
        return run

    def spawn(self, owner: Run[Any], program: Any, args: tuple[Any, ...], *, detached: bool = False) -> Run[Any]:
        """Start a child for `owner`; used by `perform.spawn` and groups, which also say how it belongs.

        A run that is over has taken its children along; one that still executes, because it cancelled itself or is
        being closed, gets no further ones: nothing would end them.
        """
        if owner.done:
            raise GroupClosed(f"run {owner.id} is over and takes no children", remedy="start a run of its own")
        if owner.durable is not None:
            return self.durable.spawn(owner, program, args, detached=detached)
        return self._start(program, args)

    def _spawn_effect(self, effect: Spawn, ctx: EffectContext) -> Any:
        child = self.spawn(ctx.run, effect.program, tuple(effect.args), detached=effect.detached)
        owner = root_of(ctx.run) if effect.detached else ctx.run
        family_of(owner).adopt(child, detached=effect.detached)
        return resume(child)

    # -- looking and talking

    def get(self, run_id: str) -> Run[Any] | None:
        """The live run of that id in this process."""
        return self._runs.get(run_id)

    def runs(self) -> list[Run[Any]]:
        """The live runs of this process, oldest first."""
        return list(self._runs.values())

    def signal(self, run_id: str, name: str, value: Any = None) -> bool:
        """Send a value to a run of this process that is not durable. False when there is no such live run.

        For durable runs there is `await runtime.durable.signal(...)`: a signal is written down before it counts.
        """
        run = self._runs.get(run_id)
        if run is not None and run.is_durable:
            raise RunError(f"run {run_id} is durable", remedy="await runtime.durable.signal(...)")
        return run is not None and self._mailboxes.deliver(run, name, value)

    def _signal_effect(self, effect: Signal, ctx: EffectContext) -> Any:
        run = self._runs.get(effect.run_id)
        if self._durable is None or (run is not None and not run.is_durable):
            return self.signal(effect.run_id, effect.name, effect.value)
        return self._durable.signals.send_from(ctx, effect.run_id, effect.name, effect.value)

    def on_outcome(self, listener: Callable[[Run[Any], Outcome[Any]], object]) -> None:
        """Call `listener(run, outcome)` for every run that ends."""
        self._scheduler.on_outcome.append(listener)

    @property
    def trace(self) -> list[str]:
        """`tick N`, `step RUN K` and `outcome RUN KIND`, oldest first; empty unless asked for."""
        return self._scheduler.trace

    @property
    def late_completions(self) -> int:
        """How many answers and endings came for runs that were over."""
        return self._scheduler.late_completions

    @property
    def ticks(self) -> int:
        """Ticks made so far."""
        return self._scheduler.ticks

    @property
    def steps(self) -> int:
        """Steps taken by all runs."""
        return self._scheduler.steps

    @property
    def live(self) -> int:
        """Runs without an outcome."""
        return self._scheduler.live

    def counts(self) -> RunCounts:
        """What was counted so far, as one snapshot."""
        scheduler, durable = self._scheduler, self._durable
        begun = {_KIND[is_durable]: count for is_durable, count in scheduler.begun.items()}
        ended = scheduler.outcomes.items()
        outcomes = {(_KIND[kept], "done" if how == "value" else how): count for (kept, how), count in ended}
        effects: dict[str, int] = {}
        for handler in scheduler.handlers.values():
            if handler.asked:
                effects[handler.name] = effects.get(handler.name, 0) + handler.asked
        if durable is None:
            return RunCounts(begun, outcomes, effects)
        lost, given_up = durable.ownership.times_lost, scheduler.given_up
        return RunCounts(begun, outcomes, effects, durable.recovered, durable.writer.written, lost, given_up)

    def close(self) -> None:
        """Cancel every run that is not durable, and let go of those that are."""
        for run in self.runs():
            if run.durable is None:
                run.cancel("the runtime was closed")
        if self._durable is not None:
            self._durable.let_go(of_everything=True)

    # -- driving

    def tick(self) -> int:
        """Make one tick; how many steps it took."""
        return self._scheduler.tick()

    def run_until_idle(self, max_ticks: int = DEFAULT_MAX_TICKS) -> int:
        """Tick until nothing is ready; how many ticks that took. Raises NotIdle after `max_ticks`."""
        made = 0
        while not self._scheduler.is_idle():
            if made >= max_ticks:
                raise NotIdle(
                    f"still busy after {max_ticks} ticks",
                    remedy="a run never rests: give it something to wait for, or raise max_ticks",
                )
            self._scheduler.tick()
            made += 1
        return made

    def advance(self, ms: float) -> None:
        """Let virtual time pass, stopping at each deadline and draining everything ready before time moves on."""
        clock, target = self._until(ms)
        if ms < 0:
            return
        while True:
            self.run_until_idle()
            if not self._move(clock, target):
                return

    async def settle(self) -> None:
        """Tick until nothing is ready or being stored and no thread computes, letting handlers on this loop go on.

        For tests of durable runs, and of handlers that are not done at once, under a virtual clock.
        """
        turns = 0
        while turns < SETTLE_TURNS:
            turns = 0 if self.run_until_idle() else turns + 1
            if self._durable is not None and self._durable.busy:
                await self._durable.quiet()
                turns = 0
            if self._threads.busy:
                await asyncio.sleep(_GLANCE_S)
                turns = 0
            await asyncio.sleep(0)

    async def elapse(self, ms: float) -> None:
        """`advance` for tests with durable runs: settles before each deadline."""
        clock, target = self._until(ms)
        if ms < 0:
            return
        while True:
            await self.settle()
            if not self._move(clock, target):
                return

    def _until(self, ms: float) -> tuple[VirtualClock, int]:
        """The clock to move, and where to."""
        if not math.isfinite(ms):
            raise ValueError(f"time advances by a finite number of milliseconds, not {ms}")
        if not isinstance(self.clock, VirtualClock):
            raise RunError("only a virtual clock can be advanced", remedy="make the runtime with clock=VirtualClock()")
        return self.clock, self.clock.now_ms() + int(ms)

    def _move(self, clock: VirtualClock, target: int) -> bool:
        """Move to the next deadline, or to the target if none comes before; False when time stands there.

        A program may have moved the clock itself, and a clock may stand between two milliseconds.
        """
        deadline = self._scheduler.alarms.next_deadline()
        until = target if deadline is None else min(deadline, target)
        if until > clock.now_ms():
            clock.move_to(until)
        return deadline is not None and deadline <= target
