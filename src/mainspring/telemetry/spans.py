"""Traces: spans of OpenTelemetry over all parts, where an SDK is configured, and nothing at all where none is.

`tracing.recorder` is None until `switch_on` finds a tracer provider that records. Every part looks at that one
attribute and does nothing more while it is None: no span, no context, no import.

A trace travels as W3C's `traceparent` text: in the headers of events, in the metadata of messages, in the records of
durable runs. So it goes on after a crash, in another process, and through a node that records nothing itself.

The reasons are in docs/decisions/telemetry.md.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_MOST_STATE: Final = 512  # characters that everybody has to pass on
SYSTEM: Final = "mainspring"
_SHAPE: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
MOST_LINKS: Final = 128  # of one span; what the SDK keeps, too


class Tracing:
    """Whether and how this process records spans. There is one: OpenTelemetry's own provider is the process's, too."""

    __slots__ = ("recorder",)

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        """Makes spans; None while nobody records them."""

    def switch_on(self, provider: Any = None) -> bool:
        """Record with the given tracer provider, or the process's if one is configured. Whether spans are recorded.

        A provider that was given stays until `switch_off`.
        """
        if provider is None and self.recorder is None:
            provider = configured_provider()
        if provider is not None:
            self.recorder = Recorder(provider)
        return self.recorder is not None

    def switch_off(self) -> None:
        """Record nothing from now on."""
        self.recorder = None

    def here(self) -> str | None:
        """The `traceparent` of what is being done here; None where nothing is recorded."""
        return None if self.recorder is None else self.recorder.here()

    def sent_in(self, headers: Mapping[str, str]) -> str | None:
        """The `traceparent` a request is sent in: the current span's, else what its headers say, if that is one."""
        given = headers.get(TRACEPARENT)
        return self.here() or (given if given is not None and _SHAPE.fullmatch(given) else None)

    def state_of(self, headers: Mapping[str, str]) -> str | None:
        """The `tracestate` that a request brings with its `traceparent`: passed on as it is."""
        given = headers.get(TRACESTATE)
        return given if given and _SHAPE.fullmatch(headers.get(TRACEPARENT, "")) and len(given) <= _MOST_STATE else None

    def passed_on(self, request: Mapping[str, str], headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """The headers of an event that a request publishes, with the request's trace where this node records none."""
        if self.recorder is not None or TRACEPARENT not in request or (headers is not None and TRACEPARENT in headers):
            return headers
        trace = self.sent_in(request)
        if trace is None:
            return headers
        state = self.state_of(request)
        return {**(headers or {}), TRACEPARENT: trace, **({} if state is None else {TRACESTATE: state})}


tracing: Final = Tracing()


def configured_provider() -> Any:
    """The process's tracer provider, if one is configured that records.

    The API package is only looked at when something else has loaded it, or when its own environment variable names a
    provider: who traces nothing pays for no import.
    """
    if "opentelemetry.trace" not in sys.modules and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ:
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider) else provider


def trace_headers(traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    """The headers of a trace, of the members that a message's metadata has."""
    given = {TRACEPARENT: traceparent, TRACESTATE: tracestate}
    return {name: text for name, text in given.items() if text is not None}


def messaging(operation: str, type: str, destination: str, **more: Any) -> dict[str, Any]:
    """Attributes by the semantic conventions for messaging. `more` has _ for . and loses what is None."""
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": type,
        "messaging.destination.name": destination,
    }
    attributes.update((_NAMES[name], value) for name, value in more.items() if value is not None)
    return attributes


_NAMES: Final = {
    "message_id": "messaging.message.id",
    "conversation": "messaging.message.conversation_id",
    "group": "messaging.consumer.group.name",
    "partition": "messaging.destination.partition.id",
    "count": "messaging.batch.message_count",
    "address": "server.address",
    "port": "server.port",
    "key": "messaging.mainspring.message.key",
    "offset": "messaging.mainspring.offset",
    "attempt": "messaging.mainspring.attempt",
    "capability": "messaging.mainspring.capability",
}


