"""Replay: run old beats again from what came from outside, and compare every byte.

A second heartbeat in memory starts where the first recorded beat started: the state as of that beat, the bindings,
registrations and rules of that time, and the functions this program has now. Each recorded inbox is taken apart: what
came from outside is given to it again, what an enzyme emitted, a retry queued or a budget carried over must come out of
the replay itself. Then the journals are compared record by record.

Enzymes are really called. Those that touch the world outside their stage touch it again.
"""

from __future__ import annotations

import msgspec

from mainspring.beats.beat import Draft
from mainspring.beats.calls import EnzymeHost
from mainspring.beats.errors import MissingEnzyme, UnknownBeat
from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.matching.registry import Registry
from mainspring.beats.state import LineState
from mainspring.beats.storage.journal import BeginFact, EnqueueFact, Fact, Impulse
from mainspring.beats.storage.line import RECENT_BEATS, Registered


class Divergence(msgspec.Struct, frozen=True):
    """The first record that is not what it was. Records count from 1 within their beat; one may be missing."""

    beat: int
    record: int
    recorded: str | None
    replayed: str | None

    def __str__(self) -> str:
        return (
            f"beat {self.beat} differs at record {self.record}:\n"
            f"  recorded: {self.recorded or 'nothing'}\n"
            f"  replayed: {self.replayed or 'nothing'}"
        )


class Replay(msgspec.Struct, frozen=True):
    """What a replay found. `digest` is that of the last beat that was replayed as it was."""

    first: int
    last: int
    beats: int
    digest: str
    divergence: Divergence | None = None

    @property
    def identical(self) -> bool:
        """Whether every record came out as it was stored."""
        return self.divergence is None


async def replay(original: Heartbeat, host: EnzymeHost, first: int | None, last: int | None) -> Replay:
    """Replay a heartbeat's beats, both ends included; by default everything that is kept."""
    state = original.state
    start = state.oldest if first is None else first
    end = state.beat - 1 if last is None else last
    if not state.oldest <= start <= end + 1 or end >= state.beat:
        raise UnknownBeat(
            f"beats {start} to {end} cannot be replayed", remedy=f"beats {state.oldest} to {state.beat - 1} can"
        )
    second = await _second(original, start)
    for beat in range(start, end + 1):
        facts = await original.reader.facts(beat)
        recorded = await original.reader.journal(beat)
        assert recorded is not None
        replayed = await _play(original, second, host, facts, start)
        if replayed != recorded:
            difference = first_difference(beat, recorded, replayed)
            return Replay(start, end, beat - start, second.state.digest, difference)
        second.state.inbox = []
    return Replay(start, end, end - start + 1, second.state.digest)


async def _second(original: Heartbeat, start: int) -> Heartbeat:
    """A heartbeat in memory that stands before the beat the replay starts with."""
    old = original.state
    second = Heartbeat(**msgspec.structs.asdict(old.rules_in(start)))
    second.plays(original)
    new = second.state
    new.beat, new.oldest = start, start
    new.digest = await original.reader.digest(start - 1) or ""
    for sha256, text in old.content.texts():
        new.content.put(sha256, text)
    for path, since, stored in old.cells.versions(start):
        new.cells.put(path, since, stored)
    for beat in range(max(old.oldest, start - RECENT_BEATS), start):
        journal = await original.reader.journal(beat)
        if journal is not None:
            new.journals[beat] = journal
    new.dead = {beat: dead for beat, dead in old.dead.items() if beat < start}
    for since in sorted(old.bound):
        if since < start:
            for binding in old.bound[since]:
                new.bindings.put(binding.path, binding.name, binding.kind)
    new.functions = dict(old.functions)
    _enrol(new, next((who for beat, who in reversed(old.registries) if beat <= start), []))
    return second


async def _play(original: Heartbeat, second: Heartbeat, host: EnzymeHost, facts: list[Fact], start: int) -> bytes:
    """One beat of the replay; its journal."""
    new, beat = second.state, second.state.beat
    for binding in original.state.bound.get(beat, ()):
        new.bindings.put(binding.path, binding.name, binding.kind)
    for since, who in original.state.registries:
        if since == beat:
            _enrol(new, who)
    if (rules := original.state.rules_in(beat)) != new.rules:
        new.use_rules(rules)
    begin = facts[0]
    paused = isinstance(begin, BeginFact) and begin.paused
    inbox, events = _inbox(original.state, facts, new.queues.get(beat, []), start)
    draft = Draft(beat, new.digest, new.rules, new.resolver, inbox, paused=paused, events=events)
    new.inbox = draft.inbox
    new.note_live_events(inbox)
    await second.call_all(draft, host)
    decided = new.decide(draft)
    if draft.aborted:
        return b""  # it was not then, so it is not the same beat
    new.adopt(decided)
    return decided.journal


def _inbox(old: LineState, facts: list[Fact], made: list[Impulse], start: int) -> tuple[list[Impulse], dict[str, str]]:
    """The recorded inbox, with what the replay has made itself in the places of what was made then."""
    inbox: list[Impulse] = []
    events: dict[str, str] = {}
    own = iter(made)
    for fact in facts:
        if not isinstance(fact, EnqueueFact):
            continue
        impulse = fact.impulse
        text = bytes(fact.event).decode() if fact.content is None else old.content.get(fact.content)
        if text and impulse.signal is not None:
            events[impulse.signal] = text
        if _given(impulse, start):
            inbox.append(impulse)
        else:
            inbox.extend([mine] if (mine := next(own, None)) is not None else [])
    return [*inbox, *own], events


def _given(impulse: Impulse, start: int) -> bool:
    """Whether an impulse comes from outside the replay: from outside at all, or from a beat before its first."""
    if impulse.carried:
        return impulse.carried < start
    return impulse.cause.kind in ("outside", "topic") or impulse.cause.beat < start


def _enrol(state: LineState, who: list[Registered]) -> None:
    """Make the registry what it was: the recorded rules, and the functions this program has."""
    registry = Registry()
    for each in who:
        function = state.functions.get((each.name, each.query))
        if function is None:
            raise MissingEnzyme(
                f"enzyme {each.name!r} under {each.query} was registered in beat {state.beat} and is not now",
                remedy="replay with the program that had it, or register it",
            )
        registry.add(registry.make(each.name, each.query, function, each.match, each.before, each.after))
    state.use_registry(registry)


def first_difference(beat: int, recorded: bytes, replayed: bytes) -> Divergence:
    """Where two journals of a beat part."""
    then, now = recorded.splitlines(), replayed.splitlines()
    place = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    texts = [side[place].decode(errors="replace") if place < len(side) else None for side in (then, now)]
    return Divergence(beat, place + 1, *texts)
