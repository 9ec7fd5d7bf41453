"""What a program declares about beats: enzymes, bindings, and topics that feed them.

Declaring runs nothing. `install` puts everything into a heartbeat, in the order it was written, when a node or a test
makes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from mainspring.beats.errors import InvalidRegistration
from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.matching.bindings import CUT, LOCAL, SPREAD
from mainspring.beats.matching.registry import Registry
from mainspring.log import StoredEvent

F = TypeVar("F", bound=Callable[..., Any])
TargetOf = Callable[[StoredEvent], str | None]


class DeclaredEnzyme(msgspec.Struct, frozen=True):
    name: str
    query: str
    function: Callable[..., Any]
    match: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    flags: tuple[str, ...] = ()


class DeclaredInlet(msgspec.Struct, frozen=True):
    """A topic whose events become signals; `target` may name a target for an event."""

    topic: str
    target: TargetOf | None = None


class BeatsProgram:
    """The beats of a program."""

    def __init__(self) -> None:
        self.enzymes: list[DeclaredEnzyme] = []
        self.bindings: list[tuple[str, str, str]] = []
        self.topics: list[DeclaredInlet] = []

    def enzyme(
        self,
        query: str,
        *,
        name: str | None = None,
        match: str = "exact",
        before: Iterable[str] = (),
        after: Iterable[str] = (),
        flags: Iterable[str] = (),
    ) -> Callable[[F], F]:
        """Declare a function as an enzyme; its name is the function's unless another is given."""

        def decorate(function: F) -> F:
            own_name = name if name is not None else getattr(function, "__name__", "")
            for side, names in (("before", before), ("after", after)):
                if isinstance(names, str):
                    raise InvalidRegistration(f"{side} is a sequence of names", remedy=f"write {side}=[{names!r}]")
            self._refuse_second(own_name, query, function)
            said = tuple(before), tuple(after), (flags,) if isinstance(flags, str) else tuple(flags)
            Registry().make(own_name, query, function, match, *said)  # what cannot be is refused where it is said
            _check_parameters(own_name, function)
            self.enzymes.append(DeclaredEnzyme(own_name, query, function, match, *said))
            return function

        return decorate

    def _refuse_second(self, name: str, query: str, function: Callable[..., Any]) -> None:
        """One of two functions under the same name and query would never be called."""
        for each in self.enzymes:
            if (each.name, each.query) == (name, query) and each.function is not function:
                both = f"{_place(each.function)} and {_place(function)}"
                raise InvalidRegistration(
                    f"two functions are the enzyme {name!r} for {query}: {both}",
                    remedy="give one of them another name=",
                )

    def bind(self, path: str, name: str, propagate: bool = True) -> None:
        """Declare a binding."""
        self.bindings.append((path, name, SPREAD if propagate else LOCAL))

    def unbind(self, path: str, name: str) -> None:
        """Declare a tombstone."""
        self.bindings.append((path, name, CUT))

    def beats_from(self, topic: str, *, target: TargetOf | None = None) -> None:
        """Declare that each event of a topic is one signal, /topics/<topic>/<partition>/<offset>."""
        self.topics.append(DeclaredInlet(topic, target))

    def __bool__(self) -> bool:
        return bool(self.enzymes or self.bindings or self.topics)

    def install(self, heartbeat: Heartbeat) -> None:
        """Register and bind everything. Topics need a log: a node adds their inlets."""
        for each in self.enzymes:
            heartbeat.register(each.name, each.query, each.function, each.match, each.before, each.after, each.flags)
        for path, name, kind in self.bindings:
            if kind == CUT:
                heartbeat.unbind(path, name)
            else:
                heartbeat.bind(path, name, propagate=kind == SPREAD)


def _check_parameters(name: str, function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None, None, None)
    except ValueError:  # written in C, and it does not say what it takes
        return
    except TypeError:
        raise InvalidRegistration(
            f"the enzyme {name!r} ({_place(function)}) must take three arguments", remedy="(signal, target, stage)"
        ) from None


def _place(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
