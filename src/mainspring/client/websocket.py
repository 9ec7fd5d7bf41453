"""A WebSocket connection to a node, as an asyncio protocol.

Why not aiohttp's own client: it hands over one message per `await` and writes one frame per coroutine. A consumer that
gets forty thousand small events a second would spend most of its time there. Here all frames that arrived together are
handed on in one call, and all frames of one slice leave in one write. What a bus client needs of the protocol is small:
the handshake, text frames, fragments, ping, pong and close. It is as strict as RFC 6455 demands: `make autobahn` runs
the cases of the Autobahn test suite.

`FrameReader` is the parser, without a socket; `Socket` is the protocol around it.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import itertools
import ssl as ssl_module
from collections.abc import Callable, Iterable
from typing import Final, cast
from urllib.parse import urlsplit

from mainspring.client.errors import CannotConnect
from mainspring.loop import reject, time_limit

SHORT: Final = 1_024


def masked(data: bytes, key: bytes) -> bytes | bytearray:
    """`data` combined with the four bytes of `key`, over and over: what a client must do (RFC 6455, section 5.3).

    Short frames are masked as one big number, which is the quickest that plain Python can do. For long ones that would
    cost more than everything else a client does; aiohttp has a compiled function for it. It is not part of aiohttp's
    public face, so there is a way without it.
    """
    size = len(data)
    if size <= SHORT:
        stretched = (key * (size // 4 + 1))[:size]
        return (int.from_bytes(data, "little") ^ int.from_bytes(stretched, "little")).to_bytes(size, "little")
    copy = bytearray(data)
    _long_mask()(key, copy)
    return copy


@functools.cache
def _long_mask() -> Callable[[bytes, bytearray], None]:
    try:
        from aiohttp._websocket.helpers import websocket_mask
    except ImportError:
        return mask_in_place
    return websocket_mask


@functools.cache
def _table(key: int) -> bytes:
    return bytes(value ^ key for value in range(256))


def mask_in_place(key: bytes, data: bytearray) -> None:
    """Each fourth byte goes through one table; four passes over the data."""
    for at, part in enumerate(key):
        data[at::4] = data[at::4].translate(_table(part))


_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x1, 0x2, 0x8, 0x9, 0xA
BROKEN: Final = -1  # the peer broke the protocol
_CLOSE_CODES: Final = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015)})
MAX_MESSAGE_BYTES: Final = 64 << 20
_HEAD_LIMIT: Final = 64 << 10
PERMANENT: Final = frozenset({400, 401, 403, 404, 405, 426})  # answers that trying again does not change
RandomBytes = Callable[[int], bytes]


class WebSocketError(Exception):
    """The peer does not speak WebSocket as it should; the connection ends with `code`."""

    def __init__(self, text: str, code: int = 1002) -> None:
        super().__init__(text)
        self.code = code


class FrameReader:
    """Cuts a stream into messages. `feed` gives (opcode, data) pairs: whole messages, and control frames.

    What comes after a Close is not read. The last pair may be (BROKEN, what to close with): what came before it counts,
    and nothing more is read.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._parts: list[bytes] = []  # of a frame that is longer than what came at once
        self._missing = 0  # bytes of it
        self._kind = 0  # of a message in fragments
        self._fragments: list[bytes] = []
        self._fragments_size = 0
        self._ended = False

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        if self._missing:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return found
            data, self._parts, self._missing = b"".join(self._parts), [], 0
        if self._ended:
            return found
        try:
            self._read(self._buffer + data if self._buffer else data, found)
        except WebSocketError as error:
            self._ended = True
            found.append((BROKEN, error.code.to_bytes(2, "big") + str(error).encode()))
        return found

    def _read(self, buffer: bytes, found: list[tuple[int, bytes]]) -> None:
        at, end = 0, len(buffer)
        while end - at >= 2:
            first, size, start = buffer[at], buffer[at + 1], at + 2
            if size >= 126:
                if size & 0x80:
                    raise WebSocketError("a node must not mask its frames")
                if first & 0x08:
                    raise WebSocketError("a control frame that is long")
                width = 2 if size == 126 else 8
                if end < start + width:
                    break
                size, start = int.from_bytes(buffer[start : start + width], "big"), start + width
                if size > MAX_MESSAGE_BYTES:
                    raise WebSocketError(f"a frame of {size} bytes", 1009)
            if end < start + size:
                if size > SHORT:
                    self._buffer, self._parts, self._missing = b"", [buffer[at:]], start + size - end
                    return
                break
            at = start + size
            data = buffer[start:at]
            if first == 0x81 and not self._kind:  # nearly every frame is a whole text
                found.append((_TEXT, data if data.isascii() else checked_text(data)))
            else:
                self._frame(first, data, found)
                if self._ended:
                    return
        self._buffer = buffer[at:]

    def _frame(self, first: int, data: bytes, found: list[tuple[int, bytes]]) -> None:
        opcode, final = first & 0x0F, first & 0x80
        if first & 0x70:
            raise WebSocketError("an extension that was not asked for")
        if opcode >= 8:
            if not final:
                raise WebSocketError("a control frame in fragments")
            if opcode > _PONG:
                raise WebSocketError(f"a control frame of the unknown kind {opcode}")
            if opcode == _CLOSE:
                _check_close(data)
                self._ended = True
            found.append((opcode, data))
            return
        if opcode > _BINARY:
            raise WebSocketError(f"a frame of the unknown kind {opcode}")
        if (opcode == 0) != bool(self._kind):
            raise WebSocketError("fragments out of order")
        self._kind = opcode or self._kind
        self._fragments.append(data)
        self._fragments_size += len(data)
        if self._fragments_size > MAX_MESSAGE_BYTES:
            raise WebSocketError("a message without an end", 1009)
        if final:
            whole, kind = b"".join(self._fragments), self._kind
            self._kind, self._fragments, self._fragments_size = 0, [], 0
            found.append((kind, checked_text(whole) if kind == _TEXT else whole))


