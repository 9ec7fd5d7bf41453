"""OpenTelemetry: the trace context travels in headers, and publishing and consuming have spans.

The context is W3C's `traceparent` (and `tracestate`), in the event's headers. Spans follow the semantic conventions for
messaging: `publish <topic>` of kind PRODUCER around the time until the event is durable, `process <topic>` of kind
CONSUMER from delivery to acknowledgement. A consumer's span continues the producer's trace and is linked to it.

Without an SDK there is nothing to record, so there is no `Telemetry` at all and a client only compares with None. The
API package is optional, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mainspring.client.subscription import Event

SYSTEM: Final = "mainspring"


def find_telemetry(provider: Any = None) -> Telemetry | None:
    """Telemetry with the given tracer provider or the process's; None where no SDK would record anything."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    if provider is None:
        provider = trace.get_tracer_provider()
        if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
            return None
    return Telemetry(provider)


class Telemetry:
    """Makes spans with one tracer."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = provider.get_tracer("mainspring.client")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def publishing(
        self, topic: str, id: str, key: str | None, headers: dict[str, str] | None
    ) -> Iterator[tuple[dict[str, str], Any]]:
        """Around a publish: gives the headers with the context in them, and the span."""
        attributes = {
            **_attributes("publish", "send", topic),
            "messaging.message.id": id,
        }
        if key is not None:
            attributes["messaging.mainspring.message.key"] = key
        with self._tracer.start_as_current_span(
            f"publish {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carried = dict(headers or {})
            self._propagator.inject(carried)
            yield carried, span

    def delivered(self, event: Event[Any]) -> None:
        """A span of its own for an event that goes to the program; it ends when the event is settled."""
        parent = self._propagator.extract(dict(event.headers))
        origin = self._trace.get_current_span(parent).get_span_context()
        attributes = {
            **_attributes("process", "process", event.topic),
            "messaging.consumer.group.name": event.group,
            "messaging.message.id": event.id,
            "messaging.destination.partition.id": str(event.partition),
            "messaging.mainspring.offset": event.offset,
            "messaging.mainspring.attempt": event.attempt,
        }
        span = self._tracer.start_span(
            f"process {event.topic}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=[self._trace.Link(origin)] if origin.is_valid else None,
        )
        event.span = ConsumeSpan(self._trace, span)


class ConsumeSpan:
    """The span of one delivery."""

    __slots__ = ("_span", "_trace")

    def __init__(self, trace: Any, span: Any) -> None:
        self._trace = trace
        self._span = span

    def current(self) -> Any:
        """A context manager in which the span is the current one."""
        return self._trace.use_span(self._span, end_on_exit=False)

    def acked(self) -> None:
        self._span.end()

    def nacked(self, reason: str) -> None:
        self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, reason or "nack"))
        self._span.end()


def _attributes(name: str, type: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": type,
        "messaging.destination.name": topic,
    }
