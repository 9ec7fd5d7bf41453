"""Many seeds, and for a run that fails the shortest story that still does.

A run is a list of steps, operations and faults, in the order of their time. `shorten` looks for the fewest first steps
that still fail, then leaves out of these whatever is not needed, one after the other. What is left is often three steps
of thirty. The command it gives repeats exactly that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context

from mainspring.testing.simulation.runner import SeedResult, run
from mainspring.testing.simulation.scenario import Scenario


@dataclass
class FailingSeed:
    """A run that fails. `prefix`: how many of its first steps it takes; `result` is of those that are needed."""

    seed: int
    prefix: int
    result: SeedResult
    command: str

    def __str__(self) -> str:
        lines = [f"seed {self.seed} fails, with the first {self.prefix} steps of its plan and no fewer:"]
        lines += [f"  {promise}" for promise in self.result.broken[:10]]
        lines += ["what is needed for it:", *(f"  {step}" for step in self.result.steps)]
        return "\n".join([*lines, f"see it again: {self.command}"])


@dataclass
class Exploration:
    """What came of many seeds."""

    seeds: int = 0
    next_seed: int | None = None  # all before this one were tried
    seconds: float = 0.0
    met: Counter[str] = field(default_factory=Counter)
    failures: list[FailingSeed] = field(default_factory=list)

    def __str__(self) -> str:
        pace = self.seeds / self.seconds if self.seconds else 0.0
        met = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.met.items()))
        head = f"{self.seeds:,} seeds, {len(self.failures)} failed, {pace:.1f} seeds/s; faults met: {met or 'none'}"
        return "\n\n".join([head, *map(str, self.failures)])


def explore(
    scenario: type[Scenario],
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    most_failures: int = 3,
    progress: Callable[[Exploration], object] = lambda _: None,
) -> Exploration:
    """Run the seeds, in so many processes; ends early after `most_failures`."""
    report, began = Exploration(), time.perf_counter()
    work = [(scenario, seed) for seed in seeds]
    with ExitStack() as stack:
        results: Iterable[tuple[int, Counter[str], bool]] = map(_try, work)
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=get_context("spawn")))
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            results = pool.map(_try, work, chunksize=8)
        for seed, met, failed in results:
            report.seeds += 1
            report.next_seed = seed + 1
            report.met += met
            if failed:
                report.failures.append(shorten(scenario, seed))
            report.seconds = time.perf_counter() - began
            progress(report)
            if len(report.failures) >= most_failures:
                break
    return report


def _try(job: tuple[type[Scenario], int]) -> tuple[int, Counter[str], bool]:
    result = run(*job)
    return result.seed, result.met, bool(result.broken)


def shorten(scenario: type[Scenario], seed: int) -> FailingSeed:
    """The shortest prefix of the plan that fails, without the steps of it that do not matter."""
    numbers = [step.number for step in run(scenario, seed).steps]
    prefix = next((n for n in range(len(numbers)) if run(scenario, seed, numbers[:n]).broken), len(numbers))
    needed = numbers[:prefix]
    for number in reversed(needed):
        fewer = [each for each in needed if each != number]
        if run(scenario, seed, fewer).broken:
            needed = fewer
    return FailingSeed(seed, prefix, run(scenario, seed, needed), command_for(scenario, seed, needed))


def command_for(scenario: type[Scenario], seed: int, steps: Sequence[int] | None = None) -> str:
    """The command that shows a run."""
    name = f"{scenario.__module__}:{scenario.__qualname__}"
    chosen = "" if steps is None else f" --steps {','.join(map(str, steps)) or 'none'}"
    return f"python -m mainspring.testing.simulation {name} --seed {seed}{chosen}"
