from __future__ import annotations

from tests.support.observability import lines, running, spans

__all__ = ["lines", "running", "spans"]
