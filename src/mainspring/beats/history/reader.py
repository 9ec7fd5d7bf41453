"""Reading a line: committed values, now or as of a beat, the runtime tree, and digests.

Values are in memory. Journals of the last beats are, too; older ones are fetched from the log and checked against their
digest before anything of them is shown.
"""

from __future__ import annotations

from typing import Any

from mainspring.beats.errors import DamagedJournal, UnknownBeat
from mainspring.beats.history import runtime_tree as tree
from mainspring.beats.matching.path import canonical
from mainspring.beats.state import State
from mainspring.beats.storage.journal import GENESIS, Begin, Commit, Delete, Fact, Write, read_journal
from mainspring.beats.storage.line import Line
from mainspring.beats.storage.values import from_text
from mainspring.log import DamagedRecord


class Reader:
    """Reads a state and, where it is durable, the line behind it."""

    def __init__(self, state: State, line: Line | None) -> None:
        self._state = state
        self._line = line

    async def read(self, path: str, at: int | None, *, from_log: bool) -> Any:
        """The value of a path. Without `from_log` only what is in memory is looked at, and nothing suspends."""
        where = canonical(path)
        seen = self.readable(at)
        if where.startswith("/rt/"):
            return await self._read_tree(where, seen, from_log=from_log, coming=at is None)
        text = self._state.text(where, seen)
        return None if text is None else from_text(text)

    def readable(self, at: int | None) -> int:
        """The beat to read as of."""
        state = self._state
        if at is None:
            return state.beat
        if not isinstance(at, int) or isinstance(at, bool) or not state.oldest <= at <= state.beat:
            raise UnknownBeat(f"beat {at!r} cannot be read", remedy=f"beats {state.oldest} to {state.beat} can")
        return at

    async def _read_tree(self, path: str, at: int, *, from_log: bool, coming: bool) -> Any:
        state = self._state
        dead = tree.dead_in(path)
        if dead is not None:
            return state.dead_letters(dead, at)
        asked = tree.beat_in(path)
        if asked is None:
            return None
        beat, part = asked
        if beat >= state.beat and coming:
            return self._coming(beat, part)
        if beat > at or (beat == at and part != "inbox"):
            return None
        if part == "digest":
            return await self.digest(beat) if from_log else state.digests.get(beat)
        journal = await self.journal(beat) if from_log else state.journals.get(beat)
        if journal is None:
            return None
        return tree.part_of(read_journal(beat, journal), part, state.content.get)

    def _coming(self, beat: int, part: str | None) -> Any:
        """What is known of a beat that has not happened: who waits for it."""
        waiting = self._state.queues.get(beat)
        if waiting is None and beat > self._state.beat:
            return None
        inbox = [tree.inbox_entry(impulse) for impulse in waiting or ()]
        return {"inbox": inbox, None: {"beat": beat, "inbox": inbox}}.get(part)

    async def journal(self, beat: int) -> bytes | None:
        """The journal of a beat as it stands; None when the beat's details are not kept."""
        journal = self._state.journals.get(beat)
        if journal is None and self._line is not None and self._state.oldest <= beat < self._state.beat:
            journal = await self._line.journal(beat)
        return journal

    async def facts(self, beat: int) -> list[Fact]:
        """What happened in a beat, checked against its digest and the digest before it."""
        return read_journal(beat, await self._kept(beat), previous=await self.digest(beat - 1))

    async def checked_journal(self, beat: int) -> bytes:
        """The records of a beat as they were written, checked like `facts`."""
        await self.facts(beat)
        return await self._kept(beat)

    async def _kept(self, beat: int) -> bytes:
        journal = await self.journal(beat)
        if journal is None:
            state = self._state
            if isinstance(beat, int) and state.oldest <= beat < state.beat:
                raise DamagedJournal(beat, "its journal is missing")
            raise UnknownBeat(
                f"the details of beat {beat} are not kept", remedy=f"beats {state.oldest} to {state.beat - 1} are"
            )
        return journal

    async def damaged(self) -> list[int]:
        """The beats whose journals are missing, do not fit their digests, or are not those the line goes back to, and
        those whose values are not the ones that were written.

        Looked at from the end, as they are stored: the line states the digest of its last beat, and each journal that
        of the beat before it. So a beat that was rewritten together with its digest is found out, and no other one.
        """
        state, found = self._state, list[int]()
        wanted: str | None = state.digest
        for beat in range(state.beat - 1, state.oldest - 1, -1):
            previous = await self._sound(beat, wanted)
            if previous is None:
                found.append(beat)
            before = await self._stored_digest(beat - 1)
            wanted = before if previous is None else previous
            if beat == state.oldest and previous is not None and previous != before:
                found.append(beat)
        return found[::-1]

    async def _sound(self, beat: int, digest: str | None) -> str | None:
        """What the stored journal of a beat names as the digest before it; None unless all of it has this digest."""
        try:
            journal = self._state.journals.get(beat) if self._line is None else await self._line.journal(beat)
            facts = read_journal(beat, journal or b"")
        except DamagedJournal:
            return None
        begin, commit = facts[0], facts[-1]
        fits = isinstance(commit, Commit) and commit.digest == digest == await self._stored_digest(beat)
        return begin.previous if fits and isinstance(begin, Begin) and self._holds(beat, facts) else None

    def _holds(self, beat: int, facts: list[Fact]) -> bool:
        """Whether the beat after this one reads what this one wrote."""
        state = self._state
        latest = {fact.path: fact for fact in facts if isinstance(fact, Write | Delete)}
        for path, fact in latest.items():
            written: str | None = None
            if isinstance(fact, Write):
                written = state.content.get(fact.content) if fact.content is not None else bytes(fact.value).decode()
            if state.cells.text(path, beat + 1) != written:
                return False
        return True

    async def _stored_digest(self, beat: int) -> str | None:
        if beat == 0 or self._line is None:
            return await self.digest(beat)
        try:
            return await self._line.digest(beat)
        except DamagedRecord:
            return None

    async def digest(self, beat: int) -> str | None:
        """The digest of a beat; kept also when the beat's details are gone."""
        if beat == 0:
            return GENESIS
        digest = self._state.digests.get(beat)
        if digest is None and self._line is not None:
            digest = await self._line.digest(beat)
        return digest
