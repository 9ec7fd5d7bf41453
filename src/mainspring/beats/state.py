"""What a line of beats is at one moment, in memory: inboxes, cells, registry, bindings, digests.

It changes in few places: outside signals are queued, changes of registry and bindings are put in force between beats,
and `adopt` takes everything a beat decided, after it is durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from mainspring.beats import runtime_tree as tree
from mainspring.beats.beat import Draft
from mainspring.beats.matching.agenda import Resolver
from mainspring.beats.matching.bindings import Bindings
from mainspring.beats.matching.registry import Bind, Enzyme, Register, Registry, Unregister
from mainspring.beats.report import BeatReport
from mainspring.beats.rules import Rules
from mainspring.beats.storage.cells import Cells, CellValue, ContentStore, content_of, to_text
from mainspring.beats.storage.journal import GENESIS, DeadSignal, Impulse, read_journal
from mainspring.beats.storage.line import RECENT_BEATS, Registered, cell_key, number

T = TypeVar("T")

_DEFAULT_RULES: Final = Rules()


class Decided(msgspec.Struct):
    """Everything a beat changes: what its draft holds, and what follows from it for the state."""

    draft: Draft
    report: BeatReport
    journal: bytes
    queued: list[tuple[int, Impulse]]
    cells: list[tuple[str, int, CellValue | None]]
    contents: list[tuple[str, str]]  # hashes and texts that are new
    references: list[str]
    live_events: set[str]


class LineState:
    """One line of beats. `beat` is the next beat to run."""

    def __init__(self, rules: Rules, *, keep_journals: int | None) -> None:
        self.rules: Rules = rules
        self._deciding = rules.deciding
        self.beat: int = 1
        self.digest = GENESIS
        self.paused: bool = False
        self.oldest: int = 1  # the first beat whose details are kept
        self.registry: Registry = Registry()
        self.bindings: Bindings = Bindings()
        self.content: ContentStore = ContentStore()
        self.cells: Cells = Cells(self.content, rules.inline_chars)
        self.queues: dict[int, list[Impulse]] = {}
        self.inbox: list[Impulse] = []  # of the beat under way
        self.dead: dict[int, list[DeadSignal]] = {}
        self.journals: dict[int, bytes] = {}
        self.digests: dict[int, str] = {}
        self.bound: dict[int, list[Bind]] = {}  # binding records by the beat they count from
        self.registries: list[tuple[int, list[Registered]]] = []  # the registrations from a beat on
        self.rulings: list[tuple[int, Rules]] = []  # the rules from a beat on, default ones before
        self.functions: dict[tuple[str, str], Enzyme] = {}  # by name and query, also of enzymes that are gone
        self._keep_journals = keep_journals
        self._noted_version = -1
        self._references: dict[int, list[str]] = {}
        self._live_events: set[str] = set()
        self.resolver: Resolver = Resolver(self.registry, self.bindings)

    def fresh(self) -> LineState:
        """An empty state of the same program: its registrations and rules."""
        state = LineState(self.rules, keep_journals=self._keep_journals)
        state.use_registry(self.registry)
        state.functions = self.functions
        return state

    def note_live_events(self, impulses: Iterable[Impulse]) -> None:
        """Remember which waiting signals are topics' events: their paths hold something until they are dealt with."""
        paths = (impulse.signal for impulse in impulses if impulse.event and impulse.signal is not None)
        self._live_events.update(path for path in paths if self.cells.latest(path) is not None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def text(self, path: str, at: int) -> str | None:
        """What enzymes of beat `at` read at a path."""
        if path.startswith(("/rt/", "/cas/")):
            sha256 = content_of(path)
            if sha256 is not None:
                return self.content.get(sha256)
            value = self._recent(path, at)
            return None if value is None else to_text(value)
        return self.cells.text(path, at)

    def _recent(self, path: str, at: int) -> Any:
        asked = tree.beat_in(path)
        if asked is not None:
            beat, part = asked
            if beat == self.beat and beat == at and part == "inbox":
                return [tree.inbox_entry(impulse) for impulse in self.inbox]
            seen = at - RECENT_BEATS <= beat < at or (beat == at and part == "inbox")
            journal = self.journals.get(beat) if seen else None
            return None if journal is None else tree.part_of(read_journal(beat, journal), part, self.content.get)
        beat_of_dead = tree.dead_in(path)
        return self.dead_letters(beat_of_dead, at) if beat_of_dead is not None else None

    def dead_letters(self, beat: int, at: int) -> list[dict[str, Any]] | None:
        if beat >= at:
            return None
        return [msgspec.structs.asdict(dead) for dead in self.dead.get(beat, ())]

    # --- registry and bindings ----------------------------------------------------------------------------------------

    def change(self, change: object) -> Bind | None:
        """Put a change in force from the next beat on; the binding record that changed, if one did."""
        match change:
            case Register(registration):
                if self.registry.add(registration):
                    self.functions[registration.name, registration.query] = registration.function
            case Unregister(name):
                self.registry.remove(name)
            case Bind(path, name, kind) if self.bindings.put(path, name, kind):
                self.bound.setdefault(self.beat, []).append(change)
                return change
        return None

    def use_registry(self, registry: Registry) -> None:
        """Replace the registry as a whole."""
        self.registry = registry
        self.resolver = Resolver(registry, self.bindings)

    def note_registry(self) -> list[Registered] | None:
        """Remember the registrations of the beat that begins; given when they are not those of the beat before."""
        if self.registry.version == self._noted_version:
            return None
        self._noted_version = self.registry.version
        now = [
            Registered(entry.name, entry.query, entry.match, entry.before, entry.after)
            for entry in self.registry.entries()
        ]
        if now == (self.registries[-1][1] if self.registries else []):
            return None
        self._note(self.registries, now)
        return now

    def note_rules(self) -> Rules | None:
        """Remember the rules of the beat that begins; given when they are not those of the beat before."""
        now = self._deciding
        if now == self.rules_in(self.beat):
            return None
        self._note(self.rulings, now)
        return now

    def _note(self, notes: list[tuple[int, T]], now: T) -> None:
        if notes and notes[-1][0] == self.beat:
            notes.pop()  # the same beat begins again
        notes.append((self.beat, now))

    def rules_in(self, beat: int) -> Rules:
        """The rules a beat was made with."""
        return next((rules for since, rules in reversed(self.rulings) if since <= beat), _DEFAULT_RULES)

    def use_rules(self, rules: Rules) -> None:
        """Decide by other rules from the next beat on."""
        self.rules = rules
        self._deciding = rules.deciding
        self.cells.inline_chars = rules.inline_chars

    def note_journal(self, beat: int, journal: bytes) -> None:
        """Keep the journal of a beat; where a log has it too, only those of the last beats."""
        self.journals[beat] = journal
        if self._keep_journals is not None:
            self.journals.pop(beat - self._keep_journals, None)

    def note_digest(self, beat: int, digest: str) -> None:
        """Keep the digest of a beat; where a log has it too, only as long as its journal."""
        self.digests[beat] = digest
        if self._keep_journals is not None:
            self.digests.pop(beat - self._keep_journals, None)

    def refer(self, beat: int, hashes: list[str]) -> None:
        """Note what the journal of a beat refers to."""
        if beat not in self._references:
            self._references[beat] = hashes
            self.content.refer(hashes)

    # --- a beat -------------------------------------------------------------------------------------------------------

    def decide(self, draft: Draft) -> Decided:
        """What a draft would change; nothing has changed yet."""
        new_events = draft.events
        queued, journal, report = draft.finish()
        cells: list[tuple[str, int, CellValue | None]] = []
        for path, text in new_events.items():
            cells.append((path, draft.beat, self.cells.cell_value(text)))
        latest = {staged.path: staged.text for staged in report.staged}
        for path, staged_text in latest.items():
            stored = None if staged_text is None else self.cells.cell_value(staged_text)
            if stored != self.cells.latest(path) or path in new_events:
                cells.append((path, draft.beat + 1, stored))
        live = self._still_worked_on(draft, queued, new_events)
        over = (self._live_events | new_events.keys()) - live
        cells.extend((path, draft.beat + 1, None) for path in sorted(over) if path not in latest)
        contents = [(sha256, text) for sha256, text in draft.contents.items() if self.content.get(sha256) is None]
        return Decided(draft, report, journal, queued, cells, contents, sorted(draft.contents), live)

    def _still_worked_on(self, draft: Draft, queued: list[tuple[int, Impulse]], new: dict[str, str]) -> set[str]:
        """The events whose signal is still waiting somewhere; the others have been dealt with."""
        events = self._live_events | new.keys()
        if not events:
            return events
        done = {impulse.signal for impulse in draft.inbox if impulse.signal in events}
        again = {impulse.signal for impulse in draft.carried} | {impulse.signal for _, impulse in queued}
        return {path for path in events if path not in done or path in again}

    def adopt(self, decided: Decided) -> None:
        """A beat has happened: its changes are in force."""
        beat, draft = self.beat, decided.draft
        for sha256, text in decided.contents:
            self.content.put(sha256, text)
        for path, since, stored in decided.cells:
            self.cells.put(path, since, stored)
        if decided.references:
            self._references[beat] = decided.references
            self.content.refer(decided.references)
        self.queues.pop(beat, None)
        for lands, impulse in decided.queued:
            self.queues.setdefault(lands, []).append(impulse)
        if draft.carried:
            self.queues.setdefault(beat + 1, [])[:0] = draft.carried
        if draft.dead:
            self.dead[beat] = draft.dead
        self._live_events = decided.live_events
        self.note_journal(beat, decided.journal)
        self.digest = decided.report.digest
        self.note_digest(beat, self.digest)
        self.beat = beat + 1
        for change in draft.changes:
            self.change(change)

    # --- retention ----------------------------------------------------------------------------------------------------

    def forget(self) -> tuple[list[str], list[int]]:
        """Let go of beats past their retention: keys of the line that are garbage, and beats whose journals are."""
        retain = self.rules.retain_beats
        return ([], []) if retain is None else self.forget_before(self.beat - retain)

    def forget_before(self, oldest: int) -> tuple[list[str], list[int]]:
        """Let go of the details of all beats before this one."""
        if oldest <= self.oldest:
            return [], []
        gone = range(self.oldest, oldest)
        self.oldest = oldest
        garbage: list[str] = []
        for beat in gone:
            self.journals.pop(beat, None)
            hashes = self._references.pop(beat, None)
            if hashes is not None:
                self.content.release(hashes)
                garbage.append(f"refs/{number(beat)}")
        garbage.extend(cell_key(path, since) for path, since in self.cells.forget_before(self.oldest))
        garbage.extend(f"cas/{sha256}" for sha256 in self.content.sweep())
        return garbage, list(gone)
