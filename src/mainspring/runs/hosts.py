"""Where ticks come from: an asyncio loop or a Mainspring loop.

Under a virtual clock there is no host: the test makes the ticks. Otherwise the scheduler asks its host for a turn when
there is something to do, and for a wake-up at its next deadline. Nothing polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from mainspring.loop import Clock, Loop


class SchedulerHost(Protocol):
    """What a scheduler needs of the loop that gives it turns."""

    def soon(self, pump: Callable[[], None]) -> bool:
        """Call `pump` in a turn of its own. False when that is not possible now."""
        ...

    def now(self, pump: Callable[[], None]) -> None:
        """Call `pump` at once if this is a turn of the host in which that is possible, else soon."""
        ...

    def gone(self) -> bool:
        """Whether turns that were asked for will never come, because the loop is closed."""
        ...

    def is_free(self) -> bool:
        """Whether no loop brings turns now, so that the caller's loop may."""
        ...

    def wake_at(self, deadline_ms: int, pump: Callable[[], None]) -> None:
        """Call `pump` at that monotonic time, or earlier if an earlier wake-up is already planned."""
        ...

    def from_thread(self, call: Callable[[], None]) -> None:
        """Call `call` on the host's thread; may be called from any thread."""
        ...


class AsyncioHost:
    """Turns on whichever asyncio loop is running when there is something to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._deadline: int | None = None

    def _running(self) -> asyncio.AbstractEventLoop | None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        if loop is not self._loop:
            self._loop, self._handle, self._deadline = loop, None, None
        return loop

    def soon(self, pump: Callable[[], None]) -> bool:
        loop = self._running()
        if loop is None:
            return False
        loop.call_soon(pump)
        return True

    def now(self, pump: Callable[[], None]) -> None:
        pump()

    def gone(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def is_free(self) -> bool:
        return self._loop is None or not self._loop.is_running()

    def wake_at(self, deadline_ms: int, pump: Callable[[], None]) -> None:
        loop = self._running()
        if loop is None or (self._deadline is not None and self._deadline <= deadline_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._deadline = deadline_ms
        delay = max(0, deadline_ms - self._clock.now_ms()) / 1000
        self._handle = loop.call_later(delay, self._wake, pump)

    def _wake(self, pump: Callable[[], None]) -> None:
        self._handle = self._deadline = None
        pump()

    def from_thread(self, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)


class LoopHost:
    """Turns as user turns of a Mainspring loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._timer: Any = None
        self._deadline: int | None = None

    def soon(self, pump: Callable[[], None]) -> bool:
        self._loop.post(_call, pump)
        return True

    def now(self, pump: Callable[[], None]) -> None:
        self._loop.offer(_call, pump)

    def gone(self) -> bool:
        return False  # a Mainspring loop keeps what waits for its next driver

    def is_free(self) -> bool:
        return False

    def wake_at(self, deadline_ms: int, pump: Callable[[], None]) -> None:
        if self._deadline is not None and self._deadline <= deadline_ms:
            return
        if self._timer is not None:
            self._loop.cancel(self._timer)
        self._deadline = deadline_ms
        self._timer = self._loop.schedule_at(deadline_ms, self._wake, pump)

    def _wake(self, pump: Callable[[], None]) -> None:
        self._timer = self._deadline = None
        pump()

    def from_thread(self, call: Callable[[], None]) -> None:
        self._loop.complete(_call, call)


def _call(call: Callable[[], None]) -> None:
    call()
