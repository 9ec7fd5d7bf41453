"""Staying connected: one link at a time, and a new one whenever it breaks.

`nats-py` can reconnect by itself, but then it also keeps what was not sent yet and sends it later, when whoever asked
may have given up; and it waits for a dead server's socket to close. Here the next link starts clean. Servers are tried
in turn, for ever: those of the address and those the cluster told of.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from mainspring.errors import SettingError
from mainspring.log.contract import FormatError, LogUnavailable
from mainspring.log.engines.nats.address import Address
from mainspring.log.engines.nats.link import Link, ended
from mainspring.log.engines.nats.login import CONNECT_SECONDS, client_options

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
OLDEST_SERVER: Final = (2, 10)

_logger = logging.getLogger(__name__)


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
        options = client_options(self._address)
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
                    f"no NATS server answers, of {', '.join(self._address.servers)}; the last said {self.trouble}"
                    if len(self._address.servers) > 1
                    else f"no NATS server answers at {self.trouble}",
                    remedy="start the server, or check the address; the node can wait with --wait-for-engine SECONDS",
                )
            if self._turn == len(self._servers):  # each was asked once: whoever watches should know what we wait for
                _logger.warning("no NATS server answers yet, trying on: %s", self.trouble)
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
