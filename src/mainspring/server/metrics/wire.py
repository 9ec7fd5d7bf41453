"""The wire: requests by route and status, and who is connected to which socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.server.metrics.families import counter, counters, gauge
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric


def families(observed: Observed) -> Iterator[Metric]:
    requests = [
        ((method, route, str(status)), float(count)) for (method, route, status), count in observed.requests.items()
    ]
    yield counters("http_requests", "HTTP requests answered.", ["method", "route", "status"], requests)
    if observed.ndjson is not None:
        yield gauge("ndjson_connections", "Clients of the kernel's socket.", observed.ndjson.connections)
        yield counter("ndjson_accepted", "Clients of the kernel's socket since the start.", observed.ndjson.accepted)
    if observed.guests is not None:
        yield gauge("sysloop_sessions", "Guests of the loop's socket.", observed.guests.guests)
        yield counter("sysloop_accepted", "Guests of the loop's socket since the start.", observed.guests.accepted)
        yield counter("sysloop_polls", "How often guests asked to wait.", observed.guests.polls)
