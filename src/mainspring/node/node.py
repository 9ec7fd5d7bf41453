"""A node: the parts of one process with their sockets, booted in seven phases and stopped in three steps.

Boot is a straight line: LOAD the program and open the log, DISCOVER what the program handles, BUILD the indexes, SPAWN
the actors, ATTACH their listeners, ADAPT (open the sockets), READY. Everything that is acquired says at once how to
give it back, so a failure in any phase undoes exactly what was done, in reverse, and leaves no socket behind. Nothing
accepts input before ADAPT, so nothing has to be taken back from a client.

Stopping is bounded: stop intake, finish what was accepted, give back what is held. Each step has `drain_ms`.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import shutil
import ssl
import tempfile
from collections.abc import Callable, Collection, Iterable
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from mainspring.app import App
from mainspring.bus import Checker
from mainspring.errors import BootError
from mainspring.import_path import find_object
from mainspring.node.core import Core
from mainspring.server import (
    Connections,
    GuardedRunner,
    LostLeases,
    NdjsonPort,
    NdjsonServer,
    NodeParts,
    add_websocket,
    listen_address,
)
from mainspring.server.http import (
    Dashboard,
    Face,
    HttpRunner,
    Identify,
    TokenAuthenticator,
    add_client_js,
    add_pages,
    add_routes,
    claimed_agent,
    outside_middleware,
    trusting_own_user,
)
from mainspring.settings import Settings
from mainspring.unix_socket import identity_of, listen_at, place_to_listen, private_place, remove_socket

if TYPE_CHECKING:
    from mainspring.guests.socket import LoopSocketServer

logger: logging.Logger = logging.getLogger("mainspring.node")

CLOCK_LOOK_S: Final = 5.0  # between two looks at the time of day: so late a schedule may be after the clock was set
CLOCK_JUMP_MS: Final = 1_000  # less is the slewing and jitter of ordinary clocks
WANTED: Final = "node.wanted"  # the file by which another process asks to be served
HEARTBEAT_MS: Final = 15_000  # proxies commonly give up on a silent connection after 30 to 60 seconds
LINGER_S: Final = 2.0  # what still comes of a body that was refused is read for so long, so that the answer is seen
JOINING_LOOK_S: Final = 0.2  # between two looks whether another process of the program wants to be served
SOCKETS: Final = frozenset({"port", "kernel", "loop"})
TOKENS_LOOK_S: Final = 1.0  # between two looks at the file with the tokens: so long may one that was taken away go on


class Node(Core):
    """Owns the parts of one process and its sockets: `boot` it, then `drain` it. A node is used once.

    `program` is an App, or `MODULE:APP` text that says where one is. `checker` is asked who may use a topic, in place
    of the App's own. `sockets` are those it opens at once.

    One more it opens when it is wanted: `node.sock` beside the data serves the other processes of the program. Only its
    user can open that, so who comes through it is not asked for a token. They say that they want it by making the file
    `node.wanted`.
    """

    def __init__(
        self,
        settings: Settings,
        program: App | str | None = None,
        *,
        checker: Checker | None = None,
        sockets: Collection[str] = SOCKETS,
    ) -> None:
        super().__init__(settings, checker=checker, program=program if isinstance(program, str) else "")
        self._program = program
        self._sockets = sockets
        self._sites: list[web.BaseSite] = []
        self._web: asyncio.Task[web.AppRunner] | None = None
        self._private: asyncio.Task[Path] | None = None
        self.ndjson: NdjsonServer | None = None
        self.ndjson_port: NdjsonPort | None = None
        self.guests: LoopSocketServer | None = None

    async def _prepare(self) -> None:
        await super()._prepare()
        hosts = [self.settings.host]
        if self.settings.kernel_tcp:
            hosts.append(listen_address(self.settings.kernel_tcp)[0])
        _refuse_open_doors(self.settings, hosts, has_tokens=self.tokens.is_required)
        if self.tokens.is_required and not self.tokens.book:
            logger.warning("tokens are needed here and there is none: nobody can connect until tokens_file has a line")
        self.app: App | None = load_program(self._program)

    async def _stop_intake(self) -> None:
        stopping = [site.stop() for site in self._sites]
        stopping += [each.quiesce() for each in (self.ndjson, self.ndjson_port) if each is not None]
        await asyncio.gather(*stopping)

    async def _adapt(self) -> list[str]:
        """Open the sockets; gives their addresses."""
        settings, addresses = self.settings, list[str]()
        if "kernel" in self._sockets:
            self.ndjson = NdjsonServer(
                self.kernel, place_to_listen(settings.kernel_socket, settings.data, "kernel.sock")
            )
            await self._undo_later(self.ndjson.start, self.ndjson.stop)
            addresses.append(self.ndjson.address)
        if settings.kernel_tcp:
            addresses.append(await self._listen_for_lines())
        if "loop" in self._sockets:
            from mainspring.guests.socket import LoopSocketServer  # optional parts are imported when they are used

            self.guests = LoopSocketServer(
                place_to_listen(settings.loop_socket, settings.data, "loop.sock"), clock=self.clock
            )
            await self._undo_later(self.guests.start, self.guests.stop)
            addresses.append(f"unix:{self.guests.path}")
        self._in_background(self._watch_clock())
        if self.tokens.is_watched:
            self._in_background(self._watch_tokens())
        if "port" in self._sockets:
            addresses.append(await self._listen())
        if settings.engine != "memory":
            if "port" in self._sockets:  # commands in this folder find the node by it
                await self.private_socket()
            else:
                self._in_background(self._watch_for_joining())
        return addresses

    async def _runner(self) -> web.AppRunner:
        """WebSocket and HTTP, for whichever socket needs them first."""
        if self._web is None:
            self._web = asyncio.create_task(self._new_runner())
        return await self._web

    async def _new_runner(self) -> web.AppRunner:
        sockets: dict[str, Any] = {"ndjson": self.ndjson, "ndjson_port": self.ndjson_port, "guests": self.guests}
        runner = web_runner(self, self._new_id, connections=self._connections, private=True, **sockets)
        await self._undo_later(runner.setup, runner.cleanup)
        return runner

    @functools.cached_property
    def _connections(self) -> Connections:
        """Those of the ports."""
        connections = Connections(self.settings)
        self._in_background(connections.watch())
        return connections

    async def _listen_for_lines(self) -> str:
        """NDJSON over TCP."""
        needs_token = self.tokens.is_required
        self.ndjson_port = port = NdjsonPort(
            self.kernel,
            self.bus,
            listen_address(self.settings.kernel_tcp),
            self._connections,
            authenticator=_authenticator(self, self._new_id) if needs_token else None,
            tls=_tls(self.settings),
        )
        await self._undo_later(port.start, port.stop)
        return port.address

    async def _listen(self) -> str:
        """WebSocket and HTTP on one port."""
        settings, runner, tls = self.settings, await self._runner(), _tls(self.settings)
        site = web.TCPSite(runner, settings.host, settings.port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            why = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio puts the address before it once more
            raise BootError(
                f"cannot listen on {settings.host}:{settings.port}: {why}",
                remedy="stop what uses the port, or choose another with --port",
            ) from error
        self._sites.append(site)
        host, port = runner.addresses[0][:2]
        return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _watch_for_joining(self) -> None:
        """Serve the other processes of the program once one of them wants it."""
        wanted = Path(self.settings.data, WANTED)
        while not wanted.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(JOINING_LOOK_S)
        self._undo.callback(wanted.unlink, missing_ok=True)
        try:
            await self.private_socket()
        except Exception:
            logger.exception("the other processes of the program cannot be served")

    async def private_socket(self) -> Path:
        """Where the node serves its own program. It is opened when it is first wanted."""
        if self._private is None:
            self._private = asyncio.create_task(self._listen_privately())
        return await asyncio.shield(self._private)

    async def _listen_privately(self) -> Path:
        place = private_place(self.settings.data)
        if self.settings.engine == "memory":  # then there is no data directory
            place = Path(tempfile.mkdtemp(prefix="mainspring-"), place.name)
            self._undo.callback(shutil.rmtree, place.parent, ignore_errors=True)
        listener = listen_at(place)
        self._undo.callback(remove_socket, place, identity_of(place))
        site = web.SockSite(await self._runner(), listener)
        await site.start()
        self._sites.append(site)
        return place

    async def _watch_clock(self) -> None:
        """Timers go by a clock that only passes; a time of day that jumps has to be noticed by looking."""
        ahead = self.clock.wall_ms() - self.clock.now_ms()
        while True:
            await asyncio.sleep(CLOCK_LOOK_S)
            before, ahead = ahead, self.clock.wall_ms() - self.clock.now_ms()
            if abs(ahead - before) > CLOCK_JUMP_MS:
                logger.warning("the time of day jumped by %d ms", ahead - before)
                self.bus.schedules.clock_moved()

    async def _watch_tokens(self) -> None:
        while True:
            await asyncio.sleep(TOKENS_LOOK_S)
            self.tokens.refresh()


class _NodeRunner(GuardedRunner, HttpRunner):
    """Its connections are counted, and answered also when their senders half-close."""


def web_runner(
    core: Core,
    new_id: Callable[[], str],
    *,
    connections: Connections,
    heartbeat_ms: int = HEARTBEAT_MS,
    private: bool = False,
    **sockets: Any,
) -> web.AppRunner:
    """WebSocket, HTTP, dashboard and pages of a node that has booted; who runs it says where it listens.

    Who asks is what the token says, where tokens are needed; `private`: but not on a unix socket. `sockets` are the
    node's others, for the metrics.
    """
    settings, app = core.settings, web.Application()
    lost_leases = LostLeases()
    lost_leases.watch(core.cluster)
    parts = NodeParts(
        core.bus,
        log=core.log,
        loop=core.loop,
        watchdog=core.watchdog,
        kernel=core.kernel,
        runtime=core.runtime,
        heartbeat=core.heartbeat,
        cluster=core.cluster,
        durability=lambda: core.durability.found,
        draining=lambda: core.draining,
        lost_leases=lost_leases,
        attention=core.attention,
        history=core.history,
        connections=connections,
        **sockets,
    )
    needs_token = core.tokens.is_required
    identify: Identify = _authenticator(core, new_id).identify if needs_token else claimed_agent
    if private:
        identify = trusting_own_user(identify)
        app.middlewares.append(outside_middleware(needs_token=needs_token))
    add_routes(
        app,
        Face(parts, identify, heartbeat_ms=heartbeat_ms, body_timeout_ms=settings.body_timeout_ms),
        allowed_origins=settings.allowed_origins,
        check_host=not needs_token,
    )
    dashboard = Dashboard()
    dashboard.add_to(app)
    add_client_js(app)
    add_websocket(app, core.bus, settings, identify, dashboard.page, connections)
    app.middlewares.insert(0, connections.middleware())
    for pages in core.app.folders if core.app else ():
        add_pages(app, pages.path, pages.folder, pages.policy)
    return _NodeRunner(
        app,
        connections,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=settings.drain_ms / 1000,
        keepalive_timeout=connections.keep_alive_s,
        lingering_time=LINGER_S,
        auto_decompress=False,  # a body is unpacked when somebody reads it, and not beyond its limit
    )


def _authenticator(core: Core, new_id: Callable[[], str]) -> TokenAuthenticator:
    return TokenAuthenticator(core.tokens, core.clock, new_id, core.bus.audit)


def load_program(program: App | str | None) -> App | None:
    """The App that `MODULE:APP` names."""
    if program is None or isinstance(program, App):
        return program
    found = find_object(program)
    if not isinstance(found, App):
        kind = type(found).__name__
        raise BootError(f"{program} is a {kind}, not an App", remedy="name the variable that holds the App")
    return found


def _refuse_open_doors(settings: Settings, hosts: Iterable[str], *, has_tokens: bool) -> None:
    """Without tokens everybody who can connect may do everything, so only this machine may connect."""
    for host in filterfalse(_is_loopback, dict.fromkeys(hosts)):
        if not has_tokens:
            raise BootError(
                f"listening on {host} without tokens would let everybody in",
                remedy="make one with `mainspring token new --agent NAME --scope admin` and put its line into "
                "MAINSPRING_TOKENS or `tokens` in mainspring.toml; or listen on 127.0.0.1",
                code="open_door",
            )
        if not settings.tls_cert:
            logger.warning("listening on %s without TLS: whoever sees the traffic sees the tokens; set tls_cert", host)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: where it leads can change


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert and not settings.tls_key:
        if settings.tls_client_ca:
            raise BootError("certificates of clients need TLS", remedy="set tls_cert and tls_key, too")
        return None
    if not (settings.tls_cert and settings.tls_key):
        raise BootError("TLS needs a certificate and its key", remedy="set both tls_cert and tls_key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # an SSLError is one too
        raise BootError(
            f"the certificate or its key cannot be used: {error.strerror or type(error).__name__}",
            remedy="tls_cert and tls_key name PEM files that belong together and that the node may read",
        ) from None
    if settings.tls_client_ca:
        context.verify_mode = ssl.CERT_OPTIONAL  # who shows none needs a token
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise BootError(
                f"the authorities of clients cannot be used: {error.strerror or type(error).__name__}",
                remedy="tls_client_ca names a PEM file that the node may read",
            ) from None
    return context
