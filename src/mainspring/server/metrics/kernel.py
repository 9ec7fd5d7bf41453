"""The kernel: requests by type and outcome, how long they take, what waits, and which actors were replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mainspring.server.metrics.families import Row, counter, counters, gauge, gauges, histograms
from mainspring.server.observed import Observed

if TYPE_CHECKING:
    from prometheus_client import Metric

    from mainspring.kernel import Contract, Kernel


def families(observed: Observed) -> Iterator[Metric]:
    kernel = observed.kernel
    if kernel is None:
        return
    counted, alive = kernel.counters, kernel.liveness()
    yield from _requests(kernel)
    refused = [((type,), float(count)) for type, count in kernel.refused.items()]
    yield counters("kernel_refused", "Messages refused before anybody handled them, by error.", ["error"], refused)
    yield gauge("kernel_pending_requests", "Requests without an outcome.", alive["inFlight"])
    yield gauge("kernel_open_events", "Events that are being handled.", alive["events"])
    yield gauge("kernel_timers", "Messages that are sent later.", alive["timers"])
    yield counter("kernel_late_outcomes", "Outcomes that came after the request was closed.", counted["late"])
    yield counter("kernel_unclaimed", "Outcomes that nobody waited for.", counted["sunk"])
    yield counter("kernel_faults", "Faults of actors.", counted["faults"])
    yield from _actors(kernel)


def _requests(kernel: Kernel) -> Iterator[Metric]:
    used = [each for each in kernel.contracts() if each.counts.ns.count]
    labels = ["kind", "type", "outcome"]
    yield counters("kernel_requests", "Commands and queries that had their outcome.", labels, _outcomes(used))
    forwarded = _outcomes(kernel.forwarded_contracts())
    yield counters("kernel_forwarded", "Requests that were passed on to other nodes.", labels, forwarded)
    seconds = [((each.kind, each.type), each.counts.ns) for each in used]
    yield histograms("kernel_request_seconds", "Time until a request had its outcome.", ["kind", "type"], seconds)


def _outcomes(contracts: Iterable[Contract]) -> list[Row]:
    return [
        ((each.kind, each.type, outcome), float(count))
        for each in contracts
        for outcome, count in each.counts.outcomes().items()
    ]


def _actors(kernel: Kernel) -> Iterator[Metric]:
    slots = kernel.slots
    labels = ["capability"]
    restarts = [((slot.id,), float(slot.restarts)) for slot in slots]
    yield counters("kernel_restarts", "Actors that were replaced.", labels, restarts)
    depths = [((slot.id,), float(slot.waiting)) for slot in slots]
    yield gauges("kernel_mailbox_depth", "Mail that no actor has begun to handle.", labels, depths)
    unhealthy = [((slot.id,), float(slot.unhealthy)) for slot in slots]
    yield gauges("kernel_unhealthy", "1 for a capability that failed too often and is not served.", labels, unhealthy)