def checked_text(data: bytes) -> bytes:
    """`data`, if it is UTF-8; else WebSocketError."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise WebSocketError("a text that is not UTF-8", 1007) from None
    return data


def _check_close(data: bytes) -> None:
    code = int.from_bytes(data[:2], "big")
    if data and not (len(data) > 1 and (code in _CLOSE_CODES or 3000 <= code < 5000)):
        raise WebSocketError(f"the close code {code}")
    checked_text(data[2:])


def frame_bytes(opcode: int, data: bytes, key: bytes) -> tuple[bytes, bytes | bytearray]:
    """Head and masked data of one frame."""
    size = len(data)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65_536:
        head = bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0xFF)) + size.to_bytes(8, "big")
    return head + key, masked(data, key)


class Socket(asyncio.Protocol):
    """One connection. Texts go to `on_texts`, its end to `on_lost`; both are called from the event loop."""

    def __init__(self, random_bytes: RandomBytes) -> None:
        self.on_texts: Callable[[list[bytes]], None] = lambda _: None
        self.on_lost: Callable[[Exception | None], None] = lambda _: None
        self.on_writable: Callable[[], None] = lambda: None
        self.writable: bool = True
        self.close_code: int = 0
        self.received: int = 0  # reads so far; whoever wants to know whether the peer lives compares
        self._random_bytes = random_bytes
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._head = b""
        self._shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._accept = b""

    # -- opening

    async def shake_hands(self, host: str, target: str, headers: Iterable[tuple[str, str]]) -> None:
        """Ask for the upgrade; raises CannotConnect with `permanent` set where the answer will not change."""
        key = base64.b64encode(self._random_bytes(16))
        self._accept = base64.b64encode(hashlib.sha1(key + _GUID).digest())
        lines = [
            f"GET {target} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
            *(f"{name}: {value}" for name, value in headers),
        ]
        assert self._transport is not None
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        await self._shaken

    def _read_head(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _HEAD_LIMIT:
                self._fail(CannotConnect("the peer is no HTTP server"))
            return
        head, rest = self._head[:end], self._head[end + 4 :]
        status, _, lines = head.partition(b"\r\n")
        words = status.split(b" ", 2)
        number = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines.split(b"\r\n"))
        }
        if number != 101:
            self._fail(refusal(number))
        elif fields.get(b"upgrade", b"").lower() != b"websocket" or b"upgrade" not in _words(fields.get(b"connection")):
            self._fail(CannotConnect("the peer answered the handshake without an upgrade to WebSocket"))
        elif fields.get(b"sec-websocket-accept") != self._accept:
            self._fail(CannotConnect("the peer answered the handshake of someone else"))
        else:
            self._shaken.set_result(None)
            if rest:
                self.data_received(rest)

    def _fail(self, error: CannotConnect) -> None:
        reject(self._shaken, error)
        self.abort()

    # -- sending

    def send(self, texts: Iterable[bytes]) -> None:
        """Text frames, in one write. Never waits; look at `writable` before sending much."""
        self.write(_TEXT, texts)

    def ping(self) -> None:
        self.write(_PING, (b"",))

    def write(self, opcode: int, parts: Iterable[bytes]) -> None:
        """Frames of one kind, in one write."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        given = list(parts)
        keys = self._random_bytes(4 * len(given))  # asking for each would cost more than the rest
        pieces: list[bytes | bytearray] = []
        for at, data in enumerate(given):
            pieces += frame_bytes(opcode, data, keys[4 * at : 4 * at + 4])
        transport.write(b"".join(pieces))

    async def close(self, patience_s: float = 1.0) -> None:
        """Say goodbye and wait a little for the answer."""
        self.write(_CLOSE, ((1000).to_bytes(2, "big"),))
        try:
            async with asyncio.timeout(patience_s):
                await self._gone.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        self.received += 1
        if not self._shaken.done():
            self._read_head(data)
            return
        found = self._reader.feed(data)
        texts = [text for opcode, text in found if opcode == _TEXT]
        if len(texts) < len(found):
            self._take_in_order(found)
        elif texts:
            self.on_texts(texts)

    def _take_in_order(self, found: list[tuple[int, bytes]]) -> None:
        for is_text, group in itertools.groupby(found, lambda frame: frame[0] == _TEXT):
            if is_text:
                self.on_texts([text for _, text in group])
            else:
                for opcode, data in group:
                    self._other(opcode, data)

    def _other(self, opcode: int, data: bytes) -> None:
        if opcode == _PING:
            self.write(_PONG, (data,))
        elif opcode == _CLOSE:
            self.close_code = int.from_bytes(data[:2], "big") if data else 1005
            self.write(_CLOSE, (data[:2],))
            self._end()
        elif opcode == _BINARY:
            self.take_binary(data)
        elif opcode == BROKEN:
            self._refuse(int.from_bytes(data[:2], "big"), data[2:].decode())

    def take_binary(self, _: bytes) -> None:
        """Nodes send text only."""
        self._refuse(1003, "a binary message")

    def _refuse(self, code: int, text: str) -> None:
        self.write(_CLOSE, (code.to_bytes(2, "big"),))
        self._end()
        self._lost(CannotConnect(f"the node's stream makes no sense: {text}"))

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        closed = CannotConnect("the node closed the connection during the handshake")
        reject(self._shaken, closed, may_go_unseen=True)
        self._lost(error)

    def _lost(self, error: Exception | None) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self.on_lost(error)


