from __future__ import annotations

from tests.support.fixtures.cli import elsewhere

__all__ = ["elsewhere"]
