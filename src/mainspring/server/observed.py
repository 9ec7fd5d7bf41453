"""What of a node can be observed: its parts, as the metrics and the health checks read them.

A node names all of them. Where a bus is served alone, the other parts are None and their numbers are absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from mainspring.beats import Heartbeat
from mainspring.bus import Bus
from mainspring.cluster import Cluster
from mainspring.guests.socket.server import LoopSocketServer
from mainspring.kernel import Kernel
from mainspring.log import Durability, Log, LogUnavailable
from mainspring.loop import Loop, Watchdog
from mainspring.runs import Runtime
from mainspring.server.ndjson import NdjsonServer

Requests = Counter[tuple[str, str, int]]
"""HTTP requests answered, by method, route and status."""


@dataclass(slots=True)
class Deaths:
    """What happened in the cluster since this node joined; its own losses are `fenced`."""

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
class Promise:
    """What an acknowledgement of the engine means. Asked once, when somebody wants to know."""

    known: Durability | None = None

    async def of(self, log: Log) -> Durability | None:
        """None while the engine's server does not answer."""
        if self.known is None:
            try:
                self.known = await log.engine.durability()
            except LogUnavailable:
                return None
        return self.known


@dataclass(frozen=True, slots=True)
class Observed:
    """The parts of one node. `draining` says whether it has begun to stop."""

    bus: Bus
    log: Log | None = None
    loop: Loop | None = None
    watchdog: Watchdog | None = None
    kernel: Kernel | None = None
    runtime: Runtime | None = None
    heartbeat: Heartbeat | None = None
    cluster: Cluster | None = None
    ndjson: NdjsonServer | None = None
    guests: LoopSocketServer | None = None
    draining: Callable[[], bool] = lambda: False
    deaths: Deaths = field(default_factory=Deaths)
    promise: Promise = field(default_factory=Promise)
    requests: Requests = field(default_factory=Counter)
