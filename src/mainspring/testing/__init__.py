"""Testing programs: the whole app on virtual time, in memory, from a seed. See `simulate`; with sockets, `serving`.

Under faults: `mainspring.testing.simulation`.
"""

from __future__ import annotations

from mainspring.testing.driving import DidNotHappen
from mainspring.testing.one_node import Simulation, simulate
from mainspring.testing.serving import Served, serving
from mainspring.testing.world import SeenEvent, SeenRun, World

__all__ = ["DidNotHappen", "SeenEvent", "SeenRun", "Served", "Simulation", "World", "serving", "simulate"]
