"""Whether a node lives, and whether it takes requests: what /healthz and /readyz answer.

They are two questions. A node that cannot write now, or that stops, is not ready: nobody should send it anything, but
restarting it would help nobody. A node whose loop no longer turns is not alive: only a restart helps. A process that
hangs in one turn answers neither; whoever asks takes silence for a no.
"""

from __future__ import annotations

from typing import Final

from mainspring.bus import Readiness
from mainspring.server.observed import Observed

STUCK_MS: Final = 30_000  # a turn that waits so long while requests are answered waits for ever


def readiness(observed: Observed) -> Readiness:
    """Ready while everything that a request needs is there; otherwise the reason."""
    if observed.draining() or (observed.kernel is not None and observed.kernel.closing):
        return Readiness(False, "stopping")
    if observed.log is not None and observed.log.fault is not None:
        return Readiness(False, f"the log cannot write: {observed.log.fault.message}")
    if observed.cluster is not None and observed.cluster.trouble:
        return Readiness(False, observed.cluster.trouble)
    return observed.bus.readiness()


def stuck_ms(observed: Observed) -> int:
    """How long the loop has not turned although something waits for it; 0 while it turns."""
    if observed.loop is None:
        return 0
    waited = observed.loop.counters().oldest_waiting_ms
    return waited if waited >= STUCK_MS else 0
