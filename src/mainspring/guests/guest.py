"""A guest in this process: the calls a guest can make, as methods.

They answer like the guest ABI does, with counts, bytes and negative codes; Python exceptions are for mistakes of the
host program. One guest belongs to one thread, as a native guest would; only `interrupt` may come from elsewhere.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Callable

from mainspring.guests.capabilities.event_bus import EventStream, Hub
from mainspring.guests.capabilities.info import InfoCapability
from mainspring.guests.capabilities.loop import LoopCapability, require_epoll
from mainspring.guests.errors import Code
from mainspring.guests.handles import (
    CAN_END,
    CAN_READ,
    CAN_WRITE,
    MAX_HANDLES,
    Attached,
    HandleTable,
    HasFileno,
    copied,
)
from mainspring.guests.protocol.control import control
from mainspring.guests.protocol.stream import Stream
from mainspring.loop import Clock, MonotonicClock

_LONGEST_WAIT_MS = 2**31 - 1  # what poll(2) takes; a longer wait is several of them


class Guest:
    """One guest: a handle table and the calls that work on it.

    `clock` must be one that moves by itself: POLL really waits. `close`, leaving a `with` block or dropping the guest
    ends all its handles.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        max_handles: int = MAX_HANDLES,
    ) -> None:
        require_epoll()
        self._clock = clock or MonotonicClock()
        self._handles = handles = HandleTable(most=max_handles)
        ticking, hub = self._clock, Hub()  # not by way of `self`: a guest without references must end at once
        self._openers: dict[tuple[str, str], Callable[[], Stream]] = {
            ("sys", "loop"): lambda: Stream(LoopCapability(ticking, handles)),
            ("sys", "info"): lambda: Stream(InfoCapability(ticking, entropy)),
            ("event", "bus"): lambda: EventStream(hub),
        }
        self.waits: int = 0  # how often a POLL really waited
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # written by `interrupt`
        self._end_all = weakref.finalize(self, _end_all, self._handles, self._interrupt)

    def open(self, kind: str, name: str, params: bytes = b"") -> int:
        """A handle for a capability: sys/loop, sys/info or event/bus. NOENT for others, INVALID for parameters."""
        if not self._end_all.alive:
            return Code.CLOSED
        if not kind or not name:
            return Code.INVALID
        new = self._openers.get((kind, name))
        if new is None:
            return Code.NOENT
        if params:
            return Code.INVALID
        if self._handles.full:
            return Code.OOM
        try:
            stream = new()
        except OSError:  # no descriptor left for its epoll
            return Code.OOM
        return self._handles.add(stream)

    def attach(self, thing: HasFileno | int) -> int:
        """A watchable handle for a descriptor of the host, which keeps its own copy. OOM when the table is full."""
        return self._attach(Attached(copied(thing)))

    def adopt(self, descriptor: int) -> int:
        """Like `attach`, but the descriptor itself is the guest's from now on, also when the table is full."""
        return self._attach(Attached(descriptor))

    def _attach(self, attached: Attached) -> int:
        number = self._handles.add(attached) if self._end_all.alive else Code.CLOSED
        if number < 0:
            attached.close()
        return number

    def reserve(self, number: int, thing: HasFileno | int) -> None:
        """Gives the guest a stream under the number 0, 1 or 2. It can be read and written, not watched."""
        self._handles.reserve(number, Attached(copied(thing)))

    def write(self, handle: int, data: bytes) -> int:
        """How many bytes were taken, or a code. Requests are carried out in here, and POLL waits in here.

        Fewer bytes than given, or AGAIN, mean that answers must be read first. Nothing that was taken is lost.
        """
        entry = self._handles.get(handle)
        if entry is None:
            return Code.NOSYS
        if isinstance(entry, Attached):
            return entry.write(data)
        taken = entry.offer(data)
        while entry.waiting:
            if self._wait(entry) and taken < len(data):
                taken += max(entry.offer(data[taken:]), 0)
        return taken

    def _wait(self, stream: Stream) -> bool:
        """Sleeps until the stream's POLL may have something to say, then asks it; whether it had."""
        loop = stream.capability
        assert isinstance(loop, LoopCapability)
        question = select.poll()
        question.register(loop.fileno(), select.POLLIN)
        question.register(self._interrupt, select.POLLIN)
        self.waits += 1
        try:
            ready = [descriptor for descriptor, _ in question.poll(self._wait_ms(loop.wake_at()))]
        except BaseException:  # a signal handler raised: the POLL is over all the same
            loop.interrupt()
            stream.resume()
            raise
        if self._interrupt in ready:
            os.eventfd_read(self._interrupt)
            loop.interrupt()
        return stream.resume()

    def _wait_ms(self, wake_at: int | None) -> int | None:
        if wake_at is None:
            return None
        left_ns = max(wake_at - self._clock.now_ns(), 0)
        return min(-(-left_ns // 1_000_000), _LONGEST_WAIT_MS)  # rounded up: never early

    def read(self, handle: int, cap: int) -> bytes | int:
        """Up to `cap` bytes of what is there, or a code; AGAIN when nothing is, no bytes at the end. Never blocks."""
        entry = self._handles.get(handle)
        return Code.NOSYS if entry is None else entry.read(cap)

    def end(self, handle: int) -> int:
        """Ends a handle and every watch on it. NOSYS when there is none."""
        return self._handles.end(handle)

    def ctl(self, frame: bytes, cap: int = 65536) -> bytes | int:
        """Exchanges one control frame: CAPS_LIST or HANDLE_OP."""
        return control(frame, cap, self._handles)

    def flags(self, handle: int) -> int:
        """What a handle can do: 1 read, 2 write, 4 end; 0 when there is none."""
        entry = self._handles.get(handle)
        if entry is None:
            return 0
        return entry.flags if isinstance(entry, Attached) else CAN_READ | CAN_WRITE | CAN_END

    def interrupt(self) -> None:
        """Ends the POLL that waits now, or else the next one that would, with no events. Safe from anywhere.

        Nothing happens when the guest has ended: the number of its eventfd may be another descriptor by then.
        """
        if self._end_all.alive:
            os.eventfd_write(self._interrupt, 1)

    def close(self) -> None:
        """Ends every handle. No more can be opened or attached: CLOSED."""
        self._end_all()

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end_all(handles: HandleTable, interrupt: int) -> None:
    handles.close()
    os.close(interrupt)
