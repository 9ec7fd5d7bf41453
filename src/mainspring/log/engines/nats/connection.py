"""Staying connected: one link at a time, and a new one whenever it breaks.

A **link** is one connection to one server. A link that breaks stays broken. Every caller that waits on it learns so at
once, and nothing is ever sent again behind a caller's back: the caller knows what it asked for, and decides.

`nats-py` can reconnect by itself, but then it also keeps what was not sent yet and sends it later, when the caller may
have given up; and it waits for a dead server's socket to close. Here the next link starts clean. Servers are tried in
turn, for ever: those of the address and those the cluster reported.

(`asyncio.timeout` and never `asyncio.wait_for`: in Python 3.11 the latter can swallow a cancellation that comes in the
same moment as the result.)
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from mainspring.errors import SettingError
from mainspring.log.contract import FormatError, LogUnavailable
from mainspring.log.engines.nats.address import CONNECT_SECONDS, NatsAddress, client_options
from mainspring.loop import BackgroundTasks, reject, resolve, time_limit
from mainspring.retries import Backoff

OLDEST_SERVER: Final = (2, 10)
_AGAIN: Final = Backoff(first_ms=100, longest_ms=2_000)
API_SECONDS: Final = 5.0
ASK_SECONDS: Final = 1.5  # while there is no leader no answer comes; ask again soon, one may have been elected
LOOK_SECONDS: Final = 1.0
CANCEL_SECONDS: Final = 0.25  # what a task awaits in `nats-py` may swallow a cancellation: cancel again after this long

NO_STREAM: Final = 10059
NO_RESPONDERS: Final = 503
FORBIDDEN: Final = 403

_logger = logging.getLogger(__name__)


class LinkLost(Exception):
    """The link broke before the answer came: whether the server did what was asked is unknown."""


class ApiError(Exception):
    """JetStream said no. `code` is its own, more exact number (10059: no such stream)."""

    def __init__(self, status: int, code: int, description: str) -> None:
        super().__init__(f"{description} ({code or status})")
        self.status = status
        self.code = code


class ServerLink:
    """One connection to one server, from the moment it is made until it breaks."""

    def __init__(self, client: DirectClient) -> None:
        self.client = client
        self.lost: asyncio.Event = asyncio.Event()
        self.checked: asyncio.Event = asyncio.Event()  # while it is known that the stream is the one we have seen
        self.stored = 0  # the last message that was stored for us over this link
        self._inbox = client.new_inbox()
        self._waiting: dict[str, tuple[str, asyncio.Future[Msg]]] = {}  # who asked what, by the answer's subject
        self._asked = 0

    async def start(self) -> None:
        await self.client.subscribe(f"{self._inbox}.*", cb=self._answered)

    async def _answered(self, message: Msg) -> None:
        _, answer = self._waiting.pop(message.subject.rpartition(".")[2], ("", None))
        if answer is not None:
            resolve(answer, message)

    def server_error(self, error: Exception) -> None:
        """The server sent an error that answers no request. A request for what it forbids need not wait any longer."""
        text = str(error)
        if "permissions violation" not in text.lower():
            return
        _logger.warning("the NATS server forbids something: %s", text)
        for subject, answer in list(self._waiting.values()):
            if subject.lower() in text.lower():
                reject(answer, ApiError(FORBIDDEN, 0, text))

    async def ask(
        self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None, seconds: float = API_SECONDS
    ) -> Any:
        """The answer, from JSON. Raises `ApiError`, `LinkLost`, or `TimeoutError`."""
        if self.lost.is_set():
            raise LinkLost
        self._asked += 1
        token = str(self._asked)
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[token] = (subject, answer)
        self.client.read_on()
        try:
            await self.client.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
            async with time_limit(seconds):
                message = await answer
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            self.end()
            raise LinkLost from error
        finally:
            self._waiting.pop(token, None)
        if message.headers and message.headers.get("Status") == str(NO_RESPONDERS):
            raise ApiError(NO_RESPONDERS, NO_RESPONDERS, "no answer: JetStream is off, or has no leader now")
        reply = msgspec.json.decode(message.data)
        if isinstance(reply, dict) and "error" in reply:
            refusal = reply["error"]
            raise ApiError(refusal.get("code", 0), refusal.get("err_code", 0), refusal.get("description", "refused"))
        return reply

    async def api(self, verb: str, body: object = None, *, seconds: float = API_SECONDS) -> Any:
        """One request of the JetStream API."""
        payload = b"" if body is None else msgspec.json.encode(body)
        return await self.ask(f"$JS.API.{verb}", payload, seconds=seconds)

    async def broken(self) -> None:
        """Returns when the link is lost.

        The client reports it only once a broken socket is closed, which takes long with TLS; so its state is looked at,
        too.
        """
        while not self.lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.lost.wait()
            if not self.client.is_connected:
                self.end()

    def end(self) -> None:
        """All callers that wait on it get `LinkLost`."""
        self.lost.set()
        self.checked.set()  # who waits for that looks for another link
        for _, answer in self._waiting.values():
            reject(answer, LinkLost(), may_go_unseen=True)
        self._waiting.clear()


Receive = Callable[[str, bytes], object]  # gets a message's reply subject and its data


class DirectClient(Client):
    """Hands the messages of one consumer over as they are read.

    `nats-py` parses the headers of each message, puts it into a queue and wakes a task for it, which costs as much as
    applying it. Every node reads every message of the log, and nothing in their headers matters to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._consumer: bytes = b""
        self._receive: Receive = lambda _reply, _data: None
        self._resting: asyncio.TimerHandle | None = None

    def receive_from(self, stream: str, consumer: str, receive: Receive) -> None:
        """From now on, `receive` gets the messages of this consumer; their subscription gets only what is none."""
        self._consumer, self._receive = f".{stream}.{consumer}.".encode(), receive

    def rest(self, seconds: float) -> None:
        """Read nothing for a moment, so that what comes meanwhile is read together; `read_on` ends it."""
        if self._resting is None and (transport := self._read_transport()) is not None:
            transport.pause_reading()
            self._resting = asyncio.get_running_loop().call_later(seconds, self.read_on)

    def read_on(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
            if (transport := self._read_transport()) is not None:
                transport.resume_reading()

    def _read_transport(self) -> asyncio.ReadTransport | None:
        # private names: nats-py offers no way to its transport
        writer = getattr(self._transport, "_io_writer", None)
        transport = None if writer is None else writer.transport
        return None if transport is None or transport.is_closing() else transport

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if self._consumer and reply.startswith(b"$JS.ACK.") and self._consumer in reply:
            try:
                self._receive(reply.decode(), data)
            except Exception as error:  # it must not end the reading of the connection
                await self._error_cb(error)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)


