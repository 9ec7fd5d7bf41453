"""One beat in the making: from an inbox to everything the beat decided, with no input or output of its own.

The whole inbox is resolved first. Then the heartbeat calls the entries of the agenda, and they are settled here
one by one in agenda order: results, conflicts, budgets and retries are decided in `settle`, never by a call. A
draft that is thrown away has changed nothing.

The reasons are in docs/decisions/beats.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.beats.errors import RegistrationConflict
from mainspring.beats.matching.agenda import Pair, Resolved, Resolver
from mainspring.beats.matching.registry import Register, Registration, refuse_conflict
from mainspring.beats.report import AgendaEntry, BeatReport, Diagnostic, Emitted, Staged
from mainspring.beats.rules import Rules
from mainspring.beats.stage import COUNTABLE, Addition, CallOutcome
from mainspring.beats.storage.cells import content_hash, from_text
from mainspring.beats.storage.journal import (
    NOTHING,
    BeginFact,
    CarryFact,
    Cause,
    DeadSignal,
    DeleteFact,
    DiagnosticFact,
    EmitFact,
    EnqueueFact,
    Fact,
    Impulse,
    ResolveFact,
    RetryFact,
    RunFact,
    StoreFact,
    WriteFact,
    seal,
)


class PlannedCall(msgspec.Struct):
    """One place of the agenda: an enzyme for an inbox item, called or listed as a duplicate."""

    run: int
    item: int
    registration: Registration
    duplicate: bool
    result: str = ""


class Requeue(msgspec.Struct):
    """A pair that will be tried again; the enzymes that asked for it, and the most attempts it had."""

    item: int
    names: set[str]
    attempt: int


class Draft:
    """A beat that has not happened yet."""

    def __init__(
        self,
        beat: int,
        previous: str,
        rules: Rules,
        resolver: Resolver,
        inbox: Sequence[Impulse],
        *,
        paused: bool = False,
        events: dict[str, str] | None = None,
    ) -> None:
        self.beat = beat
        self.rules = rules
        limit = 0 if paused else rules.max_signals_per_beat
        self.inbox: list[Impulse] = list(inbox[:limit])
        # What never enters this beat, and is no part of its journal. It waits for the next one, behind what is carried.
        self.overflow: Sequence[Impulse] = inbox[limit:]
        self._carries: list[CarryFact] = []
        self.agenda: list[PlannedCall] = []
        self.aborted: bool = False
        self.staged: list[Staged] = []
        self.emitted: list[Emitted] = []
        self.diagnostics: list[Diagnostic] = []
        self.dead: list[DeadSignal] = []
        self.changes: list[object] = []
        self.contents: dict[str, str] = {}
        self.events: dict[str, str] = events or {}
        self._outgoing: list[tuple[int, Impulse] | Requeue] = []
        self._requeues: dict[Pair, Requeue] = {}
        self._emissions: dict[str, int] = {}
        self._writers: dict[str, list[str]] = {}
        self._sums: dict[str, str] = {}  # paths that were only added to so far, and by whom first
        self._latest: dict[str, str | None] = {}
        self._resolver = resolver
        self._resolved: dict[Pair, Resolved] = {}
        self._facts: list[Fact] = [BeginFact(beat, previous, paused)]
        self._resolve()
        # What goes to the front of the next inbox: what is left of this one, then what never entered it.
        self.carried: list[Impulse] = [*map(self._carried, self._carries), *self.overflow]

    # --- the agenda ---------------------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        facts, resolved = self._facts, self._resolved
        for item, impulse in enumerate(self.inbox):
            event = self.events.get(impulse.signal) if self.events and impulse.signal is not None else None
            facts.append(EnqueueFact(item, impulse, *(() if event is None else self._stored(event))))
        planned: set[tuple[Pair, str]] = set()
        runs, most_runs = 0, self.rules.max_runs_per_beat
        for item, impulse in enumerate(self.inbox):
            pair = impulse.pair
            if pair not in resolved:
                found = resolved[pair] = self._resolver.resolve(*pair)
                facts.append(ResolveFact(item, tuple(entry.name for entry in found.order)))
                self._note_unresolved(pair, found)
            left: list[str] = []
            before = len(self.agenda)
            for entry in resolved[pair].order:
                if impulse.only is not None and entry.name not in impulse.only:
                    continue
                key = (pair, entry.name)
                duplicate = key in planned
                if not duplicate:
                    if runs == most_runs:
                        left.append(entry.name)
                        continue
                    runs += 1
                    planned.add(key)
                self.agenda.append(PlannedCall(len(self.agenda), item, entry, duplicate))
            if left:
                untouched = len(self.agenda) == before
                self._carries.append(CarryFact(item, None if untouched else tuple(left)))

    def _note_unresolved(self, pair: Pair, found: Resolved) -> None:
        for names in found.cycles:
            self.note("dependency_cycle", pair, names)
        if not found.order and not found.cycles:
            self.note("no_match", pair)

    def groups(self) -> list[list[PlannedCall]]:
        """The entries to call, those that depend on each other together, in agenda order."""
        groups: list[list[PlannedCall]] = []
        at: dict[tuple[Pair, str], list[PlannedCall]] = {}
        for entry in self.agenda:
            if entry.duplicate:
                continue
            pair = self.inbox[entry.item].pair
            waits_for = self._resolved[pair].waits_for or {}
            group: list[PlannedCall] = []
            for name in sorted(waits_for.get(entry.registration.name, ())):
                other = at.get((pair, name))
                if other is not None and other is not group:
                    group = _merge(group, other, at, pair) if group else other
            if not group:
                groups.append(group)
            group.append(entry)
            at[pair, entry.registration.name] = group
        return [group for group in groups if group]

    def _carried(self, carry: CarryFact) -> Impulse:
        impulse = self.inbox[carry.item]
        return msgspec.structs.replace(impulse, carried=self.beat, only=carry.left or impulse.only)

    # --- settling -----------------------------------------------------------------------------------------------------

    def settle(self, entry: PlannedCall, outcome: CallOutcome | None) -> None:
        """Decide what a call has done; without an outcome the entry is a duplicate."""
        impulse = self.inbox[entry.item]
        name = entry.registration.name
        if outcome is None:
            result = "duplicate"
            refused: list[str] = []
        else:
            stands = outcome.result in ("ok", "retry")  # what failed by itself drops its writes anyway
            refused = self._conflicts(outcome) if self.rules.strict and stands else []
            result = "failed" if refused else outcome.result
        entry.result = result
        self._facts.append(RunFact(entry.run, entry.item, name, result, outcome.error if outcome is not None else ""))
        if outcome is None:
            return
        if result in ("ok", "retry"):
            self._keep(entry, impulse, outcome)
            if result == "retry":
                self._requeue(entry, impulse)
        elif refused:
            for path in refused:
                first = self._writers[path][0] if path in self._writers else self._sums[path]
                self.note("write_conflict", impulse.pair, (first, name), path)
        else:
            self.note("enzyme_failed", impulse.pair, (name,), detail=outcome.detail)
            self.aborted = result == "fatal" and self.rules.on_fatal == "abort_beat"

    def _conflicts(self, outcome: CallOutcome) -> list[str]:
        """The paths of a call that another has written; additions get on with each other, and with nothing else."""
        return sorted(
            {
                path
                for path, staged in outcome.writes
                if path in self._writers or (path in self._sums and not isinstance(staged, Addition))
            }
        )

    def _keep(self, entry: PlannedCall, impulse: Impulse, outcome: CallOutcome) -> None:
        name, run = entry.registration.name, entry.run
        for sha256, content in outcome.contents:
            self.contents.setdefault(sha256, content)
            self._facts.append(StoreFact(run, sha256))
        for path, staged in outcome.writes:
            text = self._latest[path] = self._sum(path, staged) if isinstance(staged, Addition) else staged
            self.staged.append(Staged("delete" if text is None else "write", path, name, text))
            fact = DeleteFact(run, path) if text is None else WriteFact(run, path, *self._stored(text))
            self._facts.append(fact)
        self._keep_writers(name, outcome)
        if outcome.signals:
            self._emit(entry, impulse, outcome.signals)
        for change in outcome.changes:
            self._keep_change(impulse.pair, change)

    def _keep_writers(self, name: str, outcome: CallOutcome) -> None:
        """Who wrote what, for conflicts. Calls that only add to a path are none, until one writes it."""
        written = {path for path, staged in outcome.writes if not isinstance(staged, Addition)}
        for path in {path: None for path, _ in outcome.writes}:
            if path in written or path in self._writers:
                before = [self._sums.pop(path)] if path in self._sums else []
                self._writers.setdefault(path, before).append(name)
            else:
                self._sums.setdefault(path, name)

    def _sum(self, path: str, addition: Addition) -> str:
        """The number this beat has made of the path so far, and what is added. What is no number counts as nothing."""
        if path not in self._latest:
            return str(addition.base + addition.amount)
        text = self._latest[path]
        before = 0 if text is None else from_text(text)
        return str((before if type(before) is int and abs(before) < COUNTABLE else 0) + addition.amount)

    def _keep_change(self, pair: Pair, change: object) -> None:
        """An earlier enzyme of this beat may have asked for the contrary; the first in agenda order stands."""
        if isinstance(change, Register):
            try:
                refuse_conflict(self._resolver.registry, self.changes, change.registration)
            except RegistrationConflict as error:
                self.note("registration_conflict", pair, (change.registration.name,), detail=error.message)
                return
        self.changes.append(change)

    def _stored(self, text: str) -> tuple[msgspec.Raw, str | None]:
        """A text as a record holds it: itself or, when it is too long to stand there, its hash."""
        if len(text) <= self.rules.inline_chars:
            return msgspec.Raw(text.encode()), None
        sha256 = content_hash(text)
        self.contents.setdefault(sha256, text)
        return NOTHING, sha256

    def _emit(self, entry: PlannedCall, impulse: Impulse, signals: list[Emitted]) -> None:
        name, depth = entry.registration.name, impulse.depth + 1
        if depth > self.rules.max_chain_depth:
            self._drop_signals("chain_depth", name, impulse.pair, signals)
            return
        sent = self._emissions.get(name, 0)
        room = max(0, self.rules.max_emissions_per_enzyme - sent)
        cause = Cause("emit", self.beat, entry.run)
        kept = signals[:room]
        self.emitted.extend(kept)
        for signal in kept:
            self._facts.append(EmitFact(entry.run, signal.signal, signal.target, signal.beat, depth))
            self._outgoing.append((signal.beat, Impulse(signal.signal, signal.target, cause, depth=depth)))
        self._emissions[name] = sent + len(kept)
        if len(signals) > room:
            self._drop_signals("emission_budget", name, impulse.pair, signals[room:])

    def _drop_signals(self, reason: str, name: str, pair: Pair, signals: list[Emitted]) -> None:
        self.note(reason, pair, (name,))
        for signal in signals:
            self._dead_letter(DeadSignal(signal.signal, signal.target, 0, reason))

    def _dead_letter(self, dead: DeadSignal) -> None:
        self.dead.append(dead)
        self._facts.append(dead)

    def _requeue(self, entry: PlannedCall, impulse: Impulse) -> None:
        requeue = self._requeues.get(impulse.pair)
        if requeue is None:
            requeue = self._requeues[impulse.pair] = Requeue(entry.item, set(), 0)
            self._outgoing.append(requeue)
        requeue.names.add(entry.registration.name)
        requeue.attempt = max(requeue.attempt, impulse.attempt)

    def note(self, code: str, pair: Pair, names: Sequence[str] = (), path: str | None = None, detail: str = "") -> None:
        self.diagnostics.append(Diagnostic(code, *pair, tuple(sorted(set(names))), path, detail))

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> tuple[list[tuple[int, Impulse]], bytes, BeatReport]:
        """What goes into later inboxes, the journal, and the report. An aborted beat leaves no trace but its report."""
        if self.aborted:
            return self._finish_aborted()
        outgoing = [queued for each in self._outgoing if (queued := self._queued(each)) is not None]
        self._facts.extend(self._carries)
        for path, names in self._writers.items():
            if len(names) > 1:
                self.note("write_conflict", (None, None), names, path)
        journal, digest = self._sealed()
        return outgoing, journal, self._report(digest)

    def _queued(self, each: tuple[int, Impulse] | Requeue) -> tuple[int, Impulse] | None:
        if not isinstance(each, Requeue):
            return each
        impulse = self.inbox[each.item]
        if each.attempt >= self.rules.max_attempts:
            self.note("dead_letter", impulse.pair, tuple(each.names))
            self._dead_letter(DeadSignal(impulse.signal, impulse.target, each.attempt, "attempts"))
            return None
        beat = self.beat + self.rules.backoff(each.attempt)
        self._facts.append(RetryFact(each.item, beat, each.attempt + 1))
        again = msgspec.structs.replace(
            impulse, cause=Cause("retry", self.beat, each.item), attempt=each.attempt + 1, carried=0, only=None
        )
        return beat, again

    def _finish_aborted(self) -> tuple[list[tuple[int, Impulse]], bytes, BeatReport]:
        fatal = next(entry for entry in reversed(self.agenda) if entry.result)
        self.note("beat_aborted", self.inbox[fatal.item].pair, (fatal.registration.name,))
        self.staged, self.emitted, self.dead, self.changes = [], [], [], []
        _, digest = self._sealed()
        return [], b"", self._report(digest)

    def _sealed(self) -> tuple[bytes, str]:
        for note in self.diagnostics:
            self._facts.append(DiagnosticFact(note.code, note.signal, note.target, note.names, note.path))
        return seal(self.beat, self._facts)

    def _report(self, digest: str) -> BeatReport:
        inbox = self.inbox
        return BeatReport(
            beat=self.beat,
            inbox=tuple(impulse.pair for impulse in inbox),
            agenda=[
                AgendaEntry(*inbox[entry.item].pair, entry.registration.name, entry.result)
                for entry in self.agenda
                if entry.result
            ],
            staged=self.staged,
            emitted=self.emitted,
            diagnostics=self.diagnostics,
            digest=digest,
            aborted=self.aborted,
        )


def _merge(
    first: list[PlannedCall], second: list[PlannedCall], at: dict[tuple[Pair, str], list[PlannedCall]], pair: Pair
) -> list[PlannedCall]:
    """Join two groups that a third entry depends on; the second is left empty."""
    for entry in second:
        at[pair, entry.registration.name] = first
    first.extend(second)
    first.sort(key=lambda entry: entry.run)
    second.clear()
    return first
