"""A node: one process's loop, log and parts, booted in seven phases and stopped in three steps.

Boot is a straight line: LOAD the program and open the log, DISCOVER what the program handles, BUILD the indexes, SPAWN
the actors, ATTACH their listeners, ADAPT (open the sockets), READY. Everything that is acquired says at once how to
give it back, so a failure in any phase undoes exactly what was done, in reverse, and leaves no socket behind. Nothing
accepts input before ADAPT, so nothing has to be taken back from a client.

Stopping is bounded: stop intake, finish what was accepted, give back what is held. Each step has `drain_ms`.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import logging
import os
import random
import ssl
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uuid_utils
from aiohttp import web

from mainspring.app import App
from mainspring.beats import Driver, Heartbeat, TopicInlet
from mainspring.bus import Bus, Checker
from mainspring.bus.tokens import TokenBook, read_tokens
from mainspring.capabilities import kernel_capabilities
from mainspring.capabilities.beat import beat
from mainspring.capabilities.run import BusPort, KernelPort, run
from mainspring.errors import BootError, MainspringError
from mainspring.kernel import Kernel, RestartPolicy
from mainspring.log import Log, open_engine
from mainspring.loop import Clock, Loop, MonotonicClock, SlowTurn
from mainspring.message import Message, encode_data
from mainspring.runs import Runtime
from mainspring.settings import Settings
from mainspring.wire.client_js import add_client_js
from mainspring.wire.dashboard import Dashboard
from mainspring.wire.http import add_routes
from mainspring.wire.http_access import Identify, claimed_agent
from mainspring.wire.http_face import SLOW_TURNS, SlowTurnSeen
from mainspring.wire.http_tokens import TokenDoor
from mainspring.wire.loop_socket import LoopSocketServer
from mainspring.wire.ndjson import NdjsonServer
from mainspring.wire.websocket import add_websocket

logger = logging.getLogger("mainspring.node")


class BootFailure(BootError):
    """Boot stopped in `phase`; everything before it was undone."""

    def __init__(self, phase: str, cause: Exception) -> None:
        if isinstance(cause, MainspringError):
            super().__init__(f"boot failed in phase {phase}: {cause.message}", remedy=cause.remedy, code=cause.code)
        else:
            super().__init__(f"boot failed in phase {phase}: {type(cause).__name__}: {cause}")
        self.phase = phase


class Node:
    """Owns the parts of one process: `boot` it, then `drain` it. A node is used once.

    `program` is an App, or `MODULE:APP` text that says where one is. `checker` is asked who may use a topic, in place
    of the App's own.
    """

    def __init__(
        self,
        settings: Settings,
        program: App | str | None = None,
        *,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        new_id: Callable[[], str] = lambda: str(uuid_utils.uuid7()),
        checker: Checker | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or MonotonicClock()
        self.loop = Loop(
            self.clock,
            max_turns_per_slice=settings.max_turns_per_slice,
            slow_turn_ms=settings.slow_turn_ms,
            on_slow_turn=self._note_slow_turn,
        )
        self._slow_turns: deque[SlowTurnSeen] = deque(maxlen=SLOW_TURNS)
        self.app: App | None = None
        self._program = program
        self._chance = chance
        self._new_id = new_id
        self._checker = checker
        self._undo = AsyncExitStack()
        self._on_shutdown: Callable[[], None] = lambda: None

    async def boot(self) -> Message:
        """Start everything; gives the Sys.BootComplete message. Raises BootFailure, with everything undone."""
        phases = ["LOAD"]
        try:
            await self._load()
            phases = self.kernel.phases
            await self._undo_later(self.bus.start, self.bus.stop)
            await self._undo_later(self.kernel.start, self.kernel.stop)
            await self._undo_later(self.runtime.start_service, self.runtime.stop_service)
            await self._start_beats()
            self.kernel.enter_phase("ADAPT")
            return self.kernel.ready(await self._adapt())
        except Exception as error:
            await self._undo.aclose()
            raise BootFailure(phases[-1], error) from error

    def on_shutdown(self, callback: Callable[[], None]) -> None:
        """What to call when a client asks the node to stop."""
        self._on_shutdown = callback

    async def drain(self) -> None:
        """Stop intake; finish what was accepted; give back leases, sockets and files. Each step within `drain_ms`."""
        await self._bounded("stop intake", self.ndjson.quiesce(), self.site.stop())
        await self._bounded("finish", self.kernel.drain(self.settings.drain_ms), self.bus.drain())
        await self._bounded("give back", self._undo.aclose())

    # The phases

    async def _load(self) -> None:
        settings = self.settings
        self._tokens = read_tokens(settings.tokens, settings.tokens_file)
        _refuse_open_doors(settings, self._tokens)
        self.app = load_program(self._program)
        self.loop.attach()
        self._undo.callback(self.loop.detach)
        self.log = Log(open_engine(settings.engine, settings.data, self.clock))
        await self._undo_later(self.log.open, self.log.close)
        self.bus = Bus(
            self.log,
            self.clock,
            self.loop,
            settings=settings,
            new_id=self._new_id,
            random=self._chance,
            checker=self._checker or (self.app.checker if self.app else None),
        )
        self.kernel = Kernel(
            loop=self.loop,
            log=self.log,
            default_timeout_ms=settings.request_timeout_ms,
            data_dir=settings.data,
            restart=self.app.restart if self.app else RestartPolicy(),
            publisher=self._publish,
            on_shutdown=lambda: self._on_shutdown(),
        )
        self.kernel.enter_phase("LOAD")
        self.runtime = Runtime(clock=self.clock, loop=self.loop, log=self.log, slow_step_ms=settings.slow_turn_ms)
        port = BusPort(self.bus)
        self.runtime.connect(ask=KernelPort(self.kernel), publish=port, events=port)
        self.heartbeat = Heartbeat(
            self.log,
            program=self._program if isinstance(self._program, str) else "",
            retain_beats=settings.retained_beats or None,
            slow_enzyme_ms=settings.slow_enzyme_ms,
        )
        self.kernel.register(*kernel_capabilities(self.kernel), run(self.kernel, self.runtime), beat(self.heartbeat))
        if self.app is not None:
            self.app.install_runs(self.runtime)
            self.app.beats.install(self.heartbeat)
            self.kernel.register(*self.app.capabilities(self.kernel.ids_taken))

    async def _start_beats(self) -> None:
        await self.heartbeat.open()
        self._undo.push_async_callback(self.heartbeat.aclose)
        driver = Driver(self.heartbeat, self.loop, interval_ms=self.settings.beat_interval_ms or None)
        for declared in self.app.beats.topics if self.app else ():
            await self.bus.ensure_topic(declared.topic)
            self.heartbeat.add_inlet(TopicInlet(self.log, declared.topic, target=declared.target))
            self._in_background(self._wake_on_events(driver, declared.topic))
        driver.start()
        self._undo.push_async_callback(driver.stop)

    async def _wake_on_events(self, driver: Driver, topic: str) -> None:
        async for _ in self.bus.follow(topic):
            driver.wake()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._undo.push_async_callback(end)

    async def _adapt(self) -> list[str]:
        """Open the sockets; gives their addresses."""
        settings = self.settings
        self.ndjson = NdjsonServer(self.kernel, self._socket_path(settings.kernel_socket, "kernel.sock"))
        await self._undo_later(self.ndjson.start, self.ndjson.stop)
        guests = LoopSocketServer(self._socket_path(settings.loop_socket, "loop.sock"), clock=self.clock)
        await self._undo_later(guests.start, guests.stop)
        address = await self._listen()
        return [self.ndjson.address, f"unix:{guests.path}", address]

    async def _listen(self) -> str:
        """WebSocket and HTTP on one port."""
        settings = self.settings
        web_app = web.Application()
        identify = self._identify()
        add_routes(
            web_app,
            self.bus,
            allowed_origins=settings.allowed_origins,
            check_host=not self._tokens,
            identify=identify,
            kernel=self.kernel,
            slow_turns=self._slow_turns,
        )
        dashboard = Dashboard()
        dashboard.add_to(web_app)
        add_client_js(web_app)
        add_websocket(web_app, self.bus, settings, identify, dashboard.page)
        runner = web.AppRunner(
            web_app, access_log=None, handle_signals=False, shutdown_timeout=settings.drain_ms / 1000
        )
        await self._undo_later(runner.setup, runner.cleanup)
        tls = _tls(settings)
        self.site = web.TCPSite(runner, settings.host, settings.port, ssl_context=tls)
        try:
            await self.site.start()
        except OSError as error:
            raise BootError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
                remedy="stop what uses the port, or choose another with --port",
            ) from error
        host, port = runner.addresses[0][:2]
        return f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"

    def _identify(self) -> Identify:
        return TokenDoor(self._tokens, self.clock, self._new_id).identify if self._tokens else claimed_agent

    def _note_slow_turn(self, slow: SlowTurn) -> None:
        self._slow_turns.append(SlowTurnSeen(self.clock.wall_ms(), slow.name, slow.duration_ms, slow.limit_ms))
        logger.warning("slow turn: %s", slow)

    async def _publish(self, topic: str, payload: Any, **options: Any) -> Any:
        return await self.bus.publish(topic, bytes(encode_data(payload)), **options)

    # Stopping

    async def _undo_later(self, start: Callable[[], Awaitable[Any]], stop: Callable[[], Awaitable[Any]]) -> None:
        await start()
        self._undo.push_async_callback(stop)

    async def _bounded(self, step: str, *work: Awaitable[Any]) -> None:
        limit_s = self.settings.drain_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*work)
        except TimeoutError:
            logger.warning("%s took longer than %g s and was cut short", step, limit_s)

    def _socket_path(self, given: str, name: str) -> Path:
        if given:
            return Path(given)
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        return (Path(runtime) / "mainspring" if runtime else Path(self.settings.data)) / name


def load_program(program: App | str | None) -> App | None:
    """The App that `MODULE:APP` names, imported with the working directory on the path."""
    if program is None or isinstance(program, App):
        return program
    module_name, colon, attribute = program.partition(":")
    if not (module_name and colon and attribute):
        raise BootError(f"{program!r} does not name a program", remedy="write MODULE:APP, like shop:app")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BootError(
            f"there is no module {error.name!r}", remedy="run the command in the folder of the program, or install it"
        ) from error
    if not hasattr(module, attribute):
        raise BootError(f"module {module_name!r} has no {attribute!r}", remedy="name the variable that holds the App")
    found = getattr(module, attribute)
    if not isinstance(found, App):
        kind = type(found).__name__
        raise BootError(f"{program} is a {kind}, not an App", remedy="name the variable that holds the App")
    return found


def _refuse_open_doors(settings: Settings, tokens: TokenBook) -> None:
    """Without tokens everybody who can connect may do everything, so only this machine may connect."""
    host = settings.host
    if host == "localhost":
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        pass  # a name: where it leads can change
    if not tokens:
        raise BootError(
            f"listening on {host} without tokens would let everybody in",
            remedy="make one with `mainspring token new --agent NAME --scope admin` and put its line into "
            "MAINSPRING_TOKENS or `tokens` in mainspring.toml; or listen on 127.0.0.1",
            code="open_door",
        )
    if not settings.tls_cert:
        logger.warning("listening on %s without TLS: whoever sees the traffic sees the tokens; set tls_cert", host)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert and not settings.tls_key:
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
    return context
