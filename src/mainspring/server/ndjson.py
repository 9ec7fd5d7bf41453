"""NDJSON: one message per line, over a unix socket. `ndjson_port` has the same lines over TCP.

This adapter reads lines, hands valid messages to the kernel and writes what the kernel gives back. It knows nothing of
routes, handlers or timers, and it changes nothing in a message.

Four things need care here. A line may arrive in pieces or be far too long: pieces wait, and the rest of a long line is
thrown away up to its end. A client may write without reading: then its answers pile up, so the adapter stops reading
from it until they are gone, and everyone else goes on. A client may send more than others: it hands in some lines, and
then others have their turn; what is not even a message is answered on the system lane, before anybody's messages, so
without this one client's nonsense would be all the kernel does. A client may close its writing side and still wait:
then the connection stays until every answer is written.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from mainspring.kernel import Kernel, Mail
from mainspring.loop import wake
from mainspring.message import Message, Metadata, NotAMessage, NotJson, compact, encode_data, encode_line, parse
from mainspring.unix_socket import BACKLOG, Identity, identity_of, listen_at, remove_socket

MAX_LINE_BYTES: Final = 16_384  # without its LF on the way in, with it on the way out
TOO_LONG: Final = "Message exceeds maximum line length of 16KB"
MAX_OPEN: Final = 4_096  # messages of one connection that are not finished; more than any client can follow
MAX_OPEN_BYTES: Final = 8 << 20  # data of those messages: what one client can make a stuck actor keep in memory
_UNCOUNTED: Final = 256  # messages before that is looked at, and then whenever they have doubled
LINES_AT_ONCE: Final = 64  # of one connection, before others have their turn; a kilobyte weighs as much as a line
WRITE_HIGH_BYTES: Final = 256 << 10  # unread answers of one client before it is read no further
_BLANK: Final = b" \t\r"


class Lines:
    """Cuts a stream of bytes into lines. `None` stands for a line that was too long; what it held is gone."""

    def __init__(self) -> None:
        self._tail = b""
        self._discarding = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that are complete now."""
        *complete, tail = (self._tail + data).split(b"\n") if self._tail else data.split(b"\n")
        lines: list[bytes | None] = []
        if complete and self._discarding:
            self._discarding = False
            del complete[0]
        for line in complete:
            if line.endswith(b"\r"):
                line = line[:-1]
            lines.append(line if len(line) <= MAX_LINE_BYTES else None)
        if self._discarding:
            tail = b""
        elif len(tail) > MAX_LINE_BYTES + tail.endswith(b"\r"):
            lines.append(None)
            self._discarding, tail = True, b""
        self._tail = tail
        return lines

    def end(self) -> list[bytes | None]:
        """What was left without an LF when the stream ended."""
        tail, self._tail = self._tail.removesuffix(b"\r"), b""
        return [tail] if tail else []


