"""The alarm for a consumer that is connected and does nothing while its backlog grows.

Nothing fails in such a program: the socket is open, the process lives, and no error is raised. A handler waits for
something that will never come, or acknowledges nothing, so its window is full. From outside only two numbers show it:
events settled here, which stand still, and the group's lag, which grows.

`StallWatch` is told both now and then and says when to raise the alarm: once per stall, after nothing was settled for
`patience_ms` while the lag grew. An idle consumer (no lag) and a slow one (it settles) raise none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CHECK_MS: Final = 30_000
PATIENCE_MS: Final = 90_000  # three lease times by default: one slow event is no stall


@dataclass(frozen=True, slots=True)
class Stall:
    """What the alarm tells."""

    topic: str
    group: str
    lag: int
    for_ms: int


class StallWatch:
    """One subscription under watch. Times are monotonic ms."""

    def __init__(self, topic: str, group: str, patience_ms: int = PATIENCE_MS) -> None:
        self._topic = topic
        self._group = group
        self._patience_ms = patience_ms
        self._settled = -1
        self._since_ms = 0
        self._lag_then = 0
        self._raised = False

    def check(self, now_ms: int, connected: bool, settled: int, lag: int) -> Stall | None:
        """The alarm, or None while there is no reason, or when it was raised already."""
        if not connected or settled != self._settled or lag < self._lag_then:
            self._settled, self._since_ms, self._lag_then, self._raised = settled, now_ms, lag, False
            return None
        waited_ms = now_ms - self._since_ms
        if self._raised or waited_ms < self._patience_ms or lag <= self._lag_then:
            return None
        self._raised = True
        return Stall(self._topic, self._group, lag, waited_ms)
