"""The cluster: how many nodes share the log, whether this one belongs to them, and how often one was fenced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.server.metrics.families import counter, gauge
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def families(observed: Observed) -> Iterator[Metric]:
    cluster = observed.cluster
    if cluster is None:
        return
    nodes = cluster.nodes()
    roles = sum(len(node.roles) for node in nodes if node.here)
    yield gauge("cluster_nodes", "Nodes that hold a lease, this one too.", len(nodes))
    yield gauge("cluster_in_touch", "1 while this node's own lease is certain.", cluster.in_touch)
    yield gauge("cluster_roles", "Roles this node has.", roles)
    yield counter("cluster_fenced", "How often this node lost its lease.", observed.deaths.fenced)
    yield counter("cluster_nodes_gone", "Nodes whose lease ended, by stopping or by silence.", observed.deaths.gone)
