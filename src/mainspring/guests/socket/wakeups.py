"""Wake-ups for guests that wait: a thread of its own listens to their epoll descriptors.

The node's loop could listen to them itself. But the kernel limits how many ways may lead from one file through nested
epoll sets (500 at this depth), and guests choose which files these are: a few of them that watch one socket under many
handles reach the limit. The node's loop would find out when it is too late to refuse: uvloop registers at the start of
its next sleep, and aborts the process if the kernel says no. Here the kernel's answer comes at once, in `watch`, and
its caller can do something about it.

The thread sleeps in the kernel and starts with the first guest that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Callable

_ONCE = 0x1 | 1 << 30  # EPOLLIN and EPOLLONESHOT, written out: other systems import this module too


class Wakeups:
    """Calls back on the running asyncio loop when a watched descriptor becomes readable, once per `watch`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._stop, select.EPOLLIN)
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None

    def watch(self, descriptor: int, callback: Callable[[], None]) -> bool:
        """Calls back once, also when it is readable already; watching again is fine. False when the kernel refuses."""
        try:
            if descriptor in self._callbacks:
                self._epoll.modify(descriptor, _ONCE)
            else:
                self._epoll.register(descriptor, _ONCE)
        except OSError:
            return False
        self._callbacks[descriptor] = callback
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="mainspring-guests", daemon=True)
            self._thread.start()
        return True

    def forget(self, descriptor: int) -> None:
        """Stops calling back; for a descriptor that is not watched, nothing happens."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Ends the thread."""
        os.eventfd_write(self._stop, 1)
        if self._thread is not None:
            self._thread.join()
        self._epoll.close()
        os.close(self._stop)

    def _listen(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed without a word
            while True:
                ready = [descriptor for descriptor, _ in self._epoll.poll()]
                if self._stop in ready:
                    return
                self._loop.call_soon_threadsafe(self._call_back, ready)

    def _call_back(self, ready: list[int]) -> None:
        for descriptor in ready:
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()
