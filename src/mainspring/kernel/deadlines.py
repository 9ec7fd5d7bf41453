"""Deadlines: the timeout of every open request, for the price of one timer.

Nearly all requests use the default timeout, so their deadlines come in the order they were made: a queue is enough,
and only its head needs a timer on the wheel. An answered request is not searched for; it stays in the queue as a
closed mail and is dropped as soon as it is the oldest, or when the queue has doubled. A request with
a timeout of its own gets its own timer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mainspring.kernel.mail import Mail

if TYPE_CHECKING:
    from mainspring.loop import Loop

NS_PER_MS: Final = 1_000_000
_WORTH_SWEEPING: Final = 256


def check_timeout(timeout_ms: float) -> None:
    """A timeout that a program gives is held to the same rule as one that a client sends."""
    if not 0 < timeout_ms < math.inf:
        raise ValueError("timeout_ms must be a positive, finite number")


class Deadlines:
    """Calls `on_timeout(mail)` as a user turn, never early, for every mail that is still open by then."""

    def __init__(self, loop: Loop, default_ms: float, on_timeout: Callable[[Mail], None]) -> None:
        self._loop = loop
        self._now_ns = loop.clock.now_ns
        self.default_ms = default_ms
        self._wait_ns = math.ceil(default_ms * NS_PER_MS)
        self._on_timeout = on_timeout
        self._queue: deque[tuple[int, Mail]] = deque()
        self._sweep_at = _WORTH_SWEEPING
        self._armed = False

    def start(self, mail: Mail, timeout_ms: float | None) -> None:
        if timeout_ms is not None:
            mail.timer = self._loop.schedule(timeout_ms, self._own, mail, kind="timeout", ref=False)
            return
        deadline = mail.began_ns + self._wait_ns
        queue = self._queue
        while queue and queue[0][1].closed:
            queue.popleft()
        queue.append((deadline, mail))
        if not self._armed:
            self._arm(deadline)
        if len(queue) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Drop what is closed; look again when the queue has doubled."""
        self._queue = deque(item for item in self._queue if not item[1].closed)
        self._sweep_at = max(_WORTH_SWEEPING, 2 * len(self._queue))

    def _arm(self, deadline_ns: int) -> None:
        self._armed = True
        self._loop.schedule_at(-(-deadline_ns // NS_PER_MS), self._due, None, kind="timeout", ref=False)

    def _due(self, _: Any) -> None:
        self._armed = False
        queue, now = self._queue, self._now_ns()
        while queue and (queue[0][1].closed or queue[0][0] <= now):
            mail = queue.popleft()[1]
            if not mail.closed:
                self._on_timeout(mail)
        if queue:
            self._arm(queue[0][0])

    def _own(self, mail: Mail) -> None:
        mail.timer = None
        if not mail.closed:
            self._on_timeout(mail)
