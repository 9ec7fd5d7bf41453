"""The origin of signals: which message or event they come from, for log lines and spans.

A signal made of an event belongs to the event's conversation; a signal that came while a message was handled, to that
message's; what an enzyme emits, to the conversation of its own signal. None of it is in the journal: a beat's bytes
depend on its inputs alone. So origins last only as long as this process remembers them: a signal that waited over a
restart has lost the name of the message that sent it, unless it is made of an event, which carries its lineage in its
headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.log import StoredEvent
from mainspring.telemetry import (
    CORRELATION,
    TRACEPARENT,
    Entered,
    OpenSpan,
    Recorder,
    WorkContext,
    handling,
    tracing,
)

if TYPE_CHECKING:
    from mainspring.beats.beat import Draft, PlannedCall
    from mainspring.beats.stage import CallOutcome
    from mainspring.beats.storage.journal import Impulse

_REMEMBERED: Final = 10_000  # at a time, of signals and of enzymes that emitted some

_headers: Final = msgspec.json.Decoder(dict[str, str]).decode


class SignalOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where a signal comes from: the message's or event's id, its conversation and its span."""

    id: str
    correlation: str | None = None
    traceparent: str | None = None


NO_ORIGINS: Final[Mapping[int, SignalOrigin]] = MappingProxyType({})


def origin_of_event(event: StoredEvent) -> SignalOrigin:
    """What an event says of itself."""
    try:
        headers = _headers(event.headers) if event.headers is not None else {}
    except (msgspec.DecodeError, UnicodeDecodeError):  # the beat must come to an end all the same
        headers = {}
    return SignalOrigin(event.id, headers.get(CORRELATION), headers.get(TRACEPARENT))


def current_origin() -> SignalOrigin | None:
    """The origin of a signal that is sent now: the message being handled and the current span, if there are any."""
    message = handling.get()
    trace = None if tracing.recorder is None else tracing.here()
    if message is None and trace is None:
        return None
    ident, correlation = message or ("", None)
    return SignalOrigin(ident, correlation, trace)


class Origins:
    """The origins of one heartbeat's signals that wait or were worked on lately."""

    def __init__(self) -> None:
        self._outside: dict[tuple[str | None, str | None], SignalOrigin] = {}
        self._by_cause: dict[tuple[str, int, int], SignalOrigin] = {}  # of signals that enzymes emitted or retried

    def note(self, impulse: Impulse, origin: SignalOrigin) -> None:
        """A signal came from outside, to this node or another."""
        _remember(self._outside, impulse.pair, origin)

    def of_inbox(self, draft: Draft, events: Mapping[str, SignalOrigin]) -> Mapping[int, SignalOrigin]:
        """The origins of a beat's signals that have one, by their place."""
        if not (events or self._outside or self._by_cause):
            return NO_ORIGINS
        found: dict[int, SignalOrigin] = {}
        for item, impulse in enumerate(draft.inbox):
            origin = None
            cause = impulse.cause
            if cause.kind in ("emit", "retry"):
                origin = self._by_cause.get((cause.kind, cause.beat, cause.run))
            elif impulse.event and impulse.signal is not None:
                origin = events.get(impulse.signal)
            elif cause.kind == "outside":
                origin = self._outside.pop(impulse.pair, None)
            if origin is not None:
                found[item] = origin
        return found

    def note_outcome(self, beat: int, planned: PlannedCall, outcome: CallOutcome, origin: SignalOrigin) -> None:
        """What an enzyme emitted or wants to retry continues its own signal's conversation, in its span."""
        if outcome.traceparent is not None:
            origin = msgspec.structs.replace(origin, traceparent=outcome.traceparent)
        if outcome.signals:
            _remember(self._by_cause, ("emit", beat, planned.run), origin)
        if outcome.result == "retry":
            _remember(self._by_cause, ("retry", beat, planned.item), origin)


def _remember(origins: dict[Any, SignalOrigin], key: Any, origin: SignalOrigin) -> None:
    origins[key] = origin
    if len(origins) > _REMEMBERED:
        del origins[next(iter(origins))]


class CallContext(WorkContext):
    """What surrounds one call of an enzyme: its log lines name its signal's origin, and it may have a span."""

    __slots__ = ("_error",)

    def __init__(self, name: str, impulse: Impulse, origin: SignalOrigin | None, beat: OpenSpan | None) -> None:
        super().__init__(None if origin is None else (origin.id, origin.correlation), None)
        self._error: BaseException | None = None
        if beat is not None and tracing.recorder is not None:
            self.span = _enzyme_span(tracing.recorder, name, origin, impulse, beat)

    @property
    def traceparent(self) -> str | None:
        return None if self.span is None else self.span.traceparent

    def failed(self, error: BaseException) -> None:
        """The call ended with this."""
        self._error = error

    def leave(self, entered: Entered | None) -> None:
        super().leave(entered)
        if self.span is not None:
            self.span.end(self._error)


def beat_span(recorder: Recorder, line: str, draft: Draft, origins: Mapping[int, SignalOrigin]) -> OpenSpan:
    """Below the one trace all its signals belong to; with several, or none, a trace of its own, linked to each."""
    traces = list(dict.fromkeys(each.traceparent for each in origins.values() if each.traceparent is not None))
    attributes = {
        "mainspring.beat.line": line,
        "mainspring.beat.number": draft.beat,
        "messaging.batch.message_count": len(draft.inbox),
    }
    parent = traces[0] if len({trace[3:35] for trace in traces}) == 1 else None
    return recorder.begin(f"beat {line}", "INTERNAL", attributes, parent=parent, links=traces)


def _enzyme_span(
    recorder: Recorder, name: str, origin: SignalOrigin | None, impulse: Impulse, beat: OpenSpan
) -> OpenSpan:
    """Below the beat where that is part of the signal's own trace; else in the signal's trace, linked to the beat."""
    attributes = {
        "mainspring.enzyme": name,
        "mainspring.signal": impulse.signal or "",
        "mainspring.target": impulse.target or "",
    }
    apart = origin is not None and origin.traceparent is not None and beat.trace_id not in origin.traceparent
    parent = origin.traceparent if apart and origin is not None else beat
    links = [beat.traceparent or ""] if apart else []
    return recorder.begin(f"enzyme {name}", "INTERNAL", attributes, parent=parent, links=links)
