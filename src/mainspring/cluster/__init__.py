"""Several nodes on one log: who is alive, and who holds which role."""

from __future__ import annotations

from mainspring.cluster.alone import Alone
from mainspring.cluster.contract import Cluster, Role

__all__ = ["Alone", "Cluster", "Role"]
