"""Spans of a client: publishing and consuming, by the semantic conventions for messaging.

`publish <topic>` of kind PRODUCER lasts until the event is durable, `process <topic>` of kind CONSUMER from delivery to
acknowledgement. The trace travels in the event's headers; a consumer's span continues the producer's trace and is
linked to it.

Without an SDK there is nothing to record, so there is no `Telemetry` at all and a client only compares with None. The
API package is optional, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mainspring.telemetry import TRACEPARENT, OpenSpan, Recorder, configured_provider, messaging

if TYPE_CHECKING:
    from mainspring.client.subscription import Event


def find_telemetry(provider: Any = None) -> Telemetry | None:
    """Telemetry with the given tracer provider or the process's; None where no SDK would record anything."""
    provider = configured_provider() if provider is None else provider
    return None if provider is None else Telemetry(provider)


class Telemetry:
    """Makes spans with one tracer."""

    def __init__(self, provider: Any) -> None:
        self._recorder = Recorder(provider, "mainspring.client")

    @contextmanager
    def publishing(
        self, topic: str, id: str, key: str | None, headers: dict[str, str] | None
    ) -> Iterator[tuple[dict[str, str], OpenSpan]]:
        """Around a publish: gives the headers with the context in them, and the span."""
        attributes = messaging("publish", "send", topic, message_id=id, key=key)
        span = self._recorder.begin(f"publish {topic}", "PRODUCER", attributes)
        given = {name: text for name, text in (headers or {}).items() if name != TRACEPARENT}
        entered = span.enter()
        try:
            yield span.carried(given), span
        except BaseException as error:
            span.end(error)
            raise
        finally:
            span.leave(entered)
            span.end()

    def delivered(self, event: Event[Any]) -> None:
        """A span of its own for an event that goes to the program; it ends when the event is settled."""
        attributes = messaging(
            "process",
            "process",
            event.topic,
            group=event.group,
            message_id=event.id,
            partition=str(event.partition),
            offset=event.offset,
            attempt=event.attempt,
        )
        links = [event.headers[TRACEPARENT]] if TRACEPARENT in event.headers else []
        event.span = self._recorder.begin(
            f"process {event.topic}", "CONSUMER", attributes, parent=event.headers, links=links
        )
