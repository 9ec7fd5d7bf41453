"""The scheduler against a model of it: plain lists, no cleverness, written from the rules alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.loop import VirtualClock
from mainspring.runs import Cancelled, Effect, Failed, Later, Runtime, Sleep, Value, resume

Instruction = tuple[str, int]


class Hop(Effect[int]):
    n: int


class Wait(Effect[int]):
    n: int


class Model:
    """Every rule in one line each; runs are numbers, programs are lists of instructions."""

    def __init__(self, programs: list[list[Instruction]], budget: int) -> None:
        self.programs, self.budget, self.now = programs, budget, 0
        self.queue: list[tuple[int, str]] = [(run, "go") for run in range(len(programs))]
        self.ready: list[int] = []
        self.timers: list[tuple[int, int, int]] = []  # deadline, registration, run
        self.step = [0] * len(programs)
        self.outcome: list[str | None] = [None] * len(programs)
        self.waiting: set[int] = set()
        self.trace: list[str] = []
        self.ticks = self.registered = self.late = 0

    def tick(self) -> None:
        self.ticks += 1
        self.trace.append(f"tick {self.ticks}")
        for timer in sorted(timer for timer in self.timers if timer[0] <= self.now):
            self.timers.remove(timer)
            self.queue.append((timer[2], "go"))
        drained, self.queue = self.queue, []
        for run, brings in drained:
            if brings == "go":
                self.ready.append(run)
            else:
                self.end(run, brings)
        for _ in range(self.budget):
            if self.ready:
                self.take(self.ready.pop(0))

    def take(self, run: int) -> None:
        self.trace.append(f"step {run} {self.step[run]}")
        kind, n = self.programs[run][self.step[run]]
        self.step[run] += 1
        if kind == "hop":
            self.queue.append((run, "go"))
        elif kind == "sleep":
            self.registered += 1
            self.timers.append((self.now + n, self.registered, run))
        elif kind == "wait":
            self.waiting.add(run)
        else:
            self.queue.append((run, {"return": "value", "raise": "failed", "end": "value"}[kind]))

    def end(self, run: int, kind: str) -> None:
        self.outcome[run] = kind
        self.trace.append(f"outcome {run} {kind}")

    def idle(self) -> bool:
        return not self.queue and not self.ready and not any(timer[0] <= self.now for timer in self.timers)

    def drain(self) -> None:
        while not self.idle():
            self.tick()

    def advance(self, ms: int) -> None:
        target = self.now + ms
        self.drain()
        while self.timers and min(self.timers)[0] <= target:
            self.now = min(self.timers)[0]
            self.drain()
        self.now = target

    def cancel(self, run: int) -> bool:
        if self.outcome[run] is not None:
            return False
        queued = any(entry[0] == run for entry in self.queue) or run in self.ready
        self.late += queued and self.step[run] > 0
        self.queue = [entry for entry in self.queue if entry[0] != run]
        self.ready = [each for each in self.ready if each != run]
        self.timers = [timer for timer in self.timers if timer[2] != run]
        self.end(run, "cancelled")
        return True

    def answer(self, run: int) -> None:
        if self.outcome[run] is not None:
            self.late += 1
        else:
            self.queue.append((run, "go"))
        self.waiting.discard(run)


class Real:
    """The same face over the real runtime."""

    def __init__(self, programs: list[list[Instruction]], budget: int) -> None:
        self.runtime = Runtime(
            clock=VirtualClock(), max_steps_per_tick=budget, trace=True, on_failure=lambda error, run_id: None
        )
        self.waiting: dict[int, Later] = {}
        self.runtime.handle(Hop, lambda effect, ctx: resume(effect.n))
        self.runtime.handle(Wait, self.hold)
        self.runs = [self.runtime.start(self.program, program) for program in programs]

    def hold(self, effect: Wait, ctx: Any) -> Later:
        return self.waiting.setdefault(int(ctx.run_id.removeprefix("run_")) - 1, ctx.later())

    def program(self, instructions: list[Instruction]) -> Any:
        for kind, n in instructions:
            if kind == "hop":
                assert (yield Hop(n)) == n
            elif kind == "sleep":
                yield Sleep(ms=n)
            elif kind == "wait":
                assert (yield Wait(n)) == 7
            elif kind == "raise":
                raise RuntimeError("on purpose")
            else:
                return n

    def answer(self, run: int) -> None:
        self.waiting.pop(run).resume(7)

    def trace(self) -> list[str]:
        shown = []
        for entry in self.runtime.trace:
            kind, *rest = entry.split(" ")
            if kind != "tick":
                rest[0] = str(int(rest[0].removeprefix("run_")) - 1)
            shown.append(" ".join([kind, *rest]))
        return shown

    def outcomes(self) -> list[str | None]:
        names = {Value: "value", Failed: "failed", Cancelled: "cancelled", type(None): None}
        return [names[type(run.outcome_now())] for run in self.runs]


body = st.lists(
    st.one_of(
        st.tuples(st.just("hop"), st.integers(0, 3)),
        st.tuples(st.just("sleep"), st.integers(0, 6)),
        st.tuples(st.just("wait"), st.just(0)),
    ),
    max_size=6,
)
last = st.sampled_from([("return", 1), ("raise", 0)])
program = st.builds(lambda steps, end: [*steps, end], body, last)
action = st.one_of(
    st.just(("tick", 0)),
    st.just(("drain", 0)),
    st.tuples(st.just("advance"), st.integers(0, 8)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("answer"), st.integers(0, 5)),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.lists(program, min_size=1, max_size=6), st.integers(1, 4), st.lists(action, max_size=25))
def test_the_scheduler_does_what_its_model_does(
    programs: list[list[Instruction]], budget: int, actions: list[tuple[str, int]]
) -> None:
    model, real = Model(programs, budget), Real(programs, budget)
    for name, n in actions:
        if name == "tick":
            model.tick()
            real.runtime.tick()
        elif name == "drain":
            model.drain()
            real.runtime.run_until_idle()
        elif name == "advance":
            model.advance(n)
            real.runtime.advance(n)
        elif name == "cancel" and n < len(programs):
            assert real.runs[n].cancel() is model.cancel(n)
        elif name == "answer" and n in real.waiting:
            model.answer(n)
            real.answer(n)
        assert real.trace() == model.trace
        assert real.outcomes() == model.outcome
        assert real.runtime.late_completions == model.late
        assert real.runtime.live == model.outcome.count(None)


@settings(max_examples=200)
@given(st.lists(program, min_size=1, max_size=6), st.integers(1, 4))
def test_left_alone_long_enough_everything_that_can_end_ends(programs: list[list[Instruction]], budget: int) -> None:
    real = Real(programs, budget)
    for _ in range(7):
        real.runtime.advance(100)
        for run in list(real.waiting):
            real.answer(run)
    real.runtime.advance(100)
    assert None not in real.outcomes()
    assert (real.runtime.live, real.runtime.late_completions) == (0, 0)
