"""Every promise is kept, whatever breaks, on many seeds; and the simulator finds what breaks a promise on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import ClassVar

import pytest

from mainspring import App
from mainspring.client import Client
from mainspring.testing.simulation import KINDS, PlannedStep, Scenario, explore, operation, run, shorten
from tests.simulated.system.mutants import MUTANTS, Mutant, answers_before_the_commit, settles_without_the_letter
from tests.simulated.system.promises import Promises
from tests.support.paths import ROOT

SEEDS, PER_TEST = 500, 20
DIGESTS = """
from mainspring.testing.simulation import run
from tests.simulated.system.promises import Promises
print([run(Promises, seed).digest for seed in (1, 2, 3, 4)])
"""
LEFT = """
import gc
from mainspring.node.core import Core
from mainspring.testing.simulation import explore
from tests.simulated.system.promises import Promises
explore(Promises, range(40))
gc.collect()
print([each for each in gc.get_objects() if isinstance(each, Promises | Core)])
"""


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    report = explore(Promises, range(first, first + PER_TEST))
    assert not report.failures, str(report)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_deliberate_fault_is_found(mutant: Mutant) -> None:
    with mutant():
        assert any(run(Promises, seed).broken for seed in range(SEEDS))


class Publishing(Scenario):
    """A program without checks of its own."""

    drainers: ClassVar = (1,)

    def program(self) -> App:
        return App("publishing")

    @operation
    async def publish(self, client: Client, step: PlannedStep) -> None:
        await client.publish("orders", {}, id=step.id)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_strikes(kind: str) -> None:
    class OneKind(Publishing):
        kinds: ClassVar = (kind,)

    results = [run(OneKind, seed) for seed in range(4)]
    assert sum(result.met[kind] for result in results) > 0
    assert [result.broken for result in results] == [[]] * 4


def test_what_a_publisher_was_told_is_compared_whatever_the_scenario_checks() -> None:
    class OnAFullDisk(Publishing):
        nodes: ClassVar = (1,)
        kinds: ClassVar = ("disk full",)

    with answers_before_the_commit():
        broken = [promise for seed in range(10) for promise in run(OnAFullDisk, seed).broken]
    assert any("was confirmed at" in promise for promise in broken), broken


def output_of(program: str, **environment: str) -> str:
    command, env = [sys.executable, "-c", program], {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_nothing_of_a_run_stays() -> None:
    """A campaign of many seeds in one process would grow with each, and so would a process that lives for long.

    In a process of its own: pytest keeps what it sees of errors that nobody caught.
    """
    assert output_of(LEFT) == "[]"


def test_the_same_seed_gives_the_same_run_byte_by_byte_whatever_python_hashes() -> None:
    assert len({output_of(DIGESTS, PYTHONHASHSEED=seed) for seed in ("1", "2")}) == 1


def test_a_failing_run_is_told_by_its_shortest_story() -> None:
    with settles_without_the_letter():
        failing = next(seed for seed in range(SEEDS) if run(Promises, seed).broken)
        found = shorten(Promises, failing)
        needed = [step.number for step in found.result.steps]
        assert run(Promises, failing, needed).broken == found.result.broken
    assert len(needed) <= found.prefix <= len(Promises().plan(failing))
    assert found.command.endswith(f"promises:Promises --seed {failing} --steps {','.join(map(str, needed))}")
    assert found.result.broken[0] in str(found)
