"""Several nodes on one log: who is alive, and who holds which role."""

from __future__ import annotations

from mainspring.cluster.alone import Alone
from mainspring.cluster.contract import Cluster, NodeView, Role
from mainspring.cluster.errors import NameTaken
from mainspring.cluster.membership import LEASE_MS, About, Membership

__all__ = ["LEASE_MS", "About", "Alone", "Cluster", "Membership", "NameTaken", "NodeView", "Role"]
