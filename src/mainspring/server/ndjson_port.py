"""NDJSON over TCP: the lines of the kernel's socket for clients that cannot open a unix socket.

A unix socket belongs to its user; a port belongs to everybody who can reach it. So this one is only opened when it is
asked for (`kernel_tcp`), and four things are different here.

*Who is it?* Where the node has tokens, a connection begins with `Syscall.Authenticate {"token": "..."}`, or shows a
certificate. Until then every message is answered with 401, and after `header_timeout_ms` the connection is closed. A
wrong token ends it. The token goes no further than this module: what reaches the kernel is the command without it.

*What may it do?* Each message needs the scope that `POST /messages` asks for; an event needs that of a command of its
type. Those who answer look at the caller too, as they do over HTTP.

*Is it a browser?* Any page can make a browser send lines of its choice to a port of this machine, in the body of a
request. No message begins with a capital letter and every HTTP request does: such a connection gets one error and is
closed, and nothing of it is carried out.

*Is there room?* Connections are counted with those of the HTTP port and have the same limits.

TLS is that of the HTTP port. It has no half-close: a client reads its answers before it closes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import msgspec

from mainspring.bus import Bus, BusError, Caller
from mainspring.errors import BootError, SettingError
from mainspring.kernel import Kernel
from mainspring.message import NULL, Message, encode_data
from mainspring.server.connections import Connection, Connections
from mainspring.server.http import TokenAuthenticator, while_valid
from mainspring.server.ndjson import LineServer, NdjsonConnection
from mainspring.unix_socket import BACKLOG

UNAUTHORIZED: Final = "Sys.Unauthorized"
FORBIDDEN: Final = "Sys.Forbidden"
SCHEMA_ERROR: Final = "Sys.SchemaError"
TOO_MANY: Final = "Sys.TooManyConnections"
AUTHENTICATE: Final = "Syscall.Authenticate"
LOOPBACK: Final = "127.0.0.1"
_EMPTY: Final = encode_data({})
_FULL: Final = (
    b'{"kind":"error","type":"Sys.TooManyConnections","data":{"code":503,"message":"there is no room for another'
    b' connection","remedy":"try again later"},"metadata":{"id":"full","timestamp":0}}\n'
)
_HTTP: Final = "this port speaks lines of JSON, not HTTP"
_WANTED: Final = "this connection has shown no token"
_HOW: Final = 'send {"token": "..."} as the data of the command Syscall.Authenticate first'


class _Credentials(msgspec.Struct):
    token: str | None = None


_read_credentials = msgspec.json.Decoder(_Credentials).decode


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, or of a port alone, which is one of this machine. Raises SettingError."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise SettingError(
            f"kernel_tcp is {text!r}, not an address", remedy="write a port, HOST:PORT or [ADDRESS]:PORT; 0 is any port"
        )
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


class PortConnection(NdjsonConnection):
    """One client of the port."""

    def __init__(self, port: NdjsonPort) -> None:
        super().__init__(port.kernel, port.clients, port.on_left)
        self._port = port
        self._ingest = self._admit
        self._peer = ""
        self._has_begun = False
        self._held = ExitStack()  # what its quota counts, and the watch over its token
        self.caller: Caller | None = None  # None: it has shown no token yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        authenticator = self._port.authenticator
        if authenticator is None:
            caller: Caller | None = Caller(None, address=self._peer)
        else:
            caller = authenticator.find(None, transport, self._peer)
        if caller is not None:
            try:
                self._let_in(caller)
            except BusError:
                self._transport.write(_FULL)
                self.hang_up()

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            if b"A" <= data[:1] <= b"Z":
                self.reject(400, _HTTP)
                self.end()
                return
        super().data_received(data)

    def eof_received(self) -> bool:
        return super().eof_received() and not self._port.has_tls

    def connection_lost(self, error: Exception | None) -> None:
        self._held.close()
        super().connection_lost(error)

    def end(self) -> None:
        """Take nothing more; close when what is open is answered."""
        self._waiting.clear()
        self._ended = True
        self.progressed()

    def _admit(self, message: Message, _: Any) -> None:
        """Hand a valid message to the kernel, if the caller may send it."""
        if message.type == AUTHENTICATE and message.kind == "command":
            self._authenticate(message)
        elif self.caller is None:
            self._kernel.refuse(message, self, UNAUTHORIZED, 401, _WANTED, _HOW)
        else:
            try:
                if message.kind not in ("reply", "error"):
                    self._port.bus.access.check_message(self.caller, message.kind, message.type)
            except BusError as error:
                self._port.bus.audit.refused("right_refused", self.caller, message.type, error.message)
                self._kernel.refuse(message, self, FORBIDDEN, 403, error.message, error.remedy)
            else:
                self._kernel.ingest(message, self)

    def deliver(self, message: Message) -> bool:
        is_delivered = super().deliver(message)
        if is_delivered and self.caller is not None and message.type != FORBIDDEN:
            contract = self._kernel.contract(message.type)
            kind = "command" if contract is None else contract.kind
            error = None if message.kind == "reply" else message.data
            self._port.bus.audit.answered(self.caller, kind, message.type, error)
        return is_delivered

    def write(self, line: bytes) -> None:
        super().write(self._kernel.blobs.hide_folder(line))

    def _authenticate(self, message: Message) -> None:
        authenticator = self._port.authenticator
        try:
            token = None if message.raw == NULL else _read_credentials(message.raw).token
        except msgspec.DecodeError:
            text = "Schema validation failed: data: an object with the token as text"
            self._kernel.refuse(message, self, SCHEMA_ERROR, 422, text)
            return
        if token is not None and authenticator is not None:
            if self.caller is not None:
                text, remedy = "this connection has shown its token already", "open another connection"
                self._kernel.refuse(message, self, message.type, 409, text, remedy)
                return
            caller = authenticator.find(token, None, self._peer)
            if caller is None:
                text = "the token is not known here, or has expired"
                authenticator.note_refusal(AUTHENTICATE, text, self._peer)
                self._kernel.refuse(message, self, UNAUTHORIZED, 401, text, "`mainspring token new` makes one")
                self.end()
                return
            try:
                self._let_in(caller)
            except BusError as error:
                self._kernel.refuse(message, self, TOO_MANY, 429, error.message, error.remedy)
                self.end()
                return
        if self.caller is None:
            self._kernel.refuse(message, self, UNAUTHORIZED, 401, _WANTED, _HOW)
        else:
            self._kernel.ingest(Message(message.kind, message.type, _EMPTY, message.metadata), self)

    def _let_in(self, caller: Caller) -> None:
        """Serve this caller as long as its token is valid. Raises a BusError when it has too many connections."""
        quotas = self._port.bus.quotas
        quotas.assign(caller, self._peer)
        self._held.enter_context(caller.quota.holding("connections"))
        self.caller = caller
        self._port.counted.speaks_lines(self._transport)
        if caller.revoked is not None:
            watch = asyncio.get_running_loop().create_task(self._while_valid(caller))
            self._held.callback(watch.cancel)

    async def _while_valid(self, caller: Caller) -> None:
        async with while_valid(caller, self._kernel.clock, self._expire):
            await asyncio.Event().wait()

    async def _expire(self) -> None:
        self.abort()


class NdjsonPort(LineServer):
    """NDJSON over TCP. Without an `authenticator` everybody who connects may do everything."""

    def __init__(
        self,
        kernel: Kernel,
        bus: Bus,
        place: tuple[str, int],
        counted: Connections,
        *,
        authenticator: TokenAuthenticator | None = None,
        tls: ssl.SSLContext | None = None,
        grace_ms: float = 2_000,
    ) -> None:
        """`counted` are the connections of the node's ports, these too."""
        super().__init__(kernel, grace_ms=grace_ms)
        self.kernel = kernel
        self.bus = bus
        self.counted = counted
        self.authenticator = authenticator
        self.has_tls: bool = tls is not None
        self.clients: set[NdjsonConnection] = self._connections
        self.on_left: Callable[[], None] = self._left
        self._place = place
        self._tls = tls

    @property
    def address(self) -> str:
        """As the boot summary shows it."""
        host, port = self._place
        return f"{'tls' if self.has_tls else 'tcp'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(self) -> None:
        """Listen. Raises `BootError` when the address cannot be used."""
        host, port = self._place
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connect, host, port, ssl=self._tls, backlog=BACKLOG)
        except OSError as error:
            why = (error.strerror or str(error)).rpartition(": ")[2]
            raise BootError(
                f"cannot listen on {host}:{port}: {why}",
                remedy="stop what uses the port, or choose another with --kernel-tcp",
            ) from error
        self._place = host, self._server.sockets[0].getsockname()[1]

    def _connect(self) -> Any:
        self.accepted += 1
        return Connection(self.counted, PortConnection(self), _FULL)
