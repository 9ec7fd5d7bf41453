"""Three nodes on one engine, clients that write down what they are told, and somebody who breaks things.

Nodes are real processes. Each has a network of its own to the servers (`Proxy`), so it can be cut off while the others
go on. Faults come one at a time from a seeded list; when they are over, everything must come to rest by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from mainspring.client import CannotConnect, Client, ClientError, NodeRefused, connect
from mainspring.client.http import NodeHttp
from mainspring.errors import Fail
from mainspring.log import LogUnavailable
from tests.chaos.history import Confirmed, History, Stored
from tests.chaos.proxy import Proxy
from tests.support.paths import ROOT
from tests.support.serving import Serving

NODES = ("north", "east", "west")
WRONG_CLOCKS_MS = (0, 11 * 60_000, -11 * 60_000)  # the machines' clocks disagree by more than ids are remembered
MOST_LATE = 3  # groups that begin while nobody can store it
DRAIN_S = 90.0  # how long nothing at all may happen before it is taken for stuck; never a measurement
START_AGAIN = "start it again"  # the remedy of the only error that may end a node: it was away for too long
ENOUGH = 150  # confirmed events: with fewer a round proves little, so on a slow machine it takes longer


class Servers(Protocol):
    """The engine's servers, as far as a round needs them."""

    @property
    def places(self) -> Sequence[tuple[str, int]]:
        """Host and port of each, the same over restarts."""

    def url(self, places: Sequence[tuple[str, int]]) -> str:
        """What `--engine` is given to reach them there."""

    def kill(self, number: int) -> None: ...

    def restart(self, number: int) -> None: ...

    def pause(self, number: int) -> None: ...

    def resume(self, number: int) -> None: ...

    async def edit(self, wrongly: bool) -> bool:
        """Somebody gives the log a setting that it should not have, or takes it away; False: this engine has none."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ChaosNode:
    """A node, its network, and its life over kills and restarts."""

    def __init__(self, name: str, folder: Path, servers: Servers, lease_ms: int) -> None:
        self.name = name
        self._lease_ms = lease_ms
        self._clock_ms = WRONG_CLOCKS_MS[NODES.index(name)]
        self.port = free_port()
        self.proxies = [Proxy(host, port) for host, port in servers.places]
        self._folder = folder / name
        self._folder.mkdir()
        self._servers = servers
        self._serving: Serving | None = None
        self._changing = asyncio.Lock()  # one at a time kills or launches it

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def start(self) -> None:
        for proxy in self.proxies:
            await proxy.start()
        await self.launch()

    async def launch(self) -> None:
        engine = self._servers.url([("127.0.0.1", proxy.port) for proxy in self.proxies])
        arguments = (
            "tests.chaos.program:app",
            "--node",
            self.name,
            "--wait-for-engine",
            "80",
            "--port",
            str(self.port),
        )
        env = {
            "PYTHONPATH": str(ROOT),
            "MAINSPRING_NODE_LEASE_MS": str(self._lease_ms),
            "BUS_ACK_TIMEOUT_MS": "3000",
            "MAINSPRING_AUDIT": "false",
            "CHAOS_CLOCK_MS": str(self._clock_ms),
        }
        while True:
            serving = Serving(*arguments, folder=self._folder, engine=engine, env=env, patience_s=DRAIN_S)
            await asyncio.to_thread(serving.launch)
            if serving.boot.get("data", {}).get("reason") != LogUnavailable.code:
                break
            serving.__exit__(None, None, None)  # what supervises nodes starts one again that could not read its log
        self._serving = serving
        assert serving.boot.get("type") == "Sys.BootComplete", f"{serving.boot}\n{self.errors()}"

    def signal(self, number: signal.Signals) -> None:
        assert self._serving is not None
        self._serving.signal(number)

    async def kill_and_launch(self, pause_s: float) -> None:
        async with self._changing:
            await self._end()
            await asyncio.sleep(pause_s)
            await self.launch()

    async def _end(self) -> None:
        assert self._serving is not None
        await asyncio.to_thread(self._serving.kill)
        self._serving.__exit__(None, None, None)
        self._serving = None

    async def start_again(self) -> str:
        """Launch it again if it ended by itself, as what supervises nodes does. What it said last, empty if it runs."""
        async with self._changing:
            if self._serving is None or self._serving.process is None or self._serving.process.poll() is None:
                return ""
            said = self.errors().strip().rpartition("\n")[2]
            assert START_AGAIN in said, f"{self.name} ended by itself: {said}"
            await self._end()
            await self.launch()
            return said

    async def stop(self) -> None:
        if self._serving is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
            await self._end()
        for proxy in self.proxies:
            await proxy.stop()

    def errors(self) -> str:
        said = self._folder / "stderr.txt"
        return said.read_text(errors="replace")[-4_000:] if said.exists() else ""


class Arena:
    """One round. `pace_s` is how long each of two publishers waits between events."""

    def __init__(
        self, folder: Path, servers: Servers, *, seed: int, lease_ms: int = 1_500, pace_s: float = 0.005
    ) -> None:
        self.nodes = [ChaosNode(name, folder, servers, lease_ms) for name in NODES]
        self._lease_s = lease_ms / 1000
        self._pace_s = pace_s
        self.history = History()
        self.faults: list[str] = []  # what was done, for whoever reads a failure
        self._servers = servers
        self._random = random.Random(seed)
        self._publishing = True
        self._server_was_killed = False
        self._number = 0
        self._late = 0

    # -- the round

    async def run(self, seconds: float) -> History:
        """Publish and consume while things break, for so long at least; then let everything come to rest and look.

        However slow the machine is, a round goes on until a server was killed: without that it would show little.
        """
        try:
            for node in self.nodes:
                await node.start()
            async with self._client() as one, self._client() as other, self._client() as third, _Working() as working:
                self._working, self._late_client = working, third
                for client in (one, other):
                    working.start(self._consume(client))
                publishing = [working.start(self._publish(client)) for client in (third, other)]
                supervising = working.start(self._supervise())
                await self._break_things(seconds)
                self._publishing = False
                await asyncio.wait_for(asyncio.gather(*publishing), DRAIN_S)
                await self._come_to_rest()
                await self._look()
                assert not supervising.done(), supervising.exception()
        finally:
            for node in self.nodes:
                await node.stop()
        return self.history

    def _client(self) -> Client:
        return connect(",".join(node.url for node in self.nodes), connect_timeout=60.0, stall_check=0.0)

    # -- clients

    async def _publish(self, client: Client) -> None:
        while self._publishing:
            self._number += 1
            payload: dict[str, Any] = {"n": self._number}
            if self._number % 7 == 0:
                payload["run"] = f"job-{self._number}"
            place = await self._insist(client, payload)
            self.history.confirmed.append(Confirmed(place.id, place.partition, int(place)))
            if "run" in payload:
                self.history.expected_runs.add(payload["run"])
            await asyncio.sleep(self._pace_s)

    async def _insist(self, client: Client, payload: dict[str, Any]) -> Any:
        """Publish it under one id until a node says that it is stored."""
        id = client.new_id()
        while True:
            try:
                return await client.publish("work", payload, key=str(payload["n"] % 50), id=id)
            except NodeRefused as error:
                self.faults.append(f"publish refused: {error}")
                await asyncio.sleep(0.1)

    async def _consume(self, client: Client) -> None:
        async for event in client.subscribe("work", group="outside", max_inflight=16):
            self.history.received.add(event.id)
            await event.ack()

    async def _consume_late(self, group: str) -> None:
        """Its subscription is refused at first. What it takes later it must settle: the group drains, or it failed."""
        async for event in self._late_client.subscribe("work", group=group, max_inflight=16):
            await event.ack()

    async def _supervise(self) -> None:
        while True:
            for node in self.nodes:
                if said := await node.start_again():
                    self.faults.append(f"{node.name} was started again: {said}")
            await asyncio.sleep(0.2)

    # -- faults

    async def _break_things(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        faults: list[Callable[[], Awaitable[None]]] = [
            self._kill_node,
            self._pause_node,
            self._cut_node,
            self._freeze_node,
            self._kill_server,
            self._pause_server,
            self._lose_majority,
            self._edit_log,
        ]

        def goes_on() -> bool:
            too_little = len(self.history.confirmed) < ENOUGH
            return not self._server_was_killed or loop.time() < end + (DRAIN_S if too_little else 0)

        await asyncio.sleep(1)
        while goes_on():  # each kind once in every round of the list, in another order
            self._random.shuffle(faults)
            for fault in faults:
                if goes_on():
                    await fault()
                    await asyncio.sleep(self._random.uniform(0.5, 2))

    def _long(self) -> float:
        """Longer than a lease, so that others take over."""
        return self._lease_s * self._random.uniform(1.5, 3)

    def _node(self, what: str) -> ChaosNode:
        node = self._random.choice(self.nodes)
        self.faults.append(f"{what} {node.name}")
        return node

    async def _kill_node(self) -> None:
        await self._node("kill").kill_and_launch(self._random.choice([0.1, self._long()]))

    async def _pause_node(self) -> None:
        node = self._node("pause")
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self._long())
        node.signal(signal.SIGCONT)

    async def _cut_node(self) -> None:
        node = self._node("cut off")
        for proxy in node.proxies:
            proxy.cut()
        await asyncio.sleep(self._long())
        for proxy in node.proxies:
            proxy.heal()

    async def _freeze_node(self) -> None:
        node = self._node("freeze the network of")
        for proxy in node.proxies:
            proxy.freeze()
        await asyncio.sleep(self._long())
        for proxy in node.proxies:
            proxy.heal()

    async def _kill_server(self) -> None:
        number = self._server("kill")
        await asyncio.to_thread(self._servers.kill, number)
        self._server_was_killed = True
        await asyncio.sleep(self._random.uniform(0.2, 3))
        await asyncio.to_thread(self._servers.restart, number)

    async def _pause_server(self) -> None:
        number = self._server("pause")
        await asyncio.to_thread(self._servers.pause, number)
        await asyncio.sleep(self._random.uniform(1, 4))
        await asyncio.to_thread(self._servers.resume, number)

    async def _lose_majority(self) -> None:
        """Nothing can be stored for a while; a group begins meanwhile."""
        if len(self._servers.places) < 3:
            return
        first = self._server("kill two from")
        numbers = (first, (first + 1) % len(self._servers.places))
        for number in numbers:
            await asyncio.to_thread(self._servers.kill, number)
        if self._late < MOST_LATE:
            self._late += 1
            self._working.start(self._consume_late(f"late-{self._late}"))
        await asyncio.sleep(self._random.uniform(1, 4))
        for number in numbers:
            await asyncio.to_thread(self._servers.restart, number)

    async def _edit_log(self) -> None:
        if await self._servers.edit(wrongly=True):
            self.faults.append("edit the log's settings")
            await asyncio.sleep(self._random.uniform(0.5, 3))
            while not await self._servers.edit(wrongly=False):  # noqa: ASYNC110 - until a server takes it
                await asyncio.sleep(0.2)

    def _server(self, what: str) -> int:
        number = self._random.randrange(len(self._servers.places))
        self.faults.append(f"{what} server {number}")
        return number

    # -- afterwards

    async def _come_to_rest(self) -> None:
        """Wait until nothing is left to do; what is left when nothing moves any more is a violation of the history."""
        for node in self.nodes:
            left = await self._left(node)
            with contextlib.suppress(TimeoutError):
                while left:
                    async with asyncio.timeout(DRAIN_S):
                        left = await self._less_than(left, node)

    async def _less_than(self, before: int, node: ChaosNode) -> int:
        while (left := await self._left(node)) >= before:  # noqa: ASYNC110 - a node is another process
            await asyncio.sleep(0.2)
        return left

    async def _left(self, node: ChaosNode) -> int:
        """Events not settled and runs not ended, as this node sees it."""
        async with _asking(node) as http:
            try:
                groups = await _groups(http)
                ended = await self._outcomes(http)
            except (ClientError, CannotConnect, Fail, TimeoutError):
                return sys.maxsize
        lag: int = sum(group["lag"] for group in groups)
        return lag + len(self.history.expected_runs - ended.keys())

    async def _look(self) -> None:
        for node in self.nodes:
            await _patiently(functools.partial(self._look_at, node))
        await _patiently(self._look_at_the_rest)

    async def _look_at(self, node: ChaosNode) -> None:
        history = self.history
        async with _asking(node) as http:
            history.work[node.name] = await _stored(http, "work")
            history.outcomes[node.name] = await self._outcomes(http)
            for group in await _groups(http):
                history.lags[f"{node.name} {group['topic']} {group['group']}"] = group["lag"]

    async def _look_at_the_rest(self) -> None:
        history = self.history
        async with _asking(self.nodes[0]) as http:
            history.settled = [one.payload["work"] for one in await _stored(http, "done")]
            history.steps = [(one.payload["run"], one.payload["step"]) for one in await _stored(http, "steps")]
            history.firings = [(one.payload["offset"], one.payload["at"]) for one in await _stored(http, "ticks")]
            (schedule,) = (await http.call("GET", "/schedules"))["schedules"]
            history.every_ms, history.phase_ms = schedule["every"], schedule["nextMs"] % schedule["every"]

    async def _outcomes(self, http: NodeHttp) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for run in sorted(self.history.expected_runs):
            asked = {"kind": "query", "type": "Run.Outcome", "data": {"id": run}}
            try:
                reply = await http.call("POST", "/messages", asked)
            except Fail as error:
                if error.code != 404:
                    raise
                continue  # it was not started yet, or this node has not heard of it
            state = reply.get("data") or {}
            if state.get("state") in ("done", "failed", "cancelled"):
                found[run] = (state["state"], state.get("value"))
        return found


class _Working:
    """Tasks that end with their block, however it ends."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.append(asyncio.create_task(work))
        return self._tasks[-1]

    async def __aenter__(self) -> _Working:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _asking(node: ChaosNode) -> AsyncIterator[NodeHttp]:
    http = NodeHttp(node.url, None)
    try:
        yield http
    finally:
        await http.close()


async def _patiently(look: Callable[[], Awaitable[None]]) -> None:
    """Again, while a node says that its log cannot be read just now, or is being started again."""
    async with asyncio.timeout(DRAIN_S):
        while True:
            try:
                return await look()
            except NodeRefused as error:
                if error.code != LogUnavailable.code:
                    raise
            except CannotConnect:
                pass
            await asyncio.sleep(0.5)


async def _groups(http: NodeHttp) -> list[dict[str, Any]]:
    """All that can come to rest: a schedule goes on firing."""
    found = (await http.call("GET", "/groups"))["groups"]
    return [group for group in found if not group["topic"].startswith("schedules.")]


async def _stored(http: NodeHttp, topic: str) -> list[Stored]:
    return [
        Stored(one.id, one.partition, one.offset, msgspec.json.decode(one.payload))
        async for page in http.read(topic, params={})
        for one in page
    ]
