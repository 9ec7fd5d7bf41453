from __future__ import annotations

from tests.support.fixtures.client import name, node, own_node

__all__ = ["name", "node", "own_node"]
