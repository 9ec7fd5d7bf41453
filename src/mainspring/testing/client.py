"""`world.client()` and `world.sync_client()`: clients of the simulated node, for a test and the web code under test.

It is the real client in a process of its own, on virtual time, connected to the real sessions and routes of the node
through a Unix socket; so it reconnects after a crash, sends again what was not confirmed, and raises what it raises in
production. Only this is added: a verb that is awaited on the test's loop is carried out on the loop of the clients,
while the `LoopDriver` lets the simulation run. Functions that are given to it (`consume`, `respond`) run there, too.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.client import Client, Consumer, NodeHttp, NodeVerbs, Options, Subscription, SyncClient, Waiter
from mainspring.client import Event as Delivery
from mainspring.durations import Duration
from mainspring.node import InProcess
from mainspring.telemetry import KeptError
from mainspring.testing import seeds
from mainspring.testing.driving import Process

if TYPE_CHECKING:
    from mainspring.testing.one_node import Simulation

C = TypeVar("C", bound=type)
T = TypeVar("T")

ADDRESS = "ws://127.0.0.1"  # what requests say; the socket is found by its path
QUIET: dict[str, Any] = {"ping": "1d", "stall_check": 0, "run_check": "1d"}  # months must pass quickly


def verbs_from(base: type, *, for_ever: tuple[str, ...] = ()) -> Callable[[C], C]:
    """Make every public async verb of the base one that is carried out in the object's `process`.

    `for_ever` are those that may wait without end.
    """

    def decorate(kind: C) -> C:
        for name, member in inspect.getmembers(base, inspect.isfunction):
            if name in vars(kind) or (name.startswith("_") and name not in ("__aenter__", "__aexit__", "__anext__")):
                continue
            if inspect.iscoroutinefunction(member):
                setattr(kind, name, _awaited(member, name in for_ever))
            elif inspect.isasyncgenfunction(member):
                setattr(kind, name, _iterated(member, name in for_ever))
        return kind

    return decorate


def _awaited(method: Callable[..., Coroutine[Any, Any, Any]], for_ever: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    async def verb(self: Any, /, *arguments: Any, **named: Any) -> Any:
        has_end = not for_ever or named.get("timeout") is not None or bool(arguments)
        return await self.process.call(method(self, *arguments, **named), for_ever=not has_end)

    return verb


def _iterated(method: Callable[..., AsyncIterator[Any]], for_ever: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    async def verb(self: Any, /, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        items: Any = method(self, *arguments, **named)
        try:
            while True:
                try:
                    item = await self.process.call(_next(items), for_ever=for_ever)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not self.process.is_over:
                await self.process.call(_close(items))

    return verb


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _close(items: Any) -> None:
    await items.aclose()


@verbs_from(NodeHttp, for_ever=("follow",))
class SimulatedHttp(NodeHttp):
    process: Process


@verbs_from(Subscription, for_ever=("get", "__anext__", "ended"))
class SimulatedSubscription(Subscription[Any]):
    process: Process

    def ack(self, event: Delivery[Any]) -> bool:
        return self.process.at_once(lambda: super(SimulatedSubscription, self).ack(event))

    def nack(self, event: Delivery[Any], delay_ms: int | None, reason: str, failure: KeptError | None = None) -> bool:
        return self.process.at_once(lambda: super(SimulatedSubscription, self).nack(event, delay_ms, reason, failure))

    def extend(self, event: Delivery[Any], ms: int, *, begun: bool = False) -> bool:
        return self.process.at_once(lambda: super(SimulatedSubscription, self).extend(event, ms, begun=begun))


@verbs_from(Consumer, for_ever=("wait",))
class SimulatedConsumer(Consumer[Any]):
    process: Process


@verbs_from(Client, for_ever=("follow", "envelopes"))
class SimulatedClient(Client):
    """The client of a simulation. Made by `World.client`."""

    def __init__(self, process: Process, *arguments: Any, **named: Any) -> None:
        self.process = process
        super().__init__(*arguments, **named)

    def _new_http(self, token: str | None) -> NodeHttp:
        made: NodeHttp = self._lent(SimulatedHttp, super()._new_http(token))
        return made

    def subscribe(self, *arguments: Any, **named: Any) -> Any:
        make = super().subscribe
        return self._lent(SimulatedSubscription, self.process.at_once(lambda: make(*arguments, **named)))

    def consume(self, *arguments: Any, **named: Any) -> Any:
        make = super().consume
        return self._lent(SimulatedConsumer, self.process.at_once(lambda: make(*arguments, **named)))

    def _lent(self, kind: Any, made: Any) -> Any:
        made.__class__ = kind
        made.process = self.process
        return made


@verbs_from(InProcess, for_ever=("follow",))
class SimulatedInProcess(InProcess):
    process: Process

    @property
    def run_check(self) -> Duration:
        return "1d"  # months must pass quickly


def simulated_verbs(verbs: InProcess, process: Process) -> NodeVerbs:
    """The verbs of `app`, for a test and for the program itself."""
    simulated: Any = verbs
    simulated.__class__ = SimulatedInProcess
    simulated.process, simulated.event_loop = process, None
    return verbs


class _Calling:
    """In place of the thread of a `SyncClient`: who waits lets the simulation run."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.alive: bool = True

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._process.run(work)

    def stop(self) -> None:
        self.alive = False


class SimulatedSyncClient(SyncClient):
    """The blocking client of a simulation. Made by `World.sync_client`."""

    def __init__(self, client: SimulatedClient) -> None:
        super().__init__()
        self._made: tuple[Client, Waiter] | None = (client, _Calling(client.process))


def simulated_client(simulation: Simulation, token: str | None, options: dict[str, Any]) -> SimulatedClient:
    """A client of the node, over all its lives."""
    process, socket = simulation.clients()
    source = random.Random(f"{simulation.seed}/client")
    return SimulatedClient(
        process,
        (ADDRESS,),
        token,
        Options(**{**QUIET, "unix_socket": socket, **options}),
        clock=simulation.clock,
        random=source.random,
        new_id=seeds.Ids(source, simulation.clock.wall_ms),
        random_bytes=source.randbytes,
    )
