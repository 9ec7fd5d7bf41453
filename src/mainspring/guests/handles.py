"""The handle table of one guest: small numbers for what the guest may use.

Numbers start at 3 and count up; an ended number comes again only when the count has gone all the way round. A guest
that keeps a stale number thus meets "unknown handle" and not somebody else's descriptor.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
from collections.abc import Callable
from typing import Protocol

from mainspring.guests.errors import Code, NotAttachable
from mainspring.guests.protocol.stream import Stream

FIRST = 3  # 0, 1 and 2 are kept for standard input, output and error
HIGHEST = 2**31 - 1  # handles travel as i32, negative ones are codes
MAX_HANDLES = 65536  # of one guest at a time

CAN_READ, CAN_WRITE, CAN_END = 1, 2, 4  # flags a guest may ask for

_MOST_READ = 1 << 20  # at a time: room is made for what is asked, before anybody knows what is there
_BLOCKING_WRITE = 4096  # what a blocking descriptor that is writable takes without blocking: PIPE_BUF


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def copied(thing: HasFileno | int) -> int:
    """A copy of a descriptor; `NotAttachable` for what is none or is closed."""
    try:
        return os.dup(thing if isinstance(thing, int) else thing.fileno())
    except (OSError, ValueError, OverflowError, AttributeError, TypeError) as error:
        raise NotAttachable(f"cannot attach: {error}", remedy="give an open descriptor or file object") from error


class Attached:
    """A descriptor of the host, in a copy of its own, so that the host may close its copy at any time."""

    watchable = True

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @property
    def flags(self) -> int:
        mode = fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        return {os.O_RDONLY: CAN_READ, os.O_WRONLY: CAN_WRITE}.get(mode, CAN_READ | CAN_WRITE) | CAN_END

    def read(self, most: int) -> bytes | int:
        """What is there now; no bytes at the end of the stream. Never blocks, also when the descriptor would."""
        if most <= 0:
            return Code.BOUNDS if most < 0 else b""
        try:
            if os.get_blocking(self.descriptor) and not self._now(select.POLLIN):
                return Code.AGAIN
            return os.read(self.descriptor, min(most, _MOST_READ))
        except OSError as error:
            return _code_of(error)

    def write(self, data: bytes) -> int:
        """How many bytes went out without blocking."""
        try:
            if os.get_blocking(self.descriptor):
                if not self._now(select.POLLOUT):
                    return Code.AGAIN
                data = data[:_BLOCKING_WRITE]
            return os.write(self.descriptor, data)
        except OSError as error:
            return _code_of(error)

    def shut_down_writing(self) -> int:
        """Tells the peer that nothing more comes; only sockets can."""
        if not stat.S_ISSOCK(os.fstat(self.descriptor).st_mode):
            return Code.NOSYS
        borrowed = socket.socket(fileno=self.descriptor)
        try:
            borrowed.shutdown(socket.SHUT_WR)
            return Code.OK
        except OSError as error:
            return _code_of(error)
        finally:
            borrowed.detach()

    def close(self) -> None:
        os.close(self.descriptor)

    def _now(self, wanted: int) -> bool:
        question = select.poll()
        question.register(self.descriptor, wanted)
        return bool(question.poll(0))


Entry = Stream | Attached


def _code_of(error: OSError) -> int:
    if isinstance(error, BlockingIOError):
        return Code.AGAIN
    return Code.NOSYS if error.errno == errno.EBADF else Code.IO


class HandleTable:
    """What one guest has open."""

    def __init__(self, *, most: int = MAX_HANDLES, highest: int = HIGHEST) -> None:
        self._entries: dict[int, Entry] = {}
        self._most = most
        self._highest = highest
        self._next = FIRST
        self._on_end: set[Callable[[int], None]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        return len(self._entries) >= min(self._most, self._highest - FIRST + 1)

    def add(self, entry: Entry) -> int:
        """The number of a new handle, or OOM; a refused entry stays the caller's to close."""
        if self.full:
            return Code.OOM
        while self._next in self._entries:
            self._next = self._after(self._next)
        number = self._next
        self._next = self._after(number)
        self._entries[number] = entry
        return number

    def reserve(self, number: int, entry: Entry) -> None:
        """Puts something under one of the reserved numbers 0, 1 and 2."""
        assert 0 <= number < FIRST
        self._entries[number] = entry

    def get(self, number: int) -> Entry | None:
        return self._entries.get(number)

    def watchable(self, number: int) -> int | None:
        """The descriptor behind a handle that can be waited for; never that of 0, 1 and 2."""
        entry = self._entries.get(number)
        return entry.descriptor if entry is not None and entry.watchable and number >= FIRST else None

    def join(self, on_end: Callable[[int], None]) -> None:
        """From now on this is called with the descriptor of a handle that ends; by loops that may watch it."""
        self._on_end.add(on_end)

    def leave(self, on_end: Callable[[int], None]) -> None:
        self._on_end.discard(on_end)

    def end(self, number: int) -> int:
        """Closes a handle; watches on it, in whatever loop of this guest, are removed with it."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return Code.NOSYS
        if entry.descriptor is not None:
            for on_end in self._on_end:
                on_end(entry.descriptor)
        entry.close()
        return Code.OK

    def close(self) -> None:
        """Ends everything."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.close()

    def _after(self, number: int) -> int:
        return number + 1 if number < self._highest else FIRST
