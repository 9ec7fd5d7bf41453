from __future__ import annotations

from tests.support.fixtures.client import chromium, name, node, node_js, own_node

__all__ = ["chromium", "name", "node", "node_js", "own_node"]
