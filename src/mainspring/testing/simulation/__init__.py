"""The whole system in one process, under virtual time and from a seed: nodes, clients, network and disks, and faults.

- `scenario`: `Scenario`, what you write: a program, what its clients do, what must be true at the end
- `runner`: one run: boot, steps and faults, rest, comparison
- `explorer`: many seeds; the shortest story of a run that fails
- `ledger`: what was observed, and what is promised to every program
- `faults`: every kind of fault, and what it does
- `machines`: nodes over their lives, and clients; `drainers`: of the program's outbox
- `network`, `disk`: what they are connected by and keep their logs on
- `processes`: virtual time, clocks, who runs when
"""

from __future__ import annotations

from mainspring.testing.simulation.explorer import Exploration, FailingSeed, explore, shorten
from mainspring.testing.simulation.faults import KINDS
from mainspring.testing.simulation.runner import Rest, SeedResult, run
from mainspring.testing.simulation.scenario import PlannedStep, Scenario, operation

__all__ = [
    "KINDS",
    "Exploration",
    "FailingSeed",
    "PlannedStep",
    "Rest",
    "Scenario",
    "SeedResult",
    "explore",
    "operation",
    "run",
    "shorten",
]
