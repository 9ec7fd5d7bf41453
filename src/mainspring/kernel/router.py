"""Router: the same message always leads to the same place.

Two indexes, built once at boot: (kind, type) to the one slot that handles it, and event type to the slots that
subscribed, in registration order. Looking up is one dictionary access however many capabilities there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.kernel.capability import Contract
from mainspring.kernel.faults import CapabilityError

if TYPE_CHECKING:
    from mainspring.kernel.supervisor import Slot

Route = tuple[Contract, "Slot"]


class Router:
    def __init__(self) -> None:
        self.commands: dict[str, Route] = {}
        self.queries: dict[str, Route] = {}
        self.subscriptions: dict[str, list[Route]] = {}
        self.slots: dict[str, Slot] = {}

    def add(self, slot: Slot) -> None:
        """Enter a slot's handles and subscriptions; a key that is taken aborts, and the error names it."""
        if slot.id in self.slots:
            raise CapabilityError(
                f"two capabilities are named {slot.id!r}", remedy="give one of them another id or first segment"
            )
        self.slots[slot.id] = slot
        for contract in slot.plan.contracts:
            index = self.commands if contract.kind == "command" else self.queries
            taken = index.get(contract.type)
            if taken is not None:
                raise CapabilityError(
                    f"Duplicate handler for {contract.kind}:{contract.type}: {taken[1].id!r} and {slot.id!r}"
                )
            index[contract.type] = (contract, slot)
        for name, contracts in slot.plan.listeners.items():
            self.subscriptions.setdefault(name, []).extend((contract, slot) for contract in contracts)

    def find(self, type: str) -> Contract | None:
        """The contract of a type, whatever its kind; a command wins over a query of the same name."""
        route = self.commands.get(type) or self.queries.get(type)
        return None if route is None else route[0]

    def contracts(self) -> list[Contract]:
        """Every contract, in registration order."""
        return [contract for slot in self.slots.values() for contract in slot.plan.contracts]

    def subscribers(self) -> dict[str, list[str]]:
        """Event type to capability ids, each once, in registration order."""
        return {name: list(dict.fromkeys(slot.id for _, slot in routes)) for name, routes in self.subscriptions.items()}
