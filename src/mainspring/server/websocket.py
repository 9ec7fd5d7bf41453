"""The bus over WebSocket: JSON text frames between aiohttp and a `Session`.

aiohttp does the handshake, parsing, pings and closing. Outgoing text frames are built here: a server's frame is a
length and the text, and all frames of one slice leave in one write. Through aiohttp's writer each would be a coroutine
and a write of its own, which costs several times as much as everything else that is done for a small event.

A peer that does not read is noticed by what is left unsent. From `send_buffer_bytes` on, deliveries to it pause;
answers still go out, because it may be busy sending. From sixteen times as much on, nothing more is read from it
either. So its memory on the node is bounded, and the other members of its groups go on. If it stays like that, it also
answers no ping and is closed. A peer that hangs up with something unsent is gone at once: the transport would wait for
it to read the rest, and all that time it would hold its events.

A frame over the limit is answered with an ERROR and the connection goes on; only a frame so large that reading it would
be an attack ends the connection (code 1009). Text that is not UTF-8 ends it after its ERROR (code 1007), and a frame
that is not masked at once (code 1002): `MaskedFrames` looks for those.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from mainspring.bus import BadFrame, BadJson, Bus, Caller, LimitReached, Session, Who
from mainspring.retries import Backoff
from mainspring.server.connections import Connection, Connections
from mainspring.server.http.access import Identify, chosen_protocol, while_valid
from mainspring.server.http.problem import Handler, HttpProblem
from mainspring.settings import Settings

# Times the limit: unsent bytes before reading stops, and the size of a frame that ends a connection.
# It names the subprotocols that a client offers and nobody speaks, and a token can be one of them.
logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)

OVERLOAD: Final = 16
READS_PER_TURN: Final = 256  # frames of one connection before the others have their turn
LOOKS: Final = Backoff(2, 50)  # ms between two looks whether a slow peer has read some of what is unsent
HUNG_UP_S: Final = 0.2  # how often a connection with something unsent is asked whether its peer hung up


class WebSocketFace:
    """The handler of the route, and the connections it has open."""

    def __init__(
        self, bus: Bus, settings: Settings, identify: Identify, otherwise: Handler, connections: Connections
    ) -> None:
        self._connections = connections
        self._bus = bus
        self._settings = settings
        self._identify = identify
        self._otherwise = otherwise
        self._open: set[web.WebSocketResponse[bool]] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One connection, from handshake to close."""
        socket = web.WebSocketResponse(
            heartbeat=self._settings.ping_interval_ms / 1000,
            compress=False,
            autoclose=False,
            max_msg_size=self._settings.max_frame_bytes * OVERLOAD,
            decode_text=False,
            protocols=chosen_protocol(request),
        )
        if not socket.can_prepare(request):
            if request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket":
                raise HttpProblem(
                    "bad_handshake",
                    "This is not a complete WebSocket handshake.",
                    "Send Connection: Upgrade, Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key of 16 bytes.",
                    headers={hdrs.SEC_WEBSOCKET_VERSION: "13"},
                )
            return await self._otherwise(request)
        caller = await self._identify(request)
        if not isinstance(caller, Caller):
            caller = Caller(caller)
        self._bus.quotas.assign(caller, request.remote or "")
        if len(self._open) >= self._settings.max_connections:
            raise LimitReached(
                f"the node has {len(self._open)} connections, as many as it may",
                remedy="try again later, or raise max_connections",
            )
        with caller.quota.holding("connections"):
            self._open.add(socket)
            try:
                await socket.prepare(request)
                if request.transport is not None:
                    await self._serve(socket, request.transport, caller)
            finally:
                self._open.discard(socket)
        return socket

    async def _serve(self, socket: web.WebSocketResponse[bool], transport: asyncio.Transport, caller: Who) -> None:
        outlet = Outlet(transport, self._settings.send_buffer_bytes)
        session = self._bus.open_session(caller, outlet.send)
        outlet.session = session
        connection = self._connections.upgraded(transport)
        try:
            async with while_valid(caller, self._bus.clock, lambda: _close_invalid(socket)):
                await _read(socket, session, outlet, connection)
        finally:
            outlet.close()
            session.close()

    async def close_all(self) -> None:
        """The node stops: tell every peer to go away."""
        await asyncio.gather(
            *(
                socket.close(code=WSCloseCode.GOING_AWAY, message=b"the node is stopping")
                for socket in list(self._open)
            ),
            return_exceptions=True,
        )


async def ask_to_upgrade(_: web.Request) -> web.StreamResponse:
    """What a plain request gets where nothing else is served."""
    return web.Response(status=426, text="This path speaks WebSocket.\n", headers={"Upgrade": "websocket"})


