"""Several nodes on one log: who is alive, and who holds which role."""

from __future__ import annotations

from mainspring.cluster.alone import Alone
from mainspring.cluster.cluster import About, Cluster, NodeView, Role
from mainspring.cluster.errors import NameTaken, NotDurable
from mainspring.cluster.home import Home
from mainspring.cluster.membership import LEASE_MS, Membership
from mainspring.cluster.program_versions import Declared, InForce, Order, Roster
from mainspring.cluster.startup import check_durability, node_name, with_patience

__all__ = [
    "LEASE_MS",
    "About",
    "Alone",
    "Cluster",
    "Declared",
    "Home",
    "InForce",
    "Membership",
    "NameTaken",
    "NodeView",
    "NotDurable",
    "Order",
    "Role",
    "Roster",
    "check_durability",
    "node_name",
    "with_patience",
]
