"""The network of a simulation: connections between hosts, and what can happen to them.

A connection is a pair of asyncio transports. Bytes of one direction arrive in their order, those of two connections in
any: each piece takes a while that the seed decides. As on a real network, nothing that is lost is announced: while two
hosts cannot reach each other their bytes wait (a partition that heals delivers them late), and on a half-open
connection they are gone and only a timeout tells, the program's or that of a kernel which was told to watch. A reset
is told to both ends, not at the same time.

A sender whose receiver does not read is asked to pause, after what the buffers of two kernels hold.
"""

from __future__ import annotations

import asyncio
import random
import re
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mainspring.testing.simulation.processes import MS, SimulatedProcess, Timeline

Factory = Callable[[], Any]
Connected = asyncio.Future[tuple["End", Any]]
BUFFERED: Final = 128 << 10  # bytes that two kernels hold between two programs
GIVEN_UP_MS: Final = 20_000  # after which a kernel gives up on bytes that nobody confirms; real ones wait longer
HIGH, LOW = 64 << 10, 16 << 10  # asyncio's own limits of what waits to be sent
_DATE: Final = re.compile(rb"\r\nDate: [^\r]*")
_QUICK_MS, _SLOW_MS = (0.05, 1.5), (20.0, 900.0)


class Network:
    """Who can reach whom, and how fast."""

    def __init__(self, timeline: Timeline, seed: str) -> None:
        self._timeline = timeline
        self._random = random.Random(seed)
        self._servers: dict[str, SimulatedServer] = {}
        self._cut_until: dict[tuple[str, str], int] = {}  # from a host to another
        self._slow_until: dict[str, int] = {}
        self.open: list[End] = []  # the ends of those who connected
        self.checksum: int = 0  # of everything that arrived

    # -- for event loops

    def listen(self, process: SimulatedProcess, host: str, factory: Factory) -> SimulatedServer:
        if host in self._servers and self._servers[host].process.alive:
            raise OSError(98, f"{host} is in use")
        self._servers[host] = server = SimulatedServer(self, process, host, factory)
        return server

    async def connect(self, process: SimulatedProcess, host: str, factory: Factory) -> tuple[End, Any]:
        waiter: asyncio.Future[tuple[End, Any]] = process.loop.create_future()
        self._carry(process.host, host, lambda: self._arrive(process, host, factory, waiter))
        return await waiter

    def _arrive(self, process: SimulatedProcess, host: str, factory: Factory, waiter: Connected) -> None:
        """At the host that was asked. A machine that is down says nothing; one without a server refuses."""
        server = self._servers.get(host)
        if server is None or not server.process.alive or server.closed:
            self._carry(host, process.host, lambda: process.do(_refuse, waiter, host))
            return
        mine, theirs = End(self, process), End(self, server.process)
        mine.peer, theirs.peer = theirs, mine
        self.open = [end for end in self.open if not end.gone]
        self.open.append(mine)
        server.process.do(server.accept, theirs)
        self._carry(host, process.host, lambda: process.do(_connected, waiter, mine, factory))

    # -- how long it takes

    def delay_ns(self, source: str, target: str) -> int:
        now, until = self._timeline.now_ns, self._slow_until
        slow = until.get(source, 0) > now or until.get(target, 0) > now
        return int(self._random.uniform(*(_SLOW_MS if slow else _QUICK_MS)) * MS)

    def blocked_ns(self, source: str, target: str) -> int:
        """Until when nothing gets through; 0 when it does."""
        until = self._cut_until.get((source, target), 0)
        return until if until > self._timeline.now_ns else 0

    def _carry(self, source: str, target: str, action: Callable[[], object]) -> None:
        self._at(source, target, self._timeline.now_ns + self.delay_ns(source, target), action)

    def _at(self, source: str, target: str, ns: int, action: Callable[[], object]) -> None:
        def arrive() -> None:
            blocked = self.blocked_ns(source, target)
            if blocked:
                self._timeline.at(blocked + self.delay_ns(source, target), arrive)
            else:
                action()

        self._timeline.at(ns, arrive)

    def send(self, end: End, action: Callable[[], object]) -> None:
        """Have this done at the other end, behind everything that was sent before."""
        source, target = end.process.host, end.peer.process.host
        end.arrives_ns = max(end.arrives_ns, self._timeline.now_ns + self.delay_ns(source, target))
        end.under_way.append(action)  # whenever something gets through, it is what was sent first
        self._at(source, target, end.arrives_ns, lambda: end.under_way.popleft()())

    def tell(self, end: End, error: Exception | None) -> None:
        """Let this end learn, after a while, that its peer is gone."""
        source, target = end.peer.process.host, end.process.host
        self._carry(source, target, lambda: end.arrive(lambda: end.lose(error)))

    def wait_for(self, process: SimulatedProcess, action: Callable[[], object]) -> None:
        self._timeline.at(process.stalled_until_ns, action)

    def count(self, piece: bytes) -> None:
        """Bytes arrived. The only ones that come from the machine's own clock are left out: a web server's date."""
        told = _DATE.sub(b"", piece) if piece.startswith(b"HTTP/") else piece
        self.checksum = zlib.crc32(told, self.checksum)

    def later(self, ms: float, action: Callable[[], object]) -> None:
        self._timeline.after(ms, action)

    def is_stalled(self, process: SimulatedProcess) -> bool:
        return process.stalled_until_ns > self._timeline.now_ns

    # -- what goes wrong

    def cut(self, source: str, target: str, ms: float) -> None:
        """Nothing gets from one host to the other for so long, or for as long as was said before."""
        until = self._timeline.now_ns + int(ms * MS)
        self._cut_until[source, target] = max(self._cut_until.get((source, target), 0), until)

    def slow(self, host: str, ms: float) -> None:
        """Everything to and from this host takes long, for so long."""
        self._slow_until[host] = self._timeline.now_ns + int(ms * MS)

    def heal(self) -> None:
        self._cut_until.clear()
        self._slow_until.clear()

    def pick(self, source: random.Random) -> End | None:
        """One of the connections that are open."""
        self.open = [end for end in self.open if not end.gone]
        return source.choice(self.open) if self.open else None

    def end_process(self, process: SimulatedProcess, *, silently: bool) -> None:
        """A process is gone: its peers are told, or not, if the machine went with it."""
        for end in [each for one in self.open for each in (one, one.peer) if each.process is process]:
            end.gone = True
            end.peer.cut_off()
            if not silently:
                self.tell(end.peer, ConnectionResetError("the other process ended"))

    def machine_is_back(self, host: str) -> None:
        """It knows nothing of its former connections, and says so to who goes on with one."""
        for end in [each for one in self.open for each in (one, one.peer)]:
            if end.process.host == host and not end.process.alive and not end.peer.gone:
                self.tell(end.peer, ConnectionResetError("no such connection"))


