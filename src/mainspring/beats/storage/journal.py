"""The journal: one structured record per fact of a beat, and the digest that chains beats.

A beat's journal is lines of JSON. Each record has its kind under "fact" and its fields in sorted order, and nothing in
it depends on the process that wrote it: no clock, no address, no iteration order of a set, no text of an exception.
Two runs of the same inputs therefore write the same bytes.

The first record names the digest of the beat before; a beat's digest is the SHA-256 of all its records but the last,
and the last one, `commit`, states it. Changing any byte of any beat changes every digest from there on.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from mainspring.beats.errors import DamagedJournal

GENESIS: Final = "0" * 64  # what the first beat names as the digest before it
NOTHING: Final = msgspec.Raw(b"")


class Cause(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a signal is in an inbox: from outside, from a topic, or from a run of an earlier beat."""

    kind: str  # outside, topic, emit, retry
    beat: int = 0
    run: int = 0
    source: str = ""


OUTSIDE: Final = Cause("outside")


class Impulse(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One entry of an inbox. `only` is what is left of a pair whose other enzymes ran before the budget was spent."""

    signal: str | None
    target: str | None
    cause: Cause = OUTSIDE
    attempt: int = 1
    depth: int = 0
    carried: int = 0  # the beat that had not enough runs for it
    only: tuple[str, ...] | None = None
    event: bool = False  # a topic's event stands at the signal's path while it is worked on

    @property
    def pair(self) -> tuple[str | None, str | None]:
        return self.signal, self.target


class BeginFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="begin", omit_defaults=True):
    beat: int
    previous: str
    paused: bool = False


class EnqueueFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="enqueue", omit_defaults=True):
    """An impulse of this beat's inbox; `item` is its place. A topic's event is kept like a staged value."""

    item: int
    impulse: Impulse
    event: msgspec.Raw = NOTHING
    content: str | None = None


class ResolveFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="resolve"):
    """The agenda of a pair, written where the pair first stands in the inbox."""

    item: int
    enzymes: tuple[str, ...]


class RunFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="run", omit_defaults=True):
    """One entry of the agenda and how it ended. `error` is the class of the exception, where there was one."""

    run: int
    item: int
    enzyme: str
    result: str
    error: str = ""


class WriteFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="write", omit_defaults=True):
    """A staged value: itself, or the hash of its text in the content store."""

    run: int
    path: str
    value: msgspec.Raw = NOTHING
    content: str | None = None


class StoreFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="store"):
    """A text put into the content store by its enzyme."""

    run: int
    content: str


class DeleteFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="delete"):
    run: int
    path: str


class EmitFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="emit"):
    run: int
    signal: str | None
    target: str | None
    beat: int
    depth: int


class RetryFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="retry"):
    """A pair queued again."""

    item: int
    beat: int
    attempt: int


class CarryFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="carry", omit_defaults=True):
    """An impulse of this inbox for which the runs did not suffice: it, or what is `left` of it, goes to the next."""

    item: int
    left: tuple[str, ...] | None = None


class DeadSignal(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="dead"):
    """A signal that is not tried again. `reason` is attempts, emission_budget or chain_depth."""

    signal: str | None
    target: str | None
    attempts: int
    reason: str


class DiagnosticFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="diagnostic"):
    code: str
    signal: str | None
    target: str | None
    names: tuple[str, ...]
    path: str | None


class CommitFact(msgspec.Struct, frozen=True, gc=False, tag_field="fact", tag="commit"):
    beat: int
    digest: str


Fact = (
    BeginFact
    | EnqueueFact
    | ResolveFact
    | RunFact
    | WriteFact
    | StoreFact
    | DeleteFact
    | EmitFact
    | RetryFact
    | CarryFact
    | DeadSignal
    | DiagnosticFact
    | CommitFact
)

_encoder: Final = msgspec.json.Encoder(order="sorted")
_decoder: Final[msgspec.json.Decoder[Fact]] = msgspec.json.Decoder(Fact)


def seal(beat: int, facts: list[Fact]) -> tuple[bytes, str]:
    """The journal of a beat as bytes, and its digest."""
    body = _encoder.encode_lines(facts)
    digest = hashlib.sha256(body).hexdigest()
    return body + _encoder.encode_lines([CommitFact(beat, digest)]), digest


def read_journal(beat: int, journal: bytes, *, previous: str | None = None) -> list[Fact]:
    """The facts of a beat, checked against the digest they state and, where known, the digest before."""
    cut = journal.rfind(b"\n", 0, len(journal) - 1) + 1
    try:
        commit = _decoder.decode(journal[cut:])
        if not isinstance(commit, CommitFact) or commit.beat != beat:
            raise DamagedJournal(beat, "its journal does not end with its commit")
        if hashlib.sha256(journal[:cut]).hexdigest() != commit.digest:
            raise DamagedJournal(beat, f"its journal does not fit its digest{_first_unreadable(journal)}")
        facts = _decoder.decode_lines(journal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise DamagedJournal(beat, f"its journal cannot be read{_first_unreadable(journal)}") from None
    begin = facts[0]
    if not isinstance(begin, BeginFact) or (previous is not None and begin.previous != previous):
        raise DamagedJournal(beat, "its journal does not follow the digest of the beat before")
    return facts


def _first_unreadable(journal: bytes) -> str:
    for place, line in enumerate(journal.splitlines(), start=1):
        try:
            _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f" (record {place} is unreadable)"
    return ""
