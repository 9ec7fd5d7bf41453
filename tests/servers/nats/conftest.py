from __future__ import annotations

from tests.support.fixtures.nats import name, node, own_server, server

__all__ = ["name", "node", "own_server", "server"]
