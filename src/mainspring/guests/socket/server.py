"""The loop socket: `sys/loop@v1` for guests in other processes, over a unix socket.

One connection is one open loop. Descriptors that travel with the bytes (SCM_RIGHTS) become handles 3, 4, 5 ... in the
order they come. The session does the thinking; this adapter moves bytes between it and the socket, on asyncio, and
never blocks: while a guest waits in POLL, the session's own epoll descriptor (see `wakeups.py`) and one timer are
all that is kept for it, so the node's loop does not see the thousands of descriptors behind them.

Three ends need care. A guest that stops reading is not read from either, so its requests wait in its own buffers. A
guest that goes away while nobody reads from it is noticed through one epoll set for all connections that listens for
nothing but hangups. And a guest that sent what is no ZCL1 gets the error frame before the end: closing a unix socket
with unread bytes in it would turn the end into a reset, so the rest is read and thrown away for a moment first.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import logging
import os
import resource
import select
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from mainspring.errors import BootError, MainspringError
from mainspring.guests.capabilities.loop import require_epoll
from mainspring.guests.socket.session import GuestSession, close_received
from mainspring.guests.socket.wakeups import Wakeups
from mainspring.loop import Clock
from mainspring.unix_socket import identity_of, listen_at, remove_socket

logger: logging.Logger = logging.getLogger("mainspring.wire.loop_socket")

MAX_GUESTS = 1024  # connections at a time; each costs two descriptors and its buffers
MAX_HANDLES = 16384  # descriptors of one guest
INBOX_LIMIT = 65536  # bytes of requests kept behind one that waits
READ_BYTES = 16384  # per turn of the node's loop: some milliseconds of work at most
ROUNDS = 2  # of answers that fill a buffer, per turn of the node's loop: the same, for requests with large answers
LINGER_S = 1.0  # for a guest to read the last error before the connection is gone
ACCEPT_PAUSE_S = 0.1  # after the system had no descriptor left for a new connection
BLIND_S = 0.1  # how often a waiting guest is looked at when the kernel does not let us listen for it
LONGEST_SLEEP_S = 86_400.0  # a later deadline is looked at again after a day

_DESCRIPTOR_BYTES = socket.CMSG_SPACE(253 * array.array("i").itemsize)  # 253 is what one message can carry


class SocketTaken(MainspringError, code="socket_taken"):
    """The path of the socket is in use, or cannot be used."""


class LoopSocketServer:
    """Serves guests at a path. `start` and `stop` are called once each, on the running asyncio loop."""

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Clock,
        max_guests: int = MAX_GUESTS,
        max_handles: int = MAX_HANDLES,
    ) -> None:
        self.path: Path = Path(path)
        self.max_handles = max_handles
        self.clock = clock
        self._max_guests = max_guests
        self._connections: dict[int, _Connection] = {}
        self._listening = False
        self._starved = False  # of descriptors; logged once until it is over
        self.accepted: int = 0  # guests since the start
        self._ended_polls = 0

    @property
    def guests(self) -> int:
        """How many guests are connected."""
        return len(self._connections)

    @property
    def polls(self) -> int:
        """How often guests asked to wait since the start."""
        return self._ended_polls + sum(connection.polls for connection in self._connections.values())

    async def start(self) -> None:
        """Listens. A socket file without a server behind it is replaced; a live one raises SocketTaken."""
        require_epoll()
        _raise_descriptor_limit()
        self._listener = _listen(self.path)
        self._identity = identity_of(self.path)
        self._hangups = select.epoll()
        self._wakeups = Wakeups()
        self._listening = True
        loop = asyncio.get_running_loop()
        loop.add_reader(self._hangups.fileno(), self._on_hangups)
        loop.add_reader(self._listener.fileno(), self._on_connection)

    async def stop(self) -> None:
        """Ends every connection, waiting or not, and removes the socket file."""
        if not self._listening:
            return
        self._listening = False
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in list(self._connections.values()):
            connection.close()
        loop.remove_reader(self._hangups.fileno())
        self._hangups.close()
        self._wakeups.close()
        remove_socket(self.path, self._identity)

    def _on_connection(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause_accepting(error)
            return
        if len(self._connections) >= self._max_guests:
            logger.warning("a guest was turned away: %d are connected", len(self._connections))
            sock.close()
            return
        sock.setblocking(False)
        try:
            connection = _Connection(self, sock, self._wakeups)
        except OSError as error:  # no descriptor for its epoll
            sock.close()
            self._pause_accepting(error)
            return
        self._starved = False
        self.accepted += 1
        self._connections[sock.fileno()] = connection
        self._hangups.register(sock.fileno(), select.EPOLLET)  # hangup and error are reported unasked
        connection.settle()

    def _pause_accepting(self, error: OSError) -> None:
        """Without this the pending connection would wake the loop again at once, for ever."""
        if not self._starved:
            logger.warning("cannot accept a guest: %s", error)
            self._starved = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        loop.call_later(ACCEPT_PAUSE_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._listening:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._on_connection)

    def _on_hangups(self) -> None:
        for descriptor, _ in self._hangups.poll(0):
            connection = self._connections.get(descriptor)
            if connection is not None:
                connection.close()

    def is_own(self, descriptor: int) -> bool:
        """Whether a descriptor is the other end of a connection to this socket."""
        if not self._listening or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        borrowed = socket.socket(fileno=descriptor)
        try:
            return bool(borrowed.family == socket.AF_UNIX and borrowed.getpeername() == self._listener.getsockname())
        except OSError:  # it is not connected
            return False
        finally:
            borrowed.detach()

    def forget(self, descriptor: int) -> None:
        """A connection is about to close its socket."""
        self._hangups.unregister(descriptor)
        self._ended_polls += self._connections.pop(descriptor).polls


class _Connection:
    """One guest: what was received, what is to be sent, and what it waits for."""

    def __init__(self, server: LoopSocketServer, sock: socket.socket, wakeups: Wakeups) -> None:
        self._server = server
        self._sock = sock
        self._wakeups = wakeups
        self._loop = asyncio.get_running_loop()
        self._session = GuestSession(server.clock, server.max_handles)
        self._stream = self._session.stream
        self._inbox = bytearray()
        self._ended = False  # the guest sends no more
        self._lingering = False
        self._closed = False
        self._going_on = False  # with what it has, as soon as others had their turn
        self._reading = self._writing = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def polls(self) -> int:
        return self._session.loop.polls

    def _guarded(self, step: Callable[[], None]) -> None:
        """One guest's misfortune is not the node's: whatever goes wrong in a step ends this connection only."""
        try:
            step()
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                logger.warning("a guest was disconnected: %s", error)
            self.close()
        except Exception:
            logger.exception("a guest was disconnected by a fault of the loop socket")
            self.close()

    # --- what the node's loop calls ---

    def _on_readable(self) -> None:
        self._guarded(self._receive)

    def _on_progress(self) -> None:
        """There is room for answers, or what the guest waits for may have come."""
        self._guarded(self._advance)

    def _on_turn(self) -> None:
        self._going_on = False
        if not self._closed:
            self._guarded(self._advance)

    # --- steps ---

    def _receive(self) -> None:
        try:
            data, descriptors, complete = _receive_with_descriptors(self._sock)
        except BlockingIOError:
            return
        if self._lingering:  # what still comes is thrown away
            for descriptor in descriptors:
                close_received(descriptor)
            if not data:
                self.close()
            return
        if not self._session.adopt(descriptors, self._server.is_own) or not complete:
            self._stream.break_off("too many descriptors")
        if data:
            self._inbox += data
        else:
            self._ended = True
        self._advance()

    def _advance(self) -> None:
        """Carries out what can be carried out and sends what can be sent, until neither moves or others wait."""
        stream, inbox = self._stream, self._inbox
        moved = stream.resume() if stream.waiting else True
        rounds = ROUNDS
        while moved and rounds:
            rounds -= 1
            moved = self._send()
            if inbox and not stream.waiting:
                taken = stream.offer(inbox)
                if stream.closed:
                    inbox.clear()
                elif taken > 0:
                    del inbox[:taken]
                    moved = True
        self._send()
        if inbox and not stream.waiting and not stream.unread and not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._on_turn)
        self.settle()

    def _send(self) -> bool:
        """Whether some bytes went out."""
        sent = 0
        while self._stream.unread:
            try:
                count = self._sock.send(self._stream.peek(65536))
            except BlockingIOError:
                break
            self._stream.skip(count)
            sent += count
        return sent > 0

    def settle(self) -> None:
        """Asks the node's loop for exactly what can bring this connection on."""
        stream = self._stream
        if not stream.unread:
            if stream.closed:
                self._linger()
                return
            if self._ended and not stream.waiting and not self._going_on:
                self.close()
                return
        self._read_when(not self._ended and not stream.closed and len(self._inbox) < INBOX_LIMIT)
        self._write_when(stream.unread > 0)
        self._wake_when(stream.waiting)

    def _linger(self) -> None:
        self._lingering = True
        self._write_when(False)
        self._wake_when(False)
        self._sock.shutdown(socket.SHUT_WR)
        if self._ended:
            self.close()
            return
        self._read_when(True)
        self._timer = self._loop.call_later(LINGER_S, self.close)

    def close(self) -> None:
        """Ends the connection and everything the guest had."""
        if self._closed:
            return
        self._closed = True
        self._read_when(False)
        self._write_when(False)
        self._wake_when(False)
        self._server.forget(self._sock.fileno())
        self._session.close()
        self._sock.close()

    # --- registrations ---

    def _read_when(self, wanted: bool) -> None:
        if wanted and not self._reading:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._sock.fileno())
        self._reading = wanted

    def _write_when(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._on_progress)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._sock.fileno())
        self._writing = wanted

    def _wake_when(self, wanted: bool) -> None:
        """While waiting only: an epoll descriptor nobody empties would wake the node over and over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = self._session.loop
        if not wanted:
            self._wakeups.forget(loop.fileno())
            return
        longest_s = LONGEST_SLEEP_S if self._wakeups.watch(loop.fileno(), self._on_progress) else BLIND_S
        wake_at = loop.wake_at()
        if wake_at is not None:
            left_ms = -(-max(wake_at - self._server.clock.now_ns(), 0) // 1_000_000)  # rounded up: never early
            longest_s = min(left_ms / 1000, longest_s)
        self._timer = self._loop.call_later(longest_s, self._on_progress)


def _receive_with_descriptors(sock: socket.socket) -> tuple[bytes, list[int], bool]:
    """Bytes, the descriptors that came with them, and whether all of those arrived."""
    data, ancillary, flags, _ = sock.recvmsg(READ_BYTES, _DESCRIPTOR_BYTES, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, descriptors.tolist(), not flags & socket.MSG_CTRUNC


def _listen(path: Path) -> socket.socket:
    try:
        return listen_at(path)
    except BootError as error:
        raise SocketTaken(error.message, remedy=error.remedy or "choose another path with --loop-socket") from error


def _raise_descriptor_limit() -> None:
    """Guests bring descriptors by the thousand; the usual soft limit of 1024 is for programs that call select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # more than this kernel allows: then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
