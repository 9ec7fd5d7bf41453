from __future__ import annotations

from tests.support.fixtures.log import make_engine

__all__ = ["make_engine"]
