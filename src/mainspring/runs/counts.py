"""What a runtime has counted, as one snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.runs.runtime import Runtime


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Since the start of this process. `begun` by kind (durable, memory), `outcomes` by kind and outcome."""

    begun: dict[str, int]
    outcomes: dict[tuple[str, str], int]
    effects: dict[str, int]
    recovered: int = 0
    journal_writes: int = 0
    lease_renewals: int = 0
    leases_lost: int = 0
    leases_taken: int = 0


def counts_of(runtime: Runtime) -> RunCounts:
    """Read the counters of a runtime's parts."""
    scheduler, durable = runtime._scheduler, runtime._durable
    begun = {_KIND[is_durable]: count for is_durable, count in scheduler.begun.items()}
    outcomes = {(_KIND[is_durable], how): count for (is_durable, how), count in scheduler.outcomes.items()}
    effects: dict[str, int] = {}
    for handled in scheduler.handlers.values():
        if handled.asked:
            effects[handled.name] = effects.get(handled.name, 0) + handled.asked
    if durable is None:
        return RunCounts(begun, outcomes, effects)
    service = runtime._service
    return RunCounts(
        begun,
        outcomes,
        effects,
        recovered=service.recovered,
        journal_writes=durable.writer.written,
        lease_renewals=durable.lease.renewals,
        leases_lost=durable.times_lost,
        leases_taken=getattr(service, "taken", 0),
    )


_KIND = {True: "durable", False: "memory"}
