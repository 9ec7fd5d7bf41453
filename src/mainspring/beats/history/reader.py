"""Reading a line: committed values, now or as of a beat, the runtime tree, digests, and what differs between beats.

Values are in memory. Journals of the last beats are, too; older ones are fetched from the log and checked against their
digest before anything of them is shown. `lines_of` and `follow` read a log beside the process that drives its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from mainspring.beats import runtime_tree as tree
from mainspring.beats.calls import run_now
from mainspring.beats.errors import DamagedJournal, UnknownBeat
from mainspring.beats.matching.path import canonical
from mainspring.beats.state import LineState
from mainspring.beats.storage.cells import from_text
from mainspring.beats.storage.journal import GENESIS, BeginFact, CommitFact, DeleteFact, Fact, WriteFact, read_journal
from mainspring.beats.storage.line import SPACE, BlockingLogAdapter, Head, StoredLine
from mainspring.log import BlockingLog, DamagedRecord


class StateDifference(msgspec.Struct, frozen=True):
    """A path that two beats read differently; None where it held nothing."""

    path: str
    earlier: Any
    later: Any


class LineReader:
    """Reads a state and, where it is durable, the line behind it."""

    def __init__(self, state: LineState, line: StoredLine | None) -> None:
        self._state = state
        self._line = line

    async def read(self, path: str, at: int | None, *, from_log: bool) -> Any:
        """The value of a path. Without `from_log` only what is in memory is looked at, and nothing suspends."""
        where = canonical(path)
        seen = self.readable(at)
        if where.startswith("/rt/"):
            return await self._read_tree(where, seen, from_log=from_log, coming=at is None)
        return _value(self._state.text(where, seen))

    def readable(self, at: int | None) -> int:
        """The beat to read as of."""
        state = self._state
        if at is None:
            return state.beat
        if not isinstance(at, int) or isinstance(at, bool) or not state.oldest <= at <= state.beat:
            raise UnknownBeat(f"beat {at!r} cannot be read", remedy=f"beats {state.oldest} to {state.beat} can")
        return at

    def difference(self, earlier: int, later: int) -> list[StateDifference]:
        """Every path whose value is not the same as of both beats, by code point."""
        cells, one, other = self._state.cells, self.readable(earlier), self.readable(later)
        found: list[StateDifference] = []
        for path in cells.changed_between(one, other):
            before, after = cells.text(path, one), cells.text(path, other)
            if before != after:
                found.append(StateDifference(path, _value(before), _value(after)))
        return found

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
        fits = isinstance(commit, CommitFact) and commit.digest == digest == await self._stored_digest(beat)
        return begin.previous if fits and isinstance(begin, BeginFact) and self._holds(beat, facts) else None

    def _holds(self, beat: int, facts: list[Fact]) -> bool:
        """Whether the beat after this one reads what this one wrote."""
        state = self._state
        latest = {fact.path: fact for fact in facts if isinstance(fact, WriteFact | DeleteFact)}
        for path, fact in latest.items():
            written: str | None = None
            if isinstance(fact, WriteFact):
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


def _value(text: str | None) -> Any:
    return None if text is None else from_text(text)


# --- beside the process that drives the lines -------------------------------------------------------------------------


def lines_of(log: BlockingLog) -> dict[str, Head]:
    """Every line of beats in a log and where it stands."""
    found: dict[str, Head] = {}
    after = ""
    while True:
        record = next(iter(log.scan(SPACE, "", after)), None)
        if record is None:
            return found
        name = record.key.partition("/")[0]
        head = log.get(SPACE, f"{name}/head")
        if head is not None:
            found[name] = msgspec.json.decode(head.value, type=Head)
        after = f"{name}/~"  # beyond everything of this line


def follow(
    log: BlockingLog, line: str, first: int | None, wait: Callable[[], object]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The beats of a line as they happen, from `first` on or from the next; `wait` is called when there is none new.

    Each is what `/rt/beat/<N>` reads as, without the values that are in the content store.
    """
    watched = StoredLine(BlockingLogAdapter(log), line)
    beat = first if first is not None else (run_now(watched.head()) or Head()).beat + 1
    while True:
        if beat > (run_now(watched.head()) or Head()).beat:
            wait()
            continue
        journal = run_now(watched.journal(beat))
        if journal is not None:
            yield beat, tree.part_of(read_journal(beat, journal), None, lambda _: None)
        beat += 1
