"""Machines: the nodes of a simulation over all their lives, and its clients.

A node is the real one with its WebSocket and HTTP, only that its network, its disk and its clocks are simulated. What
supervises nodes in production is here, too: a node that ends by itself is started again after a second.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
from aiohttp import web

from mainspring.app import App
from mainspring.client import Awaited, CannotConnect, Client, NodeHttp, Options, Outgoing, Place
from mainspring.durations import seconds
from mainspring.errors import MainspringError
from mainspring.loop import time_limit
from mainspring.message import counted_ids
from mainspring.node import Core, Node, web_runner
from mainspring.server import Connections, forget_applications
from mainspring.settings import Settings
from mainspring.testing import seeds
from mainspring.testing.simulation.disk import Storage
from mainspring.testing.simulation.ledger import Ledger
from mainspring.testing.simulation.network import Network
from mainspring.testing.simulation.processes import SimulatedProcess, Timeline

if TYPE_CHECKING:
    from mainspring.testing.simulation.drainers import DrainerMachine

START_AGAIN_MS: Final = 1_000
LEASE_MS: Final = 3_000
ANSWER_S: Final = 10.0  # a node that has not answered a drainer by then is given up


class SystemNode(Node):
    """A node whose clock, engine, ids and network are given."""

    def __init__(self, settings: Settings, app: App, **parts: Any) -> None:
        Core.__init__(self, settings, app, **parts)

    async def _prepare(self) -> None:
        await Core._prepare(self)  # the program is there already

    async def _adapt(self) -> list[str]:
        self._in_background(self._watch_clock())
        connections = Connections(self.settings)
        self._in_background(connections.watch())
        runner = web_runner(self, self._new_id, connections=connections)
        await self._undo_later(runner.setup, runner.cleanup)
        self.site: web.TCPSite = web.TCPSite(runner, self.settings.host, self.settings.port)
        await self.site.start()
        return [f"http://{self.settings.host}:{self.settings.port}"]

    async def _stop_intake(self) -> None:
        await self.site.stop()


class NodeMachine:
    """One host with a disk, and the node that runs on it."""

    def __init__(self, system: System, name: str, storage: Storage) -> None:
        self.name = name
        self.storage = storage
        self.shift_ms: int = 0  # by how much its time of day is wrong
        self.lives: int = 0
        self.booted_ms: list[int] = []
        self.process: SimulatedProcess | None = None
        self.node: SystemNode | None = None
        self._system = system
        self._stopping = False

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def is_ready(self) -> bool:
        return self.node is not None and not self._stopping

    # -- lives

    def boot(self) -> None:
        if self.process is not None:
            return
        system = self._system
        self.lives += 1
        system.ledger.boots += 1
        life = f"{self.name}.{self.lives}"
        source = random.Random(f"{system.seed}/{life}")
        self.process = process = system.new_process(self.name, source, self.shift_ms)
        system.network.machine_is_back(self.name)
        node = SystemNode(
            system.settings(self.name),
            system.program(life),
            clock=process.clock,
            engine=self.storage.engine(process),
            source=source,
            new_id=seeds.Ids(source, process.clock.wall_ms),
            message_ids=counted_ids(f"{life}."),
        )
        node.on_shutdown(lambda: self._system.timeline.after(0, lambda: self.stop(START_AGAIN_MS, process)))
        process.spawn(self._boot(node, process))

    async def _boot(self, node: SystemNode, process: SimulatedProcess) -> None:
        try:
            await node.boot()
        except MainspringError as error:
            self._system.note(f"{self.name} did not boot: {error}")
            self._system.met["boot failed"] += 1
            self._system.timeline.after(0, lambda: self._ended(process, START_AGAIN_MS))
        else:
            self._system.note(f"{self.name} is ready")
            self.booted_ms.append(self._system.timeline.now_ms)
            self.node = node

    def kill(self, down_ms: float, *, silently: bool = False) -> None:
        """End it at once; `silently`, the whole machine goes, and nobody is told."""
        if self.process is not None:
            self._end(silently=silently)
            self._system.timeline.after(down_ms, self.boot)

    def stop(self, down_ms: float, process: SimulatedProcess | None = None) -> None:
        """Stop it in order, then start it again."""
        if self.process is None or self.node is None or self._stopping or process not in (None, self.process):
            return
        self._stopping = True
        stopping, draining = self.process, self.process.spawn(self.node.drain())
        draining.add_done_callback(lambda done: self._system.timeline.after(0, lambda: self._ended(stopping, down_ms)))

    def _ended(self, process: SimulatedProcess, down_ms: float) -> None:
        if process is self.process:
            self._end(silently=False)
            self._system.timeline.after(down_ms, self.boot)

    def _end(self, *, silently: bool) -> None:
        assert self.process is not None
        process, self.process, self.node, self._stopping = self.process, None, None, False
        process.kill()
        self._system.network.end_process(process, silently=silently)
        self.storage.process_ended(process)

    # -- its time of day

    def set_clock(self, ms: int) -> None:
        self.shift_ms += ms
        if self.process is not None:
            self.process.clock.shift_wall(ms)


class System:
    """The machines, the clients, the network between them, and what was observed."""

    def __init__(self, seed: str, program: Callable[[str], App], **settings: Any) -> None:
        self.seed = seed
        self.timeline: Timeline = Timeline(f"{seed}/order")
        self.network: Network = Network(self.timeline, f"{seed}/network")
        self.ledger: Ledger = Ledger()
        self.met: Counter[str] = Counter()  # the faults that happened, by kind
        self.trace: list[str] = []
        self.machines: list[NodeMachine] = []
        self.clients: list[SimulatedProcess] = []
        self.drainers: list[DrainerMachine] = []
        self.processes: list[SimulatedProcess] = []
        self.program = program
        self._settings = settings
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a disk that is never really synced
        self._folder = tempfile.TemporaryDirectory(prefix="mainspring-", dir=memory, ignore_cleanup_errors=True)
        self.folder: Path = Path(self._folder.name)

    @property
    def outside(self) -> list[SimulatedProcess]:
        """Everybody who talks to nodes and is none: clients and drainers."""
        return [*self.clients, *(each.process for each in self.drainers if each.process is not None)]

    def note(self, text: str) -> None:
        """Write down what happened; the same seed gives the same text."""
        self.trace.append(f"{self.timeline.now_ns / 1e6:12.3f} {text}")

    def add(self, name: str, storage: Storage) -> None:
        self.machines.append(NodeMachine(self, name, storage))

    def new_process(self, host: str, source: random.Random, shift_ms: int = 0) -> SimulatedProcess:
        """Its monotonic clock begins anywhere, as that of a machine does."""
        start_ms = source.randrange(1, 10**9)
        process = SimulatedProcess(self.timeline, self.network, host, start_ms=start_ms, shift_ms=shift_ms)
        self.processes.append(process)
        return process

    def client(self, name: str) -> Client:
        """A client on a host of its own, which knows every node."""
        source = random.Random(f"{self.seed}/{name}")
        process = self.new_process(name, source)
        self.clients.append(process)
        return SystemClient(
            self.ledger,
            tuple(f"ws://{machine.name}:7070" for machine in self.machines),
            None,
            Options(connect_timeout=0, stall_check=0, ping=3.0),
            clock=process.clock,
            random=source.random,
            new_id=seeds.Ids(source, process.clock.wall_ms),
            random_bytes=source.randbytes,
        )

    def settings(self, name: str) -> Settings:
        chosen: dict[str, Any] = {
            "engine": "memory",
            "data": f"{self._folder.name}/{name}",
            "node": name,
            "host": name,
            "allowed_origins": (f"http://{name}:7070",),
            "audit": False,
            "metrics_interval_ms": 0,
            "history_interval_ms": 0,
            "slow_enzyme_ms": 0,
            "node_lease_ms": LEASE_MS,
            "runs_recovery_ms": 2_000,
            "drain_ms": 2_000,
            "ping_interval_ms": 4_000,
            "wait_for_engine": 5,
        }
        return Settings(**{**chosen, **self._settings})

    def heal(self) -> None:
        """All faults end. Those who are down or stalled go on by themselves."""
        self.network.heal()
        for machine in self.machines:
            machine.storage.heal()

    def close(self) -> None:
        for drainer in self.drainers:
            drainer.end()
        for process in self.processes:
            process.close()
        for machine in self.machines:
            machine.storage.close()
        forget_applications()
        self._folder.cleanup()


class SystemClient(Client):
    """A client whose HTTP goes over the simulated network, too, and who writes down what it is told."""

    def __init__(self, ledger: Ledger, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._ledger = ledger
        self.connections: int = 0  # there have been so many
        received, opened = self.conversation.received, self.conversation.opened

        def observed(text: bytes) -> None:
            ledger.frame(text)
            received(text)

        def counted() -> None:
            self.connections += 1
            opened()

        setattr(self.conversation, "received", observed)  # noqa: B010 - mypy: a method cannot be assigned
        setattr(self.conversation, "opened", counted)  # noqa: B010

    def _new_http(self, token: str | None) -> NodeHttp:
        return SystemHttp(self.url, token, ping_s=seconds(self.options.ping))

    def put(self, topic: str, event: Outgoing) -> None:
        """Watched here, where the client has chosen the id: one that is given is sent in another way."""
        if isinstance(event, Awaited):
            event.future.add_done_callback(partial(self._placed, topic, event.id))
        super().put(topic, event)

    def _placed(self, topic: str, id: str, answer: asyncio.Future[Place]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            place = answer.result()
            self._ledger.confirm(topic, place.partition, int(place), id)


class SystemHttp(NodeHttp):
    async def send(self, method: str, path: str, body: bytes, content_type: str) -> Any:
        """One request with a body that is encoded already. Raises like `call`, and is not tried again."""
        timeout, trouble = aiohttp.ClientTimeout(total=None, sock_connect=10), "the node does not answer"
        headers = {"Content-Type": content_type}
        asking = self._request(method, path, {}, trouble, data=body, headers=headers, timeout=timeout)
        try:
            async with time_limit(ANSWER_S), asking as response:
                return msgspec.json.decode(await response.read())
        except TimeoutError:
            raise CannotConnect(f"{trouble} in time", remedy="is it running?") from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=_Connector(2_000 * self._ping_s))
        return self._session


class _Connector(aiohttp.UnixConnector):
    """On the simulated network the name of a host is where it is reached."""

    def __init__(self, silence_ms: float) -> None:
        super().__init__("-")
        self._acquired: Any = _InOrder()
        self._silence_ms = silence_ms

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        self._path = req.url.host
        connected: Any = await super()._create_connection(req, traces, timeout)
        if connected.transport is not None:  # else it is over already
            connected.transport.watch(self._silence_ms)  # as the sockets of a client are
        return connected


class _InOrder(dict[Any, None]):
    """A set that is gone through in the order of adding: by address, the same seed would not give the same run."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    remove = dict.__delitem__
