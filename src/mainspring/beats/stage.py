"""The stage: what one call of an enzyme may see and do.

An enzyme reads the state as it was when the beat began and writes onto its own stage; no enzyme, not even this one
through `read`, sees that before the next beat. The stage only collects. What becomes of it is decided after the call,
in agenda order, by the beat: that is why calls may run side by side and still give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.beats.errors import InvalidImpulse, InvalidPath, InvalidValue, PastBeat, StageClosed
from mainspring.beats.matching.path import canonical
from mainspring.beats.report import Emitted
from mainspring.beats.storage.cells import content_hash, content_path, from_text, to_text

if TYPE_CHECKING:
    from mainspring.beats.lineage import CallContext

RETRY: Final = -1
FATAL: Final = -2
LAST_BEAT: Final = 10**15  # a thousand beats a second for thirty thousand years; beats are 16 digits in keys
_RESERVED: Final = ("/rt", "/cas")
# Python writes no number of more than 4300 digits as text. A beat must never find that out while it adds up: what may
# be added, and added to, ends so far before that no number of additions gets there.
_ADDABLE: Final = 10**1000
COUNTABLE: Final = 10**4000


class Addition(msgspec.Struct, frozen=True, gc=False):
    """A number to be added to what the beat makes of a path; `base` is what the path held when the beat began."""

    amount: int
    base: int


# What is staged for a path: a text, None for a deletion, or an addition.
Staging = str | Addition | None


class CallOutcome(msgspec.Struct, frozen=True):
    """How a call ended and what it asked for, in the order it asked."""

    result: str  # ok, retry, failed, fatal
    writes: list[tuple[str, Staging]] = msgspec.field(default_factory=list)
    signals: list[Emitted] = msgspec.field(default_factory=list)
    contents: list[tuple[str, str]] = msgspec.field(default_factory=list)  # hash and text
    changes: list[Any] = msgspec.field(default_factory=list)  # of registry and bindings
    error: str = ""
    detail: str = ""
    traceparent: str | None = None  # of its span, where one was recorded


class Stage:
    """Handed to an enzyme for one call. `beat` is the beat under way, `attempt` counts from 1."""

    __slots__ = (
        "_changes",
        "_closed",
        "_contents",
        "_own",
        "_read",
        "_signals",
        "_writes",
        "attempt",
        "beat",
        "context",
        "owner",
    )

    def __init__(self, beat: int, attempt: int, read: Callable[[str], str | None], owner: object = None) -> None:
        self.beat: int = beat
        self.attempt: int = attempt
        self.owner: object = owner  # whose beat this is
        self.context: CallContext | None = None  # its signal's origin and its span, where there are any
        self._read = read
        self._own: dict[str, str | None] = {}
        self._writes: list[tuple[str, Staging]] = []
        self._signals: list[Emitted] = []
        self._contents: list[tuple[str, str]] = []
        self._changes: list[Any] = []
        self._closed = False

    def read(self, path: str) -> Any:
        """The committed value as of this beat, as a fresh copy; None where there is none."""
        text = self._read(canonical(path))
        return None if text is None else from_text(text)

    def committed(self, path: str) -> str | None:
        """The canonical text `read` makes its copy from."""
        return self._read(path)

    def own(self, path: str) -> Any:
        """What this call itself has written to a path; None where it wrote nothing, deleted or only added."""
        text = self._own.get(canonical(path))
        return None if text is None else from_text(text)

    def write(self, path: str, value: Any) -> None:
        """Stage a value; visible from the next beat on."""
        self._put(writable(path), to_text(value))

    def add(self, path: str, amount: int) -> None:
        """Stage an addition to the whole number at a path, 0 where there is none; visible from the next beat on.

        Several calls of one beat read the same number, so of sums they `write` only the last would stay. What they
        `add` all counts, in any order, and is no conflict.
        """
        place = writable(path)
        base = self.read(place)
        for number, what in ((amount, "this"), (0 if base is None else base, f"what {place} holds")):
            if not _is_whole(number) or abs(number) >= _ADDABLE:
                raise InvalidValue(
                    f"{what} is no whole number of at most 1000 digits, and not to be added",
                    remedy="add whole numbers; write what is something else",
                )
        self._open()
        self._writes.append((place, Addition(amount, base or 0)))

    def delete(self, path: str) -> None:
        """Stage a deletion; the path holds nothing from the next beat on."""
        self._put(writable(path), None)

    def store(self, value: Any) -> str:
        """Put a value into the content store and return its path, /cas/<sha256>.

        It stays as long as a value that holds this path is kept, so write the path somewhere in the same call.
        """
        text = to_text(value)
        sha256 = content_hash(text)
        self._open()
        self._contents.append((sha256, text))
        return content_path(sha256)

    def signal(self, signal: str | None, target: str | None = None, beat: int | None = None) -> int:
        """Queue a signal for the next beat or a later one; the beat it lands in."""
        pair = checked_pair(signal, target)
        lands = landing(beat, self.beat + 1)
        self._open()
        self._signals.append(Emitted(*pair, lands))
        return lands

    def change(self, change: Any) -> None:
        """Note a change of registry or bindings that counts from the next beat on."""
        self._open()
        self._changes.append(change)

    @property
    def changes(self) -> tuple[Any, ...]:
        """What was asked of the registry and the bindings so far, in order."""
        return tuple(self._changes)

    def close(self, result: str, error: str = "", detail: str = "") -> CallOutcome:
        """For the heartbeat: what the call did, as its outcome. Nothing can be staged afterwards."""
        self._closed = True
        trace = None if self.context is None else self.context.traceparent
        return CallOutcome(result, self._writes, self._signals, self._contents, self._changes, error, detail, trace)

    def _put(self, path: str, text: str | None) -> None:
        self._open()
        self._own[path] = text
        self._writes.append((path, text))

    def _open(self) -> None:
        if self._closed:
            raise StageClosed("this enzyme has ended", remedy="stage everything before the enzyme returns")


# The stage of the enzyme that is running here, so that a heartbeat knows calls that come from inside its beat.
current: Final[ContextVar[Stage | None]] = ContextVar("mainspring_beats_stage", default=None)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def writable(path: object) -> str:
    text = canonical(path)
    if text.startswith(_RESERVED) and (text in _RESERVED or text.startswith(("/rt/", "/cas/"))):
        raise InvalidPath(f"{text} belongs to the runtime and is read-only", remedy="write below another name")
    return text


def checked_pair(signal: object, target: object) -> tuple[str | None, str | None]:
    """The canonical pair; at least one of the two is there."""
    if signal is None and target is None:
        raise InvalidImpulse("a signal names what or where", remedy="give a signal path, a target path, or both")
    return None if signal is None else canonical(signal), None if target is None else canonical(target)


def landing(beat: object, earliest: int) -> int:
    """The beat a signal lands in: the earliest unless a later one was asked for."""
    if beat is None:
        return earliest
    if not isinstance(beat, int) or isinstance(beat, bool):
        raise InvalidImpulse(f"a beat is a whole number, not {beat!r}")
    if beat < earliest:
        raise PastBeat(f"beat {beat} is over or under way", remedy=f"signal for beat {earliest} or later")
    if beat > LAST_BEAT:
        raise InvalidImpulse(f"no line of beats gets as far as {beat}", remedy=f"signal for beat {LAST_BEAT} at most")
    return beat


def result_of(answer: object) -> str:
    """What an enzyme's return value means: negative numbers are failures, everything else is fine."""
    if answer is None or not isinstance(answer, Real | Decimal) or not answer < 0:
        return "ok"
    if answer == RETRY:
        return "retry"
    return "fatal" if answer == FATAL else "failed"
