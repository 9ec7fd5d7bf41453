"""When to connect, when to wait and for how long, when to give up: decided without touching a socket or a clock.

A connection that could not be opened or was lost is tried again after 500 ms, then after twice as long each time, up to
10 s; a connection that opened starts the series anew. Each wait is shortened at random by up to half (jitter), so that
a thousand clients of a node that restarts do not come back in the same instant. The first wait is the base, not twice
the base.

The machine is told what happened and says how long to wait. It ends in CLOSED, by `close` or because the node said
that this client will never be let in.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

BASE_MS: Final = 500
CAP_MS: Final = 10_000
JITTER: Final = 0.5


class State(Enum):
    """Where a connection stands."""

    CONNECTING = "connecting"
    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class Reconnect:
    """The life of one client's connection. `random` gives numbers from 0 up to 1."""

    def __init__(
        self,
        random: Callable[[], float],
        *,
        base_ms: int = BASE_MS,
        cap_ms: int = CAP_MS,
        jitter: float = JITTER,
    ) -> None:
        self.state: State = State.CONNECTING
        self.failures: int = 0  # since the last time it was open
        self.opened_times: int = 0
        self._random = random
        self._base_ms = base_ms
        self._cap_ms = cap_ms
        self._jitter = jitter

    def opened(self) -> None:
        """The node answers."""
        if self.state is State.CONNECTING:
            self.state = State.OPEN
            self.failures = 0
            self.opened_times += 1

    def lost(self) -> int:
        """It could not be opened, or was open and ended. Gives how many ms to wait before `waited` is called."""
        if self.state is State.CLOSED:
            return 0
        wait_ms = self._wait_ms()
        self.failures += 1
        self.state = State.WAITING
        return wait_ms

    def waited(self) -> None:
        """The wait is over: connect, unless it was closed meanwhile."""
        if self.state is State.WAITING:
            self.state = State.CONNECTING

    def close(self) -> None:
        """No more connections."""
        self.state = State.CLOSED

    def _wait_ms(self) -> int:
        full = min(self._base_ms << min(self.failures, 32), self._cap_ms)
        return round(full * (1 - self._jitter * self._random()))