class LineOrigin:
    """One peer that speaks lines: everything of a connection but its transport. The kernel answers to it."""

    external = True
    answer_bytes: ClassVar[int] = 13_000  # of data that fit a line with an envelope of ordinary size

    def __init__(self, kernel: Kernel) -> None:
        self.open: dict[str, Mail] = {}
        self.gone = False
        self.unfinished: int = 0  # handed to the kernel and neither answered nor settled
        self._kernel = kernel
        self._ingest: Callable[[Message, Any], None] = kernel.ingest
        self._missed = 0

    def take(self, line: bytes | None) -> None:
        """One line from the peer."""
        if line is None:
            self.reject(413, TOO_LONG)
            return
        if line[:1] != b"{" and not line.strip(_BLANK):
            return
        self.unfinished += 1
        try:
            message = parse(line)
        except NotAMessage as error:
            self._kernel.reject(self, 422, error.message, id=error.id, type=error.type or "")
        except NotJson as error:
            self._kernel.reject(self, 400, error.message)
        else:
            self._ingest(message, self)

    def deliver(self, message: Message) -> bool:
        line = encode_line(message)
        if len(line) >= MAX_LINE_BYTES:
            return False
        self.unfinished -= 1
        if not self.gone:
            self.write(line)
            if message.kind == "error":
                self.flush()  # a fault does not wait behind the slice it happened in
        self.progressed()
        return True

    def reject(self, code: int, why: str) -> None:
        """Answer what is no message."""
        self.unfinished += 1
        self._kernel.reject(self, code, why)

    def settled(self) -> None:
        self.unfinished -= 1
        self.progressed()

    def stream(self, message: Message) -> None:
        """Write an event this connection subscribed to, if it fits and the peer keeps up."""
        line = compact(encode_line(message))
        if self.gone or len(line) >= MAX_LINE_BYTES or self.congested():
            self._missed += 1
            return
        if self._missed:
            metadata = Metadata(self._kernel.ids(), self._kernel.clock.wall_ms())
            missed = Message("event", "Sys.EventsMissed", encode_data({"count": self._missed}), metadata)
            self._missed = 0
            self.write(encode_line(missed))
        self.write(line)

    def write(self, line: bytes) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Send what is written now, instead of with the rest of this slice."""

    def congested(self) -> bool:
        return False

    def progressed(self) -> None:
        """Something of this peer is finished."""


class NdjsonConnection(LineOrigin, asyncio.Protocol):
    """One client of the socket."""

    def __init__(self, kernel: Kernel, connections: set[NdjsonConnection], on_left: Callable[[], None]) -> None:
        super().__init__(kernel)
        self._connections = connections
        self._on_left = on_left
        self._lines = Lines()
        self._waiting: deque[bytes | None] = deque()
        self._outgoing: list[bytes] = []
        self._flush_planned = False
        self._allowed = _UNCOUNTED
        self._write_full = False
        self._reading = True
        self._ended = False
        self._turn_planned = False
        self._transport: Any = None

    # --- the transport --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._loop = asyncio.get_running_loop()
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._waiting += self._lines.feed(data)
        self._serve()

    def eof_received(self) -> bool:
        if not self._ended:
            self._ended = True
            self._waiting += self._lines.end()
            self._serve()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.gone: bool = True
        self._ended = True
        self._waiting.clear()
        self._outgoing.clear()
        self._connections.discard(self)
        self._kernel.forget(self)
        self._on_left()

    def pause_writing(self) -> None:
        self._write_full = True
        self._serve()

    def resume_writing(self) -> None:
        self._write_full = False
        self._serve()

    # --- reading and writing --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Take some lines while the peer keeps up; read from it only when all of them are taken."""
        if self._take(0 if self._turn_planned else LINES_AT_ONCE):
            self._plan_turn()
        read = not self._waiting and not self._write_full
        if read is not self._reading and not self._ended and not self.gone:
            self._reading = read
            if read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        self._close_when_done()

    def _take(self, left: float) -> bool:
        """Take lines of this weight, if the peer keeps up; whether more could be taken."""
        waiting = self._waiting
        if not self.unfinished:
            self._allowed = _UNCOUNTED
        while waiting and not self._write_full and (self.unfinished < self._allowed or self._may_open_more()):
            if left <= 0:
                return True
            line = waiting.popleft()
            left -= 1 if line is None else 1 + (len(line) >> 10)
            self.take(line)
        return False

    def _plan_turn(self) -> None:
        """Go on with the lines behind everything that was handed in so far, also by others."""
        if not self._turn_planned:
            self._turn_planned = True
            self._kernel.loop.post(NdjsonConnection._turn, self)

    def _turn(self) -> None:
        self._turn_planned = False
        self._serve()

    def _may_open_more(self) -> bool:
        """Whether what is open leaves room. Looked at now and then: lines are short as a rule, and counting costs."""
        if self.unfinished < MAX_OPEN:
            held = sum(len(bytes(mail.message.raw)) for mail in self.open.values())
            if held < MAX_OPEN_BYTES:
                self._allowed = min(MAX_OPEN, 2 * self.unfinished)
                return True
        self._allowed = self.unfinished  # one more for each that is finished
        return False

    def progressed(self) -> None:
        if self._waiting:
            self._plan_turn()
        elif self._ended:
            self._close_when_done()

    def congested(self) -> bool:
        return self._write_full

    def write(self, line: bytes) -> None:
        self._outgoing.append(line)
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        if self._outgoing and not self.gone:
            self._outgoing.append(b"")
            self._transport.write(b"\n".join(self._outgoing))
            self._outgoing = []

    def _flush(self) -> None:
        """Everything that one slice of the loop wrote leaves in one write."""
        self._flush_planned = False
        self.flush()
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._ended and not self.unfinished and not self._waiting and not self._outgoing and not self.gone:
            self.gone = True
            self._transport.close()

    # --- the end --------------------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Take no further line; what was sent before is still answered, unless the peer had too much open already.

        What still comes is read and thrown away: bytes left unread when a socket closes would reset the connection, and
        the peer could lose answers that were already written.
        """
        if not self._ended and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._ended = True
        self._take(math.inf)
        self._waiting.clear()

    def hang_up(self) -> None:
        """Write what is left, then close."""
        self._ended = True
        self._flush()
        if not self.gone:
            self.gone = True
            self._transport.close()

    def abort(self) -> None:
        self.gone = True
        self._transport.abort()


class LineServer:
    """A place where clients of a kernel connect and speak lines.

    `stop` writes what is left and gives a client that does not read `grace_ms`, by the kernel's clock, to take it.
    """

    def __init__(self, kernel: Kernel, *, grace_ms: float = 2_000) -> None:
        self._kernel = kernel
        self._grace_ms = grace_ms
        self._server: asyncio.Server | None = None
        self._connections: set[NdjsonConnection] = set()
        self._emptied: asyncio.Future[None] | None = None
        self.accepted: int = 0  # connections since the start

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def _left(self) -> None:
        if self._emptied is not None and not self._connections:
            wake(self._emptied)

    async def quiesce(self) -> None:
        """Accept no client and read nothing any more; answers still go out."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.stop_reading()

    async def stop(self) -> None:
        """Write what is left, close every connection. Idempotent."""
        await self.quiesce()
        for connection in tuple(self._connections):
            connection.hang_up()
        if self._connections:
            self._emptied = asyncio.get_running_loop().create_future()
            timer = self._kernel.loop.schedule(self._grace_ms, wake, self._emptied)
            await self._emptied
            self._kernel.loop.cancel(timer)
        for connection in tuple(self._connections):
            connection.abort()
        self._server = None


class NdjsonServer(LineServer):
    """The unix socket of a kernel: directory 0700, socket 0600, a stale socket replaced, a live one respected."""

    def __init__(self, kernel: Kernel, path: str | os.PathLike[str], *, grace_ms: float = 2_000) -> None:
        super().__init__(kernel, grace_ms=grace_ms)
        self.path: Path = Path(path)
        self._identity: Identity | None = None

    @property
    def address(self) -> str:
        """As the boot summary shows it."""
        return f"unix:{self.path}"

    async def start(self) -> None:
        """Listen. Raises `BootError` when the path cannot be used or another server listens there."""
        listener = listen_at(self.path)
        try:
            self._identity = identity_of(self.path)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(self._connect, sock=listener, backlog=BACKLOG)
        except BaseException:
            listener.close()
            remove_socket(self.path, self._identity)
            raise

    def _connect(self) -> NdjsonConnection:
        self.accepted += 1
        return NdjsonConnection(self._kernel, self._connections, self._left)

    async def quiesce(self) -> None:
        """Remove the socket, too."""
        remove_socket(self.path, self._identity)
        self._identity = None
        await super().quiesce()
