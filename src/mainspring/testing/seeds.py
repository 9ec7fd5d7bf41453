"""Seeds: where a simulation's chance comes from, and how a failure is repeated.

A test that gives no seed gets 0, or the one that `--mainspring-seed` names. When a test fails inside a simulation its
error carries a note with the one command that repeats it.
"""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Callable

OPTION = "--mainspring-seed"

_chosen: list[int] = []  # the last one counts; set by the pytest plugin


def choose(seed: int) -> None:
    """Use this seed for simulations that give none."""
    _chosen.append(seed)


def unchoose() -> None:
    _chosen.pop()


def seed_for(given: int | None) -> int:
    if given is not None:
        return given
    return _chosen[-1] if _chosen else 0


def command(seed: int, given: int | None, test: str = "") -> str:
    """The command that repeats a test, the one that runs now unless another is named; empty outside pytest."""
    running = test or os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if not running:
        return ""
    option = "" if given is not None else f" {OPTION}={seed}"
    return f"pytest {shlex.quote(running)}{option}"


def explain(error: BaseException, seed: int, given: int | None) -> None:
    """Note on the error how to see it again."""
    repeat = command(seed, given)
    error.add_note(f"simulated with seed {seed}" + (f"; run it again: {repeat}" if repeat else ""))


class Ids:
    """Ids like those of a node, from virtual time and the seed: ascending, never the same twice."""

    def __init__(self, source: random.Random, wall_ms: Callable[[], int]) -> None:
        self._source = source
        self._wall_ms = wall_ms
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        stamp = f"{self._wall_ms():012x}"
        rest = f"{self._count:08x}{self._source.getrandbits(40):010x}"
        return f"{stamp[:8]}-{stamp[8:12]}-7{rest[:3]}-8{rest[3:6]}-{rest[6:18]}"
