"""Keeping a line in the log: what has to be written with the next beat, and what may go.

Signals and bindings that come from outside are written with the next beat, or earlier when somebody asks for it; what
retention lets go is deleted with the next beat. Nothing is written on its own account, so a beat is one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mainspring.beats.matching.changes import Bind
from mainspring.beats.rules import Rules
from mainspring.beats.state import RECENT, Decided, State
from mainspring.beats.storage.backlog import Backlog, Left
from mainspring.beats.storage.journal import Impulse
from mainspring.beats.storage.line import Changes, Head, Kept, Line, Registered, number
from mainspring.log import Operation

_FEW_BINDINGS: Final = 64  # not worth a rewrite


class Keeper:
    """Between a state in memory and its line in a log."""

    def __init__(self, line: Line, state: State, program: str = "") -> None:
        self.line = line
        self.program: str = program
        self._state = state
        self._signals: list[tuple[int, Impulse]] = []
        self._bindings: list[tuple[int, Bind]] = []
        self._registry: list[Registered] | None = None
        self._rules: Rules | None = None
        self._garbage: list[str] = []
        self._old_journals: list[str] = []
        self._saved_paused = False
        self._origin = ("", 0)
        self._backlog = Backlog()
        self._operations: list[Operation] = []

    async def load(self) -> None:
        """Make the state what the line holds. Bindings the program has declared meanwhile count from the next beat."""
        declared = self._state.bindings.records()
        kept = await self.line.load()
        if kept is not None:
            self._bindings.clear()
            await self.go_on_from(kept, declared)

    async def go_on_from(self, kept: Kept, declared: Iterable[tuple[str, str, str]]) -> None:
        """Make the state what was kept, with the bindings that the program declares."""
        state = self._state
        state.restore(kept)
        self.program = self.program or kept.head.program
        self._origin = kept.head.parent, kept.head.forked_at
        self._saved_paused = state.paused
        self._backlog.restore(kept.head.left, kept.stored, kept.lefts)
        for record in declared:
            self.note_binding(state.change(Bind(*record)))
        for beat in range(max(state.oldest, state.beat - RECENT), state.beat):
            journal = await self.line.journal(beat)
            if journal is not None:
                state.journals[beat] = journal
        await self._compact_bindings()
        await self.collect()

    async def _compact_bindings(self) -> None:
        """Replace records older than every kept beat by the latest of each path and name, once that saves enough."""
        bound, oldest = self._state.bound, self._state.oldest
        old = [binding for since in sorted(bound) if since <= oldest for binding in bound[since]]
        latest = list({(binding.path, binding.name): binding for binding in old}.values())
        if len(old) <= 2 * len(latest) + _FEW_BINDINGS:
            return
        self._garbage.extend(await self.line.binding_keys(oldest))
        self._bindings.extend((oldest, binding) for binding in latest)
        self._state.bound = {oldest: latest, **{since: each for since, each in bound.items() if since > oldest}}

    def save_with(self, operations: list[Operation]) -> None:
        """Have these operations stored with whatever is stored next; they replace those given before."""
        self._operations = operations

    def note_signal(self, lands: int, impulse: Impulse) -> None:
        self._signals.append((lands, impulse))

    def note_binding(self, bound: Bind | None) -> None:
        if bound is not None:
            self._bindings.append((self._state.beat, bound))

    def note_beginning(self, registered: list[Registered] | None, rules: Rules | None) -> None:
        """Who is registered and which rules count in the beat that begins, where that is news."""
        self._registry = registered or self._registry
        self._rules = rules or self._rules

    async def save_beat(self, decided: Decided, operations: Sequence[Operation]) -> None:
        """Write a beat and everything that waited for it, as one batch."""
        beat = self._state.beat
        unsaved = sum(lands == beat for lands, _ in self._signals)
        rest = self._backlog.remainder(beat, decided.carried, decided.overflow, unsaved)
        head = self._head(beat, decided.report.digest, rest.left)
        queued = [(lands, impulse) for lands, impulse in self._signals if lands > beat]
        queued += [*((beat, impulse) for impulse in rest.late), *decided.queued]
        made = [(beat + 1, change) for change in decided.changes if isinstance(change, Bind)]
        await self.line.save(
            Changes(
                head=head,
                journal=decided.journal,
                cells=decided.cells,
                contents=decided.contents,
                references=decided.references,
                queued=queued,
                front=rest.front,
                bindings=[*self._bindings, *made],
                registry=self._registry,
                rules=self._rules,
                dead=decided.dead,
                garbage=self._garbage,
                old_journals=self._old_journals,
                operations=[*operations, *self._operations],
            )
        )
        self._backlog.store(lands for lands, _ in queued)
        self._backlog.happened(beat, rest.left)
        self._signals, self._bindings, self._registry, self._rules = [], [], None, None
        self._saved_paused = head.paused
        self._garbage, self._old_journals, self._operations = [], [], []

    async def save_rest(self) -> None:
        """Write what came from outside since the last beat."""
        state = self._state
        if not (self._signals or self._bindings or self._operations) and state.paused == self._saved_paused:
            return
        head = self._head(state.beat - 1, state.digest, self._backlog.left)
        await self.line.save(Changes(head, queued=self._signals, bindings=self._bindings, operations=self._operations))
        self._backlog.store(lands for lands, _ in self._signals)
        self._signals, self._bindings, self._operations = [], [], []
        self._saved_paused = head.paused

    async def collect(self) -> None:
        """Note what retention lets go; it leaves the log with the next beat."""
        keys, beats = self._state.forget()
        self._garbage.extend(keys)
        for beat in beats:
            self._old_journals.extend(await self.line.journal_keys(beat))
        unneeded, gone = self._backlog.forget(self._state.oldest)
        self._garbage.extend(f"left/{number(beat)}" for beat in gone)
        for beat in unneeded:
            self._garbage.extend(await self.line.queue_keys(beat))

    def _head(self, beat: int, digest: str, left: Left | None) -> Head:
        return Head(beat, digest, self._state.paused, self._state.oldest, *self._origin, self.program, left)
