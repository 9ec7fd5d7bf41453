"""Every promise is kept, whatever breaks, on many seeds; and the simulator finds what breaks a promise on purpose."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from mainspring.testing.simulation import explore, run, shorten
from tests.simulated.system.mutants import MUTANTS, Mutant, settles_without_the_letter
from tests.simulated.system.promises import Promises
from tests.support.paths import ROOT

SEEDS, PER_TEST = 500, 20
DIGESTS = """
from mainspring.testing.simulation import run
from tests.simulated.system.promises import Promises
print([run(Promises, seed).digest for seed in (1, 2, 3, 4)])
"""


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    report = explore(Promises, range(first, first + PER_TEST))
    assert not report.failures, str(report)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_deliberate_fault_is_found(mutant: Mutant) -> None:
    with mutant():
        assert any(run(Promises, seed).broken for seed in range(SEEDS))


def test_nothing_of_a_run_stays() -> None:
    """A campaign of many seeds in one process would grow with each; and what stays slows those down that follow."""

    class Mine(Promises):
        pass

    for seed in range(4):
        run(Mine, seed)
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is Mine]


def test_the_same_seed_gives_the_same_run_byte_by_byte_whatever_python_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_failing_run_is_told_by_its_shortest_story() -> None:
    with settles_without_the_letter():
        failing = next(seed for seed in range(SEEDS) if run(Promises, seed).broken)
        found = shorten(Promises, failing)
        needed = [step.number for step in found.result.steps]
        assert run(Promises, failing, needed).broken == found.result.broken
    assert len(needed) <= found.prefix <= len(Promises().plan(failing))
    assert found.command.endswith(f"promises:Promises --seed {failing} --steps {','.join(map(str, needed))}")
    assert found.result.broken[0] in str(found)
