from __future__ import annotations

from tests.support.fixtures.log import log, make_engine

__all__ = ["log", "make_engine"]
