"""The parts of a node as the metrics and the health checks read them, and what /healthz and /readyz answer.

A node names all of its parts. Where a bus is served alone, the other parts are None and their numbers are absent.

Liveness and readiness are two questions. A node that cannot write now, that stops, or one of whose capabilities was
given up is not ready: clients should not send it anything, but a restart of the process may not help. A node whose loop
no longer turns is not alive: only a restart helps. A process that hangs in one turn answers neither question, which has
to be taken for a no.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from mainspring.beats import Heartbeat
from mainspring.bus import Bus, ReadyState
from mainspring.cluster import Cluster
from mainspring.kernel import Kernel
from mainspring.log import Durability, Log
from mainspring.loop import Loop, Watchdog
from mainspring.runs import Runtime
from mainspring.server.connections import Connections
from mainspring.server.ndjson import LineServer
from mainspring.status import AttentionDesk, NodeHistory

STUCK_MS: Final = 30_000  # a turn that waits so long while requests are answered waits for ever

Requests = Counter[tuple[str, str, int]]
"""HTTP requests answered, by method, route and status."""


class LoopSocket(Protocol):
    """What is counted of the socket for guests. Its server is optional and not imported here."""

    accepted: int

    @property
    def guests(self) -> int: ...

    @property
    def polls(self) -> int: ...


@dataclass(slots=True)
class LostLeases:
    """Leases lost since this node joined the cluster: its own (`fenced`), and those of other nodes (`gone`)."""

    fenced: int = 0
    gone: int = 0

    def watch(self, cluster: Cluster) -> None:
        """Count from now on."""
        cluster.on_fenced(self._fenced)
        cluster.on_death(self._gone)

    def _fenced(self, _epoch: int) -> None:
        self.fenced += 1

    def _gone(self, _epoch: int) -> None:
        self.gone += 1


@dataclass(slots=True)
class NodeParts:
    """The parts of one node. `draining` says whether it has begun to stop."""

    bus: Bus
    log: Log | None = None
    loop: Loop | None = None
    watchdog: Watchdog | None = None
    kernel: Kernel | None = None
    runtime: Runtime | None = None
    heartbeat: Heartbeat | None = None
    cluster: Cluster | None = None
    ndjson: LineServer | None = None
    ndjson_port: LineServer | None = None
    guests: LoopSocket | None = None
    durability: Callable[[], Durability | None] = lambda: None  # None: the engine's server was never heard
    connections: Connections | None = None
    attention: AttentionDesk | None = None
    history: NodeHistory | None = None
    draining: Callable[[], bool] = lambda: False
    lost_leases: LostLeases = field(default_factory=LostLeases)
    requests: Requests = field(default_factory=Counter)
    started_ms: int = field(init=False)  # epoch

    def __post_init__(self) -> None:
        self.started_ms = self.bus.clock.wall_ms()


def readiness(node: NodeParts) -> ReadyState:
    """Ready while everything that a request needs is there; otherwise the reason."""
    if node.draining() or (node.kernel is not None and node.kernel.closing):
        return ReadyState(False, "stopping")
    if node.log is not None and node.log.fault is not None:
        return ReadyState(False, f"the log cannot write: {node.log.fault.message}")
    if node.cluster is not None and node.cluster.trouble:
        return ReadyState(False, node.cluster.trouble)
    if node.kernel is not None and node.kernel.given_up:
        first, *others = node.kernel.given_up
        more = f" (and {len(others)} more)" if others else ""
        return ReadyState(
            False, f"capability {first} failed too often{more}; `mainspring actors restart {first}` starts it again"
        )
    return node.bus.readiness()


def stuck_ms(node: NodeParts) -> int:
    """How long the loop has not turned although something waits for it; 0 while it turns."""
    if node.loop is None:
        return 0
    waited = node.loop.counters().oldest_waiting_ms
    return waited if waited >= STUCK_MS else 0
