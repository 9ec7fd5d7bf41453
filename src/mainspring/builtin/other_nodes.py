"""What other nodes can be asked, as this node tells it.

Which types they handle is in their pulses; what a type takes and gives only they know, so they are asked. A node that
does not answer in time is named without the schemas: what is known is better than an error.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mainspring.kernel import Fail, Kernel

_PATIENCE_MS: Final = 5_000  # shorter than whoever asked waits


class Elsewhere:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def _served(self) -> dict[str, tuple[str, list[str]]]:
        """Types that this node does not handle: their kind, and the nodes that do. A command goes before a query."""
        remote = self._kernel.exchange.remote
        found: dict[str, tuple[str, list[str]]] = {}
        for handled, nodes in sorted((remote.served() if remote is not None else {}).items()):
            kind, _, type = handled.partition(":")
            if self._kernel.contract(type) is None:
                found.setdefault(type, (kind, nodes))
        return found

    def types(self) -> list[str]:
        return list(self._served())

    def listed(self) -> list[dict[str, Any]]:
        """For `Syscall.List`: without descriptions, which only `describe` fetches."""
        return [
            {"type": type, "kind": kind, "description": "", "node": nodes[0]}
            for type, (kind, nodes) in self._served().items()
        ]

    async def describe(self, types: list[str]) -> dict[str, Any]:
        """Those of the types that other nodes handle, each with the name of a node that does."""
        served = self._served()
        by_node: dict[str, list[str]] = {}
        for type in types:
            if type in served:
                by_node.setdefault(served[type][1][0], []).append(type)
        answers = await asyncio.gather(*(self._ask(name, asked) for name, asked in by_node.items()))
        described = {type: schema for answer in answers for type, schema in answer.items()}
        return {
            type: {"kind": served[type][0], **described.get(type, {}), "node": name}
            for name, asked in by_node.items()
            for type in asked
        }

    async def _ask(self, name: str, types: list[str]) -> dict[str, Any]:
        remote = self._kernel.exchange.remote
        node = next((node for node in remote.others() if node.name == name), None) if remote is not None else None
        if remote is None or node is None:
            return {}
        try:
            answer = await remote.ask(node, "query", "Syscall.Describe", {"capabilities": types}, _PATIENCE_MS)
        except Fail:
            return {}
        found: dict[str, Any] = answer["schemas"]
        return found
