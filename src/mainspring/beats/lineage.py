"""From where the signals of a beat come, as long as this process remembers it.

A signal made of an event belongs to the event's conversation; a signal that came while a message was handled, to that
message's; what an enzyme emits, to whatever its own signal belonged to. None of it is in the journal: a beat's bytes
depend on its inputs alone. So a signal that waited over a restart has lost the name of the message that sent it, unless
it is made of an event, which carries its lineage in its headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from mainspring.beats.acting import Origin
from mainspring.beats.beat import Draft, Entry
from mainspring.beats.storage.journal import Impulse
from mainspring.telemetry import spans as tracing
from mainspring.telemetry.log_lines import handling

MOST: Final = 10_000  # remembered at a time, of signals and of enzymes that emitted some

NO_ORIGINS: Final[Mapping[int, Origin]] = MappingProxyType({})


class Origins:
    """What is known of the signals of one heartbeat that wait or were worked on lately."""

    def __init__(self) -> None:
        self._outside: dict[tuple[str | None, str | None], Origin] = {}
        self._emitted: dict[tuple[int, int], Origin] = {}

    def note(self, impulse: Impulse) -> None:
        """A signal came from outside, perhaps while a message was handled."""
        self.note_from(impulse, origin_here())

    def note_from(self, impulse: Impulse, origin: Origin | None) -> None:
        """A signal came from outside, to this node or another."""
        if origin is not None:
            _remember(self._outside, impulse.pair, origin)

    def of_inbox(self, draft: Draft, events: Mapping[str, Origin]) -> dict[int, Origin]:
        """The origins of a beat's signals that have one, by their place."""
        if not (events or self._outside or self._emitted):
            return {}
        found: dict[int, Origin] = {}
        for item, impulse in enumerate(draft.inbox):
            origin = None
            if impulse.cause.kind in ("emit", "retry"):
                origin = self._emitted.get((impulse.cause.beat, impulse.cause.run))
            elif impulse.event and impulse.signal is not None:
                origin = events.get(impulse.signal)
            elif impulse.cause.kind == "outside":
                origin = self._outside.pop(impulse.pair, None)
            if origin is not None:
                found[item] = origin
        return found

    def emitted(self, beat: int, entry: Entry, origin: Origin, trace: str | None) -> None:
        """An enzyme asked for signals or another try: they go on in the name of its own signal, and in its span."""
        origin = msgspec.structs.replace(origin, traceparent=trace) if trace is not None else origin
        _remember(self._emitted, (beat, entry.run), origin)


def origin_here() -> Origin | None:
    """What a signal that is given now comes from, if that is known."""
    message = handling.get()
    trace = tracing.here()
    if message is None and trace is None:
        return None
    ident, correlation = message or ("", None)
    return Origin(ident, correlation, trace)


def _remember(known: dict[Any, Origin], key: Any, origin: Origin) -> None:
    known[key] = origin
    if len(known) > MOST:
        del known[next(iter(known))]


def beat_span(recorder: tracing.Recorder, line: str, draft: Draft, origins: Mapping[int, Origin]) -> tracing.Doing:
    """Below the one trace all its signals belong to; with several, or none, a trace of its own, linked to each."""
    traces = list(dict.fromkeys(each.traceparent for each in origins.values() if each.traceparent is not None))
    attributes = {
        "mainspring.beat.line": line,
        "mainspring.beat.number": draft.beat,
        "messaging.batch.message_count": len(draft.inbox),
    }
    parent = traces[0] if len({trace[3:35] for trace in traces}) == 1 else None
    return recorder.begin(f"beat {line}", "INTERNAL", attributes, parent=parent, links=traces)
