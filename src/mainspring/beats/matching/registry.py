"""Who can be called: enzymes under their queries.

A registration says which signals an enzyme fits and what it must run before or after. One name may be registered under
several queries; for one signal only its best registration counts, so that a name runs once. Registering the same again
changes nothing: programs that register at every start do not grow the registry.

A beat sees registry and bindings as they were when it began. What is asked for meanwhile is a change: it is checked at
once, so that mistakes show where they are made, and put in force afterwards. What an enzyme asked for counts if the
rest of its work does; what came from outside counts in any case.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

import msgspec

from mainspring.beats.errors import InvalidRegistration, RegistrationConflict
from mainspring.beats.matching.index import QueryIndex, fits
from mainspring.beats.matching.path import MANY, ONE, Segments, query_segments, query_text, specificity

logger: logging.Logger = logging.getLogger("mainspring.beats")

Enzyme = Callable[..., Any]  # (signal, target, stage) -> int | None, or an awaitable of it

MATCHES: Final = ("exact", "prefix")
FLAGS: Final = ("emits", "idempotent", "stateful")  # what a program says about an enzyme, for those who read it
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Registration(msgspec.Struct, frozen=True, eq=False):
    """One enzyme under one query. `index` says how many registrations came before it."""

    name: str
    query: str
    function: Enzyme
    match: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    index: int
    segments: Segments
    specificity: int
    flags: tuple[str, ...] = ()

    @property
    def rules(self) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """What a second registration of the same name and query must repeat."""
        return self.match, self.before, self.after, self.flags

    def is_same_function(self, other: Enzyme) -> bool:
        """Whether it is this function, or the same lines of the program made once more, as at a second start."""
        if other is self.function or other == self.function:
            return True
        own, code = getattr(self.function, "__code__", None), getattr(other, "__code__", None)
        return own is not None and own == code

    @property
    def rank(self) -> tuple[int, int]:
        """Among registrations of one name, the smallest is the best."""
        return -self.specificity, self.index

    def fits(self, signal: Segments) -> bool:
        """Whether this query alone matches a signal."""
        return not self.segments or matches(self.segments, signal, prefix=self.match == "prefix")


def matches(query: Segments, signal: Segments, *, prefix: bool) -> bool:
    """Whether a query matches a signal: positions reached, segment by segment, so that `**` never backtracks."""
    reached = {0}
    for i, segment in enumerate(query):
        if segment == MANY:
            reached = set(range(min(reached), len(signal) + 1))
        elif segment == ONE:
            reached = {at + 1 for at in reached if at < len(signal)}
        elif "*" in segment:
            pattern = segment.split("*")
            reached = {at + 1 for at in reached if at < len(signal) and fits(pattern, signal[at])}
        elif i == 0:
            reached = {1} if signal and signal[0] == segment else set()
        else:
            reached = {at + 1 for at in reached if at < len(signal) and signal[at] == segment}
        if not reached:
            return False
    return prefix or len(signal) in reached


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or _UNUSABLE.search(name):
        raise InvalidRegistration("an enzyme's name is text without control characters", remedy="give it a name")
    return name


def _checked_names(names: object, side: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidRegistration(f"{side} is a sequence of names", remedy=f"write {side}=('name',)")
    return tuple(sorted({checked_name(name) for name in names}))


def _checked_flags(flags: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(sorted({flags} if isinstance(flags, str) else set(flags)))
    if wrong := [flag for flag in chosen if flag not in FLAGS]:
        raise InvalidRegistration(f"an enzyme has no flag {wrong[0]!r}", remedy=f"there are {', '.join(FLAGS)}")
    return chosen


class Registry:
    """The registrations in force. The heartbeat changes it between beats only."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Registration] = {}
        self._by_name: dict[str, list[Registration]] = {}
        self._index: QueryIndex[Registration] = QueryIndex()
        self._next_index = 0
        self.version: int = 0

    def make(
        self,
        name: str,
        query: str,
        function: Enzyme,
        match: str,
        before: Iterable[str],
        after: Iterable[str],
        flags: Iterable[str] = (),
    ) -> Registration:
        """A checked registration that is not in force yet."""
        segments = query_segments(query)
        checked_name(name)
        if match not in MATCHES:
            raise InvalidRegistration(f"match is 'exact' or 'prefix', not {match!r}")
        if not callable(function):
            raise InvalidRegistration(f"enzyme {name!r} is not callable")
        return Registration(
            name=name,
            query=query_text(segments),
            function=function,
            match=match,
            before=_checked_names(before, "before"),
            after=_checked_names(after, "after"),
            index=-1,
            segments=segments,
            specificity=specificity(segments),
            flags=_checked_flags(flags),
        )

    def get(self, name: str, query: str) -> Registration | None:
        return self._by_key.get((name, query))

    def add(self, new: Registration) -> bool:
        """Put a registration in force; False when the same one was. A contradiction is refused."""
        known = self._by_key.get((new.name, new.query))
        if known is not None:
            refuse_contradiction(known, new)
            return False
        entry = msgspec.structs.replace(new, index=self._next_index)
        self._next_index += 1
        self.version += 1
        self._by_key[entry.name, entry.query] = entry
        same_name = self._by_name.setdefault(entry.name, [])
        same_name.append(entry)
        same_name.sort(key=attrgetter("rank"))
        self._index.add(entry.segments, entry, prefix=entry.match == "prefix")
        return True

    def remove(self, name: str) -> bool:
        """Forget a name and all its queries; False when there was none."""
        entries = self._by_name.pop(name, [])
        for entry in entries:
            del self._by_key[entry.name, entry.query]
            self._index.remove(entry.segments, entry, prefix=entry.match == "prefix")
        self.version += bool(entries)
        return bool(entries)

    def named(self, name: str) -> list[Registration]:
        """The registrations of a name, the best first."""
        return self._by_name.get(name, [])

    def matching(self, signal: Segments) -> dict[str, Registration]:
        """The best matching registration of each name that has one."""
        best: dict[str, Registration] = {}
        for entry in self._index.find(signal):
            known = best.get(entry.name)
            if known is None or entry.rank < known.rank:
                best[entry.name] = entry
        return best

    def entries(self) -> list[Registration]:
        """All of them, in order of registration."""
        return sorted(self._by_key.values(), key=lambda entry: entry.index)


def refuse_contradiction(known: Registration, new: Registration) -> None:
    if known.rules != new.rules:
        raise RegistrationConflict(
            f"enzyme {new.name!r} is registered under {new.query} with other rules",
            remedy="unregister it first, or register it under another name",
        )


class Register(msgspec.Struct, frozen=True, eq=False):
    registration: Registration


class Unregister(msgspec.Struct, frozen=True):
    name: str


class Bind(msgspec.Struct, frozen=True):
    path: str
    name: str
    kind: str


def refuse_conflict(registry: Registry, pending: Iterable[object], new: Registration) -> None:
    """Refuse a registration that contradicts what is in force or asked for before it."""
    known = registry.get(new.name, new.query)
    for change in pending:
        if isinstance(change, Unregister) and change.name == new.name:
            known = None
        elif isinstance(change, Register):
            asked = change.registration
            known = known or (asked if (asked.name, asked.query) == (new.name, new.query) else None)
    if known is not None:
        refuse_contradiction(known, new)
        if not known.is_same_function(new.function):
            logger.warning(
                "enzyme %r is registered under %s by two functions: %s is called, %s is not",
                new.name,
                new.query,
                _where(known.function),
                _where(new.function),
            )


def _where(function: Enzyme) -> str:
    """The name of a function and where it is in the program."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