def _words(field: bytes | None) -> list[bytes]:
    return [word.strip().lower() for word in (field or b"").split(b",")]


class NotLetIn(CannotConnect):
    """The node answered, and will answer the same next time."""


def refusal(status: int) -> CannotConnect:
    """What an answer to the handshake means that is no upgrade."""
    if status == 401:
        return NotLetIn("the node wants a valid token", remedy="pass token=...", code="unauthorized")
    if status == 403:
        return NotLetIn("the node does not let this client in", remedy="ask for access", code="forbidden")
    if status in PERMANENT:
        return NotLetIn(f"the address is no bus: the node answered {status}", remedy="check the URL")
    return CannotConnect(f"the node answered {status}", remedy="look at the node's log")


async def open_socket(
    url: str,
    *,
    token: str | None,
    random_bytes: RandomBytes,
    headers: Iterable[tuple[str, str]] = (),
    ssl: ssl_module.SSLContext | None = None,
    unix_socket: str = "",
    timeout_s: float = 10.0,
) -> Socket:
    """Connect and shake hands. Raises CannotConnect; NotLetIn where trying again is useless."""
    parts = urlsplit(url)
    secure = parts.scheme == "wss"
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80)
    target = f"{parts.path.rstrip('/')}/" + (f"?{parts.query}" if parts.query else "")
    context = (ssl or ssl_module.create_default_context()) if secure else None
    sent = [*headers, ("Authorization", f"Bearer {token}")] if token is not None else headers
    socket: Socket | None = None
    try:
        async with time_limit(timeout_s):
            loop = asyncio.get_running_loop()
            if unix_socket:
                _, socket = await loop.create_unix_connection(lambda: Socket(random_bytes), unix_socket)
            else:
                _, socket = await loop.create_connection(lambda: Socket(random_bytes), host, port, ssl=context)
            await socket.shake_hands(parts.netloc.rpartition("@")[2], target, sent)
    except BaseException as error:
        if socket is not None:
            socket.abort()
        if isinstance(error, (OSError, TimeoutError)):
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            place = unix_socket or f"{host}:{port}"
            raise CannotConnect(
                f"cannot reach the node at {place}: {reason}", remedy="is it running? `mainspring serve`"
            ) from error
        raise
    return socket
