"""Kernel: messages in, one outcome each out.

    kernel = Kernel()
    kernel.register(capability)              # before start
    await kernel.start()                     # checks, indexes, spawns; raises BootError and leaves nothing running
    await kernel.ask("query", "Stock.Count", {"sku": "x"})
    await kernel.drain(5_000)                # finish what is open, refuse what is new
    await kernel.stop()

It needs no socket: adapters (`mainspring.server.ndjson`) hand messages to `kernel.ingest(message, origin)` and what
they could not read to `kernel.reject`. Everything the kernel uses is passed in; what is left out is made: a loop
attached to the running asyncio loop, a monotonic clock, ids, and a folder for blobs in the data directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from mainspring.cluster import Alone, Cluster, Membership, NodeView
from mainspring.durations import Duration, timeout_ms
from mainspring.errors import BootError
from mainspring.kernel import errors as faults
from mainspring.kernel.blobs import BlobKeeper
from mainspring.kernel.capability import Capability, RestartPolicy
from mainspring.kernel.contracts import CapabilityPlan, Contract
from mainspring.kernel.durable.commands import OUTCOME_TTL_MS, DurableCommands
from mainspring.kernel.durable.dead_messages import DeadMessages
from mainspring.kernel.durable.record import StoredCommand
from mainspring.kernel.durable.timers import DurableTimers
from mainspring.kernel.durable.trace import KeptTrace
from mainspring.kernel.errors import CapabilityError, NotConfigured, text_of
from mainspring.kernel.exchange import Exchange, Observer
from mainspring.kernel.inspect import CausationNode, causation_tree
from mainspring.kernel.mail import AskOrigin, Origin, SendOrigin
from mainspring.kernel.remote import RemoteNodes
from mainspring.kernel.supervisor import ActorSlot, HandlerSlot, LanedSlot
from mainspring.kernel.timers import MessageTimers
from mainspring.kernel.workers import WorkerSlot
from mainspring.log import Log, Prepared
from mainspring.loop import Clock, HandlerThreads, Loop, MonotonicClock, wake
from mainspring.message import Ids, Message, Metadata, Retry, counted_ids, encode_data, is_type
from mainspring.telemetry import tracing

logger: logging.Logger = logging.getLogger("mainspring.kernel")

DEFAULT_TIMEOUT_MS: Final = 30_000  # longer than any healthy handler needs, short enough to notice
PHASES: Final = ("LOAD", "DISCOVER", "BUILD", "SPAWN", "ATTACH", "ADAPT", "READY")

Publisher = Callable[..., Awaitable[Any]]
Preparer = Callable[[str, Any, dict[str, Any]], tuple[Prepared, Any] | None]


class Kernel:
    """Routes, supervises and times out. Use it from one asyncio loop.

    `publisher` is what `ctx.publish` calls: `await publisher(topic, payload, **options)`. In a handler of a durable
    command, `preparer(topic, payload, options)` is called instead: it gives what must be stored for the event, and what
    `ctx.publish` answers; None when such an event cannot be prepared. `on_shutdown` is called once when a client sends
    `Syscall.Shutdown`.
    """

    def __init__(
        self,
        *,
        loop: Loop | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        log: Log | None = None,
        default_timeout_ms: float = DEFAULT_TIMEOUT_MS,
        data_dir: str | Path | None = None,
        restart: RestartPolicy | None = None,
        publisher: Publisher | None = None,
        preparer: Preparer | None = None,
        on_shutdown: Callable[[], Any] | None = None,
        outcome_ttl_ms: int = OUTCOME_TTL_MS,
        cluster: Cluster | None = None,
        threads: HandlerThreads | None = None,
        keep_trace: bool = False,
    ) -> None:
        self._own_loop = loop is None
        self.loop: Loop = loop if loop is not None else Loop(clock or MonotonicClock())
        self.clock: Clock = clock if clock is not None else self.loop.clock
        self.ids: Ids = ids if ids is not None else counted_ids()
        self.log = log
        self.cluster: Cluster = cluster or Alone()
        self._own_threads = threads is None
        self.threads: HandlerThreads = HandlerThreads() if threads is None else threads  # for plain functions
        self.publisher = publisher
        self.preparer = preparer
        self.trace_more: Callable[[str, list[CausationNode]], Awaitable[list[CausationNode]]] | None = None
        self.on_shutdown = on_shutdown
        self.exchange: Exchange = Exchange(self.loop, self.clock, self.ids, default_timeout_ms)
        if log is not None and isinstance(self.cluster, Membership):  # the one place that asks
            self.exchange.remote = RemoteNodes(log, self.exchange, self.cluster)
            self.exchange.durable = DurableCommands(log, self.exchange, outcome_ttl_ms, self.cluster)
        self.timers: MessageTimers = MessageTimers(self.exchange)
        self.dead_messages: DeadMessages = self.exchange.dead_messages
        self.durable_timers: DurableTimers | None = None
        self._trace: KeptTrace | None = None
        if log is not None:
            self.dead_messages.use(log)
            self.durable_timers = DurableTimers(log, self.exchange, self.cluster, self.timers)
            self._trace = KeptTrace(log, self.exchange, self.cluster.node) if keep_trace else None
        self.restart = restart  # of capabilities without their own; None: only what has state is supervised
        self.phases: list[str] = []
        self.running: bool = False
        self._capabilities: list[Capability] = []
        self._plans: list[CapabilityPlan] = []
        self._slots: list[ActorSlot] = []
        self._outcome_ttl_ms = outcome_ttl_ms
        self._quiet: list[asyncio.Future[None]] = []
        self.blobs: BlobKeeper = BlobKeeper(data_dir, self.loop, self.clock, self.ids)
        self._adapters: list[str] = []
        self.exchange.on_quiet = self._wake_quiet
        # For adapters: take a valid message, refuse one, answer what they could not read, forget a connection.
        self.ingest: Callable[[Message, Origin], None] = self.exchange.ingest
        self.refuse: Callable[..., None] = self.exchange.refuse
        self.reject: Callable[..., None] = self.exchange.reject
        self.forget: Callable[[Origin], None] = self.exchange.forget
        self.streams: dict[Any, Callable[[str], bool]] = self.exchange.streams  # by connection: does it want a type?
        self.counters: dict[str, int] = self.exchange.counters
        self.refused: dict[str, int] = self.exchange.refused  # requests that reached no actor, by the error's type

    # --- declaring -----------------------------------------------------------------------------------------------

    def register(self, *capabilities: Capability) -> None:
        """Add capabilities; checked at `start`."""
        if self.running:
            raise CapabilityError("capabilities are registered before the kernel starts")
        self._capabilities += capabilities

    @property
    def ids_taken(self) -> set[str]:
        """The ids of everything registered so far."""
        return {capability.id for capability in self._capabilities}

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have `observer(message)` called for every message that passes, in order; call the result to end it."""
        self.exchange.observers.append(observer)

        def end() -> None:
            if observer in self.exchange.observers:
                self.exchange.observers.remove(observer)

        return end

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self, *, go_on: bool = True) -> None:
        """Boot the phases DISCOVER to ATTACH. On failure every spawned actor is terminated and `BootError` raised.

        With `go_on=False` what a former life left unfinished waits for `go_on()`: its handlers may end the process.
        """
        try:
            self.discover()
            self.build()
            self.spawn()
            await self.attach()
            if go_on:
                self.go_on()
        except BaseException:
            self._terminate_all()
            raise

    def discover(self) -> None:
        """Phase DISCOVER: read every contract. Nothing is started yet."""
        self.enter_phase("DISCOVER")
        self._plans = [CapabilityPlan(capability, self.threads) for capability in self._capabilities]

    def build(self) -> None:
        """Phase BUILD: the indexes. Two claims on one key end here."""
        self.enter_phase("BUILD")
        for plan in self._plans:
            if plan.capability.durable:
                self._keep_commands_of(plan.capability)
            slot = self._slot_for(plan)
            self._slots.append(slot)
            self.exchange.router.add(slot)

    def _keep_commands_of(self, capability: Capability) -> None:
        if self.log is None:
            raise CapabilityError(
                f"capability {capability.id!r} is durable, but this kernel has no log",
                remedy="give the kernel a log, or run it with `mainspring serve`",
            )
        if self.exchange.durable is None:
            self.exchange.durable = DurableCommands(self.log, self.exchange, self._outcome_ttl_ms, self.cluster)

    def _slot_for(self, plan: CapabilityPlan) -> ActorSlot:
        kind: type[ActorSlot] = WorkerSlot
        if plan.capability.handlers:
            kind = LanedSlot if plan.laned else HandlerSlot
        if plan.capability.isolation == "process":
            from mainspring.kernel.processes.process import (  # most nodes need none, and it costs
                ProcessSlot,
                ProcessWorkerSlot,
            )

            kind = ProcessSlot if plan.capability.handlers else ProcessWorkerSlot
        return kind(plan, self)

    def spawn(self) -> None:
        """Phase SPAWN: make the actors. One that cannot be made ends those already there."""
        self.enter_phase("SPAWN")
        for slot in self._slots:
            try:
                slot.start()
            except Exception as error:
                self._terminate_all()
                raise BootError(f"capability {slot.id!r} could not be spawned: {text_of(error)}") from error

    async def attach(self) -> None:
        """Phase ATTACH: listen to the actors, and give stored commands without an outcome to them again."""
        self.enter_phase("ATTACH")
        for slot in self._slots:
            slot.attach()
        if self._own_loop:
            self.loop.attach()
        self._aio = asyncio.get_running_loop()
        self.running = True
        for slot in self._slots:
            try:
                await slot.ready()
            except Exception as error:
                raise BootError(f"capability {slot.id!r} could not be started: {text_of(error)}") from error
        self.blobs.start()
        if self.exchange.durable is not None:
            await self.exchange.durable.recover()
        if self.durable_timers is not None:
            await self.durable_timers.start()
        if self._trace is not None:
            await self._trace.start()
        self.exchange.remote.start()

    def enter_phase(self, name: str) -> None:
        """Note that a boot phase has begun; phases only come in their order."""
        if self.phases and PHASES.index(name) <= PHASES.index(self.phases[-1]):
            raise BootError(f"boot phase {name} came after {self.phases[-1]}")
        self.phases.append(name)

    def ready(self, adapters: Sequence[str] = ()) -> Message:
        """The last phase: the `Sys.BootComplete` event, which has also passed the choke point when this returns."""
        self._adapters = list(adapters)
        self.enter_phase("READY")
        message = self.exchange.make("event", "Sys.BootComplete", encode_data(self.summary()))
        self.exchange.turn_event((message, None))
        return message

    def go_on(self) -> None:
        """Begin what a former life left: durable commands without an outcome, durable timers. `start` does it too."""
        if self.exchange.durable is not None:
            self.exchange.durable.go_on()
        if self.durable_timers is not None:
            self.durable_timers.go_on()

    def summary(self) -> dict[str, Any]:
        """What runs: the data of `Sys.BootComplete`."""
        return {
            "capabilities": [{"id": slot.id, "handles": slot.plan.handles} for slot in self._slots],
            "subscriptions": self.exchange.router.subscribers(),
            "adapters": self._adapters,
            "timers": {"defaultTimeout": self.exchange.deadlines.default_ms},
        }

    async def drain(self, grace_ms: float = 5_000) -> bool:
        """Refuse new requests from clients, wait for open ones, fail what is left with 503. True: none was left."""
        self.exchange.closing = True
        self.timers.clear()
        await self._lanes_passed()
        expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.loop.schedule(grace_ms, wake, expired)
        try:
            while self.exchange.pending and not expired.done():
                await asyncio.wait([self._next_quiet(), expired], return_when=asyncio.FIRST_COMPLETED)
        finally:  # also when the wait is cut short: nobody is left without an outcome
            self.loop.cancel(timer)
            done = not self.exchange.pending
            self._fail_open()
        await self._lanes_passed()
        return done

    async def quiescent(self) -> None:
        """Wait until nothing is left to do: no message, no open request, no event being handled, no timer."""
        while True:
            await self._lanes_passed()
            if any(self.liveness().values()):
                await self._next_quiet()
            elif not self.loop.counters().user_depth:
                return

    async def _lanes_passed(self) -> None:
        """Wait until everything posted before this has had its turn."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loop.post(wake, waiter)
        await waiter

    def _next_quiet(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._quiet.append(waiter)
        self.exchange.waits_for_quiet = True
        return waiter

    def _wake_quiet(self) -> None:
        """Something came to its end: let those who wait for silence look again."""
        self.exchange.waits_for_quiet = False
        waiting, self._quiet = self._quiet, []
        for waiter in waiting:
            wake(waiter)

    def _fail_open(self) -> None:
        """Every open request gets its outcome, also at the end."""
        for mail in tuple(self.exchange.pending):
            later = "a stored command runs after the restart; sent again with the same id, it gives its answer"
            remedy = later if mail.unrecorded else "try again"
            self.exchange.fail(mail, faults.SHUTTING_DOWN, 503, "the node is shutting down", remedy)

    async def stop(self) -> None:
        """Fail what is still open, terminate every actor, let go of the loop. Idempotent."""
        self.exchange.closing = True
        self._fail_open()
        self.timers.clear()
        self.exchange.streams.clear()
        self._terminate_all()
        self.blobs.stop()
        await self.exchange.remote.stop()
        if self.exchange.durable is not None:
            await self.exchange.durable.close()
        if self.durable_timers is not None:
            await self.durable_timers.close()
        await self.dead_messages.close()
        if self._trace is not None:
            await self._trace.close()
        for slot in self._slots:
            await slot.ended()
        if self._own_threads:
            self.threads.close()
        if self._own_loop and self.running:
            self.loop.detach()
        self.running = False

    def _terminate_all(self) -> None:
        for slot in self._slots:
            slot.stop()

    def request_shutdown(self) -> None:
        """A client asked the node to end; the node decides how."""
        if self.on_shutdown is not None:
            self.on_shutdown()

    async def __aenter__(self) -> Kernel:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- asking --------------------------------------------------------------------------------------------------

    def ask(
        self,
        kind: str,
        type: str,
        data: Any = None,
        *,
        timeout: Duration | None = None,
        id: str | None = None,
        correlation: str | None = None,
        causation: str | None = None,
        retry: Retry | None = None,
    ) -> asyncio.Future[Any]:
        """Send a command or a query; await the outcome: the reply's data, or `Fail` with the error's code.

        It is sent by calling, not by awaiting. Giving up the wait does not take it back. A durable command with an `id`
        may be sent again: it is carried out once. With `retry` it is sent again when it fails with an error that may
        pass.
        """
        if kind not in ("command", "query"):
            raise ValueError(f"ask takes a command or a query, not {kind!r}")
        if not is_type(type):
            raise ValueError(f"{type!r} is not a message type: two PascalCase segments, like Memory.Get")
        limit_ms = None if timeout is None else timeout_ms(timeout)
        if not self.running:
            raise NotConfigured("the kernel is not running", remedy="await kernel.start() first")
        trace = None if tracing.recorder is None else tracing.here()
        id = id or self.ids()
        metadata = Metadata(id, self.exchange.wall_ms(), correlation, causation, limit_ms, trace, retry=retry)
        waiter: asyncio.Future[Any] = self._aio.create_future()
        caller: Origin = AskOrigin(waiter)
        message = Message(kind, type, encode_data(data), metadata)  # type: ignore[arg-type]
        self.loop.offer(self.exchange.turn_request, (message, caller))
        return waiter

    def exchange_request(self, message: Message, caller: Any = None) -> asyncio.Future[Message]:
        """Send a request, for `caller` where one has limited rights; the future gives its reply or error message."""
        if not self.running:
            raise NotConfigured("the kernel is not running", remedy="await kernel.start() first")
        waiter: asyncio.Future[Message] = self._aio.create_future()
        origin: Origin = SendOrigin(waiter, caller)
        self.loop.offer(self.exchange.turn_request, (message, origin))
        return waiter

    def ask_node(self, node: NodeView, kind: str, type: str, data: Any, *, timeout_ms: float) -> asyncio.Future[Any]:
        """Ask one node in particular; await the outcome as with `ask`."""
        return self.exchange.remote.ask(node, kind, type, data, timeout_ms)

    async def outcome(self, id: str) -> Message | None:
        """The outcome of a durable command; None while it has none. Raises `KeyError` for an id never accepted."""
        return (await self.stored_command(id)).outcome

    async def stored_command(self, id: str) -> StoredCommand:
        """A durable command as it is kept. Raises `KeyError` for an id never accepted."""
        if self.exchange.durable is None:
            raise KeyError(id)
        return await self.exchange.durable.find(id)

    def emit(
        self, type: str, data: Any = None, *, causation: str | None = None, correlation: str | None = None
    ) -> None:
        """Send an event as the node itself: something happened."""
        exchange = self.exchange
        event = exchange.make("event", type, encode_data(data), causation, correlation)
        self.loop.post(exchange.turn_event, (event, None))

    def stream(self, type: str, data: Any = None, *, causation: str | None = None) -> None:
        """Send an event of another node to the connections that want it. No handler of this node gets it."""
        event = self.exchange.make("event", type, encode_data(data), causation=causation)
        self.loop.post(self.exchange.turn_stream, event)

    # --- looking -------------------------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        """Whether requests of clients are refused, because the kernel is about to stop."""
        return self.exchange.closing

    @property
    def given_up(self) -> list[str]:
        """Capabilities that failed too often and answer 503 until `start_again`."""
        return [slot.id for slot in self._slots if slot.unhealthy]

    def start_again(self, capability: str) -> bool:
        """Start a capability that was given up. False: it was not. Raises `KeyError` for an unknown one."""
        return self.exchange.router.slots[capability].start_again()

    @property
    def slots(self) -> tuple[ActorSlot, ...]:
        """The places of the actors, in the order of registration."""
        return tuple(self._slots)

    def contract(self, type: str) -> Contract | None:
        """What messages of this type take and give; None when nobody handles them."""
        return self.exchange.router.find(type)

    def contracts(self) -> list[Contract]:
        """Everything that can be asked, in the order it was registered."""
        return self.exchange.router.contracts()

    def forwarded_contracts(self) -> list[Contract]:
        """Everything that was passed on to other nodes so far."""
        return self.exchange.remote.contracts()

    def served_by_others(self) -> dict[str, list[NodeView]]:
        """`kind:Type` of everything that other nodes handle, with those nodes."""
        return self.exchange.remote.served()

    def note(
        self,
        kind: str,
        type: str,
        id: str,
        *,
        causation: str | None = None,
        correlation: str | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Add something that is no message, like a run or a stored event, to the causation tree."""
        metadata = Metadata(id, self.clock.wall_ms() if at_ms is None else at_ms, correlation, causation)
        self.exchange.recent_headers.append((kind, type, metadata))

    def trace(self, id: str) -> list[CausationNode]:
        """The causation tree around a message that passed lately."""
        return causation_tree(self.exchange.recent_headers, id)

    async def whole_trace(self, id: str) -> list[CausationNode]:
        """The same with what other parts have of it: `trace_more(id, tree)` may add to the tree."""
        tree = self.trace(id)
        return tree if self.trace_more is None else await self.trace_more(id, tree)

    def liveness(self) -> dict[str, int]:
        """What keeps the kernel busy: requests in flight, events being handled, scheduled messages."""
        exchange = self.exchange
        return {"inFlight": len(exchange.pending), "events": exchange.open_events, "timers": len(self.timers)}
