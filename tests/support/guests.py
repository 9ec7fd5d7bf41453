"""What the tests of sys/loop share: frames written by hand, pipes and sockets, and a loop of one guest.

Requests are packed here and not with the client under test, so that both sides of the wire cannot be wrong alike.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mainspring.guests import Guest

READABLE, WRITABLE, HUP, ERROR = 1, 2, 4, 8
READY, TIMER = 1, 2
FOREVER = 0xFFFFFFFF
AGAIN, CLOSED, NOSYS = -6, -5, -7
MS = 1_000_000
HEADER = struct.Struct("<4sHHIIII")


class Answer(NamedTuple):
    op: int
    rid: int
    status: int
    payload: bytes

    @property
    def error(self) -> str:
        """The message of an error frame, whose three texts fill it exactly."""
        assert self.status == 0, self
        texts, rest = [], self.payload
        for _ in range(3):
            size = int.from_bytes(rest[:4], "little")
            texts.append(rest[4 : 4 + size].decode())
            rest = rest[4 + size :]
        assert not rest, self
        return texts[1]

    @property
    def more(self) -> bool:
        return bool(int.from_bytes(self.payload[4:8], "little") & 1)

    @property
    def events(self) -> list[tuple[int, int, int, int]]:
        """(kind, events, handle, id) of a POLL answer."""
        assert self.status == 1, self
        count = int.from_bytes(self.payload[8:12], "little")
        assert len(self.payload) == 16 + 32 * count
        rows = struct.iter_unpack("<IIIIQQ", self.payload[16:])
        return [(kind, bits, handle, ident) for kind, bits, handle, _, ident, _ in rows]

    def ids(self, kind: int) -> list[int]:
        return [event[3] for event in self.events if event[0] == kind]


def frame(op: int, payload: bytes = b"", rid: int = 1, **header: Any) -> bytes:
    """A request; `magic`, `version`, `status`, `reserved` and `length` are for wrong ones."""
    return (
        HEADER.pack(
            header.get("magic", b"ZCL1"),
            header.get("version", 1),
            op,
            rid,
            header.get("status", 0),
            header.get("reserved", 0),
            header.get("length", len(payload)),
        )
        + payload
    )


def watch(handle: int, events: int, ident: int, flags: int = 0, rid: int = 1) -> bytes:
    return frame(1, struct.pack("<IIQI", handle, events, ident, flags), rid)


def unwatch(ident: int, rid: int = 1) -> bytes:
    return frame(2, struct.pack("<Q", ident), rid)


def arm(ident: int, due: int, interval: int = 0, flags: int = 1, rid: int = 1) -> bytes:
    return frame(3, struct.pack("<QQQI", ident, due, interval, flags), rid)


def cancel(ident: int, rid: int = 1) -> bytes:
    return frame(4, struct.pack("<Q", ident), rid)


def poll(most: int = 64, timeout_ms: int = 0, rid: int = 1) -> bytes:
    return frame(5, struct.pack("<II", most, timeout_ms), rid)


def answers(data: bytes) -> list[Answer]:
    """Everything a host sent, which must be whole and well-formed frames."""
    found = []
    while data:
        magic, version, op, rid, status, reserved, length = HEADER.unpack_from(data)
        assert (magic, version, reserved) == (b"ZCL1", 1, 0)
        assert status in (0, 1)
        assert 24 + length <= min(len(data), 65536)
        found.append(Answer(op, rid, status, data[24 : 24 + length]))
        if status == 0:
            assert found[-1].error
        data = data[24 + length :]
    return found


class Loop:
    """One open loop of a guest; requests in, answers out."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.handle = guest.open("sys", "loop")
        assert self.handle >= 3

    def ask(self, request: bytes) -> Answer:
        assert self.guest.write(self.handle, request) == len(request)
        (answer,) = answers(self.drain())
        return answer

    def drain(self) -> bytes:
        parts = []
        while isinstance(part := self.guest.read(self.handle, 65536), bytes) and part:
            parts.append(part)
        return b"".join(parts)

    def ok(self, request: bytes) -> None:
        answer = self.ask(request)
        assert answer.status == 1, answer.error
        assert answer.payload == b""

    def watch(self, handle: int, events: int, ident: int) -> None:
        self.ok(watch(handle, events, ident))

    def poll(self, most: int = 64, timeout_ms: int = 0) -> Answer:
        return self.ask(poll(most, timeout_ms))


class Host:
    """Makes descriptors and closes them in the end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def pipe(self) -> tuple[io.FileIO, io.FileIO]:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return self.keep(io.FileIO(reader, "r")), self.keep(io.FileIO(writer, "w"))

    def unix_pair(self) -> tuple[socket.socket, socket.socket]:
        one, other = socket.socketpair()
        one.setblocking(False)
        return self.keep(one), self.keep(other)

    def tcp_pair(self) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            one = self.keep(socket.create_connection(listener.getsockname()))
            other = self.keep(listener.accept()[0])
        one.setblocking(False)
        return one, other

    def event(self, value: int = 0) -> io.FileIO:
        """An eventfd: always writable, readable when its value is not 0."""
        event = io.FileIO(os.eventfd(value, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")
        self.keep(event)
        return event

    def file(self) -> Any:
        return self.keep(tempfile.TemporaryFile(buffering=0))

    def keep(self, thing: Any) -> Any:
        self._stack.callback(thing.close)
        return thing

    def later(self, seconds: float, action: Callable[[], Any]) -> None:
        timer = threading.Timer(seconds, action)
        self._stack.callback(timer.join)
        timer.start()

    def close(self) -> None:
        self._stack.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before
