"""Router: the same message always leads to the same place.

Two indexes, built once at boot: (kind, type) to the one slot that handles it, and event type to the slots that
subscribed, in registration order. Looking up is one dictionary access however many capabilities there are.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mainspring.kernel.capability import Contract
from mainspring.kernel.errors import CapabilityError

if TYPE_CHECKING:
    from mainspring.kernel.supervisor import Slot

Route = tuple[Contract, "Slot"]

_LONGEST_MISTAKE: Final = 64  # characters; comparing long texts takes long, and whoever sends them is not mistaken
_MISTAKES: Final = 256  # remembered, because whoever is mistaken once usually is so again and again


class Router:
    def __init__(self) -> None:
        self.commands: dict[str, Route] = {}
        self.queries: dict[str, Route] = {}
        self.subscriptions: dict[str, list[Route]] = {}
        self.slots: dict[str, Slot] = {}
        self._nearest = lru_cache(_MISTAKES)(self._find_nearest)

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
                both = f"{_whose(*taken)} and {_whose(contract, slot)}"
                raise CapabilityError(
                    f"Duplicate handler for {contract.kind}:{contract.type}: {both}",
                    remedy="give one of them another type",
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

    def suggestion(self, kind: str, type: str) -> str:
        """What somebody may have meant by a type that nobody handles so; empty when nothing is near."""
        route = (self.queries if kind == "command" else self.commands).get(type)
        if route is not None:
            return f"{type} is a {route[0].kind}"
        return "" if len(type) > _LONGEST_MISTAKE else self._nearest(type)

    def _find_nearest(self, type: str) -> str:
        first, _, second = type.partition(".")
        near = [name for name in (*self.commands, *self.queries) if {first, second} & set(name.split("."))]
        found = get_close_matches(type, near, n=1)
        return f"perhaps {found[0]} is meant" if found else ""


def _whose(contract: Contract, slot: Slot) -> str:
    """Who handles something: the function where it is known, else the capability."""
    function = contract.function
    name = getattr(function, "__qualname__", "")  # a partial, or an object that can be called, has none
    return f"{name} of {function.__module__}" if function is not None and name else repr(slot.id)
