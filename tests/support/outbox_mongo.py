"""A drainer of an outbox in MongoDB, for tests."""

from __future__ import annotations

from typing import Any

from mainspring.loop import VirtualClock
from mainspring.outbox import open_outbox
from mainspring.outbox.drainer import Drainer, DrainOptions
from tests.support.outbox import FakeNode

LEASE_MS = 60_000


def drainer(
    database: Any, address: str, node: FakeNode, clock: VirtualClock, name: str = "d1", **options: Any
) -> Drainer:
    store = open_outbox(f"{address}/{database.name}")
    return Drainer(store, node, name, clock, lambda: 1.0, DrainOptions(lease_ms=LEASE_MS, **options))
