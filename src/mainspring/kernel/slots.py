"""Which kind of slot a capability needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.kernel.capability import Plan, RestartPolicy
from mainspring.kernel.supervisor import HandlerSlot, Slot
from mainspring.kernel.workers import WorkerSlot

if TYPE_CHECKING:
    from mainspring.kernel.kernel import Kernel


def slot_for(plan: Plan, kernel: Kernel, policy: RestartPolicy) -> Slot:
    """The place of this capability's actor."""
    if plan.capability.isolation == "process":
        from mainspring.kernel.processes.process import (  # most nodes need none, and it costs
            ProcessSlot,
            ProcessWorkerSlot,
        )

        return (ProcessSlot if plan.capability.handlers else ProcessWorkerSlot)(plan, kernel, policy)
    return (HandlerSlot if plan.capability.handlers else WorkerSlot)(plan, kernel, policy)
