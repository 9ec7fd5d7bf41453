"""The heartbeat: one line of beats, its inboxes, and the beat that works through them.

A beat collects everything it decides in a draft, stores it as one batch, and only then changes what is in memory. Until
that moment the beat can fail, be aborted or be cancelled and has not happened: inbox, state and registry are as before.

Changes of registry and bindings count at once between beats. One that comes from outside while a beat runs waits for
its end; one that an enzyme asks for is part of what the beat decides.

Reading answers from memory where it can and from the log where it must. Replays run in a heartbeat of their own, and a
fork writes another line, so neither changes this one.

Everything that may wait is a coroutine, written once. The plain methods run it without a loop, which works in memory
and on a blocking log, where it never suspends; the methods with an `a` before their name await it.

A heartbeat has its line for itself (`OwnLine`) or together with the other nodes of a cluster (`SharedLine`, in
`shared/`). That is decided once, in the constructor; what differs between the two is asked of that object.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.beats.beat import Draft, PlannedCall
from mainspring.beats.calls import CurrentLoop, EnzymeHost, PrivateLoop, SlowCallWatch, call, run_now
from mainspring.beats.errors import BeatRunning, NotOpen, RegistrationConflict
from mainspring.beats.history.fork import fork
from mainspring.beats.history.reader import LineReader, StateDifference
from mainspring.beats.inlets import Inlet, Taken
from mainspring.beats.lineage import NO_ORIGINS, CallContext, Origins, SignalOrigin, beat_span, current_origin
from mainspring.beats.matching.bindings import CUT, LOCAL, SPREAD
from mainspring.beats.matching.path import canonical
from mainspring.beats.matching.registry import Bind, Enzyme, Register, Unregister, checked_name, refuse_conflict
from mainspring.beats.report import BeatReport
from mainspring.beats.rules import Rules
from mainspring.beats.shared.line import SharedLine
from mainspring.beats.shared.signal_topic import LineInput, take_leftover_input
from mainspring.beats.stage import CallOutcome, Stage, checked_pair, current, landing
from mainspring.beats.state import Decided, LineState
from mainspring.beats.storage.journal import Impulse
from mainspring.beats.storage.line import RECENT_BEATS, BlockingLogAdapter, LineWriter, StoredLine
from mainspring.cluster import Cluster, Membership, NodeView, ProgramVersions
from mainspring.errors import MainspringError
from mainspring.log import BlockingLog, DamagedRecord, Log
from mainspring.loop import Clock, MonotonicClock, identifies_work
from mainspring.telemetry import Histogram, OpenSpan, nanoseconds, tracing

if TYPE_CHECKING:
    from mainspring.beats.history.replay import Replay
    from mainspring.beats.parallel import Workers

T = TypeVar("T")

_log: Final = logging.getLogger("mainspring.beats")
_CALLS_BETWEEN_YIELDS: Final = 256  # then a loop that has other work gets to it: some milliseconds of small enzymes

_result = attrgetter("result")
_code = attrgetter("code")


@dataclass(slots=True, eq=False)
class BeatTally:
    """Counted since this process opened the line. `ns` is filled by a driver, which has a clock."""

    beats: int = 0
    failed: int = 0  # beats that did not happen: a log that could not write, an inlet that failed
    signals: int = 0
    staged: int = 0
    emitted: int = 0
    results: Counter[str] = field(default_factory=Counter)  # of calls: ok, retry, failed, fatal; and duplicate
    diagnostics: Counter[str] = field(default_factory=Counter)
    ns: Histogram = field(default_factory=nanoseconds)

    def count(self, report: BeatReport) -> None:
        """A beat happened."""
        self.beats += 1
        self.signals += len(report.inbox)
        self.staged += len(report.staged)
        self.emitted += len(report.emitted)
        self.results.update(map(_result, report.agenda))
        self.diagnostics.update(map(_code, report.diagnostics))


class Heartbeat:
    """A line of beats.

    Without a log it lives in memory. With a `BlockingLog` it is durable and continues at its beat. With an async `Log`
    call `await heartbeat.open()` before the first signal, and `abeat` instead of `beat`.

    Signals may come from any thread; one beat runs at a time. `parallel` ("threads" or "processes", with `workers`)
    calls independent enzymes side by side; the results are the same bytes. `program` (MODULE:APP) is noted in the log,
    for replays. Other keywords are the fields of `Rules`.

    With a `cluster` whose nodes share the log, each node has a heartbeat of the same program. One of the nodes leads
    the line and runs its beats; `abeat` on another raises `NotLeading`. `signal`, `bind`, `unbind`, `pause` and
    `resume` reach the leader from every node, once, and are durable after `aflush`. Reading answers on every node as of
    the last beat it has seen. Registrations are each node's own: they hold functions, and the leader's count.
    """

    def __init__(
        self,
        log: BlockingLog | Log | None = None,
        *,
        line: str = "main",
        program: str = "",
        cluster: Cluster | None = None,
        clock: Clock | None = None,
        parallel: str | None = None,
        workers: int = 4,
        **rules: Any,
    ) -> None:
        if isinstance(rules.get("backoff_beats"), Iterable):
            rules["backoff_beats"] = tuple(rules["backoff_beats"])
        self.rules: Rules = Rules(**rules)
        self.line: str = line
        self.tally: BeatTally = BeatTally()
        self.state: LineState = LineState(self.rules, keep_journals=None if log is None else RECENT_BEATS)
        self._writer: LineWriter | None = None
        if log is not None:
            async_log = BlockingLogAdapter(log) if isinstance(log, BlockingLog) else log
            self._writer = LineWriter(StoredLine(async_log, line), self.state, program)
        self.reader: LineReader = LineReader(self.state, self._writer.line if self._writer is not None else None)
        self._open = log is None
        self.damage: DamagedRecord | None = None  # what of the line cannot be read: then there are no beats
        self._blocking = log is None or isinstance(log, BlockingLog)
        self._running = False
        self._plays: Heartbeat | None = None
        self._lock = threading.RLock()
        self._deferred: list[object] = []  # changes from outside while a beat runs
        self._arrivals: list[tuple[int, Impulse]] = []  # signals from outside while a beat runs
        self._origins = Origins()
        self._inlets: list[Inlet] = []
        self._inlets_have_more = False
        self._listeners: list[Callable[[], object]] = []
        self._workers = None if parallel is None else _workers(parallel, workers)
        self._watch = SlowCallWatch(self.rules.slow_enzyme_ms) if self.rules.slow_enzyme_ms else None
        self._turns: tuple[asyncio.AbstractEventLoop | None, asyncio.Lock] = (None, asyncio.Lock())
        self._access: OwnLine | SharedLine
        if isinstance(cluster, Membership) and isinstance(log, Log):
            self._access = SharedLine(self, log, cluster, clock or MonotonicClock())
        else:
            self._access = OwnLine(self, log)
        if log is not None and self._blocking:
            run_now(self.open())

    async def open(self, programs: ProgramVersions | None = None, *, able: bool = True) -> None:
        """Load the line from the log. What was bound before is applied on top of what the log holds.

        Where several nodes share the line, `programs` knows the order of their programs and `able` says whether this
        one's has enzymes: a node with the newest program that has some leads.
        """
        if not self._open:
            try:
                await self._access.open(programs, able=able)
            except DamagedRecord as error:
                self.damage = error
                raise

    def close(self) -> None:
        """Let go of worker threads and processes. The log belongs to the code that opened it."""
        if self._workers is not None:
            self._workers.close()

    async def aclose(self) -> None:
        """Make what waits durable, then `close`. A log that cannot take it is reported, and does not stop a stop."""
        try:
            if self._open:
                await self.aflush()
        except MainspringError as error:
            _log.error("what waits for beat %d was not stored: %s", self.next_beat, error)
        await self._access.close()
        self.close()

    # --- enzymes and bindings -----------------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        query: str,
        function: Enzyme,
        match: str = "exact",
        before: Iterable[str] = (),
        after: Iterable[str] = (),
        flags: Iterable[str] = (),
    ) -> None:
        """Offer an enzyme, `function(signal, target, stage)`, for signals that match a query.

        In a beat it counts from the next beat on. Registering the same again does nothing; the same name and query with
        another match policy, other dependencies or other flags is refused, and another function is reported in the log
        and not called. `flags` ("emits", "idempotent", "stateful") say what the enzyme does, for those who read it.
        """
        new = self.state.registry.make(name, query, function, match, before, after, flags)
        stage = self._inside()
        with self._lock:
            pending = stage.changes if stage is not None else self._deferred
            refuse_conflict(self.state.registry, pending, new)
            self._change(Register(new), stage)

    def unregister(self, name: str) -> None:
        """Take back every registration of a name."""
        self._change(Unregister(checked_name(name)), self._inside())

    def bind(self, path: str, name: str, propagate: bool = True) -> None:
        """Bind an enzyme's name to a path and, when it propagates, to everything below. The latest record wins."""
        self._change(Bind(canonical(path), checked_name(name), SPREAD if propagate else LOCAL), self._inside())

    def unbind(self, path: str, name: str) -> None:
        """Put a tombstone: the name is not bound here, nor below unless it is bound again there."""
        self._change(Bind(canonical(path), checked_name(name), CUT), self._inside())

    def resolve(self, signal: str | None, target: str | None = None) -> list[str]:
        """The names that would run for a pair, in order. Nothing is called."""
        resolved = self.state.resolver.resolve(*checked_pair(signal, target))
        return [entry.name for entry in resolved.order]

    def _change(self, change: object, stage: Stage | None) -> None:
        if stage is not None:
            stage.change(change)
        else:
            self._access.change(change)

    def apply_or_defer(self, change: object) -> None:
        """Put a change from outside in force: now, or after the beat that is under way."""
        with self._lock:
            if self._running:
                self._deferred.append(change)
            else:
                self._apply(change)

    def _apply(self, change: object) -> None:
        bound = self.state.change(change)
        if self._writer is not None:
            self._writer.note_binding(bound)

    # --- signals ------------------------------------------------------------------------------------------------------

    def signal(self, signal: str | None, target: str | None = None, beat: int | None = None) -> int:
        """Queue a signal for the next beat or a later one; the beat it lands in.

        With a log it is durable when the next beat is, or after `flush`. Where several nodes share the line, this is
        the earliest beat it can land in. Called by an enzyme it is `stage.signal`.
        """
        if current.get() is not None and (stage := self._inside()) is not None:
            return stage.signal(signal, target, beat)
        impulse = Impulse(*checked_pair(signal, target))
        with self._lock:
            self._need_open()
            lands = landing(beat, self.state.beat + self._running)
            self._access.signal(impulse, beat, lands)
        self.wake()
        return lands

    def add_inlet(self, inlet: Inlet) -> None:
        """Ask a source for signals at the start of every beat."""
        self._inlets.append(inlet)

    def on_signal(self, listener: Callable[[], object]) -> None:
        """Call back, in the signalling thread, whenever a signal arrives from outside."""
        self._listeners.append(listener)

    def wake(self) -> None:
        """Tell the listeners that there is something to do."""
        for listener in self._listeners:
            listener()

    def accept_signal(self, lands: int, impulse: Impulse, origin: SignalOrigin | None) -> None:
        """Put a signal into its inbox: now, or after the beat that is under way."""
        if origin is not None:
            self._origins.note(impulse, origin)
        if self._running:
            self._arrivals.append((lands, impulse))
        else:
            self._queue(lands, impulse)

    def accept_input(self, given: LineInput) -> None:
        """Take one item of the topic through which nodes send signals, bindings and pauses to a shared line."""
        if given.bind is not None:
            self._apply(Bind(*given.bind))
        elif given.pause is not None:
            self.state.paused = given.pause
        else:
            lands = max(given.beat or 0, self.state.beat)
            self.accept_signal(lands, Impulse(given.signal, given.target), given.origin)

    def _queue(self, lands: int, impulse: Impulse) -> None:
        self.state.queues.setdefault(lands, []).append(impulse)
        if self._writer is not None:
            self._writer.note_signal(lands, impulse)

    # --- what there is to do ------------------------------------------------------------------------------------------

    @property
    def next_beat(self) -> int:
        """The beat that will run next, or that runs now."""
        return self.state.beat

    @property
    def digest(self) -> str:
        """The digest of the last beat."""
        return self.state.digest

    @property
    def waiting(self) -> int:
        """How many signals wait for the next beat, as far as this node knows."""
        return len(self.state.queues.get(self.state.beat, ())) + len(self._arrivals) + self._access.unsent

    @property
    def waiting_later(self) -> bool:
        """Whether a signal waits for a beat after the next one."""
        return any(beat > self.state.beat for beat in self.state.queues)

    @property
    def may_have_work(self) -> bool:
        """Whether signals wait for the next beat, or may wait where this heartbeat takes them from."""
        return bool(self.waiting or self._inlets) or self._access.unseen_input

    @property
    def more_waits(self) -> bool:
        """Whether the last beat could not take all there was, from an inlet or from other nodes."""
        return self._inlets_have_more or self._access.input_waits

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Where signals are taken from at the start of a beat."""
        return tuple(self._inlets)

    @property
    def leads(self) -> bool:
        """Whether it is this node that runs the beats, as far as it knows; always, unless several share the line."""
        return self._access.leads

    @property
    def leader(self) -> NodeView | None:
        """The node that leads the line, as far as this one knows; None unless several share the line."""
        return self._access.leader

    async def ready(self, *, for_work: bool = True) -> bool:
        """For a driver: whether this node may run a beat now; one `for_work` only if there is some."""
        return await self._access.ready(for_work=for_work)

    # --- beats --------------------------------------------------------------------------------------------------------

    def beat(self) -> BeatReport:
        """Run one beat. Async enzymes are awaited one by one, on a loop of their own."""
        host = PrivateLoop()
        try:
            return self._run_now(self.run_beat(host), "abeat")
        finally:
            host.close()

    async def abeat(self) -> BeatReport:
        """Run one beat on the loop that is running; after the one that is under way there, if one is."""
        async with self.turn():
            return await self._access.beat(CurrentLoop())

    def turn(self) -> asyncio.Lock:
        """Held while a beat runs, so that coroutines take turns. An enzyme is refused: it would wait for itself."""
        if self._inside() is not None:
            raise BeatRunning("an enzyme cannot run beats", remedy="emit a signal for the next beat")
        loop = asyncio.get_running_loop()
        if self._turns[0] is not loop:  # an asyncio lock serves one loop; a heartbeat may be used by one after another
            self._turns = (loop, asyncio.Lock())
        return self._turns[1]

    async def run_beat(self, host: EnzymeHost) -> BeatReport:
        """One beat, from its inbox to its place in the log and in memory."""
        with self._lock:
            self._need_open()
            self._need_rest("a beat")
            self._running = True
        try:
            paused = self.state.paused
            taken = [] if paused else await self._take()
            draft = self._draft(taken, paused=paused)
            origins = self._origins.of_inbox(draft, {p: o for _, each in taken for p, o in each.origins.items()})
            if tracing.recorder is None or not draft.inbox:
                return await self._work(draft, taken, host, origins, None)
            span = beat_span(tracing.recorder, self.line, draft, origins)
            entered = span.enter()
            try:
                return await self._work(draft, taken, host, origins, span)
            except BaseException as error:
                span.end(error)
                raise
            finally:
                span.leave(entered)
                span.end()
        finally:
            self._end()

    async def _work(
        self,
        draft: Draft,
        taken: list[tuple[Inlet, Taken]],
        host: EnzymeHost,
        origins: Mapping[int, SignalOrigin],
        span: OpenSpan | None,
    ) -> BeatReport:
        await self.call_all(draft, host, origins, span)
        decided = self.state.decide(draft)
        if not draft.aborted:
            await host.finish(self._adopt(decided, taken))
            self.tally.count(decided.report)
        return decided.report

    async def _take(self) -> list[tuple[Inlet, Taken]]:
        """What the inlets give, as far as the budget of this beat goes."""
        taken: list[tuple[Inlet, Taken]] = []
        room = self.rules.max_signals_per_beat - len(self.state.queues.get(self.state.beat, ()))
        for inlet in self._inlets:
            if room > 0:
                taken.append((inlet, await inlet.take(room)))
                room -= len(taken[-1][1].impulses)
        self._inlets_have_more = bool(self._inlets) and room <= 0
        return taken

    def _draft(self, taken: list[tuple[Inlet, Taken]], *, paused: bool) -> Draft:
        state = self.state
        registered, rules = state.note_registry(), state.note_rules()
        if self._writer is not None:
            self._writer.note_beginning(registered, rules)
        inbox = [*state.queues.get(state.beat, ()), *(impulse for _, each in taken for impulse in each.impulses)]
        events = {path: text for _, each in taken for path, text in each.events.items()}
        draft = Draft(state.beat, state.digest, self.rules, state.resolver, inbox, paused=paused, events=events)
        state.inbox = draft.inbox
        return draft

    async def call_all(
        self,
        draft: Draft,
        host: EnzymeHost,
        origins: Mapping[int, SignalOrigin] = NO_ORIGINS,
        span: OpenSpan | None = None,
    ) -> None:
        """Call the enzymes of the agenda and settle each in its turn."""

        def stage_for(planned: PlannedCall) -> Stage:
            impulse = draft.inbox[planned.item]
            stage = Stage(draft.beat, impulse.attempt, read, self)
            if span is not None or planned.item in origins:
                stage.context = CallContext(planned.registration.name, impulse, origins.get(planned.item), span)
            return stage

        def read(path: str) -> str | None:
            text = draft.events.get(path)
            return text if text is not None else self.state.text(path, draft.beat)

        done: dict[int, CallOutcome] = {}
        if self._workers is not None:
            done = await host.in_thread(partial(self._workers.run, draft, stage_for))
        for planned in draft.agenda:
            outcome = None
            if not planned.duplicate:
                outcome = done.get(planned.run)
                if outcome is None:
                    outcome = await self._call(draft, planned, stage_for(planned), host)
                if planned.item in origins:
                    self._origins.note_outcome(draft.beat, planned, outcome, origins[planned.item])
            draft.settle(planned, outcome)
            if draft.aborted:
                return
            if planned.run % _CALLS_BETWEEN_YIELDS == _CALLS_BETWEEN_YIELDS - 1:
                await host.yield_to_others()

    @identifies_work(lambda known: ("enzyme", known["registration"].name))
    async def _call(self, draft: Draft, planned: PlannedCall, stage: Stage, host: EnzymeHost) -> CallOutcome:
        impulse, registration = draft.inbox[planned.item], planned.registration
        if self._watch is None:
            return await call(registration.function, impulse.signal, impulse.target, stage, host)
        self._watch.begin(f"enzyme {registration.name!r} of beat {draft.beat} ({impulse.signal}, {impulse.target})")
        try:
            return await call(registration.function, impulse.signal, impulse.target, stage, host)
        finally:
            self._watch.end()

    async def _adopt(self, decided: Decided, taken: list[tuple[Inlet, Taken]]) -> None:
        """Make a beat durable, then real."""
        if self._writer is not None:
            await self._writer.save_beat(decided, [operation for _, each in taken for operation in each.operations])
        self.state.adopt(decided)
        for inlet, each in taken:
            inlet.settle(each)
        if self._writer is not None:
            await self._writer.collect()
        else:
            self.state.forget()

    def _end(self) -> None:
        with self._lock:
            self._running = False
            self.state.inbox = []
            for change in self._deferred:
                try:
                    self._apply(change)
                except RegistrationConflict as error:  # an enzyme of this beat may have asked for the contrary before
                    _log.warning("%s", error)
            self._deferred.clear()
            for lands, impulse in self._arrivals:
                self._queue(lands, impulse)
            self._arrivals.clear()

    # --- pausing and saving -------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether signals wait instead of being taken by beats."""
        return self.state.paused

    def pause(self) -> None:
        """From the next beat on signals wait, in order and without loss. Beats that are run still count."""
        self._access.set_paused(True)

    def resume(self) -> None:
        """From the next beat on waiting signals are worked on again."""
        self._access.set_paused(False)

    def flush(self) -> None:
        """Make what came from outside since the last beat durable: signals, bindings, and whether it is paused."""
        self._run_now(self._flush(), "aflush")

    async def aflush(self) -> None:
        """`flush` on the loop that is running; after the beat that is under way there, if one is."""
        await self._access.flush()

    async def _flush(self) -> None:
        with self._lock:
            self._need_open()
            self._need_rest("flush")
            if self._writer is None:
                return
            self._running = True  # nothing may change while it is being written
        try:
            await self._writer.save_between_beats()
        finally:
            self._end()

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, path: str, at: int | None = None) -> Any:
        """The committed value of a path now, or what enzymes read in beat `at`; None where there is none.

        Also the runtime tree (/rt/beat/<N>/inbox, agenda, stage, ...; /rt/dead/<N>) and the content store
        (/cas/<sha256>). On an async log, beats further back than the last few need `aread`.
        """
        stage = self._inside()
        if stage is not None and at is None:
            return stage.read(path)
        self._need_open()
        return run_now(self.reader.read(path, at, from_log=self._blocking))

    async def aread(self, path: str, at: int | None = None) -> Any:
        """`read` on the loop that is running."""
        self._need_open()
        return await self.reader.read(path, at, from_log=True)

    def paths(self, prefix: str = "/", at: int | None = None) -> list[str]:
        """The paths at or below a prefix that hold something, by code point."""
        return self.state.cells.paths(canonical(prefix), self.reader.readable(at))

    def diff(self, earlier: int, later: int) -> list[StateDifference]:
        """What differs between the states enzymes read in two beats, by path."""
        return self.reader.difference(earlier, later)

    def journal(self, beat: int) -> bytes:
        """The records of a beat as they were written, checked against their digest; `unknown_beat` when not kept."""
        return self._run_now(self.reader.checked_journal(beat), "aread")

    def verify(self) -> list[int]:
        """The beats whose journals or values are not what the line's last digest says; empty when all is well."""
        return self._run_now(self.reader.damaged(), "averify")

    async def averify(self) -> list[int]:
        """`verify` on the loop that is running."""
        return await self.reader.damaged()

    @property
    def program(self) -> str:
        """MODULE:APP of the program that ran this line's beats, where it was named."""
        return "" if self._writer is None else self._writer.program

    # --- replays and forks --------------------------------------------------------------------------------------------

    def replay(self, first: int | None = None, last: int | None = None) -> Replay:
        """Run beats again from what came from outside, in memory, and compare; nothing here changes.

        Enzymes are really called. Those that touch the world outside their stage touch it again.
        """
        host = PrivateLoop()
        try:
            return self._run_now(self._replay(host, first, last), "areplay")
        finally:
            host.close()

    async def areplay(self, first: int | None = None, last: int | None = None) -> Replay:
        """`replay` on the loop that is running."""
        return await self._replay(CurrentLoop(), first, last)

    async def _replay(self, host: EnzymeHost, first: int | None, last: int | None) -> Replay:
        from mainspring.beats.history.replay import replay

        self._need_open()
        self._need_rest("replay")
        return await replay(self, host, first, last)

    def plays(self, original: Heartbeat) -> None:
        """Stand in for another heartbeat: what its enzymes ask of it while this one runs them is asked of this one."""
        self._plays = original

    def fork(self, at: int, new: str) -> None:
        """Start a new line in the log after beat `at` of this one. This line stays as it is."""
        self._run_now(self.afork(at, new), "afork")

    async def afork(self, at: int, new: str) -> None:
        """`fork` on the loop that is running."""
        if self._writer is None:
            raise NotOpen("a heartbeat in memory has no lines", remedy="give it a log")
        await fork(self._writer.line.log, at, new, line=self.line)

    # --- for the parts of this package --------------------------------------------------------------------------------

    @property
    def writer(self) -> LineWriter:
        """What writes the line to the log."""
        assert self._writer is not None
        return self._writer

    def continue_with(self, state: LineState, writer: LineWriter) -> None:
        """Go on from this reading of the line. From now on the heartbeat is open."""
        self.state, self._writer = state, writer
        self.reader = LineReader(state, writer.line)
        self._open = True

    def _inside(self) -> Stage | None:
        """The stage of the enzyme that is calling, when it belongs to this heartbeat's beat."""
        stage = current.get()
        if stage is None or not isinstance(stage.owner, Heartbeat):
            return None
        return stage if stage.owner is self or stage.owner._plays is self else None

    def _need_rest(self, what: str) -> None:
        if self._running:
            raise BeatRunning(f"{what} needs a heartbeat at rest", remedy=f"wait until beat {self.state.beat} is over")

    def _need_open(self) -> None:
        if not self._open:
            raise NotOpen("the heartbeat's log was not read yet", remedy="await heartbeat.open() first")

    def _run_now(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """The result of work that never suspends in memory and on a blocking log; else `instead` must be awaited."""
        if not self._blocking:
            work.close()
            raise NotOpen("this heartbeat's log needs a running loop", remedy=f"await heartbeat.{instead}()")
        return run_now(work)


class OwnLine:
    """The access of a heartbeat that has its line for itself: what comes from outside counts at once."""

    leads = True
    leader = None
    unsent = 0  # signals and changes that came here and are not in the line yet
    input_waits = False  # whether this node leads the line and has not taken all of its input
    unseen_input = False  # whether signals may wait where this heartbeat does not see them

    def __init__(self, heartbeat: Heartbeat, log: BlockingLog | Log | None) -> None:
        self._heartbeat = heartbeat
        self._log = log

    async def open(self, programs: ProgramVersions | None, *, able: bool) -> None:
        heartbeat = self._heartbeat
        await heartbeat.writer.load()
        heartbeat.continue_with(heartbeat.state, heartbeat.writer)
        if isinstance(self._log, Log):
            await take_leftover_input(self._log, heartbeat.line, heartbeat.accept_input, heartbeat.writer)

    async def close(self) -> None:
        """Nothing runs in the background."""

    def signal(self, impulse: Impulse, beat: int | None, lands: int) -> None:
        """A signal from outside, for beat `lands` at the earliest; `beat` is the one that was asked for."""
        self._heartbeat.accept_signal(lands, impulse, current_origin())

    def change(self, change: object) -> None:
        """A change of registry or bindings from outside."""
        self._heartbeat.apply_or_defer(change)

    def set_paused(self, paused: bool) -> None:
        self._heartbeat.state.paused = paused
        if not paused:
            self._heartbeat.wake()

    async def flush(self) -> None:
        async with self._heartbeat.turn():
            await CurrentLoop().finish(self._heartbeat._flush())

    async def ready(self, *, for_work: bool) -> bool:
        return not self._heartbeat.paused

    async def beat(self, host: EnzymeHost) -> BeatReport:
        return await self._heartbeat.run_beat(host)


def _workers(kind: str, count: int) -> Workers:
    """Imported where they are asked for: most lines call one enzyme after the other, and a node shall start quickly."""
    from mainspring.beats.parallel import Workers

    return Workers(kind, count)
