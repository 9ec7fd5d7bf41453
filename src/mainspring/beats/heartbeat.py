"""The heartbeat: inboxes, and the beat that works through them.

A beat collects everything it decides in a draft, stores it as one batch, and only then changes what is in memory. Until
that moment the beat can fail, be aborted or be cancelled and has not happened: inbox, state and registry are as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.beats.acting import Acting, Origin
from mainspring.beats.beat import Draft, Entry
from mainspring.beats.calls import Host, OnItsOwnLoop, OnThisLoop, Watch, call, run_now
from mainspring.beats.counters import BeatTally
from mainspring.beats.declaring import Declaring
from mainspring.beats.errors import BeatRunning
from mainspring.beats.history.report import Report
from mainspring.beats.inlets import Inlet, Taken
from mainspring.beats.lineage import NO_ORIGINS, Origins, beat_span
from mainspring.beats.matching.changes import Bind
from mainspring.beats.rules import Rules
from mainspring.beats.shared.signal_topic import Sent, take_what_is_left
from mainspring.beats.stage import Outcome, Stage, checked_pair, landing
from mainspring.beats.state import Decided
from mainspring.beats.storage.journal import Impulse
from mainspring.beats.storage.line import AsyncLog
from mainspring.errors import MainspringError
from mainspring.log import BlockingLog, Log
from mainspring.loop import identifies_work
from mainspring.telemetry import spans as tracing

if TYPE_CHECKING:
    from mainspring.beats.parallel import Workers

_log: Final = logging.getLogger("mainspring.beats")
_BREATH: Final = 256  # calls after which a loop that has other work gets to it: some milliseconds of small enzymes


class Heartbeat(Declaring):
    """A line of beats.

    Without a log it lives in memory. With a `BlockingLog` it is durable and continues at its beat. With an async `Log`
    call `await heartbeat.open()` before the first signal, and `abeat` instead of `beat`.

    Signals may come from any thread; one beat runs at a time. `parallel` ("threads" or "processes", with `workers`)
    calls independent enzymes side by side; the results are the same bytes. `program` (MODULE:APP) is noted in the log,
    for whoever replays the line. Other keywords are the fields of `Rules`.
    """

    def __init__(
        self,
        log: BlockingLog | AsyncLog | None = None,
        *,
        line: str = "main",
        program: str = "",
        parallel: str | None = None,
        workers: int = 4,
        **rules: Any,
    ) -> None:
        if isinstance(rules.get("backoff_beats"), Iterable):
            rules["backoff_beats"] = tuple(rules["backoff_beats"])
        super().__init__(Rules(**rules), log, line, program)
        self._log = log
        self.line: str = line
        self.tally: BeatTally = BeatTally()
        self._origins = Origins()
        self._arrivals: list[tuple[int, Impulse]] = []  # from outside while a beat runs
        self._inlets: list[Inlet] = []
        self._more_waits = False
        self._listeners: list[Callable[[], object]] = []
        self._workers = None if parallel is None else _workers(parallel, workers)
        self._watch = Watch(self.rules.slow_enzyme_ms) if self.rules.slow_enzyme_ms else None
        self._turns: tuple[asyncio.AbstractEventLoop | None, asyncio.Lock] = (None, asyncio.Lock())
        if log is not None and self._blocking:
            run_now(self.open())

    def close(self) -> None:
        """Let go of worker threads and processes. The log belongs to whoever opened it."""
        if self._workers is not None:
            self._workers.close()

    async def open(self) -> None:
        """Load the line from the log. What was bound before is applied on top of what the log holds."""
        was_open = self._open
        await super().open()
        if isinstance(self._log, Log) and not was_open:
            await take_what_is_left(self, self._log)

    async def aclose(self) -> None:
        """Make what waits durable, then `close`. A log that cannot take it is reported, and does not stop a stop."""
        try:
            if self._open:
                await self.aflush()
        except MainspringError as error:
            _log.error("what waits for beat %d was not stored: %s", self.next_beat, error)
        self.close()

    # --- signals ------------------------------------------------------------------------------------------------------

    def signal(self, signal: str | None, target: str | None = None, beat: int | None = None) -> int:
        """Queue a signal for the next beat or a later one; the beat it lands in.

        With a log it is durable when the next beat is, or after `flush`. Called by an enzyme it is `stage.signal`.
        """
        stage = self._inside()
        if stage is not None:
            return stage.signal(signal, target, beat)
        impulse = Impulse(*checked_pair(signal, target))
        with self._lock:
            self._need_open()
            lands = landing(beat, self.state.beat + self._running)
            self._origins.note(impulse)
            if self._running:
                self._arrivals.append((lands, impulse))
            else:
                self._queue(lands, impulse)
        self._tell_listeners()
        return lands

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    def _queue(self, lands: int, impulse: Impulse) -> None:
        self.state.queues.setdefault(lands, []).append(impulse)
        if self._keeper is not None:
            self._keeper.note_signal(lands, impulse)

    def add_inlet(self, inlet: Inlet) -> None:
        """Ask a source for signals at the start of every beat."""
        self._inlets.append(inlet)

    def on_signal(self, listener: Callable[[], object]) -> None:
        """Call back, in the signalling thread, whenever a signal arrives from outside."""
        self._listeners.append(listener)

    def take_in(self, sent: Sent) -> None:
        """Something that came from outside through the line's intake."""
        if sent.bind is not None:
            self._apply(Bind(*sent.bind))
        elif sent.pause is not None:
            self.state.paused = sent.pause
        else:
            impulse = Impulse(sent.signal, sent.target)
            self._origins.note_from(impulse, sent.origin)
            self._queue(max(sent.beat or 0, self.state.beat), impulse)

    # --- beats --------------------------------------------------------------------------------------------------------

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
        """How many signals wait for the next beat."""
        return len(self.state.queues.get(self.state.beat, ())) + len(self._arrivals)

    @property
    def waiting_later(self) -> bool:
        """Whether a signal waits for a beat after the next one."""
        return any(beat > self.state.beat for beat in self.state.queues)

    @property
    def has_inlets(self) -> bool:
        """Whether signals may also wait where this heartbeat takes them from."""
        return bool(self._inlets)

    @property
    def more_waits(self) -> bool:
        """Whether an inlet gave as much as the last beat could take, so that it may have more."""
        return self._more_waits

    def beat(self) -> Report:
        """Run one beat. Async enzymes are awaited one by one, on a loop of their own."""
        self._need_blocking("abeat")
        host = OnItsOwnLoop()
        try:
            return run_now(self._beat(host))
        finally:
            host.close()

    async def abeat(self) -> Report:
        """Run one beat on the loop that is running; after the one that is under way there, if one is."""
        async with self._turn():
            return await self._beat(OnThisLoop())

    def _turn(self) -> asyncio.Lock:
        """One at a time for those who can wait. An enzyme would wait for itself."""
        if self._inside() is not None:
            raise BeatRunning("an enzyme cannot run beats", remedy="emit a signal for the next beat")
        loop = asyncio.get_running_loop()
        if self._turns[0] is not loop:  # an asyncio lock serves one loop; a heartbeat may be used by one after another
            self._turns = (loop, asyncio.Lock())
        return self._turns[1]

    async def _beat(self, host: Host) -> Report:
        with self._lock:
            self._need_open()
            self._at_rest("a beat")
            self._running = True
        try:
            paused = self.state.paused
            taken = [] if paused else await self._take()
            draft = self._draft(taken, paused=paused)
            origins = self._origins.of_inbox(draft, {p: o for _, each in taken for p, o in each.origins.items()})
            if tracing.recorder is None or not draft.inbox:
                return await self._work(draft, taken, host, origins, None)
            doing = beat_span(tracing.recorder, self.line, draft, origins)
            entered = doing.enter()
            try:
                return await self._work(draft, taken, host, origins, doing)
            except BaseException as error:
                doing.end(error)
                raise
            finally:
                doing.leave(entered)
                doing.end()
        finally:
            self._end()

    async def _work(
        self,
        draft: Draft,
        taken: list[tuple[Inlet, Taken]],
        host: Host,
        origins: Mapping[int, Origin],
        doing: tracing.Doing | None,
    ) -> Report:
        await self.call_all(draft, host, origins, doing)
        decided = self.state.decide(draft, draft.events)
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
        self._more_waits = bool(self._inlets) and room <= 0
        return taken

    def _draft(self, taken: list[tuple[Inlet, Taken]], *, paused: bool) -> Draft:
        state = self.state
        news = state.note_registry(), state.note_rules()
        if self._keeper is not None:
            self._keeper.note_beginning(*news)
        inbox = [*state.queues.get(state.beat, ()), *(impulse for _, each in taken for impulse in each.impulses)]
        events = {path: text for _, each in taken for path, text in each.events.items()}
        draft = Draft(state.beat, state.digest, self.rules, state.resolver, inbox, paused=paused, events=events)
        state.inbox = draft.inbox
        return draft

    async def call_all(
        self,
        draft: Draft,
        host: Host,
        origins: Mapping[int, Origin] = NO_ORIGINS,
        doing: tracing.Doing | None = None,
    ) -> None:
        """Call the enzymes of the agenda and settle each in its turn, in the names of those who sent the signals."""

        def stage_for(entry: Entry) -> Stage:
            impulse = draft.inbox[entry.item]
            stage = Stage(draft.beat, impulse.attempt, read, self)
            if doing is not None or entry.item in origins:
                stage.acting = Acting(entry.registration.name, origins.get(entry.item), impulse, doing)
            return stage

        def read(path: str) -> str | None:
            text = draft.events.get(path)
            return text if text is not None else self.state.text(path, draft.beat)

        done: dict[int, Outcome] = {}
        if self._workers is not None:
            done = await host.aside(partial(self._workers.run, draft, stage_for))
        for entry in draft.agenda:
            outcome = None
            if not entry.duplicate and not draft.is_blocked(entry):
                outcome = done.get(entry.run)
                if outcome is None:
                    outcome = await self._call(draft, entry, stage_for(entry), host)
                if entry.item in origins and (outcome.signals or outcome.result == "retry"):
                    self._origins.emitted(draft.beat, entry, origins[entry.item], outcome.traceparent)
            draft.settle(entry, outcome)
            if draft.aborted:
                return
            if entry.run % _BREATH == _BREATH - 1:
                await host.breathe()

    @identifies_work(lambda known: ("enzyme", known["registration"].name))
    async def _call(self, draft: Draft, entry: Entry, stage: Stage, host: Host) -> Outcome:
        impulse, registration = draft.inbox[entry.item], entry.registration
        if self._watch is None:
            return await call(registration.function, impulse.signal, impulse.target, stage, host)
        self._watch.begin(f"enzyme {registration.name!r} of beat {draft.beat} ({impulse.signal}, {impulse.target})")
        try:
            return await call(registration.function, impulse.signal, impulse.target, stage, host)
        finally:
            self._watch.end()

    async def _adopt(self, decided: Decided, taken: list[tuple[Inlet, Taken]]) -> None:
        """Make a beat durable, then real."""
        if self._keeper is not None:
            await self._keeper.save_beat(decided, [operation for _, each in taken for operation in each.operations])
        self.state.take_over(decided)
        for inlet, each in taken:
            inlet.settle(each)
        if self._keeper is not None:
            await self._keeper.collect()
        else:
            self.state.forget()

    def _end(self) -> None:
        with self._lock:
            self._running = False
            self.state.inbox = []
            for change in self._deferred:
                self._apply_late(change)
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
        """From the next beat on signals wait, in order and without loss. Beats go on counting if somebody runs them."""
        self.state.paused = True

    def resume(self) -> None:
        """From the next beat on waiting signals are worked on again."""
        self.state.paused = False
        self._tell_listeners()

    def flush(self) -> None:
        """Make what came from outside since the last beat durable: signals, bindings, and whether it is paused."""
        self._need_blocking("aflush")
        run_now(self._flush())

    async def aflush(self) -> None:
        """`flush` on the loop that is running; after the beat that is under way there, if one is."""
        async with self._turn():
            await OnThisLoop().finish(self._flush())

    async def _flush(self) -> None:
        with self._lock:
            self._need_open()
            self._at_rest("flush")
            if self._keeper is None:
                return
            self._running = True  # nothing may change while it is being written
        try:
            await self._keeper.save_rest()
        finally:
            self._end()


def _workers(kind: str, count: int) -> Workers:
    """Imported where they are asked for: most lines call one enzyme after the other, and a node shall start quickly."""
    from mainspring.beats.parallel import Workers

    return Workers(kind, count)
