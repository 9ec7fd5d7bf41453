from __future__ import annotations

from tests.support.fixtures.mongo import address, database, open_engine

__all__ = ["address", "database", "open_engine"]