class _TlsClient(DirectClient):
    """Says nothing to a server before the connection is encrypted.

    `nats-py` encrypts only when the server asks for it, so a server that does not, or somebody in between, would be
    told the password.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise SettingError(
                    "the NATS server does not offer TLS, and the engine's address asks for it; nothing was sent",
                    remedy="set up TLS on the server, or find out who answers at this address",
                )
            info["tls_required"] = True
        await super()._process_info(info, initial_connection=initial_connection)


class NatsConnection:
    """Keeps a link to any of the servers until it is closed."""

    def __init__(self, address: NatsAddress, client_name: str) -> None:
        self.address = address
        self._client_name = client_name
        self.servers: list[str] = list(address.servers)  # all that are known, host:port
        self._link: ServerLink | None = None
        self._there = asyncio.Event()
        self._keeping = BackgroundTasks(_logger, "the connection to NATS")
        self._closing = BackgroundTasks(_logger, "the connection to NATS")
        self._turn = 0
        self.reconnects: int = 0
        self.trouble: str = "not tried yet"  # why there is no link, in a few words

    async def open(self, seconds: float) -> None:
        """Returns with a link. Raises `SettingError` when the servers refuse us, `LogUnavailable` when none answers."""
        options = client_options(self.address)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        for attempt in count(1):
            try:
                self._adopt(await self._connect(options))
                break
            except nats.errors.Error as error:
                if isinstance(error, nats.errors.AuthorizationError) or "uthoriz" in str(error):
                    raise SettingError(
                        f"the NATS server at {self._where()} does not let us in: {error}",
                        remedy="check user and password, token, creds or nkey in the engine's address",
                    ) from error
            except (OSError, TimeoutError) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise SettingError(
                        f"the NATS server at {self._where()} is not who it should be: {error}",
                        remedy="name the authority that signed its certificate with tls_ca=FILE",
                    ) from error
            pause = _AGAIN.delay_ms(attempt) / 1000
            if loop.time() + pause > deadline:
                raise LogUnavailable(
                    f"no NATS server answers, of {', '.join(self.address.servers)}; the last said {self.trouble}"
                    if len(self.address.servers) > 1
                    else f"no NATS server answers at {self.trouble}",
                    remedy="start the server, or check the address; the node can wait with --wait-for-engine SECONDS",
                )
            if self._turn == len(self.servers):  # each was asked once: an operator should know what we wait for
                _logger.warning("no NATS server answers yet, trying on: %s", self.trouble)
            await asyncio.sleep(pause)
        self._keeping.start(self._keep(options), "reconnect")

    async def close(self) -> None:
        await self._keeping.cancel(repeat_s=CANCEL_SECONDS)
        if self._link is not None:
            self._leave(self._link)
            self._link = None
        await self._closing.wait()

    @property
    def link(self) -> ServerLink | None:
        """The link, if there is one now."""
        return self._link if self._link is not None and not self._link.lost.is_set() else None

    async def linked(self) -> ServerLink:
        """The link, as soon as there is one."""
        while (link := self.link) is None:
            self._there.clear()
            await self._there.wait()
        return link

    async def checked(self) -> ServerLink:
        """The link, as soon as it is known that the stream behind it is the one we have seen: write on no other."""
        while True:
            link = await self.linked()
            await link.checked.wait()
            if link is self.link:
                return link

    # -- making links

    async def _keep(self, options: dict[str, Any]) -> None:
        failed_rounds = 0
        while True:
            if self._link is not None:
                await self._link.broken()
                _logger.warning("the connection to the NATS server is lost; trying to connect again")
                self._leave(self._link)
                self._link = None
            try:
                self._adopt(await self._connect(options))
                self.reconnects += 1
                failed_rounds = 0
                _logger.warning("connected to a NATS server again")
            except Exception:  # whatever it is (half an answer, a version too old), the next server may do better
                await asyncio.sleep(_AGAIN.delay_ms(failed_rounds + 1) / 1000)
                failed_rounds += self._turn % len(self.servers) == 0

    def _adopt(self, link: ServerLink) -> None:
        self._link = link
        for url in link.client.discovered_servers:
            server = url.netloc.rpartition("@")[2]
            if server not in self.servers:
                self.servers.append(server)
        self._there.set()

    async def _connect(self, options: dict[str, Any]) -> ServerLink:
        server = self.servers[self._turn % len(self.servers)]
        self._turn += 1
        client = _TlsClient() if self.address.tls else DirectClient()
        reasons: list[Exception] = []

        async def on_error(error: Exception) -> None:
            reasons.append(error)
            if client.is_connected:
                link.server_error(error)

        async def on_closed() -> None:
            link.end()

        link = ServerLink(client)
        scheme = "tls" if self.address.tls else "nats"
        try:
            async with asyncio.timeout(2 * CONNECT_SECONDS + 1):
                await client.connect(
                    servers=[f"{scheme}://{server}"],
                    error_cb=on_error,
                    closed_cb=on_closed,
                    disconnected_cb=on_closed,
                    name=self._client_name,
                    **options,
                )
            version = client.connected_server_version
            if (version.major, version.minor) < OLDEST_SERVER:
                raise FormatError(
                    f"the NATS server at {server} has version {version}", remedy="use a server of version 2.10 or later"
                )
            await link.start()
        except BaseException as error:
            self._leave(link)
            reason = reasons[-1] if reasons and isinstance(error, nats.errors.NoServersError) else error
            self.trouble = f"{server}: {reason or type(reason).__name__}"
            if isinstance(reason, Exception) and reason is not error:
                raise reason from error
            raise
        return link

    def _leave(self, link: ServerLink) -> None:
        """Close in the background: a dead server must not hold up the way to the next one."""
        link.end()

        async def close() -> None:
            with suppress(Exception):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await link.client.close()

        self._closing.start(close(), "close")

    def _where(self) -> str:
        return self.servers[(self._turn - 1) % len(self.servers)]