class Recorder:
    """Makes spans with one tracer provider."""

    def __init__(self, provider: Any, name: str = SYSTEM) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer(name)

    def here(self) -> str | None:
        """The `traceparent` of the current span."""
        return _traceparent(self._trace.get_current_span().get_span_context())

    def ids(self) -> tuple[str, str] | None:
        """Trace id and span id of the current span, for a log line."""
        found = self._trace.get_current_span().get_span_context()
        return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None

    def begin(
        self,
        name: str,
        kind: str,
        attributes: Mapping[str, Any],
        *,
        parent: Parent = None,
        links: Iterable[str] = (),
    ) -> OpenSpan:
        """Begin a span below `parent`; without one, or when it names none, below the current span."""
        span = self._tracer.start_span(
            name,
            context=self._context_of(parent),
            kind=self._trace.SpanKind[kind],
            attributes=dict(attributes),
            links=[self._trace.Link(found) for found in self._contexts(links)],
        )
        return OpenSpan(self, span)

    @contextmanager
    def incoming(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Let what a request brought along be the current context, unless somebody has made one for it already."""
        found = None if self.here() is not None else self._context_of(headers)
        if found is None:
            yield
            return
        token = self._context.attach(found)
        try:
            yield
        finally:
            self._context.detach(token)

    def _context_of(self, parent: Parent) -> Any:
        """The context a parent names; None, which means the current one, where it names none."""
        if parent is None:
            return None
        if isinstance(parent, OpenSpan):
            return self._trace.set_span_in_context(parent._span)
        if isinstance(parent, str):
            carrier = {TRACEPARENT: parent}
        else:
            carrier = {name: parent[name] for name in (TRACEPARENT, TRACESTATE) if name in parent}
        found = self._propagator.extract(carrier)
        return found if self._trace.get_current_span(found).get_span_context().is_valid else None

    def _contexts(self, parents: Iterable[str]) -> list[Any]:
        found = []
        for parent in list(dict.fromkeys(parents))[:MOST_LINKS]:
            context = self._context_of(parent)
            if context is not None:
                found.append(self._trace.get_current_span(context).get_span_context())
        return found


class OpenSpan:
    """One open span. Entered it is the current one; ended once, whatever comes first."""

    __slots__ = ("_ended", "_recorder", "_span")

    def __init__(self, recorder: Recorder, span: Any) -> None:
        self._recorder = recorder
        self._span = span
        self._ended = False

    @property
    def traceparent(self) -> str | None:
        return _traceparent(self._span.get_span_context())

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def enter(self) -> Any:
        """Make it the current span; `leave` takes what this gives, in the same context."""
        recorder = self._recorder
        return recorder._context.attach(recorder._trace.set_span_in_context(self._span))

    def leave(self, token: Any) -> None:
        self._recorder._context.detach(token)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current span for the length of a `with` block; an exception that leaves the block is noted."""
        token = self.enter()
        try:
            yield
        except Exception as error:
            self._span.record_exception(error)
            raise
        finally:
            self.leave(token)

    def carried(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Headers that carry this span on; those that carry a trace already stay as they are."""
        carried = dict(headers or {})
        if TRACEPARENT not in carried:
            recorder = self._recorder
            recorder._propagator.inject(carried, recorder._trace.set_span_in_context(self._span))
        return carried

    def note(self, name: str, value: Any) -> None:
        """Set an attribute that was not known at the beginning."""
        self._span.set_attribute(name, value)

    def end(self, error: BaseException | str | None = None, kind: str = "") -> None:
        """The work is done, or failed with `error`. `kind` says what kind of error a text is: one of a few words."""
        if self._ended:
            return
        self._ended = True
        if error is not None:
            trace = self._recorder._trace
            if isinstance(error, BaseException):
                self._span.record_exception(error)
                kind = kind or type(error).__qualname__
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self._span.set_attribute("error.type", kind or error)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, text))
        self._span.end()


def _traceparent(context: Any) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


Parent = str | Mapping[str, str] | OpenSpan | None
"""What a span can be begun below: a traceparent, headers that hold one, or a span of this process."""
