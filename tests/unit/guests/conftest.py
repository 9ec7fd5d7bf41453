from __future__ import annotations

from tests.support.fixtures.guests import guest, host, loop

__all__ = ["guest", "host", "loop"]
