"""Deadlines: the timeout of every open request, for the price of one timer.

Nearly all requests use the default timeout, so their deadlines come in the order they were made: a queue is enough,
and only its head needs a timer on the wheel. An answered request is not searched for; it stays in the queue as a
closed mail and is dropped when its turn comes, or earlier, when more than half of the queue is closed. A request with
a timeout of its own gets its own timer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mainspring.kernel.pending import Mail

if TYPE_CHECKING:
    from mainspring.loop import Loop

_WORTH_SWEEPING: Final = 1024


class Deadlines:
    """Calls `on_timeout(mail)` as a user turn, never early, for every mail that is still open by then."""

    def __init__(self, loop: Loop, default_ms: float, on_timeout: Callable[[Mail], None]) -> None:
        self._loop = loop
        self._now_ms = loop.clock.now_ms
        self.default_ms = default_ms
        self._wait_ms = math.ceil(default_ms) + 1  # the clock is cut to whole ms: one more is never early
        self._on_timeout = on_timeout
        self._queue: deque[tuple[int, Mail]] = deque()
        self._closed = 0
        self._armed = False

    def start(self, mail: Mail, timeout_ms: float | None) -> None:
        if timeout_ms is not None:
            mail.timer = self._loop.schedule(timeout_ms, self._own, mail, kind="timeout", ref=False)
            return
        deadline = self._now_ms() + self._wait_ms
        self._queue.append((deadline, mail))
        if not self._armed:
            self._arm(deadline)

    def end(self, mail: Mail) -> None:
        """The mail is closed: its timeout never comes."""
        if mail.timer is not None:
            self._loop.cancel(mail.timer)
            mail.timer = None
            return
        self._closed += 1
        if self._closed > _WORTH_SWEEPING and self._closed * 2 > len(self._queue):
            self._queue = deque(item for item in self._queue if not item[1].closed)
            self._closed = 0

    def _arm(self, deadline_ms: int) -> None:
        self._armed = True
        self._loop.schedule_at(deadline_ms, self._due, None, kind="timeout", ref=False)

    def _due(self, _: Any) -> None:
        self._armed = False
        queue, now = self._queue, self._now_ms()
        while queue and (queue[0][1].closed or queue[0][0] <= now):
            mail = queue.popleft()[1]
            if mail.closed:
                self._closed = max(0, self._closed - 1)
            else:
                self._on_timeout(mail)
                self._closed = max(0, self._closed - 1)
        if queue:
            self._arm(queue[0][0])

    def _own(self, mail: Mail) -> None:
        mail.timer = None
        if not mail.closed:
            self._on_timeout(mail)
