"""Staying connected: one link at a time, and a new one whenever it breaks.

A **link** is one TCP connection. `nats-py` can reconnect by itself, but then it also keeps what was not sent yet and
sends it later, when whoever asked may have given up; and it waits for a dead server's socket to close. Here a link that
breaks stays broken, everything that waits on it hears so at once, and the next one starts clean. Nothing is ever sent
behind anybody's back.

Servers are tried in turn, for ever: those of the address and those the cluster told of.

(`asyncio.timeout` and never `asyncio.wait_for`: in Python 3.11 the latter can swallow a cancellation that comes in the
same moment as the result.)
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from mainspring.errors import MissingExtra, SettingError
from mainspring.log.contract import FormatError, LogUnavailable
from mainspring.log.jetstream.address import Address

CONNECT_SECONDS: Final = 2.0
PING_SECONDS: Final = 2  # a server that does not answer two pings (a stopped one, a cut cable) is left for another
API_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.25
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
OLDEST_SERVER: Final = (2, 10)

_logger = logging.getLogger(__name__)


class LinkLost(Exception):
    """The link broke before the answer came: whether the server did what was asked is unknown."""


class ApiError(Exception):
    """JetStream said no. `code` is its own, more exact number (10059: no such stream)."""

    def __init__(self, status: int, code: int, description: str) -> None:
        super().__init__(f"{description} ({code or status})")
        self.status = status
        self.code = code


NO_STREAM: Final = 10059
NO_RESPONDERS: Final = 503
FORBIDDEN: Final = 403


class Link:
    """One connection to one server, from its making to its end."""

    def __init__(self, client: Client, lost: asyncio.Event) -> None:
        self.client = client
        self.lost = lost
        self._inbox = client.new_inbox()
        self._waiting: dict[str, tuple[str, asyncio.Future[Msg]]] = {}  # who asked what, by the answer's subject
        self._asked = 0

    async def start(self) -> None:
        await self.client.subscribe(f"{self._inbox}.*", cb=self._answered)

    async def _answered(self, message: Msg) -> None:
        _, answer = self._waiting.pop(message.subject.rpartition(".")[2], ("", None))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def complained(self, error: Exception) -> None:
        """The server said something that is no answer. If it forbids what somebody asked for, they need not wait."""
        text = str(error)
        _logger.warning("the NATS server says: %s", text)
        for subject, answer in list(self._waiting.values()):
            if subject.lower() in text.lower() and not answer.done():
                answer.set_exception(ApiError(FORBIDDEN, 0, text))

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
        try:
            await self.client.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
            async with asyncio.timeout(seconds):
                message = await answer
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            self.end()
            raise LinkLost from error
        finally:
            self._waiting.pop(token, None)
        if message.headers and message.headers.get("Status") == str(NO_RESPONDERS):
            raise ApiError(NO_RESPONDERS, NO_RESPONDERS, "nobody answers: JetStream is off, or has no leader now")
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
        """Returns when the link is lost. The client tells only once a broken socket is closed, which takes long with
        TLS; so its state is looked at, too."""
        while not self.lost.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.lost.wait()
            if not self.client.is_connected:
                self.end()

    def end(self) -> None:
        """Whoever waits on it hears that it is lost."""
        self.lost.set()
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkLost())
                answer.exception()  # whoever asked may have stopped waiting; then nobody looks at it
        self._waiting.clear()


class Connection:
    """Keeps a link to any of the servers until it is closed."""

    def __init__(self, address: Address, client_name: str) -> None:
        self._address = address
        self._client_name = client_name
        self._servers = list(address.servers)
        self._link: Link | None = None
        self._there = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._turn = 0
        self.reconnects: int = 0
        self.trouble: str = "not tried yet"  # why there is no link, in a few words

    async def open(self, seconds: float) -> None:
        """Returns with a link. Raises `SettingError` when the servers refuse us, `LogUnavailable` when none answers."""
        options = _options(self._address)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        pause = FIRST_PAUSE
        while True:
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
            if loop.time() + pause > deadline:
                raise LogUnavailable(
                    f"no NATS server answers at {', '.join(self._address.servers)}: {self.trouble}",
                    remedy="start the server, or check the address; the node can wait with --wait-for-engine SECONDS",
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        self._keeper = loop.create_task(self._keep(options))

    async def close(self) -> None:
        if self._keeper is not None:
            await ended(self._keeper)
            self._keeper = None
        if self._link is not None:
            self._leave(self._link)
            self._link = None
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)

    @property
    def link(self) -> Link | None:
        """The link, if there is one now."""
        return self._link if self._link is not None and not self._link.lost.is_set() else None

    @property
    def servers(self) -> list[str]:
        """All that are known, host:port."""
        return list(self._servers)

    async def linked(self) -> Link:
        """The link, as soon as there is one."""
        while (link := self.link) is None:
            self._there.clear()
            await self._there.wait()
        return link

    # -- making links

    async def _keep(self, options: dict[str, Any]) -> None:
        pause = FIRST_PAUSE
        while True:
            if self._link is not None:
                await self._link.broken()
                _logger.warning("the connection to the NATS server is lost; trying to connect again")
                self._leave(self._link)
                self._link = None
            try:
                self._adopt(await self._connect(options))
                self.reconnects += 1
                pause = FIRST_PAUSE
                _logger.warning("connected to a NATS server again")
            except Exception:  # whatever it is (half an answer, a version too old), the next server may do better
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE) if self._turn % len(self._servers) == 0 else pause

    def _adopt(self, link: Link) -> None:
        self._link = link
        for url in link.client.discovered_servers:
            server = url.netloc.rpartition("@")[2]
            if server not in self._servers:
                self._servers.append(server)
        self._there.set()

    async def _connect(self, options: dict[str, Any]) -> Link:
        server = self._servers[self._turn % len(self._servers)]
        self._turn += 1
        client = Client()
        lost = asyncio.Event()
        reasons: list[Exception] = []

        async def on_error(error: Exception) -> None:
            reasons.append(error)
            if client.is_connected:
                link.complained(error)

        async def on_closed() -> None:
            link.end()

        link = Link(client, lost)
        scheme = "tls" if self._address.tls else "nats"
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

    def _leave(self, link: Link) -> None:
        """Close in the background: a dead server must not hold up the way to the next one."""
        link.end()

        async def goodbye() -> None:
            with suppress(Exception):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await link.client.close()

        task = asyncio.get_running_loop().create_task(goodbye())
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    def _where(self) -> str:
        return self._servers[(self._turn - 1) % len(self._servers)]


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel until it is done: what the task awaits in `nats-py` may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=LOOK_SECONDS)


def _options(address: Address) -> dict[str, Any]:
    options: dict[str, Any] = {
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": CONNECT_SECONDS,
        "ping_interval": PING_SECONDS,
        "max_outstanding_pings": 2,
        "user": address.user,
        "password": address.password,
        "token": address.token,
    }
    if address.creds or address.nkey:
        if find_spec("nkeys") is None:  # nats-py signs with it
            raise MissingExtra(
                "signing in with creds or nkey needs the package nkeys", remedy="pip install 'mainspring[nats]'"
            )
        for file in filter(None, (address.creds, address.nkey)):
            _readable(file)
        options["user_credentials"] = address.creds
        options["nkeys_seed"] = address.nkey
    if address.tls:
        options["tls"] = _tls(address)
    return options


def _readable(file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise SettingError(
            f"a file of the engine's address cannot be read: {error}", remedy="check creds and nkey"
        ) from error


def _tls(address: Address) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.tls_ca)
        if address.tls_cert:
            context.load_cert_chain(address.tls_cert, address.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            f"a TLS file of the engine's address cannot be read: {error}", remedy="check tls_ca, tls_cert and tls_key"
        ) from error
    return context
