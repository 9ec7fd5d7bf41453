"""The runtime tree: what `/rt/...` reads as.

    /rt/beat/<N>/inbox|agenda|stage|emitted|diagnostics|digest      of a beat that happened
    /rt/beat/<N>                                                     all of it
    /rt/dead/<N>                                                     signals given up in that beat

Nothing of this is stored twice: it is the beat's journal, seen as lists of mappings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from mainspring.beats.storage import journal
from mainspring.beats.storage.cells import from_text
from mainspring.beats.storage.journal import Fact, Impulse

_BEAT: Final = re.compile(r"/rt/beat/([1-9][0-9]{0,17})(?:/([a-z]+))?")
_DEAD: Final = re.compile(r"/rt/dead/([1-9][0-9]{0,17})")
PARTS: Final = ("inbox", "agenda", "stage", "emitted", "diagnostics", "digest")


def beat_in(path: str) -> tuple[int, str | None] | None:
    """The beat a path of the tree speaks about, and which part of it."""
    found = _BEAT.fullmatch(path)
    if found is None or (found[2] is not None and found[2] not in PARTS):
        return None
    return int(found[1]), found[2]


def dead_in(path: str) -> int | None:
    found = _DEAD.fullmatch(path)
    return int(found[1]) if found else None


def inbox_entry(impulse: Impulse) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "signal": impulse.signal,
        "target": impulse.target,
        "attempt": impulse.attempt,
        "depth": impulse.depth,
        "cause": msgspec.to_builtins(impulse.cause),
    }
    if impulse.carried:
        entry["carried"] = impulse.carried
    if impulse.only is not None:
        entry["only"] = list(impulse.only)
    return entry


def part_of(facts: Sequence[Fact], part: str | None, content: Callable[[str], str | None]) -> Any:
    """One part of a beat, or all of it. `content` gives the text behind a hash."""
    view = _BeatView(facts, content)
    if part is not None:
        return getattr(view, part)()
    begin = facts[0]
    whole = {name: getattr(view, name)() for name in PARTS}
    return {"beat": getattr(begin, "beat", 0), "previous": getattr(begin, "previous", ""), **whole}


class _BeatView:
    """The parts of one beat, each under its name in the tree."""

    def __init__(self, facts: Sequence[Fact], content: Callable[[str], str | None]) -> None:
        self._facts = facts
        self._content = content
        self._impulses = [fact.impulse for fact in facts if isinstance(fact, journal.EnqueueFact)]

    def inbox(self) -> list[dict[str, Any]]:
        return [inbox_entry(impulse) for impulse in self._impulses]

    def agenda(self) -> list[dict[str, Any]]:
        return [
            {
                "signal": self._impulses[fact.item].signal,
                "target": self._impulses[fact.item].target,
                "enzyme": fact.enzyme,
                "result": fact.result,
                **({"error": fact.error} if fact.error else {}),
            }
            for fact in self._facts
            if isinstance(fact, journal.RunFact)
        ]

    def stage(self) -> list[dict[str, Any]]:
        enzymes = {fact.run: fact.enzyme for fact in self._facts if isinstance(fact, journal.RunFact)}
        staged: list[dict[str, Any]] = []
        for fact in self._facts:
            if isinstance(fact, journal.DeleteFact):
                staged.append({"op": "delete", "path": fact.path, "value": None, "enzyme": enzymes[fact.run]})
            elif isinstance(fact, journal.WriteFact):
                text = self._content(fact.content) if fact.content is not None else bytes(fact.value).decode()
                value = None if text is None else from_text(text)
                entry = {"op": "write", "path": fact.path, "value": value, "enzyme": enzymes[fact.run]}
                staged.append(entry if fact.content is None else {**entry, "content": f"/cas/{fact.content}"})
        return staged

    def emitted(self) -> list[dict[str, Any]]:
        emissions = (fact for fact in self._facts if isinstance(fact, journal.EmitFact))
        return [{"signal": fact.signal, "target": fact.target, "beat": fact.beat} for fact in emissions]

    def diagnostics(self) -> list[dict[str, Any]]:
        notes = (fact for fact in self._facts if isinstance(fact, journal.DiagnosticFact))
        return [{**msgspec.structs.asdict(note), "names": list(note.names)} for note in notes]

    def digest(self) -> str:
        commit = self._facts[-1]
        return commit.digest if isinstance(commit, journal.CommitFact) else ""
