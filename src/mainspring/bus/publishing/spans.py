"""Spans of publishing: from the request until its events are durable.

Who publishes may have a span of its own and say so in the events' headers; then the node's span, `append`, stands
below it and the headers stay as they are. Otherwise the node's span, `publish`, is the producer's: it is put into the
headers, so that consumers go on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mainspring.bus.publishing.publisher import Placed, Ticket
from mainspring.bus.results import NewEvent
from mainspring.errors import MainspringError
from mainspring.log import Receipt
from mainspring.telemetry import TRACEPARENT, OpenSpan, Recorder, messaging


class TracedTicket:
    """Ends the span when the log has decided, then tells the one who waits."""

    def __init__(self, doing: OpenSpan, ticket: Ticket) -> None:
        self._doing = doing
        self._ticket = ticket

    def stored(self, placed: Sequence[Placed]) -> None:
        self._doing.end()
        self._ticket.stored(placed)

    def failed(self, error: MainspringError) -> None:
        self._doing.end(error)
        self._ticket.failed(error)


def traced(recorder: Recorder, topic: str, events: Sequence[Any]) -> tuple[OpenSpan, list[NewEvent]]:
    """A span for publishing these events, and the events with headers that carry the trace."""
    carried = next((event.headers for event in events if event.headers and TRACEPARENT in event.headers), None)
    one = events[0] if len(events) == 1 else None
    attributes = messaging(
        "publish" if carried is None else "append",
        "send",
        topic,
        message_id=None if one is None else one.id,
        key=None if one is None else one.key,
        count=None if one is not None else len(events),
    )
    name, kind = (f"publish {topic}", "PRODUCER") if carried is None else (f"append {topic}", "INTERNAL")
    doing = recorder.begin(name, kind, attributes, parent=carried)
    return doing, [
        NewEvent(
            bytes(event.payload),
            event.key,
            doing.carried(event.headers),
            event.id,
            event.delay_ms or 0,
            event.not_before or 0,
        )
        for event in events
    ]


def ending(doing: OpenSpan, stored: Callable[[Receipt], None]) -> Callable[[Receipt], None]:
    """`stored`, with the end of the span before it."""

    def end(receipt: Receipt) -> None:
        doing.end()
        stored(receipt)

    return end
