"""A guest at the other end of a connection: one loop, and the descriptors that were sent along.

No I/O here either. The adapter hands over bytes and descriptors, sends what is unread, and while the session waits,
looks at `fileno` and `wake_at` of its loop.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterable

from mainspring.guests.capabilities.loop import LoopCapability
from mainspring.guests.errors import Code, RequestRefused
from mainspring.guests.handles import MAX_HANDLES, Attached, HandleTable
from mainspring.guests.protocol.operations import Op
from mainspring.guests.protocol.stream import Stream
from mainspring.loop import Clock

_LINGER = struct.Struct("ii")  # on or off, seconds


class _RemoteLoop(LoopCapability):
    """The loop of a connection, with one more operation: a remote guest has no `zi_end` to end a handle with."""

    def _end_handle(self, handle: int) -> None:
        if self._handles.end(handle) != Code.OK:
            raise RequestRefused("unknown handle")

    operations = {**LoopCapability.operations, Op.HANDLE_END: _end_handle}  # noqa: RUF012


class _Received(Attached):
    """A descriptor that the guest sent."""

    def close(self) -> None:
        close_received(self.descriptor)


class _LoopEnd(Attached):
    """The guest's end of a connection to a loop. It has a number, but loops are not watched, and it is not kept: as
    long as the node held it, the connection could not end with the guest that made it.
    """

    watchable = False

    def __init__(self, descriptor: int) -> None:
        super().__init__(-1)
        close_received(descriptor)

    def close(self) -> None:
        pass


def close_received(descriptor: int) -> None:
    """Closes a descriptor that a guest sent. Nothing its sender did to it may hold up the node."""
    if _lingers(descriptor):
        # If this is the last copy, close(2) waits until the peer has taken everything, as long as the sender said.
        threading.Thread(target=os.close, args=(descriptor,), name="mainspring-lingering", daemon=True).start()
    else:
        os.close(descriptor)


def _lingers(descriptor: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    borrowed = socket.socket(fileno=descriptor)
    try:
        wanted, seconds = _LINGER.unpack(borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size))
    finally:
        borrowed.detach()
    return bool(wanted and seconds)


class GuestSession:
    """An open loop and the handles of its connection, numbered 3, 4, 5 ... in the order they came."""

    def __init__(self, clock: Clock, max_handles: int = MAX_HANDLES) -> None:
        self._handles = HandleTable(most=max_handles)
        self.loop: _RemoteLoop = _RemoteLoop(clock, self._handles)
        self.stream: Stream = Stream(self.loop)

    def adopt(self, descriptors: Iterable[int], is_loop: Callable[[int], bool] = lambda _: False) -> bool:
        """Takes descriptors over; `is_loop` tells which of them are guests' ends of connections like this.

        False when the table is full: then the surplus is closed, and numbers are no longer what the guest believes, so
        the connection has to end.
        """
        fits = True
        for descriptor in descriptors:
            if self._handles.full:
                close_received(descriptor)
                fits = False
            else:
                self._handles.add((_LoopEnd if is_loop(descriptor) else _Received)(descriptor))
        return fits

    def close(self) -> None:
        """Leaves nothing behind."""
        self.stream.close()
        self._handles.close()
