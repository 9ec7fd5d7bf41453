"""Core: a node without its sockets. The parts of one process on one loop and one log, booted in phases.

Everything that is acquired says at once how to give it back, so a failure in any phase undoes exactly what was done, in
reverse. The clock, the engine, randomness and ids are passed in: `mainspring.testing` boots the same core on virtual
time and in memory, so that a test runs what a node runs.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.app import App, DeclaredConsumer, refuse_shared_groups
from mainspring.beats import BEATS_ROLE, Driver, Heartbeat
from mainspring.builtin import KernelPort, beat_capability, bus_capability, kernel_capabilities, run
from mainspring.bus import Bus, Checker, Published
from mainspring.bus.access import Token, TokenSource
from mainspring.cluster import About, Alone, Cluster, DurabilityWatch, Home, Membership, node_name, with_patience
from mainspring.codec import Encoding
from mainspring.errors import BootError, MainspringError
from mainspring.kernel import Kernel
from mainspring.log import (
    Append,
    DamagedRecord,
    Engine,
    FallibleEngine,
    Log,
    LogClock,
    LogGone,
    Prepared,
    TimedEngine,
    TransactionalEngine,
    Unreadable,
    open_engine,
)
from mainspring.loop import Clock, HandlerThreads, Loop, MonotonicClock, VirtualClock, Watchdog
from mainspring.message import Ids, Message, encode_bytes, new_uuid
from mainspring.node.batches import BatchConsuming
from mainspring.node.causation import RunTraces, TracedInlet, TracedPort, note_event
from mainspring.node.consumers import Consuming
from mainspring.node.declarations import (
    Declarations,
    PublishedVersions,
    groups_of,
    install_schemas,
    refuse_former_groups,
    schedule_consumers,
)
from mainspring.node.patterns import PatternConsuming
from mainspring.node.stored_records import EncodedLog, read_with_care
from mainspring.node.tasks import NodePort
from mainspring.private_files import narrow
from mainspring.runs import Runtime
from mainspring.settings import Settings
from mainspring.status import AttentionDesk, GroupWatch, NodeHistory, RefusedOutgoings, Sampler
from mainspring.tasks import Worker, install_effects
from mainspring.telemetry import error_keeping, tracing, with_causation

if TYPE_CHECKING:
    from mainspring.node.in_process import InProcess

logger: logging.Logger = logging.getLogger("mainspring.node")

_WITHOUT_LOG_S: Final = 1.0  # for each step of stopping, when nothing can be stored any more
_MOMENT_S: Final = 0.2  # for each thing that is still to be given back when the time for all of them is up


class BootFailure(BootError):
    """Boot stopped in `phase`; everything before it was undone."""

    def __init__(self, phase: str, cause: Exception) -> None:
        if isinstance(cause, MainspringError):
            super().__init__(f"boot failed in phase {phase}: {cause.message}", remedy=cause.remedy, code=cause.code)
        else:
            super().__init__(f"boot failed in phase {phase}: {type(cause).__name__}: {cause}")
        self.phase = phase


@functools.cache
def _version() -> str:
    """Of this software. Importing what finds it takes long, and a node alone is seldom asked."""
    from importlib.metadata import version

    return version("mainspring")


def _sealed_text(encoding: Encoding, payload: Any) -> bytes:
    return encoding.seal(encode_bytes(payload))


class Core:
    """The parts of one process: `boot` them, then `drain` them. Used once."""

    def __init__(
        self,
        settings: Settings,
        app: App | None = None,
        *,
        clock: Clock | None = None,
        engine: Engine | None = None,
        source: random.Random | None = None,
        new_id: Callable[[], str] = new_uuid,
        message_ids: Ids | None = None,
        checker: Checker | None = None,
        program: str = "",
    ) -> None:
        """`source` gives random numbers; `program` is the name under which a beat's journal remembers it."""
        self.settings = settings
        error_keeping.configure(tracebacks=settings.keep_tracebacks, redact=settings.redact)
        self.clock: Clock = clock or MonotonicClock()
        self.loop: Loop = Loop(self.clock, max_turns_per_slice=settings.max_turns_per_slice)
        self.watchdog: Watchdog | None = None
        if not isinstance(self.clock, VirtualClock):  # its thread measures real time
            self.watchdog = Watchdog(settings.slow_turn_ms, self.clock, loop=self.loop)
        self.threads: HandlerThreads = HandlerThreads(settings.handler_threads)  # for plain functions of the program
        self.app = app
        self.consuming: list[Consuming | PatternConsuming] = []
        self.task_worker: Worker | None = None
        self.declarations: Declarations | None = None
        self._engine = engine
        self._source = source
        self._new_id = new_id
        self._message_ids = message_ids
        self._checker = checker
        self._program_name = program
        self._undo = AsyncExitStack()
        self.draining: bool = False
        self._on_shutdown: Callable[[], None] = lambda: None
        self._about = About()
        self._built_in: set[str] = set()
        self._text_of: Callable[[Any], bytes] = encode_bytes  # of a payload that the program publishes
        self.failure: MainspringError | None = None  # why the node stops although nobody told it to

    async def boot(self, on_ready: Callable[[Message], object] = lambda _: None) -> Message:
        """Start everything; gives the Sys.BootComplete message. Raises BootFailure, with everything undone.

        `on_ready` is called with it before anything goes on that a former life left unfinished: that may have ended
        the process.
        """
        phases = ["LOAD"]
        try:
            await self._prepare()
            tracing.switch_on()
            await self._load()
            phases = self.kernel.phases
            self.bus.delivery.hold()
            await self._undo_later(self.bus.start, self.bus.stop)
            for unreadable in self.log.records.found.values():
                self._note_unreadable(unreadable)
            self.log.records.on_found = self._note_unreadable
            if self.app is not None:
                self.declarations = Declarations(self.app, self.bus, self.log, self.loop, self.cluster)
                await self._undo_later(self.declarations.settle_topics, self.declarations.stop)
                await install_schemas(self.app, self.bus, self.versions)
                self._serve_tasks(self.app)
                await self.app.hooks.enter(self.app, self._undo, self.threads)
                tracing.switch_on()  # once more: a program may configure its traces when it starts
            await self._undo_later(functools.partial(self.kernel.start, go_on=False), self.kernel.stop)
            await self._undo_later(
                functools.partial(self.runtime.start_service, go_on=False), self.runtime.stop_service
            )
            await self._start_beats()
            await self._start_consumers()
            self._move_outgoing()
            if self.history is not None:
                await self._undo_later(self._sampler.start, self._sampler.stop)
            self.kernel.enter_phase("ADAPT")
            adapters = await self._adapt()
            self._introduce(adapters)
            if self.watchdog is not None:
                asyncio.get_running_loop().call_soon(self.watchdog.booted)
            ready = self.kernel.ready(adapters)
            on_ready(ready)
            self.bus.delivery.go_on()
            self.kernel.go_on()
            self.runtime.go_on()
            return ready
        except Exception as error:
            await self._undo.aclose()
            raise BootFailure(phases[-1], error) from error
        except asyncio.CancelledError:  # somebody does not want to wait any longer
            await self._undo.aclose()
            raise

    def on_shutdown(self, callback: Callable[[], None]) -> None:
        """What to call when a client asks the node to stop, or when it cannot go on; at once if that is so already."""
        self._on_shutdown = callback
        if self.failure is not None:
            callback()

    async def drain(self) -> None:
        """Stop intake; finish what was accepted; give back leases, sockets and files. Each step within `drain_ms`."""
        self.draining = True
        self._retire()
        for each in self.consuming:
            each.quiesce()
        await self._bounded("stop intake", self._stop_intake())
        await self._bounded("finish", self._finish())
        await self._give_back()

    @property
    def _drain_s(self) -> float:
        """How long each step may take. Without its log a node can finish nothing."""
        limit_s = self.settings.drain_ms / 1000
        return min(limit_s, _WITHOUT_LOG_S) if isinstance(self.failure, LogGone) else limit_s

    async def _finish(self) -> None:
        """Handlers and consumers first: what they say on their last steps must still find the bus open."""
        finishing = [self.runtime.finish(), *(each.finish() for each in self.consuming)]
        if self.task_worker is not None:
            finishing.append(self.task_worker.finish())
        await asyncio.gather(self.kernel.drain(self.settings.drain_ms), *finishing)
        await self.threads.idle()
        await self.bus.drain()

    # What a node adds

    async def _prepare(self) -> None:
        """Before anything is acquired."""
        settings = self.settings
        self.tokens: TokenSource = TokenSource(
            settings.tokens, settings.tokens_file, certificates=bool(settings.tls_client_ca)
        )

    async def _adapt(self) -> list[str]:
        """Open the sockets; gives their addresses."""
        return []

    async def _stop_intake(self) -> None:
        """Take nothing new from outside."""

    # The phases

    async def _load(self) -> None:
        settings, app = self.settings, self.app
        encoding = None if app is None else app.encoding
        if encoding is not None:
            self._text_of = functools.partial(_sealed_text, encoding)
        self.loop.attach()
        self._undo.callback(self.loop.detach)
        self._undo.callback(self.threads.close)
        if self.watchdog is not None:
            self.watchdog.booting = True
            self.watchdog.start()
            self._undo.callback(self.watchdog.stop)
        await self._open_log()
        self._random: Callable[[], float] = self._source.random if self._source else random.random
        self.bus: Bus = Bus(
            self.log,
            self.clock,
            self.loop,
            settings=settings,
            new_id=self._new_id,
            random=self._random,
            checker=self._checker or (app.checker if app else None),
            cluster=self.cluster,
            tokens=self.tokens,
        )
        self.tokens.on_change = self._tokens_changed
        self.versions: PublishedVersions = PublishedVersions(self.bus)
        self.kernel: Kernel = Kernel(
            loop=self.loop,
            clock=self.clock,
            ids=self._message_ids,
            log=self.log,
            default_timeout_ms=settings.request_timeout_ms,
            data_dir=settings.data,
            restart=app.restart if app else None,
            publisher=self._publish,
            preparer=self._prepare_event,
            on_shutdown=self._asked_to_stop,
            cluster=self.cluster,
            threads=self.threads,
            keep_trace=settings.keep_trace,
        )
        self.kernel.enter_phase("LOAD")
        self.runtime: Runtime = Runtime(
            clock=self.clock,
            loop=self.loop,
            log=self.log,
            random=self._source,
            cluster=self.cluster,
            recovery_ms=settings.runs_recovery_ms,
            retention_ms=settings.runs_retention_ms or None,
            early_signal_ms=settings.runs_early_signal_ms,
            max_steps_per_tick=settings.runs_steps_per_turn,
            contract="app",
            threads=self.threads,
        )
        self.kernel.trace_more = RunTraces(self.runtime)
        port = TracedPort(self.bus, self.kernel, self.versions, encoding)
        self.runtime.connect(ask=KernelPort(self.kernel, encoding), publish=port, events=port)
        if app is not None:
            install_effects(self.runtime, app.tasks, port)
        self.heartbeat: Heartbeat = self._heartbeat()
        self._watch_status()
        self.kernel.register(
            *kernel_capabilities(self.kernel, self.attention),
            bus_capability(self.bus, self.attention.refused),
            run(self.kernel, self.runtime, encoding, self.bus.audit),
            beat_capability(self.heartbeat, self.kernel),
        )
        self._built_in = self.kernel.ids_taken
        if app is not None:
            self._install(app)

    def _watch_status(self) -> None:
        """What the people who run the node want to know."""
        watch, step_ms = GroupWatch(self.bus), self.settings.history_interval_ms
        refused = RefusedOutgoings(self.log) if isinstance(self.log.engine, TransactionalEngine) else None
        self.attention: AttentionDesk = AttentionDesk(
            clock=self.clock,
            bus=self.bus,
            kernel=self.kernel,
            runtime=self.runtime,
            cluster=self.cluster,
            watch=watch,
            behind_ms=self.settings.behind_ms,
            refused=refused,
        )
        self.history: NodeHistory | None = NodeHistory(self.log, self.cluster.node, step_ms) if step_ms else None
        if self.history is not None:
            self._sampler: Sampler = Sampler(self.bus, self.runtime, self.loop, self.history, watch)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self.log,
            cluster=self.cluster,
            clock=self.clock,
            program=self._program_name,
            retain_beats=self.settings.retained_beats or None,
            slow_enzyme_ms=self.settings.slow_enzyme_ms,
        )

    async def _open_log(self) -> None:
        """The log, and this node's place among the others on it."""
        settings = self.settings
        if self._engine is None and settings.engine != "memory":
            narrow(Path(settings.data))
        engine = self._engine or open_engine(
            settings.engine, settings.data, self.clock, database=settings.mongo_db, new_id=self._new_id
        )
        encoding = None if self.app is None else self.app.encoding
        self.log: Log = Log(engine) if encoding is None else EncodedLog(engine, encoding)
        read_with_care(self.log)
        await with_patience(self.log.open, self.loop, settings.wait_for_engine)
        self._undo.push_async_callback(self.log.close)
        if isinstance(engine, FallibleEngine):
            engine.on_failure(self._must_end)
        required = settings.require_durable
        self.durability: DurabilityWatch = DurabilityWatch(
            self.log, self.loop, required=required, failed=self._must_end
        )
        await with_patience(self.durability.ask, self.loop, settings.wait_for_engine)
        if self.log.shared:
            watching = asyncio.create_task(self.durability.follow(), name="durability")
            self._undo.callback(watching.cancel)
        if isinstance(engine, TimedEngine):
            await self._go_by_time_of(engine)
        self.cluster: Cluster = await self._join() if self.log.shared else self._alone()

    async def _go_by_time_of(self, engine: TimedEngine) -> None:
        """Nodes of one log have one time of day: the servers', whatever this machine's clock says."""
        clock = LogClock(self.clock)
        await with_patience(functools.partial(clock.ask, engine), self.loop, self.settings.wait_for_engine)
        following = asyncio.create_task(clock.follow(engine, self.loop), name="log clock")
        self._undo.callback(following.cancel)
        self.clock = clock

    def _alone(self) -> Alone:
        name = node_name(self.settings.node, "")
        return Alone(name, about=self._tell, started=self.clock.wall_ms())

    async def _join(self) -> Membership:
        settings, home = self.settings, ""
        if self._engine is None:
            owned = Home(settings.data, self._new_id)
            self._undo.callback(owned.leave)
            home = owned.id
        membership = Membership(
            self.log,
            self.loop,
            node=node_name(settings.node, home),
            new_id=self._new_id,
            lease_ms=settings.node_lease_ms,
            about=self._tell,
            home=home,
        )
        membership.on_end(self._must_end)
        self._undo.push_async_callback(membership.leave)
        await with_patience(membership.join, self.loop, settings.wait_for_engine)
        return membership

    def _asked_to_stop(self) -> None:
        self.bus.audit.did("shutdown", about="Syscall.Shutdown")
        self._on_shutdown()

    def _tokens_changed(self, new: Sequence[Token], gone: Sequence[Token]) -> None:
        for action, tokens in (("token_added", new), ("token_removed", gone)):
            for token in tokens:
                self.bus.audit.did(action, token.agent, token.id)

    def _note_unreadable(self, found: Unreadable) -> None:
        self.bus.audit.did("record_set_aside", about=f"{found.space}: {found.key}", reason=found.why)

    def _must_end(self, error: MainspringError) -> None:
        """This node cannot go on; somebody has to start it again."""
        if self.failure is None:
            logger.error("the node ends: %s", error)
            self.failure = error
            self._on_shutdown()

    def _introduce(self, adapters: list[str]) -> None:
        """Tell the other nodes what this one serves, now that it does."""
        slots = [slot for slot in self.kernel.slots if slot.id not in self._built_in]
        own = {handled for slot in slots for handled in slot.plan.handles}
        own |= {f"event:{type}" for slot in slots for type in slot.plan.everywhere}
        address = self.settings.advertise or next((each for each in adapters if each.startswith("http")), "")
        program = "" if self.declarations is None else self.declarations.programs.digest
        able = (BEATS_ROLE,) if self._has_beats else ()
        self._about = About(address, serves=tuple(sorted(own)), program=program, able=able)
        self.cluster.announce()

    def _tell(self) -> About:
        return msgspec.structs.replace(self._about, version=_version())

    def _retire(self) -> None:
        """Other nodes shall ask this one for nothing any more."""
        self._about = msgspec.structs.replace(self._about, serves=(), able=(), leaving=True)
        self.cluster.announce()

    def _install(self, app: App) -> None:
        app.install_runs(self.runtime)
        app.beats.install(self.heartbeat)
        self.kernel.register(*app.capabilities(self.kernel.ids_taken))
        parts: dict[str, Any] = {"bus": self.bus, "log": self.log, "loop": self.loop, "kernel": self.kernel}
        parts |= {"runtime": self.runtime, "versions": self.versions, "threads": self.threads, "random": self._random}
        parts["encoding"] = app.encoding
        consumers = app.surrounded((*app.consumers, *schedule_consumers(app)))
        refuse_shared_groups(consumers)

        def consuming(declared: DeclaredConsumer) -> Consuming:
            if declared.transaction:
                from mainspring.node.transactions import TransactionConsuming

                return TransactionConsuming(declared, **parts)
            return (BatchConsuming if declared.batch else Consuming)(declared, **parts)

        for each in consumers:
            of_pattern = PatternConsuming(each, consuming, self.bus, self.loop) if each.is_pattern else None
            self.consuming.append(of_pattern or consuming(each))
        tasks = list(app.tasks) if self.settings.run_tasks else []
        self.bus.topics.declared = groups_of(consumers, tasks)
        self.bus.groups.has_consumers = bool(consumers or tasks)

    def _serve_tasks(self, app: App) -> None:
        app.node = self.in_process
        self._undo.callback(setattr, app, "node", None)
        self.tasks_port: NodePort = NodePort(
            bus=self.bus,
            log=self.log,
            kernel=self.kernel,
            runtime=self.runtime,
            publish=self._publish,
            new_id=self._new_id,
            random=self._source.random if self._source else random.random,
        )
        app.tasks.use(self.tasks_port)
        self._undo.push_async_callback(self.tasks_port.close)
        self._undo.callback(app.tasks.use, None)

    def in_process(self) -> InProcess:
        """The verbs of the program in this process."""
        from mainspring.node.in_process import InProcess  # most nodes never need them

        encoding = None if self.app is None else self.app.encoding
        loop = self.tasks_port.event_loop
        return InProcess(self.bus, self.kernel, self._publish, self._new_id, loop, encoding, runtime=self.runtime)

    async def _start_tasks(self, app: App) -> None:
        if not app.tasks or not self.settings.run_tasks:
            return
        self.task_worker = Worker(app.tasks, concurrency=self.settings.task_concurrency, threads=self.threads)
        self._undo.push_async_callback(self.task_worker.stop, 0.0)
        await self.task_worker.start()

    def _move_outgoing(self) -> None:
        """Move what programs store in their own transactions into the log, where the engine has such programs."""
        if isinstance(self.log.engine, TransactionalEngine):
            from mainspring.node.outgoing import OutgoingMover

            mover = OutgoingMover(self.log, self.bus, self.kernel, self.cluster)
            self.log.engine.on_outgoing(mover.wake)
            self._in_background(mover.run())

    async def _start_beats(self) -> None:
        programs = None if self.declarations is None else self.declarations.programs
        self._undo.push_async_callback(self.heartbeat.aclose)
        try:
            await self.heartbeat.open(programs, able=self._has_beats)
        except DamagedRecord as error:  # a beat must not go on from a state that is not whole; the rest of the node may
            logger.error("there are no beats on this node: %s", error)
            self._note_unreadable(Unreadable(error.space, error.key, error.version, "there are no beats without it"))
            return
        driver = Driver(self.heartbeat, self.loop, interval_ms=self.settings.beat_interval_ms or None)
        for declared in self.app.beats.topics if self.app else ():
            await self.bus.ensure_topic(declared.topic)
            self.heartbeat.add_inlet(TracedInlet(self.log, declared, self.kernel))
            self._in_background(self._wake_on_events(driver, declared.topic))
        driver.start()
        self._undo.push_async_callback(driver.stop)

    @property
    def _has_beats(self) -> bool:
        return self.app is not None and bool(self.app.beats)

    async def _wake_on_events(self, driver: Driver, topic: str) -> None:
        async for _ in self.bus.follow(topic):
            driver.wake()

    async def _start_consumers(self) -> None:
        if self.declarations is not None:
            await self.declarations.settle_schedules()
        refuse_former_groups([each.declared for each in self.consuming], self.bus)
        for each in self.consuming:
            await self._undo_later(each.start, each.stop)
        if self.app is not None:
            await self._start_tasks(self.app)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._undo.push_async_callback(end)

    async def _publish(self, topic: str, payload: Any, **options: Any) -> Any:
        options["headers"] = self.versions.headers(topic, with_causation(options.get("headers")))
        published = await self.bus.publish(topic, self._text_of(payload), **options)
        note_event(self.kernel, topic, published.id, published.ts, options.get("headers"))
        return published

    def _prepare_event(self, topic: str, payload: Any, options: dict[str, Any]) -> tuple[Prepared, Published] | None:
        """An event to be stored with the outcome of a durable command; a delayed one is stored by itself."""
        if options.keys() - {"key", "headers", "id", "ttl"}:
            return None
        key, headers, id = options.get("key"), self.versions.headers(topic, options["headers"]), options["id"]
        ttl = options.get("ttl", 0)
        prepared = self.bus.prepare(topic, self._text_of(payload), key=key, headers=headers, id=id, ttl=ttl)
        (append,) = (operation for operation in prepared.operations if isinstance(operation, Append))
        note_event(self.kernel, topic, id, append.ts, headers)
        return prepared, Published(topic, append.partition, 0, id, append.ts)

    # Stopping

    async def _undo_later(self, start: Callable[[], Awaitable[Any]], stop: Callable[[], Awaitable[Any]]) -> None:
        await start()
        self._undo.push_async_callback(stop)

    async def _give_back(self) -> None:
        """Everything gets its turn, but when the time is up no more than a moment: an engine may be away for hours."""
        closing = asyncio.ensure_future(self._undo.aclose())
        limit_s = self._drain_s
        await asyncio.wait((closing,), timeout=limit_s)
        if not closing.done():
            logger.warning("give back took longer than %g s and was cut short", limit_s)
        while not closing.done():
            closing.cancel()
            await asyncio.wait((closing,), timeout=_MOMENT_S)
        if not closing.cancelled():
            closing.result()

    async def _bounded(self, step: str, *work: Awaitable[Any]) -> None:
        limit_s = self._drain_s
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*work)
        except TimeoutError:
            logger.warning("%s took longer than %g s and was cut short", step, limit_s)