def add_websocket(
    app: web.Application,
    bus: Bus,
    settings: Settings,
    identify: Identify,
    otherwise: Handler = ask_to_upgrade,
    connections: Connections | None = None,
) -> WebSocketFace:
    """Serve the protocol at `/` of this application; `otherwise` answers those who ask for no WebSocket."""
    counted = Connections(settings) if connections is None else connections
    face = WebSocketFace(bus, settings, identify, otherwise, counted)
    app.router.add_get("/", face.handle)

    async def close_all(_: web.Application) -> None:
        await face.close_all()

    app.on_shutdown.append(close_all)
    return face


async def _close_invalid(socket: web.WebSocketResponse[bool]) -> None:
    await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the token is no longer valid")


async def _read(socket: web.WebSocketResponse[bool], session: Session, outlet: Outlet, connection: Connection) -> None:
    """Frames into the session until the connection ends."""
    taken = 0
    while True:
        message = await socket.receive()
        connection.took_frame()
        kind = message.type
        if kind is WSMsgType.TEXT:
            if not (message.data.isascii() or _is_utf8(message.data)):
                session.refuse(BadJson("the frame is not UTF-8", remedy="send one JSON object per text frame"))
                outlet.fail(WSCloseCode.INVALID_TEXT)
                return
            session.receive(message.data)
        elif kind is WSMsgType.BINARY:
            session.refuse(BadFrame("a binary frame", remedy="send JSON as text frames"))
        else:
            if kind is WSMsgType.CLOSE:
                outlet.close()
                is_code = message.data != WSCloseCode.ABNORMAL_CLOSURE and message.data < 5000
                await socket.close(code=WSCloseCode.OK if is_code else WSCloseCode.PROTOCOL_ERROR)
            return
        taken += 1
        if session.congested or outlet.overloaded:
            connection.is_held = True
            await session.relieved()
            if outlet.overloaded:
                await outlet.drained()
            connection.is_held = False
        if taken % READS_PER_TURN == 0:  # what aiohttp has buffered is read without a pause otherwise
            await asyncio.sleep(0)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Outlet:
    """What goes out on one connection: collects a slice's frames and writes them at once."""

    def __init__(self, transport: asyncio.Transport, high_bytes: int) -> None:
        self.session: Session | None = None
        self._transport = transport
        self._high = high_bytes
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0
        self._paused = False
        self._watched = False
        self._looks = LOOKS.series()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False

    def send(self, text: bytes) -> None:
        """One text frame, with the next write. Never waits."""
        if self._closed:
            return
        if not self._parts:
            self._loop.call_soon(self._write)
        size = len(text)
        if size < 126:
            head = bytes((0x81, size))
        elif size < 65_536:
            head = b"\x81\x7e" + size.to_bytes(2, "big")
        else:
            head = b"\x81\x7f" + size.to_bytes(8, "big")
        self._parts += (head, text)
        self._size += size
        if self._size > self._high and not self._paused:
            self._pause()

    @property
    def overloaded(self) -> bool:
        return self._paused and self._unsent() > self._high * OVERLOAD

    async def drained(self) -> None:
        await self._drained.wait()

    def close(self) -> None:
        self._write()
        self._closed = True
        self._drained.set()

    def fail(self, code: int) -> None:
        """The peer broke the protocol: say so with the last frame, and do not wait for it to agree."""
        self.close()
        self._transport.write(b"\x88\x02" + code.to_bytes(2, "big"))
        self._transport.close()

    def _unsent(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def _write(self) -> None:
        parts, self._parts = self._parts, []
        self._size = 0
        if not parts or self._transport.is_closing():
            return
        self._transport.write(b"".join(parts))
        if not self._watched:
            self._watch()
        if not self._paused and self._transport.get_write_buffer_size() > self._high:
            self._pause()

    def _watch(self) -> None:
        self._watched = True
        self._loop.call_later(HUNG_UP_S, self._has_hung_up)

    def _has_hung_up(self) -> None:
        """While something is unsent: a transport that is closing waits for a peer that may never read."""
        self._watched = False
        if self._closed:
            return
        if self._transport.is_closing():
            self._hang_up()
        elif self._transport.get_write_buffer_size():
            self._watch()

    def _hang_up(self) -> None:
        self._transport.abort()
        self._drained.set()

    def _pause(self) -> None:
        """Too much is unsent. Look again soon, later less often, until half of it has left."""
        self._paused = True
        self._drained.clear()
        self._looks.succeeded()
        if self.session is not None:
            self.session.pause()
        self._loop.call_later(self._looks.failed() / 1000, self._look)

    def _look(self) -> None:
        if self._closed:
            return
        if self._transport.is_closing():
            self._hang_up()
            return
        if self._unsent() > self._high // 2:
            self._loop.call_later(self._looks.failed() / 1000, self._look)
            return
        self._paused = False
        self._drained.set()
        if self.session is not None:
            self.session.resume()
