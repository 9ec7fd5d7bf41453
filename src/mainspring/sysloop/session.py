"""A guest at the other end of a connection: one loop, and the descriptors that were sent along.

No I/O here either. The adapter hands over bytes and descriptors, sends what is unread, and while the session waits,
looks at `fileno` and `wake_at` of its loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from mainspring.loop import Clock
from mainspring.sysloop import ops
from mainspring.sysloop.codes import Code
from mainspring.sysloop.errors import RequestRefused
from mainspring.sysloop.handles import MAX_HANDLES, Attached, HandleTable
from mainspring.sysloop.loop import LoopCapability
from mainspring.sysloop.stream import Stream


class _RemoteLoop(LoopCapability):
    """The loop of a connection, with one more operation: a remote guest has no `zi_end` to end a handle with."""

    def answer(self, op: int, payload: bytes, room: int) -> bytes | None:
        if op != ops.Op.HANDLE_END:
            return super().answer(op, payload, room)
        if len(payload) != ops.HANDLE_END.size:
            raise RequestRefused("bad HANDLE_END payload")
        if self._handles.end(ops.HANDLE_END.unpack(payload)[0]) != Code.OK:
            raise RequestRefused("unknown handle")
        return b""


class GuestSession:
    """An open loop and the handles of its connection, numbered 3, 4, 5 ... in the order they came."""

    def __init__(self, clock: Clock, max_handles: int = MAX_HANDLES) -> None:
        self._handles = HandleTable(most=max_handles)
        self.loop = _RemoteLoop(clock, self._handles)
        self.stream = Stream(self.loop)

    def adopt(self, descriptors: Iterable[int]) -> bool:
        """Takes descriptors over. False when the table is full: then the surplus is closed, and numbers are no longer
        what the guest believes, so the connection has to end."""
        fits = True
        for descriptor in descriptors:
            if self._handles.add(Attached(descriptor)) < 0:
                os.close(descriptor)
                fits = False
        return fits

    def close(self) -> None:
        """Leaves nothing behind."""
        self.stream.close()
        self._handles.close()
