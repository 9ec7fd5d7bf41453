"""The guest's side of `sys/loop@v1` in Python: WATCH, UNWATCH, TIMER_ARM, TIMER_CANCEL and POLL as methods.

    with connect("/run/user/1000/mainspring/loop.sock") as loop:
        handle = loop.attach(listener)
        loop.watch(handle, Readiness.READABLE, watch_id=1)
        for event in loop.poll().events: ...

The same client works on a loop of a guest in this process (`open_loop`). It is synchronous on purpose: a guest is a
program whose only place to wait is POLL.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from pathlib import Path

from mainspring.guests.errors import Code, NotAttachable, RequestRefused, StreamClosed
from mainspring.guests.guest import Guest
from mainspring.guests.handles import FIRST, HasFileno, copied
from mainspring.guests.protocol import operations as ops
from mainspring.guests.protocol import zcl1
from mainspring.guests.protocol.operations import Op, Poll

_DESCRIPTORS_PER_MESSAGE = 250  # the kernel's limit is 253


class GuestClient:
    """One open loop. Refused requests raise `RequestRefused`; the loop goes on as before."""

    def __init__(self) -> None:
        self._rids = itertools.count(1)

    def attach(self, thing: HasFileno | int) -> int:
        """The handle of a descriptor. The loop gets its own copy: this one may be closed at any time."""
        raise NotImplementedError

    def end(self, handle: int) -> None:
        """Closes the loop's copy of a descriptor and removes the watches on it."""
        raise NotImplementedError

    def watch(self, handle: int, events: int, watch_id: int) -> None:
        """Asks for READY events with some of these bits, from now on and as long as they are true."""
        self._request(Op.WATCH, handle, events, watch_id, 0)

    def unwatch(self, watch_id: int) -> None:
        """Removes a watch."""
        self._request(Op.UNWATCH, watch_id)

    def arm(self, timer_id: int, due_ns: int, *, interval_ns: int = 0, absolute: bool = False) -> None:
        """Arms a timer `due_ns` from now, or at that instant of the monotonic clock; again every `interval_ns`.

        A timer with the same id is replaced.
        """
        self._request(Op.TIMER_ARM, timer_id, due_ns, interval_ns, 0 if absolute else ops.RELATIVE)

    def cancel(self, timer_id: int) -> None:
        """Removes a timer. One that has fired for the last time is gone already."""
        self._request(Op.TIMER_CANCEL, timer_id)

    def poll(self, max_events: int = 1024, timeout_ms: int | None = None) -> Poll:
        """Waits for events, at most `timeout_ms`; None waits for ever, 0 not at all."""
        timeout = ops.FOREVER if timeout_ms is None else min(timeout_ms, ops.FOREVER - 1)
        return ops.decode_poll(self._request(Op.POLL, max_events, timeout))

    def close(self) -> None:
        """Ends the loop and everything attached through this client."""
        raise NotImplementedError

    def __enter__(self) -> GuestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, op: Op, *fields: int) -> bytes:
        """The payload of the answer."""
        rid = next(self._rids) & 0xFFFFFFFF
        answer = self._exchange(zcl1.encode(op, rid, ops.LAYOUTS[op].pack(*fields)))
        if answer.status != zcl1.OK:
            raise RequestRefused(zcl1.decode_error(answer.payload).message, remedy=f"check the arguments of {op.name}")
        return answer.payload

    def _exchange(self, request: bytes) -> zcl1.Zcl1Frame:
        raise NotImplementedError


class _SocketClient(GuestClient):
    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.connect(str(path))
        except OSError as error:
            self._sock.close()
            raise StreamClosed(
                f"no node at {path}: {error}", remedy="start one with `mainspring serve --loop-socket PATH`"
            ) from error
        self._handles = itertools.count(FIRST)
        self._outgoing_descriptors: list[int] = []  # copies of descriptors that travel with the next request
        self._received = bytearray()

    def attach(self, thing: HasFileno | int) -> int:
        if len(self._outgoing_descriptors) == _DESCRIPTORS_PER_MESSAGE:
            with contextlib.suppress(RequestRefused):
                self.unwatch(0)  # there is no watch 0: this only carries
        self._outgoing_descriptors.append(copied(thing))
        return next(self._handles)

    def end(self, handle: int) -> None:
        self._request(Op.HANDLE_END, handle)

    def _exchange(self, request: bytes) -> zcl1.Zcl1Frame:
        try:
            if self._outgoing_descriptors:
                sent = socket.send_fds(self._sock, [request], self._outgoing_descriptors)
                self._close_outgoing()
                request = request[sent:]
            self._sock.sendall(request)
            return self._receive()
        except OSError as error:
            raise StreamClosed(f"the node is gone: {error}", remedy="connect again") from error

    def _receive(self) -> zcl1.Zcl1Frame:
        while (frame := zcl1.next_frame(self._received, 0)) is None:
            part = self._sock.recv(65536)
            if not part:
                raise StreamClosed("the node ended the connection", remedy="connect again")
            self._received += part
        if isinstance(frame, zcl1.Broken):
            raise StreamClosed(
                f"what answers does not speak ZCL1: {frame.fault}", remedy="check the path of the socket"
            )
        del self._received[: frame.end]
        return frame

    def close(self) -> None:
        self._close_outgoing()
        self._sock.close()

    def _close_outgoing(self) -> None:
        for descriptor in self._outgoing_descriptors:
            os.close(descriptor)
        self._outgoing_descriptors.clear()


class _LocalClient(GuestClient):
    def __init__(self, guest: Guest) -> None:
        super().__init__()
        self._guest = guest
        self._handle = guest.open("sys", "loop")
        if self._handle < 0:
            raise StreamClosed(f"no loop for this guest: code {self._handle}", remedy="end some of its handles")
        self._attached: list[int] = []

    def attach(self, thing: HasFileno | int) -> int:
        handle = self._guest.attach(thing)
        if handle < 0:
            raise NotAttachable("the handle table is full", remedy="end some handles")
        self._attached.append(handle)
        return handle

    def end(self, handle: int) -> None:
        if self._guest.end(handle) != Code.OK:
            raise RequestRefused("unknown handle")
        with contextlib.suppress(ValueError):
            self._attached.remove(handle)

    def _exchange(self, request: bytes) -> zcl1.Zcl1Frame:
        self._guest.write(self._handle, request)
        answer = self._guest.read(self._handle, zcl1.MAX_FRAME)
        frame = zcl1.next_frame(answer, 0) if isinstance(answer, bytes) else None
        if not isinstance(frame, zcl1.Zcl1Frame):
            raise StreamClosed("the loop has ended", remedy="open another one")
        return frame

    def close(self) -> None:
        for handle in (*self._attached, self._handle):
            self._guest.end(handle)


def connect(path: Path | str) -> GuestClient:
    """A loop of the node that listens at `path`. Raises `StreamClosed` when none does."""
    return _SocketClient(path)


def open_loop(guest: Guest) -> GuestClient:
    """A loop of a guest in this process."""
    return _LocalClient(guest)
