"""Testing programs: the whole app on virtual time, in memory, from a seed. See `simulate`."""

from __future__ import annotations

from mainspring.testing.simulation import Simulation, simulate
from mainspring.testing.world import DidNotHappen, SeenEvent, SeenRun, World

__all__ = ["DidNotHappen", "SeenEvent", "SeenRun", "Simulation", "World", "simulate"]
