"""What a heartbeat's program says: which enzymes there are, and what they are bound to.

Between beats a change counts at once. One that comes from outside while a beat runs waits for its end; one that an
enzyme asks for is part of what the beat decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Final

from mainspring.beats.errors import RegistrationConflict
from mainspring.beats.history.timeline import Timeline
from mainspring.beats.matching.bindings import CUT, LOCAL, SPREAD
from mainspring.beats.matching.changes import Bind, Register, Unregister, refuse_conflict
from mainspring.beats.matching.path import canonical
from mainspring.beats.matching.registry import Enzyme, checked_name
from mainspring.beats.rules import Rules
from mainspring.beats.stage import Stage, checked_pair
from mainspring.beats.storage.line import AsyncLog
from mainspring.log import BlockingLog

_log: Final = logging.getLogger("mainspring.beats")


class Declaring(Timeline):
    """A line of beats whose registry and bindings can be changed."""

    def __init__(self, rules: Rules, log: BlockingLog | AsyncLog | None, line: str, program: str) -> None:
        super().__init__(rules, log, line, program)
        self._lock = threading.RLock()
        self._deferred: list[object] = []  # changes from outside while a beat runs

    def register(
        self,
        name: str,
        query: str,
        function: Enzyme,
        match: str = "exact",
        before: Iterable[str] = (),
        after: Iterable[str] = (),
    ) -> None:
        """Offer an enzyme, `function(signal, target, stage)`, for signals that match a query.

        In a beat it counts from the next beat on. Registering the same again does nothing; the same name and query with
        another match policy or other dependencies is refused.
        """
        new = self.state.registry.make(name, query, function, match, before, after)
        stage = self._inside()
        with self._lock:
            pending = stage.changes if stage is not None else self._deferred
            refuse_conflict(self.state.registry, pending, new)
            self._change(Register(new), stage)

    def unregister(self, name: str) -> None:
        """Take back every registration of a name."""
        self._change(Unregister(checked_name(name)), self._inside())

    def bind(self, path: str, name: str, propagate: bool = True) -> None:
        """Bind an enzyme's name to a path and, when it propagates, to everything below. The latest record wins."""
        self._change(Bind(canonical(path), checked_name(name), SPREAD if propagate else LOCAL), self._inside())

    def unbind(self, path: str, name: str) -> None:
        """Put a tombstone: the name is not bound here, nor below unless it is bound again there."""
        self._change(Bind(canonical(path), checked_name(name), CUT), self._inside())

    def _change(self, change: object, stage: Stage | None) -> None:
        if stage is not None:
            stage.change(change)
            return
        with self._lock:
            if self._running:
                self._deferred.append(change)
            else:
                self._apply(change)

    def _apply_late(self, change: object) -> None:
        """What came from outside during a beat; an enzyme of that beat may have asked for the contrary before."""
        try:
            self._apply(change)
        except RegistrationConflict as error:
            _log.warning("%s", error)

    def _apply(self, change: object) -> None:
        bound = self.state.change(change)
        if self._keeper is not None:
            self._keeper.note_binding(bound)

    def resolve(self, signal: str | None, target: str | None = None) -> list[str]:
        """The names that would run for a pair, in order. Nothing is called."""
        resolved = self.state.resolver.resolve(*checked_pair(signal, target))
        return [entry.name for entry in resolved.order]
