"""Several nodes on one log: who is alive, and who holds which role.

| module | what it is |
|---|---|
| cluster | what the parts of a node may ask about other nodes; `Alone`, for a node that owns its log |
| membership | `Membership`: one node among several: its lease, its pulse, the change feed, its roles |
| peers | what nodes write about themselves, and the table of all of them |
| program_versions | what the programs of all living nodes declare, and which is the newest |
| suspects | work with which the process ended more than once, begun one at a time |
| startup | the data directory, the node's name, waiting for the log, what acknowledgements mean |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainspring.cluster.cluster import About, Alone, Cluster, NodeView, Role
from mainspring.cluster.membership import LEASE_MS, Membership, NameTaken
from mainspring.cluster.peers import FORMAT, LEASES, NODES, AwayNode, decode_pulse, inbox, read_lease
from mainspring.cluster.program_versions import (
    SPACE,
    DeclarationsInForce,
    Declared,
    ProgramOrder,
    ProgramVersions,
    read_program,
)
from mainspring.cluster.startup import DurabilityWatch, Home, NotDurable, node_name, with_patience
from mainspring.cluster.suspects import MOST_ENDS, Suspects
from mainspring.log import Reader

# How each kind of record about nodes is read, by space.
RECORD_READERS: Final[Mapping[str, Reader]] = {
    LEASES: read_lease,
    NODES: lambda _, value: decode_pulse(value),
    SPACE: read_program,
}

__all__ = [
    "FORMAT",
    "LEASE_MS",
    "MOST_ENDS",
    "NODES",
    "RECORD_READERS",
    "About",
    "Alone",
    "AwayNode",
    "Cluster",
    "DeclarationsInForce",
    "Declared",
    "DurabilityWatch",
    "Home",
    "Membership",
    "NameTaken",
    "NodeView",
    "NotDurable",
    "ProgramOrder",
    "ProgramVersions",
    "Role",
    "Suspects",
    "inbox",
    "node_name",
    "with_patience",
]
