"""Which kind of slot a capability needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.kernel.capability import Plan, RestartPolicy
from mainspring.kernel.process import ProcessSlot, ProcessWorkerSlot
from mainspring.kernel.supervisor import HandlerSlot, Slot
from mainspring.kernel.workers import WorkerSlot

if TYPE_CHECKING:
    from mainspring.kernel.kernel import Kernel


def slot_for(plan: Plan, kernel: Kernel, policy: RestartPolicy) -> Slot:
    """The place of this capability's actor."""
    alone = plan.capability.isolation == "process"
    if plan.capability.handlers:
        return ProcessSlot(plan, kernel, policy) if alone else HandlerSlot(plan, kernel, policy)
    return ProcessWorkerSlot(plan, kernel, policy) if alone else WorkerSlot(plan, kernel, policy)