def _refuse(waiter: Connected, host: str) -> None:
    if not waiter.done():
        waiter.set_exception(ConnectionRefusedError(111, f"{host} refused the connection"))


def _connected(waiter: Connected, mine: End, factory: Factory) -> None:
    if waiter.done() or mine.gone:
        mine.abort()
        return
    protocol = factory()
    mine.begin(protocol)
    waiter.set_result((mine, protocol))


class SimulatedServer:
    """What listens on a host; as much of `asyncio.SimulatedServer` as programs use."""

    def __init__(self, network: Network, process: SimulatedProcess, host: str, factory: Factory) -> None:
        self.process: SimulatedProcess = process
        self.host: str = host
        self.closed: bool = False
        self._factory = factory

    def accept(self, end: End) -> None:
        end.begin(self._factory())

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        """Connections that are open stay open."""

    def getsockname(self) -> tuple[str, int]:
        return self.host, 7070

    @property
    def sockets(self) -> list[SimulatedServer]:
        return [self]


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: SimulatedProcess) -> None:
        super().__init__()
        self.process = process
        self.peer: End = self
        self.gone: bool = False  # its program knows that it is over
        self.lost: bool = False  # nothing that is sent from here arrives
        self.arrives_ns: int = 0
        self.under_way: deque[Callable[[], object]] = deque()
        self._watch_ms: float = 0  # of silence, after which the kernel gives it up; 0: it does not look
        self._network = network
        self._protocol: Any = None
        self._unread = 0  # bytes on their way
        self._reading = True
        self._asleep = False
        self._behind: deque[Callable[[], None]] = deque()  # what waits for the peer to read
        self._paused = False
        self._closing = False
        self._arrivals: deque[Callable[[], None]] = deque()

    def begin(self, protocol: Any) -> None:
        """The program learns of the connection."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._arrivals:
            self.process.do(self._next_arrival)

    def arrive(self, what: Callable[[], None]) -> None:
        """Something arrives from the peer: told one at a time, a turn of the loop each, as a selector tells them."""
        self._arrivals.append(what)
        if len(self._arrivals) == 1 and self._protocol is not None:
            self.process.do(self._next_arrival)

    def _next_arrival(self) -> None:
        self._arrivals.popleft()()
        if self._arrivals:
            self.process.do(self._next_arrival)

    # -- asyncio's side

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        piece = bytes(data)
        self._unread += len(piece)
        if self.lost:
            self._give_up_after(GIVEN_UP_MS)
        self._network.send(self, lambda: self._hand_over(piece))
        if not self._paused and self.get_write_buffer_size() > HIGH:
            self._paused = True
            self._protocol.pause_writing()

    def _hand_over(self, piece: bytes | None) -> None:
        """At the peer: bytes, or None for the end of them."""
        peer = self.peer
        if self.lost or peer.gone or not peer.process.alive:
            return
        stalled = self._network.is_stalled(peer.process)
        if not (stalled or self._behind) and peer.reads:
            self._arrived(piece)
            return
        self._behind.append(lambda: self._hand_over(piece))
        if stalled:
            self._network.wait_for(peer.process, peer._read_on)

    def _arrived(self, piece: bytes | None) -> None:
        if piece is None:
            self.peer.arrive(self.peer._at_end)
            return
        self._unread -= len(piece)
        self._network.count(piece)
        self.peer.arrive(lambda: self.peer._receive(piece))
        if self.get_write_buffer_size() <= LOW and (self._paused or self._closing):
            self.process.do(self._drained)

    def _receive(self, piece: bytes) -> None:
        if not self.gone:
            self._protocol.data_received(piece)

    def _at_end(self) -> None:
        if not self.gone and not self._protocol.eof_received():
            self.close()

    def _drained(self) -> None:
        if self._closing:
            self.lose(None)
        elif self._paused:
            self._paused = False
            self._protocol.resume_writing()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._network.send(self, lambda: self._hand_over(None))
        if not self.get_write_buffer_size():
            self.process.do(self.lose, None)

    def abort(self) -> None:
        if self.gone:
            return
        self._closing = True
        if not self.lost:
            self._network.tell(self.peer, ConnectionResetError("the peer reset the connection"))
        self.lost = True
        self.process.do(self.lose, None)

    def lose(self, error: Exception | None) -> None:
        """It is over, and its program is told."""
        if not self.gone:
            self.gone = self._closing = True
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.process.do(self._read_on)

    @property
    def reads(self) -> bool:
        return self._reading and not self._asleep

    def _read_on(self) -> None:
        waiting, self.peer._behind = self.peer._behind, deque()
        for piece in waiting:
            piece()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread - BUFFERED)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return LOW, HIGH

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are asyncio's own."""

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.peer.process.host, 7070) if name == "peername" else default

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    # -- what goes wrong

    def reset(self) -> None:
        """Both ends are told that the connection broke; what was on its way is gone."""
        for end in (self, self.peer):
            end.lost = True
            self._network.tell(end, ConnectionResetError("the connection broke"))

    def go_silent(self) -> None:
        """Half-open: nothing arrives any more, and nobody is told."""
        self.cut_off()
        self.peer.cut_off()

    def cut_off(self) -> None:
        """Nothing that is sent from here arrives any more; a kernel that watches notices that nothing comes back."""
        self.lost = True
        if self._watch_ms:
            self._give_up_after(self._watch_ms)

    def watch(self, silence_ms: float) -> None:
        """Have the kernel look whether the other end is there, and end the connection after so long a silence."""
        self._watch_ms = silence_ms

    def _give_up_after(self, ms: float) -> None:
        self._network.later(ms, lambda: self.process.do(self.lose, TimeoutError("no answer")))

    def read_nothing(self, ms: float) -> None:
        """A slow reader: what arrives at this end waits for so long."""
        self._asleep = True
        self._network.later(ms, self._wake_up)

    def _wake_up(self) -> None:
        self._asleep = False
        self.process.do(self._read_on)
