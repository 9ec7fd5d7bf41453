"""In whose name an enzyme acts: what its log lines carry, and its span."""

from __future__ import annotations

from contextvars import Token
from typing import Any, Final

import msgspec

from mainspring.beats.storage.journal import Impulse
from mainspring.log import StoredEvent
from mainspring.telemetry import spans as tracing
from mainspring.telemetry.log_lines import CORRELATION, handling

_headers: Final = msgspec.json.Decoder(dict[str, str]).decode


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a signal comes from: the message's or event's id, its conversation and its span."""

    id: str
    correlation: str | None = None
    traceparent: str | None = None


def of_event(event: StoredEvent) -> Origin:
    """What an event says of itself."""
    try:
        headers = _headers(event.headers) if event.headers is not None else {}
    except (msgspec.DecodeError, UnicodeDecodeError):  # whatever a publisher sent, the beat must come to an end
        headers = {}
    return Origin(event.id, headers.get(CORRELATION), headers.get(tracing.TRACEPARENT))


class Acting:
    """One call of an enzyme in somebody's name."""

    __slots__ = ("_doing", "_error", "handling")

    def __init__(self, name: str, origin: Origin | None, impulse: Impulse, beat: tracing.Doing | None) -> None:
        self.handling: tuple[str, str | None] | None = None if origin is None else (origin.id, origin.correlation)
        self._error: BaseException | None = None
        self._doing: tracing.Doing | None = None
        if beat is not None and tracing.recorder is not None:
            self._doing = _enzyme_span(tracing.recorder, name, origin, impulse, beat)

    @property
    def traceparent(self) -> str | None:
        return None if self._doing is None else self._doing.traceparent

    def enter(self) -> tuple[Token[Any] | None, Any]:
        token = None if self.handling is None else handling.set(self.handling)
        return token, None if self._doing is None else self._doing.enter()

    def failed(self, error: BaseException) -> None:
        """The call ended with this."""
        self._error = error

    def leave(self, entered: tuple[Token[Any] | None, Any] | None) -> None:
        assert entered is not None
        token, span = entered
        if self._doing is not None:
            self._doing.leave(span)
            self._doing.end(self._error)
        if token is not None:
            handling.reset(token)


def _enzyme_span(
    recorder: tracing.Recorder, name: str, origin: Origin | None, impulse: Impulse, beat: tracing.Doing
) -> tracing.Doing:
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
